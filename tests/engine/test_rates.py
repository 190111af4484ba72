"""Schedules against torch's own schedulers and, for cosines, against the exact value."""

from collections.abc import Callable

import mpmath
import pytest
import torch

from tests.conftest import CaseCounter
from tiebreak.engine.capture.task import warmup_linear
from tiebreak.engine.optimizers import settings as rates
from tiebreak.protocol.errors import ConfigurationError

SIZES = [(1, 0), (2, 0), (2, 1), (7, 3), (40, 9), (41, 40)]


def torchs(steps: int, make: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "inverse_sqrt"])
def test_every_schedule_warms_up_linearly(name: str, cases: CaseCounter) -> None:
    for steps, warmup in SIZES:
        factors = getattr(rates, name)(steps, warmup)
        assert len(factors) == steps
        assert factors[: warmup + 1] == (*((s + 1) / (warmup + 1) for s in range(warmup)), 1.0)
        assert list(factors[warmup:]) == sorted(factors[warmup:], reverse=True)
        assert all(isinstance(f, float) and 0 <= f <= 1 for f in factors)
        cases()


def test_cosine_schedule_matches_torch() -> None:
    expected = torchs(30, lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 29, eta_min=0.1))
    assert rates.cosine(30, floor=0.1) == pytest.approx(expected, rel=1e-12)
    assert rates.cosine(30, floor=0.1)[-1] == 0.1
    assert rates.cosine(31)[15] == 0.5


def test_cosine_schedule_is_correctly_rounded(cases: CaseCounter) -> None:
    """No C library decides a bit: the factor is the float64 nearest to (1 + cos) / 2."""
    for count in (2, 3, 10, 101, 1000):
        factors = rates.cosine(count)
        with mpmath.workprec(300):
            for k, factor in enumerate(factors):
                exact = (1 + mpmath.cos(mpmath.pi * k / (count - 1))) / 2
                assert factor == float(mpmath.mpf(exact)) or abs(exact) < 1e-40
                cases()
        assert factors[-1] == 0.0


def test_one_cycle_schedule_matches_torch() -> None:
    steps, warmup = 50, 14
    expected = torchs(
        steps, lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=steps, pct_start=15 / 50)
    )
    assert rates.one_cycle(steps, warmup) == pytest.approx(expected, rel=1e-9)
    assert rates.one_cycle(3, 0)[0] == 1.0


def test_step_decay_schedule_matches_torch() -> None:
    expected = torchs(20, lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [5, 11, 19], gamma=0.3))
    assert rates.step_decay(20, [5, 11, 19], gamma=0.3) == pytest.approx(expected, rel=1e-12)
    assert rates.step_decay(6, [4], warmup=2) == (1 / 3, 2 / 3, 1.0, 1.0, 0.1, 0.1)


def test_inverse_sqrt_falls_from_the_end_of_the_warm_up() -> None:
    assert rates.inverse_sqrt(16, 3) == (0.25, 0.5, 0.75, *((4 / (s + 1)) ** 0.5 for s in range(3, 16)))


def test_the_linear_schedule_keeps_its_older_name() -> None:
    assert warmup_linear(9, 2, 0.5) == rates.linear(9, warmup=2, floor=0.5)
    assert rates.linear(5, floor=0.5) == (1.0, 0.875, 0.75, 0.625, 0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rates.constant(3, 3), "0 <= warmup < 3 steps, got 3"),
        (lambda: rates.cosine(3, -1), "expected warmup as an integer from 0 to .*, got -1"),
        (lambda: rates.linear(3, floor=1.5), "floor as a number from 0 to 1, got 1.5"),
        (lambda: rates.step_decay(5, [3, 2]), r"milestones in 1 \.\.\. 4, ascending, got \[3, 2\]"),
        (lambda: rates.step_decay(5, [5]), "milestones in 1"),
        (lambda: rates.step_decay(5, [2], gamma=-1.0), "gamma as a number from 0 to 1, got -1.0"),
        (lambda: rates.one_cycle(5, 2, start=2.0), "start as a number from 0 to 1, got 2.0"),
    ],
)
def test_invalid_schedules_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
