"""Training and replay share one loop: a trainer signs heads as it goes, an auditor only computes.

This is Algorithm 1 of the paper (`train`): every instruction's result is rounded, and every k steps the state is
committed and the head of the run tree signed. Under policy `exact`, each result is rounded from its exact value. Under
`logged`, a sum near a tie is rounded from the computed value and the direction goes into the step's log
(`tiebreak.engine.logged`, Algorithms 4 and 2), whose root is in the record.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tiebreak.engine.data import check_unchanged
from tiebreak.engine.run.commit import Commit, Committer
from tiebreak.engine.run.directory import ALL, Keep, RunDirectory
from tiebreak.engine.run.interpreter import Interpreter, NotFiniteError, State
from tiebreak.engine.run.logs import NO_LOGS, Logs, check_logs
from tiebreak.engine.run.loop import steps
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.numbers.float32 import is_finite
from tiebreak.protocol.tags import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Reported after every step. Times are in seconds."""

    step: int
    steps: int
    loss: float
    loss_bits: int
    seconds: float
    """The time that computing the step took."""
    resolving: float
    """The part of it spent on elements that FP64 did not decide."""
    waiting: float
    """The time spent waiting after the step for a checkpoint that was not finished in the background."""
    entries: int = 0
    """The number of entries in the step's rounding log."""


OnCommit = Callable[[Commit], None]
"""Called for each checkpoint once it is safe, in order and between two steps (not always right after it)."""
OnProgress = Callable[[Progress], None]


class Worker:
    """Computes a run into its directory, continuing from the last complete checkpoint."""

    def __init__(
        self, run: RunDirectory, interpreter: Interpreter, *, key: PrivateKey | None = None,
        on_progress: OnProgress = lambda _: None, on_commit: OnCommit = lambda _: None, stop_if_not_finite: bool = True,
        keep: Keep = ALL, logs: Logs = NO_LOGS, trains: bool = False,
    ) -> None:  # fmt: skip
        """`key` is the trainer's. Without a key this is an auditor's replay, which continues even if the run diverges.

        stop_if_not_finite: a trainer whose run diverges, and who claims the reward nevertheless because the program is
        what was agreed on, sets this to False. In a job that demands finite losses, it stops all the same before a step
        that has none. trains: this is a trainer's, whose key is elsewhere. keep: which checkpoints stay on disk. logs:
        for a job of policy `logged`, those of this run (`engine.logged.journal.LogsInProgress`). Raises
        `ConfigurationError` for an interpreter that follows other rules than the job's.
        """
        interpreter.check_job(run.job)
        check_logs(run.job, logs)
        self.run = run
        self.interpreter = interpreter
        self._key = key
        self._on_progress = on_progress
        self._on_commit = on_commit
        # SAFETY: an auditor must go on. Otherwise a cheat whose true run diverges could commit any finite state and
        # never be caught.
        self._check_finite = stop_if_not_finite and key is not None
        self._demands_finite = (trains or key is not None) and run.job.demands_finite_losses
        self._keep = keep
        self._logs = logs

    def work(self, until: int | None = None) -> Digest:
        """Runs to step `until` (default: the end) and returns the root of the run tree so far.

        Raises `NotFiniteError` (trainers only), `StorageError`, `StateError`, and `CannotCheck` if the trainer's logs
        are not those it committed. In each case everything committed so far stays valid, and a later call resumes. A
        checkpoint is committed while the next steps are computed, so an error in that is raised after a later step, at
        the latest before the next checkpoint.
        """
        computed = self.each(until)
        for progress, _ in computed:
            try:
                self._on_progress(progress)
            except BaseException as error:
                computed.throw(error)  # which raises it again, once the checkpoint in flight is finished
        return self.run.root()

    def each(self, until: int | None = None) -> Generator[tuple[Progress, State]]:
        """Does what `work` does, each step when it is asked for, and yields it with the state after it.

        The state must not be read after the next step is asked for. Closed early, it finishes the checkpoint in flight.
        """
        run, job, interpreter = self.run, self.run.job, self.interpreter
        stats, last = interpreter.arithmetic.stats, job.steps if until is None else until
        with self._committing() as (committer, before):
            interpreter.starts_at(before)
            state = interpreter.to_device(run.state(before, narrow=True))
            data = interpreter.place_data(run.data())
            computed = steps(
                interpreter, state, data, range(before + 1, last + 1), sums=self._logs.before,
                check_finite=self._check_finite, donate=lambda: not committer.in_flight,
            )  # fmt: skip
            del state  # its memory may be reused for the next state
            started, resolving = time.perf_counter(), stats.seconds_resolving
            for step, result, _ in computed:
                if self._demands_finite and not is_finite(result.loss_bits):
                    raise NotFiniteError(step, "the loss")
                entries = self._logs.after(step)
                seconds = time.perf_counter() - started
                # A checkpoint begins only when the one before it is on disk; otherwise nothing waits.
                commits = [committer.finished()]
                is_checkpoint = step == job.last_step(checkpoint := job.checkpoint_of(step))
                commits += [committer.wait()] if is_checkpoint else []
                waiting = time.perf_counter() - started - seconds
                run.add_metric(step, result.loss, seconds)  # first: after its checkpoint none computes it again
                self._report(*commits)  # now: the next checkpoint drops the state of this one, if it is not kept
                if is_checkpoint:
                    check_unchanged(data.values())
                    whole, log_root = interpreter.whole(result.state), self._logs.log_root(checkpoint)
                    committer.submit(step, whole, result.loss_bits, log_root)
                    del whole
                resolving = stats.seconds_resolving - resolving
                progress = Progress(
                    step=step, steps=job.steps, loss=result.loss, loss_bits=result.loss_bits, seconds=seconds,
                    resolving=resolving, waiting=waiting, entries=entries,
                )  # fmt: skip
                yield progress, result.state
                started, resolving = time.perf_counter(), stats.seconds_resolving
            self._report(committer.wait())

    @contextmanager
    def _committing(self) -> Iterator[tuple[Committer, int]]:
        """Locks the run, and yields its committer and the step from which it continues.

        After an error, finishes the checkpoint in flight and reports it, or notes its failure on the error.
        """
        with self.run.lock():
            step = self.run.last_complete()
            committer = Committer(self.run, key=self._key, keep=self._keep)
            with committer.from_step(step):
                try:
                    yield committer, step
                except BaseException as error:
                    try:
                        self._report(committer.wait())
                    except Exception as other:  # a second error must not hide the first
                        error.add_note(f"nor is the checkpoint before it committed: {other}")
                    raise

    def _report(self, *commits: Commit | None) -> None:
        for commit in commits:
            if commit is not None:
                self._on_commit(commit)
