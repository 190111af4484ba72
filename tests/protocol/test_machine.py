"""The base of all parties and its instants: records, wakes, money under way, and the last second of each wait."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.protocol.runs import CHALLENGER, CLIENT, DOMAIN, TRAINER, program
from tests.protocol.test_parties import board_with, calls, known, with_game
from tests.protocol.town import (
    BLOCK,
    FALSE,
    JOB,
    MORE,
    START,
    TRUTH,
    KnowingAuditor,
    KnowingClient,
    KnowingTrainer,
    KnowingWatcher,
    root,
)  # fmt: skip
from tiebreak.protocol.commitments.job import Head, LogReceipt, SignedHead
from tiebreak.protocol.commitments.terms import MAX_GAMES
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import Board, JobStatus, PublicJob
from tiebreak.protocol.parties.client import GRACE_BLOCKS
from tiebreak.protocol.parties.machine import PartyMachine
from tiebreak.protocol.parties.terms import Means
from tiebreak.protocol.program.rounding import Policy, SumKind, pack_tolerances
from tiebreak.protocol.tags import Digest

PLACE: e.Place = ("of a test", JOB.id)
LOGGED = replace(JOB, policy=int(Policy.LOGGED), tolerances=pack_tolerances(dict.fromkeys(SumKind, 2)))


class Planned(PartyMachine):
    """A machine whose plan is that of the test."""

    ROLE = "test"
    do_next: Callable[["Planned"], object] = staticmethod(lambda _: None)

    def plan(self) -> None:
        type(self).do_next(self)


def acting(act: Callable[[PartyMachine], object], machine: PartyMachine, event: e.Event) -> tuple[e.Action, ...]:
    """The actions of a machine that does this when it plans."""

    class Acting(Planned):
        do_next = staticmethod(act)

    machine.__class__ = Acting
    return machine.observe(event)


def a_machine(board: Board | None = None, journal: Any = (), **more: Any) -> PartyMachine:
    return Planned(**known(board_with() if board is None else board, TRAINER, journal), **more)


def test_journal_keeps_the_first_record_of_each_key() -> None:
    entries = [e.AppendRecord(place=PLACE, data=data) for data in (b"first", b"second")]
    assert a_machine(journal=entries).records[PLACE] == b"first"
    machine, found = a_machine(), list[bytes]()

    def twice(party: PartyMachine) -> None:
        found.extend(party.record(PLACE, data) for data in (b"first", b"second"))

    actions = acting(twice, machine, e.Started(at=START))
    assert found == [b"first", b"first"]
    assert actions == (e.AppendRecord(place=PLACE, data=b"first"),)


def test_earliest_requested_wake_time_is_used() -> None:
    def wakes(party: PartyMachine) -> None:
        for at in (START + 9, START + 5, START + 7):
            party.wake(at)

    assert acting(wakes, a_machine(), e.Started(at=START)) == (e.Wake(at=START + 5),)


def test_time_does_not_run_backwards() -> None:
    machine = a_machine()
    machine.observe(e.Tick(at=START + 5))
    machine.observe(e.Tick(at=START))
    assert machine.now == START + 5


def test_instant_counts_as_reached_in_its_own_second() -> None:
    for after in (-1, 0, 1):
        found: list[bool] = []

        def asks(party: PartyMachine, found: list[bool] = found) -> None:
            found.append(party.has_come(START))

        actions = acting(asks, a_machine(), e.Tick(at=START + after))
        assert found == [after >= 0]
        assert actions == (() if after >= 0 else (e.Wake(at=START),))


def test_work_under_way_is_not_begun_again() -> None:
    work, machine = e.Train(job_id=JOB.id, count=1), a_machine()

    def begins(party: PartyMachine) -> None:
        party.begin(work)

    assert acting(begins, machine, e.Started(at=START)) == (e.Start(work=work),)
    assert machine.observe(e.Tick(at=START)) == ()
    assert machine.observe(e.Done(at=START, work=work)) == (e.Start(work=work),), "it is wanted again"


def test_error_in_one_game_does_not_stop_other_work() -> None:
    def fails(party: PartyMachine) -> None:
        with party.apart("a game"):
            raise KeyError("of a test")
        party.begin(e.Train(job_id=JOB.id, count=1))  # type: ignore[unreachable]

    alarm, start = acting(fails, a_machine(), e.Started(at=START))
    assert isinstance(alarm, e.Alarm)
    assert alarm.is_error
    assert "KeyError: 'of a test'" in alarm.text
    assert isinstance(start, e.Start)


def test_pending_stakes_count_against_the_spending_limits() -> None:
    """A stake that is sent and in no block yet is spent; the board does not show it."""
    board = board_with(JobStatus.OFFERED)
    stake = JOB.trainer_stake
    accepting = tx.AcceptJob(job_id=JOB.id)
    for means, is_fine in (
        (Means(most_stake=2 * stake), True),
        (Means(most_stake=2 * stake - 1), False),
        (Means(most_exposed=2 * stake), True),
        (Means(most_exposed=2 * stake - 1), False),
        (Means(balance=lambda: 2 * stake), True),
        (Means(balance=lambda: 2 * stake - 1), False),
    ):
        found: list[bool] = []

        def puts_up(party: PartyMachine, found: list[bool] = found) -> None:
            party.want(("accept", JOB.id), accepting)
            found.append(party.affords(("another", JOB.id), JOB, stake))

        acting(puts_up, a_machine(board, means=means), e.Started(at=START))
        assert found == [is_fine], means


# ---------------------------------------------------------------- auditors and watchers


def test_a_challenge_is_sent_up_to_the_last_second_of_the_window() -> None:
    for after in (-1, 0, 1):
        board = board_with(heads=2)
        auditor, (job,) = KnowingAuditor(**known(board, CHALLENGER)), board.jobs.values()
        head, now = FALSE.head(2), job.window_end + after
        auditor.observe(e.HeadShown(at=START, head=head))
        for attempt in range(2):
            work = e.Replay(job_id=JOB.id, head=head, attempt=attempt)
            actions = auditor.observe(e.Done(at=now, work=work, root=root(TRUTH, 2)))
        assert calls(actions) == ([tx.Challenge(head=head, nonce=0, more=MORE)] if after <= 0 else [])


@pytest.mark.parametrize("limit", ["most_stake", "most_exposed", "balance"])
@pytest.mark.parametrize("games", [0, 1, MORE, MORE + 1])
def test_a_challenge_pays_for_games_in_front_of_it_as_far_as_the_account_allows(limit: str, games: int) -> None:
    """A builder may hold it back to the last block, behind games that an accomplice of the trainer starts in that."""
    wei = JOB.challenger_stake << games
    board = board_with(heads=2)
    for less in (0, 1):
        most = wei - less
        means = Means(balance=lambda most=most: most) if limit == "balance" else Means(**{limit: most})
        auditor, head = KnowingAuditor(**known(board, CHALLENGER), means=means), FALSE.head(2)
        auditor.observe(e.HeadShown(at=START, head=head))
        for attempt in range(2):
            work = e.Replay(job_id=JOB.id, head=head, attempt=attempt)
            actions = auditor.observe(e.Done(at=START, work=work, root=root(TRUTH, 2)))
        paid = min(games - less, MORE)
        assert calls(actions) == ([tx.Challenge(head=head, nonce=0, more=paid)] if paid >= 0 else [])
    burnt = [JOB.challenger_stake * (2**count - 1) // 2 for count in (MORE, MORE + 1)]
    assert burnt[0] < JOB.reward + JOB.trainer_stake <= burnt[1]


def test_watcher_keeps_at_most_two_heads_of_one_count() -> None:
    watcher = KnowingWatcher(**known(board_with(), None))
    third = SignedHead.sign(Head(job_id=JOB.id, count=2, run_root=Digest(bytes(32))), DOMAIN, TRAINER)
    for head in (TRUTH.head(2), FALSE.head(2), third):
        watcher.observe(e.HeadShown(at=START, head=head))
    assert watcher.heads_of(JOB.id) == [TRUTH.head(2), FALSE.head(2)]


# ---------------------------------------------------------------- policy logged


class WithLogs:
    """Has the program, of whatever job."""

    def program_of(self, job: Any) -> Any:
        return program()


class LoggedTrainer(WithLogs, KnowingTrainer):
    pass


class LoggedClient(WithLogs, KnowingClient):
    pass


def logged_board(*, heads: int = 0) -> Board:
    board = Board()
    board.jobs[LOGGED.id] = PublicJob(
        job=LOGGED, status=JobStatus.ACTIVE, head_count=heads, last_progress=START, accepted=START
    )
    return board


def signed(number: int) -> SignedHead:
    return SignedHead.sign(Head(job_id=LOGGED.id, count=1, run_root=Digest(bytes([number]) * 32)), DOMAIN, TRAINER)


def test_trainer_accepts_only_the_clients_receipt_for_its_own_head() -> None:
    own = signed(1)
    others = signed(2)
    place: e.Place = ("head", LOGGED.id, 1)
    for receipt, is_kept in (
        (LogReceipt.sign(own.head, DOMAIN, CLIENT), True),
        (LogReceipt.sign(own.head, DOMAIN, CHALLENGER), False),
        (LogReceipt.sign(others.head, DOMAIN, CLIENT), False),
    ):
        journal = [e.AppendRecord(place=place, data=own.encode())]
        trainer = LoggedTrainer(**known(logged_board(heads=1), TRAINER, journal))
        trainer.observe(e.LogReceiptShown(at=START, receipt=receipt))
        assert (("receipt", LOGGED.id, 1) in trainer.records) is is_kept


def test_a_trainer_computes_one_segment_ahead_of_its_receipts() -> None:
    journal = [e.AppendRecord(place=("trained", LOGGED.id, 1), data=bytes(32))]
    train = e.Start(work=e.Train(job_id=LOGGED.id, count=2))
    for receipts in (0, 1):
        board = logged_board(heads=1)
        board.jobs[LOGGED.id].receipts = receipts
        trainer = LoggedTrainer(**known(board, TRAINER, journal))
        assert (train in trainer.observe(e.Started(at=START + 1))) is (receipts == 1)


def test_client_leaves_a_job_only_after_the_trainers_time_to_leave() -> None:
    for after, parts in ((-1, False), (0, False), (1, True)):
        board = logged_board(heads=1)
        due = board.jobs[LOGGED.id].parting + GRACE_BLOCKS * BLOCK
        actions = LoggedClient(**known(board, CLIENT)).observe(e.Tick(at=due + after))
        assert (tx.Part(job_id=LOGGED.id) in calls(actions)) is parts


def test_an_open_game_keeps_a_client_from_ending_its_job() -> None:
    board = board_with(heads=1)
    (job,) = board.jobs.values()
    played, now = with_game(board, at=job.due - 5), job.due + 1
    assert now < played.state.deadline
    assert calls(KnowingClient(**known(board, CLIENT)).observe(e.Tick(at=now))) == []


# ---------------------------------------------------------------- the last second


def test_trainer_starts_no_segment_after_its_head_is_due() -> None:
    for after in (-1, 0, 1):
        board = board_with()
        now = board.jobs[JOB.id].due + after
        actions = KnowingTrainer(**known(board, TRAINER)).observe(e.Tick(at=now))
        assert (e.Start(work=e.Train(job_id=JOB.id, count=1)) in actions) is (after <= 0)


def test_a_window_lasts_until_all_segments_had_their_audit_time() -> None:
    slow = replace(JOB, audit_time=JOB.challenge_window)
    job = PublicJob(job=slow, status=JobStatus.ACTIVE, last_progress=START, accepted=START)
    job.accept(START)
    job.post(1, START)
    assert job.window_end == START + slow.challenge_window
    job.post(2, START)
    assert job.window_end == START + 2 * slow.challenge_window, "two segments, one after the other"


def test_challenge_stake_doubles_for_each_open_or_earlier_game() -> None:
    board = board_with(heads=2)
    (job,) = board.jobs.values()
    assert [board.price(job, more) for more in range(3)] == [JOB.challenger_stake << more for more in range(3)]
    with_game(board)
    assert [board.price(job, more) for more in range(2)] == [JOB.challenger_stake << 1 + more for more in range(2)]
    assert board.price(job, 10**6) == JOB.challenger_stake << MAX_GAMES - 1
    sent = tx.Challenge(head=FALSE.head(2), nonce=0, more=1)
    assert board.stake_of(sent) == JOB.challenger_stake << 2


def test_job_is_due_at_the_earlier_of_window_and_deadline() -> None:
    for deadline in (JOB.challenge_window - 1, JOB.challenge_window + 1):
        due = PublicJob(job=replace(JOB, deadline=deadline), last_progress=START, accepted=START).due
        assert due == START + min(deadline, JOB.challenge_window)


def test_client_accepts_only_the_trainers_signature_on_a_job() -> None:
    for key, counts in ((TRAINER, True), (CHALLENGER, False)):
        client = KnowingClient(**known(Board(), CLIENT))
        client.observe(e.JobDrafted(at=START, job=JOB))
        actions = client.observe(e.JobSigned(at=START, job=JOB, signature=JOB.sign(DOMAIN, key)))
        assert bool(calls(actions)) is counts
        assert any(isinstance(action, e.Alarm) for action in actions) is not counts
