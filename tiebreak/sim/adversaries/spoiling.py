"""False defender's moves: what a cheat sends where an honest defender would open its trees.

Each function changes the move that follows from the defender's own run, or returns None if it does not apply in the
phase. The docstrings say how the rules react: a *broken tie* ends the game at once; an *illegal* move changes nothing,
and the clock runs on.
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
    """What a cheat knows when it spoils a move."""

    state: GameState
    move: Move
    """The move that follows from its own run."""
    own: Oracle
    truth: Oracle
    rng: Random


Spoil = Callable[[Scene], Move | None]
_SHOWS_NODES = (Descend, OpenSteps, OpenValues, OpenTensor, OpenTerms)
_SHOWS_SIBLINGS = (OpenSteps, OpenValues, OpenTensor, OpenTerms)


def flipped(data: bytes, rng: Random) -> bytes:
    """The same bytes with one bit flipped."""
    place = rng.randrange(8 * len(data))
    changed = bytearray(data)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def _one_flipped(digests: Sequence[bytes], rng: Random) -> tuple[bytes, ...]:
    place = rng.randrange(len(digests))
    return (*digests[:place], flipped(digests[place], rng), *digests[place + 1 :])


# ---------------------------------------------------------------- broken ties


def other_nodes(scene: Scene) -> Move | None:
    """Changes one of the nodes shown: a broken tie."""
    move = scene.move
    if isinstance(move, _SHOWS_NODES) and move.nodes:
        return replace(move, nodes=_one_flipped(move.nodes, scene.rng))
    return None


def other_siblings(scene: Scene) -> Move | None:
    """Changes one of the siblings: a broken tie."""
    move = scene.move
    if isinstance(move, _SHOWS_SIBLINGS) and move.siblings:
        return replace(move, siblings=_one_flipped(move.siblings, scene.rng))
    return None


def record_of_another_step(scene: Scene) -> Move | None:
    """Shows the fields of another step's record: a broken tie."""
    if not isinstance(scene.move, OpenValues):
        return None
    state = scene.state
    other = scene.rng.choice([step for step in range(state.job.steps + 1) if step != state.step])
    record = scene.own.record(other)
    return replace(scene.move, state_root=record.state_root, loss_bits=record.loss_bits)


def true_tensor(scene: Scene) -> Move | None:
    """Opens the true tensor where another one was committed: a broken tie. A signed commitment cannot be taken back."""
    move, state = scene.move, scene.state
    if not isinstance(move, OpenTensor) or not move.nodes:
        return None
    return replace(move, nodes=first_nodes(scene.truth.tensor_tree(state.step, state.leaf), state.job))


def other_instruction(scene: Scene) -> Move | None:
    """Shows an instruction of the program from another place, with its siblings: a broken tie."""
    if not isinstance(scene.move, OpenTensor):
        return None
    program = scene.own.program
    other = scene.rng.choice([n for n in range(len(program.body)) if n != scene.state.leaf])
    return replace(scene.move, instruction=program.encoded_at(other), siblings=tuple(program.tree.proof(other)))


def changed_instruction(scene: Scene) -> Move | None:
    """Shows an instruction that is in no program: a broken tie."""
    move = scene.move
    return replace(move, instruction=flipped(move.instruction, scene.rng)) if isinstance(move, OpenTensor) else None


def changed_chunk(scene: Scene) -> Move | None:
    """Flips a bit of a chunk: a broken tie."""
    move = scene.move
    return replace(move, chunk=flipped(move.chunk, scene.rng)) if isinstance(move, OpenChunk) else None


def chunk_of_another_length(scene: Scene) -> Move | None:
    """Sends a chunk longer or shorter than the shape says: a broken tie."""
    move = scene.move
    if not isinstance(move, OpenChunk):
        return None
    length = scene.rng.choice([n for n in range(0, CHUNK_BYTES + 1, 4) if n != len(move.chunk)])
    return replace(move, chunk=(move.chunk + bytes(CHUNK_BYTES))[:length])


def changed_accumulator(scene: Scene) -> Move | None:
    """Changes the last partial sum: a broken tie."""
    move = scene.move
    return replace(move, accumulator=flipped(move.accumulator, scene.rng)) if isinstance(move, OpenTerms) else None


# ---------------------------------------------------------------- illegal moves


def too_many_nodes(scene: Scene) -> Move | None:
    """Shows every node twice: illegal. None if no message could hold that many nodes."""
    move = scene.move
    if isinstance(move, _SHOWS_NODES) and 0 < len(move.nodes) <= MAX_NODES // 2:
        return replace(move, nodes=(*move.nodes, *move.nodes))
    return None


def too_few_nodes(scene: Scene) -> Move | None:
    """Shows only half of the nodes: illegal."""
    move = scene.move
    if isinstance(move, _SHOWS_NODES) and len(move.nodes) > 1:
        return replace(move, nodes=move.nodes[: len(move.nodes) // 2])
    return None


def too_many_siblings(scene: Scene) -> Move | None:
    """Shows one sibling more than the tree is deep: illegal."""
    move = scene.move
    if isinstance(move, _SHOWS_SIBLINGS) and move.siblings:
        return replace(move, siblings=(*move.siblings, move.siblings[-1]))
    return None
