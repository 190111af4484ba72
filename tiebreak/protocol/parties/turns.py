"""The order in which posts that wait at a hub get to its post writer: games' first, and by turns from each address.

So a sender of a thousand posts delays those of others by one of them, and a list of files never delays a move by more
than two batches. Where no more may wait, a post takes the place of one from the address with most. In every `OTHERS`th
batch the other posts come first, since anybody may call a post one of a game. Each batch is in the order in which its
posts arrived.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

MAX_BATCH: Final = 64
MAX_BATCH_BYTES: Final = 1 << 17
"""A batch of this many bytes gets no more posts; the largest post makes a batch by itself."""
OTHERS: Final = 8


class Arrives(Protocol):
    """The properties of a post that its turn depends on."""

    @property
    def wire(self) -> bytes:
        """The post as it was sent; its length counts towards a batch."""

    @property
    def at(self) -> float:
        """The time at which it arrived, in seconds by the hub's clock."""

    @property
    def address(self) -> str:
        """The address that it came from."""

    @property
    def is_of_game(self) -> bool:
        """Whether it may be a message that a game's clock waits for."""


W = TypeVar("W")


class Turns(Generic[W]):
    """The posts that wait for a post writer; `arrival` gives the properties of each."""

    def __init__(self, arrival: Callable[[W], Arrives]) -> None:
        self._arrival = arrival
        self._of_games: OrderedDict[str, deque[W]] = OrderedDict()
        """The posts of each address that wait, first those of the address whose turn is next."""
        self._others: OrderedDict[str, deque[W]] = OrderedDict()
        self._taken: list[W] = []
        self._batches = 0

    def __bool__(self) -> bool:
        return bool(self._of_games or self._others)

    def put(self, waiting: W) -> None:
        """Add a post to the queue of its address."""
        arrival = self._arrival(waiting)
        turns = self._of_games if arrival.is_of_game else self._others
        turns.setdefault(arrival.address, deque()).append(waiting)

    def displace(self, address: str) -> W | None:
        """Remove the newest post of the address with most, so that one from another address has its place.

        Returns None, and removes none, if the address would then have as many.
        """
        waiting = Counter({address: 0})
        for turns in (both := (self._others, self._of_games)):
            waiting.update({sender: len(queue) for sender, queue in turns.items()})
        (greedy, most), *_ = waiting.most_common(1)
        if most < waiting[address] + 2:
            return None
        turns = both[greedy not in self._others]
        removed = turns[greedy].pop()
        if not turns[greedy]:
            del turns[greedy]
        return removed

    def batch(self) -> list[W]:
        """Take the next posts. The batch before counts as done."""
        self._taken, size, self._batches = [], 0, self._batches + 1
        both = (self._of_games, self._others)
        for turns in both if self._batches % OTHERS else reversed(both):
            while turns and len(self._taken) < MAX_BATCH and size < MAX_BATCH_BYTES:
                address, queue = turns.popitem(last=False)
                self._taken.append(queue.popleft())
                size += len(self._arrival(self._taken[-1]).wire)
                if queue:
                    turns[address] = queue
        self._taken.sort(key=lambda waiting: self._arrival(waiting).at)
        return self._taken

    def earliest(self, now: float) -> float:
        """The time at which the first post arrived that is not done yet; `now` if there is none."""
        queues = (*self._of_games.values(), *self._others.values(), self._taken)
        return min((self._arrival(queue[0]).at for queue in queues if queue), default=now)
