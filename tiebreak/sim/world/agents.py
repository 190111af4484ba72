"""The parties of a simulated game. Each is a machine of `tiebreak.protocol.parties` with a driver and a computation."""

from dataclasses import replace
from typing import ClassVar

from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.game.sides import Challenger, Defender, Party
from tiebreak.protocol.parties import auditor, client, events, trainer
from tiebreak.protocol.parties.board import JobStatus, PublicGame, PublicJob
from tiebreak.protocol.parties.player import GameView, Reply
from tiebreak.sim.world.driver import Agent, Process
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.world import Pending, World

__all__ = ["Agent", "Auditor", "Builder", "Client", "GameView", "Process", "Reply", "Scripted", "Trainer"]


class Builder(Agent):
    """Makes the blocks. The honest builder includes every waiting transaction in the order of arrival."""

    ROLE: ClassVar = "builder"

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002  # for who looks at it
        """The transactions of the next block, in order. An adversary overrides this."""
        return pending

    def own(self, call: Call) -> Pending:
        """A transaction that the builder puts into its own block without showing it in the mempool first."""
        return self.world.new_pending(self, call, untried=True)


class Client(Agent, client.Client):
    def run(self) -> Process:
        self.tell(events.JobDrafted(at=self.world.now, job=self.draft()))
        yield from ()

    def draft(self) -> Job:
        trainer = self.world.parties["trainer"]
        return self.world.workshop.job(
            client=self.address, trainer=trainer.address, nonce=self.rng.getrandbits(128), terms=self.world.terms
        )


class Trainer(Agent, trainer.Trainer):
    """Trains the job, or computes what the world's deviation says instead."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.work: Work | None = None
        """The trainer's run; None until training begins."""
        self.job: Job | None = None

    def compute(self, job: Job) -> Work:
        """The run that this trainer produces, in full."""
        deviation, workshop = self.world.deviation, self.world.workshop
        return workshop.honest(job) if deviation is None else deviation.work(workshop, job, self.rng)

    def seconds(self, steps: int) -> int:
        """Simulated seconds that this many training steps take."""
        return steps * self.world.step_seconds

    def party_in(self, game: PublicGame) -> Party:  # noqa: ARG002
        return Defender(self.held()[1].oracle)

    def work_on(self, work: events.Work) -> Process:
        """Trains one segment.

        The whole run is computed when the first segment begins; each segment still takes its time.
        """
        assert isinstance(work, events.Train), "a trainer does nothing else that takes time"
        job = self.world.board.jobs[work.job_id]
        if self.job is None:
            self.job, self.work = job.job, self.compute(job.job)
        _, run = self.held()
        yield from self.sleep(self.seconds(job.job.segment_steps(work.count - 1)))
        if job.status is JobStatus.ACTIVE:
            self.account.steps = min(run.computed_steps, job.job.last_step(work.count - 1))
            self.tell(events.Done(at=self.world.now, work=work, root=run.run_root(work.count)))

    def publish_run(self, action: events.PublishRun) -> None:
        """Publishes the run, with its logs only if the action asks for them."""
        _, run = self.held()
        self.world.mail.publish_run(action.job_id, run if action.logs else replace(run, logs=None))

    def held(self) -> tuple[Job, Work]:
        assert self.job is not None, "a run is asked for after it was begun"
        assert self.work is not None
        return self.job, self.work


class Auditor(Agent, auditor.Auditor):
    """An honest auditor: it replays every head of every job whose computation it has."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.secret = self.rng.randbytes(32)
        """The secret from which the auditor derives its seals."""
        self.works: list[Work] = []
        """One replay for each version of a run that was published."""
        self._replayed: list[tuple[Work | None, Work]] = []
        self.uncheckable: list[SignedHead] = []
        """The heads that could not be checked because their logs were withheld."""

    def concerns(self, job: PublicJob) -> bool:
        return self.program_of(job.job) is not None

    def is_valid(self, head: SignedHead, job: Job) -> bool:
        """Whether the head is valid. The result is the same for everyone, so the mailbox caches it."""
        return self.world.mail.is_valid(head, job)

    def replay(self, job: PublicJob) -> Work:
        """The auditor's own run of a job. Raises `CannotCheck` if the logs that it needs were not published."""
        published = self.world.mail.runs.get(job.id)
        if published is None and job.job.is_logged:
            raise CannotCheck("expected the logs of the run, got none")
        workshop = self.world.workshop
        return workshop.honest(job.job) if published is None else workshop.audited(job.job, published)

    def enter(self, game: PublicGame) -> None:
        """Fixes the replay that the auditor plays with: the latest one when the game begins."""
        if game.challenger == self.address and self.plays(game):
            self.party_of(game)

    def party_in(self, game: PublicGame) -> Party:  # noqa: ARG002
        return Challenger(self.works[-1].oracle, self.secret)

    def work_on(self, work: events.Work) -> Process:
        """Replays up to one head.

        Steps that were replayed before take no time again, even for a second look at a false head.
        """
        assert isinstance(work, events.Replay), "an auditor does nothing else that takes time"
        job, root, problem = self.world.board.jobs[work.job_id], b"", ""
        try:
            root = yield from self.look_at(job, work.head)
        except CannotCheck as error:
            problem = str(error)
            self.uncheckable.append(work.head)
        self.tell(events.Done(at=self.world.now, work=work, root=root, problem=problem))

    def look_at(self, job: PublicJob, head: SignedHead) -> Process:
        """Replays up to a head and returns the run root found there. Raises `CannotCheck`."""
        last = job.job.last_step(head.head.count - 1)
        yield from self.sleep(max(0, last - self.account.steps) * self.world.step_seconds)
        self.account.steps = max(self.account.steps, last)
        return self._replay_once(job).run_root(head.head.count)

    def _replay_once(self, job: PublicJob) -> Work:
        """The replay of the run as it is published now. Each published version is replayed once."""
        published = self.world.mail.runs.get(job.id)
        for known, work in self._replayed:
            if known is published:
                return work
        work = self.replay(job)
        self._replayed.append((published, work))
        self.works.append(work)
        return work


class Scripted(Auditor):
    """Does only what its script says: it replays nothing, and plays no game unless the script tells it to."""

    def replays(self, head: SignedHead) -> bool:  # noqa: ARG002
        return False

    def reports(self, first: SignedHead, second: SignedHead) -> bool:  # noqa: ARG002
        return False

    def plays(self, game: PublicGame) -> bool:  # noqa: ARG002
        return False
