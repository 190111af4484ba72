"""Defender's moves that are not what was committed: what a cheat sends where an honest one would open its trees.

Each function makes another move of the one that the defender's own run says, or none where this phase has no place for
it. What the rules do with it, its docstring says: a *broken tie* ends the game at once; an *illegal* move changes
nothing, and the clock runs on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from tiebreak.protocol.game.moves import (
    MAX_NODES,
    Descend,
    Move,
    OpenChunk,
    OpenSteps,
    OpenTensor,
    OpenTerms,
    OpenValues,
)
from tiebreak.protocol.game.rules import GameState
from tiebreak.protocol.game.sides import Oracle, first_nodes
from tiebreak.protocol.hashing import CHUNK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a cheat has before it when it spoils a move."""

    state: GameState
    move: Move
    """What its own run says."""
    own: Oracle
    truth: Oracle
    rng: Random


Spoil = Callable[[Scene], Move | None]
_SHOWS_NODES = (Descend, OpenSteps, OpenValues, OpenTensor, OpenTerms)
_SHOWS_SIBLINGS = (OpenSteps, OpenValues, OpenTensor, OpenTerms)


def flipped(data: bytes, rng: Random) -> bytes:
    """The same bytes but for one bit."""
    place = rng.randrange(8 * len(data))
    changed = bytearray(data)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def _one_flipped(digests: Sequence[bytes], rng: Random) -> tuple[bytes, ...]:
    place = rng.randrange(len(digests))
    return (*digests[:place], flipped(digests[place], rng), *digests[place + 1 :])


# ---------------------------------------------------------------- broken ties


def other_nodes(scene: Scene) -> Move | None:
    """One of the nodes shown is another: a broken tie."""
    move = scene.move
    if isinstance(move, _SHOWS_NODES) and move.nodes:
        return replace(move, nodes=_one_flipped(move.nodes, scene.rng))
    return None


def other_siblings(scene: Scene) -> Move | None:
    """One of the siblings is another: a broken tie."""
    move = scene.move
    if isinstance(move, _SHOWS_SIBLINGS) and move.siblings:
        return replace(move, siblings=_one_flipped(move.siblings, scene.rng))
    return None


def record_of_another_step(scene: Scene) -> Move | None:
    """The fields of the record of another step: a broken tie."""
    if not isinstance(scene.move, OpenValues):
        return None
    state = scene.state
    other = scene.rng.choice([step for step in range(state.job.steps + 1) if step != state.step])
    record = scene.own.record(other)
    return replace(scene.move, state_root=record.state_root, loss_bits=record.loss_bits)


def true_tensor(scene: Scene) -> Move | None:
    """The true tensor, where another one was committed: a broken tie. What is signed cannot be taken back."""
    move, state = scene.move, scene.state
    if not isinstance(move, OpenTensor) or not move.nodes:
        return None
    return replace(move, nodes=first_nodes(scene.truth.tensor_tree(state.step, state.leaf), state.job))


def other_instruction(scene: Scene) -> Move | None:
    """An instruction of the program, with its siblings, of another place: a broken tie."""
    if not isinstance(scene.move, OpenTensor):
        return None
    program = scene.own.program
    other = scene.rng.choice([n for n in range(len(program.body)) if n != scene.state.leaf])
    return replace(scene.move, instruction=program.encoded_at(other), siblings=tuple(program.tree.proof(other)))


def changed_instruction(scene: Scene) -> Move | None:
    """An instruction that is in no program: a broken tie."""
    move = scene.move
    return replace(move, instruction=flipped(move.instruction, scene.rng)) if isinstance(move, OpenTensor) else None


def changed_chunk(scene: Scene) -> Move | None:
    """A chunk with another bit: a broken tie."""
    move = scene.move
    return replace(move, chunk=flipped(move.chunk, scene.rng)) if isinstance(move, OpenChunk) else None


def chunk_of_another_length(scene: Scene) -> Move | None:
    """Some bytes more or less than the shape says: a broken tie."""
    move = scene.move
    if not isinstance(move, OpenChunk):
        return None
    length = scene.rng.choice([n for n in range(0, CHUNK_BYTES + 1, 4) if n != len(move.chunk)])
    return replace(move, chunk=(move.chunk + bytes(CHUNK_BYTES))[:length])


def changed_accumulator(scene: Scene) -> Move | None:
    """Another last partial sum: a broken tie."""
    move = scene.move
    return replace(move, accumulator=flipped(move.accumulator, scene.rng)) if isinstance(move, OpenTerms) else None


# ---------------------------------------------------------------- illegal moves


def too_many_nodes(scene: Scene) -> Move | None:
    """Every node twice: illegal. Of so many that no message holds twice as many, none."""
    move = scene.move
    if isinstance(move, _SHOWS_NODES) and 0 < len(move.nodes) <= MAX_NODES // 2:
        return replace(move, nodes=(*move.nodes, *move.nodes))
    return None


def too_few_nodes(scene: Scene) -> Move | None:
    """Half of them: illegal."""
    move = scene.move
    if isinstance(move, _SHOWS_NODES) and len(move.nodes) > 1:
        return replace(move, nodes=move.nodes[: len(move.nodes) // 2])
    return None


def too_many_siblings(scene: Scene) -> Move | None:
    """One sibling more than the tree is deep: illegal."""
    move = scene.move
    if isinstance(move, _SHOWS_SIBLINGS) and move.siblings:
        return replace(move, siblings=(*move.siblings, move.siblings[-1]))
    return None
