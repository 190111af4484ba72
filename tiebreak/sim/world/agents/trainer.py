"""The trainer: signs and accepts the job, computes, shows a head at each checkpoint, defends it, and settles."""

from dataclasses import replace
from typing import ClassVar

from tiebreak.protocol.chain import JobStatus
from tiebreak.protocol.commitments.job import Head, Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.sides import Defender, Party
from tiebreak.sim.world import calls
from tiebreak.sim.world.agents.agent import Process
from tiebreak.sim.world.agents.playing import GameView, Player
from tiebreak.sim.world.board import PublicGame, PublicJob
from tiebreak.sim.world.prudence import objections_to_training
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.world import World


class Trainer(Player):
    """Computes what the world's deviation says, by default the job, and does everything else as agreed."""

    ROLE: ClassVar = "trainer"

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.work: Work | None = None
        """Its run, from when it accepts."""
        self.job: Job | None = None

    # ------------------------------------------------------------------ what it does, to override

    def sign_job(self, job: Job) -> bytes | None:
        """Its signature under a job that a client drafted; None unless the job is what was agreed, and prudent."""
        agreed = self.world.workshop.job(
            client=job.client, trainer=self.address, nonce=job.nonce, terms=self.world.terms
        )
        if job != agreed or self.objects(job):
            return None
        return self.key.sign(job.digest(self.world.domain))

    def objects(self, job: Job) -> bool:
        """Whether it could lose its stake by a job's terms alone."""
        return bool(objections_to_training(job, self.world.workshop.program, self.world.pace))

    def accepts(self, job: PublicJob) -> bool:  # noqa: ARG002  # for who does not
        """Whether it takes an offer that it signed."""
        return True

    def compute(self, job: Job) -> Work:
        """Its run."""
        deviation, workshop = self.world.deviation, self.world.workshop
        return workshop.honest(job) if deviation is None else deviation.work(workshop, job, self.rng)

    def seconds(self, steps: int) -> int:
        """What so many steps take it."""
        return steps * self.world.step_seconds

    def head(self, count: int) -> SignedHead:
        """The head of its run after so many checkpoints."""
        job, work = self._held()
        return self.sign_head(Head(job_id=job.id, count=count, run_root=work.run_root(count)))

    def heads(self, count: int) -> list[SignedHead]:
        """What it shows at a checkpoint; the first is posted."""
        return [self.head(count)]

    def posts(self, heads: list[SignedHead]) -> list[SignedHead]:
        """Which of these it posts on the board."""
        return heads[:1]

    def publishes(self, count: int) -> bool:  # noqa: ARG002  # for who does not
        """Whether it shows at a checkpoint what an auditor needs beside the head: the run's logs."""
        return True

    def defends_with(self, game: PublicGame) -> Party:  # noqa: ARG002  # for who has several runs
        """Who plays its games."""
        return Defender(self._held()[1].oracle)

    def settles(self, job: PublicJob) -> bool:  # noqa: ARG002  # for who does not
        """Whether it ends its job when it can."""
        return True

    # ------------------------------------------------------------------ its processes

    def run(self) -> Process:
        """Waits for jobs."""
        yield from self.jobs()

    def concerns(self, job: PublicJob) -> bool:
        """Only those it signed."""
        return job.job.trainer == self.address

    def follow(self, job: PublicJob) -> Process:
        """From an offer to its end."""
        if not self.accepts(job):
            return
        if not (yield from self.attempt(calls.accept_job(job.job))):
            return
        self.job, self.work = job.job, self.compute(job.job)
        self.spawn(self._defend(job))
        yield from self._train(job)
        if job.has_final_head and self.settles(job):
            yield from self._settle(job)

    def _train(self, job: PublicJob) -> Process:
        """Computes segment after segment, and shows the head of each."""
        _, work = self._held()
        for count in range(1, job.job.checkpoints + 1):
            yield from self.sleep(self.seconds(job.job.segment_steps(count - 1)))
            if job.status is not JobStatus.ACTIVE:
                return
            self.account.steps = min(work.computed_steps, job.job.last_step(count - 1))
            self.world.mail.publish_run(job.job.id, work if self.publishes(count) else replace(work, logs=None))
            heads = self.heads(count)
            for head in heads:
                self.publish_head(head)
            for head in self.posts(heads):
                yield from self._post(job, head)

    def _post(self, job: PublicJob, head: SignedHead) -> Process:
        """Posts a head, again and again as long as that can help: a head that is not there in time costs the stake."""
        yield from self.insist(
            calls.post_head(head),
            lambda: job.status is JobStatus.ACTIVE and job.head_count < head.head.count,
        )

    def _settle(self, job: PublicJob) -> Process:
        """Ends the job once the window is over and no game is open."""
        yield from self.until(lambda: job.is_over, job.window_end + 1)
        yield from self.until(lambda: job.is_over or not self.world.board.open_games(job.job.id))
        yield from self.insist(calls.settle(job.job), lambda: job.status is JobStatus.ACTIVE)

    def _defend(self, job: PublicJob) -> Process:
        """Plays every game about the job."""
        known: set[bytes] = set()

        def fresh() -> list[PublicGame]:
            return [game for game in self.world.board.games_of(job.job.id) if game.id not in known]

        while True:
            yield from self.until(lambda: bool(fresh()))
            for game in fresh():
                known.add(game.id)
                self.spawn(self.play(GameView(game=game, side=Side.DEFENDER, party=self.defends_with(game))))

    def _held(self) -> tuple[Job, Work]:
        assert self.job is not None, "a run is asked for after it was begun"
        assert self.work is not None
        return self.job, self.work
