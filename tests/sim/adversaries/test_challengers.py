"""Whole games of those who challenge without ground, in numbers, too late, themselves, or with others' finds."""

import pytest

from tests.sim.adversaries.playing import duel, party, played
from tiebreak.sim.adversaries.base import Adversary
from tiebreak.sim.adversaries.challengers import (
    ADVERSARIES,
    ForgedProof,
    Griefing,
    Mirror,
    MistakenChallenge,
    SelfChallenge,
    SelfDelay,
    SelfReport,
)
from tiebreak.sim.world.cast import TERMS

STAKE, HALF = TERMS.trainer_stake, TERMS.trainer_stake // 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ADVERSARIES, ids=lambda kind: kind.name)
def test_it_ends_where_it_must(kind: type[Adversary]) -> None:
    played(kind, 1)


@pytest.mark.parametrize("kind", [MistakenChallenge, ForgedProof], ids=lambda kind: kind.name)
def test_who_is_wrong_pays_the_trainer(kind: type[Adversary]) -> None:
    result = played(kind, 2)
    assert party(result, "challenger 1").wei == -TERMS.challenger_stake
    assert party(result, "trainer").wei == TERMS.reward + TERMS.challenger_stake
    assert result.job_status == "settled"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 4])
def test_griefers_pay_for_each_game_and_delay_by_one(seed: int) -> None:
    result = played(Griefing, seed)
    griefers = [party for party in result.parties if party.name.startswith("challenger")]
    lost = len(result.duels) * TERMS.challenger_stake
    assert 1 < len(griefers) < len(result.duels)
    assert sum(griefer.wei for griefer in griefers) == -lost
    assert party(result, "trainer").wei == TERMS.reward + lost
    assert party(result, "trainer").fees_wei < lost // 100, "what it costs the trainer"
    head = 10 * 20 + 100
    assert result.seconds <= head + TERMS.challenge_window + 2 * TERMS.clock + 6 * TERMS.replay_time + 1


# ---------------------------------------------------------------- oneself


@pytest.mark.parametrize("kind", [SelfChallenge, SelfReport], ids=lambda kind: kind.name)
def test_who_convicts_itself_keeps_half_at_most(kind: type[Adversary]) -> None:
    """The burned half is gone, the odd wei with it; the reward goes back; an honest challenger has its stake again."""
    result = played(kind, 2)
    (puppet,) = [party for party in result.parties if party.name.startswith("puppet")]
    assert (party(result, "trainer").wei, puppet.wei) == (-STAKE, HALF)
    assert party(result, "trainer").wei + puppet.wei == -(HALF + 1)
    assert (party(result, "client").wei, party(result, "auditor").wei) == (0, 0)


def test_a_game_against_oneself_delays_by_one_clock() -> None:
    result = played(SelfDelay, 2)
    (puppet,) = [party for party in result.parties if party.name.startswith("puppet")]
    assert party(result, "client").wei == STAKE
    assert party(result, "trainer").wei + puppet.wei == -STAKE, "its stake went from one pocket to the other"
    assert result.seconds < 10 * 20 + TERMS.challenge_window + TERMS.clock + 300


# ---------------------------------------------------------------- with what others found out


@pytest.mark.slow
def test_a_mirror_gets_its_stake_back_and_the_auditor_the_reward() -> None:
    result = played(Mirror, 2)
    mirrored, honest = duel(result, "challenger 1"), duel(result, "auditor")
    assert (honest.verdict, mirrored.verdict) == ("challenger", "void")
    assert mirrored.rounds == honest.rounds - 1, "it copied all but the proof"
    assert (party(result, "auditor").wei, party(result, "challenger 1").wei) == (HALF, 0)
