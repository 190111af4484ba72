"""Many games at once against an honest trainer that has one machine."""

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
    """Honest. Replays one after the other, and keeps the records of a segment that it has replayed once."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.busy_until = world.now
        self.replayed: set[tuple[int, int, int]] = set()

    def reply(self, game: GameView) -> Reply:
        """As agreed, once its machine has come to it."""
        plain, state = super().reply(game), game.state
        start = max(self.world.now, self.busy_until)
        self.busy_until = start + self._steps(state) * self.world.step_seconds
        return Reply(move=plain.move, wait=self.busy_until - self.world.now)

    def _steps(self, state: GameState) -> int:
        """Steps that it has to execute for its next move and did not yet: a segment, a step, a step up to a value."""
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
        """The node above that checkpoint; in other trees the first."""
        if state.level is not Level.RUN:
            return 0
        return self.checkpoint >> state.height - state.levels & (1 << state.levels) - 1


class _Swarm(Scripted):
    """Some games at once, each into another segment."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, games: int) -> None:
        super().__init__(world, name, key)
        self.games = games

    def follow(self, job: PublicJob) -> Process:
        """Against the final head."""
        yield from self.until(lambda: job.is_over or job.has_final_head)
        head = self.heads_of(job.id)[-1]
        for nonce in range(self.games):
            self.world.submit(self, calls.challenge(job.job, head, nonce))

    def plays(self, game: PublicGame) -> bool:  # noqa: ARG002
        """All of them."""
        return True

    def party_in(self, game: PublicGame) -> Party:
        """One that walks into the segment whose number the game has."""
        numbers = (game_id(game.head.head, self.domain, self.address, nonce) for nonce in range(self.games))
        return _Into(self, game.job, list(numbers).index(game.id))


class Overload(Adversary):
    """False challenges of every segment at once. Each alone would lose.

    **Not stopped** where a clock and an allowance do not hold the replays of all segments, one after the other, and the
    trainer has one machine. It loses one game to the clock, and with it its stake; the games that it would have won
    are void, so that the challenger gets all its stakes back. A trainer that kept the record of every step when it
    trained need not replay segments.
    """

    name: ClassVar[str] = "all segments challenged at once"
    gain: ClassVar[str] = "half of the stake of an honest trainer that cannot be everywhere"
    role: ClassVar[Role] = Role.CHALLENGER
    caught: ClassVar[frozenset[Catch]] = frozenset()
    open: ClassVar[bool] = True
    games: ClassVar[int] = -(-STEPS // INTERVAL)

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # there is nothing to choose
        """On terms that a prudent trainer takes: an allowance for the replay of a segment, a clock for two more.

        Steps are slower here than elsewhere, so that the clock also holds the blocks of one game.
        """
        cast.step_seconds *= 3
        segment = INTERVAL * cast.step_seconds
        cast.terms = replace(cast.terms, replay_time=segment, clock=2 * segment)
        cast.trainer = OneMachine
        seat_challenger(cast, self.name, partial(_Swarm, games=self.games))


ADVERSARIES: tuple[type[Adversary], ...] = (Overload,)
