"""Parties that use up all their time, in heads and in games, and some that use a second more."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import ClassVar

from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.parties.board import PublicJob
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.challengers import CHALLENGED, Mistaken, MistakenChallenge, seat_challenger
from tiebreak.sim.adversaries.false_runs import FalseSum, seat_trainer
from tiebreak.sim.adversaries.waiting import first_late, last_call, stalled
from tiebreak.sim.world.agents import GameView, Reply, Trainer
from tiebreak.sim.world.cast import Cast
from tiebreak.sim.world.world import World

# ---------------------------------------------------------------- in games


class StallingTrainer(Trainer):
    """Makes every move as late as it can."""

    def reply(self, game: GameView) -> Reply:
        """The honest move, at the last moment."""
        return Reply(move=super().reply(game).move, wait=stalled(self.world, game))


class StallingChallenger(Mistaken):
    """Makes every move as late as it can."""

    def reply(self, game: GameView) -> Reply:
        """The move of its own replay, at the last moment."""
        return Reply(move=super().reply(game).move, wait=stalled(self.world, game))


class StalledDefence(Adversary):
    """A false run, defended until the last block of every clock."""

    name: ClassVar[str] = "stalled defence of a false run"
    gain: ClassVar[str] = "a challenger that loses patience, or its own clock"
    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.RECOMPUTED})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # the false number is drawn when it computes
        seat_trainer(cast, self.name, StallingTrainer, false_run=FalseSum())


class StalledTruth(Adversary):
    """A true run with a mistaken challenger, defended until the last block of every clock."""

    name: ClassVar[str] = "stalled defence of a true run"
    gain: ClassVar[str] = "a wrong challenger's time"
    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})

    def join(self, cast: Cast, rng: Random) -> None:
        MistakenChallenge().join(cast, rng)
        seat_trainer(cast, self.name, StallingTrainer)


class StalledChallenge(Adversary):
    """A mistaken challenge, played until the last block of every clock."""

    name: ClassVar[str] = "stalled challenge"
    gain: ClassVar[str] = "delay of the trainer's pay"
    role: ClassVar[Role] = Role.CHALLENGER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.CONCEDED, Catch.RECOMPUTED})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # its mistake is drawn when it replays
        """Its replay contains a mistake, so it plays on as long as it can."""
        seat_challenger(cast, self.name, StallingChallenger)


class _Late(Trainer):
    def __init__(self, world: World, name: str, key: PrivateKey, *, after: int) -> None:
        super().__init__(world, name, key)
        self.after = after

    def reply(self, game: GameView) -> Reply:
        """The honest move; from move `after` on, in the first block that is too late."""
        plain = super().reply(game)
        if game.state.moves < self.after:
            return plain
        return Reply(move=plain.move, wait=first_late(self.world, game.state.deadline), untried=True)


class LateMove(Adversary):
    """A false run, defended in time until one move comes in the first block after the clock has run out."""

    name: ClassVar[str] = "a move too late"
    gain: ClassVar[str] = "the seconds in which nobody has claimed the timeout yet"
    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.TIMEOUT})

    def join(self, cast: Cast, rng: Random) -> None:
        """Draw the move that comes too late."""
        seat_trainer(cast, self.name, partial(_Late, after=rng.randint(0, CHALLENGED)), false_run=FalseSum())


# ---------------------------------------------------------------- with heads


class _Waiting(Trainer):
    """Posts its heads as late as it likes."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, wait: Callable[[World, int], int]) -> None:
        super().__init__(world, name, key)
        self.wait = wait

    def posts_at(self, job: PublicJob, head: SignedHead) -> int:  # noqa: ARG002
        return self.now + self.wait(self.world, job.window_end)


class LastSecondHeads(Adversary):
    """A true run, each of whose heads is posted in the last block of its window."""

    name: ClassVar[str] = "heads at the last second"
    gain: ClassVar[str] = "time, for whatever it uses its machines for meanwhile"
    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.HARMLESS})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # there is nothing to choose
        seat_trainer(cast, self.name, partial(_Waiting, wait=last_call))


class LateHeads(Adversary):
    """A head that comes a block after the client could have given up, which an honest client has done."""

    name: ClassVar[str] = "a head too late"
    gain: ClassVar[str] = "time that was not agreed"
    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.ABANDONED})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # there is nothing to choose
        """The first head is late."""
        seat_trainer(cast, self.name, partial(_Waiting, wait=_a_block_late))


def _a_block_late(world: World, deadline: int) -> int:
    """One block after the first block in which the job could have been abandoned."""
    return first_late(world, deadline) + world.block_seconds


ADVERSARIES: tuple[type[Adversary], ...] = (
    StalledDefence,
    StalledTruth,
    StalledChallenge,
    LateMove,
    LastSecondHeads,
    LateHeads,
)
