"""A cheap audit of a signed run: the losses of drawn steps, by the forward part of the program alone.

A step can be drawn if the trainer kept the state before it, and committed its loss where it can be read: the first step
of a segment between two kept states. The numbered plan, for each drawn step: (1) the records are the signed head's, and
both states have the roots in their records; (2) its loss is computed from the state before it; (3) it has the bits that
are committed, in the record or in the ring of losses of the state at the segment's end. There is no threshold: a loss
of other bits convicts, as a replay would.
"""

import time
from dataclasses import dataclass, field, replace

import torch

from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.engine.capture.state import TELEMETRY
from tiebreak.engine.data import check_unchanged
from tiebreak.engine.run.cost import cost_of
from tiebreak.engine.run.directory import RunDirectory, kept_steps
from tiebreak.engine.run.interpreter import State, loss_bits
from tiebreak.engine.run.segments import chances, draw_segments, signed_records
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, VerificationError
from tiebreak.protocol.program.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedLoss:
    """The loss of one step, as committed and as computed, in bits."""

    step: int
    committed: int
    computed: int


@dataclass(kw_only=True)
class ForwardAudit:
    """The losses that were checked, up to the first that is false.

    segments: all that are signed. drawable: those whose first step can be drawn. replay: the operations as a share of
    those of a whole replay. detection: pairs of a number of false losses among the drawable, and the chance that one of
    them was drawn.
    """

    segments: int
    drawable: int
    replay: float
    detection: list[tuple[int, float]]
    losses: list[CheckedLoss] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def fraud(self) -> CheckedLoss | None:
        return next((loss for loss in self.losses if loss.committed != loss.computed), None)


def audit_forward(run: RunDirectory, sample: int, seed: str, machine: Machine) -> ForwardAudit:
    """Checks the losses of `sample` steps, or of all that can be drawn, from the seed and the signed root.

    Raises `ConfigurationError` for a job of policy `logged`, `CannotCheck` if nothing can be drawn or a state is
    damaged.
    """
    job = run.job
    if job.is_logged:
        raise ConfigurationError(
            "expected a job of policy exact, got one of policy logged: audit a sample of it instead"
        )
    records, head = signed_records(run)  # (1)
    kept = set(kept_steps(run, len(records)))
    begun = [c for c in range(len(records)) if job.first_step(c) - 1 in kept]
    if not (drawable := [c for c in begun if job.segment_steps(c) == 1 or job.last_step(c) in kept]):
        raise CannotCheck(f"{run.path}: expected kept states around at least one segment, got none; audit it")
    program = loss_alone(run.program)
    interpreter = make_interpreter(program, machine, job)
    data, held = interpreter.place_data(run.data()), dict[int, State]()

    def state(step: int) -> State:
        """A kept state that has the root in its record. The last one stays, for the next segment begins with it."""
        if step not in held:
            root = records[job.checkpoint_of(step)].state_root if step else job.initial_state_root
            try:
                tensors = run.state(step, root)
            except VerificationError as error:
                raise CannotCheck(f"the state after step {step} is withheld or damaged: {error}") from error
            held.clear()
            held[step] = interpreter.to_device(tensors)
        return held[step]

    def committed(checkpoint: int) -> int:
        """The bits of the loss of a segment's first step, as its record or the state at its end binds them."""
        count = job.segment_steps(checkpoint)
        found = [records[checkpoint].loss_bits] if count == 1 else losses_in(state(job.last_step(checkpoint)), count)
        if not found:
            raise CannotCheck(f"{run.path}: expected a ring of losses in the state, got none; audit the run instead")
        return found[0]

    sample, each = min(sample, len(drawable)), cost_of(program).flops / max(1, cost_of(run.program).flops)
    found = ForwardAudit(
        segments=len(records), drawable=len(drawable), replay=sample * each / job.last_step(len(records) - 1),
        detection=chances(len(drawable), sample),
    )  # fmt: skip
    started = time.perf_counter()
    for place in draw_segments(len(drawable), sample, seed.encode(), head.head.run_root):
        step = job.first_step(drawable[place])
        computed = interpreter.step(step, state(step - 1), data, check_finite=False).loss_bits  # (2)
        found.losses.append(CheckedLoss(step=step, committed=committed(drawable[place]), computed=computed))  # (3)
        if found.fraud is not None:
            break
    check_unchanged(data.values())  # otherwise an honest loss might seem false
    found.seconds = time.perf_counter() - started
    return found


def loss_alone(program: Program) -> Program:
    """The instructions that the loss needs, for an interpreter. They commit nothing, so no job is about their root.

    Results are defined by their instructions, so computing fewer of them changes no bit of those that are left.
    """
    needed = {len(program.body) - 1}
    for index in range(len(program.body) - 1, -1, -1):
        if index in needed:
            needed |= {operand.value for operand in program.body[index].operands}
    at = {index: place for place, index in enumerate(sorted(needed))}
    body = [
        replace(i, operands=tuple(replace(operand, value=at[operand.value]) for operand in i.operands))
        for i in map(program.body.__getitem__, sorted(needed))
    ]
    return Program(body=tuple(body), commits=())


def losses_in(state: State, steps: int) -> list[int]:
    """The bits of the losses of a segment of `steps` steps, from the state at its end; empty if it has no ring.

    A loss is bound to its checkpoint by the record if it is of the checkpoint's own step, and otherwise by the ring of
    losses in the state (docs/decisions/trees-and-hashes.md).
    """
    ring = state.get(TELEMETRY)
    if ring is None or ring.dtype != torch.float32 or ring.dim() != 1 or len(ring) < steps:
        return []
    return [loss_bits(ring[place]) for place in range(steps)]
