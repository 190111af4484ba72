"""Parties to a job of policy `logged` that keep back logs or receipts.

Nobody can prove that something was not sent, so nobody is slashed for it. The two part, and whoever kept something back
has moved the reward of one segment: a client that does not sign for the last segment has it for nothing, a trainer that
does not show its logs has computed it for nothing.
"""

from functools import partial
from random import Random
from typing import Final

from tiebreak.lab.sim.adversaries.base import Catch, client, false_sum, first_late, last_call, one_of, trainer
from tiebreak.lab.sim.adversaries.heads import CHECKPOINTS
from tiebreak.lab.sim.world.agents import ClientAgent, Process, TrainerAgent
from tiebreak.lab.sim.world.cast import Cast
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import PublicJob


class SilentClient(ClientAgent):
    """Signs for the logs of no head from `first` on."""

    first = 1

    def acknowledges(self, head: SignedHead) -> bool:
        return head.head.count < self.first


class Taking(SilentClient):
    """Signs for nothing, and tries to abandon the job of the trainer that waits for it."""

    def follow(self, job: PublicJob) -> Process:
        """Try it in the first block after the trainer was due, before that can part there."""
        yield from self.until(lambda: job.is_over or job.head_count > 0)
        yield from self.sleep(job.due - self.world.now)
        while not job.is_over:
            self.world.submit(self, Call.of(tx.Abandon(job_id=job.id)), untried=True)
            yield self.world.news

    def gives_up(self, job: PublicJob) -> bool:  # noqa: ARG002
        """Leave it to the trainer to part."""
        return False


class LateReceipts(ClientAgent):
    """Shows its first receipt in the last block of the window, so that the next head is late, and then abandons."""

    def say(self, statement: e.Statement) -> None:
        """Show no receipt to the trainer."""
        if not isinstance(statement, e.ShowLogReceipt):
            super().say(statement)

    def want(self, place: e.Place, transaction: tx.Transaction, **how: object) -> None:
        """Leave it to the script below when to acknowledge."""
        if not isinstance(transaction, tx.Acknowledge):
            super().want(place, transaction, **how)  # type: ignore[arg-type]

    def follow(self, job: PublicJob) -> Process:
        """Acknowledge in the last block, abandon in the next one."""
        signed = partial(self._has_signed, job)
        yield from self.until(lambda: job.is_over or signed())
        yield from self.sleep(last_call(self.world, job.window_end))
        if not job.is_over:
            (head,) = (head for head in self._heads[job.id] if head.head.count == job.head_count)
            yield from self.attempt(Call.of(tx.Acknowledge(receipt=self.receipt(head))))
            yield from self.sleep(first_late(self.world, job.due))
            self.world.submit(self, Call.of(tx.Abandon(job_id=job.id)), untried=True)

    def gives_up(self, job: PublicJob) -> bool:  # noqa: ARG002
        """Never part, as that would win no stake."""
        return False

    def _has_signed(self, job: PublicJob) -> bool:
        return job.head_count > 0 and ("receipt", job.id, job.head_count) in self.records


class Leaving(TrainerAgent):
    """Publishes its logs with every head but the last."""

    def publishes(self, job: Job, count: int) -> bool:
        return count < job.checkpoints


def _logged(cast: Cast, _rng: Random) -> None:
    cast.workshop = Workshop.open("logged")


_PARTED: Final = {Catch.PARTED}
_client: Final = partial(client, before=_logged)
# fmt: off
ADVERSARIES: Final = (
    trainer("logs of the last segment withheld", Leaving, "the whole reward, with a lie that nobody can check", _PARTED,
        before=_logged, run=false_sum(in_last_segment=True)),
    _client("receipts withheld", SilentClient, "the first segment for nothing", _PARTED),
    _client("receipt of the last head withheld", SilentClient, "the last segment for nothing", _PARTED,
        first=one_of(CHECKPOINTS)),
    _client("abandons instead of signing", Taking, "the stake of a trainer that waits for a receipt", {Catch.REFUSED}),
    _client("receipt in the last block", LateReceipts, "the stake of a trainer whose next head is late",
        {Catch.REFUSED}),
)
# fmt: on
