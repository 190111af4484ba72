"""Training and replay: the same loop. A trainer signs heads as it goes; an auditor only computes.

This is Algorithm 1 of the paper under policy `exact`: every instruction is rounded from its exact value, every k steps
the state is committed and the head of the run tree signed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.interpreter import Interpreter, Observer, State
from engine.storage import RunDirectory
from engine.tensors import identities
from protocol.commitments import StepRecord, run_tree, state_tree
from protocol.errors import StateError
from protocol.job import Head, SignedHead
from protocol.keys import PrivateKey
from protocol.tags import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Told after every step. `record` is set at a checkpoint, `head` where the trainer signed."""

    step: int
    steps: int
    loss: float
    seconds: float
    record: StepRecord | None = None
    head: SignedHead | None = None


OnProgress = Callable[[Progress], None]
Tamper = Callable[[int], Observer | None]
"""For a step, what a cheat puts in place of honest values (None: nothing)."""


def honest(_step: int) -> Observer | None:
    """The tampering of an honest party."""
    return None


def make_record(step: int, state: State, loss_bits: int) -> StepRecord:
    """The record of a step under policy `exact`."""
    return StepRecord(step=step, state_root=state_tree(identities(state)).root, loss_bits=loss_bits)


class Worker:
    """Computes a run into its directory, from the last checkpoint that is whole."""

    def __init__(
        self,
        run: RunDirectory,
        interpreter: Interpreter,
        *,
        key: PrivateKey | None = None,
        on_progress: OnProgress = lambda _: None,
        tamper: Tamper = honest,
        stop_if_not_finite: bool = True,
    ) -> None:
        """`key` is the trainer's; without one this is an auditor's replay, which no diverging run may stop.

        A trainer whose run diverges and who wants its reward nevertheless (the program is what was agreed on) sets
        `stop_if_not_finite` to False.
        """
        self.run = run
        self.interpreter = interpreter
        self._key = key
        self._on_progress = on_progress
        self._tamper = tamper
        # SAFETY: an auditor goes on. Else a cheat whose true run diverges commits any finite state and is never caught.
        self._check_finite = stop_if_not_finite and key is not None

    def work(self, until: int | None = None) -> Digest:
        """Runs to step `until` (default: the end) and returns the root of the run tree so far.

        Raises `NotFiniteError` (trainers only), `StorageError`, `StateError`; in each case everything committed so far
        stays valid and a later call resumes.
        """
        with self.run.lock():
            step = self.run.last_complete()
            state = self.interpreter.to_device(self.run.state(step))
            data = self.interpreter.to_device(self.run.data())
            self._sign_missing(step)
            last = self.run.job.steps if until is None else until
            while step < last:
                step += 1
                started = time.perf_counter()
                tampered = self._tamper(step)
                result = self.interpreter.step(step, state, data, tampered, check_finite=self._check_finite)
                state = result.state
                self._finish_step(step, state, result.loss_bits, result.loss, time.perf_counter() - started)
        return self.root()

    def root(self) -> Digest:
        """Root of the run tree over the checkpoints so far."""
        return self._tree_root(len(self.run.records()))

    def _tree_root(self, count: int) -> Digest:
        job = self.run.job
        digests = [record.digest for record in self.run.records()[:count]]
        return run_tree(digests, job.steps, job.checkpoint_interval).root

    def _finish_step(self, step: int, state: State, bits: int, loss: float, seconds: float) -> None:
        record = head = None
        job = self.run.job
        if step == job.last_step(job.checkpoint_of(step)):
            record = make_record(step, state, bits)
            self._keep(record, state)
            head = self._sign(job.checkpoint_of(step) + 1)
        self.run.add_metric(step, loss, seconds)
        progress = Progress(step=step, steps=job.steps, loss=loss, seconds=seconds, record=record, head=head)
        self._on_progress(progress)

    def _keep(self, record: StepRecord, state: State) -> None:
        checkpoint = self.run.job.checkpoint_of(record.step)
        known = self.run.records()
        if checkpoint < len(known) and known[checkpoint] != record:
            raise StateError(
                f"step {record.step}: expected the record committed before, {known[checkpoint].digest.hex()}, got "
                f"{record.digest.hex()}; this machine does not compute what it computed, qualify it again"
            )
        self.run.write_state(record.step, state)
        if checkpoint == len(known):
            self.run.append_record(record)

    def _sign_missing(self, step: int) -> None:
        """After a crash between a record and its head, the head is still owed."""
        if step:
            self._sign(self.run.job.checkpoint_of(step) + 1)

    def _sign(self, count: int) -> SignedHead | None:
        if self._key is None:
            return None
        head = Head(job_id=self.run.job.id, count=count, run_root=self._tree_root(count))
        signed = SignedHead.sign(head, self.run.agreement.domain, self._key)
        self.run.write_head(signed)
        return signed
