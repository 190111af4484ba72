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
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.options import Round
from tiebreak.engine.arithmetic.plan.ziv import UNIT, Logging, NearTies, coefficient
from tiebreak.engine.data.tensors import from_bytes
from tiebreak.engine.logged.elements import Doubles, bits_of, put_bits, toward, went_up
from tiebreak.engine.run.logs import MAX_FINDINGS, FindingKind, LogFinding, LogReport
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.hashing import one_nan
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.program import rounding
from tiebreak.protocol.program.isa import DType, Instruction
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, Entries, Integers, Mask, Rounding, StepLog, round_sum

SCREENED_FROM: Final = 256
"""Entries of one value that are not open are screened first if there are this many or more."""
_EXACT_AT_ONCE: Final = 1 << 12
"""The number of elements whose exact sums are held at once."""
_THRESHOLD: Final = 2.0**60
"""A threshold so large that the arithmetic reports every element."""
_GREATEST: Final = 2.0**127
_SLACK: Final = 1 + 2.0**-40
"""A factor greater than the rounding errors of these few FP64 operations."""
_NO_ENTRIES: Final = Entries(np.empty(0, np.int64), np.empty(0, np.bool_))


def late_tensors(program: Program, log: StepLog, arithmetic: Arithmetic) -> dict[str, Tensor]:
    """The late data of a step, where its sources read them."""
    found = dict[str, Tensor]()
    for name, (dtype, shape) in program.late_spec().items():
        data = log.late[name] if dtype != DType.F32 else bytes(one_nan(memoryview(log.late[name])))
        found[name] = from_bytes(data, dtype, shape).to(arithmetic.device)
    return found


class Follower:
    """Follows the log of one step: the `interpreter.Sums` of an auditor, and of anyone who computes a step again."""

    def __init__(self, program: Program, log: StepLog, job: Job, arithmetic: Arithmetic, step: int) -> None:
        """Raises `LogError` for a log that is impossible for the program."""
        log.check(program, step)
        self.log, self._job, self._arithmetic, self._step = log, job, arithmetic, step
        self.report = LogReport(steps=1, entries=log.count)
        self.late, self.settles = late_tensors(program, log, arithmetic), arithmetic.options.logging is not None

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
        expected = self._expected_entries(instruction, result, near)
        expected[at_near] = False
        at_edge = ~expected
        at_edge[at_near] = False
        self._judge(exact, np.delete(entries.elements, at_entry), np.delete(entries.up, at_entry))
        self._decide(exact, near.elements[expected], None)
        self._decide(replace(exact, at_edge=True), near.elements[at_edge], None)

    def _expected_entries(self, instruction: Instruction, result: Tensor, near: NearTies) -> Mask:
        """The open elements so near their middle that a trainer's value must have been open too.

        If e is at least twice the distance between machines, as with a calibrated threshold, then no other machine's
        value is further than e from the middle when the auditor's is within e/2. A proven threshold is wider than a
        trainer's need be, so nothing is expected then.
        """
        logging, kind = self._arithmetic.options.logging, rounding.sum_kind(instruction)
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
        expected = _expected(rule := self._rounding(exact))
        if not rule.tolerance:
            self._ignore(exact, elements, expected)
            return
        if len(elements) >= SCREENED_FROM:
            values, near, far = self.screened(exact.instruction, exact.operands, elements, rule.tolerance)
            self._take(exact.result, elements[near], values[near], up[near])
            self._ignore(exact, elements[far], f"{expected}, got one further away")
            left = ~(near | far)
            elements, up = elements[left], up[left]
        self._decide(exact, elements, up)

    @cached_property
    def _reporting(self) -> Arithmetic:
        """Computes sums on the same device as the step, at its precision, and reports the value of every element."""
        logging, options = Logging.reporting_all(threshold=_THRESHOLD), self._arithmetic.options
        return Arithmetic(self._arithmetic.device, precision=options.precision, logging=logging)

    def screened(
        self, instruction: Instruction, operands: Sequence[Tensor], elements: Integers, tolerance: int
    ) -> tuple[Doubles, Mask, Mask]:
        """The FP64 values c of many entries' elements, and which entries are near a middle or far, without exact sums.

        Summing one element exactly takes as long as some thousand terms of a matrix product, so a trainer that logs
        every element of a large product could keep auditors busy for longer than anyone waits. Instead the sum is
        computed once more in FP64, giving c and N >= Sigma|terms| for every element. With e = coefficient(2 K + 16) N
        (`tiebreak.engine.arithmetic.plan.ziv`; no order of summation rounds more often), the gap g around c and its
        middle m, the exact sum is

            near    if ||c| - m| + e < 2^-n g: then it lies between the same neighbours;
            far     if ||c| - m| - e > 2^-n g and e < g/8: even if it lies beyond a neighbour, it is less than g/8
                    beyond, where the gap g' is at least g/2, and so further than g'/4 >= 2^-n g' from the middle.

        Exact sums decide the few elements that are neither, those whose e is zero or not finite, and those near the
        greatest numbers, where the gaps end. elements: ascending row-major numbers. tolerance: n, at least 2.
        """
        values, errors = np.zeros(len(elements)), np.full(len(elements), np.inf)
        _, ties = self._reporting.execute_logged(instruction, operands, 0)
        _, here, there = np.intersect1d(elements, ties.elements, assume_unique=True, return_indices=True)
        usable = np.isfinite(ties.errors[there]) & np.isfinite(ties.values[there])
        values[here[usable]] = ties.values[there[usable]]
        norm = ties.errors[there[usable]] / (_THRESHOLD * UNIT)
        errors[here[usable]] = norm * coefficient(2 * instruction.terms + 16)
        gaps = Round(self._arithmetic.options.precision).gaps(torch.from_numpy(values)).numpy()
        magnitude = np.abs(values)
        with np.errstate(invalid="ignore"):
            middle = (np.floor(magnitude / gaps) + 0.5) * gaps
            distance, limit = np.abs(magnitude - middle), gaps * 2.0**-tolerance
            near = (distance + errors) * _SLACK < limit
            far = (distance - errors > limit * _SLACK) & (errors < gaps / 8)
        usual = magnitude < _GREATEST
        return values, near & usual, far & usual

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
            directions = [Direction.NONE] * len(chosen)
            if up is not None:
                directions = [Direction.UP if u else Direction.DOWN for u in up[some].tolist()]
            each = zip(chosen.tolist(), sums, directions, own.tolist(), strict=True)
            settled = [self._one(exact, *one) for one in each]
            put_bits(exact.result, chosen, np.array(settled, dtype=np.uint32))

    def _one(
        self, exact: "_Exact", element: int, total: tuple[int, int] | None, direction: Direction, before: int
    ) -> int:
        """The bits of one element, from its exact sum."""
        rule = self._rounding(exact, direction)
        bits = NAN_BITS if total is None else round_sum(*total, rule)
        if direction == Direction.NONE:
            own = "is this machine's own" if bits == before else f"this machine's own is {before:#010x}"
            detail = f"expected an entry, for this machine cannot tell; to nearest it is {bits:#010x}, {own}"
            if not exact.at_edge:
                self._found(FindingKind.MISSING, exact.index, element, detail)
        elif total is None or not rounding.neighbours(*total, rule)[1]:
            got, nearest = "no finite sum", Rounding(precision=rule.precision)
            if total is not None:
                got = f"one that rounds to {round_sum(*total, nearest):#010x} by itself"
            self._found(FindingKind.ELSEWHERE, exact.index, element, f"{_expected(rule)}, got {got}")
        else:
            self.report.needed += bits != before
        return bits

    def _rounding(self, exact: "_Exact", direction: Direction = Direction.NONE) -> Rounding:
        precision, tolerances = self._job.precision, self._job.tolerances
        return rounding.element_rounding(
            exact.instruction, precision=precision, tolerances=tolerances, direction=direction
        )

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


def _expected(rule: Rounding) -> str:
    if not rule.tolerance:
        return "expected no entries, for the job gives this kind of sum no tolerance"
    return f"expected a sum within 2^-{rule.tolerance} of the gap around a middle"
