"""Turns a task into what other parties receive: the program, the initial state and the data, as tensors by name.

`draft_job` makes of these the job that client and trainer sign.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tiebreak.engine.capture.examples import Examples, Rows, Windows
from tiebreak.engine.capture.held import is_held
from tiebreak.engine.capture.rehearsal import rehearse
from tiebreak.engine.capture.state import MODEL, StateEntries, first_state
from tiebreak.engine.capture.step import Constants, capture
from tiebreak.engine.capture.step_run import CPU, remembered, same_tensors, untouched
from tiebreak.engine.capture.task import Task
from tiebreak.engine.capture.torch_updates import RecordedSteps, recorded, torch_update
from tiebreak.engine.data import FactsCache, data_identities
from tiebreak.engine.data.mapped import NARROW, fills_words, stored, words_of
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.lowering import INTEGERS
from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.lowering.elementwise import wrapped
from tiebreak.engine.optimizers.rules import Update, clipped, tables, update
from tiebreak.engine.optimizers.translate import TorchOptimizers
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import FINITE_LOSSES, PRECISION_F32, Job, SignedJob
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import data_tree, state_tree
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError, ProgramError
from tiebreak.protocol.program.isa import DType, MapFunction
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Policy

__all__ = [
    "Captured", "PhaseResults", "Terms", "capture_in_place", "capture_task", "draft_job", "rehearsed", "sign_job",
    "with_state",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PhaseResults:
    """The places of a phase's results among the values of the program's body.

    gradients: by parameter, before clipping. written: the trained parameters that the step itself writes to, before the
    update. after: parameters and buffers that the phase changes, by state entry; None
    for those that nothing reads. draws: as in `Builder`, but None also for what is not in the body.
    """

    loss: Ref
    gradients: dict[str, Ref]
    written: dict[str, Ref]
    after: dict[str, Ref | None]
    draws: tuple[int | None, ...]

    def placed(self, indices: Mapping[int, int]) -> "PhaseResults":
        """The same by index in the body. indices: those of the values that are still in it."""

        def kept(refs: Mapping[str, Ref | None]) -> dict[str, Ref]:
            found = ((name, ref) for name, ref in refs.items() if ref is not None and ref.value in indices)
            return {name: replace(ref, value=indices[ref.value]) for name, ref in found}

        return PhaseResults(
            loss=replace(self.loss, value=indices[self.loss.value]), gradients=kept(self.gradients),
            written=kept(self.written), after={**dict.fromkeys(self.after), **kept(self.after)},
            draws=tuple(None if value is None else indices.get(value) for value in self.draws),
        )  # fmt: skip


@dataclass(frozen=True)
class Captured:
    """A captured task.

    program: the step's instructions; its `root` identifies the computation. state: the initial state, by the names of
    the program; what no step changes is the model's own memory, in its dtype if that is bfloat16, so write the state
    before you change the model. data: everything else that the steps read.
    phases: the results of each phase of a step, of which most have one. traced: the number of the body's instructions
    before the update. check: how the program was compared with eager PyTorch: "full", "none", or "slice"
    (`tiebreak.engine.capture.slices`).
    """

    program: Program
    state: dict[str, Tensor]
    data: dict[str, Tensor]
    phases: tuple[PhaseResults, ...] = ()
    traced: int = 0
    check: str = "none"


def capture_task(task: Task) -> Captured:
    """Captures the task's step as a program. The task's model stays as it is, in the modes that the user gave it.

    Raises `ConfigurationError` if the step cannot be a program. This does not compare the program with PyTorch's own
    step; `tiebreak.engine.capture.check.checked` does.
    """
    with untouched(task.model):
        return with_state(task, capture_in_place(task))


def with_state(task: Task, captured: Captured, *, copy: bool = True) -> Captured:
    """Puts the model's tensors into the state of what `capture_in_place` returned. copy: as in `first_state`."""
    return replace(captured, state=captured.state | first_state(task, captured.program.frozen, copy=copy))


def rehearsed(task: Task, device: torch.device | None = CPU) -> frozenset[str]:
    """Rehearses the task's step on a device, as `rehearse` does, and names the buffers that it assigns."""
    with torch.random.fork_rng(devices=[]):  # the two captures of a check begin in different states
        scheduled = task.schedule is not None or bool(getattr(task.optimizer, "schedulers", ()))
        given = task.model, [phase.loss for phase in task.phases], _telling(task), device
        if device == CPU and any(map(is_held, task.model.parameters())):
            restore = remembered(task.model)
            with suppress(Exception):  # code that cannot bear held weights, or a step that is refused below
                return rehearse(*given, scheduled=scheduled, holds=True)
            restore()
        return rehearse(*given, scheduled=scheduled)


def capture_in_place(task: Task, assigned: frozenset[str] | None = None) -> Captured:
    """Does what `capture_task` does, but leaves behind what the user's code changes in the model.

    The model's entries in the state are on the device `meta` (`with_state`): large models leave no room for copies.
    assigned: what `rehearsed` returned, if the step need not be rehearsed again.
    """
    b = Builder()
    constants, entries = Constants(b), StateEntries(b, task)
    phases = _phases(task, constants, entries, rehearsed(task) if assigned is None else assigned)
    new, state, loss = entries.finished([phase.loss for phase in phases], phases[0].gradients)
    try:
        program = b.finish(new, loss)
    except ProgramError as error:
        raise ConfigurationError(
            f"the model cannot be captured; the program would break a rule ({error}); docs/SPEC.md has the limits"
        ) from error
    data = {name: stored(array) for name, array in task.data.items()} | constants.data
    data |= {"seed": torch.tensor(task.seed), "learning_rate": task.learning_rates()}
    data |= {} if isinstance(task.optimizer, TorchOptimizers | None) else tables(task.optimizer, task.steps)
    data = {name: data[name].contiguous() for name in program.data_spec()}
    traced = sum(value < b.traced for value in b.indices)
    return Captured(program, state, data, tuple(phase.placed(b.indices) for phase in phases), traced)


def _phases(task: Task, constants: Constants, entries: StateEntries, assigned: frozenset[str]) -> list[PhaseResults]:
    """Emits the batch, then each phase with its update, from the weights and buffers that the phase before it leaves.

    assigned: the names of the buffers that the phases assign.
    """
    b, weights, recordings = constants.builder, dict(task.model.named_parameters()), dict[str, RecordedSteps]()
    b.origin = "batch"
    batch, divisor = _batch(b, task)
    example, found = _telling(task), list[PhaseResults]()
    for phase in task.phases:
        drawn, before = len(b.draws), entries.now.copy()
        with same_tensors(task.model):
            step = capture(constants, task.model, phase.loss, batch, example, before.__getitem__, divisor, assigned)
        entries.now |= step.buffers
        trained = {n for n, p in weights.items() if phase.trains(p)}
        gradients = entries.rounded({name: g for name, g in step.gradients.items() if name in trained})
        entries.update(_update(phase, constants, entries, gradients, recordings))
        after: dict[str, Ref | None] = {MODEL + n: ref for n, ref in entries.now.items() if ref != before[n]}
        written = {n: ref for n, ref in step.buffers.items() if n in weights and weights[n].requires_grad}
        draws = tuple(b.draws[drawn:])
        found.append(PhaseResults(loss=step.loss, gradients=gradients, written=written, after=after, draws=draws))
    return found


def _update(
    phase: Task, constants: Constants, entries: StateEntries, gradients: dict[str, Ref],
    recordings: dict[str, RecordedSteps],
) -> Update:  # fmt: skip
    """Emits the update of a phase. recordings: those of torch's own optimizers so far, by prefix."""
    b, o = constants.builder, phase.optimizer
    parameters = {name: entries.now[name] for name, _ in phase.model.named_parameters()}
    if o is None:
        return Update(parameters=parameters)
    rates = b.data("learning_rate", DType.F32, (phase.steps,))
    b.origin = "schedule"
    rate = b.rows(rates, b.step())
    if phase.clip is not None:
        gradients = entries.rounded(clipped(b, phase.clip, gradients))
    if isinstance(o, TorchOptimizers):  # whose state has dtypes of its own
        if o.prefix not in recordings:
            recordings[o.prefix] = recorded(phase, o, list(gradients))
        updated = torch_update(constants, recordings[o.prefix], parameters, gradients)
    else:
        updated = update(b, o, rate, phase.steps, parameters, gradients)
    updated.parameters = entries.rounded(updated.parameters)
    if not isinstance(o, TorchOptimizers):
        updated.state = entries.rounded(updated.state, lambda entry: entry.partition(".")[2])
    return updated


def _telling(task: Task) -> tuple[Tensor, ...]:
    """A batch of the examples with the greatest and least numbers: PyTorch refuses labels that are out of range.

    Integers come first, and of each array the first 2^26 elements count.
    """
    examples, found = task.batch.examples, list[Tensor]()
    for array in sorted((task.data[name] for name in examples.arrays()), key=Tensor.is_floating_point):
        each = examples.stride if isinstance(examples, Windows) else array[0].numel()
        some = array.flatten()[: 1 << 26]
        some = some.view(torch.uint8) if some.dtype == torch.bool else some  # argmax takes no bools
        found += [(place // each).clamp(max=task.examples - 1) for place in (some.argmax(), some.argmin())]
    taken = examples.take(task.data, torch.stack(found).repeat(task.batch.size)[: task.batch.size])
    return (*taken, *task.parts(task.late)[0])


def _batch(b: Builder, task: Task) -> tuple[list[Ref], Ref | None]:
    """The step's batches in order: example numbers from each epoch's keyed shuffle, then gathers of the examples.

    The second result is the number of items in all of them, f32; None if they are not counted.
    """
    count, size = task.examples, task.batch.size
    drawn = size * task.accumulation
    # The example numbers of a step's draws, i64 of shape (drawn,), in the order of `Batch`.
    each, n = b.i64(drawn), b.i64(task.batch.drawn(count))
    draw_B = b.add(b.mul(b.step(), each), b.iota((drawn,), (1,)))
    chosen_B = b.map(MapFunction.MOD, draw_B, n)
    if task.batch.shuffled:
        chosen_B = b.shuffle(chosen_B, b.map(MapFunction.FLOORDIV, draw_B, n), count)
    late = [b.late(name, PROTOCOL_DTYPES[t.dtype], tuple(t.shape)) for name, t in task.late.items()]
    batch = list[Ref]()
    for start in range(0, chosen_B.shape[0], size):
        batch += _take(b, task, task.batch.examples, chosen_B.slice(0, start, start + size))
        batch += [ref.slice(0, start, start + size) for ref in late]
    if task.items is None:
        return batch, None
    return batch, b.sum(b.cast(b.rows(_data(b, task.data[task.items], task.items), chosen_B), DType.F32))


def _take(b: Builder, task: Task, examples: Examples, chosen_B: Ref) -> list[Ref]:
    """The arrays of a batch of these examples."""
    tables = {name: _data(b, task.data[name], name) for name in examples.arrays()}
    b.origin = "batch"
    if isinstance(examples, Rows):
        rows = {name: b.rows(table, chosen_B) for name, table in tables.items()}
        return [_apart(b, row, task.data[name]) for name, row in rows.items()]
    index_BT = chosen_B.unsqueeze(1).expand((chosen_B.shape[0], examples.length))
    return [b.gather(tables[examples.name], index_BT, examples.stride, task.examples, (0, 1))]


def _data(b: Builder, array: Tensor, name: str) -> Ref:
    shape = words_of(array) if fills_words(array) else tuple(array.shape)
    return b.data(name, DType.I64 if array.dtype in NARROW else PROTOCOL_DTYPES[array.dtype], shape)


def _apart(b: Builder, words_BW: Ref, array: Tensor) -> Ref:
    """The rows of an array of narrow integers, from their words: (word // 2^(bits * place)) mod 2^bits."""
    if not fills_words(array):
        return words_BW
    low, bits = INTEGERS[array.dtype]
    places = [b.i64(1 << bits * place).unsqueeze(0) for place in range(64 // bits)]
    shifted = b.map(MapFunction.FLOORDIV, words_BW.unsqueeze(-1), b.cat(places, 0))
    parts = wrapped(b, shifted, low, bits) if low else b.map(MapFunction.MOD, shifted, b.i64(1 << bits))
    return b.reshape(parts, (words_BW.shape[0], *array.shape[1:]))


def draft_job(
    captured: Captured, *, steps: int, checkpoint_interval: int, client: Address, trainer: Address, terms: Terms,
    policy: Policy = Policy.EXACT, precision: int = PRECISION_F32, tolerances: int = 0,
) -> Job:  # fmt: skip
    """The job over a captured task. Hashes the initial state and the data once.

    tolerances: those of logged sums, packed by `tiebreak.protocol.program.rounding.pack_tolerances`; 0 under policy
    `exact`.
    """
    return Job.over(
        captured.program, client=client, trainer=trainer,
        initial_state_root=state_tree(identities(captured.state)).root,
        data_root=data_tree(data_identities(captured.data, cache=FactsCache())).root, steps=steps,
        checkpoint_interval=checkpoint_interval, policy=int(policy), precision=precision,
        tolerances=tolerances | FINITE_LOSSES * terms.finite_losses, **terms.job_fields,
    )  # fmt: skip


def sign_job(job: Job, domain: Domain, *, client: PrivateKey, trainer: PrivateKey) -> SignedJob:
    """The job with both signatures, for callers that hold both keys (demo, tests)."""
    signatures = {"client_signature": job.sign(domain, client), "trainer_signature": job.sign(domain, trainer)}
    return SignedJob(domain=domain, job=job, **signatures)
