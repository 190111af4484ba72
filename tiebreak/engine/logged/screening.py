"""Tells which of many entries lie near a middle without exact sums: a log of all elements must not stall its auditor.

Summing one element exactly takes as long as some thousand terms of a matrix product, so a trainer that logs every
element of a large product could keep auditors busy for longer than anyone waits. Instead the sum is computed once more
in FP64, giving c and N >= Sigma|terms| for every element. With e = coefficient(2 K + 16) N
(`tiebreak.engine.arithmetic.plan.ziv`; no order of summation rounds more often), the gap g around c and its middle m,
the exact sum is

    near    if ||c| - m| + e < 2^-n g: then it lies between the same neighbours;
    far     if ||c| - m| - e > 2^-n g and e < g/8: even if it lies beyond a neighbour, it is less than g/8 beyond, where
            the gap g' is at least g/2, and so further than g'/4 >= 2^-n g' from the middle.

Exact sums decide the few elements that are neither, those whose e is zero or not finite, and those near the greatest
numbers, where the gaps end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.rounding import Round
from tiebreak.engine.arithmetic.plan.ziv import UNIT, Logging, coefficient
from tiebreak.engine.logged.elements import Doubles
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.rounding import Integers, Mask

THRESHOLD: Final = 2.0**60
_GREATEST: Final = 2.0**127
_SLACK: Final = 1 + 2.0**-40
"""A factor greater than the rounding errors of these few FP64 operations."""


@dataclass(frozen=True, slots=True)
class Screened:
    """The values c of some elements, and masks of those that are near and those that are far."""

    values: Doubles
    near: Mask
    far: Mask


class Screen:
    """Screens entries on the device of an arithmetic, at its precision."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        logging = Logging.reporting_all(threshold=THRESHOLD)
        self._round = Round(arithmetic.options.precision)
        self._arithmetic = Arithmetic(arithmetic.device, precision=arithmetic.options.precision, logging=logging)

    def screen(
        self, instruction: Instruction, operands: Sequence[Tensor], elements: Integers, tolerance: int
    ) -> Screened:
        """Screens elements. elements: ascending row-major numbers. tolerance: n, at least 2."""
        values, errors = self._computed(instruction, operands, elements)
        gaps = self._round.gaps(torch.from_numpy(values)).numpy()
        magnitude = np.abs(values)
        with np.errstate(invalid="ignore"):
            middle = (np.floor(magnitude / gaps) + 0.5) * gaps
            distance, limit = np.abs(magnitude - middle), gaps * 2.0**-tolerance
            near = (distance + errors) * _SLACK < limit
            far = (distance - errors > limit * _SLACK) & (errors < gaps / 8)
        usual = magnitude < _GREATEST
        return Screened(values, near & usual, far & usual)

    def _computed(
        self, instruction: Instruction, operands: Sequence[Tensor], elements: Integers
    ) -> tuple[Doubles, Doubles]:
        """c and e of some elements; 0 and infinity where they are not known."""
        values, errors = np.zeros(len(elements)), np.full(len(elements), np.inf)
        _, ties = self._arithmetic.execute_logged(instruction, operands, 0)
        _, here, there = np.intersect1d(elements, ties.elements, assume_unique=True, return_indices=True)
        usable = np.isfinite(ties.errors[there]) & np.isfinite(ties.values[there])
        values[here[usable]] = ties.values[there[usable]]
        norm = ties.errors[there[usable]] / (THRESHOLD * UNIT)
        errors[here[usable]] = norm * coefficient(2 * instruction.terms + 16)
        return values, errors
