"""Runs of policy `logged` on `programs.every_kind`: random logs, of which the tolerance lets many count, and cheats."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np

from tests.protocol.runs import STEPS, Logs, Run, bend, lie, make_job, program
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.program.accumulator import SUM_EXPONENT, decode_for
from tiebreak.protocol.program.rounding import (
    Direction,
    Entries,
    StepLog,
    SumKind,
    element_rounding,
    neighbours,
    pack_tolerances,
    round_sum,
    sum_kind,
)
from tiebreak.protocol.tags import Digest

TOLERANCES = pack_tolerances({SumKind.PLAIN: 2, SumKind.PRODUCTS: 2, SumKind.SCATTER: 2})
"""Within a quarter of the gap: about half of all inexact sums are near a middle."""
PRECISION = 16
STEP = 1 << (32 - PRECISION)
"""The distance of neighbouring patterns of that precision."""
SUMS = {leaf: kind for leaf, i in enumerate(program().body) if (kind := sum_kind(i)) is not None}
"""The logged sums of the program, by number."""


def entries(directions: dict[int, Direction]) -> Entries:
    elements, codes = zip(*sorted(directions.items()), strict=True)
    up = [code == Direction.UP for code in codes]
    return Entries(np.array(elements, dtype=np.int64), np.array(up, dtype=np.bool_))


def plain_step(entries: Sequence[tuple[int, int, int]], late: bytes = b"") -> bytes:
    """A step's (value, element, code) in the form for tools (SPEC section 5.1), and behind them its late data."""
    return struct.pack(">I", len(entries)) + b"".join(struct.pack(">IIB", *entry) for entry in entries) + late


def plain(tolerances: int, logs: Sequence[StepLog]) -> bytes:
    """A file of logs in the form for tools."""
    found = ([(n, *entry) for n, held in log.entries.items() for entry in held.directions()] for log in logs)
    steps = (plain_step(step, b"".join(log.late.values())) for step, log in zip(found, logs, strict=True))
    return struct.pack(">I", tolerances) + b"".join(steps)


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
    """Logs of all steps of a run but one, whose log is empty."""
    random = Random(seed)
    return Logs({step: random_log(random, share) for step in range(1, STEPS + 1) if step != 2})


def logged_job(*, levels: int = 2, interval: int = 2, precision: int = PRECISION, tolerances: int = TOLERANCES) -> Job:
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


def bits_of(run: Run, step: int, leaf: int, element: int) -> int:
    return int.from_bytes(run.tensor(step, leaf)[4 * element : 4 * element + 4], "little")


def nearest_bits(run: Run, step: int, leaf: int, element: int) -> int:
    held = exact_sum(run, step, leaf, element)
    assert held is not None
    i, job = program().body[leaf], run.job
    return round_sum(held, SUM_EXPONENT, element_rounding(i, precision=job.precision, tolerances=job.tolerances))


class Forked(Run):
    """Values by its own logs, records with the root of those that it has published."""

    def __init__(self, job: Job, logs: Logs, published: Logs) -> None:
        super().__init__(job, logs=logs)
        self._published = published

    def log_root(self, step: int) -> Digest:
        return self._published.segment(self.job, self.job.checkpoint_of(step)).root


def swapped(logs: Logs) -> Logs:
    """Two steps of a segment change their logs: the same words under the same root, in another order."""
    return Logs({3: logs.of(4), 4: logs.of(3), **{step: logs.of(step) for step in (1, 2, 5)}})


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


TIGHT = pack_tolerances(dict.fromkeys(SumKind, 12))
"""Hardly any sum is near a middle."""
CHEATS: dict[str, tuple[bool, bool]] = {
    "a direction far from a tie": (False, True),
    "off without an entry": (True, False),
    "against the entry": (True, True),
}
"""Whether the disputed sum lies near a middle, and whether the log has an entry for it."""


@dataclass(frozen=True)
class Place:
    """An element of a logged sum in an honest run."""

    run: Run
    step: int
    leaf: int
    element: int

    @property
    def code(self) -> Direction:
        return self.run.directions(self.step, self.leaf).get(self.element, Direction.NONE)

    @property
    def right(self) -> int:
        return bits_of(self.run, self.step, self.leaf, self.element)

    @property
    def wrong(self) -> int:
        d, _ = neighbours_of(self.run, self.step, self.leaf, self.element)
        return (d if self.right & 0x7FFFFFFF != d else d + STEP) | self.right & 0x80000000

    def fits(self, near: bool, entry: bool) -> bool:
        held = exact_sum(self.run, self.step, self.leaf, self.element)
        if not held or neighbours_of(self.run, self.step, self.leaf, self.element)[1] != near:
            return False
        right, wrong = self.right & 0x7FFFFFFF, self.wrong & 0x7FFFFFFF
        # Far from a middle, an entry tempts only where it names the other neighbour.
        tempts = near or not entry or (self.code == Direction.UP) == (wrong > right)
        return wrong not in (right, 0) and (self.code != Direction.NONE) == entry and tempts

    def misled(self, bits: int, *, bent: bool = False) -> Misled:
        return Misled(self.run.job, self.run.logs, self.step, self.leaf, self.element, bits, bent=bent)


@cache
def find(leaf: int, cheat: str, make: Callable[..., Job] = logged_job) -> Place:
    """The first element of a value with which this cheat is possible, in the runs by some logs."""
    near, entry = CHEATS[cheat]
    for seed in range(1, 60):
        run = Run(make() if near else make(tolerances=TIGHT), logs=random_logs(seed))
        for step in (1, 3, 4, 5):
            for element in range(program().body[leaf].numel):
                if (found := Place(run, step, leaf, element)).fits(near, entry):
                    return found
    raise AssertionError(f"no element of value {leaf} for {cheat}")
