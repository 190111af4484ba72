"""A cheap look at a signed run: the losses of drawn steps, by the forward part of the program alone.

A step can be drawn if the trainer kept the state before it, and committed its loss where it can be read: the first step
of a segment between two kept states. Numbered plan of `validate`, for each drawn step: (1) the records are the signed
head's, and both states have the roots in their records; (2) its loss is computed from the state before it; (3) it has
the bits that are committed, in the record or in the ring of losses of the state at the segment's end. There is no
threshold: a loss of other bits convicts, as a replay would.

It also does what Kang et al. (2023) propose for epochs, here segments: the mean loss on n% of a segment's batches
with the weights at its end should be within 100 sigma / n of the mean that was reported, sigma being the deviation of
the reported losses. That is an alarm at best: it passes all that is nearer than its threshold.
"""

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from tiebreak.api.auditing.audits import chances
from tiebreak.api.machine import Machine
from tiebreak.api.machine.running import make_interpreter
from tiebreak.engine.capture.state import TELEMETRY
from tiebreak.engine.data import check_unchanged
from tiebreak.engine.run.audit import draw_segments, signed_records
from tiebreak.engine.run.cost import cost_of
from tiebreak.engine.run.directory import RunDirectory, kept_steps
from tiebreak.engine.run.interpreter import Interpreter, State, loss_bits
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, VerificationError
from tiebreak.protocol.numbers.float32 import to_float
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The loss of one step, as committed and as computed, in bits."""

    step: int
    committed: int
    computed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochLook:
    """The paper's look at one segment: the mean loss as reported and as computed, and the threshold between them."""

    segment: int
    reported: float
    computed: float
    threshold: float

    @property
    def passes(self) -> bool:
        return abs(self.reported - self.computed) < self.threshold


@dataclass(kw_only=True)
class Validation:
    """The findings of the looks, which end at the first loss that is false.

    segments: all that are signed. drawable: those whose first step can be drawn. replay, epoch_replay: the operations
    of either kind of look as a share of those of a whole replay; seconds, epoch_seconds: the time that they took.
    detection: pairs of a number of false losses among the drawable, and the chance that one of them was drawn.
    """

    segments: int
    drawable: int
    looks: list[Look] = field(default_factory=list)
    epochs: list[EpochLook] = field(default_factory=list)
    replay: float = 0.0
    epoch_replay: float = 0.0
    detection: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    epoch_seconds: float = 0.0

    @property
    def fraud(self) -> Look | None:
        return next((look for look in self.looks if look.committed != look.computed), None)


def validate(run: RunDirectory, share: float, seed: str, machine: Machine, *, epochs: bool = False) -> Validation:
    """Looks at a share (more than 0, at most 1) of the steps that can be drawn, and at each segment as the paper does.

    Draws come from the seed and the signed root (`draw_segments`). epochs: also the paper's look. Raises
    `ConfigurationError` for a job of policy `logged`, `CannotCheck` if nothing can be drawn or a state is damaged.
    """
    if run.job.is_logged:
        raise ConfigurationError(
            "expected a job of policy exact, got one of policy logged: audit a sample of it instead"
        )
    return _Validator(run, machine).validate(share, seed, epochs=epochs)


class _Validator:
    def __init__(self, run: RunDirectory, machine: Machine) -> None:
        self._run, self._job = run, run.job
        self._records, self._head = signed_records(run)  # (1)
        program = loss_alone(run.program)
        self._interpreter: Interpreter = make_interpreter(program, machine, run.job)
        self._data = self._interpreter.place_data(run.data())
        self._each = cost_of(program).flops / max(1, cost_of(run.program).flops)
        """The operations of one loss as a share of a step's."""
        self._held: Mapping[int, State] = {}

    def validate(self, share: float, seed: str, *, epochs: bool) -> Validation:
        job, kept = self._job, set(kept_steps(self._run, len(self._records)))
        begun = [c for c in range(len(self._records)) if job.first_step(c) - 1 in kept]
        drawable = [c for c in begun if job.segment_steps(c) == 1 or job.last_step(c) in kept]
        if not drawable:
            raise CannotCheck(f"{self._run.path}: expected kept states around at least one segment, got none; audit it")
        total, steps = len(drawable), job.last_step(len(self._records) - 1)
        sample = max(1, math.ceil(share * total))
        found = Validation(segments=len(self._records), drawable=total, replay=sample * self._each / steps)
        found.detection = chances(total, sample)
        started = time.perf_counter()
        for place in draw_segments(total, sample, seed.encode(), self._head.head.run_root):
            found.looks.append(self._look(drawable[place]))
            if found.fraud is not None:
                break
        found.seconds = time.perf_counter() - started
        if epochs:
            started = time.perf_counter()
            batches = 0
            several = (c for c in range(len(self._records)) if job.segment_steps(c) > 1 and job.last_step(c) in kept)
            for checkpoint in several:  # one loss alone has no deviation
                batches += self._epoch(found, checkpoint, share)
            found.epoch_seconds, found.epoch_replay = time.perf_counter() - started, batches * self._each / steps
        check_unchanged(self._data.values())  # otherwise an honest loss might seem false
        return found

    def _look(self, checkpoint: int) -> Look:
        step = self._job.first_step(checkpoint)
        computed = self._loss(step, self._state(step - 1))  # (2)
        return Look(step=step, committed=self._losses(checkpoint)[0], computed=computed)  # (3)

    def _epoch(self, found: Validation, checkpoint: int, share: float) -> int:
        """The paper's look at a segment. Returns the number of batches that it computed."""
        job, reported = self._job, [to_float(bits) for bits in self._losses(checkpoint)]
        count = max(1, math.ceil(share * len(reported)))
        chosen = draw_segments(len(reported), count, b"%d" % checkpoint, self._head.head.run_root)
        state = self._state(job.last_step(checkpoint))
        computed = [to_float(self._loss(job.first_step(checkpoint) + place, state)) for place in chosen]
        look = EpochLook(
            segment=checkpoint, reported=statistics.fmean(reported), computed=statistics.fmean(computed),
            threshold=statistics.pstdev(reported) / share if all(map(math.isfinite, reported)) else 0.0,
        )  # fmt: skip
        found.epochs.append(look)
        return count

    def _loss(self, step: int, state: State) -> int:
        return self._interpreter.step(step, state, self._data, check_finite=False).loss_bits

    def _losses(self, checkpoint: int) -> list[int]:
        """The bits of a segment's losses, as its record or the state at its end binds them."""
        job, count = self._job, self._job.segment_steps(checkpoint)
        if count == 1:
            return [self._records[checkpoint].loss_bits]
        found = losses_in(self._state(job.last_step(checkpoint)), count)
        if not found:
            raise CannotCheck(
                f"{self._run.path}: expected a ring of losses in the state, got none; audit the run instead"
            )
        return found

    def _state(self, step: int) -> State:
        """A kept state that has the root in its record. The last one stays, for the next segment begins with it."""
        if step not in self._held:
            record: StepRecord = self._records[self._job.checkpoint_of(step)] if step else self._job.initial_record
            try:
                tensors = self._run.state(step, record.state_root)
            except VerificationError as error:
                raise CannotCheck(f"the state after step {step} is withheld or damaged: {error}") from error
            self._held = {step: self._interpreter.to_device(tensors)}
        return self._held[step]


def loss_alone(program: Program) -> Program:
    """The instructions that the loss needs, for an interpreter. They commit nothing, so no job is about their root.

    Results are defined by their instructions, so computing fewer of them changes no bit of those that are left.
    """
    needed = {len(program.body) - 1}
    for index in range(len(program.body) - 1, -1, -1):
        if index in needed:
            needed |= {operand.value for operand in program.body[index].operands}
    at = {index: place for place, index in enumerate(sorted(needed))}

    def moved(instruction: Instruction) -> Instruction:
        operands = tuple(replace(operand, value=at[operand.value]) for operand in instruction.operands)
        return replace(instruction, operands=operands)

    return Program(body=tuple(moved(program.body[index]) for index in sorted(needed)), commits=())


def losses_in(state: State, steps: int) -> list[int]:
    """The bits of the losses of a segment of `steps` steps, from the state at its end; empty if it has no ring.

    A loss is bound to its checkpoint by the record if it is of the checkpoint's own step, and otherwise by the ring of
    losses in the state (docs/decisions/trees-and-hashes.md).
    """
    ring = state.get(TELEMETRY)
    if ring is None or ring.dtype != torch.float32 or ring.dim() != 1 or len(ring) < steps:
        return []
    return [loss_bits(ring[place]) for place in range(steps)]
