"""Learning-rate schedules: the factors of a job's rate, step by step, in a table that becomes data of the job.

Every schedule begins with a warm-up of `warmup` steps, (s + 1) / (warmup + 1) for s = 0, 1, ...; factor 1 is reached in
step `warmup` (from 0). The part after the warm-up ends in the last step. Only integers and correctly rounded operations
are used (no cosine of a C library), so that everyone who makes the table gets the same bytes.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import Final

from tiebreak.engine.optimizers.settings import STEPS, require
from tiebreak.protocol.arguments import Expectation, share, taking, whole
from tiebreak.protocol.numbers.transcendental import odd_series, pi

Factors = tuple[float, ...]
_BITS: Final = 160
"""The fraction bits of the fixed point for cosines. The errors of all steps stay far below a float's last place."""


_TAKING: Final = taking(
    steps=STEPS,
    warmup=whole(0, (1 << 32) - 1),
    floor=share(0, 1),
    gamma=share(0, 1),
    start=share(0, 1),
    final=share(0, 1),
    milestones=Expectation(
        "a list of steps", lambda x: isinstance(x, list | tuple) and all(isinstance(m, int) for m in x)
    ),
)


@_TAKING
def constant(steps: int, warmup: int = 0) -> Factors:
    """Stays at 1 after the warm-up."""
    return _warmed(steps, warmup, [1.0] * (steps - warmup))


@_TAKING
def linear(steps: int, warmup: int = 0, floor: float = 0.0) -> Factors:
    """Falls linearly from 1 to `floor` at the last step."""
    _check(steps, warmup)
    fall = [1.0 - (1.0 - floor) * s / max(1, steps - 1 - warmup) for s in range(steps - warmup)]
    return _warmed(steps, warmup, fall)


warmup_linear = linear


@_TAKING
def cosine(steps: int, warmup: int = 0, floor: float = 0.0) -> Factors:
    """Falls from 1 along half a cosine to `floor` at the last step (`CosineAnnealingLR`)."""
    _check(steps, warmup)
    return _warmed(steps, warmup, _half_cosine(1.0, floor, steps - warmup))


@_TAKING
def inverse_sqrt(steps: int, warmup: int = 0) -> Factors:
    """sqrt((warmup + 1) / (s + 1)) in step s (from 0): 1 at the end of the warm-up, as in the first Transformer."""
    return _warmed(steps, warmup, [sqrt((warmup + 1) / (s + 1)) for s in range(warmup, steps)])


@_TAKING
def step_decay(steps: int, milestones: Sequence[int], gamma: float = 0.1, warmup: int = 0) -> Factors:
    """Multiplied by `gamma` at each milestone (a step from 0), as `MultiStepLR`."""
    rising = all(a < b for a, b in pairwise(milestones))
    require(rising and all(warmup < m < steps for m in milestones), f"milestones in {warmup + 1} ... {steps - 1}, "
            "ascending", list(milestones))  # fmt: skip
    factors, factor = [], 1.0
    for s in range(warmup, steps):
        if s in milestones:
            factor *= gamma
        factors.append(factor)
    return _warmed(steps, warmup, factors)


@_TAKING
def one_cycle(steps: int, warmup: int, start: float = 1 / 25, final: float = 1 / 25e4) -> Factors:
    """Rises along half a cosine from `start` to 1 in step `warmup`, then falls along one to `final` (`OneCycleLR`)."""
    _check(steps, warmup)
    rise = _half_cosine(start, 1.0, warmup + 1)[:-1] if warmup else []
    return (*rise, *_half_cosine(1.0, final, steps - warmup))


def _check(steps: int, warmup: int) -> None:
    require(0 <= warmup < steps, f"0 <= warmup < {steps} steps", warmup)


def _warmed(steps: int, warmup: int, after: Sequence[float]) -> Factors:
    _check(steps, warmup)
    return (*((s + 1) / (warmup + 1) for s in range(warmup)), *after)


def _half_cosine(first: float, last: float, count: int) -> list[float]:
    """`count` values from `first` to `last`: last + (first - last) * (1 + cos) / 2, with each operation rounded."""
    shares = [((1 << _BITS) + c) / (2 << _BITS) for c in _cosines(count - 1)] if count > 1 else [1.0]
    return [last + (first - last) * share for share in shares]


def _cosines(n: int) -> list[int]:
    """cos(pi k / n) in units of 2^-160 for k = 0 ... n, from the first angle by the addition theorem."""
    angle = pi(_BITS) // n
    turn_c, turn_s = (odd_series(angle * angle >> _BITS, _BITS, -1, first)[0] for first in (0, 1))
    turn_s = angle * turn_s >> _BITS
    c, s, found = 1 << _BITS, 0, []
    for _ in range(n):
        found.append(c)
        c, s = (c * turn_c - s * turn_s) >> _BITS, (s * turn_c + c * turn_s) >> _BITS
    return [*found, -(1 << _BITS)]
