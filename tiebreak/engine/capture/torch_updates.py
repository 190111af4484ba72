"""Captures the steps of torch's own optimizers: whatever `step` computes of parameters, gradients and state.

They are run once for each step of the job, on symbols (`recording`). The numbers in their calls become a table, a row
for each step, which is data of the job as learning rates are. Each form is traced and lowered as the model is. If there
are several (each tenth step may differ), all of them are computed and the step selects one.
"""

import sys
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.capture import recording, rehearsal, tracing
from tiebreak.engine.capture.recording import GRADIENT, PARAMETER, NumberMark, RecordedCall, StepForm, SymbolMark
from tiebreak.engine.capture.step import Constants, is_filled, lowered
from tiebreak.engine.capture.task import Task
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.lowering.builder import Ref
from tiebreak.engine.optimizers.rules import Update
from tiebreak.engine.optimizers.translate import TorchOptimizers, parameter_names, parts
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType

NUMBERS: Final = "optimizer.numbers"
"""The data entry f32 [steps, K] of what changes from step to step; first the step's form, if there are several."""
PATIENCE_S: Final = 10.0
"""The seconds after which each recording says how far it is."""
FORMS: Final = 4
"""The greatest number of forms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSteps:
    """The forms of the optimizers' steps, the form of each by its place among them, and the numbers of each.

    trained: the parameters that have a gradient. initial: the state before step 1, as far as it is not zero. updates:
    those that a step of the job has emitted so far.
    """

    optimizers: TorchOptimizers
    trained: list[str]

    forms: list[StepForm]
    chosen: list[int]
    numbers: list[Sequence[float]]
    initial: dict[str, Tensor]
    updates: list[Update] = field(default_factory=list)


def recorded(task: Task, o: TorchOptimizers, trained: Sequence[str]) -> RecordedSteps:
    """Runs the optimizers for all steps of a job. trained: the names of the parameters that have a gradient."""
    for part in (part for one in o.optimizers for part in parts(one)):
        parameter_names(part.param_groups, task.model)
    parameters = dict(task.model.named_parameters())
    foreign = {tensor.untyped_storage().data_ptr() for tensor in (*parameters.values(), *task.model.buffers())} - {0}
    symbols = {n: recording.Symbol(p.detach().to("meta"), trained=p.requires_grad) for n, p in parameters.items()}
    given = recording.held_tensors(o.optimizers, {id(p): n for n, p in parameters.items()}, Tensor)
    own = {tensor: recording.Symbol(tensor.detach().to("meta")) for tensor in given.values()}
    what = f"the optimizer ({o.name})"
    for other, name in rehearsal.shared_memory([*((PARAMETER + n, p) for n, p in parameters.items()), *given.items()]):
        raise ConfigurationError(f"{what} cannot be captured: it {recording.SHARED.format(other, name)}")
    initial = {n: t.detach() for n, t in given.items()}
    found = RecordedSteps(optimizers=o, trained=[*trained], forms=[], chosen=[], numbers=[], initial=initial)
    form: StepForm | None = None
    buffers = {buffer: buffer for buffer in task.model.buffers()}  # that no copy of one is taken for a constant
    copies = o.copies({**{parameters[n]: s for n, s in symbols.items()}, **own, **buffers}, task.schedule)
    total = task.steps * o.times
    began = said = time.monotonic()
    for step, optimizers in zip(range(total), copies, strict=False):
        if step and (now := time.monotonic()) - said > PATIENCE_S:
            said, left = now, timedelta(seconds=round((now - began) * (total - step) / step))
            sys.stderr.write(f"recording {o.name}: step {step} of {total}, {left} left\n")
        make = partial(recording.StepRecorder, what=what, foreign=foreign, before=form)
        form = recording.record_step(optimizers, symbols, trained, make)
        found.forms.extend([] if form in found.forms else [form])
        if len(found.forms) > FORMS:
            raise ConfigurationError(
                f"{what} cannot be captured: its steps 1 to {len(found.chosen) + 1} call other operators in "
                f"{len(found.forms)} ways, and a program has at most {FORMS}; let numbers change instead"
            )
        found.chosen.append(found.forms.index(form))
        found.numbers.append(array("d", map(float, form.numbers)))
    if len(found.chosen) > 1:
        _begin_alike(found, {PARAMETER + name: p.detach() for name, p in parameters.items()})
    return found


def _begin_alike(found: RecordedSteps, parameters: Mapping[str, Tensor]) -> None:
    """Gives step 1 the form of step 2 if it differs only by calls that make the state, and computes these.

    parameters: their values before step 1, by the names of inputs.
    """
    first, later = (found.forms[place] for place in found.chosen[:2])
    names = later.inputs[len(first.inputs) :]
    making, wanted = set[int](), {first.outputs.get(name) for name in names}
    for call in reversed(first.calls):
        if call.result in wanted and call.result not in call.operands():
            making.add(id(call))
            wanted |= set() if is_filled(call.func) else set(call.operands())
    known = {number: parameters[name] for number, name in enumerate(first.inputs) if name in parameters}
    written = set[int]()
    for call in first.calls:
        unknown = any(n not in known or first.memories[n] in written for n in call.operands())
        if id(call) not in making:
            written |= {first.memories[number] for number in call.written()}
        elif unknown and not is_filled(call.func):
            return
        else:
            shapes = {n: torch.empty_like(first.shadows[n], device="cpu") for n in call.operands()}
            args, kwargs = _unmarked((call.args, call.kwargs), shapes | known, first.numbers)
            known[call.result] = call.func(*args, **kwargs)
            if "empty" in call.func._schema.name:
                known[call.result].zero_()
    numbers = {n: n for n in range(len(first.inputs))} | {first.outputs.get(n): later.inputs.index(n) for n in names}
    order = _alike([call for call in first.calls if id(call) not in making], later.calls, numbers)
    same = {name: numbers.get(number) for name, number in first.outputs.items()} == later.outputs
    if order is not None and same and first.inputs == later.inputs[: len(first.inputs)]:
        found.initial.update({name: known[first.outputs[name]] for name in names})
        found.numbers[0] = [found.numbers[0][column.place] for column in order]
        found.chosen[0] = found.chosen[1]


def _alike(
    calls: Sequence[RecordedCall], others: Sequence[RecordedCall], numbers: dict[Any, int]
) -> list[NumberMark] | None:
    """The places of the numbers of `others` among those of `calls`, if they are the same; None if they are not.

    numbers: the operands of `others` by those of `calls`, to which the results are added.
    """
    order = list[NumberMark]()

    def renamed(leaf: Any) -> Any:
        if isinstance(leaf, NumberMark):
            order.append(leaf)
            return NumberMark(len(order) - 1)
        return SymbolMark(numbers.get(leaf, -1)) if isinstance(leaf, SymbolMark) else leaf

    for call, other in zip(calls, others, strict=False):
        if call.func != other.func or recording.mapped((call.args, call.kwargs), renamed) != (other.args, other.kwargs):
            return None
        numbers.update(zip(recording.flat(call.result), recording.flat(other.result), strict=True))
    return order if len(calls) == len(others) else None


def _unmarked(value: Any, tensors: Mapping[int, Tensor], numbers: Sequence[Any]) -> Any:
    """The value with tensors and numbers in the place of its marks."""

    def given(leaf: Any) -> Any:
        if isinstance(leaf, SymbolMark):
            return tensors[leaf]
        return numbers[leaf.place] if isinstance(leaf, NumberMark) else leaf

    return recording.mapped(value, given)


def torch_update(
    constants: Constants, found: RecordedSteps, parameters: Mapping[str, Ref], gradients: Mapping[str, Ref]
) -> Update:
    """Emits the next step of the optimizers within a step of the job. The data that it reads join the constants."""
    b, o, turn = constants.builder, found.optimizers, len(found.updates)
    if [*gradients] != found.trained:
        raise ConfigurationError(
            f"expected phases with one optimizer ({o.name}) to have gradients for the same parameters, got "
            f"{sorted({*gradients} ^ {*found.trained})[:3]} in some of them; give each phase an optimizer of its own"
        )
    result, used = Update(parameters=dict(parameters)), sorted(set(found.chosen[turn :: o.times]))
    table, places = _changing(found, turn, used)
    b.origin, name = "optimizer", f"{NUMBERS}.{o.prefix}{turn}" if o.prefix else NUMBERS
    constants.data |= {name: table} if table.numel() else {}
    row = b.rows(b.data(name, DType.F32, tuple(table.shape)), b.step()) if table.numel() else None
    refs = {PARAMETER + n: ref for n, ref in parameters.items()} | {GRADIENT + n: ref for n, ref in gradients.items()}
    for form in (found.forms[place] for place in used):
        for name, number in (*zip(form.inputs, count(), strict=False), *form.outputs.items()):
            if name in refs:
                continue
            shadow, begun, entry = form.shadows[number], found.initial.get(name), o.prefix + name
            is_bf16 = shadow.dtype == torch.bfloat16
            dtype = torch.float32 if is_bf16 else shadow.dtype
            if dtype not in PROTOCOL_DTYPES:
                raise ConfigurationError(
                    f"expected an optimizer with state of float32, bfloat16, int64 or bool, got {entry}, {dtype}"
                )
            result.initial[entry] = torch.zeros(shadow.shape, dtype=dtype) if begun is None else begun.to(dtype)
            held = b.state(f"optimizer.{entry}", PROTOCOL_DTYPES[dtype], tuple(shadow.shape), bf16=is_bf16)
            refs[name] = found.updates[-1].state[entry] if turn else held
    after = dict(refs)
    for place in used:
        columns = {column: row.select(0, at) for column, at in places[place].items()} if row else {}
        own = _lowered(constants, o, found.forms[place], columns, refs)
        b.origin = "optimizer"
        if row is not None and len(used) > 1:
            chosen = b.eq(row.select(0, 0), b.const(float(place)))
            own = {name: b.where(chosen, ref, after[name]) for name, ref in own.items()}
        after |= own
    result.parameters = {name: after[PARAMETER + name] for name in parameters}
    result.state = {name: after[name.removeprefix(o.prefix)] for name in result.initial}
    found.updates.append(result)
    return result


def _changing(found: RecordedSteps, turn: int, used: Sequence[int]) -> tuple[Tensor, dict[int, dict[int, int]]]:
    """The numbers that change, f32 [steps, K], and by form the place of each of its numbers that change."""
    every = slice(turn, None, found.optimizers.times)
    chosen, vectors, places = torch.tensor(found.chosen[every]), dict[bytes, Tensor](), dict[int, dict[int, int]]()
    if len(used) > 1:
        vectors[b"form"] = chosen.float()
    for form in used:
        places[form], rows = {}, (chosen == form).nonzero().flatten()
        numbers = torch.tensor(np.array([found.numbers[every][row] for row in rows.tolist()]))
        for column in (numbers != numbers[0]).any(0).nonzero().flatten().tolist():
            vector = torch.zeros(len(chosen)).index_put((rows,), numbers[:, column].float())
            vectors.setdefault(key := vector.numpy().tobytes(), vector)
            places[form][column] = list(vectors).index(key)
    return torch.stack(list(vectors.values()), 1) if vectors else torch.zeros(0), places


def _lowered(
    constants: Constants, o: TorchOptimizers, form: StepForm, columns: Mapping[int, Ref], refs: Mapping[str, Ref]
) -> dict[str, Ref]:
    """The refs of a form's outputs by name. columns: the numbers that change."""

    def run(*tensors: Tensor) -> list[Tensor]:
        known = dict(enumerate(tensor.clone() for tensor in tensors[: len(form.inputs)]))
        changing = dict(zip(columns, tensors[len(form.inputs) :], strict=True))
        numbers = [changing.get(place, number) for place, number in enumerate(form.numbers)]
        for place in changing:  # f32: each gets the shape and kind of the tensor that it stands for
            if isinstance(number := form.numbers[place], Tensor):
                own = numbers[place].reshape(number.shape)
                numbers[place] = own if number.is_floating_point() else own.to(number.dtype)
        for call in form.calls:
            tracing.annotate("optimizer", call.line)
            args, kwargs = _unmarked((call.args, call.kwargs), known, numbers)
            plain = not any(isinstance(leaf, NumberMark) and leaf.place in changing for leaf in call.leaves())
            result = call.func(*args, **kwargs) if plain else _with_tensors(call, form, args, kwargs)
            known.update(zip(recording.flat(call.result), recording.flat(result), strict=True))
        return [known[number] for number in form.outputs.values()]

    example = [torch.empty_strided(s.shape, s.stride(), dtype=s.dtype) for s in form.shadows[: len(form.inputs)]]
    graph = tracing.trace_function(run, [*example, *(torch.ones(()) for _ in columns)])
    given = [*(refs[name] for name in form.inputs), *columns.values()]
    outputs = lowered(constants, graph, given, f"the optimizer ({o.name})")
    return dict(zip(form.outputs, outputs, strict=True))


def _with_tensors(call: RecordedCall, form: StepForm, args: Any, kwargs: Mapping[str, Any]) -> Tensor:
    """The result of a call some of whose numbers are tensors here, because they change from step to step."""
    name, shadow = call.func._schema.name.removeprefix("aten::"), form.shadows[call.result]
    wide, options = recording.mapped(  # bfloat16 as float32, as PyTorch's kernels compute
        (args, dict(kwargs)), lambda v: v.float() if isinstance(v, Tensor) and v.dtype == torch.bfloat16 else v
    )
    scale = options.get("alpha", options.get("value", wide[2] if len(wide) > 2 else None))
    try:
        match name.rstrip("_"):
            case "add" | "sub" as sign if scale is not None:
                found = getattr(torch, sign)(wide[0], wide[1] * scale)
            case "rsub":
                found = wide[1] - (wide[0] if scale is None else wide[0] * scale)
            case "addcmul":
                found = wide[0] + scale * (wide[1] * wide[2])
            case "addcdiv":
                found = wide[0] + scale * (wide[1] / wide[2])
            case "full_like":
                found = wide[1].expand(shadow.shape)
            case plain:
                if any(isinstance(option, Tensor) for option in options.values()):
                    raise TypeError(plain)  # torch would read its number
                found = getattr(torch, plain)(*wide, **options)
        if found.dtype != shadow.dtype and not (found.is_floating_point() and shadow.is_floating_point()):
            raise TypeError(found.dtype)
    except Exception as error:  # whatever torch raises of a tensor in the place of a number
        raise ConfigurationError(
            f"the optimizer cannot be captured: {f'at {call.line} ' * bool(call.line)}it gives {name} a number that "
            "changes from step to step, for which that takes no tensor; multiply or add apart"
        ) from error
    result: Tensor = found.to(shadow.dtype)
    return Tensor.copy_(args[0], result) if name.endswith("_") else result
