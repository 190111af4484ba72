"""Commits checkpoints: hashes the state, writes it, appends its record and signs the head, in this order.

A separate thread does this while the next step is computed, for one checkpoint at a time. A head is signed only after
the record that it binds, and the state of that record, are safely on disk. An error in the thread is raised by a later
call of this module; everything committed before it stays valid.

The state that is being committed is only read, and is referenced until it is on disk. The caller must therefore not
write into the tensors of a state, nor reuse their memory, while anything still refers to them. A state that is hashed
where it lies is copied there first, and on CUDA devices hashed and moved by a stream of its own: steps may go on at
once, over its memory too.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.backend import identities, launches, new_stream
from tiebreak.engine.run.directory import ALL, Keep, RunDirectory
from tiebreak.engine.run.interpreter import State
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import ZERO_DIGEST, StepRecord, state_tree
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Frontier


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A checkpoint that is safely on disk. `head` is set if it was signed; times are in seconds."""

    record: StepRecord
    count: int
    """The number of checkpoints so far."""
    run_root: Digest
    """The root of the run tree over these checkpoints."""
    head: SignedHead | None
    hashing: float
    writing: float
    """The time until state, record and head were on disk."""


class Identified:
    """The ids of the states of one run. Those of entries that no step changes are computed once for each tensor."""

    def __init__(self, program: Program) -> None:
        self._frozen = program.frozen
        self._known: dict[str, tuple[Tensor, Digest]] = {}

    def of(self, state: State) -> dict[str, Digest]:
        """The id of each entry. The tensors of entries that no step changes must not have been written to."""
        known = {name: digest for name, (tensor, digest) in self._known.items() if state[name] is tensor}
        ids = known | identities({name: tensor for name, tensor in state.items() if name not in known})
        self._known = {name: (state[name], ids[name]) for name in self._frozen}
        return {name: ids[name] for name in state}


def make_record(
    step: int, state: State, loss_bits: int, log_root: Digest = ZERO_DIGEST,
    ids: Callable[[State], dict[str, Digest]] = identities,
) -> StepRecord:  # fmt: skip
    """The record of a step. log_root: that of its segment under policy `logged`. ids: identifies the entries."""
    return StepRecord(step=step, state_root=state_tree(ids(state)).root, loss_bits=loss_bits, log_root=log_root)


class Committer:
    """Commits the checkpoints of one run, in order. One thread uses it, inside `with`."""

    def __init__(self, run: RunDirectory, *, key: PrivateKey | None = None, keep: Keep = ALL) -> None:
        """Takes the signing key; without one, no head is signed."""
        self._run, self._key, self._keep = run, key, keep
        self._identified = Identified(run.program)
        self._frontier = Frontier()
        self._newest = 0
        # A new thread has torch's number of threads at its first use, which may be amid a step (`threads.torch_alone`).
        self._executor = ThreadPoolExecutor(1, "checkpoint", torch.set_num_threads, (torch.get_num_threads(),))
        self._flying: Future[Commit] | None = None
        self._copied = False
        self._aside: torch.cuda.Stream | None = None

    @contextmanager
    def from_step(self, step: int) -> Iterator["Committer"]:
        """Continues after a step whose checkpoint is complete (0: the initial state). Nothing is in flight on exit."""
        count = self._run.job.checkpoint_of(step) + 1 if step else 0
        for digest in self._run.record_digests(count):
            self._frontier.append(digest)
        self._newest = step
        self._run.drop_parts()
        self._keep.prune(self._run, step)
        if count:  # a crash between a record and its head leaves the head unsigned
            self._sign()
        try:
            yield self
        finally:
            _join(self._executor)

    def submit(self, step: int, state: State, loss_bits: int, log_root: Digest = ZERO_DIGEST) -> None:
        """Begins to commit a state, which must not change while it is `in_flight`. Call `wait` first.

        log_root: that of the segment, whose logs must already be on disk.
        """
        assert self._flying is None, "one state is committed at a time"
        device, ready = next(iter(state.values())).device, None
        self._copied = launches(device)
        if self._copied:
            frozen = self._run.program.frozen  # no step writes to these
            state = {name: tensor if name in frozen else tensor.clone() for name, tensor in state.items()}
        self._aside = self._aside or new_stream(device)
        if self._aside is not None:
            ready = torch.cuda.current_stream(device).record_event()
        self._flying = self._executor.submit(self._commit_aside, ready, step, state, loss_bits, log_root)

    @property
    def in_flight(self) -> bool:
        """Whether a state is still being read. If so, no state may be donated, because two states may share tensors."""
        return self._flying is not None and not self._flying.done() and not self._copied

    def finished(self) -> Commit | None:
        """The checkpoint that was committed since the last call, if any. Raises the error if committing failed."""
        return self.wait() if self._flying is not None and self._flying.done() else None

    def wait(self) -> Commit | None:
        """Like `finished`, but waits for the checkpoint in flight."""
        if self._flying is None:
            return None
        wait([self._flying])  # if this is interrupted, it is still in flight
        done, self._flying = self._flying, None
        return done.result()

    def _commit_aside(
        self, ready: torch.cuda.Event | None, step: int, state: State, loss_bits: int, log_root: Digest
    ) -> Commit:
        """Commits a state once the event has come, on a stream of its own if there are streams."""
        if ready is None or self._aside is None:
            return self._commit(step, state, loss_bits, log_root)
        with torch.cuda.stream(self._aside):
            self._aside.wait_event(ready)
            return self._commit(step, state, loss_bits, log_root)  # the host has read all of it then

    def _commit(self, step: int, state: State, loss_bits: int, log_root: Digest) -> Commit:
        started = time.perf_counter()
        # A tensor that is hashed where it lies is moved to be written; any other once, because it is read twice.
        state = {name: tensor if launches(tensor.device) else tensor.to("cpu") for name, tensor in state.items()}
        record = make_record(step, state, loss_bits, log_root, self._identified.of)
        hashed = time.perf_counter()
        checkpoint, recorded = self._run.job.checkpoint_of(step), self._run.recorded()
        if checkpoint < recorded and (known := self._run.record_at(checkpoint)) != record:
            raise StateError(
                f"step {step}: expected the record committed before, {known.digest.hex()}, got {record.digest.hex()}; "
                "this machine no longer reproduces its own result; run `tiebreak doctor`"
            )
        self._run.write_state(step, state)
        if checkpoint == recorded:
            self._run.append_record(record)
        self._frontier.append(record.digest)
        head = self._sign()
        if self._newest and not self._keep.keeps(self._run.job.checkpoint_of(self._newest)):
            self._run.drop_state(self._newest)
        self._newest = step
        return Commit(
            record=record,
            count=self._frontier.count,
            run_root=self._root(),
            head=head,
            hashing=hashed - started,
            writing=time.perf_counter() - hashed,
        )

    def _root(self) -> Digest:
        return self._frontier.root(self._run.job.run_depth)

    def _sign(self) -> SignedHead | None:
        if self._key is None:
            return None
        head = Head(job_id=self._run.job.id, count=self._frontier.count, run_root=self._root())
        signed = SignedHead.sign(head, self._run.agreement.domain, self._key)
        self._run.write_head(signed)
        return signed


def _join(executor: ThreadPoolExecutor) -> None:
    """Waits for the thread despite any interrupt: the run must stay locked while anything writes into it."""
    interrupted = None
    while True:
        try:
            executor.shutdown(wait=True)
            break
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted
