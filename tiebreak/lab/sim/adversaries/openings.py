"""Trainers of false runs that, once challenged, do not open their commitments in time, or open something else.

What they send in place of an honest opening is made by a `Spoil`: it changes one field of the move that follows from
the defender's own run, or gives None if it does not apply in the phase. Such a move is illegal: it changes
nothing, and the clock runs on.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from tiebreak.lab.sim.adversaries import base
from tiebreak.lab.sim.adversaries.base import EARLY, Catch, between, false_sum, trainer
from tiebreak.lab.sim.adversaries.challengers import MISTAKEN
from tiebreak.lab.sim.adversaries.tampering import Cheat, flipped, one_changed, tampered
from tiebreak.lab.sim.world.agents import Process, TrainerAgent
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.chain.calls import Call, move_call
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.game import moves
from tiebreak.protocol.game.messages import MAX_MESSAGE_BYTES, sign
from tiebreak.protocol.game.sides import Oracle, first_nodes
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.parties.player import GameView, Reply
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The facts that a cheat knows when it spoils a move."""

    state: GameState
    move: moves.Move
    """The move that follows from its own run."""
    own: Oracle
    truth: Oracle
    rng: Random


def scene_of(trainer: TrainerAgent, state: GameState, honest: moves.Move) -> Scene:
    job, work = trainer.held()
    truth = trainer.world.workshop.honest(job).oracle
    return Scene(state=state, move=honest, own=work.oracle, truth=truth, rng=trainer.rng)


Spoil = Callable[[Scene], moves.Move | None]
_SIBLINGS: Final = (moves.OpenSteps, moves.OpenValues, moves.OpenTensor, moves.OpenTerms)
_NODES: Final = (moves.Descend, *_SIBLINGS)


def _one_flipped(digests: tuple[bytes, ...], rng: Random) -> tuple[bytes, ...]:
    return one_changed(digests, rng, lambda digest: flipped(digest, rng))


def _changing(shown: type | tuple[type, ...], field: str, change: Callable[[Any, Random], Any]) -> Spoil:
    """Changes a field of the moves that have it, unless it is empty. `change` may return None to leave a value."""

    def spoil(scene: Scene) -> moves.Move | None:
        old = getattr(scene.move, field) if isinstance(scene.move, shown) else None
        new = change(old, scene.rng) if old else None
        return replace(scene.move, **{field: new}) if new else None

    return spoil


# ---------------------------------------------------------------- ties that do not hold

other_nodes: Final = _changing(_NODES, "nodes", _one_flipped)
other_siblings: Final = _changing(_SIBLINGS, "siblings", _one_flipped)
changed_instruction: Final = _changing(moves.OpenTensor, "instruction", flipped)
"""Shows an instruction that is in no program."""
changed_chunk: Final = _changing(moves.OpenChunk, "chunk", flipped)
changed_accumulator: Final = _changing(moves.OpenTerms, "accumulator", flipped)
"""Changes the last partial sum."""


def record_of_another_step(scene: Scene) -> moves.Move | None:
    """Opens a step with the fields of another step's record."""
    if not isinstance(scene.move, moves.OpenValues):
        return None
    state = scene.state
    other = scene.rng.choice([step for step in range(state.job.steps + 1) if step != state.step])
    record = scene.own.record(other)
    return replace(scene.move, state_root=record.state_root, loss_bits=record.loss_bits)


def true_tensor(scene: Scene) -> moves.Move | None:
    """Opens the true tensor where another one was committed. A signed commitment cannot be taken back."""
    move, state = scene.move, scene.state
    if not isinstance(move, moves.OpenTensor) or not move.nodes:
        return None
    return replace(move, nodes=first_nodes(scene.truth.tensor_tree(state.step, state.leaf), state.job))


def other_instruction(scene: Scene) -> moves.Move | None:
    """Opens an instruction at another index of the program, with its siblings."""
    if not isinstance(scene.move, moves.OpenTensor):
        return None
    program = scene.own.program
    other = scene.rng.choice([n for n in range(len(program.body)) if n != scene.state.leaf])
    return replace(scene.move, instruction=program.encoded_at(other), siblings=tuple(program.tree.proof(other)))


def chunk_of_another_length(scene: Scene) -> moves.Move | None:
    """Opens a chunk that is longer or shorter than its tensor's shape allows."""
    move = scene.move
    if not isinstance(move, moves.OpenChunk):
        return None
    length = scene.rng.choice([n for n in range(0, CHUNK_BYTES + 1, 4) if n != len(move.chunk)])
    return replace(move, chunk=(move.chunk + bytes(CHUNK_BYTES))[:length])


# ---------------------------------------------------------------- another number of things

MISCOUNTED: Final[tuple[Spoil, ...]] = (
    # Every node twice, if a message can hold so many; half of the nodes; one sibling more than the tree is deep.
    _changing(_NODES, "nodes", lambda nodes, _: (*nodes, *nodes) if len(nodes) <= moves.MAX_NODES // 2 else None),
    _changing(_NODES, "nodes", lambda nodes, _: nodes[: len(nodes) // 2]),
    _changing(_SIBLINGS, "siblings", lambda siblings, _: (*siblings, siblings[-1])),
)


# ---------------------------------------------------------------- nothing, or too late


class SilentTrainer(TrainerAgent):
    """Answers until `after` moves were made, and then falls silent."""

    after: int

    def answers(self, view: GameView) -> bool:
        return view.state.moves < self.after


class Stalling(TrainerAgent):
    """Makes every move in the last block of its clock."""

    def reply(self, game: GameView) -> Reply:
        return Reply(move=super().reply(game).move, wait=base.stalled(self.world, game))


class LateMover(TrainerAgent):
    """Makes its moves in time; from move `after` on, in the first block after its clock has run out."""

    after: int

    def reply(self, game: GameView) -> Reply:
        plain = super().reply(game)
        if game.state.moves < self.after:
            return plain
        return Reply(move=plain.move, wait=base.first_late(self.world, game.state.deadline), untried=True)


# ---------------------------------------------------------------- something else


class Spoiling(TrainerAgent):
    """Replaces, from move `after` on, the first of its moves that `spoil` can replace, and then falls silent."""

    spoil: Spoil
    after: int

    def reply(self, game: GameView) -> Reply:
        honest = super().reply(game)
        if honest.move is None or game.state.moves < self.after:
            return honest
        other = self.spoil(scene_of(self, game.state, honest.move))
        if other is not None and game.talk is None:
            self.spam([move_call(game.state, other)])
        elif other is not None and game.talk is not None:
            wire = sign(game.talk.next_message(other), self.domain, self.key, None)
            self.world.mail.deliver(game.game, wire, self.account)
            self._send(game.game, wire=wire)
        return honest if other is None else Reply(move=None)


KILOBYTES: Final = (CHUNK_BYTES + 1, 4 << 10, 16 << 10)


class Swollen(TrainerAgent):
    """Opens a chunk, an instruction or a partial sum of `size` bytes, which no message may carry, as a transaction."""

    kind: type
    size: int

    def reply(self, game: GameView) -> Reply:
        honest = super().reply(game)
        move = honest.move
        if move is None or not isinstance(move, self.kind):
            return honest
        self.world.mail.deliver(game.game, self.rng.randbytes(MAX_MESSAGE_BYTES + 1), self.account)
        self.spam([self._swell(move_call(game.state, move))])
        return Reply(move=None)

    def _swell(self, call: Call) -> Call:
        """The same call with `size` bytes in place of the chunk, the instruction or the partial sum."""
        at = 5 if self.kind is moves.OpenTerms else 1
        filled = (*call.arguments[:at], self.rng.randbytes(self.size), *call.arguments[at + 1 :])
        return replace(call, arguments=filled)


class Babbling(TrainerAgent):
    """Sends invalid moves from move `after` on, as messages and as transactions, until its clock has run out."""

    after: int
    times: int
    """The number of times that it repeats the moves. The gas of each is what limits it."""

    def reply(self, game: GameView) -> Reply:
        honest = super().reply(game)
        if game.state.moves < self.after or honest.move is None:
            return honest
        self.spawn(self._babble(game, honest.move))
        return Reply(move=None)

    def _babble(self, game: GameView, honest: moves.Move) -> Process:
        state = game.state
        found = [spoil(scene_of(self, state, honest)) for spoil in MISCOUNTED]
        wrong = [move for move in found if move is not None] or [moves.Descend(nodes=())]  # moves of another phase
        pause = max(self.world.block_seconds, (state.deadline - self.world.now) // self.times)
        while game.game.state is state and not game.game.is_stopped:
            move = self.rng.choice(wrong)
            self.world.submit(self, move_call(state, move), untried=True)
            wire = sign(self.transcript(game.game).next_message(move), self.domain, self.key, None)
            self.world.mail.deliver(game.game, flipped(wire, self.rng), self.account)
            yield from self.sleep(pause)


# ---------------------------------------------------------------- garbage where nothing may be


def _littered(work: Work, tree: str, chosen: int, first: int, end: int, rng: Random) -> Work:
    """The same run with random bytes as the padding leaves `first` to `end` of one of its trees."""
    honest, garbage = getattr(work.oracle, tree), Digest(rng.randbytes(32))

    def littered(number: int) -> Tree:
        found: Tree = honest(number)
        if number != chosen:
            return found
        leaves = [found.node(0, place) for place in range(1 << found.depth)]
        leaves[first:end] = [garbage] * (end - first)
        return Tree(leaves, found.depth)

    setattr(work.oracle, tree, littered)
    return work


def garbage_behind_the_head(workshop: Workshop, job: Job, rng: Random) -> Work:
    """True checkpoints, with garbage behind the last one of a head whose tree is not full."""
    whole = 1 << job.run_depth
    count = rng.choice([count for count in range(1, job.checkpoints + 1) if count < whole])
    return _littered(workshop.honest(job), "run_tree", count, count, whole, rng)


def garbage_behind_the_values(workshop: Workshop, job: Job, rng: Random) -> Work:
    """A state with one entry that is not the value computed for it, and garbage between values and state."""
    program, step = workshop.program, rng.randint(1, job.steps)
    slot = rng.choice([slot for slot, entry in enumerate(program.commits) if entry.dtype is DType.F32])
    leaf = program.leaf_of_commit(slot)
    element = rng.randrange(program.body[program.commits[slot].operands[0].value].numel)
    false = tampered(workshop, job, Cheat(step=step, leaf=leaf, element=element, change=lambda value: value + 1))
    return _littered(false, "value_tree", step, job.body_count, 1 << job.half_depth, rng)


_STEPWISE: Final = false_sum(stepwise=True)


def spoils(name: str, gain: str, *ways: Spoil, early: int = EARLY) -> base.Adversary:
    """A row: a trainer that replaces an opening in one of these ways, from one of its first moves on."""
    return trainer(
        name, Spoiling, gain, {Catch.TIMEOUT}, run=_STEPWISE, spoil=base.one_of(*ways), after=between(0, early)
    )


# fmt: off
ADVERSARIES: Final = (
    trainer("withheld openings", SilentTrainer, "nobody can prove what was never shown", {Catch.TIMEOUT}, run=_STEPWISE,
        after=between(0, EARLY)),
    spoils("openings that do not fold", "a walk that leads away from the lie", other_nodes,
        other_siblings, changed_chunk, changed_accumulator),
    spoils("record of another step", "a step that was honest is judged instead of the false one",
        record_of_another_step, early=0),
    spoils("another tensor than committed", "the lie is taken back when somebody looks", true_tensor,
        chunk_of_another_length),
    spoils("program other than agreed", "a value that is right, of an operation that nobody ordered",
        other_instruction, changed_instruction),
    spoils("openings of another size", "bytes that a challenger must wade through, or a node more than there is",
        *MISCOUNTED),
    trainer("oversized openings", Swollen, "a challenger that chokes on what it has to read", {Catch.TIMEOUT},
        run=_STEPWISE, kind=base.one_of(moves.OpenChunk, moves.OpenTensor, moves.OpenTerms),
        size=base.one_of(*KILOBYTES)),
    trainer("endless openings", Babbling, "a challenger that gives up before the stream does", {Catch.TIMEOUT},
        run=_STEPWISE, after=between(0, EARLY), times=between(10, 30)),
    trainer("garbage behind the head", TrainerAgent, "a head that binds to a continuation which nobody computed",
        {Catch.PADDING}, run=garbage_behind_the_head),
    trainer("garbage behind the values", TrainerAgent, "a walk that ends where there is no operation to judge",
        {Catch.PADDING}, run=base.tried(garbage_behind_the_values)),
    # It loses by its clock if a builder holds up what it has held back for so long.
    trainer("stalled defence of a false run", Stalling, "a challenger that loses patience, or its own clock",
        {Catch.RECOMPUTED, Catch.TIMEOUT}, run=false_sum()),
    trainer("stalled defence of a true run", Stalling, "a wrong challenger's time", {Catch.HARMLESS},
        before=MISTAKEN.join),
    trainer("a move too late", LateMover, "the seconds in which nobody has claimed the timeout yet", {Catch.TIMEOUT},
        run=false_sum(), after=between(0, EARLY)),
)
# fmt: on
