"""The client: offers a job, cancels the offer if nobody accepts it, and abandons a trainer that falls silent."""

from typing import Any, ClassVar, Final

from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.job import Job, SignedJob
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import JobStatus, PublicJob
from tiebreak.protocol.parties.machine import Machine, is_active
from tiebreak.protocol.parties.terms import objections_to_paying
from tiebreak.protocol.tags import Digest

GRACE_BLOCKS: Final = 3
"""Blocks that the two sides of a game have to claim a timeout before the client does it for them."""
PATIENCE_BLOCKS: Final = 5
"""Blocks to wait for an answer to an offer before asking again."""
_UNSIGNED: Final = bytes(keys.SIGNATURE_BYTES)


class Client(Machine):
    """Pays the reward. It must make sure that its job ends even if all other parties do nothing."""

    ROLE: ClassVar = "client"

    def __init__(self, **known: Any) -> None:
        super().__init__(**known)
        self._drafts: dict[Digest, Job] = {}
        self._declined: set[Digest] = set()
        self._offer_at: dict[Digest, int] = {}
        for place, data in self.records.items():
            if place[0] == "draft":
                job = SignedJob.decode(data).job
                self._drafts[job.id] = job

    # ------------------------------------------------------------------ decisions

    def patience(self, job: PublicJob) -> int:
        """Decide how long an offer stands, in seconds."""
        return job.job.challenge_window

    def gives_up(self, job: PublicJob) -> bool:
        """Decide whether to abandon a job whose trainer is late and not in a game."""
        return not job.has_final_head

    def draws(self, job: PublicJob) -> bool:  # noqa: ARG002
        """Decide whether to draw the seats of a job whose final head is sealed. Whoever never does loses their fees."""
        return True

    # ------------------------------------------------------------------ a round

    def learn(self, event: e.Event) -> None:
        """Record the jobs that its owner wants, and trainers' signatures under them."""
        match event:
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

    def plan(self) -> None:
        """Offer or create every job that its owner wants, and follow every job that it pays for."""
        for job_id, draft in self._drafts.items():
            signature = self.records.get(("signed", job_id))
            if job_id in self.board.jobs:
                continue
            if signature is None:
                self._offer(draft)
            else:
                self.want(("create", job_id), e.CreateJob(job=draft, signature=signature))
        for job in self.jobs():
            if job.job.client == self.address:
                self._follow(job)
        super().plan()

    def _offer(self, draft: Job) -> None:
        """Ask for the trainer's signature, and again until there is an answer, since messages may be lost."""
        if draft.id not in self._declined and self.has_come(self._offer_at.get(draft.id, 0)):
            self._offer_at[draft.id] = self.now + PATIENCE_BLOCKS * self.pace.block_seconds
            self.do(e.OfferJob(job=draft))
            self.wake(self._offer_at[draft.id])

    def _follow(self, job: PublicJob) -> None:
        if job.status is JobStatus.OFFERED and self.has_come(job.last_progress + self.patience(job)):
            self.want(("cancel", job.id), e.CancelJob(job_id=job.id))
        if job.job.seats:
            self._seat(job)
        if not is_active(job):
            return
        games = self.board.open_games(job.id)
        grace = GRACE_BLOCKS * self.pace.block_seconds
        for game in games:  # a game that nobody ends would keep the job from ending
            if self.has_come(game.state.deadline + grace + 1):
                self.want(("timeout", game.id, game.state.moves), e.ClaimTimeout(game_id=game.id))
                return
        if not games and not job.has_final_head and self.has_come(job.due + 1) and self.gives_up(job):
            self.want(("abandon", job.id, job.head_count), e.Abandon(job_id=job.id))

    def _seat(self, job: PublicJob) -> None:
        """Draw the seats when the trainer is bound, and take back the fees that nobody earned."""
        secret, seating = self.records.get(("secret", job.id)), job.seating
        waits = is_active(job) and job.is_sealed and seating.seed is None and self.now <= job.window_end
        if waits and secret is not None and self.draws(job):
            self.want(("draw", job.id), e.DrawSeats(job=job.job, secret=secret), deadline=job.window_end)
        if self._has_fees(job) and self.has_come(job.claim_end + 1):
            self.want(("close", job.id), e.CloseSeats(job_id=job.id))

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
