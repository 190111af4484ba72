"""Steps that read values of tensors: captured if nothing but reports depends on them, refused otherwise."""

import bisect
import logging
import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tiebreak
from tests.parts import slow_except
from tiebreak import ConfigurationError

LINES: list[object] = []
Loss = Callable[[Any, Tensor, Tensor], Tensor]


def captured(loss: Loss) -> Any:
    torch.manual_seed(0)
    model, drawn = nn.Linear(4, 3), torch.Generator().manual_seed(1)
    data = {"x": torch.randn(20, 4, generator=drawn), "y": torch.randint(0, 3, (20,), generator=drawn)}
    settings: dict[str, Any] = {"optimizer": tiebreak.SGD(lr=0.1), "batch": 6, "steps": 3}
    return tiebreak.capture(tiebreak.Task(model, loss, data=data, **settings))


def logs(model: Any, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    loss = F.cross_entropy(out, y)
    hits, count = (out.argmax(-1) == y).sum(), (y > 0).sum()
    share = (hits / count).item() if count > 0 else 0.0
    kept = out.detach()[y == 1].sum().item() / count.item() if count.item() > 0 else 0.0
    LINES[:] = [share, max(share, kept, 0.1), *y.tolist(), hits.item(), loss.item()]
    LINES.clear()
    return loss


def checks(model: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    if torch.isnan(loss):
        LINES[:] = ["no number"]
    return loss


def plain(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [logs, checks])
def test_values_read_only_for_reports_do_not_change_the_program(loss: Loss) -> None:
    found = captured(loss)
    assert found.check == "full"
    assert found.program.root == captured(plain).program.root


def raises(model: Any, x: Tensor, y: Tensor) -> float:
    if not torch.isfinite(plain(model, x, y)):
        raise ValueError
    return 1.0


def caught(model: Any, x: Tensor, y: Tensor) -> float:
    try:
        return {17: 2.0}.get(y.sum().item(), 1.0)
    except Exception:
        return 1.0


DEPENDING: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "spikes": lambda m, x, y: 0.1 if plain(m, x, y).item() > 1e4 else 1.0,
    "divides": lambda m, x, y: 1 / plain(m, x, y).item(),
    "picks": lambda m, x, y: F.cross_entropy(m(x)[y > 0], y[y > 0]),
    "is one number": lambda m, x, y: 2.0 if 2 * y.sum().item() + 1 == 7 else 1.0,
    "looks up": lambda m, x, y: {10**6: 0.5}.get(y.sum().item(), 1.0),
    "makes a text": lambda m, x, y: getattr(m, f"rate{y.sum().item()}", 1.0),
    "converts": lambda m, x, y: {1e6: 0.5}.get(float(y.sum()), 1.0),
    "counts truths": lambda m, x, y: (number := y.sum().item()) and (number > 1) + (number > 10**6),
    "raises": raises,
    "skips a gradient": lambda m, x, y: 1.0 if (loss := plain(m, x, y)).item() < 1e4 else (loss.detach() / loss),
    "the hardest": lambda m, x, y: (found := losses_of(m, x, y))[int(np.argmax([part.item() for part in found]))],
    "in torch": lambda m, x, y: (found := losses_of(m, x, y))[int(torch.tensor([p.item() for p in found]).argmin())],
    "none picked": lambda m, x, y: 1.0 if len(x[y == 0]) else 2.0,
    "few picked": lambda m, x, y: 2.0 if (y == 0).nonzero(as_tuple=True)[0].numel() > 4 else 1.0,
    "flagged": lambda m, x, y: 2.0 if sum((y > 1).tolist()) > 5 else 1.0,
    "two spikes": lambda m, x, y: 0.1 if bool(plain(m, x, y) > 1e4) and bool(m(x).abs().max() > 1e4) else 1.0,
    "caught": caught,
}
"""Factors of a loss that depend on what is read."""


@pytest.mark.parametrize("name", slow_except(DEPENDING, *list(DEPENDING)[::3]))
def test_a_step_that_depends_on_tensor_values_it_reads_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="it needs the values of tensors"):
        captured(lambda model, x, y: plain(model, x, y) * DEPENDING[name](model, x, y))


Parts = list[Tensor]
Choice = Callable[[list[float]], float]


def losses_of(model: Any, x: Tensor, y: Tensor) -> Parts:
    """The loss of each class, from about 1 to 1.6."""
    out = model(x)
    return [F.cross_entropy(out, torch.full_like(y, k)) for k in range(3)] + [out.square().mean()]


def weighing(choice: Choice) -> Loss:
    """A loss whose weight is chosen from the numbers of its parts."""

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        found = losses_of(model, x, y)
        weight = choice([part.item() for part in found])
        return plain(model, x, y) * weight

    return loss


def joined(a: bool, b: bool, c: bool) -> float:
    return 2.0 if a and b and not c else 1.0


def after_two(v: list[float]) -> float:
    """The third question is first asked once two others are answered the other way."""
    first, second = v[0] < 0.1, v[1] < 0.1
    return 2.0 if first and second and v[2] < 0.1 else 1.0


CHOICES: dict[str, Choice] = {
    "and": lambda v: 3.0 if v[0] < 0.1 and v[1] < 0.2 else 1.0,
    "and, kept apart": lambda v: joined(v[0] < 0.1, v[1] < 0.2, v[2] < 0.1),
    "nested": lambda v: ((3.0 if v[2] < 0.1 else 1.0) if v[1] < 0.1 else 1.0) if v[0] < 0.1 else 1.0,
    "after two": after_two,
    "all, in a list": lambda v: 2.0 if [one < 0.2 for one in v].count(True) == 4 else 1.0,
    "any": lambda v: 1.0 if any(one > 0.01 for one in v) else 2.0,
    "count": lambda v: 2.0 if sum(one < 0.1 for one in v) > 2 else 1.0,
    "exactly two": lambda v: 2.0 if sum(one < 0.1 for one in v) == 2 else 1.0,
    "chained": lambda v: 2.0 if 0.05 < v[0] < 0.1 else 1.0,
    "joined in NumPy": lambda v: 2.0 if np.all([one < 0.1 for one in v]) else 1.0,
    "greatest in NumPy": lambda v: 1.0 + int(np.argmax(v)),
    "rank in NumPy": lambda v: 1.0 + int(np.argsort(np.argsort(v))[1]),
    "median in NumPy": lambda v: 2.0 if np.median(v) < 0.1 else 1.0,
    "spread in NumPy": lambda v: 2.0 if np.std(v) < 1e-3 else 1.0,
    "two means in NumPy": lambda v: 2.0 if np.mean(v[:2]) < 0.1 and np.mean(v[2:]) > 1e3 else 1.0,
    "signs in NumPy": lambda v: 2.0 if np.sign(np.array(v) - 0.1).sum() == 0 else 1.0,
    "place in NumPy": lambda v: 1.0 + int(np.searchsorted([0.0, 0.1, 5.0], v[0])),
    "greatest": lambda v: 1.0 + v.index(max(v)),
    "nearest by key": lambda v: 1.0 + min(range(4), key=lambda place: abs(v[place] - 1)),
    "sorted": lambda v: 1.0 + sorted(range(4), key=lambda place: v[place])[1],
    "bisect": lambda v: 1.0 + bisect.bisect([0.0, 0.1, 0.5], v[0]),
    "round": lambda v: 2.0 if round(v[0]) == 7 else 1.0,
    "int": lambda v: 2.0 if int(v[0]) % 2 else 1.0,
    "divmod": lambda v: 2.0 if divmod(v[0], 0.5)[0] > 40 else 1.0,
    "a difference": lambda v: 2.0 if v[0] - v[1] > v[2] and v[3] < 0.01 else 1.0,
}


@pytest.mark.parametrize("choice", slow_except(CHOICES, "and", "count", "greatest in NumPy"))
def test_branching_on_several_tensor_values_is_refused(choice: str) -> None:
    with pytest.raises(ConfigurationError, match="it needs the values of tensors"):
        captured(weighing(CHOICES[choice]))


def reporting(report: Callable[[list[float], Tensor, Tensor], Any]) -> Loss:
    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        found = F.cross_entropy(out, y)
        report([found.item(), out.detach().abs().max().item()], out.detach(), y)
        return found

    return loss


def average(v: list[float], out: Tensor, y: Tensor) -> None:
    meter = {"total": 0.0, "count": 0, "best": 1e9}
    for one in v:
        meter["total"] += one * 6
        meter["count"] += 6
        meter["best"] = min(meter["best"], one)
    LINES[:] = [meter["total"] / max(1, meter["count"])]
    LINES.clear()


REPORTS: dict[str, Callable[[list[float], Tensor, Tensor], Any]] = {
    "a list": lambda v, *_: [LINES.extend(v), LINES.clear()],
    "a meter": average,
    "a log": lambda v, *_: logging.getLogger("reports").debug("loss %.3f, greatest %.3f", *v),
    "a mean": lambda v, *_: np.mean(v),
    "statistics": lambda v, *_: (statistics.mean(v), statistics.stdev(v)),
    "perplexity": lambda v, *_: math.exp(min(v[0], 20)),
    "rounded": lambda v, *_: (round(v[0], 3), round(v[1]), int(v[0])),
    "tokens": lambda v, _, y: int((y > 0).sum().item()) / y.numel(),
    "by class": lambda v, out, y: [
        (out.argmax(-1) == y)[y == k].float().mean().item() for k in range(3) if (y == k).any()
    ],
    "greatest": lambda v, *_: (max(v), min(v), sorted(v), v.index(max(v))),
    "wrong ones": lambda v, out, y: (out.argmax(-1) != y).nonzero().flatten().tolist()[:3],
    "quantiles": lambda v, out, _: np.percentile(out.flatten().tolist(), [5, 50, 95]),
    "finite": lambda v, out, _: LINES.clear() if not all(map(math.isfinite, v)) else None,
    "a warning": lambda v, *_: logging.getLogger("reports").debug("far") if v[0] > 10 and v[1] > 10 else None,
    "a confusion matrix": lambda v, out, y: np.add.at(
        np.zeros((64, 64)), (np.clip(y.tolist(), 0, 63), np.clip(out.argmax(-1).tolist(), 0, 63)), 1),
}  # fmt: skip


@pytest.mark.parametrize("report", slow_except(REPORTS, "a mean"))
def test_steps_that_only_report_values_are_captured(report: str) -> None:
    assert captured(reporting(REPORTS[report])).check == "full"


def sixty(v: list[float], out: Tensor, y: Tensor) -> list[bool]:
    return [one > k for one in v for k in range(30)]


@pytest.mark.slow
def test_reports_may_branch_on_many_values_up_to_a_limit() -> None:
    assert captured(reporting(sixty)).check == "full"
    with pytest.raises(ConfigurationError, match="it needs the values of tensors"):
        captured(reporting(lambda v, *rest: sixty(v * 2, *rest)))


@pytest.mark.parametrize("due", [lambda count: count == 5, lambda count: count.item() % 5 == 0], ids=["tensor", "int"])
def test_a_value_dependent_copy_of_equal_weights_is_refused(due: Callable[[Tensor], Any]) -> None:
    """In steps 1 to 4 nothing tells whether the weights were copied."""
    model = nn.Linear(4, 3)
    model.register_buffer("target", model.weight.detach().clone())
    model.register_buffer("count", torch.tensor(0))

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        model.count += 1
        if due(model.count):
            model.target.copy_(model.weight.detach())
        return F.cross_entropy(model(x), y) + F.mse_loss(model(x), F.linear(x, model.target))

    given = {"x": torch.randn(8, 4), "y": torch.arange(8) % 3}
    task = tiebreak.Task(model, loss, data=given, optimizer=tiebreak.SGD(lr=0.1), batch=8, steps=9)
    with pytest.raises(ConfigurationError, match="needs the values of tensors"):
        tiebreak.capture(task)


class Queue(nn.Linear):
    """Keys of former steps (He et al. 2020), from a place on that a buffer counts."""

    def __init__(self, *, sliced: bool) -> None:
        super().__init__(4, 3)
        self.sliced = sliced
        self.register_buffer("keys", torch.ones(8, 3))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        logits, count = out @ self.keys.clone().T, len(x)
        if self.sliced:
            begin = int(self.place)
            self.keys[begin : begin + count] = out.detach()
        else:
            self.keys[(self.place + torch.arange(count)) % 8] = out.detach()
        self.place.copy_((self.place + count) % 8)
        return logits


def chosen(model: Any, x: Tensor) -> Tensor:
    out = model(x)
    return out * 2 if out.mean() > 0 else out


def kept(model: Any, x: Tensor) -> Tensor:
    if torch.rand(1) < 0.5:
        return x[:, :3] + model(x)
    return x[:, :3]


def read(model: Any, x: Tensor) -> Tensor:
    part = model(x).square().mean()
    return model(x) * part.item()


def deviating(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return (F.one_hot(y) - model(x)).square()


INSTEAD: dict[str, tuple[Callable[..., Tensor], str, Callable[..., Tensor]]] = {
    "branch": (
        chosen, r"`torch.where\(condition, a, b\)`", lambda m, x, y: torch.where((o := m(x)).mean() > 0, o * 2, o)
    ),
    "depth": (kept, r"`keep = torch.rand\(\(\)\) > p`", lambda m, x, y: x[:, :3] + (torch.rand(()) > 0.5) * m(x)),
    "number": (read, r"by `.detach\(\)` without", lambda m, x, y: m(x) * m(x).square().mean().detach()),
    "queue": (lambda m, x: m(x), r"`queue\[\(ptr \+ torch.arange\(n\)\)", lambda m, x, y: m(x)),
    "classes": (deviating, "`num_classes`", lambda m, x, y: F.one_hot(y, num_classes=3) - m(x)),
    "counts": (
        lambda m, x, y: m(x) / torch.bincount(y), r"`F.one_hot\(y, num_classes=10\).sum\(0\)`",
        lambda m, x, y: m(x) / (F.one_hot(y, num_classes=3).sum(0) + 1),
    ),
    "mask": (
        lambda m, x, y: m(x)[y > 0], r"`\(values \* mask\).sum\(\) / mask.sum\(\)`",
        lambda m, x, y: (m(x).sum(1) * (y > 0)).sum() / (y > 0).sum(),
    ),
    "groups": (
        lambda m, x, y: sum(m(x)[y == c].sum() for c in y.unique()), r"`range\(10\)`",
        lambda m, x, y: sum((m(x) * (y == c)[:, None]).sum() for c in range(3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_except(INSTEAD, "queue"))
def test_steps_that_need_tensor_values_are_refused_with_an_alternative(name: str) -> None:
    """The advised form is then checked against eager PyTorch."""
    refused, words, works = INSTEAD[name]
    data = {"x": torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), "y": torch.arange(6) % 3}
    for part, sliced in ((refused, True), (works, False)):
        torch.manual_seed(0)
        model = Queue(sliced=sliced) if name == "queue" else nn.Linear(4, 3)
        loss = (
            (lambda m, x, part=part: part(m, x).square().mean())
            if part.__code__.co_argcount == 2
            else (lambda m, x, y, part=part: part(m, x, y).square().mean())
        )
        given = data if part.__code__.co_argcount == 3 else {"x": data["x"]}
        task = tiebreak.Task(model, loss, data=given, optimizer=tiebreak.SGD(lr=0.1), batch=6, steps=2)
        if part is works:
            assert tiebreak.capture(task).check == "full"
            continue
        with pytest.raises(ConfigurationError, match=f"it needs the values of tensors.*{words}"):
            tiebreak.capture(task)


def routed(choose: Callable[[Tensor], Any]) -> Loss:
    """A router whose weights begin at zero chooses two of eight experts."""

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        shares, experts = choose((out[:, :1] * torch.zeros(8)).softmax(-1))
        return (shares * torch.cos(experts.float() + y[:, None])).mean() * out.square().mean()

    return loss


@pytest.mark.slow
def test_topk_among_equal_values_is_refused_advising_a_stable_sort() -> None:
    with pytest.raises(
        ConfigurationError, match=r"test_reports.py:\d+, `topk` chooses among equal values.*stable=True"
    ):
        captured(routed(lambda shares: shares.topk(2, -1)))
    stable = routed(lambda s: [t[:, :2] for t in torch.sort(s, dim=-1, descending=True, stable=True)])
    assert captured(stable).check == "full"
