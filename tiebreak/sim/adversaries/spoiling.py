"""False defender's moves: what a cheat sends where an honest defender would open its trees.

Each changes one field of the move that follows from the defender's own run, or gives None if it does not apply in the
phase. A *broken tie* ends the game at once; an *illegal* move changes nothing, and the clock runs on.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, TypeVar

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
from tiebreak.protocol.game.sides import Oracle, first_nodes
from tiebreak.protocol.game.state import GameState
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
T = TypeVar("T")
_SIBLINGS: Final = (OpenSteps, OpenValues, OpenTensor, OpenTerms)
_NODES: Final = (Descend, *_SIBLINGS)


def flipped(data: bytes, rng: Random) -> bytes:
    """The same bytes with one bit flipped."""
    place = rng.randrange(8 * len(data))
    changed = bytearray(data)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def one_changed(items: tuple[T, ...], rng: Random, change: Callable[[T], T]) -> tuple[T, ...]:
    """The same items with a random one changed."""
    place = rng.randrange(len(items))
    return (*items[:place], change(items[place]), *items[place + 1 :])


def _one_flipped(digests: tuple[bytes, ...], rng: Random) -> tuple[bytes, ...]:
    return one_changed(digests, rng, lambda digest: flipped(digest, rng))


def _changing(shown: type | tuple[type, ...], field: str, change: Callable[[Any, Random], Any]) -> Spoil:
    """Changes a field of the moves that show it, unless it is empty. `change` may give None for no other value."""

    def spoil(scene: Scene) -> Move | None:
        old = getattr(scene.move, field) if isinstance(scene.move, shown) else None
        new = change(old, scene.rng) if old else None
        return replace(scene.move, **{field: new}) if new else None

    return spoil


# ---------------------------------------------------------------- broken ties

other_nodes: Final = _changing(_NODES, "nodes", _one_flipped)
other_siblings: Final = _changing(_SIBLINGS, "siblings", _one_flipped)
changed_instruction: Final = _changing(OpenTensor, "instruction", flipped)
"""Shows an instruction that is in no program."""
changed_chunk: Final = _changing(OpenChunk, "chunk", flipped)
changed_accumulator: Final = _changing(OpenTerms, "accumulator", flipped)
"""Changes the last partial sum."""


def record_of_another_step(scene: Scene) -> Move | None:
    """Shows the fields of another step's record."""
    if not isinstance(scene.move, OpenValues):
        return None
    state = scene.state
    other = scene.rng.choice([step for step in range(state.job.steps + 1) if step != state.step])
    record = scene.own.record(other)
    return replace(scene.move, state_root=record.state_root, loss_bits=record.loss_bits)


def true_tensor(scene: Scene) -> Move | None:
    """Opens the true tensor where another one was committed. A signed commitment cannot be taken back."""
    move, state = scene.move, scene.state
    if not isinstance(move, OpenTensor) or not move.nodes:
        return None
    return replace(move, nodes=first_nodes(scene.truth.tensor_tree(state.step, state.leaf), state.job))


def other_instruction(scene: Scene) -> Move | None:
    """Shows an instruction of the program from another place, with its siblings."""
    if not isinstance(scene.move, OpenTensor):
        return None
    program = scene.own.program
    other = scene.rng.choice([n for n in range(len(program.body)) if n != scene.state.leaf])
    return replace(scene.move, instruction=program.encoded_at(other), siblings=tuple(program.tree.proof(other)))


def chunk_of_another_length(scene: Scene) -> Move | None:
    """Sends a chunk longer or shorter than the shape says."""
    move = scene.move
    if not isinstance(move, OpenChunk):
        return None
    length = scene.rng.choice([n for n in range(0, CHUNK_BYTES + 1, 4) if n != len(move.chunk)])
    return replace(move, chunk=(move.chunk + bytes(CHUNK_BYTES))[:length])


# ---------------------------------------------------------------- illegal moves

MISCOUNTED: Final[tuple[Spoil, ...]] = (
    # Every node twice, if a message can hold so many; half of the nodes; one sibling more than the tree is deep.
    _changing(_NODES, "nodes", lambda nodes, _: (*nodes, *nodes) if len(nodes) <= MAX_NODES // 2 else None),
    _changing(_NODES, "nodes", lambda nodes, _: nodes[: len(nodes) // 2]),
    _changing(_SIBLINGS, "siblings", lambda siblings, _: (*siblings, siblings[-1])),
)
