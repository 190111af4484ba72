"""Auditing: replay and compare (Algorithm 2 of the paper; under policy `exact` there is no log to follow).

A whole audit computes the run again from the initial state, in the auditor's own directory, and compares roots. A
segment audit starts at one of the trainer's checkpoints, which must hash to what the trainer committed, and replays to
the next.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engine.interpreter import Interpreter
from engine.storage import RunDirectory
from engine.training import make_record
from protocol.commitments import StepRecord, run_tree
from protocol.errors import ConfigurationError, StateError
from protocol.job import SignedHead
from protocol.tags import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A signed head against the auditor's own replay."""

    count: int
    committed: Digest
    replayed: Digest

    @property
    def agrees(self) -> bool:
        """Whether the trainer's root is the true one."""
        return self.committed == self.replayed


def compare(replay: RunDirectory, head: SignedHead) -> Comparison:
    """Checks a head against the auditor's own run. Raises `StateError` if that has not come as far."""
    head.verify(replay.job, replay.agreement.domain)
    records = replay.records()
    count = head.head.count
    if len(records) < count:
        raise StateError(f"the replay has {len(records)} checkpoints; replay to {count} before comparing")
    job = replay.job
    root = run_tree([record.digest for record in records[:count]], job.steps, job.checkpoint_interval).root
    return Comparison(count=count, committed=head.head.run_root, replayed=root)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReport:
    """One checkpoint of a trainer's run against a replay of its segment."""

    checkpoint: int
    first_step: int
    last_step: int
    committed: StepRecord
    replayed: StepRecord

    @property
    def agrees(self) -> bool:
        """Whether the segment leads from the checkpoint before to this one."""
        return self.committed == self.replayed


def audit_segment(
    run: RunDirectory, interpreter: Interpreter, checkpoint: int, on_step: Callable[[int], None] = lambda _: None
) -> SegmentReport:
    """Replays the segment of one checkpoint (from 0) from the trainer's own state before it.

    Raises `VerificationError` if that state is not what the trainer committed.
    """
    job, records = run.job, run.records()
    if not 0 <= checkpoint < len(records):
        raise ConfigurationError(f"expected a checkpoint below {len(records)}, got {checkpoint}")
    first, last = job.first_step(checkpoint), job.last_step(checkpoint)
    state = interpreter.to_device(run.state(first - 1))
    data = interpreter.to_device(run.data())
    bits = 0
    for step in range(first, last + 1):
        result = interpreter.step(step, state, data, check_finite=False)
        state, bits = result.state, result.loss_bits
        on_step(step)
    return SegmentReport(
        checkpoint=checkpoint,
        first_step=first,
        last_step=last,
        committed=records[checkpoint],
        replayed=make_record(last, state, bits),
    )
