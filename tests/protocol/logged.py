"""Runs of policy `logged` on `programs.every_kind`: random logs, of which the tolerance lets many count, and cheats."""

from functools import cache
from random import Random

import numpy as np

from tests.protocol.runs import STEPS, Logs, Run, bend, lie, make_job, program
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.program.accumulator import SUM_EXPONENT, decode_for
from tiebreak.protocol.program.rounding import (
    Direction,
    SumKind,
    element_rounding,
    neighbours,
    pack_tolerances,
    round_sum,
    sum_kind,
)
from tiebreak.protocol.program.step_log import Entries, StepLog

TOLERANCES = pack_tolerances({SumKind.PLAIN: 2, SumKind.PRODUCTS: 2, SumKind.SCATTER: 2})
"""Within a quarter of the gap: about half of all inexact sums are near a middle."""
PRECISION = 16
STEP = 1 << (32 - PRECISION)
"""Between neighbouring patterns of that precision."""
SUMS = {leaf: kind for leaf, i in enumerate(program().body) if (kind := sum_kind(i)) is not None}
"""The logged sums of the program, by number."""


def entries(directions: dict[int, Direction]) -> Entries:
    """What a log says of one value, by element."""
    elements, codes = zip(*sorted(directions.items()), strict=True)
    up = [code == Direction.UP for code in codes]
    return Entries(np.array(elements, dtype=np.int64), np.array(up, dtype=np.bool_))


def random_log(random: Random, share: float) -> StepLog:
    """Entries at this share of all elements of all logged sums, in either direction."""
    found = {}
    for leaf in SUMS:
        numel = program().body[leaf].numel
        codes = {k: random.choice([Direction.DOWN, Direction.UP]) for k in range(numel) if random.random() < share}
        if codes:
            found[leaf] = entries(codes)
    return StepLog(found)


@cache
def random_logs(seed: int, share: float = 0.4) -> Logs:
    """Of all steps of a run but one, whose log is empty."""
    random = Random(seed)
    return Logs({step: random_log(random, share) for step in range(1, STEPS + 1) if step != 2})


def logged_job(*, levels: int = 2, interval: int = 2, precision: int = PRECISION, tolerances: int = TOLERANCES) -> Job:
    """A job of policy `logged`."""
    return make_job(levels=levels, interval=interval, precision=precision, tolerances=tolerances)


def exact_sum(run: Run, step: int, leaf: int, element: int) -> int | None:
    """An element's sum in units of 2^-298; None if a term is not finite."""
    held = decode_for(program().body[leaf], run.encoded(step, leaf, element)[-1])
    return None if held.invalid else held.value


def neighbours_of(run: Run, step: int, leaf: int, element: int) -> tuple[int, bool]:
    """The lower neighbour of an element's magnitude, and whether the job lets a log choose."""
    held, job = exact_sum(run, step, leaf, element), run.job
    assert held is not None
    any_code = element_rounding(program().body[leaf], precision=job.precision, tolerances=job.tolerances)
    return neighbours(held, SUM_EXPONENT, any_code)


def is_near(run: Run, step: int, leaf: int, element: int) -> bool:
    """Whether the job lets a log choose this element."""
    return exact_sum(run, step, leaf, element) is not None and neighbours_of(run, step, leaf, element)[1]


def bits_of(run: Run, step: int, leaf: int, element: int) -> int:
    """The element as the run has it."""
    return int.from_bytes(run.tensor(step, leaf)[4 * element : 4 * element + 4], "little")


def nearest_bits(run: Run, step: int, leaf: int, element: int) -> int:
    """What the element would be without a log."""
    held = exact_sum(run, step, leaf, element)
    assert held is not None
    i, job = program().body[leaf], run.job
    return round_sum(held, SUM_EXPONENT, element_rounding(i, precision=job.precision, tolerances=job.tolerances))


class Misled(Run):
    """An element of a logged sum that is not what its sum and its log make it.

    bent: its partial sums end in what it claims; else they are true.
    """

    def __init__(self, job: Job, logs: Logs, step: int, leaf: int, element: int, bits: int, *, bent: bool) -> None:
        super().__init__(job, lie(step, leaf, element, become=bits.to_bytes(4, "little")), step, logs=logs)
        self._at, self._bent = (step, leaf, element), bent

    def encoded(self, step: int, value: int, index: int) -> list[bytes]:
        true = super().encoded(step, value, index)
        return bend(self, step, value, index, true, 1) if self._bent and (step, value, index) == self._at else true
