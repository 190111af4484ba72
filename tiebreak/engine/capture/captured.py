"""Turns a task into what other parties receive: the program, the initial state and the data, as tensors by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from tiebreak.engine.capture.plain_run import CPU
from tiebreak.engine.capture.rehearsal import rehearse
from tiebreak.engine.capture.step import Constants, capture
from tiebreak.engine.capture.task import Examples, Rows, Task, Windows
from tiebreak.engine.capture.updates import RecordedSteps, recorded, torch_update
from tiebreak.engine.capture.user_step import same_tensors, untouched
from tiebreak.engine.data.narrow import NARROW, fills_words, stored, words_of
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.lowering import INTEGERS
from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.lowering.elementwise import wrapped
from tiebreak.engine.optimizers.rules import update
from tiebreak.engine.optimizers.tables import tables
from tiebreak.engine.optimizers.translate import TorchOptimizers
from tiebreak.engine.optimizers.update import AVERAGE, Update, clipped, moving_averages, total_norm
from tiebreak.protocol.errors import ConfigurationError, ProgramError
from tiebreak.protocol.program.isa import DType, MapFunction
from tiebreak.protocol.program.program import Program

MODEL = "model."
"""Prefix of parameters and buffers in the state."""
OPTIMIZER = "optimizer."
"""Prefix of the optimizer's entries in the state."""

TELEMETRY = "telemetry.loss"
"""The state entry that holds the losses since the last checkpoint, which makes every one of them binding."""
NORM = "telemetry.norm"
"""The state entry with the last step's norm of all gradients, f32 of rank 0, for tasks that ask for it."""


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

        def kept(ref: Ref | None) -> Ref | None:
            return replace(ref, value=indices[ref.value]) if ref is not None and ref.value in indices else None

        gradients, written = (
            {name: found for name, ref in refs.items() if (found := kept(ref)) is not None}
            for refs in (self.gradients, self.written)
        )
        return PhaseResults(
            loss=replace(self.loss, value=indices[self.loss.value]),
            gradients=gradients,
            written=written,
            after={name: kept(ref) for name, ref in self.after.items()},
            draws=tuple(None if value is None else indices.get(value) for value in self.draws),
        )


@dataclass(frozen=True)
class Captured:
    """A captured task. `state` is the initial state; `data` is everything else that the steps read.

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
        return capture_in_place(task)


def first_state(task: Task) -> dict[str, Tensor]:
    """The entries of the initial state that are copies of the model's tensors."""
    state = {MODEL + name: tensor for name, tensor in task.initial_state().items()}
    trained = [name for name, p in task.model.named_parameters() if p.requires_grad and task.average is not None]
    return state | {AVERAGE + name: state[MODEL + name].clone() for name in trained}


def rehearsed(task: Task, device: torch.device | None = CPU) -> frozenset[str]:
    """Rehearses the task's step on a device, as `rehearse` does, and names the buffers that it assigns."""
    with torch.random.fork_rng(devices=[]):  # the two captures of a check begin in different states
        scheduled = task.schedule is not None or bool(getattr(task.optimizer, "schedulers", ()))
        losses = [phase.loss for phase in task.phases]
        return rehearse(task.model, losses, _telling(task), device, scheduled=scheduled)


def capture_in_place(
    task: Task, before: Mapping[str, Tensor] | None = None, assigned: frozenset[str] | None = None
) -> Captured:
    """Does what `capture_task` does, but leaves behind what the user's code changes in the model.

    before: the model's tensors in the initial state, which are not copied: large models leave no room for that.
    assigned: what `rehearsed` returned, if the step need not be rehearsed again.
    """
    initial = task.initial_state() if before is None else before
    e = _Emitter(task, initial)
    e.emit_phases(rehearsed(task) if assigned is None else assigned)
    new = {MODEL + name: ref for name, ref in e.refs.items()}
    new |= {OPTIMIZER + name: ref for name, ref in e.entries.items()}
    if task.average is not None:
        moving = {name: e.before[name] for name, p in task.model.named_parameters() if p.requires_grad}
        new |= e.held(moving_averages(e.b, task.average, moving, e.refs), lambda entry: entry.removeprefix(AVERAGE))
    loss = reduce(e.b.add, [phase.loss for phase in e.phases])
    new[TELEMETRY] = _telemetry(e.b, loss, task.checkpoint_interval)
    if task.norm:
        new[NORM] = total_norm(e.b, e.phases[0].gradients)
    program = _finished(e.b, new, loss)
    state = {MODEL + name: t for name, t in initial.items()}
    state |= {OPTIMIZER + name: t for name, t in e.initial.items()}
    state |= {name: initial[name.removeprefix(AVERAGE)].clone() for name in new if name.startswith(AVERAGE)}
    state[TELEMETRY] = torch.zeros(task.checkpoint_interval)
    state |= {NORM: torch.zeros(())} if task.norm else {}
    data = {name: stored(array) for name, array in task.data.items()} | e.constants.data
    data |= {"seed": torch.tensor(task.seed), "learning_rate": task.learning_rates()}
    data |= {} if isinstance(task.optimizer, TorchOptimizers) else tables(task.optimizer, task.steps)
    data = {name: data[name].contiguous() for name in program.data_spec()}
    traced = sum(value < e.b.traced for value in e.b.indices)
    return Captured(program, state, data, tuple(phase.placed(e.b.indices) for phase in e.phases), traced)


class _Emitter:
    """Emits the phases of a task's step, each from the weights and buffers that the phase before it leaves."""

    def __init__(self, task: Task, initial: Mapping[str, Tensor]) -> None:
        self.task, self.b, self._bf16 = task, Builder(), task.bf16()
        self.constants = Constants(self.b)
        self.before = {
            name: self.b.state(MODEL + name, PROTOCOL_DTYPES[t.dtype], tuple(t.shape), bf16=name in self._bf16)
            for name, t in initial.items()
        }
        self.refs = self.before.copy()
        """The parameters and buffers after the phases so far."""
        self.entries: dict[str, Ref] = {}
        """The optimizers' state after the phases so far."""
        self.initial: dict[str, Tensor] = {}
        self.phases: list[PhaseResults] = []
        self._recordings: dict[str, RecordedSteps] = {}

    def held(self, refs: Mapping[str, Ref], of: Callable[[str], str] = str) -> dict[str, Ref]:
        """The refs, rounded where PyTorch holds bfloat16. of: the name of the parameter that an entry belongs to."""
        return {name: self.b.bf16(ref) if of(name) in self._bf16 else ref for name, ref in refs.items()}

    def emit_phases(self, assigned: frozenset[str]) -> None:
        """Emits the batch, then each phase with its update. assigned: the names of the buffers that they assign."""
        task, self.b.origin = self.task, "batch"
        batch, divisor = _batch(self.b, task)
        example = _telling(task)
        for phase in task.phases:
            drawn, before = len(self.b.draws), self.refs.copy()
            with same_tensors(task.model):
                step = capture(
                    self.constants, task.model, phase.loss, batch, example, before.__getitem__, divisor, assigned
                )
            self.refs |= step.buffers
            trained = {n for n, p in task.model.named_parameters() if phase.trains(p)}
            gradients = self.held({name: g for name, g in step.gradients.items() if name in trained})
            updated = self._update(phase, gradients)
            self.refs |= updated.parameters
            self.entries |= updated.state
            self.initial |= updated.initial
            after: dict[str, Ref | None] = {MODEL + n: ref for n, ref in self.refs.items() if ref != before[n]}
            weights, draws = dict(task.model.named_parameters()), tuple(self.b.draws[drawn:])
            written = {n: ref for n, ref in step.buffers.items() if n in weights and weights[n].requires_grad}
            self.phases.append(
                PhaseResults(loss=step.loss, gradients=gradients, written=written, after=after, draws=draws)
            )

    def _update(self, phase: Task, gradients: dict[str, Ref]) -> Update:
        b, o = self.b, phase.optimizer
        rates = b.data("learning_rate", DType.F32, (phase.steps,))
        b.origin = "schedule"
        rate = b.rows(rates, b.step())
        parameters = {name: self.refs[name] for name, _ in phase.model.named_parameters()}
        if phase.clip is not None:
            gradients = self.held(clipped(b, phase.clip, gradients))
        if not isinstance(o, TorchOptimizers):
            updated = update(b, o, rate, phase.steps, parameters, gradients)
            updated.parameters = self.held(updated.parameters)
            updated.state = self.held(updated.state, lambda entry: entry.partition(".")[2])
            return updated
        if o.prefix not in self._recordings:
            self._recordings[o.prefix] = recorded(phase, o, list(gradients))
        updated = torch_update(self.constants, self._recordings[o.prefix], parameters, gradients)
        updated.parameters = self.held(updated.parameters)  # its state has dtypes of its own
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
    return examples.take(task.data, torch.stack(found).repeat(task.batch.size)[: task.batch.size])


def _finished(b: Builder, state: dict[str, Ref], loss: Ref) -> Program:
    try:
        return b.finish(state, loss)
    except ProgramError as error:
        raise ConfigurationError(
            f"the model cannot be captured; the program would break a rule ({error}); docs/SPEC.md has the limits"
        ) from error


def _batch(b: Builder, task: Task) -> tuple[list[Ref], Ref | None]:
    """The step's batches in order: example numbers from each epoch's keyed shuffle, then gathers of the examples.

    The second result is the number of items in all of them, f32; None if they are not counted.
    """
    size = task.batch.size
    chosen_B = _examples(b, task)
    parts = [chosen_B.slice(0, start, start + size) for start in range(0, chosen_B.shape[0], size)]
    batch = [ref for part_B in parts for ref in _take(b, task, task.batch.examples, part_B)]
    if task.items is None:
        return batch, None
    return batch, b.sum(b.cast(b.rows(_data(b, task.data[task.items], task.items), chosen_B), DType.F32))


def _examples(b: Builder, task: Task) -> Ref:
    """The example numbers of a step's draws, i64 of shape (drawn,), in the order of `Batch`."""
    count, drawn = task.examples, task.batch.size * task.accumulation
    size, n = b.i64(drawn), b.i64(task.batch.drawn(count))
    draw_B = b.add(b.mul(b.step(), size), b.iota((drawn,), (1,)))
    place_B = b.map(MapFunction.MOD, draw_B, n)
    return b.shuffle(place_B, b.map(MapFunction.FLOORDIV, draw_B, n), count) if task.batch.shuffled else place_B


def _telemetry(b: Builder, loss: Ref, interval: int) -> Ref:
    """The ring of the last `interval` losses, with this step's at position step mod interval.

    A head commits to the states of checkpoints only. With this entry in the state, it also commits to the losses
    between them.
    """
    held = b.state(TELEMETRY, DType.F32, (interval,))
    b.origin = "telemetry"
    place = b.map(MapFunction.MOD, b.step(), b.i64(interval))
    return b.where(b.eq(b.iota((interval,), (1,)), place), loss, held)


def _take(b: Builder, task: Task, examples: Examples, chosen_B: Ref) -> list[Ref]:
    match examples:
        case Rows(names=names):
            tables = [_data(b, task.data[name], name) for name in names]
            b.origin = "batch"
            rows = [b.rows(table, chosen_B) for table in tables]
            return [_apart(b, row, task.data[n]) for n, row in zip(names, rows, strict=True)]
        case Windows(name=name, length=length, stride=stride):
            tokens = _data(b, task.data[name], name)
            b.origin = "batch"
            index_BT = chosen_B.unsqueeze(1).expand((chosen_B.shape[0], length))
            return [b.gather(tokens, index_BT, stride, task.examples, (0, 1))]


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
