"""Jobs of policy `logged`: what `PublicJob` says a party may do, and what the contract lets it do."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tests.chain.support import CLIENT, JOB, OTHER_RUN, RUN, STRANGER, TRAINER, WINDOW, activate, head
from tiebreak.protocol.chain import Call, EmbeddedChain, JobStatus, Receipt, Reverted
from tiebreak.protocol.commitments.job import Head, Job, LogReceipt
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import PublicJob
from tiebreak.protocol.program.rounding import Policy

pytestmark = pytest.mark.slow


def logged(nonce: int, **fields: int) -> Job:
    return replace(JOB, policy=int(Policy.LOGGED), nonce=1 << 40 | nonce, reward=10**18 + 1, **fields)


class Life:
    def __init__(self, chain: EmbeddedChain, job: Job) -> None:
        self.chain = chain
        activate(chain, job)
        now = chain.now()
        self.job = PublicJob(job=job, last_progress=now)
        self.job.accept(now)
        self.root = RUN

    def refusal(self, call: Call, who: PrivateKey, now: int) -> str:
        """The error that the rules name for a call; empty if it is legal."""
        job, is_party = self.job, who in (CLIENT, TRAINER)
        if job.status is not JobStatus.ACTIVE:
            return "WrongJobStatus"
        if call.kind == "acknowledge":
            count, root = call.values["head"].count, call.values["head"].run_root
            if count <= job.receipts:
                return "ReceiptNotAscending"
            if count > job.head_count:
                return "HeadNotPosted"
            return "WrongReceipt" if count == job.head_count and root != self.root else ""
        if call.kind == "postHead":
            if call.heads[0].head.count <= job.head_count:
                return "HeadNotAscending"
            return "WindowClosed" if now > job.due else ""
        if call.kind == "part":
            end = job.parting if who is CLIENT else job.window_end
            broken = [(not is_party, "NotAParty"), (not job.head_count, "NoHeadPosted"), (now <= end, "WindowOpen")]
            broken.insert(2, (job.receipts == job.job.checkpoints, "ReceiptsComplete"))
        elif call.kind == "abandon":
            broken = [(job.head_count > 0, "HeadsPosted"), (now <= job.due, "WindowOpen")]
        else:
            assert call.kind == "settle"
            broken = [(not job.has_final_head, "FinalHeadMissing")]
            broken += [(job.receipts < job.head_count, "ReceiptMissing"), (now <= job.window_end, "WindowOpen")]
        return next((error for applies, error in broken if applies), "")

    def send(self, call: Call, who: PrivateKey) -> str:
        """Send it; the contract's answer has to be the one expected, and its payments those of the rules."""
        job, owed = self.job, [self.chain.credit(key.address) for key in (TRAINER, CLIENT)]
        expected = self.refusal(call, who, self.chain.now() + 1)
        if expected:
            with pytest.raises(Reverted) as refused:
                self.chain.send(who, call)
            assert refused.value.name == expected, (call.kind, job)
        else:
            self._follow(call, self.chain.send(who, call))
        both = job.job.reward + job.job.trainer_stake
        if job.is_over and not expected:
            shares = {
                JobStatus.SETTLED: (both, 0),
                JobStatus.ABANDONED: (0, both),
                JobStatus.PARTED: (job.earned + job.job.trainer_stake, job.job.reward - job.earned),
            }
            paid = [self.chain.credit(key.address) - b for key, b in zip((TRAINER, CLIENT), owed, strict=True)]
            assert tuple(paid) == shares[job.status]
        return expected or job.status.name

    def _follow(self, call: Call, done: Receipt) -> None:
        job = self.job
        if call.kind == "postHead":
            self.root = call.heads[0].head.run_root
            job.post(call.heads[0].head.count, done.timestamp)
        elif call.kind == "acknowledge":
            job.receipts = call.values["head"].count
        else:
            ends = {"settle": JobStatus.SETTLED, "abandon": JobStatus.ABANDONED, "part": JobStatus.PARTED}
            job.status = ends[call.kind]
        assert self.chain.job_state(job.id).status is job.status
        assert self.chain._read(Call("receipts", (job.id,))) == job.receipts


def test_contract_and_python_agree_on_random_logged_jobs(chain: EmbeddedChain, cases: Callable[..., None]) -> None:
    rng, seen, calls_made = Random(14), dict[str, int](), 0
    for nonce in range(30):
        life = Life(chain, logged(nonce, audit_time=rng.choice((0, WINDOW)), deadline=rng.choice((1500, 10**5))))
        for _ in range(14):
            job = life.job
            count = rng.choice((job.receipts, job.head_count, job.head_count, min(3, job.head_count + 1), 3))
            root = rng.choice((RUN, RUN, RUN, RUN, OTHER_RUN))
            acknowledged = LogReceipt.sign(
                Head(job_id=job.id, count=max(1, count), run_root=root), chain.domain, CLIENT
            )
            who = rng.choice((CLIENT, TRAINER, STRANGER))
            call = rng.choice(
                (
                    Call.of(tx.Acknowledge(receipt=acknowledged)),
                    Call.of(tx.PostHead(head=head(chain, job.job, max(1, count), root))),
                    Call.of(tx.Part(job_id=job.id)),
                    Call.of(tx.Abandon(job_id=job.id)),
                    Call.of(tx.Settle(job_id=job.id)),
                )
            )
            end = rng.choice((job.window_end, job.parting, job.due))
            later = rng.choice((0, 0, end, end + 1))
            if later > chain.now() + 1:
                chain.travel_to(later)
            answer = life.send(call, who)
            seen[answer] = seen.get(answer, 0) + 1
            calls_made += 1
    cases(calls_made)
    ends = {"SETTLED", "ABANDONED", "PARTED"}
    errors = {"NotAParty", "NoHeadPosted", "ReceiptsComplete", "ReceiptMissing", "HeadsPosted", "HeadNotPosted"}
    errors |= {
        "WrongReceipt",
        "ReceiptNotAscending",
        "WindowOpen",
        "WindowClosed",
        "WrongJobStatus",
        "FinalHeadMissing",
    }
    assert ends | errors <= seen.keys(), sorted((ends | errors) - seen.keys())
