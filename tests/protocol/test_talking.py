"""Parties that talk through their games: what they say, what they take to the chain, and what no one makes them do."""

from typing import Any

import pytest

from tests.protocol.runs import DOMAIN
from tests.protocol.test_parties import calls
from tests.protocol.town import (
    KINDS,
    LIE,
    START,
    TALKED,
    TALKED_FALSE,
    TALKED_TRUTH,
    KnowingAuditor,
    KnowingTrainer,
    Town,
)
from tiebreak.protocol.game.moves import Concede, Move, Side
from tiebreak.protocol.game.snapshot import SignedStanding, Standing
from tiebreak.protocol.game.state import Reason
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import JobStatus, PublicGame
from tiebreak.protocol.parties.driver import Turn
from tiebreak.protocol.parties.player import GameView

OF_GAMES = (tx.MakeMove, tx.Enter, tx.EnterAndProve, tx.ReportFork, tx.ClaimTimeout)


def sent(town: Town) -> list[tx.Transaction]:
    """What was sent about games, by both sides; each is asked for once, unless a machine died."""
    return [one for seen in town.seen.values() for one in calls(seen.actions) if isinstance(one, OF_GAMES)]


def check_statements(town: Town) -> None:
    """Each place has one statement, however often it was sent, and each sequence number one signed state."""
    for seen in town.seen.values():
        assert all(len(said) == 1 for place, said in seen.statements.items() if place[0] != "call")


def test_off_chain_dispute_takes_two_transactions() -> None:
    town = Town(TALKED_FALSE).play()
    assert [type(one) for one in sent(town)] == [tx.EnterAndProve]
    assert town.verdict == (Side.CHALLENGER, Reason.RECOMPUTED)
    played = town.game
    assert (played.state.step, played.state.leaf) == LIE
    said = [place[2] for seen in town.seen.values() for place in seen.statements if place[0] == "said"]
    assert sorted(map(int, said)) == list(range(len(played.moves) - 1)), "the proof is no message"
    assert town.job.status is JobStatus.SLASHED
    check_statements(town)
    assert not any(town.board.credits.values())


class Damaged(Town):
    """The trainer's files give something else than it has signed, so it has nothing to show."""

    def result(self, work: e.Work, turn: Turn | None) -> dict[str, Any]:
        return {"move": Concede()} if turn is not None and turn.defends else super().result(work, turn)


def test_trainer_without_a_valid_answer_alerts_its_owner_and_sends_nothing() -> None:
    town = Damaged(TALKED_FALSE).play()
    assert town.verdict == (Side.CHALLENGER, Reason.TIMEOUT)
    assert {type(one) for one in sent(town)} == {tx.ClaimTimeout}
    (alarm,) = set(town.alarms("trainer"))
    assert alarm.is_error
    assert "ties to its signed head" in alarm.text


class Conceding(KnowingTrainer):
    """A cheat that gives up when its opponent has sealed an answer."""

    def acknowledges(self, view: GameView) -> bool:
        move = tx.MakeMove(game_id=view.game.id, sequence=view.game.state.moves, move=Concede())
        self.want(("concede", view.game.id), move)
        return False


def test_cheating_trainer_concedes_in_one_transaction() -> None:
    town = Town(TALKED_FALSE, kinds={"trainer": Conceding}).play()
    assert [type(one) for one in sent(town)] == [tx.MakeMove]
    assert town.verdict == (Side.CHALLENGER, Reason.CONCEDED)


# ---------------------------------------------------------------- silence


def silent(name: str, after: int, *, on_the_chain: bool) -> dict[str, type[Any]]:
    """A party that says nothing from some move on, not even that it has heard; and may do nothing on the chain."""

    class Silent(KINDS[name][0]):  # type: ignore[misc,name-defined]
        def answers(self, view: GameView) -> bool:
            return (not on_the_chain or view.state.moves < after) and super().answers(view)

        def wire(self, view: GameView, move: Move) -> bytes | None:
            return None if view.state.moves >= after else super().wire(view, move)

        if name == "trainer":

            def acknowledges(self, view: GameView) -> bool:
                return False

    return {name: Silent}


WHOLE = len(Town(TALKED_FALSE).play().game.moves)


@pytest.mark.parametrize("after", [0, 5, WHOLE // 2, WHOLE])
@pytest.mark.parametrize("name", ["trainer", "auditor"])
def test_silent_party_costs_at_most_two_extra_transactions(name: str, after: int) -> None:
    town = Town(TALKED_FALSE, kinds=silent(name, after, on_the_chain=False)).play()
    assert town.verdict == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert (town.game.state.step, town.game.state.leaf) == LIE
    said = [place[2] for seen in town.seen.values() for place in seen.statements if place[0] == "said"]
    left = WHOLE - len(said)
    assert len(sent(town)) <= left + 2
    if left > 1:
        assert town.now > START + TALKED.talk_time


@pytest.mark.parametrize("after", [0, 4, WHOLE - 1])
@pytest.mark.parametrize("name", ["trainer", "auditor"])
def test_permanently_silent_party_loses(name: str, after: int) -> None:
    town = Town(TALKED_FALSE, kinds=silent(name, after, on_the_chain=True)).play(12000)
    proves = name == "trainer" and after >= WHOLE - 1  # the challenger selects and proves on the chain
    winner = Side.DEFENDER if name == "auditor" else Side.CHALLENGER
    assert town.verdict == (winner, Reason.RECOMPUTED if proves else Reason.TIMEOUT)


# ---------------------------------------------------------------- forks, and other lines


class Forking(KnowingAuditor):
    """Signs a second state in a place where it has signed one, and shows it too."""

    def plan(self) -> None:
        super().plan()
        for game in self.board.games.values():
            talk = self.transcript(game)
            if talk.state.moves > 4 and not game.is_over:
                standing = Standing(game_id=game.id, sequence=2, snapshot=talk.job_id)
                receipt = SignedStanding.under(standing, self.key.sign(standing.digest(DOMAIN)))
                self.do(e.ShowReceipt(game_id=game.id, receipt=receipt.encode()))


def test_party_that_signs_two_states_of_one_sequence_loses() -> None:
    town = Town(TALKED_FALSE, kinds={"auditor": Forking}).play()
    assert tx.ReportFork in map(type, sent(town))
    assert town.verdict == (Side.DEFENDER, Reason.FORKED), "even against a false run"


class TwoTongues(KnowingTrainer):
    """Enters nothing and starts on the chain before the talk is over, whatever it has said."""

    def _talk(self, game: PublicGame, side: Side) -> bool:
        talking = super()._talk(game, side)
        return talking and self.transcript(game).state.moves < 5


def test_on_chain_moves_during_off_chain_play_keep_the_verdict() -> None:
    town = Town(TALKED_FALSE, kinds={"trainer": TwoTongues}).play()
    assert town.verdict == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert (town.game.state.step, town.game.state.leaf) == LIE
    check_statements(town)


def test_honest_run_with_off_chain_disputes_is_paid() -> None:
    town = Town(TALKED_TRUTH).play()
    assert town.job.status is JobStatus.SETTLED
