"""Whole games of sides that talk to no good end: each does what its name says, and ends where it must."""

from collections import Counter
from random import Random

import pytest

from tests.lab.sim.adversaries.playing import stage
from tiebreak.lab.sim.adversaries.talking import TALK
from tiebreak.lab.sim.world.game import GameResult, watch
from tiebreak.lab.sim.world.world import GENESIS, World
from tiebreak.protocol.parties.player import Player


def told(name: str, seed: int) -> tuple[World, GameResult, Counter[str]]:
    """A game with its world, and how often each call that was sent about it succeeded."""
    rng = Random(seed)
    world, result = watch(stage(name, rng), name, rng)
    assert result.violations == ()
    sent = [included for block in world.blocks for included in block.transactions]
    return world, result, Counter(one.pending.call.kind for one in sent if one.applied.reverted is None)


@pytest.mark.parametrize("name", ["silence in the talk", "acknowledgement withheld", "stale state entered"])
def test_a_party_that_withholds_messages_is_convicted_after_the_talk(name: str) -> None:
    world, result, sent = told(name, 1)
    assert result.catches == {name: "recomputed"}
    assert sent["prove"] == 1
    assert not sent["enterAndProve"], "nobody has signed the sealed state but its maker"
    ended = next(game.ended for game in world.board.games.values())
    assert ended - GENESIS > TALK // 2


def test_a_stale_state_is_entered_and_overtaken() -> None:
    _, _, sent = told("stale state entered", 1)
    assert sent["enter"] >= 2


def test_a_concession_counts_on_the_chain_alone() -> None:
    _, result, sent = told("concession that is only said", 1)
    assert result.catches == {"concession that is only said": "recomputed"}
    assert not sent["concede"]


@pytest.mark.parametrize("name", ["two states acknowledged", "two ways in one talk"])
def test_signing_two_conflicting_states_is_reported(name: str) -> None:
    _, result, sent = told(name, 1)
    assert result.catches == {name: "forked"}
    assert (sent["reportFork"], sent["prove"], sent["enterAndProve"]) == (1, 0, 0)


@pytest.mark.parametrize("name", ["another way on the chain than in the talk", "state entered over moves on the chain"])
def test_a_game_on_the_chain_may_depart_from_its_talk(name: str) -> None:
    goes_back = name.startswith("state")
    world, _, sent = told(name, 3)
    (game,) = world.board.games.values()
    talks = [party.transcript(game) for party in world.parties.values() if isinstance(party, Player)]
    talk = max((talk.line for talk in talks), key=len)
    assert sent["enter"] >= 1 + goes_back
    if not goes_back:
        assert tuple(game.moves[: len(talk)]) != talk, "another selection on the chain"


def test_openings_that_differ_from_the_talk_end_in_a_timeout() -> None:
    _, result, sent = told("other openings on the chain than in the talk", 1)
    assert result.catches == {"other openings on the chain than in the talk": "timeout"}
    assert sent["prove"] + sent["enterAndProve"] == 0
