"""Dishonest challengers: without ground, in great numbers, or too late."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import ClassVar, Final

from tiebreak.lab.sim.adversaries import base
from tiebreak.lab.sim.adversaries.base import EARLY, Catch, between, challenger, false_sum
from tiebreak.lab.sim.adversaries.tampering import flipped, one_changed
from tiebreak.lab.sim.world.agents import AuditorAgent, Process, Scripted, TrainerAgent
from tiebreak.lab.sim.world.game import Cast
from tiebreak.lab.sim.world.small_task import INTERVAL, STEPS
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.world import World
from tiebreak.protocol.chain.calls import Call, move_call
from tiebreak.protocol.commitments.job import SignedHead, game_id
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game.moves import NO_SEAL, Descend, Move, OpenChunk, Phase, Prove, Select, SelectElement
from tiebreak.protocol.game.sides import Challenger, Oracle, Party
from tiebreak.protocol.game.state import GameState, Level
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import PublicGame, PublicJob
from tiebreak.protocol.parties.player import GameView, Reply

# ---------------------------------------------------------------- without ground


class Mistaken(AuditorAgent):
    """Challenges in good faith with a faulty replay, so that at the end of the game it can prove nothing.

    Under policy `logged` its logs differ too, and with them the records of a whole segment. The walk then goes to the
    segment's first step, whose values agree with the trainer's, so that its proof there supports the trainer's
    commitment.
    """

    wrong: Work | None = None

    def replay(self, job: PublicJob) -> Work:
        """The replay with the mistake. It is made once and stays the same."""
        if self.wrong is None:
            self.wrong = false_sum()(self.world.workshop, job.job, self.rng)
        return self.wrong


class StallingMistaken(Mistaken):
    """Challenges by a wrong replay, and makes every move in the last block of its clock."""

    def reply(self, game: GameView) -> Reply:
        return Reply(move=super().reply(game).move, wait=base.stalled(self.world, game))


class Accusing(AuditorAgent):
    """Challenges a head although its own replay agrees."""

    def accuses(self, head: SignedHead, agrees: bool) -> bool:  # noqa: ARG002
        return True


class SilentChallenger(Accusing):
    """Challenges a true head, and stops answering after move `after`."""

    after: int

    def answers(self, view: GameView) -> bool:
        return view.state.moves < self.after


class Fickle(Accusing):
    """Challenges a true head, and gives up after move `after`."""

    after: int

    def concedes(self, view: GameView) -> bool:
        return view.state.moves >= self.after


class Wandering(Challenger):
    """Walks at random. At the end it proves the truth, which is what the defender committed."""

    def __init__(self, oracle: Oracle, secret: bytes, rng: Random) -> None:
        super().__init__(oracle, secret)
        self.rng = rng

    def pick(self, state: GameState, nodes: Sequence[bytes]) -> int:  # noqa: ARG002
        return self.rng.randrange(len(nodes))

    def pick_element(self, state: GameState, chunk: bytes) -> int:
        return self.rng.randrange(len(chunk) // state.dtype.size)


class Careful(Wandering):
    """Walks at random, but never into padding, so that it arrives at something that can be proved."""

    def pick(self, state: GameState, nodes: Sequence[bytes]) -> int:
        """A random node with at least one leaf that is not padding, if there is one."""
        height, first = state.height - state.levels, state.position << state.levels
        every = range(len(nodes))
        return self.rng.choice([k for k in every if not _is_empty(state, first + k << height)] or every)


def _is_empty(state: GameState, leaf: int) -> bool:
    """Whether a leaf is padding, and with it everything to its right in the tree or half-tree."""
    if state.level is not Level.VALUES:
        return leaf >= state.leaves
    half = 1 << state.job.half_depth
    return leaf >= state.job.body_count if leaf < half else leaf - half >= state.job.state_count


class Wanderer(Accusing):
    """Challenges a true head, and plays random moves to the end."""

    walk: ClassVar[type[Wandering]] = Wandering

    def party_in(self, game: PublicGame) -> Wandering:
        return self.walk(self.world.workshop.honest(game.job.job).oracle, self.secret, self.rng)


def forgeries(proof: Prove, rng: Random) -> Iterator[Prove]:
    """One of each kind of forged proof that can be made of a proof."""
    if proof.chunks:  # the bytes of an operand
        other = one_changed(proof.chunks, rng, lambda chunk: replace(chunk, data=flipped(chunk.data, rng)))
        yield replace(proof, chunks=other)
    if proof.tensors:  # the place of an operand in the program
        yield replace(proof, tensors=one_changed(proof.tensors, rng, lambda one: replace(one, value=one.value ^ 1)))
    if proof.tensors and proof.chunks:  # an opening that nobody needs
        tensors, chunks = (*proof.tensors, rng.choice(proof.tensors)), (*proof.chunks, rng.choice(proof.chunks))
        yield rng.choice((replace(proof, tensors=tensors), replace(proof, chunks=chunks)))
    if proof.witness is not None:  # another tensor of the state or the data
        yield replace(proof, witness=replace(proof.witness, tensor_id=flipped(proof.witness.tensor_id, rng)))
    yield replace(proof, instruction=flipped(proof.instruction, rng))  # an operation that is in no program
    yield replace(proof, salt=rng.randbytes(32))  # a salt that does not belong to the seal


class Strolling(Wanderer):
    """Challenges a true head, and selects at random down to a value that it can prove."""

    walk = Careful


class Forging(Strolling):
    """Walks at random to something that can be proved, and sends every kind of forged proof, but not the true one."""

    def reply(self, game: GameView) -> Reply:
        plain = super().reply(game)
        if not isinstance(plain.move, Prove):
            return plain
        self.spam([move_call(game.state, proof) for proof in forgeries(plain.move, self.rng)])
        return Reply(move=None)


class GarblingChallenger(Wanderer):
    """Challenges a true head, and sends invalid moves before each of its own: the other side's, no node, or no seal."""

    def reply(self, game: GameView) -> Reply:
        plain, state = super().reply(game), game.state
        found: list[Move] = [Descend(nodes=()), OpenChunk(chunk=self.rng.randbytes(8))]
        if isinstance(plain.move, Select):
            move = plain.move
            found.append(replace(move, node=flipped(move.node, self.rng)))
            found.append(replace(move, index=move.index | 1 << 31))
            found.append(replace(move, siblings=(*move.siblings, move.node)))
            if move.seal == NO_SEAL:
                found.append(replace(move, seal=self.rng.randbytes(32)))
        if isinstance(plain.move, SelectElement):
            found.append(replace(plain.move, chunk=flipped(plain.move.chunk, self.rng)))
            found.append(replace(plain.move, index=1 << 31))
        self.spam(move_call(state, move) for move in found)
        return plain


# ---------------------------------------------------------------- in numbers, and too late


class Griefer(Scripted):
    """Challenges the final head every few blocks under new nonces, and leaves each game to the clock."""

    games: int
    late: bool
    """Whether it waits until the window, which keeps the trainer waiting, is almost over."""

    def follow(self, job: PublicJob) -> Process:
        yield from self.until(lambda: job.is_over or job.has_final_head)
        if self.late:
            pause = 20 * self.world.block_seconds
            yield from self.sleep(base.last_call(self.world, job.window_end) - self.rng.randint(0, self.games) * pause)
        heads = self.world.mail.heads_of(job.id)
        for nonce in range(self.games):
            if job.is_over:
                return
            # Of two challenges in one block the second is too cheap.
            second = tx.Challenge(head=heads[-1].head, nonce=nonce)
            yield from self.attempt(Call.of(second, self.world.board.price(job)))
            yield from self.sleep(self.rng.randint(1, 20) * self.world.block_seconds)


def seat_griefers(cast: Cast, rng: Random, name: str, _make: object) -> None:
    """Two or three accounts with two to four games each, all at the beginning or all at the end of the window."""
    late = rng.random() < 0.5
    for _ in range(rng.randint(2, 3)):
        base.seat_challenger(cast, rng, name, base.given(Griefer, games=rng.randint(2, 4), late=late))


class Tardy(Scripted):
    """Challenges after the end of the window, and once more after the job is settled."""

    def follow(self, job: PublicJob) -> Process:
        yield from self.until(lambda: job.is_over or job.has_final_head)
        yield from self.sleep(job.window_end + 1 - self.world.now)
        heads = self.world.mail.heads_of(job.id)
        for known in (heads[0], heads[-1]):
            first = tx.Challenge(head=known.head, nonce=0)
            self.world.submit(self, Call.of(first, self.world.board.price(job)), untried=True)
        yield from self.until(lambda: job.is_over)
        late = tx.Challenge(head=heads[-1].head, nonce=1)
        self.world.submit(self, Call.of(late, self.world.board.price(job)), untried=True)


# ---------------------------------------------------------------- everywhere at once


class OneMachine(TrainerAgent):
    """An honest trainer with one machine: it replays first come, first served.

    It keeps the records of segments, and the values of the steps, that it replayed. So it answers moves without an
    allowance at once.
    """

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.busy_until = world.now
        self.replayed: set[tuple[int, int, int]] = set()

    def reply(self, game: GameView) -> Reply:
        """The honest move, once the machine has computed it."""
        plain, state = super().reply(game), game.state
        if not state.allowance:
            return plain
        start = max(self.world.now, self.busy_until)
        self.busy_until = start + self._steps(state) * self.world.step_seconds
        return Reply(move=plain.move, wait=self.busy_until - self.world.now)

    def _steps(self, state: GameState) -> int:
        """The steps of the next move that were not executed before: a segment, a step, or a step up to a value."""
        is_segment = state.phase is Phase.OPEN_STEPS
        question = (state.checkpoint, 0, 0) if is_segment else (state.checkpoint, state.step, int(state.phase))
        if question in self.replayed:
            return 0
        self.replayed.add(question)
        return state.job.segment_steps(state.checkpoint) if is_segment else 1


class _Into(Challenger):
    """Walks into the segment of one checkpoint."""

    def __init__(self, oracle: Oracle, secret: bytes, checkpoint: int) -> None:
        super().__init__(oracle, secret)
        self.checkpoint = checkpoint

    def pick(self, state: GameState, nodes: object) -> int:  # noqa: ARG002
        """The node above that checkpoint in the run tree; the first node in other trees."""
        if state.level is not Level.RUN:
            return 0
        return self.checkpoint >> state.height - state.levels & (1 << state.levels) - 1


class Swarm(Scripted):
    """Challenges every true segment at once, which takes more replays than one clock and one allowance hold.

    Were an allowance that of one game, the trainer would lose one to the clock, and with it its stake; the other games
    would be void, and the challenger would get all its stakes back.
    """

    games: int = -(-STEPS // INTERVAL)

    def follow(self, job: PublicJob) -> Process:
        yield from self.until(lambda: job.is_over or job.has_final_head)
        head, board = self.heads_of(job.id)[-1], self.world.board
        for nonce in range(self.games):
            one = tx.Challenge(head=head, nonce=nonce)
            self.world.submit(self, Call.of(one, board.price(job, nonce)), untried=True)

    def plays(self, game: PublicGame) -> bool:  # noqa: ARG002
        return True

    def party_in(self, game: PublicGame) -> Party:
        """A challenger that walks into the segment with the number of the game."""
        numbers = (game_id(game.head.head, self.domain, self.address, nonce) for nonce in range(self.games))
        oracle = self.world.workshop.honest(game.job.job).oracle
        return _Into(oracle, self.secret, list(numbers).index(game.id))


def with_one_machine(cast: Cast, _rng: Random) -> None:
    """Seats `OneMachine` on terms that are prudent: an allowance for the replay of a segment, and a clock for two more.

    Steps are slower here than elsewhere, so that the clock also leaves time for the blocks of one game.
    """
    cast.step_seconds *= 3
    segment = INTERVAL * cast.step_seconds
    cast.terms = replace(cast.terms, replay_time=segment, clock=2 * segment)
    cast.trainer = OneMachine


_WRONG: Final = {Catch.CONCEDED, Catch.RECOMPUTED}
_LOST: Final = {Catch.RECOMPUTED, Catch.PADDING}
MISTAKEN: Final = challenger(
    "challenge by a wrong replay", Mistaken, "half of an honest trainer's stake, it believes", _WRONG
)
# fmt: off
ADVERSARIES: Final = (
    MISTAKEN,
    challenger("stalled challenge", StallingMistaken, "delay of the trainer's pay", _WRONG),
    challenger("challenge that walks at random", Wanderer, "a lucky find", _LOST),
    challenger("challenge without moves", SilentChallenger, "the trainer's pay held up, for one transaction",
        {Catch.TIMEOUT}, after=between(0, EARLY)),
    challenger("challenge that is given up", Fickle, "a look at the trainer's trees", {Catch.CONCEDED},
        after=between(0, EARLY)),
    challenger("forged proof", Forging, "an honest trainer convicted by a number that is not in its run",
        {Catch.TIMEOUT}),
    challenger("challenge full of garbage", GarblingChallenger, "a game in a state that no one thought of", _LOST),
    base.row(base.Role.CHALLENGER, seat_griefers, "griefing in series", Griefer,
        "a competitor's trainer that pays for gas and waits for its money", {Catch.TIMEOUT, Catch.REFUSED}),
    challenger("challenge after the window", Tardy, "a job that can never be settled", {Catch.REFUSED}),
    challenger("all segments challenged at once", Swarm,
        "half of the stake of an honest trainer that cannot be everywhere", {Catch.RECOMPUTED},
        before=with_one_machine),
)
# fmt: on
