"""The one driver of parties: in which order it carries things out, and what it keeps until its time has come."""

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.protocol.runs import CHALLENGER, DOMAIN, TRAINER
from tests.protocol.test_parties import FALSE, JOB, START, TRUTH, board_with, gather_of, known, with_game
from tests.protocol.town import Kept, KnowingTrainer
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import Board, JobStatus
from tiebreak.protocol.parties.driver import RETRY_SECONDS, PostingDriver, Turn
from tiebreak.protocol.tags import Digest

RECORD = e.AppendRecord(place=("a",), data=b"1")
ALARM = e.Alarm(is_error=True, text="said after it")
NOTHING = Digest(bytes(32))


class Noting(PostingDriver):
    """A driver that notes what it is asked for, on behalf of a trainer that does as the test says."""

    def __init__(self, board: Board) -> None:
        self.now, self.noted, self.told = START, list[Any](), list[e.Event]()
        self.answers: dict[type[e.Event], Iterable[e.Action]] = {}
        self.has_files = self.is_ready = True
        machine = KnowingTrainer(**known(board, TRAINER))
        machine.observe = self.observe  # type: ignore[method-assign]
        self.kept = Kept()
        journal = SimpleNamespace(append=self.append, post=self.kept.post)
        super().__init__(machine, journal, SimpleNamespace(now=lambda: self.now, send=self.noted.append))

    def observe(self, event: e.Event) -> tuple[e.Action, ...]:
        self.told.append(event)
        return tuple(self.answers.get(type(event), ()))

    def append(self, record: e.AppendRecord) -> None:
        self.noted.append(record)
        if record.data == b"":
            raise OSError("no space")

    def posted(self) -> None:
        self.noted.append(list(self.kept.posts.values()))

    def publish_run(self, action: e.PublishRun) -> None:
        self.tell(e.Tick(at=self.now))
        self.noted.append(action)

    def fetch_run(self, job_id: Digest, count: int) -> bool:
        self.noted.append(("fetch", count))
        return self.has_files

    def start_work(self, work: e.Work, turn: Turn | None) -> bool:
        self.noted.append((work, turn))
        return self.is_ready

    def raise_alarm(self, alarm: e.Alarm) -> None:
        self.noted.append(alarm)

    def noted_now(self) -> list[Any]:
        """What was noted since the last call."""
        found, self.noted[:] = list(self.noted), []
        return found


def test_driver_stops_when_the_journal_cannot_be_written() -> None:
    driver = Noting(Board())
    driver.answers = {e.Started: (RECORD, ALARM), e.Tick: (replace(RECORD, data=b""), ALARM)}
    driver.tell(e.Started(at=START))
    assert driver.noted_now() == [RECORD, ALARM]
    with pytest.raises(OSError, match="no space"):
        driver.tell(e.Tick(at=START))
    with pytest.raises(StateError, match="expected a journal that keeps records"):
        driver.tell(e.Started(at=START))
    assert driver.noted_now() == [replace(RECORD, data=b"")]


def test_an_event_that_an_action_causes_waits_for_the_other_actions() -> None:
    driver, publish = Noting(Board()), e.PublishRun(job_id=NOTHING, count=1, logs=0)
    driver.answers = {e.Started: (publish, ALARM), e.Tick: (RECORD,)}
    driver.tell(e.Started(at=START))
    assert driver.noted_now() == [publish, ALARM, RECORD]


def test_one_tick_for_all_that_is_due() -> None:
    driver = Noting(Board())
    driver.answers = {e.Started: [e.Wake(at=START + seconds) for seconds in (5, 9, 5, 20)]}
    driver.tell(e.Started(at=START))
    for seconds, ticks in ((4, 0), (9, 1), (10, 1), (20, 2), (30, 2)):
        driver.now = START + seconds
        driver.tick()
        assert [type(event) for event in driver.told].count(e.Tick) == ticks


def test_a_fetch_is_tried_until_it_finds_something() -> None:
    driver, again = Noting(Board()), [("fetch", 2)]
    driver.has_files = False
    driver.want_run(NOTHING, 2)
    driver.has_files = True
    driver.look_again()
    driver.look_again()
    assert driver.noted_now() == [*again, *again], "under way"
    driver.fetched(NOTHING, 2, "gone")
    for seconds, tried in ((RETRY_SECONDS - 1, []), (RETRY_SECONDS, again)):
        driver.now = START + seconds
        driver.look_again()
        assert driver.noted_now() == tried
    driver.fetched(NOTHING, 2, "gone")
    driver.retry_fetches(NOTHING)
    driver.look_again()
    assert driver.noted_now() == again
    driver.fetched(NOTHING, 2)
    driver.look_again()
    assert driver.noted_now() == []
    assert driver.told == [e.Arrived(at=driver.now, job_id=NOTHING, count=2)]


def test_work_waits_until_ready_and_skips_games_that_are_over() -> None:
    board = board_with(heads=JOB.checkpoints)
    driver, game, train = Noting(board), with_game(board), e.Train(job_id=JOB.id, count=1)
    driver.is_ready = False
    driver.begin_work(train)
    driver.is_ready = True
    driver.look_again()
    driver.look_again()
    assert driver.noted_now() == [(train, None), (train, None)]
    job, gather = board.jobs[JOB.id], gather_of(game)
    job.status = JobStatus.SLASHED
    driver.begin_work(gather)
    driver.look_again()
    assert driver.noted_now() == []
    job.status = JobStatus.ACTIVE  # the block with its end has vanished
    driver.look_again()
    turn = Turn(state=game.state, line=(), defends=1)
    assert driver.noted_now() == [(gather, turn)]
    job.status = JobStatus.ABANDONED
    driver.begin_work(train)
    driver.look_again()
    assert driver.noted_now() == [], "nobody trains for a job that is over"
    job.status = JobStatus.ACTIVE
    driver.look_again()
    assert driver.noted_now() == [(train, None)]
    driver.begin_work(replace(gather, snapshot=NOTHING))
    driver.look_again()
    assert driver.noted_now() == [], "the game has moved on"


def test_early_events_are_delivered_once_the_board_shows_their_job() -> None:
    board = Board()
    driver, shown = Noting(board), e.HeadShown(at=START, head=TRUTH.head(1))
    moved = e.MoveShown(at=START, game_id=NOTHING, wire=b"")
    for event in (shown, moved):
        driver.hear(event)
    board.jobs.update(board_with().jobs)
    for _ in range(2):
        driver.look_again()
    assert driver.told == [shown]


def test_post_is_journaled_before_sending_and_created_once() -> None:
    board = board_with(heads=JOB.checkpoints)
    driver, game, head = Noting(board), with_game(board), FALSE.head(2)
    for _ in range(2):
        driver.say(e.ShowHead(head=head))
        driver.say(e.ShowMove(game_id=game.id, wire=b"1"))
    (first, both) = driver.noted_now()
    assert both[:1] == first
    signed = [posts.SignedPost.decode(wire) for wire in both]
    assert [one.verify(DOMAIN) for one in signed] == [posts.HeadBody(head=head), posts.MoveBody(wire=b"1")]
    assert [(one.post.job_id, one.post.game_id) for one in signed] == [(JOB.id, JOB.id), (JOB.id, game.id)]
    challenge = e.Transact(place=("challenge",), transaction=tx.Challenge(head=head, nonce=0))
    driver.transact(challenge)
    (*_, opened), sent = driver.noted_now()
    assert isinstance(posts.SignedPost.decode(opened).verify(DOMAIN), posts.GameBody), "before the challenge"
    assert sent == challenge
    driver.read(replace(signed[0].post, sender=CHALLENGER.address), posts.HeadBody(head=head))
    driver.read(signed[0].post, posts.HeadBody(head=head))
    assert driver.told == [e.HeadShown(at=START, head=head)], "not its own"
