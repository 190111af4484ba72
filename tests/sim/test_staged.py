"""Disputes over a run of a million steps of which one is real."""

from dataclasses import replace

import pytest

from benchmarks.million_steps import StagedEvidence, StagedForgery, StagedRun, dispute, made_up
from tests.sim.yard import make_task, sums_of
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.compile import compile_task
from tiebreak.engine.run.agreement import Terms
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.rules import Level, Reason
from tiebreak.sim.adversaries.tampering import Cheat, Tampered, flipped_weight_bit, low_precision_sum
from tiebreak.sim.games.disputes import ChainMatch, Market

STEPS, INTERVAL, STEP = 1_000_000, 1000, 654_321


class Stage:
    """Both parties of a job of a million steps."""

    def __init__(self) -> None:
        self.market = Market()
        self.compiled = compile_task(replace(make_task(), steps=STEPS, checkpoint_interval=INTERVAL))
        self.interpreter = Interpreter(self.compiled.program, Arithmetic())
        terms = Terms(descent_levels=5)
        self.job = self.market.draft(self.compiled, steps=STEPS, checkpoint_interval=INTERVAL, terms=terms)

    def run(self, party: bytes, job: Job | None = None, step: int = STEP) -> StagedRun:
        compiled = self.compiled
        return StagedRun(
            job=job or self.job,
            program=compiled.program,
            step=step,
            state_before=compiled.state,
            inputs=compiled.data,
            party=party,
        )

    def play(self, cheat: Cheat, job: Job, *, honest_trainer: bool = False) -> ChainMatch:
        forgery = StagedForgery(self.run(b"lie", job), Tampered(self.interpreter, cheat.tamper))
        honest = StagedEvidence(self.run(b"truth", job), self.interpreter)
        defender, challenger = (honest, forgery) if honest_trainer else (forgery, honest)
        return dispute(self.market, job, defender, challenger)


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage()


@pytest.mark.slow
@pytest.mark.parametrize("levels", [1, 5])
def test_a_false_sum_among_a_million_steps(stage: Stage, levels: int) -> None:
    leaf = sums_of(stage.compiled.program, 12)[0]
    cheat = low_precision_sum(step=STEP, leaf=leaf, element=7)
    match = stage.play(cheat, replace(stage.job, descent_levels=levels, nonce=levels))
    assert match.loser is Side.DEFENDER
    assert match.final.verdict is not None
    assert match.final.verdict.reason is Reason.RECOMPUTED
    assert (match.final.level, match.final.step, match.final.leaf) == (Level.TERMS, STEP, leaf)
    assert match.chain.loser is Side.DEFENDER
    assert (1 + len(match.moves) <= 30) == (levels == 5)


@pytest.mark.slow
def test_a_false_weight_among_a_million_steps(stage: Stage) -> None:
    cheat = flipped_weight_bit(stage.compiled.program, state="model.head.weight", step=STEP, element=3)
    match = stage.play(cheat, replace(stage.job, nonce=10))
    assert match.loser is Side.DEFENDER
    assert match.final.level is Level.VALUES


@pytest.mark.slow
def test_a_mistaken_challenge_loses(stage: Stage) -> None:
    leaf = sums_of(stage.compiled.program, 12)[0]
    cheat = low_precision_sum(step=STEP, leaf=leaf, element=7)
    match = stage.play(cheat, replace(stage.job, nonce=20), honest_trainer=True)
    assert match.loser is Side.CHALLENGER
    assert match.chain.loser is Side.CHALLENGER


def test_parties_agree_before_the_step_and_differ_behind_it(stage: Stage) -> None:
    one, other = stage.run(b"one").records(), stage.run(b"other").records()
    same = [a == b for a, b in zip(one, other, strict=True)]
    assert same == [k < STEP // INTERVAL for k in range(STEPS // INTERVAL)]
    assert made_up(5, b"") != made_up(6, b"")


@pytest.mark.parametrize("step", [654_001, 655_000])
def test_the_real_step_stands_inside_a_segment(stage: Stage, step: int) -> None:
    with pytest.raises(ConfigurationError, match="expected a step between 654001 and 655000"):
        stage.run(b"", step=step)


def test_there_is_one_state(stage: Stage) -> None:
    with pytest.raises(ConfigurationError, match="expected a step from 654320 on, got 5"):
        stage.run(b"").state(5)
