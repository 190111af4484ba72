"""Integers of fewer than 64 bits as data: the same bytes on the disk and under the data root, the same steps as i64."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tiebreak
from conformance.whole_steps import execute, new_state
from tests.conftest import CaseCounter
from tests.engine.lowering_bench import make_task
from tests.parts import slow_except
from tiebreak import SGD, Batch, Task, Windows
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.data import map_array, open_array
from tiebreak.engine.data.mapped import NARROW, source_of, stored
from tiebreak.engine.data.tensors import identities, tensor_bytes
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.errors import ConfigurationError

STEPS = 20


def values(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Random integers of the whole range, with both ends among them."""
    info = torch.iinfo(dtype)
    drawn = torch.randint(info.min, info.max + 1, shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    drawn.view(-1)[:4] = torch.tensor([info.min, info.max, 0, info.max]).to(dtype)
    return drawn


class Pictures(nn.Module):
    """Keeps the batch that it was given in a buffer, as i64."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((3, *shape), dtype=torch.int64))
        self.layer = nn.Linear(int(np.prod(shape)), 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen.copy_(x)
        return F.cross_entropy(self.layer((x.float() / torch.iinfo(torch.uint8).max).flatten(1) * 1e-9), y.long())


def task_of(x: Tensor, y: Tensor) -> Task:
    torch.manual_seed(0)
    return make_task(Pictures(tuple(x.shape[1:])), {"x": x, "y": y}, 3, rate=0.1, steps=STEPS)


SHAPES = {"words": (7, 2, 4, 4), "rows that fill no word": (7, 3, 3), "one dimension": (7,)}


EVERY_OTHER = [(dtype, shape) for dtype in NARROW for shape in SHAPES][::2]


@pytest.mark.parametrize(("dtype", "shape"), slow_except(EVERY_OTHER, EVERY_OTHER[0], several=True), ids=str)
def test_narrow_integer_data_train_exactly_as_int64(dtype: torch.dtype, shape: str, cases: CaseCounter) -> None:
    x, y = values(dtype, SHAPES[shape]), torch.arange(7, dtype=torch.uint8) % 5
    if len(SHAPES[shape]) == 1:
        x = x[:, None].expand(7, 8 // dtype.itemsize)  # not contiguous, and it fills a word
    narrow, wide = checked(task_of(x, y)), checked(task_of(x.to(torch.int64), y.to(torch.int64)))
    filled = x[0].numel() * dtype.itemsize % 8 == 0
    assert narrow.data["x"].nbytes == (x.numel() * dtype.itemsize if filled else x.numel() * 8)
    if filled:
        assert bytes(tensor_bytes(narrow.data["x"])) == x.contiguous().numpy().tobytes()
    machines = [Interpreter(c.program, Arithmetic(permute=p)) for c, p in ((narrow, None), (narrow, 3), (wide, None))]
    states = [m.to_device(narrow.state) for m in machines]
    data = [m.to_device(c.data) for m, c in zip(machines, (narrow, narrow, wide), strict=True)]
    for step in range(1, STEPS + 1):
        before = states[0]
        states = [m.step(step, s, d).state for m, s, d in zip(machines, states, data, strict=True)]
        assert all(torch.equal(t, other[name]) for other in states[1:] for name, t in states[0].items())
        cases()
    given, raw = ({n: bytes(tensor_bytes(t)) for n, t in part.items()} for part in (before, narrow.data))
    found = new_state(narrow.program, execute(narrow.program, given, raw, STEPS))
    assert {n: bytes(tensor_bytes(t)) for n, t in states[0].items()} == found


def test_int32_and_int64_token_windows_give_the_same_program() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 9)

        def forward(self, t: Tensor) -> Tensor:
            return F.cross_entropy(self.table(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten().long())

    tokens = torch.randint(0, 9, (50,), generator=torch.Generator().manual_seed(3))
    compiled = []
    for given in (tokens, tokens.to(torch.int32)):
        torch.manual_seed(0)
        windows = Batch(size=4, examples=Windows(name="t", length=6, stride=5))
        compiled.append(checked(make_task(Tokens(), {"t": given}, windows, rate=0.1)))
    assert compiled[0].program == compiled[1].program
    assert torch.equal(compiled[0].data["t"], compiled[1].data["t"])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_memory_mapped_narrow_data_are_not_copied(dtype: torch.dtype, tmp_path: Path) -> None:
    x = values(dtype, (6, 4, 16))
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = map_array(open_array(tmp_path / "x.npy"))
    assert torch.equal(mapped, x)
    words = stored(mapped)
    assert source_of(words) is not None
    assert bytes(tensor_bytes(words)) == x.numpy().tobytes()
    assert identities({"x": words}) == identities({"x": stored(x)})
    (tmp_path / "raw").write_bytes(bytes(4) + x.numpy().tobytes())
    odd = map_array(open_array(tmp_path / "raw", dtype=x.numpy().dtype.str, shape=tuple(x.shape), offset=4))
    assert source_of(stored(odd)) is None, "words that are not aligned are copied"
    assert torch.equal(stored(odd), words)


def test_unsupported_data_dtypes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"float32, int64 or bool in data 'x', or uint8, .*got torch.float16"):
        task_of(torch.zeros(7, 8, dtype=torch.float16), torch.zeros(7, dtype=torch.int64))


@pytest.mark.slow
def test_bool_data_are_stored_unchanged_and_audited(tmp_path: Path) -> None:
    """Masks of an image's parts, say: a run on them is audited."""
    mask = torch.rand(12, 5, generator=torch.Generator().manual_seed(1)) > 0.5
    np.save(tmp_path / "mask.npy", mask.numpy())
    torch.manual_seed(0)
    model = nn.Linear(5, 5)

    def masked(net: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        return (net(x * ~mask) - x)[:, None].expand(-1, 2, -1).where(mask[:, None], 0).square().mean()

    data = {"x": torch.randn(12, 5), "mask": tmp_path / "mask.npy"}
    task = tiebreak.Task(model, masked, optimizer=SGD(lr=0.1), data=data, batch=3, steps=4)
    run = tiebreak.train(task, tmp_path / "run", progress=False)
    assert run.audit().agrees
    assert mask.numpy().tobytes() in (tmp_path / "run" / "data.safetensors").read_bytes()
