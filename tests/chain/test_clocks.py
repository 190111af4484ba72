"""Clocks at their edges, on the contract and in the Python game at once."""

from dataclasses import replace

import pytest

from tests.chain.duel import Duel, lying_duel, new_job, parties
from tests.chain.tiny import EVERY, Run
from tests.parts import slow_except
from tiebreak.protocol.chain import EmbeddedChain
from tiebreak.protocol.game.moves import Move, Phase
from tiebreak.protocol.game.rules import Reason

SUM = max(k for k, i in enumerate(EVERY.program.body) if i.is_reduction and i.terms > 4)
"""A leaf of `EVERY`, a long reduction."""


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
    assert duel.state.verdict is not None
    assert duel.state.verdict.winner is state.mover.other
    assert duel.state.verdict.reason is Reason.TIMEOUT


@pytest.mark.parametrize(
    ("phase", "replay_time"),
    slow_except(
        [(Phase.DESCEND, 900), (Phase.SELECT, 900), (Phase.OPEN_STEPS, 0), (Phase.OPEN_STEPS, 900),
         (Phase.OPEN_VALUES, 900), (Phase.OPEN_TERMS, 900), (Phase.PROVE, 900)],
        (Phase.PROVE, 900),
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
