"""The parties of a simulated game: machines of `tiebreak.protocol.parties`, each with a driver and a computation."""

from dataclasses import replace
from typing import ClassVar

from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.game.sides import Challenger, Defender, Party
from tiebreak.protocol.parties import auditor, client, events, trainer
from tiebreak.protocol.parties.board import JobStatus, PublicGame, PublicJob
from tiebreak.protocol.parties.player import GameView, Reply
from tiebreak.sim.world.calls import Call
from tiebreak.sim.world.driver import Agent, Process
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.world import Pending, World

__all__ = ["Agent", "Auditor", "Builder", "Client", "GameView", "Process", "Reply", "Scripted", "Trainer"]


class Builder(Agent):
    """Makes the blocks: takes all that waits, in the order of arrival."""

    ROLE: ClassVar = "builder"

    def order(self, pending: list[Pending], now: int) -> list[Pending]:  # noqa: ARG002  # for who looks at it
        """Which transactions stand in the block, and in which order."""
        return pending

    def own(self, call: Call) -> Pending:
        """A transaction of its own for a block that it makes, which nobody sees before."""
        return self.world.new_pending(self, call, untried=True)


class Client(Agent, client.Client):
    """Wants one job done."""

    def run(self) -> Process:
        """Offers the job."""
        self.tell(events.JobDrafted(at=self.world.now, job=self.draft()))
        yield from ()

    def draft(self) -> Job:
        """The job that it offers."""
        trainer = self.world.parties["trainer"]
        return self.world.workshop.job(
            client=self.address, trainer=trainer.address, nonce=self.rng.getrandbits(128), terms=self.world.terms
        )


class Trainer(Agent, trainer.Trainer):
    """Computes what the world's deviation says, by default the job."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.work: Work | None = None
        """Its run, from when it begins to train."""
        self.job: Job | None = None

    def compute(self, job: Job) -> Work:
        """Its run."""
        deviation, workshop = self.world.deviation, self.world.workshop
        return workshop.honest(job) if deviation is None else deviation.work(workshop, job, self.rng)

    def seconds(self, steps: int) -> int:
        """What so many steps take it."""
        return steps * self.world.step_seconds

    def party_in(self, game: PublicGame) -> Party:  # noqa: ARG002
        """Its own run."""
        return Defender(self.held()[1].oracle)

    def work_on(self, work: events.Work) -> Process:
        """One segment: all was computed when the first began, and takes its time all the same."""
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
        """The run, with or without its logs."""
        _, run = self.held()
        self.world.mail.publish_run(action.job_id, run if action.logs else replace(run, logs=None))

    def held(self) -> tuple[Job, Work]:
        """Its job and its run."""
        assert self.job is not None, "a run is asked for after it was begun"
        assert self.work is not None
        return self.job, self.work


class Auditor(Agent, auditor.Auditor):
    """Replays every head of every job that it can compute."""

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.secret = self.rng.randbytes(32)
        """Of its seals."""
        self.works: list[Work] = []
        """Its replays: one for each run that was published."""
        self._replayed: list[tuple[Work | None, Work]] = []
        self.uncheckable: list[SignedHead] = []
        """Heads whose logs were withheld."""

    def concerns(self, job: PublicJob) -> bool:
        """All whose computation it has."""
        return self.program_of(job.job) is not None

    def is_valid(self, head: SignedHead, job: Job) -> bool:
        """Everyone finds the same, so in a game it is found once."""
        return self.world.mail.is_valid(head, job)

    def replay(self, job: PublicJob) -> Work:
        """Its own run of a job. Raises `CannotCheck` if what it would need was not published."""
        published = self.world.mail.runs.get(job.id)
        if published is None and job.job.is_logged:
            raise CannotCheck("expected the logs of the run, got none")
        workshop = self.world.workshop
        return workshop.honest(job.job) if published is None else workshop.audited(job.job, published)

    def enter(self, game: PublicGame) -> None:
        """Plays with its replay as it is when the game begins."""
        if game.challenger == self.address and self.plays(game):
            self.party_of(game)

    def party_in(self, game: PublicGame) -> Party:  # noqa: ARG002
        """Its replay."""
        return Challenger(self.works[-1].oracle, self.secret)

    def work_on(self, work: events.Work) -> Process:
        """One replay. What it has computed already takes no time again, the second look at a false head included."""
        assert isinstance(work, events.Replay), "an auditor does nothing else that takes time"
        job, root, problem = self.world.board.jobs[work.job_id], b"", ""
        try:
            root = yield from self.look_at(job, work.head)
        except CannotCheck as error:
            problem = str(error)
            self.uncheckable.append(work.head)
        self.tell(events.Done(at=self.world.now, work=work, root=root, problem=problem))

    def look_at(self, job: PublicJob, head: SignedHead) -> Process:
        """Replays up to a head; the root that it finds. Raises `CannotCheck`."""
        last = job.job.last_step(head.head.count - 1)
        yield from self.sleep(max(0, last - self.account.steps) * self.world.step_seconds)
        self.account.steps = max(self.account.steps, last)
        return self._replay_once(job).run_root(head.head.count)

    def _replay_once(self, job: PublicJob) -> Work:
        """The replay of the run that is published now."""
        published = self.world.mail.runs.get(job.id)
        for known, work in self._replayed:
            if known is published:
                return work
        work = self.replay(job)
        self._replayed.append((published, work))
        self.works.append(work)
        return work


class Scripted(Auditor):
    """Does only what its script says: it replays nothing, and plays no game unless it is told to."""

    def replays(self, head: SignedHead) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def reports(self, first: SignedHead, second: SignedHead) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def plays(self, game: PublicGame) -> bool:  # noqa: ARG002
        """Never."""
        return False
