"""The cache of captured steps: the same program as without, and a miss for every change of what the step does."""

import random
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebreak.demo.tasks import digits
from tiebreak.engine.capture.cache import CaptureCache
from tiebreak.engine.capture.compile import compile_task
from tiebreak.engine.capture.fingerprint import Digest, NoFingerprint, step_fingerprint, structure_digest
from tiebreak.engine.capture.step import StepGraph
from tiebreak.engine.capture.task import SGD, AdamW, Batch, Rows, Task

BATCH = (torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64))


class Config:
    """What a model reads while it runs, as the configurations of Hugging Face's models are."""

    def __init__(self, scale: float = 2.0, layers: int = 1) -> None:
        self.scale = scale
        self.layers = layers


class Net(nn.Module):
    def __init__(self, *, p: float = 0.1, eps: float = 1e-5, config: Config | None = None, width: int = 8) -> None:
        super().__init__()
        self.config = config or Config()
        self.first, self.norm = nn.Linear(6, width), nn.LayerNorm(width, eps=eps)
        self.dropout, self.head = nn.Dropout(p), nn.Linear(width, 3)
        self.shift = torch.tensor([0.5, 1.5, 2.5])  # neither parameter nor buffer: a constant of the step

    def hidden(self, x: Tensor, power: float = 1.0) -> Tensor:
        y: Tensor = self.norm(self.first(x)) * (self.config.scale * power)
        for _ in range(self.config.layers):
            y = torch.tanh(y)
        return y

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(self.hidden(x))) + self.shift
        return logits


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def smoothed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, label_smoothing=0.1)


def scaled(factor: float) -> Callable[..., Tensor]:
    return lambda model, x, y: cross_entropy(model, x, y) * factor


class ConstantInForward(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1.5


class AnotherConstantInForward(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1.25


class DefaultArgument(Net):
    def hidden(self, x: Tensor, power: float = 1.0000001) -> Tensor:
        return super().hidden(x, power)


class OwnBackward(torch.autograd.Function):
    factor = 1.0

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * OwnBackward.factor


class WithOwnBackward(Net):
    def forward(self, x: Tensor) -> Tensor:
        return OwnBackward.apply(super().forward(x))  # type: ignore[no-untyped-call,no-any-return]


class Counting(Net):
    """Does something else each time it is run."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * float(self.calls)


class Drawing(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * random.random()


def shifted(model: Net, to: float) -> Net:
    model.shift[1] = to
    return model


def frozen(model: Net) -> Net:
    model.first.weight.requires_grad_(False)
    return model


def tied(model: Net) -> Net:
    model.norm.bias = model.norm.weight
    return model


def evaluating(model: Net) -> Net:
    model.dropout.eval()
    return model


def retouched(model: Net) -> Net:
    """The same weights by name and shape, other numbers in them."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    return model


CHANGES: dict[str, Callable[[], tuple[Net, Callable[..., Tensor]]]] = {
    "constant in forward": lambda: (ConstantInForward(), cross_entropy),
    "another constant in forward": lambda: (AnotherConstantInForward(), cross_entropy),
    "default argument": lambda: (DefaultArgument(), cross_entropy),
    "closure of the loss": lambda: (Net(), scaled(2.0)),
    "another closure of the loss": lambda: (Net(), scaled(2.5)),
    "code of the loss": lambda: (Net(), smoothed),
    "number in the configuration": lambda: (Net(config=Config(scale=2.25)), cross_entropy),
    "count in the configuration": lambda: (Net(config=Config(layers=2)), cross_entropy),
    "p of the dropout": lambda: (Net(p=0.2), cross_entropy),
    "eps of the norm": lambda: (Net(eps=2e-5), cross_entropy),
    "width": lambda: (Net(width=9), cross_entropy),
    "a constant tensor": lambda: (shifted(Net(), 1.25), cross_entropy),
    "a frozen parameter": lambda: (frozen(Net()), cross_entropy),
    "tied parameters": lambda: (tied(Net()), cross_entropy),
    "a submodule in another mode": lambda: (evaluating(Net()), cross_entropy),
    "a backward of its own": lambda: (WithOwnBackward(), cross_entropy),
}


@pytest.mark.parametrize("structure", [True, False])
def test_every_change_has_a_fingerprint_of_its_own(
    structure: bool, monkeypatch: pytest.MonkeyPatch, cases: Callable[[], None]
) -> None:
    """By the record of calls alone, too."""
    if not structure:
        monkeypatch.setattr("tiebreak.engine.capture.fingerprint.structure_digest", lambda *_: "")
    seen = {step_fingerprint(Net(), cross_entropy, BATCH): "unchanged"}
    for name, make in CHANGES.items():
        digest = step_fingerprint(*make(), BATCH)
        assert digest not in seen, f"{name} reads like {seen.get(digest)}"
        assert step_fingerprint(*make(), BATCH) == digest, f"{name} made anew"
        seen[digest] = name
        cases()
    larger = (torch.zeros(5, 6), torch.zeros(5, dtype=torch.int64))
    floats = (torch.zeros(4, 6), torch.zeros(4, 3))
    for batch in (larger, floats):
        assert step_fingerprint(Net(), cross_entropy, batch) not in seen
        cases()


def test_a_backward_alone_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and bytecode are the same, only a number that the backward reads is another."""
    before = step_fingerprint(WithOwnBackward(), cross_entropy, BATCH)
    monkeypatch.setattr(OwnBackward, "factor", 2.0)
    assert step_fingerprint(WithOwnBackward(), cross_entropy, BATCH) != before


def test_structure_sees_what_no_call_shows() -> None:
    """Code that another way of tracing might reach: bytecode, closures, attributes count though nothing runs them."""

    class Unreached(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if isinstance(x, Tensor) else x * 2

    class Reached(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if isinstance(x, Tensor) else x * 3

    Reached.__qualname__ = Unreached.__qualname__
    unreached, reached = (structure_digest(kind(), cross_entropy) for kind in (Unreached, Reached))
    assert unreached != reached
    assert structure_digest(Net(config=Config(layers=3)), cross_entropy) != structure_digest(Net(), cross_entropy)
    assert structure_digest(Net(), scaled(1.0)) != structure_digest(Net(), scaled(2.0))
    assert structure_digest(Net(), scaled(1.0)) == structure_digest(Net(), scaled(1.0))


def test_values_of_weights_do_not_matter() -> None:
    expected = step_fingerprint(Net(), cross_entropy, BATCH)
    assert step_fingerprint(retouched(Net()), cross_entropy, BATCH) == expected
    other = (torch.ones(4, 6), torch.ones(4, dtype=torch.int64))
    assert step_fingerprint(Net(), cross_entropy, other) == expected


def task_of(model: nn.Module, loss: Callable[..., Tensor] = cross_entropy, **changes: object) -> Task:
    generator = torch.Generator().manual_seed(1)
    data = {"x": torch.randn(12, 6, generator=generator), "y": torch.randint(0, 3, (12,), generator=generator)}
    given = {"optimizer": SGD(lr=0.1), "batch": Batch(size=4, examples=Rows(names=("x", "y"))), "steps": 4}
    return Task(name="t", model=model, loss=loss, data=data, checkpoint_interval=2, **given | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [digits.task, lambda: task_of(Net()), lambda: task_of(frozen(Net()))])
def test_the_program_from_the_cache_is_the_program(make: Callable[[], Task], tmp_path: Path) -> None:
    """Root, state, data and places in the model, against a capture without a cache."""
    cache = CaptureCache(tmp_path)
    task = make()
    plain, cold, warm = compile_task(task), compile_task(task, cache), compile_task(task, cache)
    assert cache.hits == 1
    assert cache.outcome.startswith("cached as ")
    assert warm.program.encode() == cold.program.encode() == plain.program.encode()
    assert [i.origin for i in warm.program.body] == [i.origin for i in plain.program.body]
    for part in ("state", "data"):
        ours, theirs = getattr(warm, part), getattr(plain, part)
        assert list(ours) == list(theirs)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_what_is_outside_the_step_is_never_cached(tmp_path: Path) -> None:
    """Optimizer, schedule, weights and data are compiled anew over a cached step."""
    cache = CaptureCache(tmp_path)
    compile_task(task_of(Net()), cache)
    for hits, (model, changes) in enumerate(
        [
            (Net(), {"optimizer": AdamW(lr=0.2)}),
            (Net(), {"optimizer": SGD(lr=0.1, momentum=0.9)}),
            (retouched(Net()), {"seed": 7}),
            (Net(), {"steps": 6}),
        ],
        start=1,
    ):
        task = task_of(model, **changes)
        warm, plain = compile_task(task, cache), compile_task(task)
        assert cache.hits == hits
        assert warm.program.root == plain.program.root
        assert all(torch.equal(warm.state[name], plain.state[name]) for name in plain.state)


def test_another_batch_is_another_step(tmp_path: Path) -> None:
    cache = CaptureCache(tmp_path)
    compile_task(task_of(Net()), cache)
    task = task_of(Net(), batch=Batch(size=5, examples=Rows(names=("x", "y"))))
    assert compile_task(task, cache).program.root == compile_task(task).program.root
    assert cache.hits == 0


@pytest.mark.parametrize("model", [Counting, Drawing])
def test_a_model_that_changes_as_it_runs_is_not_cached(model: type[Net], tmp_path: Path) -> None:
    cache = CaptureCache(tmp_path)
    compile_task(task_of(model()), cache)
    assert cache.outcome == "not cached: the model does not do the same each time it is run"
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_down_is_not_cached(tmp_path: Path) -> None:
    class Hidden(Net):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = super().forward(x)
            torch.empty(2).uniform_(generator=torch.Generator())  # a generator's state is no plain value
            return y

    cache = CaptureCache(tmp_path)
    compile_task(task_of(Hidden()), cache)
    assert cache.outcome == "not cached: a value of type Generator"
    with pytest.raises(NoFingerprint, match="object"):
        Digest().add(object())


def test_a_damaged_entry_is_a_miss(tmp_path: Path, cases: Callable[[], None]) -> None:
    cache = CaptureCache(tmp_path)
    root = compile_task(task_of(Net()), cache).program.root
    (entry,) = tmp_path.iterdir()
    good = entry.read_bytes()
    for bad in (b"", good[:-1], good[:40], good[:100] + b"!" + good[101:], b"\0" * len(good)):
        entry.write_bytes(bad)
        assert compile_task(task_of(Net()), cache).program.root == root
        assert entry.read_bytes() == good, "made anew and written again"
        cases()
    assert cache.hits == 0


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = CaptureCache(tmp_path / "file" / "below")
    compile_task(task_of(Net()), cache)
    assert cache.outcome.startswith("not cached: ")


def test_the_oldest_entries_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiebreak.engine.capture.cache.MAX_ENTRIES", 2)
    cache = CaptureCache(tmp_path)
    for width in (8, 9, 10):
        compile_task(task_of(Net(width=width)), cache)
    assert len(list(tmp_path.iterdir())) == 2
    compile_task(task_of(Net(width=10)), cache)
    assert cache.hits == 1


def test_a_model_that_cannot_be_captured_says_so(tmp_path: Path) -> None:
    """The fingerprint's own trouble with a broken model is never what the user sees."""

    def broken(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        raise KeyError("mine")

    cache = CaptureCache(tmp_path)
    with pytest.raises(KeyError, match="mine"):
        compile_task(task_of(Net(), broken), cache)
    assert cache.outcome == "not cached: KeyError: 'mine'"


def test_an_entry_holds_all_that_capture_returns() -> None:
    assert [field.name for field in fields(StepGraph)] == ["loss", "gradients", "buffers", "constants"]
