"""The tasks of a worker process, which fetches and publishes, or trains and replays, or finds the moves of games.

No other process of a party imports torch. It holds no key that signs a statement of a job or a game; all it finds goes
back to the party's machine, which decides. Everything on its disk is a run directory, so it may be killed at
any instant. All that it writes can be read by its user alone, because the files of sealed jobs lie there in the clear.
"""

import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from socket import socket
from typing import Any, ClassVar, Final

import torch

from tiebreak.api.agreement.offers import complete, seconds_per_step
from tiebreak.api.auditing.audits import open_replay
from tiebreak.api.machine.interpreters import make_interpreter, use_threads
from tiebreak.api.machine.workers import Channel
from tiebreak.api.watching.alarms import as_line, shown_loss
from tiebreak.api.watching.sampling import Sampler
from tiebreak.engine import system
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.logged.journal import LogsInProgress
from tiebreak.engine.run.cost import cost_of, planned_peak, require_memory
from tiebreak.engine.run.directory import JOB, LOGS, RunDirectory, open_offer
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.interpreter import Interpreter, NotFiniteError
from tiebreak.engine.run.logs import NO_LOGS, Logs
from tiebreak.engine.run.rematerialization import rematerialized
from tiebreak.engine.run.train import Progress, Worker
from tiebreak.node import tasks
from tiebreak.node.hub_client import SECONDS, HubClient
from tiebreak.node.library import Fetcher, publish, secret_of
from tiebreak.node.parts import parts
from tiebreak.node.tasks import Answer, Failed, Steps, Task, WorkerSettings
from tiebreak.protocol.commitments.blobs import MAX_BLOB_BYTES
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.errors import CannotCheck, StateError, TiebreakError, VerificationError
from tiebreak.protocol.game.moves import Move
from tiebreak.protocol.game.sides import Challenger, Defender, resume
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.driver import Turn
from tiebreak.protocol.parties.posts import MAX_LOSSES
from tiebreak.protocol.parties.transactions import ReportLoss
from tiebreak.protocol.tags import Digest

JOBS, REPLAYS = "jobs", "replays"
PERMUTATION: Final = 0x7EB8
"""The seed of the order in which a second replay takes the terms of sums; a third takes the next one."""
TELL_SECONDS: Final = 0.5
"""The least time between two reports of losses."""
SIDE: Final = 1024
"""Rows and columns of the matrices whose product shows how fast this machine is."""
MOVING: Final = "moving.lock"
"""The file in a party's folder that is locked while a move is sought. The system frees it however a process ends."""


def serve(end: socket, settings: WorkerSettings, make: "Callable[..., WorkerTasks] | None" = None) -> None:
    """Answers tasks until the connection ends, and then ends the process, whatever is under way."""
    os.umask(0o077)
    os.nice(settings.niceness)
    channel, said = Channel(end, sends=tasks.ANSWERS, takes=tasks.ORDERS), SimpleQueue[Any]()

    def hear(found: Any) -> None:
        if isinstance(found, tasks.Drop):
            doing.dropped.add(found.work)
            return
        if isinstance(found, tasks.Compute):  # again, as where a block with the end of its game has vanished
            doing.dropped.discard(found.work)
        said.put(found)

    def ask(envelope: tasks.SecretRequest) -> tasks.Unsealed:
        channel.send(envelope)
        found: tasks.Unsealed = said.get()  # no task comes before the last is done
        return found

    doing = (make or WorkerTasks)(settings, channel.send, ask)
    channel.listen(hear)
    while True:
        channel.send(doing.do(said.get()))


class RestlessEvidence(Evidence):
    """Evidence whose replays end after a step if nobody needs them any more."""

    def __init__(self, run: RunDirectory, interpreter: Interpreter, logs: Logs, go_on: Callable[[], None]) -> None:
        super().__init__(run, interpreter, logs)
        self._go_on = go_on

    def _steps(self, *given: Any) -> Iterator[Any]:
        for done in super()._steps(*given):
            self._go_on()
            yield done


class WorkerTasks:
    """Does one task after another, and keeps the objects that were expensive to make."""

    EVIDENCE: ClassVar = RestlessEvidence

    def __init__(
        self, settings: WorkerSettings, tell: Callable[[Steps], None],
        ask: Callable[[tasks.SecretRequest], tasks.Unsealed] | None = None,
    ) -> None:  # fmt: skip
        self._settings, self._tell, self._ask = settings, tell, ask
        self._secrets: dict[tasks.SecretRequest, bytes] = {}
        self._interpreters: dict[tuple[Digest, int], Interpreter] = {}
        self._evidence: dict[tuple[Digest, int], Evidence] = {}
        self._samplers: dict[Digest, Sampler] = {}
        self._now: e.Work | None = None
        share = max(1, system.usable_cores() // settings.processes) if settings.processes > 1 else None
        self._machine = replace(settings.machine, threads=settings.machine.threads or share)
        self._does: dict[type[Task], Callable[[Any], Answer]] = {
            tasks.Fetch: self._fetch, tasks.Publish: self._publish, tasks.Compute: self._compute, tasks.Try: self._try,
        }  # fmt: skip
        self.dropped: set[e.Work] = set()
        """Work for jobs and games that are over: what is under way ends after its step, and none of it starts."""

    def do(self, task: Task) -> Answer | Failed:
        """The answer to a task, or why it is to be tried again: everything that is not the fault of a job's data."""
        try:
            return self._does[type(task)](task)
        except (CannotCheck, VerificationError) as error:
            # Files that do not verify did so when they came, so they were damaged on this disk; only the logs of
            # policy `logged` are checked no earlier than where they are followed.
            work = task.work if isinstance(task, tasks.Compute) else None
            if isinstance(work, e.Train | e.Gather) or (work is not None and not task.job.is_logged):
                return Failed(reason=str(error))
            return Answer(problem=str(error))
        except NotFiniteError as error:  # a training that the job's terms end here
            return Answer(problem=str(error))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = str(error) if isinstance(error, TiebreakError) else f"{error!r} at {where.filename}:{where.lineno}"
            # A program that is tried for the first time stays out; any other task is tried again.
            return Answer(problem=reason) if isinstance(task, tasks.Try) else Failed(reason=reason)

    def _folder(self, job: Job) -> Path:
        return self._settings.folder / JOBS / job.id.hex()

    # ------------------------------------------------------------------ files

    def _blobs(self) -> HubClient:
        """A client that repeats requests only for a while: then this task fails, to be tried again after others."""
        return HubClient(self._settings.hub, self._settings.domain, patience=SECONDS)

    def _unseal(self, data: bytes, job_id: Digest) -> bytes:
        """The secret of a sealed job, from the party's process, which has the key."""
        envelope = tasks.SecretRequest(job_id=job_id, data=data)
        if envelope not in self._secrets:
            assert self._ask is not None
            found = self._ask(envelope)
            if not found.secret:
                raise CannotCheck(found.problem)
            self._secrets[envelope] = found.secret
        return self._secrets[envelope]

    def _fetch(self, task: tasks.Fetch) -> Answer:
        folder = self._folder(task.job)
        most = self._settings.most_bytes or MAX_BLOB_BYTES
        blobs, domain = self._blobs(), self._settings.domain
        Fetcher(folder, blobs, task.job, domain, task.listings, most, self._unseal).fetch(task.count)
        if task.signature and not (folder / JOB).exists():
            complete(folder, task.signature)
        open_offer(folder)
        return Answer()

    def _publish(self, task: tasks.Publish) -> Answer:
        run = open_offer(self._folder(task.job))
        if task.head:
            run.write_head(SignedHead.decode(task.head))
        listed = [part for part in parts(run, task.count) if task.logs or not part.name.startswith(f"{LOGS}/")]
        blobs = None if task.is_listing else self._blobs()
        return Answer(body=publish(run, listed, blobs, task.count, secret_of(run, self._unseal)))

    # ------------------------------------------------------------------ work

    def _try(self, task: tasks.Try) -> Answer:
        """Count what a step needs; compute one only if it fits into its process's part of the memory, and the time.

        Each process that trains may have a second one next to it, which finds moves of games about the same job.
        """
        run, device = open_offer(self._folder(task.job)), self._machine.device
        use_threads(self._machine.threads)
        memory = system.memory_bytes() if device == "cpu" else torch.cuda.get_device_properties(device).total_memory
        cost, rate = cost_of(run.program), max(rate_of(dtype, device) for dtype in (torch.float32, torch.float64))
        least, most = cost.flops / rate, self._settings.trial_seconds
        if least > most:
            raise CannotCheck(f"expected a step in {most} s, got one that takes {least:.3g} s or more here")
        peak = held = None
        if device == "cpu" and not run.job.is_logged:
            peak = planned_peak(run.program, rematerialized(run.program))
            held = run.state_path(0).stat().st_size + cost.changed_bytes // 2  # of which a file may have half the bytes
        require_memory(run.program, memory // (2 * self._settings.processes), peak=peak, held=held)
        return Answer(seconds=seconds_per_step(run, self._machine))

    def _compute(self, task: tasks.Compute) -> Answer:
        job, self._now = task.job, task.work
        self.dropped.discard(task.work)  # it is needed again, if a block with the end of its game has vanished
        if isinstance(task.work, e.Replay | e.CheckLogs):
            found = self._forbidden(task.work.head, open_offer(self._folder(job)))
            if found is not None:
                return found
        match task.work:
            case e.Train(count=count):
                return Answer(root=self._train(job, count, task.signature))
            case e.Replay(head=head, attempt=attempt):
                root = self._replay(task, head.head.count, attempt)
                own = RunDirectory.open(self._replay_folder(job, attempt))
                return self._forbidden(head, own) or Answer(root=root)
            case e.Audit():
                return Answer(root=self._replay(task, job.checkpoints, 0))
            case e.CheckLogs(head=head):
                run = open_offer(self._folder(job))
                if run.recorded() < head.head.count:
                    raise CannotCheck("expected the records and logs of the run, got none")
                logs = CommittedLogs(LogFiles(run), run.record_at)
                for checkpoint in range(head.head.count):
                    logs.log_root(checkpoint)
                    self._give_way()
                return Answer()
            case e.Gather():
                assert task.turn is not None
                with (self._settings.folder / MOVING).open("ab") as file:
                    system.lock(file, shared=True, wait=True)
                    return Answer(move=self._gather(job, task.turn))

    def _forbidden(self, head: SignedHead, run: RunDirectory) -> Answer | None:
        """The answer about a head over a record in this run that its job forbids; None if there is none."""
        records = run.records() if run.job.demands_finite_losses else []
        if (found := ReportLoss.of(run.job, head, records)) is None:
            return None
        step, loss = found.record(run.job).step, shown_loss(found.loss_bits)
        return Answer(problem=f"step {step}: its record has a loss that the job forbids, {loss}", found=found)

    def _run(self, job: Job, signature: bytes) -> RunDirectory:
        folder = self._folder(job)
        return RunDirectory.open(folder) if (folder / JOB).exists() else complete(folder, signature)

    def _train(self, job: Job, count: int, signature: bytes) -> Digest:
        run = self._run(job, signature)
        if job.id not in self._samplers:
            self._samplers[job.id] = Sampler(run, device=self._machine.device)
        told = self._told(job, self._samplers[job.id])

        def on_progress(progress: Progress) -> None:
            told(progress)
            self._go_on()
            self._give_way()

        # No key is needed: it is the party's machine that signs heads.
        worker = Worker(run, self._interpreter(run), on_progress=on_progress, logs=LogsInProgress.of(run), trains=True)
        worker.work(job.last_step(count - 1))
        return run.root(count)

    def _replay(self, task: tasks.Compute, count: int, attempt: int) -> Digest:
        """Replays on, up to a checkpoint; on other settings if it is a later attempt, from where an earlier agreed."""
        job = task.job
        trainer = self._run(job, task.signature)
        folder = self._replay_folder(job, attempt)
        if not (folder / JOB).exists():
            # A folder that was being made when this process was killed lacks the job, which comes last.
            shutil.rmtree(folder, ignore_errors=True)
        replay = open_replay(trainer, folder)
        if attempt and task.agreed and not job.is_logged and not replay.recorded():
            # It begins at a checkpoint at which the earlier one agreed with the trainer, whose bytes are checked.
            earlier, step = RunDirectory.open(self._replay_folder(job, 0)), job.last_step(task.agreed - 1)
            replay.write_state(step, earlier.state(step))
            for record in earlier.records()[: task.agreed]:
                replay.append_record(record)
        logs: Logs = NO_LOGS
        if job.is_logged:
            logs = LogsInProgress(replay, CommittedLogs(LogFiles(trainer), trainer.record_at).step_log)
        worker = Worker(replay, self._interpreter(replay, attempt), on_progress=lambda _: self._give_way(), logs=logs)
        worker.work(job.last_step(count - 1))
        return replay.root(count)

    def _replay_folder(self, job: Job, attempt: int) -> Path:
        return self._settings.folder / REPLAYS / f"{job.id.hex()}-{attempt}"

    def _give_way(self) -> None:
        """Wait after a step, or what takes about as long, until no process of this party seeks a move."""
        with (self._settings.folder / MOVING).open("ab") as file:
            system.lock(file, wait=True)

    def _gather(self, job: Job, turn: Turn) -> Move:
        folder = self._folder(job) if turn.defends else self._replay_folder(job, turn.attempt)
        attempt = 0 if turn.defends else turn.attempt
        if (job.id, attempt) not in self._evidence:
            run = RunDirectory.open(folder)
            logs = CommittedLogs.of(run)
            self._evidence[job.id, attempt] = self.EVIDENCE(run, self._interpreter(run, attempt), logs, self._go_on)
        evidence = self._evidence[job.id, attempt]
        party = Defender(evidence) if turn.defends else Challenger(evidence, self._settings.secret)
        resume(party, turn.start, turn.line)
        return party.move(turn.state, turn.answered)

    def _go_on(self) -> None:
        if self._now in self.dropped:
            raise StateError("expected a job or a game that goes on, got one that is over")

    def _interpreter(self, run: RunDirectory, attempt: int = 0) -> Interpreter:
        """The interpreter of a run: with this machine's settings, and in later attempts with sums in random orders."""
        if (run.job.id, attempt) not in self._interpreters:
            self._interpreters[run.job.id, attempt] = self._make_interpreter(run, attempt)
        use_threads(1 if attempt else self._machine.threads)
        return self._interpreters[run.job.id, attempt]

    def _make_interpreter(self, run: RunDirectory, attempt: int) -> Interpreter:
        machine = replace(self._machine, permute=PERMUTATION + attempt) if attempt else self._machine
        return make_interpreter(run.program, machine, run.job)

    def _told(self, job: Job, sampler: Sampler) -> Callable[[Progress], None]:
        """Tells losses every now and then."""
        losses: list[int] = []
        started, worked = time.monotonic(), time.process_time()

        def told(progress: Progress) -> None:
            nonlocal started, worked
            sampler(progress)
            losses.append(progress.loss_bits)
            seconds = time.monotonic() - started
            is_end = job.ends_segment(progress.step)
            if seconds >= TELL_SECONDS or is_end or len(losses) == MAX_LOSSES:
                first = progress.step - len(losses) + 1
                share = (time.process_time() - worked) / max(seconds, 1e-6) / system.usable_cores()
                self._tell(Steps(
                    job_id=job.id, first_step=first, losses=tuple(losses), seconds=seconds, processor=share,
                    memory=system.most_resident_bytes(), sample=as_line(sampler.last),
                ))  # fmt: skip
                losses.clear()
                started, worked = time.monotonic(), time.process_time()

        return told


def rate_of(dtype: torch.dtype, device: str) -> float:
    """Operations a second in PyTorch's own products of large matrices: no exact step is faster."""
    left, taken = torch.ones(SIDE, SIDE, dtype=dtype, device=device), list[float]()
    for _ in range(3):
        started = time.perf_counter()
        float((left @ left)[0, 0])  # which also waits for a GPU
        taken.append(time.perf_counter() - started)
    return float(2 * SIDE**3 / min(taken))
