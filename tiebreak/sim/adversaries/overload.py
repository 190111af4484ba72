"""Many games at once against an honest trainer that has only one machine."""

from dataclasses import replace
from functools import partial
from random import Random
from typing import ClassVar

from tiebreak.protocol.commitments.job import game_id
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game.moves import Phase
from tiebreak.protocol.game.rules import GameState, Level
from tiebreak.protocol.game.sides import Challenger, Party
from tiebreak.protocol.parties.board import PublicGame, PublicJob
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.challengers import seat_challenger
from tiebreak.sim.world import calls
from tiebreak.sim.world.agents import Auditor, GameView, Process, Reply, Scripted, Trainer
from tiebreak.sim.world.cast import Cast
from tiebreak.sim.world.small_task import INTERVAL, STEPS
from tiebreak.sim.world.world import World


class OneMachine(Trainer):
    """An honest trainer that replays one step after the other.

    It keeps the records of segments that it has replayed.
    """

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.busy_until = world.now
        self.replayed: set[tuple[int, int, int]] = set()

    def reply(self, game: GameView) -> Reply:
        """The honest move, once the machine has computed it."""
        plain, state = super().reply(game), game.state
        start = max(self.world.now, self.busy_until)
        self.busy_until = start + self._steps(state) * self.world.step_seconds
        return Reply(move=plain.move, wait=self.busy_until - self.world.now)

    def _steps(self, state: GameState) -> int:
        """The steps of the next move that were not executed before: a segment, a step, or a step up to a value."""
        if state.phase is Phase.DESCEND:
            return 0
        is_segment = state.phase is Phase.OPEN_STEPS
        question = (state.checkpoint, 0, 0) if is_segment else (state.checkpoint, state.step, int(state.phase))
        if question in self.replayed:
            return 0
        self.replayed.add(question)
        return state.job.segment_steps(state.checkpoint) if is_segment else 1


class _Into(Challenger):
    """Walks into the segment of one checkpoint."""

    def __init__(self, challenger: Auditor, game_of: PublicJob, checkpoint: int) -> None:
        super().__init__(challenger.world.workshop.honest(game_of.job).oracle, challenger.secret)
        self.checkpoint = checkpoint

    def pick(self, state: GameState, nodes: object) -> int:  # noqa: ARG002
        """The node above that checkpoint in the run tree; the first node in other trees."""
        if state.level is not Level.RUN:
            return 0
        return self.checkpoint >> state.height - state.levels & (1 << state.levels) - 1


class _Swarm(Scripted):
    """Starts several games at once, each into another segment."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, games: int) -> None:
        super().__init__(world, name, key)
        self.games = games

    def follow(self, job: PublicJob) -> Process:
        yield from self.until(lambda: job.is_over or job.has_final_head)
        head = self.heads_of(job.id)[-1]
        for nonce in range(self.games):
            self.world.submit(self, calls.challenge(job.job, head, nonce))

    def plays(self, game: PublicGame) -> bool:  # noqa: ARG002
        return True

    def party_in(self, game: PublicGame) -> Party:
        """A challenger that walks into the segment with the number of the game."""
        numbers = (game_id(game.head.head, self.domain, self.address, nonce) for nonce in range(self.games))
        return _Into(self, game.job, list(numbers).index(game.id))


class Overload(Adversary):
    """False challenges of every segment at once. Each alone would lose.

    **Not stopped** if the trainer has one machine, and clock plus allowance are too short for the replays of all
    segments one after the other. The trainer loses one game to the clock, and with it its stake. The games that it
    would have won are void, so the challenger gets all its stakes back. A trainer that kept the record of every step
    while it trained need not replay segments.
    """

    name: ClassVar[str] = "all segments challenged at once"
    gain: ClassVar[str] = "half of the stake of an honest trainer that cannot be everywhere"
    role: ClassVar[Role] = Role.CHALLENGER
    caught: ClassVar[frozenset[Catch]] = frozenset()
    open: ClassVar[bool] = True
    games: ClassVar[int] = -(-STEPS // INTERVAL)

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # there is nothing to choose
        """Set terms that a prudent trainer accepts: an allowance for the replay of a segment, and a clock for two more.

        Steps are slower here than elsewhere, so that the clock also leaves time for the blocks of one game.
        """
        cast.step_seconds *= 3
        segment = INTERVAL * cast.step_seconds
        cast.terms = replace(cast.terms, replay_time=segment, clock=2 * segment)
        cast.trainer = OneMachine
        seat_challenger(cast, self.name, partial(_Swarm, games=self.games))


ADVERSARIES: tuple[type[Adversary], ...] = (Overload,)
