"""The game in Python and in the contract, move by move: a lie in every kind of instruction, and false challenges."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from tests.chain.duel import Duel, lying_duel, new_job, parties, play
from tests.chain.support import CHALLENGER, TRAINER, moves_in
from tests.chain.test_random_play import logged_duel_job
from tests.chain.tiny import EVERY, FUNCTIONS, STEPS, Liar, Run, Setting, ordinary_element
from tests.parts import slow_except
from tests.protocol import runs
from tests.protocol.logged import CHEATS, STEP, Misled, bits_of, exact_sum, find, random_logs
from tiebreak.protocol.chain import EmbeddedChain
from tiebreak.protocol.commitments.log_tree import NO_WORD
from tiebreak.protocol.game.moves import Move, OpenChunk, OpenSteps, OpenValues, Phase, Side
from tiebreak.protocol.game.rules import Level, Reason
from tiebreak.protocol.game.sides import Oracle
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


def judged(duel: Duel) -> tuple[Side, Reason]:
    assert duel.state.verdict is not None
    return duel.state.verdict.winner, duel.state.verdict.reason


def convicted(chain: EmbeddedChain, setting: Setting, step: int, leaf: int, **options: int) -> Duel:
    """Play a lie to its end; the referee finds it at that leaf, and the challenger is paid."""
    duel, players = lying_duel(chain, setting, step, leaf, **options)  # type: ignore[misc]
    before = chain.credit(CHALLENGER.address)
    play(duel, players)
    assert judged(duel) == (Side.CHALLENGER, Reason.RECOMPUTED)
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


@pytest.mark.slow
def test_a_sum_to_bfloat16_is_judged_at_it_whatever_the_jobs_precision(chain: EmbeddedChain) -> None:
    duel = convicted(chain, FUNCTIONS, 3, LOSS - 1, levels=5, precision=24, bend_from=50)
    assert (duel.state.level, duel.state.position) == (Level.TERMS, 50)


@pytest.mark.slow
def test_moves_of_two_levels_go_down_all_five_trees(chain: EmbeddedChain) -> None:
    """75 accumulators of a sum of 300 products; bent in the middle."""
    duel = convicted(chain, FUNCTIONS, 4, LOSS, levels=2, bend_from=41)
    assert (duel.state.level, duel.state.position) == (Level.TERMS, 41)
    assert len(duel.gas[Phase.SELECT]) == sum(-(-depth // 2) for depth in (2, 1, duel.job.half_depth + 1, 7))


@pytest.mark.parametrize("leaf", slow_except([3, SUM, SUM + 1, LEAVES[-1]], SUM, nightly=(3, SUM + 1)))
def test_a_false_challenge_loses_its_stake(chain: EmbeddedChain, leaf: int) -> None:
    """The challenger is the one whose run is wrong; at the end it has nothing to prove, and concedes."""
    job = new_job(EVERY, levels=1 + leaf % 5)
    honest = Run(EVERY, job)
    duel = Duel(chain, honest, head_count=2)
    before = chain.credit(TRAINER.address)
    play(duel, parties(honest, Liar(EVERY, job, 3, leaf)))
    assert judged(duel) == (Side.DEFENDER, Reason.CONCEDED)
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


# ---------------------------------------------------------------- policy logged


LOGS = random_logs(1)
PRODUCTS, PLAIN, SCATTER, MAP = 13, 14, 20, 24
"""Sums of 15, 4 and 9 terms: the second is judged at once. The third has three chunks, as the map has."""


PLACES = [(step, element) for step in (4, 3, 1) for element in (290, 140, 8, 5, 0)]
"""Steps and elements to lie about, where the sum is finite and not zero."""


def duel_about(chain: EmbeddedChain, defended: Oracle, nonce: int = 0) -> Duel:
    return Duel(chain, defended, head_count=defended.job.checkpoints, nonce=nonce)


# ---------------------------------------------------------------- values

LEAVES_AND_INTERVALS = list(product((PRODUCTS, PLAIN, SCATTER, MAP), (1, 2, 5)))
EACH = {(PRODUCTS, 1), (PLAIN, 5), (SCATTER, 2), (MAP, 2)}
OTHERS = set(LEAVES_AND_INTERVALS) - EACH


@pytest.mark.parametrize(
    ("leaf", "interval"), slow_except(LEAVES_AND_INTERVALS, (SCATTER, 2), nightly=OTHERS, several=True)
)
def test_a_lie_in_a_logged_run_is_convicted(chain: EmbeddedChain, leaf: int, interval: int) -> None:
    """Segments of one step, of two (the last of one) and of five."""
    job = logged_duel_job(levels=5, interval=interval)
    honest = runs.Run(job, logs=LOGS)
    step, element = next(place for place in PLACES if place[1] < runs.program().body[leaf].numel
                         and (leaf == MAP or exact_sum(honest, place[0], leaf, place[1])))  # fmt: skip
    bits = bits_of(honest, step, leaf, element) + STEP
    liar = Misled(job, LOGS, step, leaf, element, bits, bent=leaf in (PRODUCTS, SCATTER))
    duel = duel_about(chain, liar)
    play(duel, parties(liar, honest))
    assert judged(duel) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert (duel.state.step, duel.state.leaf, duel.state.element) == (step, leaf, element)
    assert duel.state.level is (Level.TERMS if leaf in (PRODUCTS, SCATTER) else Level.CHUNKS)


DUEL_JOB = partial(logged_duel_job, levels=5)


LEAVES_AND_CHEATS = list(product((PRODUCTS, PLAIN, SCATTER), CHEATS))
EACH_WITH_ONE = set(zip((PRODUCTS, PLAIN, SCATTER), CHEATS, strict=True))


@pytest.mark.parametrize(
    ("leaf", "what"),
    slow_except(LEAVES_AND_CHEATS, nightly={*LEAVES_AND_CHEATS} - EACH_WITH_ONE, several=True),
)
def test_party_that_ignores_the_rounding_log_loses(chain: EmbeddedChain, leaf: int, what: str) -> None:
    """The partial sums are true. A long sum's last one does not give the claimed bits: there is nothing to show."""
    place = find(leaf, what, DUEL_JOB)
    liar, honest, code = place.misled(place.wrong), place.run, place.code
    # Who audits by such arithmetic and challenges the true run loses.
    duel = duel_about(chain, honest)
    play(duel, parties(honest, liar))
    assert judged(duel)[0] is Side.DEFENDER
    # Who trains by it does too.
    duel = duel_about(chain, liar, nonce=1)
    play(duel, parties(liar, honest))
    assert judged(duel) == (Side.CHALLENGER, Reason.RECOMPUTED if leaf == PLAIN else Reason.CONCEDED)
    assert (duel.state.leaf, duel.state.direction) == (leaf, code)


# ---------------------------------------------------------------- logs


@pytest.mark.slow
def test_opened_logs_appear_in_events_and_calldata(chain: EmbeddedChain) -> None:
    """The lie is in a chunk of the scattered sums that stands between two others."""
    job = logged_duel_job(levels=3)
    liar = Misled(job, LOGS, 4, SCATTER, 140, bits_of(runs.Run(job, logs=LOGS), 4, SCATTER, 140) + STEP, bent=True)
    duel, players = duel_about(chain, liar), parties(liar, runs.Run(job, logs=LOGS))
    while not duel.state.is_over:
        seen = moves_in(chain, duel.id, duel.last_block)
        duel.wait()
        assert duel.try_move(players[duel.state.mover].move(duel.state, seen[-1] if seen else None))
    moves = moves_in(chain, duel.id, duel.started.block)
    opened = [m for m in moves if isinstance(m, OpenSteps | OpenValues | OpenChunk)]
    expected = [duel.state.log_root, duel.state.step_log, duel.state.word]
    assert [m.log_root if isinstance(m, OpenSteps) else m.step_log if isinstance(m, OpenValues) else m.word
            for m in opened] == expected  # fmt: skip
    events = chain.events(duel.id, duel.started.block)
    assert [event.values["log"] for event in events if event.name == "LogOpened"] == expected
    assert duel.state.word != NO_WORD


# ---------------------------------------------------------------- clocks, to the second


def at_the_last_second(duel: Duel, move: Move) -> None:
    """t-1 and t are in time, t+1 is not; then the mover has lost. `t` counts the allowance for re-execution."""
    state, chain = duel.state, duel.chain
    assert state.deadline == state.last + state.rest + state.allowance
    for moment in (state.deadline - 1, state.deadline):
        chain.travel_to(moment)
        assert not duel.try_timeout()
    assert "ClockRunning" in duel.refusals
    chain.travel_to(state.deadline + 1)
    assert not duel.try_move(move)
    assert "ClockExhausted" in duel.refusals
    assert duel.try_timeout()
    assert judged(duel) == (state.mover.other, Reason.TIMEOUT)


@pytest.mark.parametrize(
    ("phase", "replay_time"),
    slow_except(
        [(Phase.DESCEND, 900), (Phase.SELECT, 900), (Phase.OPEN_STEPS, 0), (Phase.OPEN_STEPS, 900),
         (Phase.OPEN_VALUES, 900), (Phase.OPEN_TERMS, 900), (Phase.PROVE, 900)],
        several=True,
    ),
)  # fmt: skip
def test_contract_and_python_clocks_agree_to_the_second(chain: EmbeddedChain, phase: Phase, replay_time: int) -> None:
    """Moves take 7 seconds each, half of which the allowances pay for."""
    duel, players = lying_duel(chain, EVERY, 3, SUM, levels=3, clock=400, replay_time=replay_time)
    last: Move | None = None
    while duel.state.phase is not phase:
        chain.advance(7)
        last = players[duel.state.mover].move(duel.state, last)
        assert duel.try_move(last), duel.contract_refusal
    allowed = phase in (Phase.OPEN_STEPS, Phase.OPEN_VALUES, Phase.OPEN_TERMS)
    assert duel.state.allowance == (replay_time if allowed else 400 if phase is Phase.PROVE else 0)
    move = players[duel.state.mover].move(duel.state, last)
    if phase is Phase.PROVE:
        chain.travel_to(duel.state.earliest - 1)
        assert not duel.try_move(move)
        assert "TooEarly" in duel.refusals
        chain.travel_to(duel.state.earliest)
        assert not duel.try_move(replace(move, salt=bytes(32)))  # type: ignore[call-arg]
        assert "WrongSeal" in duel.refusals
    at_the_last_second(duel, move)


def test_move_in_the_last_second_is_accepted(chain: EmbeddedChain) -> None:
    job = new_job(EVERY, levels=1, clock=300, replay_time=50)
    duel = Duel(chain, Run(EVERY, job))
    chain.travel_to(duel.state.deadline)
    assert duel.try_move(parties(Run(EVERY, job), Run(EVERY, job))[duel.state.mover].move(duel.state, None))
    assert min(duel.state.defender_rest, duel.state.challenger_rest) == 0
