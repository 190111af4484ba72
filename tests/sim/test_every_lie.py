"""A lie in every kind of instruction of a real program: found at its leaf, and judged as far as the chain goes."""

import random
from collections import Counter

import pytest

from protocol.chain import JobStatus, Reverted
from protocol.isa import MapFunction, Opcode
from sim.adversaries import Cheat
from tests.sim.yard import STEPS, Duel, Yard, any_cheat, assert_caught_at, assert_same_end, is_on_chain, kind_of

ON_CHAIN_MAPS = {MapFunction.DIV, MapFunction.WHERE, MapFunction.MOD}
"""Maps that are fought out on the chain here; each of them is judged there in test_every_instruction."""


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


def sweep(yard: Yard, kinds: set[tuple[str, int]]) -> Counter[bool]:
    """Convicts a lie in each of these kinds; how many of them the contract judged (True) and refused to (False)."""
    rng, left, judged = random.Random(8), set(kinds), Counter[bool]()
    body = yard.program.body
    for leaf in rng.sample(range(len(body)), len(body)):
        i, kind = body[leaf], kind_of(body[leaf])
        result = caught(yard, leaf, rng) if kind in left else None
        if result is None:
            continue
        left.remove(kind)
        if i.opcode != Opcode.MAP or i.function in ON_CHAIN_MAPS or not is_on_chain(yard.program, leaf):
            judged[judge_on_chain(yard, result[0], leaf)] += 1
    yard.assert_solvent()
    assert not left, "every kind of the program leaves a trace somewhere"
    return judged


def judge_on_chain(yard: Yard, duel: Duel, leaf: int) -> bool:
    """Whether the contract can judge this leaf; if so it agrees, else it refuses the last move and holds the stakes."""
    if is_on_chain(yard.program, leaf):
        assert_same_end(yard.settle(duel))
        return True
    with pytest.raises(Reverted) as refused:
        yard.settle(duel)
    assert refused.value.name == "InstructionNotYetOnChain"
    i = yard.program.body[leaf]
    assert tuple(refused.value.values.values()) == (i.opcode, i.function)
    state = yard.market.chain.job_state(duel.agreement.job.id)
    assert (state.status, state.open_games) == (JobStatus.ACTIVE, 1)
    return False


def test_a_lie_in_any_scalar_function_is_found(yard: Yard) -> None:
    judged = sweep(yard, {kind_of(i) for i in yard.program.body if i.opcode == Opcode.MAP})
    assert judged == {True: len(ON_CHAIN_MAPS), False: 3}, "exp, log and tanh are not on the chain yet"


def test_a_lie_in_any_other_instruction_is_found(yard: Yard) -> None:
    kinds = {kind_of(i) for i in yard.program.body if i.opcode != Opcode.MAP}
    families = {name for name, _ in kinds}
    assert families == {family.name for family in Opcode} - {"MAP", "COMMIT"}
    judged = sweep(yard, kinds)
    assert judged == {True: len(kinds) - 2, False: 2}, "random and shuffle are not on the chain yet"


def test_a_lie_in_any_commit_is_found(yard: Yard, cases: object) -> None:
    rng = random.Random(9)
    for slot in range(0, len(yard.program.commits), 3):
        leaf = yard.program.leaf_of_commit(slot)
        result = caught(yard, leaf, rng)
        assert result is not None, "a commit is what is committed"
        cases()  # type: ignore[operator]
    assert judge_on_chain(yard, result[0], leaf)
