"""The client: offers the job, takes the offer back if nobody accepts it, and abandons a trainer that falls silent."""

from typing import ClassVar, Final

from tiebreak.protocol.chain import JobStatus
from tiebreak.protocol.commitments.job import Job
from tiebreak.sim.world import calls
from tiebreak.sim.world.agents.agent import Agent, Process
from tiebreak.sim.world.agents.trainer import Trainer
from tiebreak.sim.world.board import PublicGame, PublicJob
from tiebreak.sim.world.world import BLOCK_SECONDS

GRACE: Final = 3 * BLOCK_SECONDS
"""What the two sides of a game have to claim a timeout before the client does it for them."""


class Client(Agent):
    """Pays the reward. It has to see to it that its job ends, also if all others sit still."""

    ROLE: ClassVar = "client"

    def run(self) -> Process:
        """Offers the job once, and follows it."""
        self.spawn(self.jobs())
        yield from self.offer(self.draft())

    def draft(self) -> Job:
        """The job that it offers."""
        trainer = self.world.parties["trainer"]
        return self.world.workshop.job(
            client=self.address,
            trainer=trainer.address,
            nonce=self.rng.getrandbits(128),
            terms=self.world.terms,
        )

    def offer(self, job: Job) -> Process:
        """Has the job signed by its trainer, and puts it on the board."""
        trainer = self.world.parties["trainer"]
        assert isinstance(trainer, Trainer)
        signature = trainer.sign_job(job)
        if signature is not None:
            yield from self.attempt(calls.create_job(job, signature))

    def concerns(self, job: PublicJob) -> bool:
        """Only those it pays."""
        return job.job.client == self.address

    def patience(self, job: PublicJob) -> int:
        """How long an offer stands, in seconds."""
        return job.job.challenge_window

    def follow(self, job: PublicJob) -> Process:
        """Sees to it that its job ends."""

        def is_offered() -> bool:
            return job.status is JobStatus.OFFERED

        if not (yield from self.until(lambda: not is_offered(), job.last_progress + self.patience(job))):
            yield from self.insist(calls.cancel_job(job.job), is_offered)
        while job.status is JobStatus.ACTIVE:
            yield from self._watch(job)

    def _watch(self, job: PublicJob) -> Process:
        """One look at a job that goes on: waits until something is overdue, and does what can be done."""
        overdue = self._overdue(job)
        if overdue is not None:
            yield from self.press(calls.timeout(overdue.id))
        elif self._is_abandoned(job):
            yield from self.press(calls.abandon(job.job))
        else:
            deadline = self._next_instant(job)
            progress = (job.last_progress, job.status, self._clocks(job))
            yield from self.until(lambda: progress != (job.last_progress, job.status, self._clocks(job)), deadline)

    def _clocks(self, job: PublicJob) -> tuple[tuple[bytes, int], ...]:
        return tuple((game.id, game.state.deadline) for game in self.world.board.open_games(job.job.id))

    def _overdue(self, job: PublicJob) -> PublicGame | None:
        """A game that nobody ends though its mover's clock ran out: it would keep the job from ending."""
        games = self.world.board.open_games(job.job.id)
        return next((game for game in games if self.world.now > game.state.deadline + GRACE), None)

    def _is_abandoned(self, job: PublicJob) -> bool:
        late = self.world.now > job.window_end and not job.has_final_head
        return late and job.status is JobStatus.ACTIVE and not self.world.board.open_games(job.job.id)

    def _next_instant(self, job: PublicJob) -> int | None:
        """When to look again if nothing happens."""
        clocks = self._clocks(job)
        if clocks:
            return min(deadline for _, deadline in clocks) + GRACE + 1
        return None if job.has_final_head else job.window_end + 1
