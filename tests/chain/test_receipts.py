"""Jobs of policy `logged`: what the ledger lets a party do without a chain, and what the contract lets it do."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tests.chain.support import CLIENT, JOB, OTHER_RUN, RUN, STRANGER, TRAINER, WINDOW, head
from tiebreak.protocol.chain import Call, EmbeddedChain, Reverted
from tiebreak.protocol.chain.calls import call_of
from tiebreak.protocol.commitments.job import FINITE_LOSSES, Head, Job, LogReceipt
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import PublicJob
from tiebreak.protocol.parties.ledger import Ledger, Refusal
from tiebreak.protocol.program.rounding import Policy

pytestmark = pytest.mark.slow


class Life:
    """A job on the chain and in a ledger: each transaction has the same fate, and the same payments, in both."""

    def __init__(self, chain: EmbeddedChain, job: Job) -> None:
        self.chain, self.ledger, self.id = chain, Ledger(chain.domain), job.id
        self.send(CLIENT, tx.CreateJob(job=job, signature=TRAINER.sign(job.digest(chain.domain))))
        self.send(TRAINER, tx.AcceptJob(job_id=job.id))

    @property
    def job(self) -> PublicJob:
        return self.ledger.board.jobs[self.id]

    def paid(self, amount: Callable[..., int]) -> list[int]:
        return [amount(key.address) for key in (TRAINER, CLIENT)]

    def send(self, key: PrivateKey, wanted: tx.Transaction) -> str:
        """Returns the name of the error, or of the job's new status."""
        at, call = self.chain.now() + 1, call_of(wanted, self.ledger.board)
        owed = self.paid(self.chain.credit), self.paid(self.ledger.claim)
        refusal = ""
        try:
            self.ledger.take(key.address, wanted, at)
        except Refusal as refused:
            refusal = refused.name
        if refusal:
            with pytest.raises(Reverted) as reverted:
                self.chain.send(key, call)
            assert reverted.value.name == refusal, (call.kind, self.job)
            return refusal
        assert self.chain.send(key, call).timestamp == at
        assert self.chain.job_state(self.id).status is self.job.status
        assert self.chain._read(Call("receipts", (self.id,))) == self.job.receipts
        if self.job.is_over:
            credited = (now - before for now, before in zip(self.paid(self.chain.credit), owed[0], strict=True))
            claimed = (now - before for now, before in zip(self.paid(self.ledger.claim), owed[1], strict=True))
            assert list(credited) == list(claimed)
        return self.job.status.name


def test_contract_and_python_agree_on_random_logged_jobs(chain: EmbeddedChain, cases: Callable[..., None]) -> None:
    rng, seen = Random(14), set[str]()
    for nonce in range(22):
        times = {"audit_time": rng.choice((0, WINDOW)), "deadline": rng.choice((1500, 10**5))}
        terms = {"policy": int(Policy.LOGGED), "nonce": 1 << 40 | nonce, "reward": 10**18 + 1}
        terms["tolerances"] = FINITE_LOSSES * (nonce % 2)  # then the trainer may part before its first head, too
        life = Life(chain, replace(JOB, **terms, **times))
        for _ in range(14):
            job = life.job
            count = rng.choice((job.receipts, job.head_count, job.head_count, min(3, job.head_count + 1), 3)) or 1
            root = rng.choice((RUN, RUN, RUN, RUN, OTHER_RUN))
            shown = Head(job_id=job.id, count=count, run_root=root)
            key = rng.choice((CLIENT, TRAINER, STRANGER))
            any_of: tuple[tx.Transaction, ...] = (
                tx.Acknowledge(receipt=LogReceipt.sign(shown, chain.domain, CLIENT)),
                tx.PostHead(head=head(chain, job.job, count, root)),
                tx.Part(job_id=job.id),
                tx.Abandon(job_id=job.id),
                tx.Settle(job_id=job.id),
            )
            wanted = rng.choice(any_of)
            end = rng.choice((job.window_end, job.parting, job.due))
            if (later := rng.choice((0, 0, end, end + 1))) > chain.now() + 1:
                chain.travel_to(later)
            seen.add(life.send(key, wanted))
            cases()
    ends = {"SETTLED", "ABANDONED", "PARTED"}
    errors = {"NotAParty", "NoHeadPosted", "ReceiptsComplete", "ReceiptMissing", "HeadsPosted", "HeadNotPosted",
              "WrongReceipt", "ReceiptNotAscending", "WindowOpen", "WindowClosed", "WrongJobStatus",
              "FinalHeadMissing"}  # fmt: skip
    assert ends | errors <= seen, sorted((ends | errors) - seen)
