"""Algorithm 2 of the paper (`audit`) for one step: replay in the compute format, and follow the trainer's log.

The paper's auditor takes a logged direction wherever its own rounding went the other way. A log that was always
believed could steer a run, one ulp at a time. Here it is taken only where the sum is near its middle, as SPEC section
5.1 defines (and `tiebreak.protocol.program.rounding` computes), which leaves one right result for each element:

1. There is an entry and the element is *open* (the auditor's own value lies within its error of the middle, and that
   error is small against the tolerance): the sum is near, so the entry's direction is taken.
2. There is an entry and the element is not open: the exact sum decides. If it is near, the direction is taken;
   otherwise the entry has no effect (*elsewhere*).
3. There is no entry and the element is open: the exact sum, rounded to nearest. If the auditor's value lies within half
   of its error, the trainer's must have been open too, so the log lacks an entry (*missing*); near the edge, the
   trainer's value may have been clear.
4. There is no entry and the element is not open: the arithmetic's own result.

Neither finding is proof of fraud. A trainer whose results are not those of its log is convicted by its roots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.ziv import NearTies
from tiebreak.engine.logged.elements import Doubles, bits_of, put_bits, toward, went_up
from tiebreak.engine.logged.screening import Screen
from tiebreak.engine.run.logs import MAX_FINDINGS, FindingKind, LogFinding, LogReport
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import (
    Direction,
    Entries,
    Integers,
    Mask,
    Rounding,
    StepLog,
    SumKind,
    element_rounding,
    neighbours,
    round_sum,
    sum_kind,
)

SCREENED_FROM: Final = 256
"""Entries of one value that are not open are screened first if there are this many or more."""
_EXACT_AT_ONCE: Final = 1 << 12
"""The number of elements whose exact sums are held at once."""
_NO_ENTRIES: Final = Entries(np.empty(0, np.int64), np.empty(0, np.bool_))


class Follower:
    """Follows the log of one step: the `interpreter.Sums` of an auditor, and of anyone who computes a step again."""

    def __init__(self, program: Program, log: StepLog, job: Job, arithmetic: Arithmetic, step: int) -> None:
        """Raises `LogError` for a log that is impossible for the program."""
        log.check(program, step)
        self.log = log
        self._job = job
        self._arithmetic = arithmetic
        self._step = step
        self._screen: Screen | None = None
        self.report = LogReport(steps=1, entries=log.count)

    def settle(
        self, index: int, instruction: Instruction, operands: Sequence[Tensor], result: Tensor, near: NearTies
    ) -> None:
        """Changes the result to what SPEC section 5.1 prescribes for this log."""
        entries = self.log.entries.get(index, _NO_ENTRIES)
        if not len(entries) and not len(near):
            return
        _, at_near, at_entry = np.intersect1d(near.elements, entries.elements, assume_unique=True, return_indices=True)
        self._take(result, near.elements[at_near], near.values[at_near], entries.up[at_entry])
        exact = _Exact(instruction, operands, result, index)
        expected = self._expected_entries(sum_kind(instruction), result, near)
        expected[at_near] = False
        at_edge = ~expected
        at_edge[at_near] = False
        self._judge(exact, np.delete(entries.elements, at_entry), np.delete(entries.up, at_entry))
        self._decide(exact, near.elements[expected], None)
        self._decide(replace(exact, at_edge=True), near.elements[at_edge], None)

    def _expected_entries(self, kind: SumKind | None, result: Tensor, near: NearTies) -> Mask:
        """The open elements so near their middle that a trainer's value must have been open too.

        If e is at least twice the distance between machines, as with a calibrated threshold, then no other machine's
        value is further than e from the middle when the auditor's is within e/2. A proven threshold is wider than a
        trainer's need be, so nothing is expected then.
        """
        logging = self._arithmetic.options.logging
        if kind is None or logging is None or logging.thresholds.get(kind) is None:
            return np.zeros(len(near), np.bool_)
        own = bits_of(result, near.elements)
        other = toward(own, near.values, ~went_up(own, near.values), self._job.precision)
        middle = (own.view(np.float32).astype(np.float64) + other.view(np.float32)) / 2
        inner: Mask = np.abs(near.values - middle) <= near.errors / 2
        return inner

    def _judge(self, exact: "_Exact", elements: Integers, up: Mask) -> None:  # (2)
        """Settles entries of elements that are not open.

        If there are many, only those that screening leaves are summed exactly.
        """
        tolerance = self._rounding(exact).tolerance
        if len(elements) >= SCREENED_FROM and tolerance:
            self._screen = self._screen or Screen(self._arithmetic)
            screened = self._screen.screen(exact.instruction, exact.operands, elements, tolerance)
            self._take(exact.result, elements[screened.near], screened.values[screened.near], up[screened.near])
            self._ignore(exact, elements[screened.far], f"{_expected(self._rounding(exact))}, got one further away")
            left = ~(screened.near | screened.far)
            elements, up = elements[left], up[left]
        elif not tolerance:
            self._ignore(exact, elements, _expected(self._rounding(exact)))
            return
        self._decide(exact, elements, up)

    def _ignore(self, exact: "_Exact", elements: Integers, detail: str) -> None:
        for element in elements[:MAX_FINDINGS].tolist():
            self._found(FindingKind.ELSEWHERE, exact.index, element, detail)
        self.report.elsewhere += len(elements[MAX_FINDINGS:])

    def _take(self, result: Tensor, elements: Integers, values: Doubles, up: Mask) -> None:  # (1)
        """Takes the directions of elements that are near a middle. values: FP64, between the same neighbours."""
        own = bits_of(result, elements)
        taken = toward(own, values, up, self._job.precision)
        differs = taken != own
        self.report.needed += int(np.count_nonzero(differs))
        put_bits(result, elements[differs], taken[differs])

    def _decide(self, exact: "_Exact", elements: Integers, up: Mask | None) -> None:  # (2), or (3) without directions
        for begin in range(0, len(elements), _EXACT_AT_ONCE):
            some = slice(begin, begin + _EXACT_AT_ONCE)
            chosen = elements[some]
            own = bits_of(exact.result, chosen)
            sums = self._arithmetic.exact_sums(exact.instruction, exact.operands, chosen)
            directions = [Direction.NONE] * len(chosen) if up is None else [_direction(u) for u in up[some].tolist()]
            settled = [
                self._one(exact, element, total, direction, before)
                for element, total, direction, before in zip(
                    chosen.tolist(), sums, directions, own.tolist(), strict=True
                )
            ]
            put_bits(exact.result, chosen, np.array(settled, dtype=np.uint32))

    def _one(
        self, exact: "_Exact", element: int, total: tuple[int, int] | None, direction: Direction, before: int
    ) -> int:
        """The bits of one element, from its exact sum."""
        rounding = self._rounding(exact, direction)
        bits = NAN_BITS if total is None else round_sum(*total, rounding)
        if direction == Direction.NONE:
            own = "is this machine's own" if bits == before else f"this machine's own is {before:#010x}"
            detail = f"expected an entry, for this machine cannot tell; to nearest it is {bits:#010x}, {own}"
            if not exact.at_edge:
                self._found(FindingKind.MISSING, exact.index, element, detail)
        elif total is None or not neighbours(*total, rounding)[1]:
            detail = f"{_expected(rounding)}, got {'no finite sum' if total is None else _distance(*total, rounding)}"
            self._found(FindingKind.ELSEWHERE, exact.index, element, detail)
        else:
            self.report.needed += bits != before
        return bits

    def _rounding(self, exact: "_Exact", direction: Direction = Direction.NONE) -> Rounding:
        precision, tolerances = self._job.precision, self._job.tolerances
        return element_rounding(exact.instruction, precision=precision, tolerances=tolerances, direction=direction)

    def _found(self, kind: FindingKind, index: int, element: int, detail: str) -> None:
        self.report.found(LogFinding(kind=kind, step=self._step, value=index, element=element, detail=detail))


@dataclass(frozen=True, slots=True)
class _Exact:
    """A logged sum whose elements can be summed exactly, one by one."""

    instruction: Instruction
    operands: Sequence[Tensor]
    result: Tensor
    index: int
    at_edge: bool = False
    """Whether a missing entry for these elements is not worth reporting."""


def _direction(up: bool) -> Direction:
    return Direction.UP if up else Direction.DOWN


def _expected(rounding: Rounding) -> str:
    if not rounding.tolerance:
        return "expected no entries, for the job gives this kind of sum no tolerance"
    return f"expected a sum within 2^-{rounding.tolerance} of the gap around a middle"


def _distance(n: int, e: int, rounding: Rounding) -> str:
    return f"one that rounds to {round_sum(n, e, Rounding(precision=rounding.precision)):#010x} by itself"
