"""4-bit weights of bitsandbytes: the program's numbers are its own, bit for bit, and so are the gradients."""

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.conftest import CaseCounter
from tests.engine.lowering_bench import make_task, run_engine, run_integers, same_bits, squared_error
from tests.parts import slow_except
from tests.source_tree import ROOT
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture import four_bit
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.commitments.records import state_tree
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType, GatherParams

bnb: Any = pytest.importorskip("bitsandbytes", reason="needs bitsandbytes")
BLOCKS, KINDS = 600, [(kind, nested) for kind in ("nf4", "fp4") for nested in (True, False)]


def every_number(kind: str, nested: bool, dtype: torch.dtype, size: int = 64) -> Any:
    """A layer that has all 16 codes with each of 256 bytes of a scale, in blocks of scales of other magnitudes."""
    generator = torch.Generator().manual_seed(3)
    most = 4 if dtype == torch.float16 else 20  # powers of ten; some are subnormal in either
    codes = torch.stack([torch.randperm(size, generator=generator) % 16 for _ in range(BLOCKS)]).view(-1, 2)
    state = bnb.functional.QuantState(
        absmax=torch.randn(BLOCKS, generator=generator).exp2() * 10.0 ** (torch.arange(BLOCKS) % (2 * most) - most),
        shape=torch.Size((BLOCKS // 3, 3 * size)), code=bnb.functional.get_4bit_type(kind, device="cpu"),
        blocksize=size, quant_type=kind, dtype=dtype,
    )  # fmt: skip
    if nested:
        outer = bnb.functional.QuantState(
            absmax=torch.tensor([0.0312345, 10.0 ** (-most - 5), 0.7 * 10.0**most]), blocksize=256, dtype=torch.float32,
            code=bnb.functional.create_dynamic_map(),
        )  # fmt: skip
        state = bnb.functional.QuantState(
            absmax=(torch.arange(BLOCKS) % 256).to(torch.uint8), shape=state.shape, code=state.code, blocksize=size,
            quant_type=kind, dtype=dtype, offset=torch.tensor(0.0549545), state2=outer,
        )  # fmt: skip
    return layer_of((codes[:, 0] * 16 + codes[:, 1]).to(torch.uint8)[:, None], state)


def layer_of(codes: Tensor, state: Any, compute: torch.dtype | None = torch.float32) -> Any:
    out, given = state.shape
    layer = bnb.nn.Linear4bit(given, out, bias=False, compute_dtype=compute, quant_type=state.quant_type, device="meta")
    layer.weight = bnb.nn.Params4bit(codes, quant_state=state, quant_type=state.quant_type, bnb_quantized=True)
    layer.quant_state = state
    return layer


class Numbers(nn.Module):
    """Writes a layer's numbers to a buffer."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.zero, self.dtype = layer, nn.Parameter(torch.zeros(())), dtype
        self.register_buffer("y", torch.zeros(layer.quant_state.shape))
        self.y: Tensor

    def forward(self, unused: Tensor) -> Tensor:
        self.y.copy_(four_bit.numbers(self.layer, self.dtype))
        return self.zero + 0 * unused.sum()


@pytest.mark.parametrize("dtype", slow_except([torch.bfloat16, torch.float16, torch.float32], torch.bfloat16), ids=str)
@pytest.mark.parametrize(("kind", "nested"), slow_except(KINDS, KINDS[0], several=True))
def test_every_code_and_scale_is_the_number_that_bitsandbytes_computes(
    kind: str, nested: bool, dtype: torch.dtype, cases: CaseCounter
) -> None:
    layer = every_number(kind, nested, dtype, 64 if nested else 128)
    expected = bnb.functional.dequantize_4bit(layer.weight, layer.quant_state)
    assert expected.dtype == dtype
    model = Numbers(layer, dtype)
    with four_bit.as_state(model):
        captured = capture_task(make_task(model, {"u": torch.zeros(1, 1)}, batch=1))
    found = run_engine(captured)
    assert torch.equal(found["model.y"].view(torch.int32), expected.float().view(torch.int32))
    assert not same_bits(found, run_integers(captured))
    spec = captured.program.state_spec()
    assert spec["model.layer.weight"] == (DType.I64, (expected.numel() // 16,))
    assert {name for name in spec if name.startswith("model.layer.")} <= captured.program.frozen
    blocks = layer.weight.data.view(BLOCKS, -1)
    bytes_of = enumerate(blocks.tolist())
    pairs = {(scale % 256, byte >> half & 15) for scale, row in bytes_of for byte in row for half in (0, 4)}
    assert len(pairs) == 16 * 256
    cases(len(pairs))


def test_numbers_are_rounded_to_float16_as_torch_rounds(cases: CaseCounter) -> None:
    """Around each number of float16, each middle between two, and the ends of FP32; a NaN stays one."""
    halves = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    places = halves[:, None].view(torch.int32) + torch.tensor([0, 2**12])
    given = torch.cat([(places + n).flatten() for n in (-1, 0, 1)] + [torch.arange(-9, 10, dtype=torch.int32)])
    given = torch.cat([given, torch.arange(-(2**31), 2**31, 65_537).to(torch.int32)]).view(torch.float32)
    found, expected = four_bit.to_f16(given), given.half().float()
    assert torch.equal(found.isnan(), expected.isnan())
    same = (found.view(torch.int32) == expected.view(torch.int32)) | expected.isnan()
    assert not given[~same].tolist()
    cases(len(given))


def quantized(given: int = 64, out: int = 128, kind: str = "nf4", seed: int = 5, **more: Any) -> Any:
    weight = torch.randn(out, given, generator=torch.Generator().manual_seed(seed))
    weight = weight.to(more.pop("dtype", torch.float32))
    codes, state = bnb.functional.quantize_4bit(weight, quant_type=kind, compress_statistics=more.pop("nested", True))
    return layer_of(codes, state, **more)


def between(**more: Any) -> Any:
    """Trained layers around two with 4-bit weights."""
    torch.manual_seed(0)
    layers = quantized(**more), quantized(128, 64, **more)
    return nn.Sequential(nn.Linear(8, 64), layers[0], nn.Tanh(), layers[1], nn.Linear(64, 4))


DATA = {"x": torch.randn(8, 8, generator=torch.Generator().manual_seed(1)), "y": torch.zeros(8, 4)}
SETTINGS: dict[str, dict[str, Any]] = {
    "f32": {},
    "bf16": {"dtype": torch.bfloat16, "compute": torch.bfloat16},
    "bf16 weights in f32": {"dtype": torch.bfloat16},
    "f16": {"dtype": torch.float16, "compute": torch.float16},
    "f16 weights in f32": {"dtype": torch.float16},
    "bf16 weights in f16": {"dtype": torch.bfloat16, "compute": torch.float16},
    "one scale": {"nested": False, "kind": "fp4"},
    "of the input": {"compute": None},
}


@pytest.mark.parametrize("name", slow_except(SETTINGS, "f32"))
def test_the_program_is_what_bitsandbytes_own_layers_compute(name: str) -> None:
    model = between(**SETTINGS[name])
    before = {n: (id(p), p._version) for n, p in model.named_parameters()}
    made = checked(make_task(model, DATA, 4, loss=squared_error, rate=0.1))
    assert made.check == "full"
    assert {n: (id(p), p._version) for n, p in model.named_parameters()} == before
    assert not [n for n, _ in model.named_buffers()]
    tables = [i for i in made.program.body if isinstance(i.params, GatherParams) and i.shape == (4096, 2)]
    assert len(tables) == 4, "each layer's codes are unpacked in the forward and again in the backward pass"
    gradient, *_ = torch.autograd.grad(squared_error(model, DATA["x"], DATA["y"]), model[0].weight)
    assert gradient.norm() > 0


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("cc") and shutil.which("make")), reason="needs a C compiler")
def test_c_recheck_computes_the_steps_of_a_model_with_4_bit_weights(tmp_path: Path) -> None:
    """From the state and, by the same instructions, from one in which a code is another."""
    subprocess.run(
        ["make", "-s", "-C", "recheck", f"BUILD={tmp_path}", str(tmp_path / "recheck")], cwd=ROOT, check=True
    )
    model = between(**SETTINGS["bf16"])
    with four_bit.as_state(model):
        made = capture_task(make_task(model, DATA, 4, steps=3, loss=squared_error, rate=0.1))
    (tmp_path / "program").write_bytes(made.program.encode())
    save_file(made.data, tmp_path / "data")
    interpreter, roots = Interpreter(made.program, Arithmetic()), set[str]()
    for flipped in (0, 1):
        state = {name: tensor.clone() for name, tensor in made.state.items()}
        state["model.1.weight"][7] ^= flipped
        save_file(state, tmp_path / "state")
        command = [tmp_path / "recheck", "run", tmp_path / "program", tmp_path / "state", tmp_path / "data", "3"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = [line.split() for line in done.stdout.splitlines() if line.startswith("step")]
        assert len(found) == 3
        for step, line in enumerate(found, 1):
            result = interpreter.step(step, state, made.data)
            state = result.state
            bits = struct.pack(">f", result.loss).hex()
            assert (line[3], line[5]) == (bits, state_tree(identities(state)).root.hex())
        roots.add(found[-1][5])
    assert len(roots) == 2


@pytest.mark.slow
def test_layers_with_4_bit_weights_are_checked_on_a_slice() -> None:
    torch.manual_seed(0)
    rows = (nn.Sequential(nn.Linear(64, 64), quantized(64, 64, seed=n), nn.Tanh()) for n in range(8))
    model = nn.Sequential(nn.Linear(8, 64), nn.Sequential(*rows), nn.Linear(64, 4))
    made = checked(make_task(model, DATA, 4, loss=squared_error, rate=0.1), check="slice")
    assert made.check == "slice"


@pytest.mark.slow
def test_other_numbers_than_bitsandbytes_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, model = four_bit.numbers, between()
    monkeypatch.setattr(four_bit, "numbers", lambda *given: numbers(*given) * 1.001)
    with pytest.raises(ConfigurationError, match="the program is not the model"):
        checked(make_task(model, DATA, 4, loss=squared_error, rate=0.1))


def stored_as_bf16() -> Any:
    layer = quantized()
    codes = layer.weight.data.flatten().view(torch.bfloat16)[:, None]
    layer.weight = bnb.nn.Params4bit(codes, quant_state=layer.quant_state)
    return layer


def trained_bias() -> Any:
    layer = quantized()
    layer.bias = nn.Parameter(torch.zeros(128))
    return layer


def packed_by_evaluation() -> Any:
    layer = quantized()
    layer.quant_state.packing_format_for_cpu = True
    return layer


REFUSED: dict[str, Any] = {
    "codes stored as torch.bfloat16": stored_as_bf16,
    "a bias that is trained": trained_bias,
    "weights that an evaluation on this CPU has rounded": packed_by_evaluation,
    "weights of torch.float64, of which": lambda: quantized(compute=torch.float64),
    "rows of 96 weights in blocks of 64": lambda: quantized(96, 32),
    "a Linear4bit that is not quantized yet": lambda: bnb.nn.Linear4bit(4, 4),
    "a Linear8bitLt; only Linear4bit is held": lambda: bnb.nn.Linear8bitLt(4, 4),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_has_no_form_is_refused_by_its_name(reason: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), REFUSED[reason]())
    with pytest.raises(ConfigurationError, match=f"1: {reason}"):
        make_task(model, DATA)


def test_a_frozen_bias_is_added(cases: CaseCounter) -> None:
    model = between()
    for n, size in ((1, 128), (3, 64)):
        model[n].bias = nn.Parameter(torch.linspace(-1, 1, size), requires_grad=False)
        cases(1)
    assert checked(make_task(model, DATA, 4, loss=squared_error, rate=0.1)).check == "full"
