"""From a line to its game: who sits where, and what the names in the result mean."""

from collections.abc import Callable

import pytest

from tests.lab.sim.counterexamples.keep import KEPT, CounterExample, load_all
from tests.parts import slow_except
from tiebreak.lab.sim.adversaries import rollouts
from tiebreak.lab.sim.adversaries.base import Role
from tiebreak.lab.sim.games import playing
from tiebreak.lab.sim.games.line import GameLine, slug
from tiebreak.lab.sim.games.mixes import Mix
from tiebreak.lab.sim.games.story import tell
from tiebreak.lab.sim.world.game import GameResult, PartyResult
from tiebreak.lab.sim.world.workshop import CLASSIFIER, ROLLOUTS
from tiebreak.protocol.errors import ConfigurationError

LINE = "v1 seed=7 game=5 with=poisoned-label auditors=2"


def test_every_adversary_is_listed_under_the_slug_of_its_name(cases: Callable[[], None]) -> None:
    assert len(playing.ADVERSARIES) >= 25
    for name, kind in playing.ADVERSARIES.items():
        assert name == slug(kind.name)
        assert str(GameLine(seed=1, game=1, adversaries=(name,))) == f"v1 seed=1 game=1 with={name}"
        cases()
    assert {fact["role"] for fact in playing.facts().values()} <= {role.value for role in Role}


@pytest.mark.slow
def test_every_adversary_can_play_in_some_workshop() -> None:
    players = playing.repertoire()
    assert len(players.pairs) == 6134, "other pairs would deal other games for every seed"
    assert all(players.workshops.values())
    assert players.common(()) == CLASSIFIER
    others = playing.repertoire(ROLLOUTS)
    assert len(others.pairs) == 5612
    assert others.common(()) == ROLLOUTS
    assert {*players.singles, *others.singles} == set(playing.ADVERSARIES)
    assert {slug(kind.name) for kind in rollouts.ADVERSARIES} == {*others.singles} - {*players.singles}


@pytest.mark.slow
def test_every_dealt_pair_of_adversaries_can_play_together(cases: Callable[[], None]) -> None:
    mix, players = Mix.parse("pairs", playing.repertoire()), playing.repertoire()
    for game in range(60):
        line = mix.deal(3, game, players)
        assert len(line.adversaries) == 2
        gathering = playing.gather(line)
        assert {slug(name) for name in gathering.names} == set(line.adversaries)
        behind = [name for names in gathering.behind.values() for name in names]
        assert set(gathering.names) <= set(behind)
        expected = [names for names in gathering.behind.values() if playing.joint(names) in gathering.cast.expected]
        assert set(gathering.names) <= {name for names in expected for name in names}
        cases()


def test_two_adversaries_for_one_role_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected one adversary for the computation, got .* and "):
        playing.gather(GameLine(seed=1, game=1, adversaries=("frozen-layer", "poisoned-label")))


def test_an_adversary_in_an_unsupported_workshop_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="poisoned label: expected workshop=exact or logged, got rollouts"):
        playing.gather(GameLine(seed=1, game=1, adversaries=("poisoned-label",), workshop="rollouts"))
    with pytest.raises(ConfigurationError, match="silent rounding: expected workshop=logged, got exact"):
        playing.gather(GameLine(seed=1, game=1, adversaries=("silent-rounding",)))


def test_terms_and_auditors_are_those_of_the_line() -> None:
    line = GameLine(
        seed=7, game=1, levels=3, reward=5, trainer_stake=6, challenger_stake=7, window=8, clock=9, replay=1
    )
    terms = playing.terms_of(line)
    assert (terms.reward, terms.trainer_stake, terms.challenger_stake) == (5, 6, 7)
    assert (terms.challenge_window, terms.clock, terms.replay_time, terms.descent_levels) == (8, 9, 1, 3)
    assert terms.nonce != playing.terms_of(GameLine(seed=7, game=2)).nonce
    cast = playing.gather(GameLine(seed=7, game=1, auditors=3)).cast
    assert [seat.name for seat in cast.auditors] == ["auditor", "auditor-2", "auditor-3"]
    assert playing.gather(GameLine(seed=7, game=1, auditors=0)).cast.auditors == []


def test_results_list_adversaries_that_share_a_party_separately() -> None:
    """A trainer may have a false run from one adversary and its manners from another; it ends once, for both."""
    gathering = playing.gather(GameLine(seed=1, game=1, adversaries=("poisoned-label",)))
    gathering.names.append("skipped steps")
    gathering.behind["trainer"].append("skipped steps")
    gathering.close()
    assert gathering.cast.deviations() == {"trainer": "poisoned label and skipped steps"}
    trainer = PartyResult(
        name="trainer", role="trainer", adversary="poisoned label and skipped steps", gas=0, fees_wei=0, wei=0, steps=0,
        messages=0, bytes=0, refused=0,
    )  # fmt: skip
    name = trainer.adversary
    assert name is not None
    played = GameResult(
        line="-", adversaries=(name,), catches={name: "timeout"},
        job_status="slashed", false_head=True, watched=True, seconds=0, parties=(trainer,), duels=(), blocks=0,
        violations=(), faults={},
    )  # fmt: skip
    told = gathering.told(played)
    assert told.adversaries == ("poisoned label", "skipped steps")
    assert told.catches == {"poisoned label": "timeout", "skipped steps": "timeout"}


@pytest.mark.slow
def test_a_game_is_told_move_by_move() -> None:
    world, result = playing.watch_line(LINE)
    assert result == playing.play_line(LINE)
    assert result.violations == ()
    text = list(tell(world, result))
    assert text[0] == LINE
    moves = [line for line in text if " game 1: " in line]
    assert len(moves) == result.duels[0].moves + sum(" refused" in line for line in moves)
    gas = sum(int(line.partition(" gas)")[0].rpartition("(")[2].replace(",", "")) for line in text if " gas)" in line)
    assert gas == sum(party.gas for party in result.parties)
    assert any("verdict: defender lost, recomputed; the trainer is slashed" in line for line in text)
    assert "poisoned label: recomputed" in text
    assert text[-1] == "no promise was broken"
    assert all(len(line) < 240 for line in text)
    for party in result.parties:
        assert any(line.startswith(party.name) and f"{party.gas:,}" in line for line in text)


def test_a_game_report_lists_moves_sent_as_messages() -> None:
    """Two transactions about the game, and between them what was said, by a post that loses and delays."""
    line = "v1 seed=1 game=1 with=one-false-sum talk=30m"
    world, result = playing.watch_line(line)
    assert result == playing.play_line(line)
    assert (result.violations, result.catches) == ((), {"one false sum": "recomputed"})
    told = "\n".join(tell(world, result))
    assert told.count("says in game 1: ") == result.duels[0].moves
    assert "trainer says in game 1: acknowledges the state after 15 moves" in told
    assert "auditor game 1: enters the state after 15 moves, and proves: 1 tensors, 1 chunks opened" in told
    kinds = [sent.pending.call.kind for block in world.blocks for sent in block.transactions]
    assert kinds.count("enterAndProve") == 1
    assert not {"descend", "select", "enter"} & set(kinds)


EXAMPLES = load_all(KEPT)


@pytest.mark.parametrize("example", slow_except(EXAMPLES, nightly=EXAMPLES[1::2]), ids=lambda example: example.line)
def test_known_counterexamples_break_no_promise_any_more(example: CounterExample) -> None:
    assert playing.play_line(example.line).violations == (), example.cause
