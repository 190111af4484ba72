"""The order in which waiting posts get to the clerk: those of games first, and by turns from each address.

So a sender of a thousand posts delays those of others by one of them, and a list of files never delays a move by more
than the batch that is being taken. Each batch is in the order in which its posts arrived.
"""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

from tiebreak.node.hub.clerk import Answer, Arrival

MAX_BATCH: Final = 64
MAX_BATCH_BYTES: Final = 1 << 17
"""A batch of this many bytes gets no more posts; the largest post makes a batch by itself."""


@dataclass(frozen=True, slots=True)
class Waiting:
    arrival: Arrival
    answer: "asyncio.Future[Answer]"


class Line:
    """The posts that wait for the clerk. All its methods must be called in one event loop."""

    def __init__(self) -> None:
        self._of_games: OrderedDict[str, deque[Waiting]] = OrderedDict()
        """The posts of each address that wait, first those of the address whose turn is next."""
        self._others: OrderedDict[str, deque[Waiting]] = OrderedDict()
        self._taken: list[Waiting] = []
        self._some = asyncio.Event()

    def put(self, waiting: Waiting) -> None:
        turns = self._of_games if waiting.arrival.is_of_game else self._others
        turns.setdefault(waiting.arrival.address, deque()).append(waiting)
        self._some.set()

    async def batch(self) -> list[Waiting]:
        """Wait for posts, and take the next of them. The batch before counts as done."""
        self._taken = []
        await self._some.wait()
        size = 0
        for turns in (self._of_games, self._others):
            while turns and len(self._taken) < MAX_BATCH and size < MAX_BATCH_BYTES:
                address, queue = turns.popitem(last=False)
                self._taken.append(queue.popleft())
                size += len(self._taken[-1].arrival.wire)
                if queue:
                    turns[address] = queue
        if not self._of_games and not self._others:
            self._some.clear()
        self._taken.sort(key=lambda waiting: waiting.arrival.at)
        return self._taken

    def earliest(self, now: float) -> float:
        """The time at which the first post arrived that is not done yet; `now` if there is none."""
        queues = (*self._of_games.values(), *self._others.values(), self._taken)
        return min((queue[0].arrival.at for queue in queues if queue), default=now)
