"""The game in Python and in the contract, move by move: a lie in every kind of instruction, and false challenges."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.chain.duel import Duel, lying_duel, new_job, parties, play
from tests.chain.support import CHALLENGER, TRAINER
from tests.chain.tiny import EVERY, FUNCTIONS, STEPS, Liar, Run, Setting, ordinary_element
from tests.parts import slow_except
from tiebreak.protocol.chain import EmbeddedChain
from tiebreak.protocol.game.moves import Phase, Side
from tiebreak.protocol.game.rules import Level, Reason
from tiebreak.protocol.program.isa import MapFunction, Opcode

LEAVES = [
    *range(len(EVERY.program.body)),
    *(EVERY.program.leaf_of_commit(k) for k in range(len(EVERY.program.commits))),
]
KINDS = {(i.opcode, i.is_reduction and i.terms > 4): k for k in LEAVES for i in [EVERY.program.instruction_at(k)]}
"""A leaf of each opcode, and of each that reduces one with partial sums and one without."""
CALLED = {
    MapFunction(i.function).name: leaf
    for leaf, i in enumerate(FUNCTIONS.program.body)
    if i.opcode == Opcode.MAP and i.function in range(MapFunction.EXP, MapFunction.BF16 + 1)
}
SUM = max(k for k, i in enumerate(EVERY.program.body) if i.is_reduction and i.terms > 4)
LOSS = len(FUNCTIONS.program.body) - 1


def test_the_programs_have_every_kind_of_instruction() -> None:
    kinds = Counter(EVERY.program.instruction_at(leaf).opcode for leaf in LEAVES)
    assert set(kinds) == set(Opcode)
    assert len(LEAVES) > 30
    assert set(CALLED) == {"EXP", "LOG", "TANH", "ERF", "SIN", "COS", "BF16"}


def convicted(chain: EmbeddedChain, setting: Setting, step: int, leaf: int, **options: int) -> Duel:
    """Play a lie to its end; the referee finds it at that leaf, and the challenger is paid."""
    duel, players = lying_duel(chain, setting, step, leaf, **options)  # type: ignore[misc]
    before = chain.credit(CHALLENGER.address)
    play(duel, players)
    verdict = duel.state.verdict
    assert verdict is not None
    assert (verdict.winner, verdict.reason) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert (duel.state.step, duel.state.leaf) == (step, leaf)
    assert chain.credit(CHALLENGER.address) - before == duel.job.challenger_stake + duel.job.trainer_stake // 2
    return duel  # type: ignore[no-any-return]


@pytest.mark.parametrize("leaf", slow_except(LEAVES, SUM, nightly=set(LEAVES) - {*KINDS.values(), LEAVES[-1]}))
def test_a_lie_in_any_instruction_is_convicted(chain: EmbeddedChain, leaf: int) -> None:
    """Every leaf of the program with every kind; the steps take turns, so records come from all three places."""
    job = new_job(EVERY, levels=5)
    steps = [1 + (leaf + k) % STEPS for k in range(STEPS)]
    step = next(step for step in steps if ordinary_element(Run(EVERY, job), step, leaf) is not None)
    duel = convicted(chain, EVERY, step, leaf, levels=5)
    instruction = EVERY.program.instruction_at(leaf)
    expected = Level.VALUES if instruction.opcode in (Opcode.SOURCE, Opcode.COMMIT) else Level.CHUNKS
    if instruction.is_reduction and instruction.terms > 4:
        expected = Level.TERMS
    assert duel.state.level is expected


@pytest.mark.nightly
@pytest.mark.parametrize("name", CALLED)
def test_a_lie_in_any_function_is_convicted(chain: EmbeddedChain, name: str) -> None:
    convicted(chain, FUNCTIONS, 3, CALLED[name], levels=4)


@pytest.mark.parametrize(
    ("leaf", "precision"),
    slow_except([(CALLED["EXP"], 16), (CALLED["ERF"], 20), (CALLED["SIN"], 31), (LOSS, 25)], (CALLED["EXP"], 16),
                several=True),
)  # fmt: skip
def test_jobs_of_less_precision_are_judged_at_it(chain: EmbeddedChain, precision: int, leaf: int) -> None:
    """The lie is one unit in the last place that the job has."""
    duel = convicted(chain, FUNCTIONS, 2, leaf, levels=5, precision=precision)
    assert chain.job_state(duel.job.id).precision == precision


def test_a_sum_to_bfloat16_is_judged_at_it_whatever_the_jobs_precision(chain: EmbeddedChain) -> None:
    duel = convicted(chain, FUNCTIONS, 3, LOSS - 1, levels=5, precision=24, bend_from=50)
    assert (duel.state.level, duel.state.position) == (Level.TERMS, 50)


@pytest.mark.parametrize("levels", slow_except([2, 3, 4, 5], nightly=(3, 4)))
def test_dispute_works_with_any_number_of_levels_per_move(chain: EmbeddedChain, levels: int) -> None:
    """Down all five trees: 75 accumulators of a sum of 300 products; bent in the middle."""
    duel = convicted(chain, FUNCTIONS, 4, LOSS, levels=levels, bend_from=41)
    assert duel.state.level is Level.TERMS
    assert duel.state.position == 41
    depths = sum(-(-depth // levels) for depth in (2, 1, duel.job.half_depth + 1, 7))
    assert len(duel.gas[Phase.SELECT]) == depths


@pytest.mark.parametrize("leaf", slow_except([3, SUM, SUM + 1, LEAVES[-1]], SUM, nightly=(3, SUM + 1)))
def test_a_false_challenge_loses_its_stake(chain: EmbeddedChain, leaf: int) -> None:
    """The challenger is the one whose run is wrong; at the end it has nothing to prove, and concedes."""
    job = new_job(EVERY, levels=1 + leaf % 5)
    honest = Run(EVERY, job)
    duel = Duel(chain, honest, head_count=2)
    before = chain.credit(TRAINER.address)
    play(duel, parties(honest, Liar(EVERY, job, 3, leaf)))
    verdict = duel.state.verdict
    assert verdict is not None
    assert (verdict.winner, verdict.reason) == (Side.DEFENDER, Reason.CONCEDED)
    assert chain.credit(TRAINER.address) - before == job.challenger_stake // 2


@pytest.mark.slow
def test_dispute_move_stays_under_65000_gas(chain: EmbeddedChain, cases: Callable[..., None]) -> None:
    """65,000 gas a move of the binary game: the low end of the best published dispute game.

    Two selections are not held to it: the first and the one at the leaf of the run write what later moves only change.
    """
    duel, players = lying_duel(chain, FUNCTIONS, 4, LOSS, levels=1)
    play(duel, players)
    for phase, first in ((Phase.DESCEND, 0), (Phase.SELECT, 2)):
        assert len(duel.gas[phase]) > 10
        assert max(duel.gas[phase][first:]) <= 65_000
        cases(len(duel.gas[phase]))
