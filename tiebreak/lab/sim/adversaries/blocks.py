"""Builders that order blocks, not transactions: none for a while, or others in place of the last ones; and bad hubs.

Nobody can rule out that blocks are late or vanish. The parties' clocks have room for some of it: within that, nothing
may be lost. A hub can lose time and nothing else: what matters is a transaction, or is said again. Under policy
`logged` logs are too large for that, so if no hub shows them until a window is over, the job parts; these hubs keep
logs back for less. Whoever owns or floods the hub sits in the builder's place and builds as agreed.
"""

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Final

from tiebreak.lab.sim.adversaries import base, mempool
from tiebreak.lab.sim.adversaries.auditors import moves_of
from tiebreak.lab.sim.adversaries.base import Catch, Role, between, builder, one_of, row
from tiebreak.lab.sim.adversaries.challengers import Strolling
from tiebreak.lab.sim.adversaries.mempool import bearable, victims_in, with_something_to_dispute
from tiebreak.lab.sim.world.agents import BlockBuilder, Process
from tiebreak.lab.sim.world.game import Cast, Factory
from tiebreak.lab.sim.world.world import Pending, WorldBlock
from tiebreak.protocol.chain.calls import move_call
from tiebreak.protocol.game.moves import Prove, Select, SelectElement, Side
from tiebreak.protocol.game.sides import resume
from tiebreak.protocol.parties.board import PublicGame
from tiebreak.protocol.parties.client import LOOKS
from tiebreak.protocol.parties.turns import Turns
from tiebreak.protocol.tags import Digest

DEEPEST: Final = 3


class Halting(mempool.Censor):
    """Makes no block at all, once, for `seconds` from a transaction on."""

    def order(self, pending: list[Pending], now: int) -> list[Pending]:
        return [] if self.began is not None and now < self.began + self.seconds else pending


class Reorganiser(BlockBuilder):
    """Replaces the newest blocks, again and again, as long as all lost time together is bearable."""

    depth: int
    seconds: int
    """The most that the vanished blocks of a game may last, all together."""
    chance: float = 0.25
    reverses: bool = False
    """Whether the new blocks hold the transactions in another order."""
    lost: int = 0
    """The number of these seconds that have vanished so far."""

    def on_block(self, block: WorldBlock) -> None:  # noqa: ARG002
        """Choose whether this block and those before it vanish at the next slot."""
        depth = self.rng.randint(1, self.depth)
        # What runs in the wrong order reverts, and is sent again, one block after the other.
        cost = (depth + 1) * (1 + self.reverses) * self.world.block_seconds
        if self.rng.random() < self.chance and self.lost + cost <= self.seconds:
            self.lost += cost
            self.world.reorganise(depth)

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002
        return pending[::-1] if self.reverses else pending


class Unsealer(BlockBuilder):
    """Reorganises the chain once a proof is public, to remove the block of the seal that the proof opens.

    Then it puts an accomplice's transactions first: a mirror that has read the proof, and seals its answer.
    """

    depth: int
    friend: str
    done: bool = False

    def on_pending(self, pending: Pending) -> None:
        if isinstance(pending.call.move, Prove) and pending.sender.name != self.friend and not self.done:
            self.done = True
            self.world.reorganise(self.depth)

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002
        """The friend's first, and the victim's seal and proof last."""
        return sorted(pending, key=lambda waiting: waiting.sender.name != self.friend)


class Unsealing(mempool.Resealing):
    """A mirror that seals what the victim's proof reveals in the very block that might have held that proof."""

    def on_pending(self, pending: Pending) -> None:
        super().on_pending(pending)
        if not isinstance(pending.call.move, Prove) or pending.sender.address != self.victim:
            return
        for game in self.world.board.games.values():
            made = moves_of(game, Side.CHALLENGER)
            if game.is_stopped or game.challenger != self.address:
                continue
            if game.mover() == self.address and made < len(self.shown) - 1:
                sealed = self.copied(game, self.shown[made])
                if sealed is not None:
                    self.world.submit(self, move_call(game.state, sealed), untried=True)


class Retaking(Strolling, BlockBuilder):
    """Challenges a true head, and takes its selections back by a reorganisation once they are answered.

    The choice's block vanishes, and another choice stands before the answer, which is in the mempool.
    """

    ROLE: ClassVar = BlockBuilder.ROLE
    after: int
    """It begins after this many moves."""
    seconds: int
    lost: int = 0
    taken: PublicGame | None = None
    """The game in which the next block has another choice."""
    answers_met: int = 0
    """The number of answers that were mined after another selection than the one that they answer."""

    def on_pending(self, pending: Pending) -> None:
        """Let the blocks since the choice vanish, if this is the answer to one."""
        game, bound = self.world.board.games.get(pending.call.game_id or Digest(b"")), self.world.block_seconds
        if game is None or game.challenger != self.address or game.is_stopped or pending.call.move is None:
            return
        is_answer = isinstance(game.answered, Select | SelectElement) and game.state.moves > self.after
        depth = self.world.height + 1 - game.height
        if is_answer and depth <= DEEPEST and self.lost + (depth + 2) * bound <= self.seconds:
            self.lost += (depth + 2) * bound
            self.taken = game
            self.world.reorganise(depth)

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002
        """The other choice, what others have sent, and at last its own transactions, whose first choice reverts."""
        game, self.taken = self.taken, None
        own = [waiting for waiting in pending if waiting.sender is self]
        if game is None or game.mover() != self.address or not own:
            return pending
        party = self.party_in(game)
        resume(party, game.first_state, game.moves)
        for _ in range(base.TRIES):
            other = party.move(game.state, game.answered)
            if other != own[0].call.move:
                self.answers_met += 1
                others = [waiting for waiting in pending if waiting.sender is not self]
                return [self.own(move_call(game.state, other)), *others, *own]
        return pending


def deep(cast: Cast, rng: Random) -> int:
    """The depth of the builder's reorganisations, which the parties know and have time for."""
    for depth in range(rng.randint(1, DEEPEST), 0, -1):
        if bearable(cast) >= (depth + 1) * cast.block_seconds:
            cast.confirmations = depth
            return depth
    return 0


def _seat_with_unsealer(cast: Cast, rng: Random, name: str, make: Factory[Any]) -> None:
    """A mirror, and a builder that works for it."""
    base.seat_challenger(cast, rng, name, make)
    unsealer = base.given(Unsealer, depth=deep(cast, rng), friend=cast.auditors[-1].name)
    base.seat_builder(cast, rng, name, unsealer)


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
    """A hub that withholds the posts of some parties from an instant within a game on.

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
    builder("delayed blocks", Halting, "that a clock runs out while there is no block", _HARMLESS,
        before=with_something_to_dispute, victims=victims_in, seconds=lambda cast, _: bearable(cast),
        first=between(0, 8), seated=True),
    builder("reorganised blocks", Reorganiser, "that a party acts on what did not happen", _HARMLESS,
        before=with_something_to_dispute, depth=deep, seconds=lambda cast, _: bearable(cast),
        reverses=one_of(False, False, True), seated=True),
    row(Role.BUILDER, _seat_with_unsealer, "reorganised seal", Unsealing,
        "an honest challenger's reward: its seal vanishes when its proof has been seen",
        {Catch.UNPAID, Catch.HARMLESS, Catch.TIMEOUT}, before=mempool.with_a_false_run, seated=True),
    row(Role.BUILDER, base.seat_builder, "choice taken back under its answer", Retaking,
        "an honest trainer's stake, for what it opened answers another choice",
        {Catch.RECOMPUTED, Catch.PADDING, Catch.TIMEOUT}, after=between(0, 12),
        seconds=lambda cast, _: bearable(cast)),
    builder("hub that stalls", StallingHub, "that a party waits for the hub until its clock has run out", _HARMLESS,
        before=with_something_to_dispute, victims=lambda cast, rng: victims_in(cast, rng) | {base.CLIENT},
        wait=lambda cast, rng: rng.choice((0, rng.randrange(60), rng.randrange(cast.terms.clock))),
        seconds=lambda cast, rng: rng.choice((rng.randrange(600), 2 * cast.terms.clock, FOR_EVER)),
        # the client looks for logs every `LOOKS`th part of a window, and signs in the next
        logs=lambda cast, _: max(0, bearable(cast) - 2 * cast.terms.challenge_window // LOOKS) // 2, seated=True),
    builder("strangers who flood the hub", Flooding, "that what others post never gets its turn", _HARMLESS,
        before=with_something_to_dispute, victims=lambda cast, rng: victims_in(cast, rng) | {base.CLIENT},
        addresses=between(0, 800), games=one_of((True,), (False,), (True, False)), seated=True),
)
# fmt: on
