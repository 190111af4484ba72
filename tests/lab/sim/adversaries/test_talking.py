"""Whole games of sides that talk to no good end: each does what its name says, and ends where it must."""

from collections import Counter
from random import Random

import pytest

from tests.lab.sim.adversaries.playing import stage
from tests.parts import slow_except
from tiebreak.lab.sim.adversaries.talking import TALK
from tiebreak.lab.sim.world.game import GameResult, watch


def played(name: str, seed: int = 1) -> tuple[GameResult, Counter[str]]:
    """The result of a game, and how often each call succeeded."""
    rng = Random(seed)
    world, result = watch(stage(name, rng), name, rng)
    sent = [included for block in world.blocks for included in block.transactions]
    assert result.violations == ()
    return result, Counter(one.pending.call.kind for one in sent if one.applied.reverted is None)


WITHHOLDING = "silence in the talk", "acknowledgement withheld", "stale state entered"


@pytest.mark.parametrize("name", slow_except(WITHHOLDING, "stale state entered"))
def test_a_party_that_withholds_messages_is_convicted_after_the_talk(name: str) -> None:
    result, sent = played(name)
    assert (result.catches, sent["prove"]) == ({name: "recomputed"}, 1)
    assert not sent["enterAndProve"], "nobody has signed the sealed state but its maker"
    assert result.duels[0].seconds > TALK // 2
    assert sent["enter"] >= 2 * name.startswith("stale"), "entered again, and overtaken"


@pytest.mark.parametrize(
    ("name", "end", "unsent"),
    [
        ("concession that is only said", "recomputed", ["concede"]),
        ("two states acknowledged", "forked", ["prove", "enterAndProve"]),
        ("two ways in one talk", "forked", ["prove", "enterAndProve"]),
        ("other openings on the chain than in the talk", "timeout", ["prove", "enterAndProve"]),
    ],
)
def test_what_is_said_or_signed_twice_does_not_help(name: str, end: str, unsent: list[str]) -> None:
    result, sent = played(name)
    assert (result.catches, sent["reportFork"]) == ({name: end}, end == "forked")
    assert not any(sent[kind] for kind in unsent)


@pytest.mark.parametrize("name", ["another way on the chain than in the talk", "state entered over moves on the chain"])
def test_a_game_on_the_chain_may_depart_from_its_talk(name: str) -> None:
    _, sent = played(name, seed=3)
    assert sent["enter"] >= 1 + name.startswith("state")
