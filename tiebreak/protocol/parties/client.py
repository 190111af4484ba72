"""The client: offers a job, cancels the offer if nobody accepts it, and gives up a trainer that falls silent.

Under policy `logged` it also signs for the logs of each head, once it has them and they hash to that head. It shows
the receipt to the trainer, and to the board itself if the trainer does not. Without the logs it signs nothing, and
parts with the trainer once the window is over.
"""

from typing import Any, ClassVar, Final

from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.job import Job, LogReceipt, SignedHead, SignedJob
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import JobStatus, PublicJob
from tiebreak.protocol.parties.machine import PartyMachine, is_active
from tiebreak.protocol.parties.terms import objections_to_paying, objections_to_seats
from tiebreak.protocol.tags import Digest

GRACE_BLOCKS: Final = 3
"""Blocks for the sides of a game to claim a timeout, and for a trainer to part, before the client does it for them."""
PATIENCE_BLOCKS: Final = 5
"""Blocks to wait for an answer to an offer before asking again."""
LOOKS: Final = 8
"""The number of looks for missing logs within a window. Its last part is for receipts that nobody else posts."""
_UNSIGNED: Final = bytes(keys.SIGNATURE_BYTES)


class ClientParty(PartyMachine):
    """Pays the reward. It must make sure that its job ends even if all other parties do nothing."""

    ROLE: ClassVar = "client"

    def __init__(self, **known: Any) -> None:
        super().__init__(**known)
        self._drafts: dict[Digest, Job] = {}
        self._declined: set[Digest] = set()
        self._offer_at: dict[Digest, int] = {}
        self._checks: dict[SignedHead, tuple[int, int]] = {}
        """The number of times that the logs of a head were found wanting, and the instant to fetch them again."""
        self._arrived: set[tuple[Digest, int]] = set()
        for place, data in self.records.items():
            if place[0] == "draft":
                job = SignedJob.decode(data).job
                self._drafts[job.id] = job

    # ------------------------------------------------------------------ decisions

    def gives_up(self, job: PublicJob) -> bool:  # noqa: ARG002
        """Decide whether to abandon, or to part from, a trainer that is late and not in a game."""
        return True

    def draws(self, job: PublicJob) -> bool:  # noqa: ARG002
        """Decide whether to draw the seats of a job whose final head is sealed. A client that never does loses fees."""
        return True

    def acknowledges(self, head: SignedHead) -> bool:  # noqa: ARG002
        """Decide whether to sign for the logs of a head, if they hash to it."""
        return True

    def receipt(self, head: SignedHead) -> LogReceipt:
        """Its receipt for a head, or for another of the same count if it has signed for that; from the journal."""
        place = ("receipt", head.head.job_id, head.head.count)
        if place not in self.records:
            self.record(place, LogReceipt.sign(head.head, self.domain, self.key).encode())
        return LogReceipt.decode(self.records[place])

    # ------------------------------------------------------------------ a round

    def learn(self, event: e.Event) -> None:  # noqa: C901  # one case an event
        """Record the jobs that its owner wants, trainers' signatures under them, and what becomes of their logs."""
        super().learn(event)
        match event:
            case e.JobDrafted(job=job) if found := objections_to_seats(job, self.domain):
                self.alarm(f"job {job.id.hex()[:8]}: not offered: {found[0]}", is_error=True)
            case e.JobDrafted(job=job):
                if event.secret:
                    self.record(("secret", job.id), event.secret)
                draft = SignedJob(domain=self.domain, job=job, client_signature=_UNSIGNED, trainer_signature=_UNSIGNED)
                self.record(("draft", job.id), draft.encode())
                for reason in objections_to_paying(job, self.pace):  # its owner may know better
                    self.alarm(f"job {job.id.hex()[:8]}: {reason}", is_error=True)
                self._drafts[job.id] = job
            case e.JobSigned(job=job, signature=b"") if job.id in self._drafts:
                self._declined.add(job.id)  # anybody could say so: nothing is recorded, and a signature still counts
                self.alarm(f"job {job.id.hex()[:8]}: the trainer declines", is_error=True)
            case e.JobSigned(job=job) if job.id in self._drafts:
                try:
                    keys.verify(job.digest(self.domain), event.signature, job.trainer)
                except VerificationError:
                    self.alarm(f"job {job.id.hex()[:8]}: the trainer's signature is not the trainer's")
                else:
                    self.record(("signed", job.id), event.signature)
            case e.HeadShown(head=head):  # the trainer shows one again, or posts it, if the board lacks its job
                known = self.board.jobs.get(head.head.job_id)
                if known is not None and known.job.is_logged and known.job.client == self.address:
                    self.keep_head(head, known.job)
            case e.Arrived():
                self._arrived.add((event.job_id, event.count))
            case e.Done(work=e.CheckLogs(head=head), problem=""):
                self.receipt(head)
            case e.Done(work=e.CheckLogs(job_id=job_id, head=head) as work, problem=problem):
                self.alarm(f"job {job_id.hex()[:8]}: no receipt for head {head.head.count}: {problem}")
                # The right logs may come later, so they are fetched again.
                self._arrived.discard((job_id, head.head.count))
                self._checks[head] = (work.attempt + 1, self._check_of(head)[1])

    def _check_of(self, head: SignedHead) -> tuple[int, int]:
        """The number of checks of a head's logs, and the instant of the next look; a head may arrive by another's."""
        return self._checks.get(head, (0, self.now))

    def plan(self) -> None:
        """Offer or create every job that its owner wants, and follow every job that it pays for."""
        for job_id, draft in self._drafts.items():
            signature = self.records.get(("signed", job_id))
            if job_id in self.board.jobs:
                continue
            if signature is None:
                self._offer(draft)
            else:
                self.want(("create", job_id), tx.CreateJob(job=draft, signature=signature))
        for job in self.jobs():
            if job.job.client == self.address:
                with self.apart(f"job {job.id.hex()[:8]}"):
                    self._follow(job)
        super().plan()

    def _offer(self, draft: Job) -> None:
        """Ask for the trainer's signature, and again until there is an answer, since messages may be lost."""
        if draft.id not in self._declined and self.has_come(self._offer_at.get(draft.id, 0)):
            self._offer_at[draft.id] = self.now + PATIENCE_BLOCKS * self.pace.block_seconds
            self.do(e.OfferJob(job=draft))
            self.wake(self._offer_at[draft.id])

    def _follow(self, job: PublicJob) -> None:
        if job.status is JobStatus.OFFERED and self.has_come(job.last_progress + job.job.challenge_window):
            self.want(("cancel", job.id), tx.CancelJob(job_id=job.id))
        if job.job.seats:
            self._seat(job)
        if not is_active(job):
            return
        if self.reports_loss(job):
            return
        if job.job.is_logged:
            self._sign_for_logs(job)
        games = self.board.open_games(job.id)
        grace = GRACE_BLOCKS * self.pace.block_seconds
        for game in games:  # a game that nobody ends would keep the job from ending
            if self.has_come(game.state.deadline + grace + 1):
                self.want(("timeout", game.id, game.state.moves), tx.ClaimTimeout(game_id=game.id))
                return
        parts = job.job.is_logged and job.head_count > 0
        if games or not (job.lacks_receipts or not job.has_final_head):
            return
        if self.has_come((job.parting + grace if parts else job.due) + 1) and self.gives_up(job):
            ending = tx.Part(job_id=job.id) if parts else tx.Abandon(job_id=job.id)
            self.want(("part" if parts else "abandon", job.id, job.head_count), ending)

    def _sign_for_logs(self, job: PublicJob) -> None:
        """Show the receipts that there are, and check the logs of heads beyond them."""
        window = job.job.challenge_window
        for head in self.heads_of(job.id):
            count = head.head.count
            if ("receipt", job.id, count) in self.records:
                self.once(e.ShowLogReceipt(receipt=self.receipt(head)))
            elif count <= job.receipts or not self.acknowledges(head):
                continue
            elif (job.id, count) in self._arrived:
                self.begin(e.CheckLogs(job_id=job.id, head=head, attempt=self._check_of(head)[0]))
            else:
                attempt, at = self._check_of(head)
                if self.has_come(at):
                    self._checks[head] = (attempt, self.now + max(window // LOOKS, self.pace.block_seconds))
                    self.do(e.FetchRun(job_id=job.id, count=count))
        place = ("receipt", job.id, job.head_count)
        if job.receipts < job.head_count and place in self.records and self.has_come(job.parting - window // LOOKS):
            receipt = LogReceipt.decode(self.records[place])
            self.want(("acknowledge", job.id, job.head_count), tx.Acknowledge(receipt=receipt))

    def _seat(self, job: PublicJob) -> None:
        """Draw the seats when the trainer is bound, and take back the fees that nobody earned."""
        secret, seating = self.records.get(("secret", job.id)), job.seating
        waits = is_active(job) and job.is_sealed and seating.seed is None and self.now <= job.window_end
        if waits and secret is not None and self.draws(job):
            self.want(("draw", job.id), tx.DrawSeats(job=job.job, secret=secret), deadline=job.window_end)
        if self._has_fees(job) and self.has_come(job.claim_end + 1):
            self.want(("close", job.id), tx.CloseSeats(job_id=job.id))

    def _has_fees(self, job: PublicJob) -> bool:
        """Whether fees of a job that has ended are its own again: not if it is settled without a draw."""
        settled, seating = job.status is JobStatus.SETTLED, job.seating
        ended = settled or job.status in (JobStatus.SLASHED, JobStatus.ABANDONED)
        unpaid = (job.job.seats - job.paid_fees) * job.job.seat_fee
        return ended and not seating.is_closed and unpaid > 0 and not (settled and seating.seed is None)

    def has_business(self) -> bool:
        """Whether it also has fees to take back."""
        own = [job for job in self.jobs() if job.job.client == self.address]
        return (
            any(self._has_fees(job) and not self.is_given_up(("close", job.id)) for job in own)
            or super().has_business()
        )
