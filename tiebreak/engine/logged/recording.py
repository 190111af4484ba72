"""Algorithm 4 of the paper (`log`): what a trainer writes down of the roundings of one step.

In the paper the threshold tau is a share of the exponent's unit, one for a layer type. Here the arithmetic makes it out
of the element's own error bound and hands over exactly the elements within it
(`tiebreak.engine.arithmetic.near_ties`); of each of
those the direction in which it was rounded is logged, down or up (the paper's 0 and 2), and of all others nothing (its
1), which takes no place in the log.
"""

from collections.abc import Sequence

from torch import Tensor

from tiebreak.engine.arithmetic.near_ties import NearTies
from tiebreak.engine.logged.elements import bits_of, went_up
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.step_log import Entries, StepLog


class Recorder:
    """Records one step: `tiebreak.engine.run.interpreter.Sums` of a trainer. Changes nothing of any result."""

    def __init__(self) -> None:
        self._entries: dict[int, Entries] = {}

    def settle(
        self, value: int, _instruction: Instruction, _operands: Sequence[Tensor], result: Tensor, near: NearTies
    ) -> None:
        """Logs which way the elements near a middle went."""
        if len(near):
            went = went_up(bits_of(result, near.elements), near.values)
            self._entries[value] = Entries(near.elements, went)

    @property
    def log(self) -> StepLog:
        """The step's log: by instruction, in whatever order they were executed."""
        return StepLog(dict(sorted(self._entries.items())))
