"""The auditor: replays what is shown, challenges what is false, and gets back what it put in."""

from itertools import count
from typing import ClassVar

from tiebreak.protocol.chain import JobStatus
from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.sides import Challenger, Party
from tiebreak.sim.world import calls
from tiebreak.sim.world.agents.agent import Process
from tiebreak.sim.world.agents.playing import GameView, Player
from tiebreak.sim.world.board import PublicGame, PublicJob
from tiebreak.sim.world.prudence import objections_to_auditing
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.world import World


class Auditor(Player):
    """Diligent: it replays every head of every job that it can compute."""

    ROLE: ClassVar = "auditor"

    def __init__(self, world: World, name: str, key: PrivateKey) -> None:
        super().__init__(world, name, key)
        self.secret = self.rng.randbytes(32)
        """Of its seals."""
        self.challenged: set[bytes] = set()
        """Jobs that it challenged."""
        self.works: list[Work] = []
        """Its replays: one for each run that was published."""
        self._replayed: list[tuple[Work | None, Work]] = []
        self.uncheckable: list[SignedHead] = []
        """Heads whose logs were withheld."""

    # ------------------------------------------------------------------ what it does, to override

    def replays(self, head: SignedHead) -> bool:  # noqa: ARG002  # for who does not
        """Whether it replays a head."""
        return True

    def replay(self, job: PublicJob) -> Work:
        """Its own run of a job. Raises `CannotCheck` if what it would need was not published."""
        published = self.world.mail.runs.get(job.job.id)
        if published is None and job.job.is_logged:
            raise CannotCheck("expected the logs of the run, got none")
        workshop = self.world.workshop
        return workshop.honest(job.job) if published is None else workshop.audited(job.job, published)

    def accuses(self, head: SignedHead, agrees: bool) -> bool:  # noqa: ARG002  # for who looks at it
        """Whether it challenges a head, after a replay that agrees with it or does not."""
        return not agrees

    def objects(self, job: PublicJob) -> bool:
        """Whether it keeps out of a job: one by whose terms it would lose its stake, or win nothing."""
        return bool(objections_to_auditing(job.job, self.world.workshop.program, self.world.pace))

    def reports(self, first: SignedHead, second: SignedHead) -> bool:  # noqa: ARG002  # for who does not
        """Whether it reports two heads of one count."""
        return True

    def nonce(self, head: SignedHead) -> int:  # noqa: ARG002  # for who plays several games against a head
        """The number of its game against a head."""
        return 0

    def challenges_with(self, game: PublicGame) -> Party:  # noqa: ARG002  # for who has several runs
        """Who plays its game: by default its replay, as it was when it challenged."""
        return Challenger(self.works[-1].oracle, self.secret)

    # ------------------------------------------------------------------ its processes

    def run(self) -> Process:
        """Waits for jobs."""
        yield from self.jobs()

    def concerns(self, job: PublicJob) -> bool:
        """All whose computation it has."""
        agreed = self.world.workshop.job(
            client=job.job.client, trainer=job.job.trainer, nonce=job.job.nonce, terms=self.world.terms
        )
        return job.job == agreed

    def follow(self, job: PublicJob) -> Process:
        """Looks at each head as it is shown, until the job is over."""
        self.spawn(self._look_for_conflicts(job))
        for place in count():
            head = yield from self._shown(job, place)
            if head is None:
                return
            if self.world.mail.is_valid(head, job.job) and self.replays(head):
                yield from self._audit(job, head)

    def _shown(self, job: PublicJob, place: int) -> Process:
        """The head that is shown in this place, once it is; None if the job is over."""
        heads = self.world.mail.heads_of
        yield from self.until(lambda: job.is_over or len(heads(job.job.id)) > place)
        return None if job.is_over else heads(job.job.id)[place].head

    def _audit(self, job: PublicJob, head: SignedHead) -> Process:
        """Replays up to a head, and challenges it if it is false."""
        last = job.job.last_step(head.head.count - 1)
        yield from self.sleep(max(0, last - self.account.steps) * self.world.step_seconds)
        self.account.steps = max(self.account.steps, last)
        try:
            work = self._replay_once(job)
        except CannotCheck:
            self.uncheckable.append(head)
            return
        agrees = work.run_root(head.head.count) == head.head.run_root
        if self.accuses(head, agrees) and job.job.id not in self.challenged and not self.objects(job):
            yield from self._challenge(job, head)

    def _challenge(self, job: PublicJob, head: SignedHead) -> Process:
        """Starts a game and has it played; tries again while the window lasts."""
        self.challenged.add(job.job.id)
        call = calls.challenge(job.job, head, self.nonce(head))
        if (yield from self.insist(call, lambda: not job.is_over)):
            mine = [game for game in self.world.board.games_of(job.job.id) if game.challenger == self.address]
            self.spawn(self._contest(mine[-1]))

    def _replay_once(self, job: PublicJob) -> Work:
        """The replay of the run that is published now."""
        published = self.world.mail.runs.get(job.job.id)
        for known, work in self._replayed:
            if known is published:
                return work
        work = self.replay(job)
        self._replayed.append((published, work))
        self.works.append(work)
        return work

    def _contest(self, game: PublicGame) -> Process:
        yield from self.play(GameView(game=game, side=Side.CHALLENGER, party=self.challenges_with(game)))
        yield from self.reclaim(game)

    def _look_for_conflicts(self, job: PublicJob) -> Process:
        """Reports the first two heads of one count that it sees."""
        kept = dict[int, SignedHead]()
        for place in count():
            head = yield from self._shown(job, place)
            if head is None:
                return
            if not self.world.mail.is_valid(head, job.job):
                continue
            other = kept.setdefault(head.head.count, head)
            if other.head.run_root != head.head.run_root and self.reports(other, head):
                yield from self.insist(calls.report(other, head), lambda: job.status is JobStatus.ACTIVE)
