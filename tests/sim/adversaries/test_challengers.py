"""Whole games of those who challenge without ground, in numbers, or everywhere at once."""

import pytest

from tests.sim.adversaries.playing import duel, party, played, result_of
from tiebreak.sim.adversaries.base import OPEN, between, challenger
from tiebreak.sim.adversaries.challengers import Swarm, with_one_machine
from tiebreak.sim.world.cast import TERMS

pytestmark = pytest.mark.slow

LONGEST = 3 * TERMS.clock + 6 * TERMS.replay_time + 1
"""Invariant 12."""


@pytest.mark.parametrize("name", ["challenge by a wrong replay", "forged proof"])
def test_who_is_wrong_pays_the_trainer(name: str) -> None:
    result = played(name, 2)
    assert party(result, "challenger 1").wei == -TERMS.challenger_stake
    assert party(result, "trainer").wei == TERMS.reward + TERMS.challenger_stake // 2
    assert result.job_status == "settled"


@pytest.mark.parametrize("seed", [1, 4])
def test_griefers_pay_for_each_game_and_delay_by_one(seed: int) -> None:
    result = played("griefing in series", seed)
    griefers = [party for party in result.parties if party.name.startswith("challenger")]
    lost = -sum(griefer.wei for griefer in griefers)
    assert 1 < len(griefers) < len(result.duels)
    assert lost >= len(result.duels) * TERMS.challenger_stake
    assert party(result, "trainer").wei == TERMS.reward + lost // 2, "the other half burned"
    assert party(result, "trainer").fees_wei < lost // 100, "what it costs the trainer"
    head = 10 * 20 + 100
    assert result.seconds <= head + TERMS.challenge_window + 3 * TERMS.clock + 6 * TERMS.replay_time + 1


def test_a_stalled_challenge_ends_within_the_bound_and_pays_for_the_wait() -> None:
    result = played("stalled challenge", 2)
    assert TERMS.clock < duel(result, "challenger 1").seconds <= LONGEST
    assert party(result, "trainer").wei == TERMS.reward + TERMS.challenger_stake // 2


# ---------------------------------------------------------------- everywhere at once


def test_an_honest_trainer_with_one_machine_wins_everywhere_at_once() -> None:
    """Clock and one allowance hold three of the four replays."""
    result = played("all segments challenged at once", 1)
    assert (result.job_status, result.false_head, len(result.duels)) == ("settled", False, 4)
    assert {found.verdict for found in result.duels} == {"trainer"}
    assert party(result, "challenger 1").wei == -15 * TERMS.challenger_stake
    assert party(result, "trainer").wei == TERMS.reward + 15 * TERMS.challenger_stake // 2


def test_a_price_that_is_raised_is_paid_by_who_raises_it() -> None:
    """The auditor puts up more, and gets it back."""
    result = played("a challenge made dear for others", 1)
    assert (result.watched, result.job_status) == (True, "slashed")
    assert duel(result, "auditor").verdict == "challenger"
    assert party(result, "auditor").wei == TERMS.trainer_stake // 2


def test_each_of_its_games_alone_would_lose() -> None:
    alone = challenger("one at a time", Swarm, "-", OPEN, before=with_one_machine, games=between(1, 1))
    result = result_of(alone, 1)
    assert result.job_status == "settled"
    assert party(result, "trainer").wei == TERMS.reward + TERMS.challenger_stake // 2
