"""The parties alone: no simulator, no chain. What they plan, what they say, and what a crash leaves of it."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parts import slow_except
from tests.protocol.runs import CHALLENGER, CLIENT, DOMAIN, TRAINER, Run
from tests.protocol.town import (
    BLOCK,
    FALSE,
    JOB,
    KINDS,
    LIE,
    MORE,
    PACE,
    START,
    TALKED_FALSE,
    TRUTH,
    Fate,
    KnowingAuditor,
    KnowingClient,
    KnowingTrainer,
    KnowingWatcher,
    Town,
    root,
)  # fmt: skip
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import FINITE_LOSSES, Concession, Head, Job, SignedHead, game_id
from tiebreak.protocol.commitments.records import StepRecord, run_tree
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Concede, Descend, Phase, Prove, Side
from tiebreak.protocol.game.snapshot import Snapshot
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import Board, JobStatus, PublicGame, PublicJob
from tiebreak.protocol.parties.client import GRACE_BLOCKS
from tiebreak.protocol.parties.machine import PASSING, PartyMachine
from tiebreak.protocol.parties.terms import Means
from tiebreak.protocol.program.rounding import Policy
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import verify

SENDS = (e.Transact, e.OfferJob, e.SignJob, e.ShowHead, e.ShowMove, e.PublishRun)


def known(board: Board, key: Any, journal: Any = ()) -> dict[str, Any]:
    return {"board": board, "domain": DOMAIN, "pace": PACE, "key": key, "journal": journal}


def board_with(status: JobStatus = JobStatus.ACTIVE, *, heads: int = 0, at: int = START) -> Board:
    """A board with one job."""
    board = Board()
    board.jobs[JOB.id] = PublicJob(job=JOB, status=status, head_count=heads, last_progress=at, accepted=at)
    return board


def with_game(board: Board, *, at: int = START) -> PublicGame:
    """A game against the false run's second head."""
    head, job = FALSE.head(2), board.jobs[JOB.id]
    number = game_id(head.head, DOMAIN, CHALLENGER.address, 0)
    state = rules.start(JOB, head.head, number, at)
    board.games[number] = PublicGame(
        id=number, job=job, challenger=CHALLENGER.address, head=head, state=state, started=at
    )
    return board.games[number]


def gather_of(played: PublicGame) -> e.Gather:
    """The work of the turn on the chain."""
    return e.Gather(game_id=played.id, sequence=played.state.moves, snapshot=Snapshot.of(played.state).id)


def calls(actions: Sequence[e.Action]) -> list[tx.Transaction]:
    """The transactions that a party asks for."""
    return [action.transaction for action in actions if isinstance(action, e.Transact)]


# ---------------------------------------------------------------- whole games


def test_an_honest_run_is_paid_and_everyone_withdraws() -> None:
    town = Town(TRUTH).play()
    assert town.job.status is JobStatus.SETTLED
    assert not town.board.games
    assert not any(town.board.credits.values())
    assert town.alarms("watcher") == town.alarms("auditor") == []


def test_a_false_run_is_convicted_at_its_lie() -> None:
    town = Town(FALSE).play()
    assert town.job.status is JobStatus.SLASHED
    assert town.verdict == (Side.CHALLENGER, rules.Reason.RECOMPUTED)
    assert (town.game.state.step, town.game.state.leaf) == LIE
    said = [place for seen in town.seen.values() for place in seen.statements if place[0] == "said"]
    assert sorted(place[2] for place in said) == list(range(len(town.game.moves))), "each move went as a message too"
    assert not any(town.board.credits.values())


def test_watcher_sends_nothing_and_raises_alarms_on_a_false_run() -> None:
    for run in (TRUTH, FALSE):
        town = Town(run).play()
        assert not [action for action in town.seen["watcher"].actions if isinstance(action, SENDS)]
        assert any(isinstance(action, e.Start) for action in town.seen["watcher"].actions), "it did look"
        assert [alarm.is_error for alarm in town.alarms("watcher")] == ([] if run is TRUTH else [True, True])
    with pytest.raises(StateError, match="expected a party with a key"):
        _ = KnowingWatcher(**known(Board(), None)).key


def test_freshly_started_party_sends_nothing() -> None:
    for kind, key in KINDS.values():
        machine = kind(**known(Board(), key))
        assert not any(isinstance(action, SENDS) for action in machine.observe(e.Started(at=START)))


# ---------------------------------------------------------------- crashes, and a bad post


@pytest.mark.parametrize("every", slow_except([30, 5], 30))
@pytest.mark.parametrize("name", slow_except(["client", "trainer", "auditor"], "trainer"))
@pytest.mark.parametrize("run", [FALSE, TALKED_FALSE], ids=["on the chain", "talked"])
def test_restarted_party_repeats_identical_statements(run: Run, name: str, every: int) -> None:
    """Made anew from its journal: every statement is the same, byte for byte."""
    whole = Town(run).play()
    events = whole.seen[name].events
    assert events > 50
    for number in range(every // 2 + 1, events + 1, every):
        town = Town(run, fate=Fate(dies=(name, number))).play()
        assert town.seen[name].events > number
        assert town.statements() == whole.statements(), f"{name} died after event {number}"
        assert town.job.status is whole.job.status


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("run", "end"),
    [(TRUTH, JobStatus.SETTLED), (FALSE, JobStatus.SLASHED), (TALKED_FALSE, JobStatus.SLASHED)],
    ids=["true", "false", "false and talked"],
)
def test_lost_duplicated_and_late_messages_do_not_change_the_outcome(run: Run, end: JobStatus, seed: int) -> None:
    rng = Random(seed)
    town = Town(run, fate=Fate(copies=lambda: rng.choice((0, 1, 1, 2)), delay=lambda: rng.randrange(30))).play(12000)
    assert town.job.status is end
    if run is not TRUTH:
        assert town.verdict == (Side.CHALLENGER, rules.Reason.RECOMPUTED)
        assert (town.game.state.step, town.game.state.leaf) == LIE
    for seen in town.seen.values():
        repeated = {"call"} if run is TALKED_FALSE else {"said"}
        assert all(len(said) == 1 for place, said in seen.statements.items() if place[0] not in repeated)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["train", "offer", "tick", "restart", "head"]), st.integers(0, 3)), max_size=30)
)
def test_trainer_never_signs_two_heads_for_one_count(happenings: list[tuple[str, int]]) -> None:
    """Work that is done twice with other results, offers that come again, crashes: one head a place, one signature."""
    board, journal, heads, signatures = board_with(), list[e.AppendRecord](), dict[int, set[bytes]](), set[bytes]()
    machine: PartyMachine = KnowingTrainer(**known(board, TRAINER))
    for number, (what, k) in enumerate(happenings):
        count = k % JOB.checkpoints + 1
        event: e.Event = e.Tick(at=START + number)
        match what:
            case "train":
                work = e.Train(job_id=JOB.id, count=count)
                event = e.Done(at=START + number, work=work, root=bytes([number]) * 32)
            case "offer":
                event = e.JobOffered(at=START + number, job=JOB)
            case "head":
                board.jobs[JOB.id].head_count = max(board.jobs[JOB.id].head_count, min(k, JOB.checkpoints))
            case "restart":
                machine, event = KnowingTrainer(**known(board, TRAINER, journal)), e.Started(at=START + number)
        for action in machine.observe(event):
            if isinstance(action, e.AppendRecord):
                journal.append(action)
            elif isinstance(action, e.ShowHead):
                heads.setdefault(action.head.head.count, set()).add(action.head.encode())
                places = [entry.data for entry in journal if entry.place == ("head", JOB.id, action.head.head.count)]
                assert places == [action.head.encode()], "it is in the journal before it leaves"
            elif isinstance(action, e.SignJob):
                signatures.add(action.signature)
    assert all(len(found) == 1 for found in heads.values())
    assert len(signatures) <= 1


# ---------------------------------------------------------------- clocks, a second before and after


@pytest.mark.parametrize(
    ("kind", "key", "grace"), [(KnowingAuditor, CHALLENGER, 0), (KnowingClient, CLIENT, GRACE_BLOCKS * BLOCK)]
)
@pytest.mark.parametrize(("after", "claims"), [(-1, False), (0, False), (1, True)])
def test_a_timeout_is_claimed_after_the_deadline(
    kind: type[PartyMachine], key: Any, grace: int, after: int, claims: bool
) -> None:
    """The opponent claims it, or the client, when it had time enough."""
    board = board_with()
    played = with_game(board)
    due = played.state.deadline + grace
    actions = kind(**known(board, key)).observe(e.Tick(at=due + after))
    assert (tx.ClaimTimeout(game_id=played.id) in calls(actions)) is claims
    assert claims or e.Wake(at=due + 1) in actions


WINDOW = JOB.challenge_window
TRAINED = [e.AppendRecord(place=("trained", JOB.id, k), data=root(TRUTH, k)) for k in range(1, JOB.checkpoints + 1)]


def late_board() -> Board:
    """Heads come, and the deadline is passed all the same."""
    board = board_with(heads=1, at=START + 500)
    (job,) = board.jobs.values()
    job.job, job.accepted = replace(JOB, deadline=600, nonce=job.job.nonce), START
    return board


CLIENTS: dict[str, tuple[Board, int, list[tx.Transaction]]] = {
    "an offer that nobody accepts": (board_with(JobStatus.OFFERED), WINDOW - 1, [tx.CancelJob(job_id=JOB.id)]),
    "a silent trainer": (board_with(heads=1), WINDOW, [tx.Abandon(job_id=JOB.id)]),
    "a late trainer": (late_board(), 600, [tx.Abandon(job_id=JOB.id)]),
    "a whole run": (board_with(heads=JOB.checkpoints), WINDOW, []),
}
"""What a client sees, the last second in which it waits, and what it sends after that."""


@pytest.mark.parametrize("what", CLIENTS)
def test_a_client_takes_its_money_back_after_the_last_second(what: str) -> None:
    board, last, due = CLIENTS[what]
    for after in (-1, 0, 1):
        client = KnowingClient(**known(board, CLIENT))
        assert calls(client.observe(e.Tick(at=START + last + after))) == (due if after > 0 else [])


def test_a_trainer_settles_after_the_window() -> None:
    board, settle = board_with(heads=JOB.checkpoints), tx.Settle(job_id=JOB.id)
    for after, sent in ((-1, []), (0, []), (1, [settle])):
        trainer = KnowingTrainer(**known(board, TRAINER, TRAINED))
        assert calls(trainer.observe(e.Tick(at=START + WINDOW + after))) == sent
    with_game(board)
    again = KnowingTrainer(**known(board, TRAINER, TRAINED))
    assert settle not in calls(again.observe(e.Tick(at=START + WINDOW + 1))), "not while a game is open"


@pytest.mark.parametrize(("after", "moves"), [(-1, True), (0, True), (1, False)])
def test_no_move_after_the_deadline(after: int, moves: bool) -> None:
    board = board_with(heads=JOB.checkpoints)
    played = with_game(board)
    trainer = KnowingTrainer(**known(board, TRAINER))
    gather = gather_of(played)
    assert e.Start(work=gather) in trainer.observe(e.Tick(at=START + 1))
    shown = Descend(nodes=(bytes(32), bytes(32)))
    actions = trainer.observe(e.Done(at=played.state.deadline + after, work=gather, move=shown))
    made = tx.MakeMove(game_id=played.id, sequence=0, move=shown)
    assert (made in calls(actions)) is moves
    assert any(isinstance(action, e.Alarm) and action.is_error for action in actions) is not moves


def proving(seal: int) -> tuple[PublicGame, KnowingAuditor]:
    """A game in which a seal has counted since this instant, and the auditor that proves its answer."""
    board = board_with()
    played = with_game(board)
    played.state = replace(played.state, phase=Phase.PROVE, last=seal, moved=seal)
    return played, KnowingAuditor(**known(board, CHALLENGER))


BEFORE_A_PROOF = pytest.mark.parametrize(("before", "sent"), [(BLOCK + 1, False), (BLOCK, True), (BLOCK - 1, True)])


@BEFORE_A_PROOF
def test_a_proof_waits_until_the_next_block_takes_it(before: int, sent: bool) -> None:
    """The next block comes a block's time after the last one."""
    (played, auditor), now = proving(START - JOB.clock + 2 * BLOCK), START + 2 * BLOCK - before
    auditor.observe(e.BoardChanged(at=now, block=now))
    actions = auditor.observe(e.Done(at=now, work=gather_of(played), move=Prove(instruction=b"\x01")))
    assert bool(calls(actions)) is sent
    assert sent or e.Wake(at=played.state.earliest - 1) in actions


@BEFORE_A_PROOF
def test_a_proof_is_sent_even_if_no_block_comes_while_it_waits(before: int, sent: bool) -> None:
    """Where blocks, or posts, only come with transactions, nobody sends one while a proof waits for its clock."""
    played, auditor = proving(START)
    auditor.observe(e.BoardChanged(at=START, block=START))
    auditor.observe(e.Done(at=START + 1, work=gather_of(played), move=Prove(instruction=b"\x01")))
    assert bool(calls(auditor.observe(e.Tick(at=played.state.earliest - before)))) is sent


# ---------------------------------------------------------------- transactions in the way


@pytest.mark.parametrize("error", sorted(PASSING))
def test_transient_refusals_are_retried_with_the_next_block(error: str) -> None:
    client = KnowingClient(**known(board_with(JobStatus.OFFERED), CLIENT))
    now = START + JOB.challenge_window
    (first,) = (a for a in client.observe(e.BoardChanged(at=now, block=now)) if isinstance(a, e.Transact))
    assert not calls(client.observe(e.Tick(at=now + 1))), "it waits to be mined"
    actions = client.observe(e.Refused(at=now + 5, place=first.place, error=error))
    assert e.Wake(at=now + BLOCK) in actions
    assert not calls(client.observe(e.Tick(at=now + BLOCK - 1)))
    (second,) = (a for a in client.observe(e.Tick(at=now + BLOCK)) if isinstance(a, e.Transact))
    assert second == first


def test_permanently_refused_transaction_is_reported_not_retried() -> None:
    client = KnowingClient(**known(board_with(JobStatus.OFFERED), CLIENT))
    now, error = START + JOB.challenge_window, "IllegalMove"
    (first,) = (a for a in client.observe(e.Tick(at=now)) if isinstance(a, e.Transact))
    (alarm,) = (a for a in client.observe(e.Refused(at=now, place=first.place, error=error)) if isinstance(a, e.Alarm))
    assert not alarm.is_error
    assert not calls(client.observe(e.Tick(at=now + 10 * BLOCK)))


def test_insufficient_funds_raise_alarms_and_are_retried_each_block() -> None:
    """Each block anew, however long the account stays empty; a challenge does not offer more for that."""
    client = KnowingClient(**known(board_with(JobStatus.OFFERED), CLIENT))
    now = START + JOB.challenge_window
    actions = client.observe(e.BoardChanged(at=now, block=now))
    for _ in range(198):
        (first,) = (a for a in actions if isinstance(a, e.Transact))
        (alarm,) = (a for a in client.observe(e.Refused(at=now, place=first.place, error="")) if isinstance(a, e.Alarm))
        assert alarm.is_error, "a person can fill an account"
        assert client.refusals(first.place) == 0
        assert not calls(client.observe(e.Tick(at=now + BLOCK - 1)))
        now += BLOCK
        actions = client.observe(e.BoardChanged(at=now, block=now))
    assert first in actions


def poor_trainer(*, owed: int) -> tuple[KnowingTrainer, PublicJob, list[int]]:
    """A trainer at work on a job, with a second one to accept: the offer, and the account's wei, which may change."""
    board, purse, floor = board_with(), [3 + JOB.trainer_stake - owed], 3
    other = PublicJob(job=replace(JOB, nonce=8), status=JobStatus.OFFERED, last_progress=START)
    board.jobs[other.id] = other
    if owed:
        board.credits[TRAINER.address] = owed
    means = Means(floor=floor, balance=lambda: purse[0])
    return KnowingTrainer(**known(board, TRAINER), means=means), other, purse


def test_a_party_withdraws_its_credit_before_it_lacks_money_for_a_stake() -> None:
    machine, offered, purse = poor_trainer(owed=5)
    actions = machine.observe(e.BoardChanged(at=START, block=START))
    assert calls(actions) == [tx.Withdraw(to=TRAINER.address)], "another job goes on, but this money is needed now"
    assert not [a for a in actions if isinstance(a, e.Alarm)], "nobody has to send money"
    purse[0] += machine.board.credits.pop(TRAINER.address)
    actions = machine.observe(e.Mined(at=START + BLOCK, place=("withdraw",)))
    assert calls(actions) == [tx.AcceptJob(job_id=offered.id)]


@pytest.mark.parametrize("wei", [2, 3])
def test_party_withdraws_credit_only_below_its_balance_floor(wei: int) -> None:
    """Where nothing is short, one withdrawal at the end of all jobs is cheaper than one for each."""
    machine, offered, purse = poor_trainer(owed=5)
    del machine.board.jobs[offered.id]
    purse[0] = wei
    found = calls(machine.observe(e.BoardChanged(at=START, block=START)))
    assert found == ([tx.Withdraw(to=TRAINER.address)] if wei < 3 else [])


def test_a_refusal_for_lack_of_money_leads_to_a_withdrawal() -> None:
    machine, offered, purse = poor_trainer(owed=5)
    purse[0] = JOB.trainer_stake + 3
    place = ("accept", offered.id)
    assert calls(machine.observe(e.BoardChanged(at=START, block=START))) == [tx.AcceptJob(job_id=offered.id)]
    found = machine.observe(e.Refused(at=START, place=place, error=""))  # a fee has risen since the balance was read
    assert calls(found) == [tx.Withdraw(to=TRAINER.address)]


def test_insufficient_credit_is_withdrawn_and_the_owner_is_alerted() -> None:
    machine, _, purse = poor_trainer(owed=5)
    purse[0] -= 1
    actions = machine.observe(e.BoardChanged(at=START, block=START))
    assert calls(actions) == [tx.Withdraw(to=TRAINER.address)]
    (alarm,) = (a for a in actions if isinstance(a, e.Alarm))
    assert alarm.is_error
    assert "send money to the account" in alarm.text


# ---------------------------------------------------------------- before a stake is risked


def looked_at(roots: list[bytes]) -> tuple[tuple[e.Action, ...], list[e.Alarm]]:
    """What an auditor does about the first head of the true run after replays that gave these roots."""
    auditor, told = KnowingAuditor(**known(board_with(), CHALLENGER)), list[e.Alarm]()
    head = TRUTH.head(1)
    actions = auditor.observe(e.HeadShown(at=START, head=head))
    for attempt, found in enumerate(roots):
        work = e.Replay(job_id=JOB.id, head=head, attempt=attempt)
        assert e.Start(work=work) in actions, "it looks again"
        actions = auditor.observe(e.Done(at=START + attempt, work=work, root=found, problem="" if found else "gone"))
        told += [action for action in actions if isinstance(action, e.Alarm)]
    return actions, told


A, B, C = bytes(32), b"\x01" * 32, b"\x02" * 32


@pytest.mark.parametrize(
    ("roots", "challenges", "errors"),
    [
        ([A, A], True, 0),
        ([A, B, A], True, 1),
        ([A, B, B], True, 1),
        ([A, B, C], False, 1),
        ([A, b""], False, 0),
        ([b""], False, 0),
    ],
)
def test_only_two_equal_replays_count_against_a_head(roots: list[bytes], challenges: bool, errors: int) -> None:
    actions, told = looked_at(roots)
    assert calls(actions) == ([tx.Challenge(head=TRUTH.head(1), nonce=0, more=MORE)] if challenges else [])
    assert sum(alarm.is_error for alarm in told) == errors


@pytest.mark.parametrize("seats", [0, 2])
def test_challenge_waits_until_a_sealed_head_opens_its_window(seats: int) -> None:
    """A sealed head may be shown a block before it is opened. Without seats, a window that is over stays so."""
    board = board_with(heads=JOB.checkpoints)
    auditor, (job,) = KnowingAuditor(**known(board, CHALLENGER)), board.jobs.values()
    job.seating.sealed_at, job.seating.is_opened = seats and START, False
    now, head = job.window_end + 1, TRUTH.head(1)
    auditor.observe(e.HeadShown(at=now, head=head))
    for attempt in range(2):
        work = e.Replay(job_id=JOB.id, head=head, attempt=attempt)
        actions = auditor.observe(e.Done(at=now, work=work, root=A))
    assert not calls(actions)
    assert [one.is_error for one in actions if isinstance(one, e.Alarm)] == [False, not seats]
    job.last_progress = now
    assert calls(auditor.observe(e.BoardChanged(at=now, block=now))) == [tx.Challenge(head=head, nonce=0, more=MORE)]


def test_a_replay_that_agrees_in_the_end_clears_the_head() -> None:
    truth = root(TRUTH, 1)
    assert calls(looked_at([truth])[0]) == []
    actions, told = looked_at([A, truth, truth])
    assert calls(actions) == []
    assert [alarm.is_error for alarm in told] == [True]


def test_two_heads_of_one_count_are_reported_whatever_the_order() -> None:
    true, false = TRUTH.head(2), FALSE.head(2)
    for first, second in ((true, false), (false, true)):
        auditor = KnowingAuditor(**known(board_with(), CHALLENGER))
        auditor.observe(e.HeadShown(at=START, head=first))
        assert calls(auditor.observe(e.HeadShown(at=START, head=first))) == []
        actions = auditor.observe(e.HeadShown(at=START, head=second))
        assert calls(actions) == [tx.Report(first=first, second=second)]


def test_auditor_reports_a_concession_instead_of_challenging() -> None:
    head, other = TRUTH.head(1), TRUTH.head(2)
    good = Concession.sign(head.head, CHALLENGER.address, DOMAIN, TRAINER)
    auditor, journal = KnowingAuditor(**known(board_with(), CHALLENGER)), list[e.AppendRecord]()
    bad = [
        Concession.sign(head.head, CLIENT.address, DOMAIN, TRAINER),
        Concession.sign(head.head, CHALLENGER.address, DOMAIN, CLIENT),
        Concession.sign(replace(head.head, job_id=Digest(bytes(32))), CHALLENGER.address, DOMAIN, TRAINER),
        replace(good, head=other.head),
    ]
    for shown in bad:
        assert not auditor.observe(e.ConcessionShown(at=START, concession=shown))
    auditor.observe(e.HeadShown(at=START, head=head))
    actions = auditor.observe(e.ConcessionShown(at=START, concession=good))
    journal += [action for action in actions if isinstance(action, e.AppendRecord)]
    assert calls(actions) == [tx.ReportConcession(concession=good)]
    again = KnowingAuditor(**known(board_with(), CHALLENGER, journal))
    (sent,) = (one for one in again.observe(e.Started(at=START)) if isinstance(one, e.Transact))
    assert sent.transaction == tx.ReportConcession(concession=good)
    again.observe(e.Refused(at=START, place=sent.place, error="WrongSigner"))
    for attempt in range(2):
        work = e.Replay(job_id=JOB.id, head=head, attempt=attempt)
        again.observe(e.HeadShown(at=START, head=head))
        actions = again.observe(e.Done(at=START, work=work, root=A))
    assert calls(actions) == [tx.Challenge(head=head, nonce=0, more=MORE)], "a refused one keeps nobody from a game"


def test_trainer_concedes_only_chosen_heads_and_repeats_it() -> None:
    class Conceding(KnowingTrainer):
        def concedes_to(self, head: Head, prover: Address) -> bool:
            return head.count == 1 and prover == CHALLENGER.address

    journal = [e.AppendRecord(place=("head", JOB.id, count), data=FALSE.head(count).encode()) for count in (1, 2)]
    wanted = Concession.sign(FALSE.head(1).head, CHALLENGER.address, DOMAIN, TRAINER)
    for kind, count, by, said in (
        (KnowingTrainer, 1, CHALLENGER, []),
        (Conceding, 2, CHALLENGER, []),
        (Conceding, 1, CLIENT, []),
        (Conceding, 3, CHALLENGER, []),
        (Conceding, 1, CHALLENGER, [wanted]),
        (Conceding, 1, CHALLENGER, [wanted]),
    ):
        trainer = kind(**known(board_with(), TRAINER, journal))
        actions = trainer.observe(e.Contested(at=START, job_id=JOB.id, count=count, by=by.address))
        assert [one.concession for one in actions if isinstance(one, e.ShowConcession)] == said
        journal += [one for one in actions if isinstance(one, e.AppendRecord) and one.place[0] == "conceded"]
    assert len(journal) == 3


def leaves(run: Any, count: int) -> tuple[Digest, ...]:
    tree = run.run_tree(count)
    return tuple(tree.node(0, position) for position in range(count))


def test_contradictory_step_records_are_reported_without_a_replay() -> None:
    """They are after a restart too, from the journal; and not before the records of both heads were seen."""
    truth, false = TRUTH.head(2), FALSE.head(3)
    place = next(i for i, (x, y) in enumerate(zip(leaves(TRUTH, 2), leaves(FALSE, 3), strict=False)) if x != y)
    auditor, journal = KnowingAuditor(**known(board_with(), CHALLENGER)), list[e.AppendRecord]()
    for head, shown in ((truth, leaves(TRUTH, 2)), (false, ()), (false, (*leaves(FALSE, 2), bytes(32)))):
        actions = auditor.observe(e.HeadShown(at=START, head=head, leaves=shown))
        journal += [action for action in actions if isinstance(action, e.AppendRecord)]
        assert not [sent for sent in calls(actions) if isinstance(sent, tx.ReportInconsistency)]
    again = KnowingAuditor(**known(board_with(), CHALLENGER, journal))
    (sent,) = calls(again.observe(e.HeadShown(at=START, head=false, leaves=leaves(FALSE, 3))))
    assert isinstance(sent, tx.ReportInconsistency)
    assert (sent.position, sent.first.head, sent.second.head) == (place, truth, false)
    for opened in (sent.first, sent.second):
        verify(opened.head.head.run_root, JOB.run_depth, place, opened.leaf, opened.siblings)
    assert sent.first.leaf != sent.second.leaf
    growing = KnowingAuditor(**known(board_with(), CHALLENGER))
    for count in range(1, JOB.checkpoints + 1):
        actions = growing.observe(e.HeadShown(at=START, head=TRUTH.head(count), leaves=leaves(TRUTH, count)))
        assert not calls(actions), "a run that grows contradicts nothing"


# ---------------------------------------------------------------- losses that a job forbids

DEMANDING = replace(JOB, policy=int(Policy.LOGGED), tolerances=FINITE_LOSSES)


def forbidden() -> tx.ReportLoss:
    """Under a signed head of two checkpoints, the second."""
    at = [StepRecord(step=DEMANDING.last_step(n), state_root=Digest(bytes(32)), loss_bits=n * NAN_BITS) for n in (0, 1)]
    tree = run_tree([record.digest for record in at], DEMANDING.steps, DEMANDING.checkpoint_interval)
    head = SignedHead.sign(Head(job_id=DEMANDING.id, count=2, run_root=tree.root), DOMAIN, TRAINER)
    found = tx.ReportLoss.of(DEMANDING, head, at)
    assert found is not None
    assert tx.ReportLoss.of(DEMANDING, head, at[:1]) is tx.ReportLoss.of(DEMANDING, head, [at[0], at[0]]) is None
    assert tx.ReportLoss.of(JOB, head, at) is None
    return found


def demanding_board() -> Board:
    board = Board()
    job = PublicJob(job=DEMANDING, status=JobStatus.ACTIVE, head_count=2, last_progress=START, accepted=START)
    board.jobs[DEMANDING.id] = job
    return board


@pytest.mark.parametrize("name", ["client", "auditor", "watcher"])
def test_whoever_sees_a_forbidden_loss_reports_it_instead_of_playing(name: str) -> None:
    kind, key = KINDS[name]
    found, board, journal = forbidden(), demanding_board(), list[e.AppendRecord]()
    work: Any = e.Replay(job_id=DEMANDING.id, head=found.head, attempt=0)
    if name == "client":
        work = e.CheckLogs(job_id=DEMANDING.id, head=found.head, attempt=0)
    party = kind(**known(board, key))
    party.observe(e.HeadShown(at=START, head=found.head))
    assert e.Start(work=work) in party.observe(e.Arrived(at=START, job_id=DEMANDING.id, count=2))
    said = e.Done(at=START, work=work, problem="step 4: NaN", found=found)
    another = forbidden()
    for hostile in (replace(said, work=replace(work, head=FALSE.head(2))), replace(said, found=None)):
        other = kind(**known(demanding_board(), key))
        assert not [sent for sent in calls(other.observe(hostile)) if isinstance(sent, tx.ReportLoss)]
    actions = party.observe(said)
    journal += [action for action in actions if isinstance(action, e.AppendRecord)]
    wanted = [] if name == "watcher" else [another]
    assert calls(actions) == wanted
    assert [one.is_error for one in actions if isinstance(one, e.Alarm)][:1] == [True]
    assert not [one for one in actions if isinstance(one, e.ShowLogReceipt)], "nobody signs for what convicts"
    again = kind(**known(board, key, journal))
    assert [sent for sent in calls(again.observe(e.Started(at=START))) if isinstance(sent, tx.ReportLoss)] == wanted
    board.jobs[DEMANDING.id].status = JobStatus.SLASHED
    over = kind(**known(board, key, journal))
    assert not [sent for sent in calls(over.observe(e.Started(at=START))) if isinstance(sent, tx.ReportLoss)]


def test_a_refused_report_of_a_loss_does_not_keep_an_auditor_from_playing() -> None:
    """A process that worked for it said what is not so: no record of its own is believed then."""
    board, found = demanding_board(), forbidden()
    auditor = KnowingAuditor(**known(board, CHALLENGER))
    auditor.observe(e.HeadShown(at=START, head=found.head))
    auditor.observe(e.Arrived(at=START, job_id=DEMANDING.id, count=2))
    work = e.Replay(job_id=DEMANDING.id, head=found.head, attempt=0)
    auditor.observe(e.Done(at=START, work=work, problem="step 4: NaN", found=replace(found, position=0)))
    place = ("loss", DEMANDING.id)
    assert not calls(auditor.observe(e.Refused(at=START, place=place, error="WrongRoot")))
    other = SignedHead.sign(replace(found.head.head, run_root=Digest(A)), DOMAIN, TRAINER)
    assert calls(auditor.observe(e.HeadShown(at=START, head=other))) == [tx.Report(first=found.head, second=other)]


def test_a_trainer_whose_next_segment_cannot_be_tries_it_once_and_parts() -> None:
    board, head = demanding_board(), forbidden().head
    (job,) = board.jobs.values()
    journal = [e.AppendRecord(place=("trained", job.id, n), data=bytes(head.head.run_root)) for n in (1, 2)]
    journal += [e.AppendRecord(place=("head", job.id, n), data=head.encode()) for n in (1, 2)]
    job.receipts = 2
    trainer, work = KnowingTrainer(**known(board, TRAINER, journal)), e.Train(job_id=job.id, count=3)
    assert e.Start(work=work) in trainer.observe(e.Started(at=START))
    actions = trainer.observe(e.Done(at=START, work=work, problem="step 5: the loss is no longer finite"))
    assert [one.text for one in actions if isinstance(one, e.Alarm)] == [
        f"job {job.id.hex()[:8]}: step 5: the loss is no longer finite"
    ]
    assert e.Start(work=work) not in (*actions, *trainer.observe(e.Tick(at=START + 1)))
    assert calls(trainer.observe(e.Tick(at=job.window_end + 1))) == [tx.Part(job_id=job.id)]


@pytest.mark.parametrize("tolerances", [0, FINITE_LOSSES])
def test_a_trainer_parts_from_a_program_whose_first_segment_cannot_be(tolerances: int) -> None:
    """Only while it could post a head: after that the client may abandon the job, as any that has none."""
    board, offered = demanding_board(), replace(DEMANDING, tolerances=tolerances)
    board.jobs = {offered.id: replace_job(board, offered)}
    trainer, work = KnowingTrainer(**known(board, TRAINER)), e.Train(job_id=offered.id, count=1)
    assert e.Start(work=work) in trainer.observe(e.Started(at=START))
    actions = trainer.observe(e.Done(at=START, work=work, problem="step 1: the loss is no longer finite"))
    (job,) = board.jobs.values()
    assert calls(actions) == ([tx.Part(job_id=offered.id)] if tolerances else [])
    assert [one.deadline for one in actions if isinstance(one, e.Transact)] == ([job.due] if tolerances else [])


def replace_job(board: Board, offered: Job) -> PublicJob:
    """The board's one job with other terms, and without a head."""
    (job,) = board.jobs.values()
    return PublicJob(job=offered, status=job.status, last_progress=START, accepted=START)


def test_heads_not_signed_by_the_trainer_are_ignored() -> None:
    auditor = KnowingAuditor(**known(board_with(), CHALLENGER))
    head = Head(job_id=JOB.id, count=1, run_root=bytes(32))  # type: ignore[arg-type]
    for signed in (SignedHead(head=head, signature=bytes(65)), SignedHead.sign(head, DOMAIN, CLIENT)):
        assert not auditor.observe(e.HeadShown(at=START, head=signed))


def test_trainer_does_not_sign_unacceptable_job_terms() -> None:
    trainer = KnowingTrainer(**known(Board(), TRAINER))
    signed = [a for a in trainer.observe(e.JobOffered(at=START, job=JOB)) if isinstance(a, e.SignJob)]
    assert len(signed[0].signature) == 65
    for bad in (replace(JOB, clock=20), replace(JOB, challenge_window=30), replace(JOB, program_root=bytes(32))):
        (answer,) = (a for a in trainer.observe(e.JobOffered(at=START, job=bad)) if isinstance(a, e.SignJob))
        assert answer.signature == b""


def test_conceding_party_sends_one_concession() -> None:
    class Tired(KnowingAuditor):
        def concedes(self, view: Any) -> bool:
            return True

    board = board_with()
    played = with_game(board)
    played.state = replace(played.state, phase=Phase.SELECT)
    actions = Tired(**known(board, CHALLENGER)).observe(e.Tick(at=START + 1))
    assert calls(actions) == [tx.MakeMove(game_id=played.id, sequence=0, move=Concede())]
