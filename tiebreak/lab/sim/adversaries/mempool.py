"""Cheating with a look at the mempool: by block builders, and by challengers that copy what an honest one sends.

The rules assume that a transaction gets into a block within the clock. A builder that respects this may order, insert
and delay as it likes. Nothing is promised against one that does not, and it is none of these: the tests of builders
measure the second at which the promise ends.
"""

from dataclasses import replace
from functools import partial
from random import Random
from typing import ClassVar, Final

from tiebreak.lab.sim.adversaries import base
from tiebreak.lab.sim.adversaries.auditors import moves_of
from tiebreak.lab.sim.adversaries.base import Catch, between, builder, challenger, is_trainer_honest, with_a_cheat
from tiebreak.lab.sim.adversaries.challengers import MISTAKEN
from tiebreak.lab.sim.adversaries.heads import EQUIVOCATION
from tiebreak.lab.sim.world.agents import BlockBuilder, Process, Scripted
from tiebreak.lab.sim.world.game import Cast, CastMember
from tiebreak.lab.sim.world.world import Participant, Pending, World
from tiebreak.protocol.chain import ChainError
from tiebreak.protocol.chain.calls import Call, move_call
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import IllegalMove
from tiebreak.protocol.game import seals
from tiebreak.protocol.game.moves import NO_SEAL, Move, Phase, Prove, Select, SelectElement, Side
from tiebreak.protocol.game.rules import apply, judge
from tiebreak.protocol.game.state import GameState, Level
from tiebreak.protocol.parties.board import PublicGame, PublicJob
from tiebreak.protocol.parties.terms import turns

_NOBODY: Final = Address(bytes(19) + b"\x01")


def job_of(cast: Cast) -> Job:
    """A job on the cast's terms, without real parties."""
    return cast.workshop.job(client=_NOBODY, trainer=_NOBODY, nonce=0, terms=cast.terms)


def turns_of(cast: Cast) -> int:
    """The moves of one side in the longest possible game."""
    return turns(job_of(cast), cast.workshop.program)


def bearable(cast: Cast) -> int:
    """The total seconds for which a party can be kept out of the blocks and still do everything in time."""
    job, pace = job_of(cast), cast.pace
    in_a_game = job.clock - pace.sending(turns_of(cast))
    between_heads = job.challenge_window - job.checkpoint_interval * cast.step_seconds - pace.sending(2)
    return max(0, min(in_a_game, between_heads))


class Censor(BlockBuilder):
    """Excludes all transactions of some parties, once, for `seconds` from their transaction number `first` on."""

    victims: frozenset[str]
    seconds: int
    first: int
    """The number of the first excluded transaction, counted from 0."""
    seen: int = 0
    """The victims' transactions so far."""
    began: int | None = None

    def begins(self, pending: Pending) -> bool:  # noqa: ARG002  # for who looks at the transaction
        """Whether to start with this transaction of a victim."""
        return self.seen == self.first

    def on_pending(self, pending: Pending) -> None:
        """Start the censorship at the chosen transaction of a victim."""
        if pending.sender.name in self.victims:
            if self.began is None and self.begins(pending):
                self.began = pending.at
            self.seen += 1

    def order(self, pending: list[Pending], now: int) -> list[Pending]:
        """Everything, or everything except the victims' transactions."""
        if self.began is None or now >= self.began + self.seconds:
            return pending
        return [waiting for waiting in pending if waiting.sender.name not in self.victims]


class Drying(Censor):
    """Makes gas so dear that the accounts of some parties cover no transaction, until their owners fill them.

    What waits for a block is dropped, and nothing is taken. This happens again after it, `times` times in all.
    """

    times: int

    def run(self) -> Process:
        self.world.is_dry = self.dries
        yield from ()

    def dries(self, sender: Participant) -> bool:
        return sender.name in self.victims and self.began is not None and self.world.now < self.began + self.seconds

    def on_pending(self, pending: Pending) -> None:
        """Begin again, with the transaction after the next one."""
        if self.began is not None and pending.at >= self.began + self.seconds and self.times > 1:
            self.began, self.first, self.times = None, self.seen + 1, self.times - 1
        super().on_pending(pending)


def diligent(cast: Cast) -> frozenset[str]:
    """Names of the auditors that do as agreed, whose transactions a censor may hold up."""
    return frozenset(seat.name for seat in cast.auditors if seat.name not in cast.deviations())


def victims_in(cast: Cast, _rng: Random) -> frozenset[str]:
    """The parties to exclude: an honest trainer, or else the honest auditors."""
    return frozenset({base.TRAINER}) if is_trainer_honest(cast) else diligent(cast)


def with_something_to_dispute(cast: Cast, rng: Random) -> None:
    """Adds a cheat for the auditors to find, or an unfounded challenge of an honest trainer."""
    if is_trainer_honest(cast) and rng.random() < 0.5:
        MISTAKEN.join(cast, rng)
    else:
        with_a_cheat(cast, rng)


class Delayer(BlockBuilder):
    """Delays every transaction until the last block in which it is of use to its sender."""

    turns: int
    """Moves of one side in the longest game."""
    pause: int
    """Seconds of delay for transactions without a deadline."""

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


class Shuffler(BlockBuilder):
    """Shuffles the transactions of each block."""

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002
        return self.rng.sample(pending, len(pending))


def _with_two_auditors(cast: Cast, rng: Random) -> None:
    """Adds a second auditor to compete with the first, so that there is something to shuffle."""
    with_a_cheat(cast, rng)
    cast.auditors.append(CastMember(name="another auditor"))


class Dropper(BlockBuilder):
    """Excludes random transactions from blocks, none of them for longer than `longest` seconds."""

    longest: int

    def order(self, pending: list[Pending], now: int) -> list[Pending]:
        """A random part of the waiting transactions, and all that have waited too long."""
        return [waiting for waiting in pending if now - waiting.at >= self.longest or self.rng.random() < 0.5]


class Copying(Scripted):
    """Challenges what another party challenges, and knows only what that party sends."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.victim: bytes | None = None
        self.shown: list[Move] = []
        """The moves that the victim has sent."""

    def reclaims(self, game: PublicGame) -> bool:  # noqa: ARG002
        return True

    def on_pending(self, pending: Pending) -> None:
        """Copy a challenge at once, and note the victim's moves."""
        call, sender = pending.call, pending.sender.key.address
        if call.kind == "challenge" and self.victim is None:
            self.victim = sender
            self.copy_challenge(call)
        elif sender == self.victim and (move := call.move) is not None and self.notes(move):
            self.shown.append(move)
            self.world.notify()

    def copy_challenge(self, call: Call) -> None:
        """Sends the same challenge, with the price of the second game that it starts against the same head."""
        self.world.submit(self, replace(call, value=2 * call.value))

    def notes(self, move: Move) -> bool:  # noqa: ARG002  # for those that look at it
        """Whether it notes a move of the victim."""
        return True

    def can_copy(self, game: PublicGame) -> bool:
        """Whether it is its turn and it knows the victim's move, or the game has ended."""
        made = moves_of(game, Side.CHALLENGER)
        return game.is_stopped or (game.mover() == self.address and len(self.shown) > made)

    def answer(self, proof: Prove) -> bytes | None:
        """The right answer by the victim's proof; None if the proof is invalid."""
        theirs = next(other for other in self.world.board.games.values() if other.challenger == self.victim)
        if theirs.state.phase is not Phase.PROVE:
            return None
        try:
            found = judge(theirs.state, proof)
        except IllegalMove:
            return None  # the victim's proof was forged
        return seals.element_answer(found) if theirs.state.level is Level.CHUNKS else found


# ---------------------------------------------------------------- as a challenger


class Mirror(Copying):
    """Copies each move of an honest challenger of a false run as soon as it is in the mempool."""

    def follow(self, job: PublicJob) -> Process:
        """Play the copied game, if the copied challenge was accepted."""

        def own() -> list[PublicGame]:
            return [game for game in self.world.board.games_of(job.id) if game.challenger == self.address]

        yield from self.until(lambda: job.is_over or bool(own()))
        for game in own():
            yield from self._copy(game)

    def _copy(self, game: PublicGame) -> Process:
        """Make the victim's moves, each in its turn. A refused move is tried again."""
        while not game.is_stopped:
            yield from self.until(partial(self.can_copy, game))
            if not game.is_stopped:
                move = self.copied(game, self.shown[moves_of(game, Side.CHALLENGER)])
                if move is None or not (yield from self.attempt(move_call(game.state, move))):
                    yield from self.sleep(self.world.next_block - self.world.now)

    def copied(self, game: PublicGame, move: Move) -> Move | None:  # noqa: ARG002  # for who does not copy blindly
        """The move to send for the victim's move; None to wait."""
        return move


class Resealing(Mirror):
    """A mirror that seals the answer which a published proof reveals: one block too late."""

    def copied(self, game: PublicGame, move: Move) -> Move | None:
        if isinstance(move, Prove):
            return replace(move, salt=self.secret)
        if not isinstance(move, Select | SelectElement) or move.seal == NO_SEAL:
            return move
        proof = self.shown[-1]
        answer = self.answer(proof) if isinstance(proof, Prove) else None
        return None if answer is None else replace(move, seal=seals.seal(game.id, answer, self.secret))


def with_a_false_run(cast: Cast, rng: Random) -> None:
    """Adds a false run if there is none to challenge."""
    if cast.deviation is None:
        base.ONE_FALSE_SUM.join(cast, rng)


# ---------------------------------------------------------------- as the builder of the blocks


class Copier(Copying, BlockBuilder):
    """Repeats a challenger's game, each move in front of the original and in the same block.

    It copies the seal; or it seals the answer that the proof reveals, and proves in the same block, a clock too early.
    """

    ROLE: ClassVar = BlockBuilder.ROLE
    seals_late: bool = False

    def concerns(self, job: PublicJob) -> bool:  # noqa: ARG002
        """It reacts to other parties' transactions, not to jobs."""
        return False

    def notes(self, move: Move) -> bool:
        return isinstance(move, Select | SelectElement | Prove)

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002
        """Its own transactions come first."""
        return sorted(pending, key=lambda waiting: waiting.sender is not self)

    def copy_challenge(self, call: Call) -> None:
        """Starts a game of its own, and plays it."""
        self.spawn(self._mirror(call))

    def _mirror(self, challenge: Call) -> Process:
        if not (yield from self.attempt(challenge)):
            return
        game = next(game for game in self.world.board.games.values() if game.challenger == self.address)
        yield from self.contest(game)

    def contest(self, game: PublicGame) -> Process:
        """Plays its game with the moves that it has seen."""
        while not game.is_stopped:
            yield from self.until(partial(self.can_copy, game))
            if not game.is_stopped:
                before = self.world.now
                yield from self._copy(game, self.shown[moves_of(game, Side.CHALLENGER)])
                if self.world.now == before:  # nothing can be sent in this block
                    yield from self.sleep(self.world.next_block - before)

    def _copy(self, game: PublicGame, move: Move) -> Process:
        """Sends a copied move untried, and waits if the move fails."""
        if self.seals_late and isinstance(move, Select | SelectElement) and move.seal != NO_SEAL:
            yield from self._seal_late(game, move)
            return
        try:
            yield from self.send(move_call(game.state, move), untried=True)
        except ChainError:
            if not game.is_stopped:
                yield from self.until(lambda: game.is_stopped, game.state.deadline + 1)

    def _seal_late(self, game: PublicGame, move: Select | SelectElement) -> Process:
        """Holds the sealed move back until the victim's proof can be copied too."""
        yield from self.until(lambda: game.is_stopped or isinstance(self.shown[-1], Prove))
        proof = self.shown[-1]
        answer = self.answer(proof) if isinstance(proof, Prove) and not game.is_stopped else None
        if answer is None or not isinstance(proof, Prove):
            return
        sealed = replace(move, seal=seals.seal(game.id, answer, self.secret))
        state = game.state
        try:
            after = apply(state, sealed, self.world.next_block)
        except IllegalMove:
            return  # the victim has talked, and its moves are of another place
        self.world.submit(self, move_call(state, sealed), untried=True)
        yield from self.prove(game, replace(proof, salt=self.secret), after)

    def prove(self, game: PublicGame, proof: Prove, after: GameState) -> Process:
        """Send the proof at once, directly after the seal."""
        if after.phase is Phase.PROVE:
            self.world.submit(self, move_call(after, proof), untried=True)
        yield from self.until(lambda: game.is_stopped)


class Onlooker(Copier):
    """Inserts its own copy of a challenge in front of it, and then makes no move."""

    def contest(self, game: PublicGame) -> Process:
        yield from self.until(lambda: game.is_stopped)


class Withholder(Copier):
    """Leaves the last proof out of the blocks, seals its answer at once, and proves that as soon as that is legal."""

    seals_late = True
    seconds: int
    """The seconds for which it leaves the proof out; the sender can bear less than a clock."""
    seen: int | None = None

    def on_pending(self, pending: Pending) -> None:
        super().on_pending(pending)
        if self.seen is None and self._is_others_proof(pending):
            self.seen = pending.at

    def order(self, pending: list[Pending], now: int) -> list[Pending]:
        """All transactions except others' proofs, which it leaves out for its time."""
        ordered = super().order(pending, now)
        if self.seen is None or now >= self.seen + self.seconds:
            return ordered
        return [waiting for waiting in ordered if not self._is_others_proof(waiting)]

    def _is_others_proof(self, waiting: Pending) -> bool:
        proof = waiting.call.move or waiting.call.entered_proof
        return waiting.sender is not self and isinstance(proof, Prove)

    def prove(self, game: PublicGame, proof: Prove, after: GameState) -> Process:
        """Send the proof in the first block that takes it."""
        if after.phase is Phase.PROVE:
            yield from self.until(lambda: game.is_stopped, after.earliest)
            if not game.is_stopped:
                yield from self.send(move_call(after, proof), untried=True)
        yield from self.until(lambda: game.is_stopped)


class Reporter(BlockBuilder):
    """Takes a report of an equivocation out of the mempool and puts its own copy in front.

    The trainer loses all the same, the client gets its reward back, and the first reporter earns nothing, but loses no
    deposit.
    """

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002
        ordered = []
        for waiting in pending:
            if waiting.call.kind == "reportEquivocation" and waiting.sender is not self:
                ordered.append(self.own(waiting.call))
            ordered.append(waiting)
        return ordered


def _with_an_equivocation(cast: Cast, rng: Random) -> None:
    """Adds a trainer that equivocates, unless the trainer is dishonest already."""
    if is_trainer_honest(cast):
        EQUIVOCATION.join(cast, rng)


_HARMLESS: Final = {Catch.HARMLESS}
# fmt: off
ADVERSARIES: Final = (
    builder("censorship below the clock", Censor, "that the censored side loses a game by its clock", _HARMLESS,
        before=with_something_to_dispute, victims=victims_in, seconds=lambda cast, _: bearable(cast),
        first=between(0, 8)),
    builder("dry accounts", Drying, "that a party gives up what it cannot pay for at once", _HARMLESS,
        before=with_something_to_dispute, victims=victims_in, first=between(0, 8), times=between(1, 3),
        seconds=lambda cast, _: max(0, bearable(cast) // 3 - 2 * cast.block_seconds), seated=True),
    builder("delays to the last moment", Delayer, "time, and that somebody misses a deadline", _HARMLESS,
        turns=lambda cast, _: turns_of(cast), pause=lambda cast, rng: rng.randint(0, cast.terms.clock)),
    builder("reorders at random", Shuffler, "that somebody's transaction reverts", _HARMLESS,
        before=_with_two_auditors),
    # all delays of a game: what a side can bear
    builder("drops and takes up again", Dropper, "that somebody misses a deadline", _HARMLESS,
        longest=lambda cast, _: bearable(cast) // turns_of(cast)),
    challenger("mirror", Mirror, "an honest challenger's reward, without a replay",
        {Catch.UNPAID, Catch.HARMLESS}, before=with_a_false_run),
    challenger("mirror that seals late", Resealing, "an honest challenger's reward, without a replay",
        {Catch.UNPAID, Catch.TIMEOUT, Catch.HARMLESS}, before=with_a_false_run),
    builder("front-run challenge", Onlooker, "to be the first challenger, if that counted",
        {Catch.HARMLESS, Catch.TIMEOUT}),
    builder("front-run proof", Copier, "half of the trainer's stake, without a replay",
        {Catch.REFUSED, Catch.HARMLESS, Catch.TIMEOUT}, seals_late=base.one_of(False, True)),
    builder("withheld proof", Withholder, "half of the trainer's stake, without a replay",
        {Catch.HARMLESS, Catch.TIMEOUT}, before=with_a_false_run, seconds=lambda cast, _: bearable(cast)),
    builder("front-run report", Reporter, "half of the trainer's stake, which the reporter would have got",
        {Catch.HARMLESS, Catch.REFUSED}, before=_with_an_equivocation),
)
# fmt: on
