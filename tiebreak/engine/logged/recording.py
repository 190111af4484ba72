"""Algorithm 4 of the paper (`log`): what a trainer records of the roundings of one step.

In the paper the threshold tau is a share of the exponent's unit, one per type of layer. Here the arithmetic derives the
threshold from the element's own error bound and hands over exactly the elements within it
(`tiebreak.engine.arithmetic.plan.ziv`). The log holds the direction in which each of them was rounded, down or up (the
paper's 0 and 2); all other elements (the paper's 1) take no place in it.
"""

from collections.abc import Sequence

from torch import Tensor

from tiebreak.engine.arithmetic.plan.ziv import NearTies
from tiebreak.engine.logged.elements import bits_of, went_up
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.rounding import Entries, StepLog


class Recorder:
    """Records one step: the `tiebreak.engine.run.interpreter.Sums` of a trainer. Changes no result."""

    def __init__(self) -> None:
        self._entries: dict[int, Entries] = {}

    def settle(
        self, index: int, _instruction: Instruction, _operands: Sequence[Tensor], result: Tensor, near: NearTies
    ) -> None:
        """Records the directions in which the elements near a middle were rounded."""
        if len(near):
            went = went_up(bits_of(result, near.elements), near.values)
            self._entries[index] = Entries(near.elements, went)

    @property
    def log(self) -> StepLog:
        """The step's log, by instruction, regardless of the order of execution."""
        return StepLog(dict(sorted(self._entries.items())))
