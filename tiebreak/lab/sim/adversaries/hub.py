"""Hubs that keep back what honest parties post, and strangers who keep a hub's line full.

A hub can lose time and nothing else: what matters is a transaction, or is said again. Under policy `logged` logs are
too large for that, so if no hub shows them until a window is over, the job parts; these hubs keep logs back for less.
Whoever owns or floods the hub sits in the builder's place and builds as agreed.
"""

from dataclasses import dataclass
from typing import Final

from tiebreak.lab.sim.adversaries.base import CLIENT, Catch, between, builder, one_of
from tiebreak.lab.sim.adversaries.mempool import bearable, victims_in, with_something_to_dispute
from tiebreak.lab.sim.world.agents import BlockBuilder, Process
from tiebreak.lab.sim.world.world import WorldBlock
from tiebreak.protocol.parties.client import LOOKS
from tiebreak.protocol.parties.turns import Turns

FOR_EVER: Final = 1 << 40


class _Hub(BlockBuilder):
    victims: frozenset[str]

    def run(self) -> Process:
        self.world.hub = lambda sender, kind: self.late(kind) if sender.name in self.victims else 0
        yield from ()

    def late(self, kind: str) -> int | None:
        """The delay, in seconds, after which others see a victim's post; None for never."""
        raise NotImplementedError


class StallingHub(_Hub):
    """A hub that shows nobody, from an instant within a game on, what some parties post.

    Each post comes late, or when the stall is over (what is refused is said again until then), or never.
    """

    wait: int
    """Seconds from the first block in which a game is open."""
    seconds: int
    logs: int
    """The longest time for which it keeps a run's logs back, in seconds."""
    began: int | None = None

    def on_block(self, block: WorldBlock) -> None:
        if self.began is None and any(not game.is_stopped for game in self.world.board.games.values()):
            self.began = block.timestamp + self.wait

    def late(self, kind: str) -> int | None:
        rest = 0 if self.began is None else self.began + self.seconds - self.world.now
        if not 0 < rest <= self.seconds:
            return 0
        if kind == "run":
            return min(rest, self.logs)
        some = min(rest, self.rng.randrange(self.world.terms.clock))
        return self.rng.choice((some, rest if self.seconds < FOR_EVER else None, None))


@dataclass(frozen=True, slots=True)
class _Post:
    address: str
    is_of_game: bool
    wire: bytes = bytes(1 << 10)
    at: float = 0.0


class Flooding(_Hub):
    """Strangers who keep a post from each of many addresses in the queue of a hub, which takes one batch a second.

    The queue is that of `tiebreak hub`. They begin once there is a job, and their keys and addresses never run out.
    """

    addresses: int
    games: tuple[bool, ...]
    """The kinds that their posts claim to be: posts of a game, others, or both."""

    def late(self, kind: str) -> int | None:
        if not self.world.board.jobs:
            return 0
        line, own = Turns[_Post](lambda post: post), _Post("", kind == "game")
        for post in (*(_Post(str(n), is_game) for n in range(self.addresses) for is_game in self.games), own):
            line.put(post)
        for seconds in range(1, 256):  # after that, the line has been the same many times
            taken = line.batch()
            if own in taken:
                return seconds
            for post in taken:
                line.put(post)
        return None


_HARMLESS: Final = {Catch.HARMLESS}
# fmt: off
ADVERSARIES: Final = (
    builder("hub that stalls", StallingHub, "that a party waits for the hub until its clock has run out", _HARMLESS,
        before=with_something_to_dispute, victims=lambda cast, rng: victims_in(cast, rng) | {CLIENT},
        wait=lambda cast, rng: rng.choice((0, rng.randrange(60), rng.randrange(cast.terms.clock))),
        seconds=lambda cast, rng: rng.choice((rng.randrange(600), 2 * cast.terms.clock, FOR_EVER)),
        # the client looks for logs every `LOOKS`th part of a window, and signs in the next
        logs=lambda cast, _: max(0, bearable(cast) - 2 * cast.terms.challenge_window // LOOKS) // 2, seated=True),
    builder("strangers who flood the hub", Flooding, "that what others post never gets its turn", _HARMLESS,
        before=with_something_to_dispute, victims=lambda cast, rng: victims_in(cast, rng) | {CLIENT},
        addresses=between(0, 800), games=one_of((True,), (False,), (True, False)), seated=True),
)
# fmt: on
