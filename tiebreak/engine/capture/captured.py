"""Turns a task into what other parties receive: the program, the initial state and the data, as tensors by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tiebreak.engine.capture.purity import same_tensors, untouched
from tiebreak.engine.capture.step import capture
from tiebreak.engine.capture.task import Examples, Rows, Task, Windows
from tiebreak.engine.capture.updates import torch_update
from tiebreak.engine.data.narrow import NARROW, fills_words, stored, words_of
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.lowering import INTEGERS
from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.lowering.scalars import wrapped
from tiebreak.engine.optimizers import tables, update
from tiebreak.engine.optimizers.averaging import AVERAGE, averaged
from tiebreak.engine.optimizers.clipping import clipped, total_norm
from tiebreak.engine.optimizers.translate import TorchOptimizers
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


@dataclass(frozen=True)
class Captured:
    """A captured task. `state` is the initial state; `data` is everything else that the steps read.

    gradients: by parameter, how to read its gradient, before clipping, from the values of the program's body. draws: as
    in `Builder`, by index in the body; None also for what is not in it. checked: whether the program was compared with
    eager PyTorch.
    """

    program: Program
    state: dict[str, Tensor]
    data: dict[str, Tensor]
    gradients: dict[str, Ref] = field(default_factory=dict)
    draws: tuple[int | None, ...] = ()
    checked: bool = False


def capture_task(task: Task) -> Captured:
    """Captures the task's step as a program. The task's model stays as it is, in the modes that the user gave it.

    Raises `ConfigurationError` if the step cannot be a program. This does not compare the program with PyTorch's own
    step; `tiebreak.engine.capture.check.checked` does.
    """
    with untouched(task.model):
        return capture_in_place(task)


def capture_in_place(task: Task, before: Mapping[str, Tensor] | None = None) -> Captured:
    """Does what `capture_task` does, but leaves behind what the user's code changes in the model.

    before: the initial state, from another capture of the task; large models leave no room for it twice.
    """
    b = Builder()
    initial = (
        task.initial_state() if before is None
        else {name.removeprefix(MODEL): t for name, t in before.items() if name.startswith(MODEL)}
    )  # fmt: skip
    bf16 = task.bf16()
    refs = {
        name: b.state(MODEL + name, PROTOCOL_DTYPES[t.dtype], tuple(t.shape), bf16=name in bf16)
        for name, t in initial.items()
    }

    def held(refs: Mapping[str, Ref], of: Callable[[str], str] = str) -> dict[str, Ref]:
        """The refs, rounded where PyTorch holds bfloat16. of: the name of the parameter that an entry belongs to."""
        return {name: b.bf16(ref) if of(name) in bf16 else ref for name, ref in refs.items()}

    data = {name: stored(array) for name, array in task.data.items()} | {
        "seed": torch.tensor(task.seed),
        "learning_rate": task.learning_rates(),
    }
    data |= {} if isinstance(task.optimizer, TorchOptimizers) else tables(task.optimizer, task.steps)
    b.origin = "batch"
    batch, divisor = _batch(b, task)
    example = task.batch.examples.take(task.data, _telling(task))
    with same_tensors(task.model):
        step = capture(b, task.model, task.loss, batch, example, refs.__getitem__, divisor)
    rates = b.data("learning_rate", DType.F32, (task.steps,))
    b.origin = "schedule"
    rate = b.rows(rates, b.step())
    parameters = {name: step.buffers.get(name, refs[name]) for name, _ in task.model.named_parameters()}
    trainable = {name for name, p in task.model.named_parameters() if p.requires_grad}
    raw = gradients = held({name: g for name, g in step.gradients.items() if name in trainable})
    if task.clip is not None:
        gradients = held(clipped(b, task.clip, gradients))
    if isinstance(task.optimizer, TorchOptimizers):
        updated, own = torch_update(b, task, task.optimizer, parameters, gradients)
        data |= own
    else:
        updated = update(b, task.optimizer, rate, task.steps, parameters, gradients)
    after = held(updated.parameters)
    if not isinstance(task.optimizer, TorchOptimizers):  # whose state has dtypes of its own
        updated.state = held(updated.state, lambda entry: entry.partition(".")[2])
    new = {MODEL + name: ref for name, ref in {**refs, **step.buffers, **after}.items()}
    new |= {OPTIMIZER + name: ref for name, ref in updated.state.items()}
    if task.average is not None:
        moving = {name: ref for name, ref in parameters.items() if name in trainable}
        new |= held(averaged(b, task.average, moving, after), lambda entry: entry.removeprefix(AVERAGE))
    new[TELEMETRY] = _telemetry(b, step.loss, task.checkpoint_interval)
    if task.norm:
        new[NORM] = total_norm(b, raw)
    program = _finished(b, new, step.loss)
    state = {MODEL + name: t for name, t in initial.items()}
    state |= {OPTIMIZER + name: t for name, t in updated.initial.items()}
    state |= {name: initial[name.removeprefix(AVERAGE)].clone() for name in new if name.startswith(AVERAGE)}
    state[TELEMETRY] = torch.zeros(task.checkpoint_interval)
    state |= {NORM: torch.zeros(())} if task.norm else {}
    data |= step.constants
    data = {name: data[name].contiguous() for name in program.data_spec()}
    placed = {name: replace(g, value=b.indices[g.value]) for name, g in raw.items() if g.value in b.indices}
    draws = tuple(None if value is None else b.indices.get(value) for value in b.draws)
    return Captured(program, state, data, placed, draws)


def _telling(task: Task) -> Tensor:
    """A batch of the examples with the greatest and least numbers: PyTorch refuses labels that are out of range.

    Integers come first, and of each array the first 2^26 elements count.
    """
    examples, found = task.batch.examples, list[Tensor]()
    for array in sorted((task.data[name] for name in examples.arrays()), key=Tensor.is_floating_point):
        each = examples.stride if isinstance(examples, Windows) else array[0].numel()
        some = array.flatten()[: 1 << 26]
        some = some.view(torch.uint8) if some.dtype == torch.bool else some  # argmax takes no bools
        found += [(place // each).clamp(max=task.examples - 1) for place in (some.argmax(), some.argmin())]
    return torch.stack(found).repeat(task.batch.size)[: task.batch.size]


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
    chosen_B = _examples(b, size * task.accumulation, task.examples)
    parts = [chosen_B.slice(0, start, start + size) for start in range(0, chosen_B.shape[0], size)]
    batch = [ref for part_B in parts for ref in _take(b, task, task.batch.examples, part_B)]
    if task.items is None:
        return batch, None
    return batch, b.sum(b.cast(b.rows(_data(b, task.data[task.items], task.items), chosen_B), DType.F32))


def _examples(b: Builder, drawn: int, count: int) -> Ref:
    """The example numbers of a step's draws, i64 of shape (drawn,).

    Draw g = step * drawn + j is example shuffle(g mod count) of epoch g div count.
    """
    size, n = b.i64(drawn), b.i64(count)
    draw_B = b.add(b.mul(b.step(), size), b.iota((drawn,), (1,)))
    return b.shuffle(b.map(MapFunction.MOD, draw_B, n), b.map(MapFunction.FLOORDIV, draw_B, n), count)


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
