"""Records a step of torch's optimizers on symbols: tensors with shape and dtype, and without values.

An optimizer is Python code with numbers in it that change from step to step (rates, corrections, counts). Its calls of
ATen are recorded, with marks in the place of tensors and numbers. Steps with the same calls have one form. What needs
the values of a symbol is refused by name. The state is each symbol that the optimizer holds between two steps.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from sys import _getframe
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten_with_path

from tiebreak.engine.capture import step, user_code
from tiebreak.engine.optimizers.translate import parts
from tiebreak.protocol.errors import ConfigurationError

_LIMITS: Final = {"maximum": "clamp_min", "minimum": "clamp_max"}
"""Names of operators in torch if the second operand is a number."""
PARAMETER, GRADIENT = "parameter ", "gradient "
"""Prefixes of the names of inputs that are no state."""
SHARED: Final = "holds one tensor's memory twice, as {} and {}, so that a write to one changes the other; `.clone()` it"


class Symbol(Tensor):
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
    def __new__(cls, shadow: Tensor, *, trained: bool = False) -> "Symbol":
        made: Symbol = Tensor._make_wrapper_subclass(
            cls, shadow.shape, strides=shadow.stride(), dtype=shadow.dtype, device=torch.device("cpu"),
            requires_grad=trained,
        )  # fmt: skip
        made.shadow, made._is_param = shadow, trained
        return made

    @property
    def data(self) -> Tensor:
        """The tensor without its gradient. Assigning a tensor of the same shape shares its memory."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if isinstance(value, Symbol) and value.form is self.form and value.shape == self.shape:
            self.shadow, self.number, self.memory = value.shadow, value.number, value.memory
            return
        with torch.no_grad():
            self.copy_(value)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise ConfigurationError(f"expected an optimizer that computes within its step only, got {func} outside of it")


class SymbolMark(int):
    """The number of a symbol, in its place among the arguments of a call."""


@dataclass(frozen=True, slots=True)
class NumberMark:
    """The place of a Python number, or of a tensor of one element, among the numbers of a step."""

    place: int


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of ATen, with marks in the place of tensors and numbers. line: the user's, empty if it is torch's."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    line: str = field(compare=False)

    def leaves(self) -> list[Any]:
        return flat((self.args, self.kwargs))

    def operands(self) -> list[SymbolMark]:
        return [leaf for leaf in self.leaves() if isinstance(leaf, SymbolMark)]

    def written(self) -> list[Any]:
        """The operands that the call writes to."""
        return flat(_targets(self.func, self.args, self.kwargs))


@dataclass(slots=True)
class StepForm:
    """The calls of a step, and its tensors by number: those of `inputs`, then the results of the calls."""

    inputs: tuple[str, ...]
    outputs: dict[str, int] = field(default_factory=dict)
    """The numbers of the parameters and of the state after the step."""
    calls: list[RecordedCall] = field(default_factory=list)
    shadows: list[Tensor] = field(default_factory=list, compare=False)
    memories: list[int] = field(default_factory=list, compare=False)
    numbers: list[Any] = field(default_factory=list, compare=False)
    """The Python numbers, and tensors of one element, of the first step of this form."""


class StepRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the calls of one step on symbols, and those that make tensors of known shape; others are computed."""

    def __init__(self, inputs: Mapping[str, Symbol], what: str, foreign: Set[int], before: StepForm | None) -> None:
        """Begins a step. foreign: memory that it may not read. before: the form of the step before.

        Most steps repeat that. With the same inputs and the same calls so far, its next results have the same numbers.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.form, self._what, self._foreign = StepForm(tuple(inputs)), what, foreign
        self._before = before if before is not None and before.inputs == self.form.inputs else None
        self._caller: FrameType | None = None
        self._symbols = list[Symbol]()
        for symbol in inputs.values():
            self._add(symbol)

    def _add(self, symbol: Symbol, memory: int | None = None) -> Symbol:
        symbol.form, symbol.number = self.form, len(self._symbols)
        symbol.memory = symbol.number if memory is None else memory
        self._symbols.append(symbol)
        self.form.shadows.append(symbol.shadow)
        self.form.memories.append(symbol.memory)
        return symbol

    def refusal(self, deed: str) -> ConfigurationError:
        line = user_code.user_line(self._caller, within=__file__)
        return ConfigurationError(f"{self._what} cannot be captured: {f'at {line} ' * bool(line)}it {deed}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._caller = _getframe(1)
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise self.refusal("draws random numbers; leave them out, or draw in the model")
        kwargs = kwargs or {}
        tensors = [value for value in flat((args, kwargs)) if isinstance(value, Tensor)]
        others = [tensor for tensor in tensors if type(tensor) is not Symbol]
        if any(tensor.untyped_storage().data_ptr() in self._foreign for tensor in others):
            raise self.refusal("reads a tensor of the model by another way than `param_groups` (a closure, a global)")
        filled = not tensors and step.is_filled(func) and isinstance(args[0], list | tuple) and len(args[0]) > 0
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
                return mapped(call.result, self._again)
        self._before = None
        return self._computed(func, args, kwargs, marked, named)

    def _again(self, number: int) -> Symbol:
        """The tensor of a number, which is made if the step before made it here."""
        if number < len(self._symbols):
            return self._symbols[number]
        assert self._before is not None  # the call is one of its calls
        return self._add(Symbol(self._before.shadows[number].detach()), self._before.memories[number])

    def _computed(self, func: OpOverload, args: Any, kwargs: Any, marked: Any, named: Any) -> Any:
        self._check(func, args, kwargs)
        shadows, options = mapped(
            (args, kwargs),
            lambda v: v.shadow if isinstance(v, Symbol) else v.to("meta") if isinstance(v, Tensor) else v,
        )
        symbols = [value for value in flat((args, kwargs)) if isinstance(value, Symbol)]
        result = func(*shadows, **options | {"device": "meta"} if kwargs.get("device") or not symbols else options)
        own = {id(symbol.shadow): symbol for symbol in symbols}
        memory = symbols[0].memory if func.is_view else None
        made = mapped(result, lambda t: own[id(t)] if id(t) in own else self._add(Symbol(t), memory))
        line = user_code.user_line(self._caller, within=__file__)
        self.form.calls.append(RecordedCall(func, marked, named, self._marked(made, numeric=False), line))
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
        if not all(isinstance(value, Symbol) for value in flat(_targets(func, args, kwargs))):
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
        if isinstance(value, Symbol):
            if value.form is not self.form:
                raise self.refusal(
                    "reads a tensor of an earlier step that is neither in its `state` nor in its groups or attributes"
                )
            return SymbolMark(value.number)
        if isinstance(value, list | tuple):
            return tuple(self._marked(one, numeric) for one in value)
        if isinstance(value, Tensor) and value.numel() != 1:
            raise self.refusal(
                f"computes with a tensor of {value.numel()} elements that is neither made in the step nor "
                "held from the start"
            )
        if isinstance(value, Tensor) or (numeric and isinstance(value, int | float) and not isinstance(value, bool)):
            self.form.numbers.append(value.clone() if isinstance(value, Tensor) else value)
            return NumberMark(len(self.form.numbers) - 1)
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


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with each leaf of its tuples, lists and dicts changed, but None."""
    if isinstance(value, tuple | list):
        return type(value)(mapped(one, change) for one in value)
    if isinstance(value, dict):
        return {name: mapped(one, change) for name, one in value.items()}
    return None if value is None else change(value)


def flat(value: Any) -> list[Any]:
    """The leaves of tuples, lists and dicts."""
    if isinstance(value, dict):
        value = tuple(value.values())
    return [leaf for one in value for leaf in flat(one)] if isinstance(value, tuple | list) else [value]


def record_step(
    optimizers: Sequence[torch.optim.Optimizer], symbols: Mapping[str, Symbol], trained: Sequence[str],
    make: Callable[[Mapping[str, Symbol]], StepRecorder],
) -> StepForm:  # fmt: skip
    """Runs the optimizers once, within the recorder that is made for the tensors that they begin with."""
    names = {id(symbol): name for name, symbol in symbols.items()}
    gradients = {name: Symbol(torch.empty_like(symbols[name].shadow)) for name in trained}
    for name, symbol in symbols.items():
        symbol.grad = gradients.get(name)
    inputs = {PARAMETER + n: s for n, s in symbols.items()} | {GRADIENT + n: s for n, s in gradients.items()}
    recorder = make(inputs | held_tensors(optimizers, names))
    try:
        with recorder, torch.enable_grad(), torch.compiler.set_stance("force_eager"):
            for optimizer in optimizers:
                type(optimizer).step(optimizer)
    except ConfigurationError:
        raise
    except Exception as error:  # whatever the user's code raises
        raise recorder.refusal(
            f"fails on tensors without values, and without a closure: {user_code.as_tensors(str(error))}"
        ) from error
    outputs = {PARAMETER + n: s for n, s in symbols.items()} | held_tensors(optimizers, names)
    owners = dict[int, str]()
    for name, symbol in outputs.items():
        if (other := owners.setdefault(symbol.memory, name)) != name:
            raise recorder.refusal(SHARED.format(other, name))
    recorder.form.outputs = {name: symbol.number for name, symbol in outputs.items()}
    return recorder.form


def held_tensors(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str], kind: type[Tensor] = Symbol
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
