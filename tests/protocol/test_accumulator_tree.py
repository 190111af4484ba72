"""Accumulator trees computed block by block against trees in memory, and disputes over very long sums."""

import tracemalloc
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from tests.parts import slow_except
from tests.protocol.instructions import F32, committed, reduced, source
from tests.protocol.oracles import Stream
from tests.protocol.programs import Body
from tests.protocol.runs import SECRET, Liar, Run, Setting, duel, make_job, tree_over
from tiebreak.protocol.commitments.accumulator_tree import BLOCKS_HELD, AccumulatorTree
from tiebreak.protocol.game.moves import Move, OpenTerms, Side
from tiebreak.protocol.game.rules import Level, Reason
from tiebreak.protocol.game.sides import Challenger, Defender
from tiebreak.protocol.numbers import float32
from tiebreak.protocol.program.accumulator import BLOCK_HEIGHT, BLOCK_LEAVES, BLOCK_TERMS, decode_for, finish
from tiebreak.protocol.program.isa import Access, MapFunction, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Tag, tagged_hash
from tiebreak.protocol.trees import Tree, empty_root, verify

SIZES = [1, 2, 5, 64, 4095, 4096, 4097, 3 * 4096 + 77]


def encodings(count: int, width: int = 8) -> list[bytes]:
    return [leaf.to_bytes(width, "big") for leaf in range(count)]


def plain(encoded: list[bytes]) -> Tree:
    return Tree([tagged_hash(Tag.ACCUMULATOR, accumulator) for accumulator in encoded])


@pytest.mark.parametrize("count", SIZES)
def test_block_based_tree_equals_a_fully_stored_tree(count: int, cases: Callable[[], None]) -> None:
    encoded = encodings(count)
    tree, kept = tree_over(encoded), plain(encoded)
    assert (tree.count, tree.depth, tree.root) == (kept.count, kept.depth, kept.root)
    stream = Stream(f"accumulator tree {count}")
    for height in range(tree.depth + 1):
        width = 1 << (tree.depth - height)
        for position in {0, width - 1, min(count, width - 1), *(stream.below(width) for _ in range(4))}:
            assert tree.node(height, position) == kept.node(height, position)
            levels = stream.below(min(height, 5) + 1)
            assert tree.below(height, position, levels) == kept.below(height, position, levels)
            cases()
    for leaf in {0, count - 1, *(stream.below(count) for _ in range(4))}:
        assert tree.at(leaf) == encoded[leaf]
        assert tree.proof(leaf) == kept.proof(leaf)
        verify(tree.root, tree.depth, leaf, tagged_hash(Tag.ACCUMULATOR, tree.at(leaf)), tree.proof(leaf))
    assert tree.last == encoded[-1]


def test_blocks_are_recomputed_and_only_a_few_are_cached() -> None:
    asked: list[int] = []
    encoded = encodings(9 * BLOCK_LEAVES)

    def block(number: int) -> bytes:
        asked.append(number)
        return b"".join(encoded[number * BLOCK_LEAVES : (number + 1) * BLOCK_LEAVES])

    tree = AccumulatorTree(len(encoded), block)
    assert asked == list(range(9)), "each once for the root"
    asked.clear()
    tree.below(tree.depth, 0, tree.depth - BLOCK_HEIGHT)
    assert not asked, "what lies above blocks is kept"
    tree.below(BLOCK_HEIGHT, 5, BLOCK_HEIGHT)
    tree.at(5 * BLOCK_LEAVES + 1)
    assert asked == [5], "one block for all that is asked of it"
    for _ in range(2):
        for number in range(BLOCKS_HELD + 1):
            tree.at(number * BLOCK_LEAVES)
    assert asked == [5, *range(BLOCKS_HELD + 1), *range(BLOCKS_HELD + 1)]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_accumulators() -> None:
    count = 64 * BLOCK_LEAVES
    dtypes = (F32, F32)
    same = (Access(0, 0, (0,)), Access(0, 0, (0,)))
    instruction = reduced(F32, (), (4 * count,), *same)
    tracemalloc.start()
    tree = AccumulatorTree.of(instruction, 0, [bytes(4)] * 2, dtypes)
    proofs = [tree.proof(leaf) for leaf in range(0, count, count // 10)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all(len(proof) == 18 for proof in proofs)
    assert peak < 8 << 20 < count * (97 + 32) // 4, "a quarter of the accumulators and their digests would be more"


def test_padding_is_empty_at_every_height_and_needs_no_block() -> None:
    asked: list[int] = []
    whole = b"".join(encodings(BLOCK_LEAVES))

    def block(number: int) -> bytes:
        asked.append(number)
        return whole[: 8 * 2] if number == 4 else whole

    tree = AccumulatorTree(4 * BLOCK_LEAVES + 2, block)
    asked.clear()
    for height in range(tree.depth - 1):
        assert tree.node(height, (1 << tree.depth - height) - 1) == empty_root(height)
    assert not asked
    assert tree.node(1, 2 * BLOCK_LEAVES + 1) == empty_root(1)


def test_leaves_and_nodes_outside_the_tree_are_refused() -> None:
    tree = tree_over(encodings(5))
    for leaf in (-1, 5):
        with pytest.raises(ValueError, match=f"expected a leaf below 5, got {leaf}"):
            tree.at(leaf)
    for height, position in ((-1, 0), (4, 0), (0, 8), (3, 1), (0, -1)):
        with pytest.raises(ValueError, match=f"no node at height {height}, position {position}"):
            tree.node(height, position)


def test_accumulator_encodings_must_have_equal_lengths() -> None:
    with pytest.raises(ValueError, match="expected at least one leaf, got 0"):
        tree_over([])
    for data in (b"", bytes(7)):
        with pytest.raises(ValueError, match=f"expected 3 encodings of one length, got {len(data)} bytes"):
            AccumulatorTree(3, [data].__getitem__)


# ---------------------------------------------------------------- whole games about an element of a very long sum

X, W, SUM, NEW = range(4)
TERMS = 2 * BLOCK_TERMS + 5
LAST = (TERMS - 1) // 4
INTEGERS = np.random.default_rng(TERMS).integers(-4095, 4096, TERMS)
"""What x holds: numbers whose products and sums are exact in i64."""


@cache
def setting() -> Setting:
    """w += sum(x[k] * x[TERMS - 1 - k]), which is the loss too."""
    b = Body()
    b.add(source(SourceKind.DATA, "x", F32, TERMS))
    b.add(source(SourceKind.STATE, "w", F32))
    b.add(reduced(F32, (), (TERMS,), Access(X, 0, (1,)), Access(X, TERMS - 1, (-1,))))
    b.map(MapFunction.ADD, F32, (), W, SUM)
    program = Program(body=tuple(b.instructions), commits=(committed("w", F32, (), NEW),))
    program.validate()
    return Setting("a long sum", program, {"w": bytes(4)}, {"x": INTEGERS.astype("<f4").tobytes()})


JOB = make_job(levels=4, steps=1, interval=1, setting=setting())


class LongRun(Run):
    """Its accumulators come block by block, as those of the product's runs do."""

    def accumulators(self, step: int, value: int, index: int) -> AccumulatorTree:
        i = self.program.body[value]
        operands = [self.tensor(step, access.value) for access in i.operands]
        return AccumulatorTree.of(i, index, operands, self.program.operand_dtypes(i))


FIRST = BLOCK_LEAVES + 900


@pytest.mark.parametrize("first", slow_except([LAST, LAST // BLOCK_LEAVES * BLOCK_LEAVES, FIRST], FIRST))
def test_dispute_over_a_long_sum_ends_at_the_first_false_partial_sum(first: int) -> None:
    cheat, true = Liar(JOB, 1, SUM, bend_from=first, setting=setting()), LongRun(JOB, setting=setting())
    opened: list[Move] = []
    end = duel(cheat, Defender(cheat), Challenger(true, SECRET), on_move=lambda _, move, __: opened.append(move))
    assert sum(isinstance(move, OpenTerms) for move in opened) == 1
    assert (end.verdict.winner, end.verdict.reason) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert (end.level, end.leaf, end.position) == (Level.TERMS, SUM, first)
    assert duel(true, Defender(true), Challenger(cheat, SECRET)).verdict.winner is Side.DEFENDER


def test_long_sum_of_integers_equals_the_rounded_integer() -> None:
    total = int(INTEGERS @ INTEGERS[::-1])
    assert abs(total) > 1 << 24, "large enough to be rounded"
    last = LongRun(JOB, setting=setting()).accumulators(1, SUM, 0).last
    assert finish(decode_for(setting().program.body[SUM], last)) == float32.from_i64(total)
