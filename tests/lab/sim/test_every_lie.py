"""A lie in every kind of instruction of a real program: found at its leaf, and judged on chain."""

import random
from collections import Counter

import pytest

from tests.lab.sim.yard import STEPS, Duel, Yard, any_cheat, assert_caught_at, assert_same_end, kind_of
from tiebreak.lab.sim.adversaries.tampering import Cheat
from tiebreak.protocol.program.isa import TRANSCENDENTALS, MapFunction, Opcode

ON_CHAIN_MAPS = {MapFunction.DIV, MapFunction.WHERE, MapFunction.MOD, *TRANSCENDENTALS}
"""Maps that are fought out on the chain here; each of them is judged there in `tests/chain/test_duel.py`."""


def caught(yard: Yard, leaf: int, rng: random.Random) -> tuple[Duel, Cheat] | None:
    """A duel over a tampered element of this leaf; None if a few elements at a few steps leave no trace.

    The last step is one of them: the loss beside the body stands in the record of a checkpoint only.
    """
    for step in (*(rng.randint(1, STEPS) for _ in range(6)), STEPS):
        cheat = any_cheat(yard.program, leaf, step=step, rng=rng)
        duel = yard.duel(cheat)
        if duel is not None:
            assert_caught_at(duel.match, cheat)
            return duel, cheat
    return None


def sweep(yard: Yard, kinds: set[tuple[str, int]]) -> Counter[tuple[str, int]]:
    """Convicts a lie in each of these kinds; those that the contract judged too."""
    rng, left, judged = random.Random(8), set(kinds), Counter[tuple[str, int]]()
    body = yard.program.body
    for leaf in rng.sample(range(len(body)), len(body)):
        i, kind = body[leaf], kind_of(body[leaf])
        result = caught(yard, leaf, rng) if kind in left else None
        if result is None:
            continue
        left.remove(kind)
        if i.opcode != Opcode.MAP or i.function in ON_CHAIN_MAPS:
            assert_same_end(yard.settle(result[0]))
            judged[kind] += 1
    assert not left, "every kind of the program leaves a trace somewhere"
    return judged


@pytest.mark.slow
def test_a_lie_in_any_scalar_function_is_found(yard: Yard) -> None:
    kinds = {kind_of(i) for i in yard.program.body if i.opcode == Opcode.MAP}
    judged = sweep(yard, kinds)
    assert judged == Counter(kind for kind in kinds if kind[1] in ON_CHAIN_MAPS)
    assert {kind[1] for kind in judged} >= {MapFunction.EXP, MapFunction.LOG, MapFunction.TANH}


@pytest.mark.slow
def test_a_lie_in_any_other_instruction_is_found(yard: Yard) -> None:
    kinds = {kind_of(i) for i in yard.program.body if i.opcode != Opcode.MAP}
    families = {name for name, _ in kinds}
    assert families == {family.name for family in Opcode} - {"MAP", "COMMIT"}
    assert sweep(yard, kinds) == Counter(kinds)


def test_a_lie_in_any_commit_is_found(yard: Yard, cases: object) -> None:
    rng = random.Random(9)
    for slot in range(0, len(yard.program.commits), 3):
        leaf = yard.program.leaf_of_commit(slot)
        result = caught(yard, leaf, rng)
        assert result is not None, "a commit is what is committed"
        cases()  # type: ignore[operator]
    assert_same_end(yard.settle(result[0]))
