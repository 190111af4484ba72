"""Captures the steps of torch's own optimizers: whatever `step` computes of parameters, gradients and state.

An optimizer is Python code with numbers in it that change from step to step (rates, corrections, counts). So it is run
once for each step of the job, on symbols: tensors of which only shape and dtype are known. Its calls of ATen are
recorded, and their numbers become a table, a row for each step, which is data of the job as learning rates are. Steps
with the same calls have one form, which is traced and lowered as the model is. If there are several (each tenth step
may differ), all of them are computed and the step selects one. What needs the values of a symbol is refused by name.

The state is each symbol that the optimizer holds between two steps.
"""

import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from itertools import count
from sys import _getframe
from types import FrameType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten_with_path

from tiebreak.engine.capture.folding import is_filled
from tiebreak.engine.capture.side_effects import shared_memory
from tiebreak.engine.capture.step import Constants, lowered
from tiebreak.engine.capture.task import Task
from tiebreak.engine.capture.tracing import annotate, trace_function
from tiebreak.engine.capture.user_code import as_tensors, user_line
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.optimizers.translate import TorchOptimizers, parameter_names, parts
from tiebreak.engine.optimizers.update import Update
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType

NUMBERS: Final = "optimizer.numbers"
"""The data entry f32 [steps, K] of what changes from step to step; first the step's form, if there are several."""
PATIENCE_S: Final = 10.0
"""The seconds after which each recording says how far it is."""
FORMS: Final = 4
"""The greatest number of forms."""
_LIMITS: Final = {"maximum": "clamp_min", "minimum": "clamp_max"}
"""Names of operators in torch if the second operand is a number."""
_PARAMETER, _GRADIENT = "parameter ", "gradient "
"""Prefixes of the names of inputs that are no state."""
_SHARED: Final = (
    "holds one tensor's memory twice, as {} and {}, so that a write to one changes the other; `.clone()` it"
)


class _Symbol(Tensor):
    """A tensor of a recorded step, without its values.

    shadow: a tensor of its shape and dtype on torch's device "meta". number: its place among the tensors of the step
    that `form` records. memory: the number of the tensor that it is a view of, or its own.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    shadow: Tensor
    form: Any = None
    number: int
    memory: int

    @staticmethod
    def __new__(cls, shadow: Tensor, *, trained: bool = False) -> "_Symbol":
        made: _Symbol = Tensor._make_wrapper_subclass(
            cls,
            shadow.shape,
            strides=shadow.stride(),
            dtype=shadow.dtype,
            device=torch.device("cpu"),
            requires_grad=trained,
        )
        made.shadow, made._is_param = shadow, trained
        return made

    @property
    def data(self) -> Tensor:
        """The tensor without its gradient. Assigning a tensor of the same shape shares its memory."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if isinstance(value, _Symbol) and value.form is self.form and value.shape == self.shape:
            self.shadow, self.number, self.memory = value.shadow, value.number, value.memory
            return
        with torch.no_grad():
            self.copy_(value)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise ConfigurationError(f"expected an optimizer that computes within its step only, got {func} outside of it")


class _Operand(int):
    """The number of a symbol, in its place among the arguments of a call."""


@dataclass(frozen=True, slots=True)
class _Column:
    """The place of a Python number, or of a tensor of one element, among the numbers of a step."""

    place: int


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of ATen, with marks in the place of tensors and numbers. line: the user's, empty if it is torch's."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    line: str = field(compare=False)

    def leaves(self) -> list[Any]:
        return _flat((self.args, self.kwargs))

    def operands(self) -> list[_Operand]:
        return [leaf for leaf in self.leaves() if isinstance(leaf, _Operand)]

    def written(self) -> list[Any]:
        """The operands that the call writes to."""
        return _flat(_targets(self.func, self.args, self.kwargs))


@dataclass(slots=True)
class _Form:
    """The calls of a step, and its tensors by number: those of `inputs`, then the results of the calls."""

    inputs: tuple[str, ...]
    outputs: dict[str, int] = field(default_factory=dict)
    """The numbers of the parameters and of the state after the step."""
    calls: list[_Call] = field(default_factory=list)
    shadows: list[Tensor] = field(default_factory=list, compare=False)
    memories: list[int] = field(default_factory=list, compare=False)
    numbers: list[Any] = field(default_factory=list, compare=False)
    """The Python numbers, and tensors of one element, of the first step of this form."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the calls of one step on symbols, and those that make tensors of known shape; others are computed."""

    def __init__(self, inputs: Mapping[str, _Symbol], what: str, foreign: Set[int], before: _Form | None) -> None:
        """Begins a step. foreign: memory that it may not read. before: the form of the step before.

        Most steps repeat that. With the same inputs and the same calls so far, its next results have the same numbers.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.form, self._what, self._foreign = _Form(tuple(inputs)), what, foreign
        self._before = before if before is not None and before.inputs == self.form.inputs else None
        self._caller: FrameType | None = None
        self._symbols = list[_Symbol]()
        for symbol in inputs.values():
            self._add(symbol)

    def _add(self, symbol: _Symbol, memory: int | None = None) -> _Symbol:
        symbol.form, symbol.number = self.form, len(self._symbols)
        symbol.memory = symbol.number if memory is None else memory
        self._symbols.append(symbol)
        self.form.shadows.append(symbol.shadow)
        self.form.memories.append(symbol.memory)
        return symbol

    def refusal(self, deed: str) -> ConfigurationError:
        line = user_line(self._caller, within=__file__)
        return ConfigurationError(f"{self._what} cannot be captured: {f'at {line} ' * bool(line)}it {deed}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._caller = _getframe(1)
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise self.refusal("draws random numbers; leave them out, or draw in the model")
        kwargs = kwargs or {}
        tensors = [value for value in _flat((args, kwargs)) if isinstance(value, Tensor)]
        others = [tensor for tensor in tensors if type(tensor) is not _Symbol]
        if any(tensor.untyped_storage().data_ptr() in self._foreign for tensor in others):
            raise self.refusal("reads a tensor of the model by another way than `param_groups` (a closure, a global)")
        filled = not tensors and is_filled(func) and isinstance(args[0], list | tuple) and len(args[0]) > 0
        if len(others) == len(tensors) and not filled:
            return func(*args, **kwargs)
        if func._schema.name.startswith("aten::_foreach_"):
            return self._each(func, args, kwargs)
        numeric = _numeric(func)
        marked = tuple(self._marked(value, known) for value, known in zip(args, numeric.values(), strict=False))
        named = {n: self._marked(v, numeric[n]) for n, v in kwargs.items() if n not in ("device", "pin_memory")}
        before, place = self._before, len(self.form.calls)
        if before is not None and place < len(before.calls):
            call = before.calls[place]
            if call.func is func and call.args == marked and call.kwargs == named:
                self.form.calls.append(call)
                return _mapped(call.result, self._again)
        self._before = None
        return self._computed(func, args, kwargs, marked, named)

    def _again(self, number: int) -> _Symbol:
        """The tensor of a number, which is made if the step before made it here."""
        if number < len(self._symbols):
            return self._symbols[number]
        assert self._before is not None  # the call is one of its calls
        return self._add(_Symbol(self._before.shadows[number].detach()), self._before.memories[number])

    def _computed(self, func: OpOverload, args: Any, kwargs: Any, marked: Any, named: Any) -> Any:
        self._check(func, args, kwargs)
        shadows, options = _mapped((args, kwargs), _shadow)
        symbols = [value for value in _flat((args, kwargs)) if isinstance(value, _Symbol)]
        result = func(*shadows, **options | {"device": "meta"} if kwargs.get("device") or not symbols else options)
        own = {id(symbol.shadow): symbol for symbol in symbols}
        memory = symbols[0].memory if func.is_view else None
        made = _mapped(result, lambda t: own[id(t)] if id(t) in own else self._add(_Symbol(t), memory))
        line = user_line(self._caller, within=__file__)
        self.form.calls.append(_Call(func, marked, named, self._marked(made, numeric=False), line))
        return made

    def _check(self, func: OpOverload, args: Any, kwargs: Any) -> None:
        masked = func._schema.name == "aten::index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if masked or not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.isdisjoint(func.tags):
            raise self.refusal(
                "needs the values of tensors (`.item()`, `if tensor:`, boolean indexing), but one program must be "
                "right for every step; use `torch.where` instead"
            )
        if func._schema.name == "aten::set_":
            raise self.refusal("gives a tensor other memory (`set_`); use `copy_`")
        if not all(isinstance(value, _Symbol) for value in _flat(_targets(func, args, kwargs))):
            raise self.refusal(
                "writes to a tensor that it did not make from a parameter; use `torch.zeros_like(p)`, and for one "
                "number compute a new tensor (`total = total + x` for `total += x`)"
            )

    def _each(self, func: OpOverload, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Records a call over lists (`torch._foreach_...`) as calls of their elements."""
        name = func._schema.name.removeprefix("aten::_foreach_").rstrip("_")
        lists = [value if isinstance(value, list | tuple) else [value] * len(args[0]) for value in args]
        if name in ("addcmul", "addcdiv") and len(lists) > 3:
            kwargs = {**kwargs, "value": lists.pop()}
        options = [{n: v[i] if isinstance(v, list) else v for n, v in kwargs.items()} for i in range(len(args[0]))]
        written = _targets(func, args, kwargs)
        with self:
            if name == "zero":
                found = [torch.zeros_like(tensor) for tensor in args[0]]
            elif name == "copy":
                found = list(args[1])
            else:
                numeric = name in _LIMITS and not isinstance(lists[1][0], Tensor)
                name = _LIMITS[name] if numeric else name
                found = [getattr(Tensor, name)(*each, **own) for *each, own in zip(*lists, options, strict=True)]
            for tensor, value in zip(written[0], found, strict=True) if written else ():
                tensor.copy_(value)
        return None if written else found

    def _marked(self, value: Any, numeric: bool) -> Any:
        """The value with marks. numeric: whether a Python number in it is one that the call computes with."""
        if isinstance(value, _Symbol):
            if value.form is not self.form:
                raise self.refusal(
                    "reads a tensor of an earlier step that is neither in its `state` nor in its groups or attributes"
                )
            return _Operand(value.number)
        if isinstance(value, list | tuple):
            return tuple(self._marked(one, numeric) for one in value)
        if isinstance(value, Tensor) and value.numel() != 1:
            raise self.refusal(
                f"computes with a tensor of {value.numel()} elements that is neither made in the step nor "
                "held from the start"
            )
        if isinstance(value, Tensor) or (numeric and isinstance(value, int | float) and not isinstance(value, bool)):
            self.form.numbers.append(value.clone() if isinstance(value, Tensor) else value)
            return _Column(len(self.form.numbers) - 1)
        return value


@cache
def _numeric(func: OpOverload) -> dict[str, bool]:
    """Tells, by argument of a call, whether a Python number there is computed with, and is no dim or size."""
    kinds = {a.name: str(a.type) for a in func._schema.arguments}
    return {name: "number" in kind or "Tensor" in kind for name, kind in kinds.items()}


def _targets(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that a call writes to."""
    arguments = enumerate(func._schema.arguments)
    written = [(i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]
    return [args[i] if i < len(args) else kwargs[name] for i, name in written]


def _shadow(value: Any) -> Any:
    return value.shadow if isinstance(value, _Symbol) else value.to("meta") if isinstance(value, Tensor) else value


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with each leaf of its tuples, lists and dicts changed, but None."""
    if isinstance(value, tuple | list):
        return type(value)(_mapped(one, change) for one in value)
    if isinstance(value, dict):
        return {name: _mapped(one, change) for name, one in value.items()}
    return None if value is None else change(value)


def _flat(value: Any) -> list[Any]:
    """The leaves of tuples, lists and dicts."""
    if isinstance(value, dict):
        value = tuple(value.values())
    return [leaf for one in value for leaf in _flat(one)] if isinstance(value, tuple | list) else [value]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSteps:
    """The forms of the optimizers' steps, the form of each by its place among them, and the numbers of each.

    trained: the parameters that have a gradient. initial: the state before step 1, as far as it is not zero. updates:
    those that a step of the job has emitted so far.
    """

    optimizers: TorchOptimizers
    trained: list[str]

    forms: list[_Form]
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
    symbols = {n: _Symbol(p.detach().to("meta"), trained=p.requires_grad) for n, p in parameters.items()}
    given = _held(o.optimizers, {id(p): n for n, p in parameters.items()}, Tensor)
    own, what = {tensor: _Symbol(tensor.detach().to("meta")) for tensor in given.values()}, f"the optimizer ({o.name})"
    for other, name in shared_memory([*((_PARAMETER + n, p) for n, p in parameters.items()), *given.items()]):
        raise ConfigurationError(f"{what} cannot be captured: it {_SHARED.format(other, name)}")
    initial = {n: t.detach() for n, t in given.items()}
    found = RecordedSteps(optimizers=o, trained=[*trained], forms=[], chosen=[], numbers=[], initial=initial)
    form: _Form | None = None
    buffers = {buffer: buffer for buffer in task.model.buffers()}  # that no copy of one is taken for a constant
    copies = o.copies({**{parameters[n]: s for n, s in symbols.items()}, **own, **buffers}, task.schedule)
    total = task.steps * o.times
    began = said = time.monotonic()
    for step, optimizers in zip(range(total), copies, strict=False):
        if step and (now := time.monotonic()) - said > PATIENCE_S:
            said, left = now, timedelta(seconds=round((now - began) * (total - step) / step))
            sys.stderr.write(f"recording {o.name}: step {step} of {total}, {left} left\n")
        make = partial(_Recorder, what=what, foreign=foreign, before=form)
        form = _step(optimizers, symbols, trained, make)
        found.forms.extend([] if form in found.forms else [form])
        if len(found.forms) > FORMS:
            raise ConfigurationError(
                f"{what} cannot be captured: its steps 1 to {len(found.chosen) + 1} call other operators in "
                f"{len(found.forms)} ways, and a program has at most {FORMS}; let numbers change instead"
            )
        found.chosen.append(found.forms.index(form))
        found.numbers.append(array("d", map(float, form.numbers)))
    if len(found.chosen) > 1:
        _begin_alike(found, {_PARAMETER + name: p.detach() for name, p in parameters.items()})
    return found


def _step(
    optimizers: Sequence[torch.optim.Optimizer], symbols: Mapping[str, _Symbol], trained: Sequence[str],
    make: Callable[[Mapping[str, _Symbol]], _Recorder],
) -> _Form:  # fmt: skip
    names = {id(symbol): name for name, symbol in symbols.items()}
    gradients = {name: _Symbol(torch.empty_like(symbols[name].shadow)) for name in trained}
    for name, symbol in symbols.items():
        symbol.grad = gradients.get(name)
    inputs = {_PARAMETER + n: s for n, s in symbols.items()} | {_GRADIENT + n: s for n, s in gradients.items()}
    recorder = make(inputs | _held(optimizers, names))
    try:
        with recorder, torch.enable_grad(), torch.compiler.set_stance("force_eager"):
            for optimizer in optimizers:
                type(optimizer).step(optimizer)
    except ConfigurationError:
        raise
    except Exception as error:  # whatever the user's code raises
        raise recorder.refusal(
            f"fails on tensors without values, and without a closure: {as_tensors(str(error))}"
        ) from error
    outputs = {_PARAMETER + n: s for n, s in symbols.items()} | _held(optimizers, names)
    owners = dict[int, str]()
    for name, symbol in outputs.items():
        if (other := owners.setdefault(symbol.memory, name)) != name:
            raise recorder.refusal(_SHARED.format(other, name))
    recorder.form.outputs = {name: symbol.number for name, symbol in outputs.items()}
    return recorder.form


def _held(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str], kind: type[Tensor] = _Symbol
) -> dict[str, Any]:  # fmt: skip
    """The tensors of optimizers' state by name: symbols, or those that become symbols. names: parameters by id."""
    found, seen = dict[str, Tensor](), set(names)
    for part in (part for one in optimizers for part in parts(one)):
        for path, leaf in tree_flatten_with_path(vars(part))[0]:
            keys = [getattr(entry, "key", getattr(entry, "idx", None)) for entry in path]
            words = [str(key) for key in keys if not isinstance(key, Tensor) and key != "state"]
            owner = [names[id(key)] for key in keys if id(key) in names]
            number = kind is Tensor and isinstance(leaf, Tensor) and not leaf.ndim and (words == ["step"] or not owner)
            if isinstance(leaf, kind) and not number and id(leaf) not in seen:
                seen.add(id(leaf))
                name = ".".join((*words, *owner))
                found[f"{name}.{len(found)}" if name in found else name] = leaf
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


def _alike(calls: Sequence[_Call], others: Sequence[_Call], numbers: dict[Any, int]) -> list[_Column] | None:
    """The places of the numbers of `others` among those of `calls`, if they are the same; None if they are not.

    numbers: the operands of `others` by those of `calls`, to which the results are added.
    """
    order = list[_Column]()

    def renamed(leaf: Any) -> Any:
        if isinstance(leaf, _Column):
            order.append(leaf)
            return _Column(len(order) - 1)
        return _Operand(numbers.get(leaf, -1)) if isinstance(leaf, _Operand) else leaf

    for call, other in zip(calls, others, strict=False):
        if call.func != other.func or _mapped((call.args, call.kwargs), renamed) != (other.args, other.kwargs):
            return None
        numbers.update(zip(_flat(call.result), _flat(other.result), strict=True))
    return order if len(calls) == len(others) else None


def _unmarked(value: Any, tensors: Mapping[int, Tensor], numbers: Sequence[Any]) -> Any:
    """The value with tensors and numbers in the place of its marks."""

    def given(leaf: Any) -> Any:
        if isinstance(leaf, _Operand):
            return tensors[leaf]
        return numbers[leaf.place] if isinstance(leaf, _Column) else leaf

    return _mapped(value, given)


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
    refs = {_PARAMETER + n: ref for n, ref in parameters.items()} | {_GRADIENT + n: ref for n, ref in gradients.items()}
    for form in (found.forms[place] for place in used):
        for name, number in (*zip(form.inputs, count(), strict=False), *form.outputs.items()):
            if name not in refs:
                refs[name] = _entry(b, result, o.prefix + name, form.shadows[number], found.initial.get(name))
                if turn:
                    refs[name] = found.updates[-1].state[o.prefix + name]
    after = dict(refs)
    for place in used:
        columns = {column: row.select(0, at) for column, at in places[place].items()} if row else {}
        own = _lowered(constants, o, found.forms[place], columns, refs)
        b.origin = "optimizer"
        if row is not None and len(used) > 1:
            chosen = b.eq(row.select(0, 0), b.const(float(place)))
            own = {name: b.where(chosen, ref, after[name]) for name, ref in own.items()}
        after |= own
    result.parameters = {name: after[_PARAMETER + name] for name in parameters}
    result.state = {name: after[name.removeprefix(o.prefix)] for name in result.initial}
    found.updates.append(result)
    return result


def _entry(b: Builder, result: Update, name: str, shadow: Tensor, initial: Tensor | None) -> Ref:
    """The state entry of a tensor that the optimizers hold, before the step."""
    bf16 = shadow.dtype == torch.bfloat16
    dtype = torch.float32 if bf16 else shadow.dtype
    if dtype not in PROTOCOL_DTYPES:
        raise ConfigurationError(
            f"expected an optimizer with state of float32, bfloat16, int64 or bool, got {name}, {dtype}"
        )
    result.initial[name] = torch.zeros(shadow.shape, dtype=dtype) if initial is None else initial.to(dtype)
    return b.state(f"optimizer.{name}", PROTOCOL_DTYPES[dtype], tuple(shadow.shape), bf16=bf16)


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
    constants: Constants, o: TorchOptimizers, form: _Form, columns: Mapping[int, Ref], refs: Mapping[str, Ref]
) -> dict[str, Ref]:
    """The refs of a form's outputs by name. columns: the numbers that change."""

    def run(*tensors: Tensor) -> list[Tensor]:
        known = dict(enumerate(tensor.clone() for tensor in tensors[: len(form.inputs)]))
        changing = dict(zip(columns, tensors[len(form.inputs) :], strict=True))
        numbers = [
            _of_kind(changing[place], number) if place in changing else number
            for place, number in enumerate(form.numbers)
        ]
        for call in form.calls:
            annotate("optimizer", call.line)
            args, kwargs = _unmarked((call.args, call.kwargs), known, numbers)
            plain = not any(isinstance(leaf, _Column) and leaf.place in changing for leaf in call.leaves())
            result = call.func(*args, **kwargs) if plain else _with_tensors(call, form, args, kwargs)
            known.update(zip(_flat(call.result), _flat(result), strict=True))
        return [known[number] for number in form.outputs.values()]

    example = [torch.empty_strided(s.shape, s.stride(), dtype=s.dtype) for s in form.shadows[: len(form.inputs)]]
    graph = trace_function(run, [*example, *(torch.ones(()) for _ in columns)])
    given = [*(refs[name] for name in form.inputs), *columns.values()]
    outputs = lowered(constants, graph, given, f"the optimizer ({o.name})")
    return dict(zip(form.outputs, outputs, strict=True))


def _of_kind(changing: Tensor, number: Any) -> Tensor:
    """A number that changes, f32, with the shape and kind of the tensor that it stands for."""
    if not isinstance(number, Tensor):
        return changing
    changing = changing.reshape(number.shape)
    return changing if number.is_floating_point() else changing.to(number.dtype)


def _as_computed(value: Any) -> Any:
    """bfloat16 as float32, as PyTorch's kernels compute."""
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value


def _with_tensors(call: _Call, form: _Form, args: Any, kwargs: Mapping[str, Any]) -> Tensor:
    """The result of a call some of whose numbers are tensors here, because they change from step to step."""
    name, shadow = call.func._schema.name.removeprefix("aten::"), form.shadows[call.result]
    wide, options = _mapped((args, dict(kwargs)), _as_computed)
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
