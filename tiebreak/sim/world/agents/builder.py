"""The builder: makes the blocks."""

from typing import ClassVar

from tiebreak.sim.world.agents.agent import Agent
from tiebreak.sim.world.calls import Call
from tiebreak.sim.world.world import Pending


class Builder(Agent):
    """Takes all that waits, in the order of arrival."""

    ROLE: ClassVar = "builder"

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002  # for who looks at it
        """Which transactions stand in the block, and in which order."""
        return pending

    def own(self, call: Call) -> Pending:
        """A transaction of its own for a block that it makes, which nobody sees before."""
        return self.world.new_pending(self, call, untried=True)
