"""Block builders that delay and reorder. They see every transaction before it counts.

The rules assume that a transaction gets into a block within the clock. A builder that respects this may order, insert
and delay as it likes. One that does not is outside the assumptions, and nothing is promised against it. It is included
as a weakness, so that one can measure where exactly the promise ends.
"""

from random import Random
from typing import Final

from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.parties.terms import Pace, turns
from tiebreak.sim.adversaries.auditors import moves_of
from tiebreak.sim.adversaries.base import OPEN, Catch
from tiebreak.sim.adversaries.challengers import MISTAKEN
from tiebreak.sim.adversaries.deviations import TRAINER
from tiebreak.sim.adversaries.places import between, builder, is_trainer_honest, with_a_cheat
from tiebreak.sim.world.agents import Builder
from tiebreak.sim.world.cast import Cast, Seat
from tiebreak.sim.world.world import Pending

_NOBODY: Final = Address(bytes(19) + b"\x01")


def _job_of(cast: Cast) -> Job:
    """A job on the cast's terms, without real parties."""
    return cast.workshop.job(client=_NOBODY, trainer=_NOBODY, nonce=0, terms=cast.terms)


def turns_of(cast: Cast) -> int:
    """The moves of one side in the longest possible game."""
    return turns(_job_of(cast), cast.workshop.program)


def bearable(cast: Cast) -> int:
    """The total seconds for which a party can be kept out of the blocks and still do everything in time."""
    job, pace = _job_of(cast), Pace(block_seconds=cast.block_seconds, step_seconds=cast.step_seconds)
    in_a_game = job.clock - pace.sending(turns_of(cast))
    between_heads = job.challenge_window - job.checkpoint_interval * pace.step_seconds - pace.sending(2)
    return max(0, min(in_a_game, between_heads))


class Censor(Builder):
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


def diligent(cast: Cast) -> frozenset[str]:
    """The honest auditors."""
    return frozenset(seat.name for seat in cast.auditors if seat.name not in cast.deviations())


def victims_in(cast: Cast, _rng: Random) -> frozenset[str]:
    """The parties to exclude: an honest trainer, or else the honest auditors."""
    return frozenset({TRAINER}) if is_trainer_honest(cast) else diligent(cast)


def _with_something_to_dispute(cast: Cast, rng: Random) -> None:
    """Adds a cheat for the auditors to find, or an unfounded challenge of an honest trainer."""
    if is_trainer_honest(cast) and rng.random() < 0.5:
        MISTAKEN.join(cast, rng)
    else:
        with_a_cheat(cast, rng)


def _longer_than_all(cast: Cast, _rng: Random) -> int:
    """The seconds of a censorship that outlasts the clock and all windows.

    This breaks the assumption that a transaction gets into a block within the clock, so nothing is promised. The
    censored side loses its stake, or the false head is settled.
    """
    terms = cast.terms
    return 4 * (terms.challenge_window + terms.clock + terms.replay_time)


def _in_a_game(cast: Cast, rng: Random) -> int:
    """One of the victims' transactions in a game, or the challenge."""
    trainer = TRAINER in victims_in(cast, rng)
    return 6 if trainer else rng.randint(0, 2)  # by then it has accepted the job and posted four heads


class Delayer(Builder):
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


class Shuffler(Builder):
    """Shuffles the transactions of each block."""

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002
        return self.rng.sample(pending, len(pending))


def _with_two_auditors(cast: Cast, rng: Random) -> None:
    """Adds a second auditor to compete with the first, so that there is something to shuffle."""
    with_a_cheat(cast, rng)
    cast.auditors.append(Seat(name="another auditor"))


class Dropper(Builder):
    """Excludes random transactions from blocks, none of them for longer than `longest` seconds."""

    longest: int

    def order(self, pending: list[Pending], now: int) -> list[Pending]:
        """A random part of the waiting transactions, and all that have waited too long."""
        return [waiting for waiting in pending if now - waiting.at >= self.longest or self.rng.random() < 0.5]


_HARMLESS: Final = {Catch.HARMLESS}
# fmt: off
ADVERSARIES: Final = (
    builder("censorship below the clock", Censor, "that the censored side loses a game by its clock", _HARMLESS,
        before=_with_something_to_dispute, victims=victims_in, seconds=lambda cast, _: bearable(cast),
        first=between(0, 8)),
    builder("censorship above the clock", Censor, "that the censored side loses a game by its clock", OPEN,
        before=_with_something_to_dispute, victims=victims_in, seconds=_longer_than_all, first=_in_a_game),
    builder("delays to the last moment", Delayer, "time, and that somebody misses a deadline", _HARMLESS,
        turns=lambda cast, _: turns_of(cast), pause=lambda cast, rng: rng.randint(0, cast.terms.clock)),
    builder("reorders at random", Shuffler, "that somebody's transaction reverts", _HARMLESS,
        before=_with_two_auditors),
    # all delays of a game: what a side can bear
    builder("drops and takes up again", Dropper, "that somebody misses a deadline", _HARMLESS,
        longest=lambda cast, _: bearable(cast) // turns_of(cast)),
)
# fmt: on
