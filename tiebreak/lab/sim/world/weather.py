"""Rough weather: posts and transactions that get lost, parties that die at any instant, and blocks that vanish.

What goes wrong in a game follows from its line. Faults that cost a party time are bounded, because the rules promise
nothing to one that is away for longer than its clocks have room for: whatever holds it up comes out of the same few
seconds. Posts are as bad as they like; whoever says something says it again, or goes to the chain.
"""

from collections import Counter
from random import Random
from typing import Final

COPIES: Final = (0, 0, 0, *[1] * 10, 2, 2, 3)
"""The numbers of times that a post arrives, all equally likely."""
LATEST: Final = 60
"""Seconds that a post is late at most. It overtakes others, and others overtake it."""
READ_AGAIN: Final = 60
"""The seconds after which a party asks again for what everybody can read, if it did not come."""
RESEND_BLOCKS: Final = 3
"""The number of blocks after which a transaction that is nowhere is sent again."""
DOWN: Final = (0, 0, 1, 5, 30, 120)
"""Seconds until a party that died is started again."""
TRANSACTION: Final = 0.15
DEATH: Final = 0.04
VANISHING: Final = 0.15
"""The chances that a transaction is held up, that a party dies of an event, and that a new block vanishes again."""


class Weather:
    """Draws what goes wrong in one game, and counts it."""

    def __init__(self, rng: Random, *, seconds: int, depth: int) -> None:
        """`seconds`: the total for which each party may be held up. `depth`: the number of blocks that may vanish."""
        self._rng, self._seconds, self._depth = rng, seconds, depth
        self._spent = Counter[str]()
        self._shared = 0
        """Seconds that all parties lost together, with the blocks that vanished."""
        self.faults = Counter[str]()

    def posts(self) -> list[int]:
        """The delay of each copy of a post, in seconds; none if it is lost."""
        copies = self._rng.choice(COPIES)
        self.faults["posts lost"] += not copies
        self.faults["posts doubled"] += copies > 1
        late = [self._rng.choice((0, 0, self._rng.randrange(LATEST))) for _ in range(copies)]
        self.faults["posts late"] += bool(late) and min(late) > 0
        return late

    def readings(self) -> list[int]:
        """The delays of a download's copies, in seconds; one without delay where the party has no time to spare."""
        if not self._seconds:
            return [0]
        lost = 0
        while not (late := self.posts()):
            lost += READ_AGAIN
        return [lost + seconds for seconds in late]

    def transaction(self, sender: str, block_seconds: int) -> int:
        """The delay of a transaction to the builders, in seconds: it is slow, or lost and sent again."""
        if self._rng.random() >= TRANSACTION:
            return 0
        is_lost = self._rng.random() < 0.5
        late = RESEND_BLOCKS * block_seconds if is_lost else self._rng.randrange(1, 3 * block_seconds)
        if not self._spend(sender, late):
            return 0
        self.faults["transactions lost" if is_lost else "transactions late"] += 1
        return late

    def death(self, party: str, actions: int, lost: int) -> tuple[int, int] | None:
        """Whether a party dies of an event: after how many of its actions, and for how many seconds.

        `lost`: how many seconds of work it loses with its life.
        """
        if self._rng.random() >= DEATH:
            return None
        after, down = self._rng.randint(0, actions), self._rng.choice(DOWN)
        if not self._spend(party, down + lost):
            return None
        self.faults["restarts"] += 1
        return after, down

    def vanishing(self, block_seconds: int) -> int:
        """The number of the newest blocks that vanish now; 0 for none."""
        if not self._depth or self._rng.random() >= VANISHING:
            return 0
        depth = self._rng.randint(1, self._depth)
        # What runs in the wrong order reverts, and is sent again, one block after the other.
        cost = 2 * (depth + 1) * block_seconds
        if self._shared + max(self._spent.values(), default=0) + cost > self._seconds:
            return 0
        self._shared += cost
        self.faults["reorganisations"] += 1
        return depth

    def order(self, count: int) -> list[int]:
        """The order in which `count` transactions of blocks that vanished come back."""
        return self._rng.sample(range(count), count) if self._rng.random() < 0.5 else list(range(count))

    def _spend(self, party: str, seconds: int) -> bool:
        """Take the time that a fault costs a party. Returns False if it has too little left."""
        if self._shared + self._spent[party] + seconds > self._seconds:
            return False
        self._spent[party] += seconds
        return True
