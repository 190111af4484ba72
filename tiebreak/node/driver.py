"""Drives one machine over real time: the one driver of parties, with a chain or a ledger, a hub, and processes.

One thread owns the machine, its journal and the board. It asks the board source (a chain, or the hub's ledger) every
second, and gets the rest from other threads: posts of the hub, finished work. All that takes time or may fail, such as
sending a post or training a segment, is done by threads and processes of their own, and repeated until it succeeds.

The rules of crashes are those of `tiebreak.protocol.parties.driver`. The posts of its own jobs are read again from the
first, since a machine takes what it knows already for nothing new. For other jobs it reads only offers, each once, and
keeps nothing.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event as Flag
from typing import Final

from tiebreak.node import log, parties
from tiebreak.node.board_source import AnyBoardSource, ChainSource, HubSource
from tiebreak.node.hub_client import MAX_JOBS, HubClient, VerifiedPost
from tiebreak.node.hub_traffic import HubTraffic
from tiebreak.node.journal import JOBS, Journal
from tiebreak.node.owner_view import OwnerView
from tiebreak.node.tasks import Answer, Compute, Fetch, Publish, Steps, Task, Try
from tiebreak.node.workers import WorkerPool
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job, SignedJob
from tiebreak.protocol.errors import TiebreakError, VerificationError
from tiebreak.protocol.numbers.float32 import to_float
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties.auditor import Finding
from tiebreak.protocol.parties.driver import PostingDriver, Turn
from tiebreak.protocol.parties.machine import is_active
from tiebreak.protocol.tags import Digest

POLL_SECONDS: Final = 1.0
"""The pause between two polls of the board source."""
MAX_OWN: Final = 1024
"""The number of offered jobs that a party remembers; it forgets the oldest that the board does not show."""
MAX_LISTINGS: Final = 16
"""Lists of files kept for each job and publisher: the newest, since each names all files of those before it."""
_OWN: Final = "own jobs"
"""The fact that holds their ids."""


class Driver(PostingDriver):
    machine: parties.WithJobFiles

    def __init__(
        self, machine: parties.WithJobFiles, *, board_source: AnyBoardSource, hub_client: HubClient, journal: Journal,
        job_files: parties.JobFiles, workers: WorkerPool, notes: "log.Log", floor: int = 0, stop: Flag | None = None,
    ) -> None:  # fmt: skip
        """`machine` has the journal's records and the board source's board. `floor`: see `running.floor_of`."""
        super().__init__(machine, journal, board_source)
        self.board_source: AnyBoardSource = board_source
        self.journal, self.job_files, self.workers, self.notes = journal, job_files, workers, notes
        workers.listeners.on_steps, workers.listeners.on_trouble = self.told_steps, self.told_trouble
        self.stop = Flag() if stop is None else stop
        self.inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        """Calls that wait for the machine's thread."""
        self.view = OwnerView(machine, board_source, journal, notes, floor)
        self.traffic = HubTraffic(
            hub_client, journal, notes, self.stop, put=self.inbox.put, on_post=self._receive, on_forgot=self._forgotten
        )
        # Without a chain, those who check all jobs learn of them by posts: every job of the hub is their own.
        is_checking = isinstance(machine, parties.WatcherNode | parties.AuditorNode) and not machine.chosen
        self.traffic.reads_all = isinstance(board_source, HubSource) and is_checking
        self._due = 0.0
        """When to follow the board source again, by the machine's steady clock."""
        self.jobs: dict[Digest, Job] = {}
        """Jobs by id, from the board or from offers."""
        self._own: dict[Digest, None] = {}
        """Jobs that were offered to it or by it, also those that have ended."""
        self._listings: dict[Digest, dict[tuple[Address, int], posts.LibraryBody]] = {}
        self._uploads: dict[tuple[Digest, int], Publish] = {}
        """Uploads, by job and count, that wait until the hub has their lists."""
        self._published: set[tuple[Digest, int]] = set()
        self._signatures: dict[Digest, bytes] = {}
        self._offers: dict[Digest, e.JobOffered] = {}
        """Offers that wait for their files, or for a trial of their program."""
        self._trials: dict[Digest, bool] = {}
        """Jobs whose program was put on trial, and whether the trial is over."""
        self._drafted: set[str] = set()
        self._auditors: dict[Digest, tuple[Address, ...]] = {}
        """The auditors that a client names, by its jobs."""

    # ------------------------------------------------------------------ the loop

    def run(self) -> None:
        """Start, and handle events one after the other until `stop` is set."""
        self.start()
        while not self.stop.is_set():
            self.step(POLL_SECONDS)

    def start(self) -> None:
        """Catch up with the board, wake the machine, and begin to listen."""
        if self.machine.has_key:
            self.view.balance()
        kept = self.journal.fact(_OWN) or b""
        self._own = dict.fromkeys(Digest(kept[at : at + 32]) for at in range(0, len(kept), 32))
        for part in (self._poll, lambda: self.tell(e.Started(at=self.board_source.now()))):
            with self._apart("start"):
                part()
        self._choose()
        self.traffic.start()
        self._due = time.monotonic() + POLL_SECONDS

    def step(self, seconds: float) -> None:
        """Process all that came, or comes within these seconds, and follow the board source if it is time to."""
        with suppress(Empty):
            wait = max(0.0, min(seconds, self._due - time.monotonic()))
            came = self.inbox.get(timeout=wait) if wait else self.inbox.get_nowait()
            with self._apart("post"):
                came()
        if time.monotonic() >= self._due:
            for part in (self._poll, self.tick, self._look_after):
                with self._apart("loop"):
                    part()
            self._due = time.monotonic() + POLL_SECONDS

    @contextmanager
    def _apart(self, what: str) -> Iterator[None]:
        """Keep one failure from ending all."""
        try:
            yield
        except Exception as error:
            self.fail(what, error)

    def fail(self, what: str, error: Exception) -> None:
        """Note an ERROR and go on, unless the driver is to stop."""
        if self.stop.is_set():
            raise error
        self.notes.error(what, f"unexpected {type(error).__name__}: {error}")

    def close(self) -> None:
        """End the threads and processes that the driver started. The machine can be started again from its journal."""
        self.stop.set()
        self.traffic.close()
        self.workers.stop()
        self.journal.close()

    def _poll(self) -> None:
        try:
            events = self.board_source.poll()
        except TiebreakError as error:
            if not self.view.is_away:
                self.notes.warn("board", f"cannot be followed, and is asked again: {error}")
            self.view.is_away = True
            return
        if self.view.is_away:
            self.notes.info("board", "answers again")
        self.view.is_away = False
        for event in events:
            match event:
                case e.Mined(place=place):
                    self.notes.info("mined", log.place(place))
                case e.Refused(place=place, error=reason):
                    self.notes.info("refused", f"{log.place(place)}: {reason or 'the balance does not cover it'}")
            self.tell(event)

    def _look_after(self) -> None:
        """Do what is due at every poll in addition to the machine's own events."""
        for job in self.machine.jobs():
            self.jobs.setdefault(job.id, job.job)
        self._held += self.workers.drop(self.is_for_nobody)
        self.workers.move_only({game.job.id for game in self.machine.board.games.values() if not game.is_stopped})
        self.look_again()
        self._choose()
        self.traffic.ask()
        self.traffic.keep_cursor()
        self.view.note_changes()
        self._look_for_offers()
        self._fetch_inputs()
        self.view.show()

    # ------------------------------------------------------------------ actions

    def break_off(self) -> None:
        self.stop.set()

    def raise_alarm(self, alarm: e.Alarm) -> None:
        (self.notes.error if alarm.is_error else self.notes.warn)("alarm", alarm.text)

    def transact(self, wanted: e.Transact) -> None:
        if wanted.place[0] != "withdraw":
            self.notes.info("send", log.transaction(wanted), **log.subject(wanted.transaction))
        super().transact(wanted)

    def say(self, statement: e.Statement) -> bool:
        job_id = self.job_of(statement)
        if isinstance(statement, e.OfferJob | e.SignJob):
            self.jobs.setdefault(job_id, statement.job)
            self._adopt(job_id)
        if isinstance(statement, e.OfferJob):
            self.publish_run(e.PublishRun(job_id=job_id, count=0, logs=False))
        if isinstance(statement, e.SignJob) and statement.signature:
            self._signatures[job_id] = statement.signature
        if is_new := super().say(statement):
            self.notes.info("say", log.statement(statement), job=job_id.hex()[:8])
        return is_new

    def posted(self) -> None:
        self.traffic.post_soon()

    # ------------------------------------------------------------------ posts of others

    def _forgotten(self) -> None:
        """Ends the party if it has no chain: its board was made of posts that the hub has lost."""
        if isinstance(self.board_source, HubSource):
            self.notes.error("hub", "the posts that made the board are gone; start this party again")
            self.stop.set()  # then it makes the board anew, of what comes now

    def _adopt(self, job_id: Digest) -> None:
        """Remember a job as its own, also over a restart."""
        if job_id not in self._own:
            self._own[job_id] = None
            if len(self._own) > MAX_OWN:
                gone = next((other for other in self._own if other not in self.machine.board.jobs), job_id)
                job_files = self.job_files.seconds, self.job_files.starts
                for kept in (self._own, self.jobs, self._offers, self._trials, self._listings, *job_files):
                    kept.pop(gone, None)
            self.journal.keep_fact(_OWN, b"".join(self._own))
            self._choose()

    def _choose(self) -> None:
        """Find out whose posts are wanted."""
        board = self.machine.board
        wanted = {*self._own, *getattr(self.machine, "chosen", ()), *getattr(board, "unread", ())}
        wanted |= {job.id for job in board.jobs.values() if self.machine.follows(job.job)}
        if len(wanted) > MAX_JOBS:
            wanted = {job_id for job_id in wanted if job_id not in board.jobs or not board.jobs[job_id].is_over}
        self.traffic.wanted = frozenset(wanted)

    def _learn(self, job: Job) -> None:
        if isinstance(self.board_source, ChainSource):
            self.board_source.learn(job)

    def _receive(self, verified: VerifiedPost) -> None:
        """Process a post. Its claims are checked by the machine, or by the library."""
        post, body, job_id = verified.post, verified.body, verified.post.job_id
        self.traffic.processed(verified)
        if isinstance(body, posts.OfferBody):
            self._learn(body.job)
            if self._is_offered(body.job):
                self._adopt(job_id)
        if job_id not in self.traffic.wanted and not self.traffic.reads_all:
            return  # posts about jobs that are not its own leave nothing behind
        if isinstance(self.board_source, HubSource):
            self.board_source.hear(verified.place, verified.at, post, body)
        match body:
            case posts.LibraryBody():
                self._list(job_id, post.sender, body)
                self._upload(job_id, body.count)
                self.retry_fetches(job_id)
                self._look_after()
            case posts.OfferBody(job=job):
                self.jobs.setdefault(job.id, job)
                self._offered(e.JobOffered(at=self.board_source.now(), job=job))
                return
            case posts.AnswerBody(job=job, signature=signature) if signature and post.sender == job.trainer:
                self.jobs.setdefault(job.id, job)
                self._learn(job)
                self._signatures[job.id] = signature
        self.read(post, body)

    def _list(self, job_id: Digest, sender: Address, body: posts.LibraryBody) -> None:
        """Keep a list of files, and the newest of its publisher before it."""
        listed = self._listings.setdefault(job_id, {})
        listed.pop((sender, body.count), None)
        listed[sender, body.count] = body
        others = [key for key in listed if key[0] == sender]
        if len(others) > MAX_LISTINGS:
            del listed[others[0]]

    # ------------------------------------------------------------------ offers

    def _is_offered(self, job: Job) -> bool:
        """Whether an offer is for this party. A trainer that names its clients does not answer those of others.

        A party that checks jobs on a chain learns of them by its board.
        """
        machine = self.machine
        if isinstance(machine, parties.TrainerNode):
            clients = machine.policy.clients
            return job.trainer == machine.address and (not clients or job.client in clients)
        learns_by_posts = isinstance(machine, parties.ClientNode) or isinstance(self.board_source, HubSource)
        return learns_by_posts and machine.follows(job)

    def _offered(self, offer: e.JobOffered) -> None:
        """Let a trainer answer an offer, once it has the files to judge it by."""
        machine, job = self.machine, offer.job
        if not isinstance(machine, parties.TrainerNode) or job.trainer != machine.address or job.id in self._offers:
            return
        is_answered = ("signature", job.id) in machine.records
        if is_answered or job.id in self._trials or not machine.wants(job):
            self.tell(offer)
            return
        self.notes.info("offer", f"{job.steps} steps; fetching its files, and trying a step", job=job.id.hex()[:8])
        self._offers[job.id] = offer
        self._prepare(job)

    def _look_for_offers(self) -> None:
        """Tell a client of the offers in its folder, which `tiebreak agree --client` puts there."""
        machine = self.machine
        if not isinstance(machine, parties.ClientNode):
            return
        for job_id, accounts in self._auditors.items() if isinstance(self.board_source, HubSource) else ():
            if job_id in machine.board.jobs and accounts:
                self.post(job_id, posts.AuditorsBody(accounts=accounts))
        for path in sorted((self.journal.folder / JOBS).glob(f"*/{parties.OFFER}")):
            name = path.parent.name
            if len(name) != 64 or name in self._drafted:
                continue
            self._drafted.add(name)
            try:
                offer = SignedJob.decode(path.read_bytes())
                offer.verify_offer()
                if offer.job.client == machine.address and offer.domain == self.board_source.domain:
                    self.jobs.setdefault(offer.job.id, offer.job)
                    self._adopt(offer.job.id)
                    secret = parties.draw_secret(offer.job, machine.key, path.parent)
                    self._auditors[offer.job.id] = parties.auditors_in(path.parent)
                    self.tell(e.JobDrafted(at=self.board_source.now(), job=offer.job, secret=secret))
            except VerificationError as error:
                self.notes.warn("offer", f"{path}: {error}")

    # ------------------------------------------------------------------ files

    def _fetch_inputs(self) -> None:
        """Fetch the inputs of every job that the party follows or has taken, and try its program.

        One that a stranger only offers costs nobody anything, so it waits until no other is being tried.
        """
        machine = self.machine
        for job in sorted(machine.jobs(), key=is_active, reverse=True):
            if isinstance(machine, parties.WatcherNode | parties.AuditorNode):
                is_due = is_active(job) or machine.names(job.job) or all(self._trials.values())
                is_ours = machine.follows(job.job) and is_due
            else:
                is_ours = isinstance(machine, parties.TrainerNode) and ("signature", job.id) in machine.records
            if is_ours and not job.is_over:
                self._prepare(job.job)

    def _prepare(self, job: Job) -> None:
        """Fetch the files that are needed to begin, and then measure a step here, once for these settings."""
        if job.id in self._trials:
            return
        if not self.job_files.has(job):
            self.want_run(job.id, 0)
        else:
            self._trials[job.id] = False
            machine, processes = self.workers.settings.machine, self.workers.settings.processes
            fact = f"step and trial of {job.id.hex()} on {machine.device}, {processes} x {machine.threads or 0}"
            if (known := self.journal.fact(fact)) is not None:
                seconds, took = map(float, known.split())
                self._judge(job, fact, Answer(seconds=seconds, took=took))
            else:
                self._ask(Try(job=job), partial(self._judge, job, fact))

    def _judge(self, job: Job, fact: str, answer: Answer) -> None:
        """A step was tried: take part in the job, or stay out of it."""
        self._trials[job.id] = True
        if answer.problem:
            self.notes.warn("try", f"this machine takes no part in it: {answer.problem}", job=job.id.hex()[:8])
        else:
            self.journal.keep_fact(fact, f"{answer.seconds!r} {answer.took!r}".encode())
            self.job_files.seconds[job.id] = answer.seconds
            start = self.job_files.starts[job.id] = max(0.0, answer.took - answer.seconds)
            self.job_files.look_again(job.id)
            self.notes.info("try", f"a step takes {answer.seconds:.3g} s, a start {start:.3g} s", job=job.id.hex()[:8])
        self.tell(self._offers.pop(job.id) if job.id in self._offers else e.Tick(at=self.board_source.now()))

    def fetch_run(self, job_id: Digest, count: int) -> bool:
        """Begin a fetch from those who have listed files of the job."""
        if not (listed := self._listings.get(job_id)) or job_id not in self.jobs:
            return False
        job = self.jobs[job_id]
        # The trainer has what it has computed; the client has what it offers.
        order = sorted(listed, key=lambda key: (key[0] not in (job.trainer, job.client), key[1] != count, -key[1]))
        task = Fetch(
            job=job, count=count, listings=tuple(listed[place] for place in order),
            signature=self._signatures.get(job_id, b""),
        )  # fmt: skip
        self._ask(task, lambda answer: self.fetched(job_id, count, answer.problem))
        return True

    def fetched(self, job_id: Digest, count: int, problem: str = "") -> None:
        if problem:
            self.notes.warn("fetch", problem, job=job_id.hex()[:8])
        else:
            self.job_files.look_again(job_id)
            self.notes.info("fetch", f"has the files up to checkpoint {count}", job=job_id.hex()[:8])
        super().fetched(job_id, count, problem)
        if not problem and job_id in self._offers:
            self._prepare(self.jobs[job_id])

    def publish_run(self, action: e.PublishRun) -> None:
        """List the files, and upload them once the hub has the list."""
        job_id, count, logs = action.job_id, action.count, int(action.logs)
        head = self.machine.records.get(("head", job_id, count), b"") if count else b""
        if (job_id, count) in self._published:
            return
        self._published.add((job_id, count))
        task = Publish(job=self._job(job_id), count=count, logs=logs, head=head, is_listing=1)

        def listed(answer: Answer) -> None:
            if answer.body is None:
                self.notes.error("publish", answer.problem, job=job_id.hex()[:8])
                return
            self.post(job_id, answer.body)
            self._uploads[job_id, count] = Publish(job=task.job, count=count, logs=logs, head=head)
            self._upload(job_id, count)

        self._ask(task, listed)

    def _upload(self, job_id: Digest, count: int) -> None:
        """Upload files, if the hub has the list of them: it refuses what no list names."""
        has_list = self.machine.has_key and (self.machine.address, count) in self._listings.get(job_id, {})
        if has_list and (task := self._uploads.pop((job_id, count), None)) is not None:
            self._ask(task, lambda _: self.notes.info("publish", f"checkpoint {count}", job=job_id.hex()[:8]))

    # ------------------------------------------------------------------ work

    def _ask(self, task: Task, done: Callable[[Answer], None]) -> None:
        """Have a worker do a task; `done` is called in the machine's thread."""
        is_strangers = isinstance(task, Fetch | Try) and not self.machine.names(task.job)
        self.workers.ask(task, lambda answer: self.inbox.put(lambda: done(answer)), is_strangers=is_strangers)

    def start_work(self, work: e.Work, turn: Turn | None) -> bool:
        job_id = self.machine.board.games[work.game_id].job.id if isinstance(work, e.Gather) else work.job_id
        job = self._job(job_id)
        signature = self._signatures.get(job_id) or self.machine.records.get(("signature", job_id), b"")
        needs_run = isinstance(work, e.Train | e.Replay | e.Audit)
        if needs_run and not signature and not (self.job_files.folder(job_id) / "job.bin").exists():
            return False
        machine, agreed = self.machine, 0
        if isinstance(work, e.Replay) and work.attempt:
            assert isinstance(machine, parties.WatcherNode | parties.AuditorNode)
            true = [head for head in machine.heads_of(job_id) if machine.finding(head) is Finding.TRUE]
            agreed = max((h.head.count for h in true if h.head.count < work.head.head.count), default=0)
        task = Compute(work=work, job=job, agreed=agreed, turn=turn, signature=signature)
        self._ask(task, lambda answer: self._done(work, answer))
        return True

    def _job(self, job_id: Digest) -> Job:
        found = self.machine.board.jobs.get(job_id)
        return self.jobs[job_id] if found is None else found.job

    def _done(self, work: e.Work, answer: Answer) -> None:
        if answer.problem:
            self.notes.warn("work", answer.problem)
        else:
            self.notes.info("work", log.work(work), **log.subject(work))
        if isinstance(work, e.Replay) and not answer.problem and isinstance(self.machine, parties.AuditorNode):
            head = work.head.head
            agrees = int(answer.root == head.run_root)
            self.post(work.job_id, posts.ReplayedBody(count=head.count, run_root=Digest(answer.root), agrees=agrees))
        self.finish(work, root=answer.root, move=answer.move, problem=answer.problem, found=answer.found)

    def told_steps(self, steps: Steps) -> None:
        """Show others how training goes. Called in a thread of the workers."""

        def show() -> None:
            self.view.training[steps.job_id] = steps
            if isinstance(self.machine, parties.TrainerNode) and not self.job_files.is_sealed(steps.job_id):
                rate = round(1000 * len(steps.losses) / max(steps.seconds, 1e-6))
                body = posts.StepsBody(
                    first_step=steps.first_step, losses=steps.losses, millisteps=rate,
                    processor=min(1000, round(1000 * steps.processor)), memory=steps.memory,
                )  # fmt: skip
                self.post(steps.job_id, body)
            last = steps.first_step + len(steps.losses) - 1
            self.notes.debug("steps", f"step {last}, loss {to_float(steps.losses[-1]):.4f}", job=steps.job_id.hex()[:8])

        self.inbox.put(show)

    def told_trouble(self, text: str, tries: int) -> None:
        """Note a task that has to be tried again. Called in a thread of the workers."""
        self.inbox.put(partial(self.notes.error if tries > 3 else self.notes.warn, "work", text))
