"""Operands that are held in bfloat16: sums and extremes of them, and runs in which what no step changes is so."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine.arithmetic_cases import Maker, elements_of, expected, random_reduction
from tests.engine.frozen_cases import adapted, loss
from tests.engine.interpreted import Suite, graphs, main, operands, sums
from tests.engine.interpreted.integers import small as by_integers
from tests.engine.interpreted.workers import quick
from tests.engine.lowering_bench import make_task
from tests.engine.together import train_alone, train_together
from tests.golden.train import Inputs
from tiebreak.engine.arithmetic import Arithmetic, execute
from tiebreak.engine.arithmetic.c.backend import CBackend
from tiebreak.engine.arithmetic.gpu import hashing, launching
from tiebreak.engine.arithmetic.gpu.backend import GpuBackend
from tiebreak.engine.arithmetic.plain.backend import TorchBackend
from tiebreak.engine.arithmetic.plan import ziv
from tiebreak.engine.capture import four_bit
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.data import tensors as on_host
from tiebreak.engine.data.tensors import widened
from tiebreak.engine.distributed import partition
from tiebreak.engine.distributed.exchange import Collectives
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.interpreter import Interpreter, State
from tiebreak.protocol.program.isa import DType, Instruction
from tiebreak.protocol.program.rounding import SumKind

STEPS = 20
WAYS: dict[str, Callable[[], Any]] = {
    "as it is": lambda: mock.patch.object(sums.launching, "MANY", 0),
    "twice": lambda: mock.patch.object(sums.launching, "MANY", 1 << 20),  # as a whole, if anything is undecided
    "doubled": sums.in_doubled_precision,
    "fixed point": sums.in_fixed_point,
    "integers": by_integers,
    "copied": operands.always,
    "tables": sums.tabled,
}


# ---- instructions ----


def held(r: random.Random, i: Instruction, x: Sequence[Tensor]) -> list[Tensor]:
    """Operands of which one or all are in bfloat16."""
    which = r.choice([(0,), (1,), (0, 1)]) if len(i.operands) > 1 else (0,)
    return [tensor.to(torch.bfloat16) if n in which else tensor for n, tensor in enumerate(x)]


def computes(examples: int, *forms: sums.Form, way: str = "as it is") -> int:
    """Hostile values, in order and permuted, at every precision, against integers; kernels get what is in bfloat16."""
    ran, seen, launch = 0, Counter[str](), launching.launch

    def watched(kernel: Any, programs: int, *given: Any, **options: Any) -> None:
        seen[kernel.fn.__name__] += any(isinstance(x, Tensor) and x.dtype == torch.bfloat16 for x in given)
        launch(kernel, programs, *given, **options)

    with ExitStack() as stack:
        stack.enter_context(WAYS[way]())
        for module in graphs.LAUNCHING:
            stack.enter_context(mock.patch.object(module, "launch", watched))
        for seed, i, x in sums.drawn(examples, *forms):
            narrow, precision = held(random.Random(seed), i, x), 32 - seed % 17
            arithmetic = Arithmetic(permute=seed if seed % 4 == 3 else None, precision=precision)
            found = elements_of(arithmetic.execute(i, narrow, 0))
            assert found == expected(i, [*map(widened, narrow)], precision=precision), (seed, i)
            ran += len(found)
    wanted = {"twice": "contract_twice", "integers": "find_residues", "copied": "copy_lanes"}.get(way, "settle")
    assert seen[wanted], seen
    return ran


def extremes(examples: int) -> int:
    ran = 0
    for seed in range(examples):
        function = sums.EXTREMES[seed % 2]
        i, (x,) = random_reduction(Maker(random.Random(seed)), function, DType.F32)
        narrow = x.to(torch.bfloat16)
        for backend in (GpuBackend, TorchBackend):
            with mock.patch.object(execute, "choose", backend):
                found = widened(Arithmetic().execute(i, [narrow], 0))
            assert elements_of(found) == expected(i, [widened(narrow)]), (seed, i, backend)
            ran += found.numel()
    return ran


def logs(examples: int) -> int:
    """Elements near a tie are reported or settled alike, however the operands are held."""
    logging, ran = ziv.Logging(dict.fromkeys(SumKind, 2.0**24), dict.fromkeys(SumKind, 2)), 0
    for seed, i, x in sums.drawn(examples, sums.affine, sums.plain):
        narrow, found = held(random.Random(seed), i, x), []
        for each in (narrow, [*map(widened, narrow)]):
            result, near = Arithmetic(precision=32, logging=logging).execute_logged(i, each, 0)
            found.append((elements_of(result), near.elements.tolist(), near.values.tolist()))
        assert found[0] == found[1], (seed, i)
        ran += len(found[0][1])
    return ran


def partial(examples: int) -> int:
    """What is left for other workers is the same number for number; what it leaves open is read exactly."""
    ran = 0
    for seed, i, x in sums.drawn(examples, sums.affine, sums.plain):
        narrow = held(random.Random(seed), i, x)
        for backend in (GpuBackend, TorchBackend, CBackend):
            with mock.patch.object(execute, "choose", backend):
                arithmetic = Arithmetic()
            one, other = (arithmetic.backend.partial(i)(each) for each in (narrow, [*map(widened, narrow)]))
            assert one.roundings == other.roundings
            for got, right in zip((one.sums, *one.sizes), (other.sums, *other.sizes), strict=True):
                assert torch.equal(got.view(torch.int64), right.view(torch.int64)), (seed, i, backend)
        elements = range(i.numel)
        assert arithmetic.exact_sums(i, narrow, elements) == arithmetic.exact_sums(i, [*map(widened, narrow)], elements)
        ran += i.numel
    return ran


def hashes() -> int:
    """Zeros, subnormals, infinities and NaN, and tensors of other dtypes among them."""
    short = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    found = {"first": short[:99], "i64": torch.arange(5), "turned": short[::800].view(-1, 2).T, "f32": torch.ones(7)}
    for some in (found, {"first": short[32600:32700]}):
        assert hashing.identities(some) == on_host.identities(some)
    return len(found)


# ---- runs ----


class Quantized(nn.Module):
    """A layer of 4-bit weights and a head in bfloat16, both frozen, with LoRA that is trained."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 64).bfloat16().requires_grad_(requires_grad=False)
        self.layer = layer.requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(64, 2, bias=False), nn.Linear(2, 64, bias=False)
        self.head = nn.Linear(64, 11, bias=False).bfloat16().requires_grad_(requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        x = F.silu(self.layer(x) + self.up(self.down(x.float())).bfloat16())
        return self.head(x).float()


@cache
def quantized() -> Captured:
    from tests.engine.test_four_bit import quantized as layer_of  # which needs bitsandbytes  # noqa: PLC0415

    torch.manual_seed(1)
    ids = torch.randint(0, 11, (12, 3))
    model = Quantized(layer_of(64, 64, dtype=torch.bfloat16, compute=torch.bfloat16))
    with four_bit.as_state(model):
        return capture_task(make_task(model, {"ids": ids, "labels": ids.roll(1, 1)}, 2, loss=loss, steps=STEPS))


def narrowed(made: Captured) -> State:
    """Its state with what no step changes in bfloat16, where that is exact."""
    frozen = {
        n: x.to(torch.bfloat16) for n, x in made.state.items() if n in made.program.frozen and x.is_floating_point()
    }
    exact = {n: x for n, x in frozen.items() if torch.equal(x.float(), made.state[n].float())}
    assert exact
    return {**made.state, **exact}


def trains(made: Captured, steps: int) -> int:
    """A GPU's kernels and a CPU's make the same records; what is in bfloat16 stays so, where it is."""
    given, records = narrowed(made), []
    for backend in (CBackend, GpuBackend):
        with mock.patch.object(execute, "choose", backend):
            machine = Interpreter(made.program, Arithmetic())
        state, data = machine.to_device(given), machine.place_data(made.data)
        begun, found = state, []
        for number in range(1, steps + 1):
            result = machine.step(number, state, data, donate=number > 1)
            state = result.state
            found.append(make_record(number, state, result.loss_bits, ids=on_host.identities).digest)
            for name, tensor in given.items():
                assert state[name].dtype == tensor.dtype, name
                assert tensor.dtype != torch.bfloat16 or state[name] is begun[name], name
        records.append(found)
    wide = {name: widened(tensor) for name, tensor in made.state.items()}
    alone, _ = train_alone(Captured(made.program, wide, made.data), steps)
    assert records == [alone, alone]
    return steps


def replays(steps: int) -> int:
    made = adapted()
    return graphs.agrees(Inputs(made.program, narrowed(made), made.data), steps)


def shared(workers: int, steps: int, backends: Sequence[type[TorchBackend]]) -> int:
    """Workers of all kinds send each other shards in bfloat16."""
    made, gather, sent = adapted(), Collectives.gather, Counter[torch.dtype]()

    def watched(self: Collectives, shard: Tensor, split: Any) -> Any:
        sent[shard.dtype] += 1
        return gather(self, shard, split)

    with quick(), mock.patch.object(partition, "LEAST", 1), mock.patch.object(Collectives, "gather", watched):
        right, _ = train_alone(made, steps)
        records, whole = train_together(
            made, workers, steps, state=narrowed(made), backends=backends, turn=threading.Lock()
        )
    assert records == right
    assert {n: x.dtype for n, x in whole.items()} == {n: x.dtype for n, x in narrowed(made).items()}
    assert sent[torch.bfloat16] >= workers * steps
    return steps


def within(check: Callable[[], int]) -> Callable[[], int]:
    def run() -> int:
        with sums.small():
            return check()

    return run


FORMS = {"affine": (sums.affine,), "plain": (sums.plain,), "convolution": (sums.convolution,)}
SUITE = Suite(
    fast={
        "products": within(lambda: computes(2, sums.affine)), "sums": within(lambda: computes(2, sums.plain)),
        "hashes": hashes, "adapters": lambda: trains(adapted(), 2),
    },
    slow={
        **{name: within(lambda forms=forms: computes(20, *forms)) for name, forms in FORMS.items()},
        **{way: within(lambda way=way: computes(16, sums.affine, way=way)) for way in WAYS.keys() - {"copied"}},
        "copied": within(lambda: computes(20, sums.convolution, way="copied")),
        "extremes": within(lambda: extremes(40)), "logs": within(lambda: logs(20)),
        "partial": within(lambda: partial(20)), "replays": lambda: replays(12),
        "adapters": lambda: trains(adapted(), STEPS), "in FP32": lambda: trains(adapted(rounds=False), STEPS),
        "workers": lambda: shared(3, 3, (GpuBackend, CBackend, TorchBackend)),
        **({"4 bits": lambda: trains(quantized(), STEPS)} if find_spec("bitsandbytes") else {}),
    },
    mutants=[],
    killed=dict,
)  # fmt: skip

if __name__ == "__main__":
    main(SUITE)
