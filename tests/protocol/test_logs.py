"""The sparse log tree of a step against a dense one, and malformed logs."""

from collections.abc import Mapping
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.instructions import F32, committed, const
from tests.protocol.logged import entries as entries_of
from tests.vectors.rounding import LARGE, LOSS, PLAIN, PRODUCTS, program
from tiebreak.protocol.commitments import log_tree
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, Entries, LogError, StepLog, sum_kind
from tiebreak.protocol.tags import EMPTY
from tiebreak.protocol.trees import fold

Directions = Mapping[int, Mapping[int, Direction]]
"""Directions by element, by value."""


def log_of(directions: Directions) -> StepLog:
    return StepLog({value: entries_of(directions[value]) for value in sorted(directions) if directions[value]})


# ---------------------------------------------------------------- a naive twin: every word, hashed one by one


def h(tag: bytes, *parts: bytes) -> bytes:
    return sha256(b"".join((tag, *parts))).digest()


def root_of(leaves: list[bytes], depth: int) -> bytes:
    level = leaves + [h(b"tb.empty")] * ((1 << depth) - len(leaves))
    while len(level) > 1:
        level = [h(b"tb.node.", level[k], level[k + 1]) for k in range(0, len(level), 2)]
    return level[0]


def naive_word(codes: Mapping[int, Direction], chunk: int) -> bytes:
    bits = 0
    for element, code in codes.items():
        if element // 128 == chunk:
            bits |= int(code) << 2 * (element % 128)
    return bits.to_bytes(32, "little")


def naive_root(directions: Directions, of: Program) -> bytes:
    leaves = []
    for value, i in enumerate(of.body):
        if sum_kind(i) is None:
            leaves.append(h(b"tb.empty"))
            continue
        chunks = -(-i.numel * 4 // 512)
        words = [naive_word(directions.get(value, {}), chunk) for chunk in range(chunks)]
        depth = max(0, (chunks - 1).bit_length())
        leaves.append(root_of([h(b"tb.lgwrd", w) if any(w) else h(b"tb.empty") for w in words], depth))
    return root_of(leaves, of.half_depth)


def values_of(of: Program) -> st.SearchStrategy[dict[int, dict[int, Direction]]]:
    codes = st.sampled_from([Direction.DOWN, Direction.UP])
    sums = {value: i.numel for value, i in enumerate(of.body) if sum_kind(i) is not None}
    some = {
        value: st.dictionaries(st.integers(0, numel - 1), codes, max_size=min(numel, 12))
        for value, numel in sums.items()
    }
    return st.fixed_dictionaries(some)


@given(values_of(program()))
@settings(max_examples=40)
def test_sparse_log_tree_equals_the_dense_tree(directions: dict[int, dict[int, Direction]]) -> None:
    log = log_of(directions)
    log.check(program(), 1)
    assert log.count == sum(map(len, directions.values()))
    tree = log_tree.LogTree(program(), log)
    assert tree.root == naive_root(directions, program())
    for value, codes in directions.items():
        depth, i = log_tree.depth_of_value(program(), value), program().body[value]
        touched = {element // log_tree.WORD_ELEMENTS for element in codes}
        for chunk in {0, (i.numel - 1) // log_tree.WORD_ELEMENTS, *touched}:
            word = tree.word(value, chunk)
            assert word == naive_word(codes, chunk)
            siblings = tree.proof(value, chunk)
            assert len(siblings) == depth + program().half_depth
            assert fold(log_tree.word_leaf(word), value << depth | chunk, siblings) == tree.root
            for place in range(min(log_tree.WORD_ELEMENTS, i.numel - chunk * log_tree.WORD_ELEMENTS)):
                assert log_tree.code_in(word, place) == codes.get(
                    chunk * log_tree.WORD_ELEMENTS + place, Direction.NONE
                )


@pytest.mark.parametrize("stride", [1, 129])
def test_log_tree_of_a_full_log_equals_the_dense_tree(stride: int) -> None:
    """A log with an entry for each `stride`th element of the largest value."""
    directions = {PLAIN: {k: Direction.UP if k % 3 else Direction.DOWN for k in range(0, LARGE, stride)}}
    assert log_tree.LogTree(program(), log_of(directions)).root == naive_root(directions, program())


def test_log_tree_of_an_empty_log_equals_the_dense_tree() -> None:
    tree = log_tree.LogTree(program(), StepLog())
    assert tree.root == naive_root({}, program())
    assert tree.word(PLAIN, 3) == log_tree.NO_WORD
    assert log_tree.word_leaf(log_tree.NO_WORD) == EMPTY
    assert fold(EMPTY, PLAIN << 3 | 3, tree.proof(PLAIN, 3)) == tree.root
    assert StepLog().count == 0
    StepLog().check(program(), 1)
    without_sums = Program((const(0),), (committed("w", F32, (), 0),))
    assert log_tree.LogTree(without_sums, StepLog()).root == EMPTY


def test_segment_log_tree_commits_to_each_steps_log() -> None:
    roots = [log_tree.LogTree(program(), log_of({LOSS: {0: Direction(1 + k % 2)}})).root for k in range(5)]
    tree = log_tree.logs_tree(roots)
    assert tree.root == root_of(list(roots), 3)
    assert fold(roots[4], 4, tree.proof(4)) == tree.root
    assert log_tree.logs_tree(roots[:1]).root == roots[0]


# ---------------------------------------------------------------- what cannot be a log


def entries(*elements: int, up: int | None = None) -> Entries:
    return Entries(np.array(elements, dtype=np.int64), np.zeros(len(elements) if up is None else up, dtype=np.bool_))


class Twice(dict[int, Entries]):
    """What a file could make that names a value twice."""

    def items(self) -> list[tuple[int, Entries]]:  # type: ignore[override]
        return [(PLAIN, entries(1)), (PLAIN, entries(2))]


FAULTS: dict[str, tuple[Mapping[int, Entries], str, int, int | None]] = {
    "instruction twice": (Twice(), "instruction twice", PLAIN, None),
    "instructions unsorted": (
        {PRODUCTS: entries(0), PLAIN: entries(0)}, f"expected instructions after {PRODUCTS} in order", PLAIN, None),
    "element twice": ({PLAIN: entries(3, 7, 7, 9)}, "element twice", PLAIN, 7),
    "elements unsorted": ({PLAIN: entries(3, 7, 6)}, "unsorted: comes after element 7", PLAIN, 6),
    "element too large": ({PLAIN: entries(0, LARGE)}, f"expected an element below {LARGE}", PLAIN, LARGE),
    "element of a scalar": ({LOSS: entries(1)}, "out of range: expected an element below 1", LOSS, 1),
    "element below zero": ({PLAIN: entries(-1, 5)}, "out of range", PLAIN, -1),
    "a source": ({0: entries(0)}, "expected a sum of f32, which alone is logged", 0, None),
    "a maximum": ({3: entries(0)}, "expected a sum of f32", 3, None),
    "no instruction": ({7: entries(0)}, "expected a sum of f32", 7, None),
    "no entries": ({PLAIN: entries()}, "expected as many directions as elements, at least one, got 0", PLAIN, None),
    "a direction less": ({PLAIN: entries(1, 2, up=1)}, "as many directions as elements", PLAIN, None),
}  # fmt: skip


@pytest.mark.parametrize("what", FAULTS)
def test_log_error_names_step_instruction_and_element(what: str) -> None:
    given_entries, rule, value, element = FAULTS[what]
    with pytest.raises(LogError, match=rule) as caught:
        StepLog(given_entries).check(program(), 12)
    assert (caught.value.step, caught.value.index, caught.value.element) == (12, value, element)
    assert "rounding log of step 12" in str(caught.value)
    assert f"instruction {value}" in str(caught.value)
    assert element is None or f"element {element}" in str(caught.value)


def test_log_error_without_a_position_states_only_the_rule() -> None:
    error = LogError("expected a header, got none")
    assert (str(error), error.rule) == ("rounding log: expected a header, got none", "expected a header, got none")


def test_log_entries_compare_by_content_and_are_unhashable() -> None:
    assert entries(1, 2) == entries(1, 2)
    assert entries(1, 2) != entries(1, 3)
    assert entries(1) != Entries(np.array([1], dtype=np.int64), np.array([True]))
    assert entries(1) != "1"
    assert list(Entries(np.array([4, 9]), np.array([True, False])).directions()) == [
        (4, Direction.UP),
        (9, Direction.DOWN),
    ]
    with pytest.raises(TypeError, match="unhashable"):
        hash(entries(1))
