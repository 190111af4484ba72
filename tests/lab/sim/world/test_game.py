"""Whole games: who ends up with what, to the wei, and that nothing in them is left to chance."""

from dataclasses import replace
from random import Random

import pytest

from tests.lab.sim.adversaries.playing import duel, party
from tests.lab.sim.world.cheats import LEAF, Forger, Garbled, Mute, Unwilling, cheating, seats
from tests.parts import slow_except
from tiebreak.lab.sim.world.game import TERMS, Cast, CastMember, GameResult, play
from tiebreak.lab.sim.world.workshop import Workshop


def wei(result: GameResult, *names: str) -> list[int]:
    return [party(result, name).wei for name in names]


def test_an_honest_game_settles_and_everyone_has_its_money(workshop: Workshop) -> None:
    result = play(Cast(workshop=workshop), "honest", Random(1))
    assert (result.job_status, result.false_head, result.watched) == ("settled", False, True)
    assert result.violations == ()
    assert result.duels == ()
    assert wei(result, "trainer", "client", "auditor") == [TERMS.reward, -TERMS.reward, 0]
    assert party(result, "trainer").steps == party(result, "auditor").steps == 10
    assert all(found.refused == 0 for found in result.parties)
    assert result.seconds > TERMS.challenge_window


@pytest.mark.parametrize("levels", slow_except([1, 3, 5], 5))
def test_a_tampered_value_is_convicted_and_paid_for(workshop: Workshop, levels: int) -> None:
    result = play(cheating(workshop, terms=replace(TERMS, descent_levels=levels)), "changed", Random(2))
    assert (result.job_status, result.false_head, result.watched) == ("slashed", True, True)
    assert result.violations == ()
    assert result.catches == {"changed": "recomputed"}
    assert wei(result, "trainer", "client", "auditor") == [-TERMS.trainer_stake, 0, TERMS.trainer_stake // 2]
    found = duel(result)
    assert (found.challenger, found.verdict, found.step, found.leaf) == ("auditor", "challenger", 5, LEAF)
    sent = sum(party(result, name).messages for name in ("trainer", "auditor"))
    assert sent == found.moves + 4, "every move travels as a message; heads go on while a game is played"
    assert found.bytes > 100 * found.moves


def test_a_lie_without_an_auditor_is_paid_and_reported_undetected(workshop: Workshop) -> None:
    result = play(cheating(workshop, auditors=[]), "unwatched", Random(3))
    assert (result.job_status, result.false_head, result.watched) == ("settled", True, False)
    assert result.catches == {"changed": "undetected"}
    assert result.violations == (), "no promise is made without an auditor"


def test_an_auditor_without_money_does_not_watch(workshop: Workshop) -> None:
    poor = [CastMember(name="auditor", funds=TERMS.challenger_stake - 1)]
    result = play(cheating(workshop, auditors=poor), "poor", Random(3))
    assert (result.job_status, result.watched, result.violations) == ("settled", False, ())


def test_a_head_that_the_trainer_did_not_sign_accuses_nobody(workshop: Workshop) -> None:
    cast = Cast(workshop=workshop, trainer=Forger, dishonest={"trainer": "forger"})
    result = play(cast, "forger", Random(4))
    assert (result.job_status, result.false_head, result.violations) == ("settled", False, ())
    assert result.catches == {"forger": "harmless"}


def test_an_offer_that_nobody_accepts_is_taken_back(workshop: Workshop) -> None:
    cast = Cast(workshop=workshop, trainer=Unwilling, dishonest={"trainer": "unwilling"})
    result = play(cast, "unwilling", Random(5))
    assert (result.job_status, result.violations) == ("cancelled", ())
    assert wei(result, "trainer", "client") == [0, 0]
    assert result.catches == {"unwilling": "unpaid"}


def test_malformed_messages_are_refused_and_the_game_goes_on(workshop: Workshop) -> None:
    result = play(cheating(workshop, auditors=seats(Garbled, Mute)), "garbled", Random(10))
    assert (result.job_status, result.violations) == ("slashed", ())
    garbled, mute = (party(result, name) for name in ("auditor 1", "auditor 2"))
    assert garbled.refused >= garbled.messages > 3
    assert (mute.refused <= 1, mute.messages) == (True, 0), "one transaction of two in a race may be late"
