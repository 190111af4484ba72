"""Dishonest block builders. They see every transaction before it counts and decide on the order and the delay.

The rules assume that a transaction gets into a block within the clock. A builder that respects this may order, insert
and delay as it likes. One that does not is outside the assumptions, and nothing is promised against it. It is included
as a weakness, so that one can measure where exactly the promise ends.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import ClassVar, Final

from tiebreak.protocol.chain import ChainError
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game import seals
from tiebreak.protocol.game.moves import NO_SEAL, Move, Phase, Prove, Select, SelectElement, Side
from tiebreak.protocol.game.rules import GameState, Level, apply, judge
from tiebreak.protocol.parties.board import PublicGame, PublicJob
from tiebreak.protocol.parties.terms import Pace, turns
from tiebreak.sim.adversaries.auditors import moves_of, with_a_cheat
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.challengers import MistakenChallenge
from tiebreak.sim.adversaries.false_runs import TRAINER
from tiebreak.sim.adversaries.signing import Equivocation
from tiebreak.sim.world import calls
from tiebreak.sim.world.agents import Builder, Process, Scripted
from tiebreak.sim.world.cast import BuilderFactory, Cast, Seat
from tiebreak.sim.world.world import Pending, World

BUILDER: Final = "builder"
"""The builder's name in a cast."""
_NOBODY: Final = Address(bytes(19) + b"\x01")


class _Building(Adversary):
    """A dishonest party in the builder's place."""

    role: ClassVar[Role] = Role.BUILDER

    def join(self, cast: Cast, rng: Random) -> None:
        """Take the builder's place, with something to dispute about."""
        self.prepare(cast, rng)
        cast.builder = self.make(cast, rng)
        cast.dishonest[BUILDER] = self.name

    def prepare(self, cast: Cast, rng: Random) -> None:
        """Add something to dispute about."""
        with_a_cheat(cast, rng)

    @abstractmethod
    def make(self, cast: Cast, rng: Random) -> BuilderFactory:
        """Make the factory of the builder."""


# ---------------------------------------------------------------- who is first


class _Copier(Scripted, Builder):
    """Replays nothing, but has an account of its own and puts copies in front of the originals.

    It challenges what another party challenges, in the same block and before it. In its own game it then makes that
    challenger's moves, again in front of the originals.
    """

    ROLE: ClassVar = Builder.ROLE

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.victim: bytes | None = None
        self.shown: list[Move] = []
        """The moves that the victim has sent."""

    def concerns(self, job: PublicJob) -> bool:  # noqa: ARG002
        """It reacts to other parties' transactions, not to jobs."""
        return False

    def reclaims(self, game: PublicGame) -> bool:  # noqa: ARG002
        """It takes its own stake back."""
        return True

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002
        """Its own transactions come first."""
        return sorted(pending, key=lambda waiting: waiting.sender is not self)

    def on_pending(self, pending: Pending) -> None:
        """Copy a challenge, or note a move of the victim."""
        call, sender = pending.call, pending.sender.key.address
        if call.kind == "challenge" and self.victim is None:
            self.victim = sender
            self.spawn(self._mirror(pending))
        elif sender == self.victim and isinstance(move := call.move, Select | SelectElement | Prove):
            self.shown.append(move)
            self.world.notify()

    def _mirror(self, challenge: Pending) -> Process:
        if not (yield from self.attempt(challenge.call)):
            return
        game = next(game for game in self.world.board.games.values() if game.challenger == self.address)
        yield from self.contest(game)

    def contest(self, game: PublicGame) -> Process:
        """Plays its game with the moves that it has seen."""
        while not game.is_stopped:
            made = moves_of(game, Side.CHALLENGER)
            yield from self.until(partial(self._is_ready, game, made))
            if not game.is_stopped:
                yield from self.copy(game, self.shown[made])

    def _is_ready(self, game: PublicGame, made: int) -> bool:
        return game.is_stopped or (game.mover() == self.address and len(self.shown) > made)

    def copy(self, game: PublicGame, move: Move) -> Process:
        """Sends a copied move untried, and waits if the move fails."""
        try:
            yield from self.send(calls.make_move(game.state, move), untried=True)
        except ChainError:
            yield from self.until(lambda: game.is_stopped, game.state.deadline + 1)


class _Onlooker(_Copier):
    """Copies the challenge and then makes no move."""

    def contest(self, game: PublicGame) -> Process:
        """Wait for the other game to end."""
        yield from self.until(lambda: game.is_stopped)


class FrontRunChallenge(_Building):
    """Inserts its own copy of a challenge in front of it."""

    name: ClassVar[str] = "front-run challenge"
    gain: ClassVar[str] = "to be the first challenger, if that counted"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS, Catch.TIMEOUT})

    def make(self, cast: Cast, rng: Random) -> BuilderFactory:  # noqa: ARG002
        return _Onlooker


class _Sealer(_Copier):
    """Holds back the sealed move until the victim's proof is visible, and seals the answer that the proof reveals.

    Its own proof follows in the same block in front of the original, which is a second too early.
    """

    def copy(self, game: PublicGame, move: Move) -> Process:
        """Copies the victim's move. A move with a seal waits until the proof can be copied too."""
        if not isinstance(move, Select | SelectElement) or move.seal == NO_SEAL:
            yield from super().copy(game, move)
            return
        yield from self.until(lambda: game.is_stopped or isinstance(self.shown[-1], Prove))
        proof = self.shown[-1]
        if game.is_stopped or not isinstance(proof, Prove):
            return
        sealed = replace(move, seal=seals.seal(game.id, self._answer(proof), self.secret))
        state = game.state
        self.world.submit(self, calls.make_move(state, sealed), untried=True)
        after = apply(state, sealed, self.world.next_block)
        yield from self.prove(game, replace(proof, salt=self.secret), after)

    def prove(self, game: PublicGame, proof: Prove, after: GameState) -> Process:
        """Send the proof at once, directly after the seal."""
        if after.phase is Phase.PROVE:
            self.world.submit(self, calls.make_move(after, proof), untried=True)
        yield from self.until(lambda: game.is_stopped)

    def _answer(self, proof: Prove) -> bytes:
        """The answer that the victim's proof shows to be right."""
        theirs = next(game for game in self.world.board.games.values() if game.challenger == self.victim)
        found = judge(theirs.state, proof)
        return seals.element_answer(found) if theirs.state.level is Level.CHUNKS else found


class FrontRunProof(_Building):
    """Repeats a challenger's game, each move in front of the original, to be the first with its proof.

    It copies the seal unchanged, or seals the answer that the proof reveals, in the same block as the proof.
    """

    name: ClassVar[str] = "front-run proof"
    gain: ClassVar[str] = "half of the trainer's stake, without a replay"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.REFUSED, Catch.HARMLESS, Catch.TIMEOUT})

    def make(self, cast: Cast, rng: Random) -> BuilderFactory:  # noqa: ARG002
        """Draw one of the two kinds of seal."""
        return rng.choice((_Copier, _Sealer))


class _Withholder(_Sealer):
    """As `_Sealer`, but excludes the original proof from one block. Its own proof in the next block is then legal."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.sealed_at = 0

    def order(self, pending: list[Pending], now: int) -> list[Pending]:
        """Excludes the victim's proof while its own would be refused."""
        ordered = super().order(pending, now)
        if self.sealed_at and now > self.sealed_at:
            return ordered
        return [waiting for waiting in ordered if waiting.sender is self or not isinstance(waiting.call.move, Prove)]

    def prove(self, game: PublicGame, proof: Prove, after: GameState) -> Process:
        """Send the proof in the block after the seal's."""
        self.sealed_at = after.last
        yield from self.until(lambda: game.is_stopped or game.state.phase is Phase.PROVE)
        if not game.is_stopped:
            yield from self.send(calls.make_move(game.state, proof), untried=True)


class WithheldProof(_Building):
    """Leaves the last proof out of a block, seals its answer there, and proves it in the next.

    A weakness that is known and open (docs/security.md, "a block builder"): the trainer loses all the same, and the
    challenger gets its stake back, but not the reward.
    """

    name: ClassVar[str] = "withheld proof"
    gain: ClassVar[str] = "half of the trainer's stake, without a replay"
    caught: ClassVar[frozenset[Catch]] = frozenset()
    open: ClassVar[bool] = True

    def make(self, cast: Cast, rng: Random) -> BuilderFactory:  # noqa: ARG002
        return _Withholder


class _Reporter(Builder):
    """Puts its own copy of a report in front of the original."""

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002
        """A copy before each report of an equivocation."""
        ordered = []
        for waiting in pending:
            if waiting.call.kind == "reportEquivocation" and waiting.sender is not self:
                ordered.append(self.own(waiting.call))
            ordered.append(waiting)
        return ordered


class FrontRunReport(_Building):
    """Takes a report of an equivocation out of the mempool and puts its own in front.

    This is known. The trainer loses all the same, the client gets its reward back, and the first reporter earns
    nothing. The reporter loses a reward but no deposit.
    """

    name: ClassVar[str] = "front-run report"
    gain: ClassVar[str] = "half of the trainer's stake, which the reporter would have got"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})

    def prepare(self, cast: Cast, rng: Random) -> None:
        """Add a trainer that equivocates, unless the trainer is dishonest already."""
        if is_trainer_honest(cast):
            Equivocation().join(cast, rng)

    def make(self, cast: Cast, rng: Random) -> BuilderFactory:  # noqa: ARG002
        return _Reporter


# ---------------------------------------------------------------- who has to wait


def job_of(cast: Cast) -> Job:
    """A job on the cast's terms, without real parties."""
    return cast.workshop.job(client=_NOBODY, trainer=_NOBODY, nonce=0, terms=cast.terms)


def pace_of(cast: Cast) -> Pace:
    """The speed of the cast's world."""
    return Pace(block_seconds=cast.block_seconds, step_seconds=cast.step_seconds)


def turns_of(cast: Cast) -> int:
    """The moves of one side in the longest possible game."""
    return turns(job_of(cast), cast.workshop.program)


def bearable(cast: Cast) -> int:
    """The total seconds for which a party can be kept out of the blocks and still do everything in time."""
    job, pace = job_of(cast), pace_of(cast)
    in_a_game = job.clock - pace.sending(turns_of(cast))
    between_heads = job.challenge_window - job.checkpoint_interval * pace.step_seconds - pace.sending(2)
    return max(0, min(in_a_game, between_heads))


class Censor(Builder):
    """Excludes all transactions of some parties, once, for `seconds` from one of their transactions on."""

    def __init__(
        self, world: World, name: str, key: PrivateKey, *,
        victims: frozenset[str], seconds: int, begins: Callable[[Pending, int], bool],
    ) -> None:  # fmt: skip
        """`begins(pending, number)` tells whether to start with the victims' transaction `number`, counted from 0."""
        super().__init__(world, name, key)
        self.victims = victims
        self.seconds = seconds
        self.begins = begins
        self.began: int | None = None
        self._seen: list[Pending] = []

    def on_pending(self, pending: Pending) -> None:
        """Start the censorship at the chosen transaction of a victim."""
        if pending.sender.name in self.victims:
            if self.began is None and self.begins(pending, len(self._seen)):
                self.began = pending.at
            self._seen.append(pending)

    def order(self, pending: list[Pending], now: int) -> list[Pending]:
        """Everything, or everything except the victims' transactions."""
        if self.began is None or now >= self.began + self.seconds:
            return pending
        return [waiting for waiting in pending if waiting.sender.name not in self.victims]


def is_trainer_honest(cast: Cast) -> bool:
    """Whether no adversary has taken the trainer's place."""
    return cast.deviation is None and TRAINER not in cast.dishonest


def victims_in(cast: Cast) -> frozenset[str]:
    """The parties to exclude: an honest trainer, or else the honest auditors."""
    return frozenset({TRAINER}) if is_trainer_honest(cast) else diligent(cast)


def diligent(cast: Cast) -> frozenset[str]:
    """The honest auditors."""
    return frozenset(seat.name for seat in cast.auditors if seat.name not in cast.deviations())


def censor(victims: frozenset[str], seconds: int, first: int) -> BuilderFactory:
    """A censor that starts at the victims' transaction number `first`, counted from 0."""
    return partial(Censor, victims=victims, seconds=seconds, begins=lambda _, number: number == first)


class Censorship(_Building):
    """Keeps one side of a game out of the blocks, for no longer than its clock can bear.

    The victims are the auditors that pursue a cheat, or an honest trainer that is challenged without ground.
    """

    name: ClassVar[str] = "censorship below the clock"
    gain: ClassVar[str] = "that the censored side loses a game by its clock"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})

    def make(self, cast: Cast, rng: Random) -> BuilderFactory:
        """Draw the transaction at which it starts."""
        return censor(victims_in(cast), bearable(cast), rng.randint(0, 8))

    def prepare(self, cast: Cast, rng: Random) -> None:
        """Add a cheat for the auditors to find, or an unfounded challenge."""
        if is_trainer_honest(cast) and rng.random() < 0.5:
            MistakenChallenge().join(cast, rng)
        else:
            with_a_cheat(cast, rng)


class Blackout(Censorship):
    """Keeps a side of a game out of the blocks until its clock and all windows are over.

    This breaks the assumption that a transaction gets into a block within the clock, so nothing is promised. The
    censored side loses its stake, or the false head is settled.
    """

    name: ClassVar[str] = "censorship above the clock"
    caught: ClassVar[frozenset[Catch]] = frozenset()
    open: ClassVar[bool] = True

    def make(self, cast: Cast, rng: Random) -> BuilderFactory:
        """Starts at one of the victims' transactions in a game, or at the challenge."""
        terms = cast.terms
        forever = 4 * (terms.challenge_window + terms.clock + terms.replay_time)
        victims = victims_in(cast)
        first = 6 if TRAINER in victims else rng.randint(0, 2)  # by then it has accepted the job and posted four heads
        return censor(victims, forever, first)


class _Delayer(Builder):
    """Delays every transaction until the last block in which it is of use to its sender."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, turns: int, pause: int) -> None:
        """`turns`: moves of one side in the longest game.

        `pause`: seconds of delay for transactions without a deadline.
        """
        super().__init__(world, name, key)
        self.turns = turns
        self.pause = pause

    def order(self, pending: list[Pending], now: int) -> list[Pending]:
        """Transactions that are due before the next block, or that precede such a transaction of the same sender."""
        last = now + self.world.block_seconds
        urgent = [number for number, waiting in enumerate(pending) if self.due(waiting) < last]
        behind = {pending[number].sender.name: number for number in urgent}
        return [waiting for number, waiting in enumerate(pending) if number <= behind.get(waiting.sender.name, -1)]

    def due(self, waiting: Pending) -> int:
        """The time by which the transaction must be in a block."""
        call, board, pace = waiting.call, self.world.board, self.world.pace
        game = board.games.get(call.game_id) if call.game_id is not None else None
        if game is not None and call.move is not None:
            if game.is_over:
                return waiting.at  # it is refused in any block
            made = moves_of(game, game.state.mover)
            return game.state.deadline - pace.sending(self.turns - made - 1)
        job = None if call.job_id is None else board.jobs.get(call.job_id)
        if job is not None and call.kind in ("postHead", "challenge", "acceptJob"):
            return job.window_end
        return waiting.at + self.pause


class DelayingBuilder(_Building):
    """Delays every transaction to the last moment."""

    name: ClassVar[str] = "delays to the last moment"
    gain: ClassVar[str] = "time, and that somebody misses a deadline"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})

    def make(self, cast: Cast, rng: Random) -> BuilderFactory:
        """Draw the delay for transactions without a deadline."""
        return partial(_Delayer, turns=turns_of(cast), pause=rng.randint(0, cast.terms.clock))


class _Shuffler(Builder):
    """Shuffles the waiting transactions."""

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002
        return self.rng.sample(pending, len(pending))


class ReorderingBuilder(_Building):
    """Shuffles the transactions of each block. Several auditors take part, so that there is something to shuffle."""

    name: ClassVar[str] = "reorders at random"
    gain: ClassVar[str] = "that somebody's transaction reverts"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})

    def make(self, cast: Cast, rng: Random) -> BuilderFactory:  # noqa: ARG002
        return _Shuffler

    def prepare(self, cast: Cast, rng: Random) -> None:
        """Add a second auditor to compete with the first."""
        super().prepare(cast, rng)
        cast.auditors.append(Seat(name="another auditor"))


class _Dropper(Builder):
    """Excludes random transactions from blocks, each for no longer than it can bear."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, longest: int) -> None:
        super().__init__(world, name, key)
        self.longest = longest

    def order(self, pending: list[Pending], now: int) -> list[Pending]:
        """A random part of the waiting transactions, and all that have waited too long."""
        return [waiting for waiting in pending if now - waiting.at >= self.longest or self.rng.random() < 0.5]


class DroppingBuilder(_Building):
    """Drops transactions and takes them up again later."""

    name: ClassVar[str] = "drops and takes up again"
    gain: ClassVar[str] = "that somebody misses a deadline"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})

    def make(self, cast: Cast, rng: Random) -> BuilderFactory:  # noqa: ARG002
        """The delays of a whole game add up to no more than a side can bear."""
        return partial(_Dropper, longest=bearable(cast) // turns_of(cast))


ADVERSARIES: tuple[type[Adversary], ...] = (
    FrontRunChallenge,
    FrontRunProof,
    WithheldProof,
    FrontRunReport,
    Censorship,
    Blackout,
    DelayingBuilder,
    ReorderingBuilder,
    DroppingBuilder,
)
