"""Losses that a job forbids, on the embedded EVM: whatever is reported, the contract answers as the ledger does."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from tests.chain import support
from tests.chain.support import CHALLENGER, CLIENT, STRANGER, TRAINER
from tests.parts import slow_except
from tiebreak.protocol.chain import Call, EmbeddedChain, JobStatus, Reverted
from tiebreak.protocol.chain.board_state import FollowedBoard, Seen
from tiebreak.protocol.commitments.job import FINITE_LOSSES, Concession, Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import StepRecord, run_tree
from tiebreak.protocol.numbers.float32 import INF, NAN_BITS, SIGN
from tiebreak.protocol.parties import board
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.ledger import Ledger, Refusal
from tiebreak.protocol.program.rounding import Policy

NONCES = count(0x10555)
FORBIDDEN = (NAN_BITS, INF, INF | SIGN, INF | 1, (1 << 32) - 1)
ALLOWED = (0, SIGN, 1, INF - 1, INF - 1 | SIGN)


def demanding(tolerances: int = FINITE_LOSSES) -> Job:
    return replace(support.numbered(next(NONCES)), policy=int(Policy.LOGGED), tolerances=tolerances)


def report(
    chain: EmbeddedChain, job: Job, bits: int = NAN_BITS, at: int = 1, key: PrivateKey = TRAINER
) -> tx.ReportLoss:  # fmt: skip
    """A report of these bits, which are in a record under a head of all checkpoints that this key has signed."""
    records = [
        StepRecord(
            step=job.last_step(n), state_root=support.RUN, loss_bits=bits if n == at else n, log_root=support.RUN
        )
        for n in range(job.checkpoints)
    ]
    tree = run_tree([record.digest for record in records], job.steps, job.checkpoint_interval)
    return tx.ReportLoss(
        head=support.head(chain, job, job.checkpoints, tree.root, key), position=at, state_root=support.RUN,
        loss_bits=bits, log_root=support.RUN, siblings=tuple(tree.proof(at)),
    )  # fmt: skip


def ledger_of(chain: EmbeddedChain, *jobs: Job) -> Ledger:
    found = Ledger(chain.domain)
    for job in jobs:
        found.take(CLIENT.address, tx.CreateJob(job=job, signature=job.sign(chain.domain, TRAINER)), chain.now())
        found.take(TRAINER.address, tx.AcceptJob(job_id=job.id), chain.now())
    return found


def answers(chain: EmbeddedChain, ledger: Ledger, wanted: tx.ReportLoss) -> str:
    """The name of the error of both, or nothing where both would take it."""
    found = [""] * 2
    try:
        chain.send(STRANGER, Call.of(wanted))
    except Reverted as error:
        found[0] = error.name
    try:
        ledger.take(STRANGER.address, wanted, chain.now())
    except Refusal as refusal:
        found[1] = refusal.name
    assert found[0] == found[1], wanted
    return found[0]


@pytest.mark.parametrize("at", slow_except(range(3)))
def test_every_loss_but_a_finite_one_convicts(chain: EmbeddedChain, at: int, cases: Callable[[], None]) -> None:
    for bits in (*FORBIDDEN, *ALLOWED):
        job = demanding(FINITE_LOSSES | 20)
        support.activate(chain, job)
        ledger, wanted = ledger_of(chain, job), report(chain, job, bits, at)
        assert answers(chain, ledger, wanted) == ("" if bits in FORBIDDEN else "FiniteLoss")
        status = JobStatus.SLASHED if bits in FORBIDDEN else JobStatus.ACTIVE
        assert chain.job_state(job.id).status is status
        assert ledger.board.jobs[job.id].status is board.JobStatus[status.name]
        cases()


def test_hostile_reports_are_refused_alike(chain: EmbeddedChain, cases: Callable[[], None]) -> None:
    job, other, lax = demanding(), demanding(), demanding(20)
    for one in (job, other, lax):
        support.activate(chain, one)
    ledger, good = ledger_of(chain, job, other, lax), report(chain, job)
    conceded = Concession.sign(good.head.head, STRANGER.address, chain.domain, TRAINER).signature
    theirs = report(chain, other).head
    hostile: list[tuple[str, tx.ReportLoss]] = [
        ("FiniteLossesNotDemanded", report(chain, lax)),
        ("NoRecord", replace(good, position=job.checkpoints)),
        ("NoRecord", replace(good, position=(1 << 64) - 1)),
        ("NoRecord", replace(good, head=support.head(chain, job, 1, good.head.head.run_root))),
        ("HeadOutOfRange", replace(good, head=support.head(chain, job, 4, good.head.head.run_root))),
        ("HeadOutOfRange", replace(good, head=support.head(chain, job, (1 << 64) - 1, good.head.head.run_root))),
        ("WrongRoot", replace(good, position=0)),
        ("WrongRoot", replace(good, position=2)),
        ("WrongRoot", replace(good, loss_bits=INF)),
        ("WrongRoot", replace(good, state_root=support.OTHER_RUN)),
        ("WrongRoot", replace(good, log_root=support.OTHER_RUN)),
        ("WrongRoot", replace(good, siblings=good.siblings[::-1])),
        ("WrongRoot", replace(good, head=support.head(chain, job, 3))),
        ("WrongSiblingCount", replace(good, siblings=good.siblings[:1])),
        ("WrongSiblingCount", replace(good, siblings=(*good.siblings, support.RUN))),
        ("WrongSigner", report(chain, job, key=CLIENT)),
        ("WrongSigner", report(chain, job, key=CHALLENGER)),
        ("WrongSigner", replace(good, head=SignedHead(head=good.head.head, signature=conceded))),
        ("WrongSigner", replace(good, head=SignedHead(head=good.head.head, signature=theirs.signature))),
        ("WrongJobStatus", report(chain, demanding())),
    ]
    for name, wanted in hostile:
        assert answers(chain, ledger, wanted) == name
        cases()
    assert [chain.job_state(one.id).status for one in (job, other, lax)] == [JobStatus.ACTIVE] * 3
    assert answers(chain, ledger, good) == ""
    assert answers(chain, ledger, good) == "WrongJobStatus"


def test_a_report_needs_a_job_that_is_accepted_and_goes_on(chain: EmbeddedChain) -> None:
    job = demanding()
    wanted = Call.of(report(chain, job, at=2))
    support.offer(chain, job)

    def refused() -> None:
        with pytest.raises(Reverted, match="WrongJobStatus"):
            chain.send(STRANGER, wanted)

    refused()
    chain.send(TRAINER, Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake))
    head = report(chain, job, at=2).head
    chain.send(TRAINER, Call.of(tx.PostHead(head=head)))
    chain.advance(support.WINDOW + 1)
    chain.send(TRAINER, Call.of(tx.Part(job_id=job.id)))
    refused()


def test_the_logs_tell_a_follower_and_the_reporter_is_paid(chain: EmbeddedChain) -> None:
    job, follower = demanding(), FollowedBoard()
    paid = chain.credit(STRANGER.address)
    wanted = Call.of(report(chain, job))
    assert Call.decode(wanted.data) == wanted
    assert (wanted.job_id, wanted.heads) == (job.id, (report(chain, job).head,))
    for key, call in (
        (CLIENT, support.create(chain, job)),
        (TRAINER, Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake)),
        (STRANGER, wanted),
    ):
        receipt = chain.send(key, call)
        follower.follow(Seen(events=receipt.events, at=receipt.timestamp, call=call, gas=receipt.gas_used))
    said = receipt.event("Nonfinite").values
    assert (said["jobId"], said["step"], said["lossBits"]) == (job.id, job.last_step(1), NAN_BITS)
    found = follower.jobs[job.id]
    assert (found.status, found.nonfinite, found.conceded) == (board.JobStatus.SLASHED, True, False)
    assert not follower.disagreements
    assert chain.credit(STRANGER.address) - paid == job.trainer_stake // 2
