"""The posts that a hub has read and not answered; `protocol.parties.turns` says in which order they are written."""

import asyncio
from dataclasses import dataclass

from tiebreak.node.hub.post_writer import Arrival, PostResult
from tiebreak.protocol.parties.turns import Turns


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    arrival: Arrival
    answer: "asyncio.Future[PostResult]"


class PostQueue(Turns[WaitingRequest]):
    """The posts that wait for the post writer. All its methods must be called in one event loop."""

    def __init__(self) -> None:
        super().__init__(lambda waiting: waiting.arrival)
        self._some = asyncio.Event()

    def put(self, waiting: WaitingRequest) -> None:
        super().put(waiting)
        self._some.set()

    async def next_batch(self) -> list[WaitingRequest]:
        """Wait for posts, and take the next of them. The batch before counts as done."""
        self._taken = []
        await self._some.wait()
        batch = self.batch()
        if not self:
            self._some.clear()
        return batch
