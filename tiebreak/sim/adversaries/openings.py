"""Trainers of false runs that, once challenged, do not open their commitments in time, or open something else."""

from collections.abc import Set
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from tiebreak.protocol.chain.calls import Call, move_call
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.game.messages import MAX_MESSAGE_BYTES
from tiebreak.protocol.game.moves import Descend, OpenChunk, OpenTensor, OpenTerms
from tiebreak.protocol.game.sides import Oracle
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree
from tiebreak.sim.adversaries import spoiling
from tiebreak.sim.adversaries.base import Adversary, Catch
from tiebreak.sim.adversaries.challengers import MISTAKEN
from tiebreak.sim.adversaries.cheats import Cheat
from tiebreak.sim.adversaries.deviations import Attempt
from tiebreak.sim.adversaries.forgery import tampered
from tiebreak.sim.adversaries.places import EARLY, FalseSum, between, first_late, one_of, stalled, trainer
from tiebreak.sim.adversaries.spoiling import MISCOUNTED, Scene, Spoil
from tiebreak.sim.world.agents import GameView, Process, Reply, Trainer
from tiebreak.sim.world.work import Bound, Work
from tiebreak.sim.world.workshop import Workshop

# ---------------------------------------------------------------- nothing, or too late


class Silent(Trainer):
    """Answers until `after` moves were made, and then falls silent."""

    after: int

    def answers(self, view: GameView) -> bool:
        return view.state.moves < self.after


class Stalling(Trainer):
    """Makes every move in the last block of its clock."""

    def reply(self, game: GameView) -> Reply:
        return Reply(move=super().reply(game).move, wait=stalled(self.world, game))


class Late(Trainer):
    """Makes its moves in time; from move `after` on, in the first block after its clock has run out."""

    after: int

    def reply(self, game: GameView) -> Reply:
        plain = super().reply(game)
        if game.state.moves < self.after:
            return plain
        return Reply(move=plain.move, wait=first_late(self.world, game.state.deadline), untried=True)


# ---------------------------------------------------------------- something else


class Spoiling(Trainer):
    """From move `after` on, replaces the first of its moves that `spoil` can replace."""

    spoil: Spoil
    after: int

    def reply(self, game: GameView) -> Reply:
        honest = super().reply(game)
        if honest.move is None or game.state.moves < self.after:
            return honest
        job, work = self.held()
        truth = self.world.workshop.honest(job).oracle
        other = self.spoil(Scene(state=game.state, move=honest.move, own=work.oracle, truth=truth, rng=self.rng))
        return honest if other is None else replace(honest, move=other, untried=True)


KILOBYTES: Final = (CHUNK_BYTES + 1, 4 << 10, 16 << 10)


class Swollen(Trainer):
    """Opens a chunk, an instruction or a partial sum of `size` bytes, which no message may carry, as a transaction."""

    kind: type
    size: int

    def reply(self, game: GameView) -> Reply:
        honest = super().reply(game)
        move = honest.move
        if move is None or not isinstance(move, self.kind):
            return honest
        self.world.mail.deliver(game.game, self.rng.randbytes(MAX_MESSAGE_BYTES + 1), game.side, self.account)
        self.spam([self._swell(move_call(game.state, move))])
        return Reply(move=None)

    def _swell(self, call: Call) -> Call:
        """The same call with `size` bytes in place of the chunk, the instruction or the partial sum."""
        at = 2 if self.kind is OpenTerms else 1
        filled = (*call.arguments[:at], self.rng.randbytes(self.size), *call.arguments[at + 1 :])
        return replace(call, arguments=filled)


class Babbling(Trainer):
    """From move `after` on sends invalid moves, as messages and as transactions, until its clock has run out."""

    after: int
    times: int
    """How often it repeats the moves. The gas of each is what limits it."""

    def reply(self, game: GameView) -> Reply:
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
        found = [spoil(scene) for spoil in MISCOUNTED]
        moves = [move for move in found if move is not None] or [Descend(nodes=())]  # moves of another phase
        pause = max(self.world.block_seconds, (state.deadline - self.world.now) // self.times)
        while game.game.state is state and not game.game.is_stopped:
            move = self.rng.choice(moves)
            self.world.submit(self, move_call(state, move), untried=True)
            wire = self.wire(game, move)
            assert wire is not None, "it signs what it says"
            self.world.mail.deliver(game.game, spoiling.flipped(wire, self.rng), game.side, self.account)
            yield from self.sleep(pause)


# ---------------------------------------------------------------- garbage where nothing may be


@dataclass(frozen=True)
class Littered:
    """A run whose trees have garbage behind their last leaf, where they must be empty."""

    work: Attempt


class _LitteredRun(Bound):
    """A run tree with garbage after the last leaf of one head."""

    def __init__(self, job: Job, evidence: Oracle, *, count: int, garbage: bytes) -> None:
        super().__init__(job, evidence)
        self._count, self._garbage = count, Digest(garbage)

    def run_tree(self, count: int) -> Tree:
        """The tree of `count` checkpoints, with its padding replaced by garbage at the chosen count."""
        tree = super().run_tree(count)
        if count != self._count:
            return tree
        leaves = [tree.node(0, place) for place in range(count)]
        return Tree([*leaves, *[self._garbage] * ((1 << tree.depth) - count)], tree.depth)


def garbage_behind_the_head(workshop: Workshop, job: Job, rng: Random) -> Work:
    """True checkpoints, with garbage behind the last one of a head whose tree is not full."""
    counts = [count for count in range(1, job.checkpoints + 1) if count < 1 << job.run_depth]
    run = _LitteredRun(job, workshop.evidence(), count=rng.choice(counts), garbage=rng.randbytes(32))
    return replace(workshop.honest(job), oracle=run)


class _LitteredValues(Bound):
    """A value tree that has garbage in one step, between the values and the state, where it must be empty."""

    def __init__(self, job: Job, evidence: Oracle, *, step: int, garbage: bytes) -> None:
        super().__init__(job, evidence)
        self._step, self._garbage = step, Digest(garbage)

    def value_tree(self, step: int) -> Tree:
        """The value tree, with garbage after the last value of the chosen step."""
        tree, job = super().value_tree(step), self.job
        if step != self._step:
            return tree
        half = 1 << job.half_depth
        leaves = [tree.node(0, place) for place in range(2 * half)]
        leaves[job.body_count : half] = [self._garbage] * (half - job.body_count)
        return Tree(leaves, tree.depth)


def garbage_behind_the_values(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A state with one entry that is not the value computed for it, and garbage between values and state."""
    program, step = workshop.program, rng.randint(1, job.steps)
    slot = rng.choice([slot for slot, entry in enumerate(program.commits) if entry.dtype is DType.F32])
    leaf = program.leaf_of_commit(slot)
    element = rng.randrange(program.body[program.commits[slot].operands[0].value].numel)
    false = tampered(workshop, job, Cheat(step=step, leaf=leaf, element=element, change=lambda value: value + 1))
    assert isinstance(false.oracle, Bound), "a workshop's are"
    return replace(false, oracle=_LitteredValues(job, false.oracle, step=step, garbage=rng.randbytes(32)))


_STEPWISE: Final = FalseSum(stepwise=True)


def spoils(
    name: str, gain: str, *ways: Spoil, caught: Set[Catch] = frozenset({Catch.BROKEN_TIE}), early: int = EARLY
) -> Adversary:
    """A row: a trainer that replaces an opening in one of these ways, from one of its first moves on."""
    return trainer(name, Spoiling, gain, caught, run=_STEPWISE, spoil=one_of(*ways), after=between(0, early))


# fmt: off
ADVERSARIES: Final = (
    trainer("withheld openings", Silent, "nobody can prove what was never shown", {Catch.TIMEOUT}, run=_STEPWISE,
        after=between(0, EARLY)),
    spoils("openings that do not fold", "a walk that leads away from the lie", spoiling.other_nodes,
        spoiling.other_siblings, spoiling.changed_chunk, spoiling.changed_accumulator),
    spoils("record of another step", "a step that was honest is judged instead of the false one",
        spoiling.record_of_another_step, early=0),
    spoils("another tensor than committed", "the lie is taken back when somebody looks", spoiling.true_tensor,
        spoiling.chunk_of_another_length),
    spoils("program other than agreed", "a value that is right, of an operation that nobody ordered",
        spoiling.other_instruction, spoiling.changed_instruction),
    spoils("openings of another size", "bytes that a challenger must wade through, or a node more than there is",
        *MISCOUNTED, caught={Catch.TIMEOUT}),
    trainer("oversized openings", Swollen, "a challenger that chokes on what it has to read", {Catch.BROKEN_TIE},
        run=_STEPWISE, kind=one_of(OpenChunk, OpenTensor, OpenTerms), size=one_of(*KILOBYTES)),
    trainer("endless openings", Babbling, "a challenger that gives up before the stream does", {Catch.TIMEOUT},
        run=_STEPWISE, after=between(0, EARLY), times=between(10, 30)),
    trainer("garbage behind the head", Trainer, "a head that binds to a continuation which nobody computed",
        {Catch.PADDING}, run=Littered(garbage_behind_the_head)),
    trainer("garbage behind the values", Trainer, "a walk that ends where there is no operation to judge",
        {Catch.PADDING}, run=Littered(garbage_behind_the_values)),
    trainer("stalled defence of a false run", Stalling, "a challenger that loses patience, or its own clock",
        run=FalseSum()),
    trainer("stalled defence of a true run", Stalling, "a wrong challenger's time", {Catch.HARMLESS},
        before=MISTAKEN.join),
    trainer("a move too late", Late, "the seconds in which nobody has claimed the timeout yet", {Catch.TIMEOUT},
        run=FalseSum(), after=between(0, EARLY)),
)
# fmt: on
