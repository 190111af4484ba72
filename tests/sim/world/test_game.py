"""Whole games: who ends up with what, to the wei, and that nothing in them is left to chance."""

from random import Random

import pytest

from sim.computing.workshop import Workshop
from sim.world.cast import Cast
from sim.world.game import play
from sim.world.result import GameResult, PartyResult
from tests.sim.world.cheats import Changed


@pytest.fixture(scope="module")
def workshop() -> Workshop:
    return Workshop.open("exact")


def party(result: GameResult, name: str) -> PartyResult:
    return next(found for found in result.parties if found.name == name)


def test_an_honest_game_settles_and_everyone_has_its_money(workshop: Workshop) -> None:
    cast = Cast(workshop=workshop)
    result = play(cast, "honest", Random(1))
    assert (result.job_status, result.false_head, result.watched) == ("settled", False, True)
    assert result.violations == ()
    assert result.duels == ()
    assert party(result, "trainer").wei == cast.terms.reward
    assert party(result, "client").wei == -cast.terms.reward
    assert party(result, "auditor").wei == 0
    assert party(result, "trainer").steps == party(result, "auditor").steps == 10
    assert all(found.refused == 0 for found in result.parties)


def test_a_tampered_value_is_convicted_and_paid_for(workshop: Workshop) -> None:
    cast = Cast(workshop=workshop, deviation=Changed(step=5, leaf=23, element=0))
    cast.dishonest["trainer"] = "changed"
    result = play(cast, "changed", Random(2))
    assert (result.job_status, result.false_head, result.watched) == ("slashed", True, True)
    assert result.violations == ()
    assert result.catches == {"changed": "recomputed"}
    stake = cast.terms.trainer_stake
    assert [party(result, name).wei for name in ("trainer", "client", "auditor")] == [-stake, 0, stake // 2]
    (duel,) = result.duels
    assert (duel.challenger, duel.verdict, duel.step, duel.leaf) == ("auditor", "challenger", 5, 23)
