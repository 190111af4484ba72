"""Trainers of false runs that, once challenged, do not open their commitments. They open nothing, or something else."""

from dataclasses import replace
from functools import partial
from random import Random
from typing import ClassVar, Final

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game.messages import MAX_MESSAGE_BYTES
from tiebreak.protocol.game.moves import Descend, OpenChunk, OpenTensor, OpenTerms
from tiebreak.protocol.game.sides import Oracle
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree
from tiebreak.sim.adversaries import spoiling
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.cheats import Cheat
from tiebreak.sim.adversaries.false_runs import FalseSum, seat_trainer
from tiebreak.sim.adversaries.forged_runs import tampered
from tiebreak.sim.adversaries.spoiling import Scene, Spoil
from tiebreak.sim.world.agents import GameView, Process, Reply, Trainer
from tiebreak.sim.world.calls import Call, make_move
from tiebreak.sim.world.cast import Cast, TrainerFactory
from tiebreak.sim.world.work import Bound, Work
from tiebreak.sim.world.workshop import Workshop
from tiebreak.sim.world.world import World

EARLY: Final = 6
"""A deviation may begin at one of the first `EARLY` moves. Every walk to a partial sum is longer."""


class _Opening(Adversary):
    """A trainer of a false run that an honest auditor challenges."""

    role: ClassVar[Role] = Role.TRAINER

    def join(self, cast: Cast, rng: Random) -> None:
        seat_trainer(cast, self.name, self.trainer(rng), false_run=FalseSum(stepwise=True))

    def trainer(self, rng: Random) -> TrainerFactory:
        """Make the factory of the trainer."""
        raise NotImplementedError


# ---------------------------------------------------------------- nothing


class _Silent(Trainer):
    def __init__(self, world: World, name: str, key: PrivateKey, *, after: int) -> None:
        super().__init__(world, name, key)
        self.after = after

    def answers(self, view: GameView) -> bool:
        """Answers until `after` moves were made."""
        return view.state.moves < self.after


class WithheldOpenings(_Opening):
    """Answers until some move, and then falls silent."""

    name: ClassVar[str] = "withheld openings"
    gain: ClassVar[str] = "nobody can prove what was never shown"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.TIMEOUT})

    def trainer(self, rng: Random) -> TrainerFactory:
        """Draw the move at which it falls silent."""
        return partial(_Silent, after=rng.randint(0, EARLY))


# ---------------------------------------------------------------- something else


class Spoiling(Trainer):
    """From move `after` on, replaces the first of its moves that `spoil` can replace."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, spoil: Spoil, after: int) -> None:
        super().__init__(world, name, key)
        self.spoil = spoil
        self.after = after

    def reply(self, game: GameView) -> Reply:
        """The honest move or the spoilt one."""
        honest = super().reply(game)
        if honest.move is None or game.state.moves < self.after:
            return honest
        job, work = self.held()
        truth = self.world.workshop.honest(job).oracle
        other = self.spoil(Scene(state=game.state, move=honest.move, own=work.oracle, truth=truth, rng=self.rng))
        return honest if other is None else replace(honest, move=other, untried=True)


class _Spoilt(_Opening):
    """Sends openings that do not match the commitments."""

    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.BROKEN_TIE})
    spoils: ClassVar[tuple[Spoil, ...]]
    early: ClassVar[int] = EARLY

    def trainer(self, rng: Random) -> TrainerFactory:
        """Draw the way and the move to spoil."""
        return partial(Spoiling, spoil=rng.choice(self.spoils), after=rng.randint(0, self.early))


class OpeningsThatDoNotFold(_Spoilt):
    """Nodes, siblings, chunks or partial sums with one bit changed."""

    name: ClassVar[str] = "openings that do not fold"
    gain: ClassVar[str] = "a walk that leads away from the lie"
    spoils: ClassVar[tuple[Spoil, ...]] = (
        spoiling.other_nodes,
        spoiling.other_siblings,
        spoiling.changed_chunk,
        spoiling.changed_accumulator,
    )


class AnotherRecord(_Spoilt):
    """Opens the record of another step than the disputed one."""

    name: ClassVar[str] = "record of another step"
    gain: ClassVar[str] = "a step that was honest is judged instead of the false one"
    spoils: ClassVar[tuple[Spoil, ...]] = (spoiling.record_of_another_step,)
    early: ClassVar[int] = 0


class AnotherTensor(_Spoilt):
    """The true tensor where a false one was committed, or a chunk of another length."""

    name: ClassVar[str] = "another tensor than committed"
    gain: ClassVar[str] = "the lie is taken back when somebody looks"
    spoils: ClassVar[tuple[Spoil, ...]] = (spoiling.true_tensor, spoiling.chunk_of_another_length)


class AnotherInstruction(_Spoilt):
    """Another instruction than the agreed program has in this place."""

    name: ClassVar[str] = "program other than agreed"
    gain: ClassVar[str] = "a value that is right, of an operation that nobody ordered"
    spoils: ClassVar[tuple[Spoil, ...]] = (spoiling.other_instruction, spoiling.changed_instruction)


# ---------------------------------------------------------------- too much


class MiscountedOpenings(_Spoilt):
    """Too many or too few nodes or siblings. The contract refuses them, and the clock runs on."""

    name: ClassVar[str] = "openings of another size"
    gain: ClassVar[str] = "bytes that a challenger must wade through, or a node more than there is"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.TIMEOUT})
    spoils: ClassVar[tuple[Spoil, ...]] = (
        spoiling.too_many_nodes,
        spoiling.too_few_nodes,
        spoiling.too_many_siblings,
    )


KILOBYTES: Final = (CHUNK_BYTES + 1, 4 << 10, 16 << 10)


class _Swollen(Trainer):
    """Sends an opening with more bytes than any message may carry, as a handmade transaction."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, kind: type, size: int) -> None:
        super().__init__(world, name, key)
        self.kind = kind
        self.size = size

    def reply(self, game: GameView) -> Reply:
        """The swollen call in place of the move, and a swollen message."""
        honest = super().reply(game)
        move = honest.move
        if move is None or not isinstance(move, self.kind):
            return honest
        self.world.mail.deliver(game.game, self.rng.randbytes(MAX_MESSAGE_BYTES + 1), game.side, self.account)
        self.spam([self._swell(make_move(game.state, move))])
        return Reply(move=None)

    def _swell(self, call: Call) -> Call:
        """The same call with `size` bytes in place of the chunk, the instruction or the partial sum."""
        at = 2 if self.kind is OpenTerms else 1
        filled = (*call.arguments[:at], self.rng.randbytes(self.size), *call.arguments[at + 1 :])
        return replace(call, arguments=filled)


class OversizedOpenings(_Opening):
    """Opens a chunk, an instruction or a partial sum of kilobytes."""

    name: ClassVar[str] = "oversized openings"
    gain: ClassVar[str] = "a challenger that chokes on what it has to read"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.BROKEN_TIE})

    def trainer(self, rng: Random) -> TrainerFactory:
        """Draw the opening and its size."""
        return partial(_Swollen, kind=rng.choice((OpenChunk, OpenTensor, OpenTerms)), size=rng.choice(KILOBYTES))


class _Babbling(Trainer):
    """From some move on sends invalid moves, as messages and as transactions, until its clock has run out."""

    def __init__(self, world: World, name: str, key: PrivateKey, *, after: int, times: int) -> None:
        super().__init__(world, name, key)
        self.after = after
        self.times = times
        """How often it repeats the moves. The gas of each is what limits it."""

    def reply(self, game: GameView) -> Reply:
        """Sends invalid moves only."""
        honest = super().reply(game)
        if game.state.moves < self.after or honest.move is None:
            return honest
        self.spawn(self._babble(game, honest))
        return Reply(move=None)

    def _babble(self, game: GameView, honest: Reply) -> Process:
        job, work = self.held()
        state, truth = game.state, self.world.workshop.honest(job).oracle
        assert honest.move is not None
        scene = Scene(state=state, move=honest.move, own=work.oracle, truth=truth, rng=self.rng)
        found = [spoil(scene) for spoil in MiscountedOpenings.spoils]
        moves = [move for move in found if move is not None] or [Descend(nodes=())]  # moves of another phase
        pause = max(self.world.block_seconds, (state.deadline - self.world.now) // self.times)
        while game.state is state and not game.game.is_stopped:
            move = self.rng.choice(moves)
            self.world.submit(self, make_move(state, move), untried=True)
            wire = self.wire(game, move)
            assert wire is not None, "it signs what it says"
            self.world.mail.deliver(game.game, spoiling.flipped(wire, self.rng), game.side, self.account)
            yield from self.sleep(pause)


class EndlessOpenings(_Opening):
    """An endless stream of moves that are refused."""

    name: ClassVar[str] = "endless openings"
    gain: ClassVar[str] = "a challenger that gives up before the stream does"
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.TIMEOUT})

    def trainer(self, rng: Random) -> TrainerFactory:
        """Draw the move at which it starts, and the number of repetitions."""
        return partial(_Babbling, after=rng.randint(0, EARLY), times=rng.randint(10, 30))


# ---------------------------------------------------------------- garbage where nothing may be


class _LitteredRun(Bound):
    """A run tree with garbage after the last leaf of one head."""

    def __init__(self, job: Job, evidence: Oracle, *, count: int, garbage: bytes) -> None:
        super().__init__(job, evidence)
        self._count = count
        self._garbage = garbage

    def run_tree(self, count: int) -> Tree:
        """The tree of `count` checkpoints, with its padding replaced by garbage at the chosen count."""
        tree = super().run_tree(count)
        if count != self._count:
            return tree
        leaves = [tree.node(0, place) for place in range(count)]
        return Tree([*leaves, *[Digest(self._garbage)] * ((1 << tree.depth) - count)], tree.depth)


class GarbageBehindTheHead(Adversary):
    """True checkpoints, with garbage behind the last of them where the run tree must be empty."""

    name: ClassVar[str] = "garbage behind the head"
    gain: ClassVar[str] = "a head that binds to a continuation which nobody computed"
    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.PADDING})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # it is drawn when it computes
        cast.deviation = self
        seat_trainer(cast, self.name, Trainer)

    def work(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """The true run with one false head, before the last: a full tree has no padding to fill."""
        honest = workshop.honest(job)
        counts = [count for count in range(1, job.checkpoints + 1) if count < 1 << job.run_depth]
        run = _LitteredRun(job, workshop.evidence(), count=rng.choice(counts), garbage=rng.randbytes(32))
        return replace(honest, oracle=run)


class _LitteredValues(Bound):
    """A value tree that has garbage in one step, between the values and the state, where it must be empty."""

    def __init__(self, job: Job, evidence: Oracle, *, step: int, garbage: bytes) -> None:
        super().__init__(job, evidence)
        self._step = step
        self._garbage = garbage

    def value_tree(self, step: int) -> Tree:
        """The value tree, with garbage after the last value of the chosen step."""
        tree, job = super().value_tree(step), self.job
        if step != self._step:
            return tree
        half = 1 << job.half_depth
        leaves = [tree.node(0, place) for place in range(2 * half)]
        leaves[job.body_count : half] = [Digest(self._garbage)] * (half - job.body_count)
        return Tree(leaves, tree.depth)


class GarbageBehindTheValues(Adversary):
    """A false state after true values, with garbage between them."""

    name: ClassVar[str] = "garbage behind the values"
    gain: ClassVar[str] = "a walk that ends where there is no operation to judge"
    role: ClassVar[Role] = Role.TRAINER
    caught: ClassVar[frozenset[Catch]] = frozenset({Catch.PADDING})

    def join(self, cast: Cast, rng: Random) -> None:  # noqa: ARG002  # its choices are made when it computes
        cast.deviation = self
        seat_trainer(cast, self.name, Trainer)

    def work(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """A run in which one entry of the state is not the value that was computed for it."""
        program, step = workshop.program, rng.randint(1, job.steps)
        slot = rng.choice([slot for slot, entry in enumerate(program.commits) if entry.dtype is DType.F32])
        leaf = program.leaf_of_commit(slot)
        element = rng.randrange(program.body[program.commits[slot].operands[0].value].numel)
        cheat = Cheat(name=self.name, gain="-", step=step, leaf=leaf, element=element, change=lambda value: value + 1)
        false = tampered(workshop, job, cheat, first_step=step)
        assert isinstance(false.oracle, Bound), "a workshop's are"
        return replace(false, oracle=_LitteredValues(job, false.oracle, step=step, garbage=rng.randbytes(32)))


ADVERSARIES: tuple[type[Adversary], ...] = (
    WithheldOpenings,
    OpeningsThatDoNotFold,
    AnotherRecord,
    AnotherTensor,
    AnotherInstruction,
    MiscountedOpenings,
    OversizedOpenings,
    EndlessOpenings,
    GarbageBehindTheHead,
    GarbageBehindTheValues,
)
