"""Whole games about one element of a very long sum: walked down to four of its terms, judged by the referee."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np
import pytest

from tests.parts import slow_except
from tests.protocol.instructions import F32, committed, reduced, source
from tests.protocol.programs import Body
from tests.protocol.runs import SECRET, Computed, Run, duel, honest, make_job
from tiebreak.protocol.commitments.accumulator_tree import AccumulatorTree
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.records import data_tree, identify, state_tree
from tiebreak.protocol.game.moves import Move, OpenTerms, Side
from tiebreak.protocol.game.rules import GameState, Level, Reason
from tiebreak.protocol.game.sides import Challenger, Defender
from tiebreak.protocol.numbers import float32
from tiebreak.protocol.program.accumulator import decode_for, encode, finish
from tiebreak.protocol.program.isa import Access, MapFunction, SourceKind
from tiebreak.protocol.program.partial_sums import BLOCK_LEAVES
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest

X, W, SUM, NEW = range(4)
STATE = bytes(4)


@cache
def program_of(terms: int) -> Program:
    """w += sum(x[k] * x[terms - 1 - k]), which is the loss too."""
    b = Body()
    b.add(source(SourceKind.DATA, "x", F32, terms))
    b.add(source(SourceKind.STATE, "w", F32))
    b.add(reduced(F32, (), (terms,), Access(X, 0, (1,)), Access(X, terms - 1, (-1,))))
    b.map(MapFunction.ADD, F32, (), W, SUM)
    commit = committed("w", F32, (), NEW)
    program = Program(body=tuple(b.instructions), commits=(commit,))
    program.validate()
    return program


@lru_cache(maxsize=1)
def integers(terms: int) -> np.ndarray:
    """What x holds: numbers whose products and sums are exact in i64."""
    return np.random.default_rng(terms).integers(-4095, 4096, terms)


@lru_cache(maxsize=1)
def data(terms: int) -> bytes:
    return integers(terms).astype("<f4").tobytes()


@lru_cache(maxsize=1)
def data_id(terms: int) -> Digest:
    return identify(F32, (terms,), data(terms))


def job_of(terms: int) -> Job:
    program = program_of(terms)
    return replace(
        make_job(levels=4),
        program_root=program.root,
        body_count=len(program.body),
        state_count=1,
        data_count=1,
        initial_state_root=state_tree({"w": identify(F32, (), STATE)}).root,
        data_root=data_tree({"x": data_id(terms)}).root,
        steps=1,
        checkpoint_interval=1,
    )


class LongRun(Run):
    """One step of that program. A cheat's sum has 2^24 too much from some leaf on."""

    def __init__(self, terms: int, bend_from: int | None = None) -> None:
        super().__init__(job_of(terms), honest, 1)
        self.program = program_of(terms)
        self._terms = terms
        self._bend_from = bend_from
        self._tree = cache(self._make_tree)

    def state(self, step: int) -> dict[str, bytes]:
        return {"w": STATE} if step == 0 else self.computed(step).state

    def data_id(self, name: str) -> Digest:
        return data_id(self._terms)

    def _compute(self, step: int) -> Computed:
        total = finish(decode_for(self.program.body[SUM], self._tree().last))
        new = float32.add(int.from_bytes(STATE, "little"), total).to_bytes(4, "little")
        return Computed((data(self._terms), STATE, total.to_bytes(4, "little"), new), {"w": new})

    def accumulators(self, step: int, value: int, index: int) -> AccumulatorTree:
        assert (step, value, index) == (1, SUM, 0)
        return self._tree()

    def _make_tree(self) -> AccumulatorTree:
        x, i = data(self._terms), self.program.body[SUM]
        true = AccumulatorTree.of(i, 0, [x, x], [F32, F32])
        first = self._bend_from
        if first is None:
            return true

        def bent(number: int) -> bytes:
            found = true.block(number)
            for place in range(max(0, first - number * BLOCK_LEAVES), len(found)):
                held = decode_for(i, found[place])
                found[place] = encode(replace(held, value=held.value + (1 << 298 + 24)))
            return b"".join(found)

        return AccumulatorTree(true.count, bent)


def is_caught_where_it_bends(terms: int, first: int) -> None:
    cheat, true = LongRun(terms, first), LongRun(terms)
    opened: list[Move] = []

    def watch(before: GameState, move: Move, after: GameState) -> None:
        opened.append(move)

    end = duel(cheat, Defender(cheat), Challenger(true, SECRET), on_move=watch)
    assert sum(isinstance(move, OpenTerms) for move in opened) == 1
    assert (end.verdict.winner, end.verdict.reason) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert (end.level, end.leaf, end.position) == (Level.TERMS, SUM, first)
    verdict = duel(true, Defender(true), Challenger(cheat, SECRET)).verdict
    assert verdict.winner is Side.DEFENDER


TERMS = (1 << 20) - 3
LAST = (TERMS - 1) // 4


@pytest.mark.parametrize("first", slow_except([LAST, LAST // BLOCK_LEAVES * BLOCK_LEAVES, 250_000], LAST))
def test_a_lie_in_a_million_terms_is_caught_where_the_sum_bends(first: int, cases: Callable[[], None]) -> None:
    is_caught_where_it_bends(TERMS, first)
    cases()


def test_the_sum_of_a_million_terms_is_the_integer_that_it_is() -> None:
    x = integers(TERMS)
    total = int(x @ x[::-1])
    assert abs(total) > 1 << 24, "large enough to be rounded"
    assert int.from_bytes(LongRun(TERMS).tensor(1, SUM), "little") == float32.from_i64(total)


@pytest.mark.slow
def test_a_lie_in_sixteen_million_terms_is_caught_where_the_sum_bends() -> None:
    is_caught_where_it_bends(1 << 24, 4_150_000)
