"""Games that are walked to their end once, and players for games that are: random, erratic, full of garbage."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from tests.protocol.runs import SECRET, Liar, Run, duel, lie, make_job, program
from tiebreak.protocol.errors import IllegalMove
from tiebreak.protocol.game import moves
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.rules import GameState
from tiebreak.protocol.game.sides import Challenger, Defender, first_nodes
from tiebreak.protocol.tags import EMPTY, Digest
from tiebreak.protocol.trees import Tree

JOB = make_job()
HONEST = Run(JOB)
REDUCTION = 32
"""A sum of 15 terms: 4 leaves of terms."""
SCATTER = 20
ARGMAX = 16
"""20 terms: 5 leaves, 3 of padding."""
COMMIT = program().leaf_of_commit(1)

Walk = list[tuple[GameState, moves.Move, GameState]]


class Walks(dict[str, Walk]):
    """Every move of an honest challenger's game against each liar, by name; walked when first asked for."""

    def __init__(self, honest: Run, liars: dict[str, Liar]) -> None:
        super().__init__(dict.fromkeys(liars, ()))  # type: ignore[arg-type]
        self._honest, self._liars = honest, liars

    def __getitem__(self, name: str) -> Walk:
        if not super().__getitem__(name):
            self[name] = walk(self._liars[name], self._honest)
        return super().__getitem__(name)

    def values(self) -> Iterator[Walk]:  # type: ignore[override]
        return (self[name] for name in self)


def walk(liar: Run, honest: Run) -> Walk:
    made: Walk = []
    duel(liar, Defender(liar), Challenger(honest, SECRET), on_move=lambda *x: made.append(x))
    return made


WALKS = Walks(
    HONEST,
    {
        "terms": Liar(JOB, 4, ARGMAX, 0, bend_from=1),
        "element": Liar(JOB, 3, 24, 299),
        "state source": Liar(JOB, 3, 3),
        "state source in a segment": Liar(JOB, 4, 3),
        "state source in the first step": Liar(JOB, 1, 3),
        "data source": Liar(JOB, 4, 0),
        "constant": Liar(JOB, 4, 5),
        "commit": Liar(JOB, 4, COMMIT),
        "segment of one step": Liar(JOB, 5, 24, 3),
    },
)


def at(name: str, phase: moves.Phase, walks: Walks = WALKS) -> tuple[GameState, moves.Move]:
    """A state of a walk in which a move of this kind is due, and the move that was made."""
    return next((state, move) for state, move, _ in walks[name] if state.phase is phase)


def other(digest: bytes) -> bytes:
    return bytes([digest[0] ^ 1]) + digest[1:]


def check_invariants(before: GameState, move: moves.Move, after: GameState) -> None:
    """Invariants 2, 3, 5 and 8, over one move."""
    assert isinstance(move, moves.Concede) or (move.KIND, move.KIND.mover) == (before.phase, before.mover)
    assert 0 <= after.position < 1 << 64
    assert 0 <= after.height <= 64
    assert after.defender_rest <= before.defender_rest
    assert after.challenger_rest <= before.challenger_rest
    charged = max(0, after.last - before.last - before.allowance)
    rests = before.defender_rest + before.challenger_rest
    assert after.defender_rest + after.challenger_rest + charged == rests
    assert (after.verdict is None) == (after.phase is not moves.Phase.OVER)


class RandomChallenger(Challenger):
    """Legal moves at random, some with a seal of nothing; what it proves is true, since only true openings verify."""

    def __init__(self, oracle: Run, random: Random) -> None:
        super().__init__(oracle, SECRET)
        self._random = random

    def pick(self, state: GameState, nodes: Sequence[bytes]) -> int:
        return self._random.randrange(len(nodes))

    def pick_element(self, state: GameState, chunk: bytes) -> int:
        return self._random.randrange(len(chunk) // state.dtype.size)

    def move(self, state: GameState, answered: moves.Move | None) -> moves.Move:
        move = super().move(state, answered)
        if isinstance(move, moves.Select | moves.SelectElement) and self._random.random() < 0.1:
            spoiled = replace(move, seal=self._random.randbytes(32))
            with contextlib.suppress(IllegalMove):
                game.apply(state, spoiled, state.last)
                return spoiled
        return move


class Garbage(Run):
    """A cheat that commits to random leaves, at places that are used and at places that must be empty."""

    def __init__(self, run: Run, random: Random) -> None:
        super().__init__(run.job, lie(4, 33), 4, logs=run.logs)
        self._random = random
        self._kept: dict[tuple[str, int], Tree] = {}

    def _spoil(self, key: tuple[str, int], tree: Tree, keep: set[int], width: int) -> Tree:
        if key not in self._kept:
            leaves = [tree.node(0, k) for k in range(1 << tree.depth)]
            for _ in range(self._random.randrange(4)):
                place = self._random.randrange(width)
                if place not in keep:
                    leaves[place] = Digest(self._random.choice([EMPTY, self._random.randbytes(32)]))
            self._kept[key] = Tree(leaves, tree.depth)
        return self._kept[key]

    def run_tree(self, count: int) -> Tree:
        tree = super().run_tree(count)
        return self._spoil(("run", count), tree, set(), 1 << tree.depth)

    def steps_tree(self, checkpoint: int) -> Tree:
        tree = super().steps_tree(checkpoint)
        return self._spoil(("steps", checkpoint), tree, {self.job.segment_steps(checkpoint) - 1}, 1 << tree.depth)

    def value_tree(self, step: int) -> Tree:
        half = 1 << self.job.half_depth
        return self._spoil(("values", step), super().value_tree(step), {self.job.body_count - 1}, half)


class Erratic(Defender):
    """Sometimes has something else to show than its own trees, of the right shape; it gives up if that does not tie."""

    def __init__(self, oracle: Run, random: Random) -> None:
        super().__init__(oracle)
        self._random = random

    def opening(self, state: GameState) -> moves.Move:
        move, choice = super().opening(state), self._random.random()
        noise = self._random.randbytes(32)
        if state.job.is_logged and choice > 0.85:
            if isinstance(move, moves.OpenSteps):
                return replace(move, log_root=noise)
            if isinstance(move, moves.OpenValues):
                return replace(move, step_log=noise)
            if isinstance(move, moves.OpenChunk) and move.siblings:
                return replace(move, word=noise)
        if choice > 0.05:
            return move
        if isinstance(move, moves.Descend):
            return replace(move, nodes=(*move.nodes[:-1], noise))
        if isinstance(move, moves.OpenSteps):
            leaves = [self._random.randbytes(32) for _ in range(state.job.segment_steps(state.checkpoint))]
            tree = Tree([*leaves[:-1], state.node])
            return replace(move, nodes=first_nodes(tree, state.job), siblings=tuple(tree.proof(len(leaves) - 1)))
        if isinstance(move, moves.OpenChunk):
            return replace(move, chunk=self._random.randbytes(len(move.chunk)))
        return move
