"""Parties that talk through their games: what they say, what they take to the chain, and what no one makes them do."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.parts import slow_except
from tests.protocol.runs import DOMAIN, program
from tests.protocol.town import (
    BLOCK,
    LIE,
    PACE,
    START,
    TALKED,
    TALKED_FALSE,
    TALKED_TRUTH,
    Fate,
    KnowingAuditor,
    KnowingTrainer,
    Town,
)
from tiebreak.protocol.game.moves import Concede, Move, Side
from tiebreak.protocol.game.snapshot import SignedStanding, Standing
from tiebreak.protocol.game.state import Reason
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import JobStatus, PublicGame
from tiebreak.protocol.parties.player import GameView, Reply
from tiebreak.protocol.parties.terms import objections

OF_GAMES = (e.MakeMove, e.Enter, e.EnterAndProve, e.ReportFork, e.ClaimTimeout)


def sent(town: Town) -> list[e.Transaction]:
    """What was sent about games, by both sides; each is asked for once, unless a machine died."""
    found = [action for seen in town.seen.values() for action in seen.actions if isinstance(action, e.Transact)]
    return [action.transaction for action in found if isinstance(action.transaction, OF_GAMES)]


def verdict(town: Town) -> tuple[Side, Reason]:
    (played,) = town.board.games.values()
    return played.state.verdict.winner, played.state.verdict.reason


def the_game(town: Town) -> PublicGame:
    (played,) = town.board.games.values()
    return played


def check_statements(town: Town) -> None:
    """In each place one statement, however often it was sent; of each sequence number one signed state."""
    for seen in town.seen.values():
        assert all(len(said) == 1 for place, said in seen.statements.items() if place[0] != "call")


def test_a_talked_dispute_is_two_transactions() -> None:
    town = Town(TALKED_FALSE).play()
    assert [type(one) for one in sent(town)] == [e.EnterAndProve]
    assert verdict(town) == (Side.CHALLENGER, Reason.RECOMPUTED)
    played = the_game(town)
    assert (played.state.step, played.state.leaf) == LIE
    said = [place[2] for seen in town.seen.values() for place in seen.statements if place[0] == "said"]
    assert sorted(map(int, said)) == list(range(len(played.moves) - 1)), "the proof is no message"
    assert town.job.status is JobStatus.SLASHED
    check_statements(town)
    assert not any(town.board.credits.values())


class Damaged(Town):
    """The trainer's files give something else than it has signed, so it has nothing to show."""

    def done(self, work: e.Work) -> e.Event:
        event = super().done(work)
        is_opening = isinstance(event, e.Done) and event.move is not None and event.move.KIND.mover is Side.DEFENDER
        return replace(event, move=Concede()) if is_opening else event  # type: ignore[call-arg]


def test_a_trainer_with_nothing_to_show_tells_its_owner_and_sends_nothing() -> None:
    town = Damaged(TALKED_FALSE).play()
    assert verdict(town) == (Side.CHALLENGER, Reason.TIMEOUT)
    assert {type(one) for one in sent(town)} == {e.ClaimTimeout}
    alarms = {action for action in town.seen["trainer"].actions if isinstance(action, e.Alarm)}
    assert [(alarm.is_error, "ties to its signed head" in alarm.text) for alarm in alarms] == [(True, True)]


class Conceding(KnowingTrainer):
    """A cheat that gives up when its opponent has sealed an answer."""

    def acknowledges(self, view: GameView) -> bool:
        move = e.MakeMove(game_id=view.game.id, sequence=view.game.state.moves, move=Concede())
        self.want(("concede", view.game.id), move)
        return False


def test_a_cheat_that_sees_it_is_wrong_concedes() -> None:
    town = Town(TALKED_FALSE, kinds={"trainer": Conceding}).play()
    assert [type(one) for one in sent(town)] == [e.MakeMove]
    assert verdict(town) == (Side.CHALLENGER, Reason.CONCEDED)


@pytest.mark.parametrize(("talk", "signs"), [(0, True), (1, False), (6 * BLOCK, False), (6 * BLOCK + 1, True)])
def test_a_talk_must_leave_time_to_enter(talk: int, signs: bool) -> None:
    job = replace(TALKED, talk_time=talk)
    reasons = objections(job, program(), PACE)
    assert (not reasons) is signs
    assert signs or reasons == (
        f"expected no talk, or one of more than {6 * BLOCK} seconds to say and enter something, got {talk}",
    )


# ---------------------------------------------------------------- silence


class Mute(KnowingTrainer):
    """Says nothing from some move on, not even that it has heard; on the chain it plays on."""

    after = 0

    def wire(self, view: GameView, move: Move) -> bytes | None:
        return None if view.state.moves >= self.after else super().wire(view, move)

    def acknowledges(self, view: GameView) -> bool:
        return False


class MuteAuditor(KnowingAuditor):
    after = 0

    def wire(self, view: GameView, move: Move) -> bytes | None:
        return None if view.state.moves >= self.after else super().wire(view, move)


def muted(kind: type[Any], after: int) -> type[Any]:
    return type(kind.__name__, (kind,), {"after": after})


WHOLE = len(the_game(Town(TALKED_FALSE).play()).moves)


@pytest.mark.parametrize("after", slow_except(range(0, WHOLE + 1, 3), *range(0, WHOLE + 1, 9)))
@pytest.mark.parametrize("name", ["trainer", "auditor"])
def test_silence_costs_at_most_two_transactions_more_than_the_moves_left(name: str, after: int) -> None:
    kind = muted(Mute if name == "trainer" else MuteAuditor, after)
    town = Town(TALKED_FALSE, kinds={name: kind}).play()
    assert verdict(town) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert (the_game(town).state.step, the_game(town).state.leaf) == LIE
    said = [place[2] for seen in town.seen.values() for place in seen.statements if place[0] == "said"]
    left = WHOLE - len(said)
    assert len(sent(town)) <= left + 2
    if left > 1:
        assert town.now > START + TALKED.talk_time


class Dead(KnowingTrainer):
    """Neither says nor does anything from some move on."""

    after = 0

    def answers(self, view: GameView) -> bool:
        return view.state.moves < self.after

    def acknowledges(self, view: GameView) -> bool:
        return False


class DeadAuditor(KnowingAuditor):
    after = 0

    def answers(self, view: GameView) -> bool:
        return view.state.moves < self.after


@pytest.mark.parametrize("after", [0, 1, 4, 9, WHOLE - 1])
@pytest.mark.parametrize("name", ["trainer", "auditor"])
def test_who_falls_silent_for_good_loses_to_the_clock(name: str, after: int) -> None:
    kind, run = (Dead, TALKED_FALSE) if name == "trainer" else (DeadAuditor, TALKED_FALSE)
    town = Town(run, kinds={name: muted(kind, after)}).play(12000)
    winner, reason = verdict(town)
    proves = name == "trainer" and after >= WHOLE - 1  # the challenger selects and proves on the chain
    assert winner is (Side.DEFENDER if name == "auditor" else Side.CHALLENGER)
    assert reason is (Reason.RECOMPUTED if proves else Reason.TIMEOUT)


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


def test_who_signs_two_states_in_one_place_loses() -> None:
    town = Town(TALKED_FALSE, kinds={"auditor": Forking}).play()
    assert e.ReportFork in map(type, sent(town))
    assert verdict(town) == (Side.DEFENDER, Reason.FORKED), "even against a false run"


class TwoTongues(KnowingTrainer):
    """Enters nothing and starts on the chain before the talk is over, whatever it has said."""

    def reply(self, view: GameView) -> Reply:
        return super().reply(view)

    def _talk(self, game: PublicGame, side: Side) -> bool:
        talking = super()._talk(game, side)
        return talking and self.transcript(game).state.moves < 5


def test_moves_on_the_chain_while_the_talk_goes_on_change_nothing() -> None:
    town = Town(TALKED_FALSE, kinds={"trainer": TwoTongues}).play()
    assert verdict(town) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert (the_game(town).state.step, the_game(town).state.leaf) == LIE
    check_statements(town)


# ---------------------------------------------------------------- crashes, and a bad post


def outcome(town: Town) -> Any:
    return {name: seen.statements for name, seen in town.seen.items()}, town.job.status


@pytest.mark.parametrize("name", ["trainer", "auditor"])
def test_who_dies_while_it_talks_says_the_same(name: str) -> None:
    whole = Town(TALKED_FALSE).play()
    events = whole.seen[name].events
    for number in range(6, events + 1, 11):
        town = Town(TALKED_FALSE, fate=Fate(dies=(name, number))).play()
        assert outcome(town) == outcome(whole), f"{name} died after event {number}"


@pytest.mark.parametrize("seed", range(8))
def test_lost_doubled_and_late_messages_lead_to_the_same_verdict(seed: int) -> None:
    rng = Random(seed)
    fate = Fate(copies=lambda: rng.choice((0, 1, 1, 2)), delay=lambda: rng.randrange(30))
    town = Town(TALKED_FALSE, fate=fate).play(12000)
    assert verdict(town) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert (the_game(town).state.step, the_game(town).state.leaf) == LIE
    check_statements(town)


def test_an_honest_talked_run_is_paid() -> None:
    town = Town(TALKED_TRUTH).play()
    assert town.job.status is JobStatus.SETTLED
