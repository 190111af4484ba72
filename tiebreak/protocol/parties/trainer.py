"""The trainer: signs and accepts a job, computes it, shows a head at each checkpoint, defends it, and settles.

Under policy `logged` it needs the client's receipt for the logs of each head. It computes one segment ahead of the
receipts that it holds, posts one when the client could otherwise part without it, and parts if none comes. So a client
that keeps its receipts back can cost it one segment.
"""

from typing import Any, ClassVar, Final

from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Concession, Head, Job, LogReceipt, SignedHead
from tiebreak.protocol.commitments.seats import head_seal, salt_of
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import JobStatus, PublicJob
from tiebreak.protocol.parties.machine import is_active
from tiebreak.protocol.parties.player import Player
from tiebreak.protocol.parties.terms import objections_to_seats, objections_to_training
from tiebreak.protocol.tags import Digest

AHEAD: Final = 1
"""Segments that a trainer computes and shows without a receipt for their logs."""
_LAST_CALL: Final = 4
"""The part of a window, its last quarter, that is left for posting a receipt before the client may part."""


class TrainerParty(Player):
    """Does what was agreed. Computes one segment at a time, and starts the next once the last head is on the board."""

    ROLE: ClassVar = "trainer"

    def __init__(self, **known: Any) -> None:
        super().__init__(**known)
        self._to_post: dict[tuple[Digest, int], list[SignedHead]] = {}
        self._post_at: dict[SignedHead, int] = {}
        self._stopped: set[Digest] = set()
        """Jobs of which no further segment can be computed: their terms forbid what would come."""

    # ------------------------------------------------------------------ decisions

    def agrees(self, job: Job) -> bool:
        """Decide whether a job drafted by a client is what was agreed; by default, whether it can compute it."""
        return job.trainer == self.address and self.program_of(job) is not None

    def objects(self, job: Job) -> bool:
        """Whether it could lose its stake by the job's terms alone. Alerts the owner to each reason."""
        reasons = objections_to_training(job, self.program_of(job), self.pace_of(job)) + objections_to_seats(
            job, self.domain
        )
        for reason in reasons:
            self.alarm(f"job {job.id.hex()[:8]}: not signed: {reason}")
        return bool(reasons)

    def sign_job(self, job: Job) -> bytes | None:
        """Its signature under a job, or None if the job is not what was agreed or its terms are not safe."""
        return job.sign(self.domain, self.key) if self.agrees(job) and not self.objects(job) else None

    def accepts(self, job: PublicJob) -> bool:
        """Decide whether to accept, now, an offer that it signed; by default, whether it can afford the stake."""
        return self.affords(("accept", job.id), job.job, job.job.trainer_stake)

    def sign_head(self, head: Head) -> SignedHead:
        """Sign a head, whatever was signed before. Honest trainers call `head`, which never signs two for a count."""
        return SignedHead.sign(head, self.domain, self.key)

    def head(self, job: Job, count: int) -> SignedHead:
        """The head of its run after this many checkpoints. Once signed, it is always taken from the journal."""
        place = ("head", job.id, count)
        if place not in self.records:
            root = Digest(self.records["trained", job.id, count])
            self.record(place, self.sign_head(Head(job_id=job.id, count=count, run_root=root)).encode())
        return SignedHead.decode(self.records[place])

    def heads(self, job: Job, count: int) -> list[SignedHead]:
        """Choose the heads to show at a checkpoint."""
        return [self.head(job, count)]

    def posts(self, job: Job, heads: list[SignedHead]) -> list[SignedHead]:  # noqa: ARG002
        """Choose which of the heads shown at a checkpoint to post on the board."""
        return heads[:1]

    def posts_at(self, job: PublicJob, head: SignedHead) -> int:  # noqa: ARG002
        """Choose when to post a head; asked once per head. The default is now."""
        return self.now

    def publishes(self, job: Job, count: int) -> bool:  # noqa: ARG002
        """Decide whether to publish a run's rounding logs at a checkpoint, which an auditor needs with the head."""
        return True

    def opens(self, job: PublicJob) -> bool:  # noqa: ARG002
        """Decide whether to open the final head that it sealed, once the auditors' time is over."""
        return True

    def concedes_to(self, head: Head, prover: Address) -> bool:  # noqa: ARG002
        """Decide whether to sign a concession of its head to whoever contests it: half of the stake, without a game."""
        return False

    def ahead(self, job: PublicJob) -> int:  # noqa: ARG002
        """Choose how many segments to compute beyond the last receipt."""
        return AHEAD

    # ------------------------------------------------------------------ a round

    def learn(self, event: e.Event) -> None:
        """Answer clients' offers, and record the segments that were computed."""
        super().learn(event)
        match event:
            case e.JobOffered(job=job):
                place = ("signature", job.id)
                signature = self.records.get(place) or self.sign_job(job)
                self.do(e.SignJob(job=job, signature=self.record(place, signature) if signature else b""))
            case e.Done(work=e.Train() as work):
                if event.problem:
                    self._stopped.add(work.job_id)
                    self.alarm(f"job {work.job_id.hex()[:8]}: {event.problem}", is_error=True)
                else:
                    self.record(("trained", work.job_id, work.count), event.root)
            case e.LogReceiptShown(receipt=receipt):
                self._take(receipt)
            case e.Contested(job_id=job_id, count=count, by=prover) if ("head", job_id, count) in self.records:
                head = SignedHead.decode(self.records["head", job_id, count]).head
                if self.concedes_to(head, prover):
                    self.concede(head, prover)

    def concede(self, head: Head, prover: Address) -> None:
        """Give up a head, to somebody who is paid for it as if it had won a game."""
        place = ("conceded", head.job_id, head.count, prover)
        if place not in self.records:
            self.record(place, Concession.sign(head, prover, self.domain, self.key).encode())
        self.do(e.ShowConcession(concession=Concession.decode(self.records[place])))

    def _take(self, receipt: LogReceipt) -> None:
        """Keep a receipt for a head that it has signed."""
        head = receipt.head
        job, place = self.board.jobs.get(head.job_id), ("head", head.job_id, head.count)
        if job is None or place not in self.records or SignedHead.decode(self.records[place]).head != head:
            return
        try:
            receipt.verify(job.job, self.domain)
        except VerificationError:
            self.alarm(f"job {job.id.hex()[:8]}: the receipt for head {head.count} is not the client's")
        else:
            self.record(("receipt", job.id, head.count), receipt.encode())

    def receipted(self, job: PublicJob) -> int:
        """The highest count of a posted head for whose logs it holds the client's receipt."""
        held = (count for count in range(job.head_count, 0, -1) if ("receipt", job.id, count) in self.records)
        return max(job.receipts, next(held, 0))

    def plan(self) -> None:
        """Follow all of its own jobs and the games about them."""
        for job in self.jobs():
            if job.job.trainer == self.address:
                with self.apart(f"job {job.id.hex()[:8]}"):
                    self._follow(job)
        super().plan()

    def _follow(self, job: PublicJob) -> None:
        if job.status is JobStatus.OFFERED and self.accepts(job):
            self.want(("accept", job.id), tx.AcceptJob(job_id=job.id))
        for game in self.board.games_of(job.id):
            self.play(game, Side.DEFENDER)
        if not is_active(job):
            return
        if job.job.is_logged:
            self._follow_receipts(job)
        if not self._is_through(job):
            return
        if job.is_sealed and self.has_come(job.window_end + 1) and self.opens(job):
            opened = tx.OpenHead(head=self.head(job.job, job.job.checkpoints), salt=salt_of(self.key, job.id))
            self.want(("open", job.id), opened, deadline=job.due)
        if not job.has_final_head or job.lacks_receipts:
            return
        if self.has_come(job.window_end + 1) and not self.board.open_games(job.id):
            self.want(("settle", job.id), tx.Settle(job_id=job.id))

    def _follow_receipts(self, job: PublicJob) -> None:
        """Post the last receipt once the job can settle with it, or the client could soon part without it; or part."""
        if (count := self.receipted(job)) > job.receipts:
            is_last = count == job.job.checkpoints
            if is_last or self.has_come(job.parting - job.job.challenge_window // _LAST_CALL):
                receipt = LogReceipt.decode(self.records["receipt", job.id, count])
                self.want(("acknowledge", job.id, count), tx.Acknowledge(receipt=receipt))
            return
        if not job.head_count and job.id in self._stopped and job.job.demands_finite_losses:
            self.want(("part", job.id, 0), tx.Part(job_id=job.id), deadline=job.due)
            return
        is_over = job.head_count > 0 and self.has_come(job.window_end + 1) and not self.board.open_games(job.id)
        if is_over and count < job.job.checkpoints:
            self.want(("part", job.id, job.head_count), tx.Part(job_id=job.id))

    def _is_through(self, job: PublicJob) -> bool:
        """Ask for the next segment or head. Returns True if none is left."""
        for count in range(1, job.job.checkpoints + 1):
            if ("trained", job.id, count) not in self.records:
                if self.now > job.due or (job.job.is_logged and count > self.receipted(job) + self.ahead(job)):
                    return False
                if job.id not in self._stopped:
                    self.begin(e.Train(job_id=job.id, count=count))
                return False
            if not self._is_posted(job, count):
                return False
        return True

    def _is_posted(self, job: PublicJob, count: int) -> bool:
        """Show a checkpoint, and post its head until that can no longer help: a late head costs the stake."""
        if job.job.seats:
            return self._is_sealed(job, count)
        key = (job.id, count)
        self._show(job, count)
        for head in self._to_post[key]:
            place = ("post", job.id, count, head.head.run_root)
            if job.head_count >= head.head.count or self.is_given_up(place):
                continue
            if head not in self._post_at:
                self._post_at[head] = self.posts_at(job, head)
            if self.has_come(self._post_at[head]):
                self.want(place, tx.PostHead(head=head), deadline=job.due)
            return False
        return True

    def _is_sealed(self, job: PublicJob, count: int) -> bool:
        """Seal a checkpoint's head, and show nobody what is in it before the auditors have sealed their own roots."""
        if job.seating.is_opened and count == job.job.checkpoints:
            self._show(job, count)
        place = ("seal", job.id, count)
        if job.head_count >= count or self.is_given_up(place):
            return True
        if count == job.job.checkpoints and not self.has_come(job.joining_end + 1):
            return False
        seal = head_seal(job.id, count, self.head(job.job, count).head.run_root, salt_of(self.key, job.id))
        self.want(place, tx.SealHead(job_id=job.id, count=count, seal=seal), deadline=job.due)
        return False

    def _show(self, job: PublicJob, count: int) -> None:
        """Show a checkpoint's heads, once."""
        key = (job.id, count)
        if key not in self._to_post:
            self.do(e.PublishRun(job_id=job.id, count=count, logs=self.publishes(job.job, count)))
            heads = self.heads(job.job, count)
            for head in heads:
                self.do(e.ShowHead(head=head))
            self._to_post[key] = self.posts(job.job, heads)
