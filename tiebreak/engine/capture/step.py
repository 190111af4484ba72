"""Capture: traces a task's training step, forward and backward, as one graph of ATen calls, and lowers it.

`tiebreak.engine.capture.tracing` traces, and the rules for lowering to instructions are in `tiebreak.engine.lowering`.

Constants are folded: torch computes once whatever depends on no parameter, buffer, batch or random draw. The result
becomes part of the agreed job: one number that is read everywhere, an `iota`, or data named `constant.N`. Integers and
bools are exact. Floats that went through torch's functions (such as the frequencies of rotary embeddings) are whatever
this machine's torch computed. Nobody computes them again: as with the initial weights, the client's bytes are what
counts. Constants that cost a program nothing (a full tensor, a range, views of those) are left to their lowering rules.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from hashlib import sha256
from operator import getitem
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from tiebreak.engine.capture.draws import is_draw
from tiebreak.engine.capture.tracing import TracedGraph, trace
from tiebreak.engine.capture.user_code import COMPLEX, dtype_hint, operator_hint
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.lowering import INTEGERS, RULES, Complex, Context, complex_rule, element_type, has_cut
from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.lowering.elementwise import wrapped
from tiebreak.protocol.errors import ConfigurationError

MAX_ELEMENTS: Final = 1 << 26
"""Larger constants are computed in each step instead of at capture."""
_FILLED: Final = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1,
                  "empty": 0, "empty_like": 0, "new_empty": 0, "empty_permuted": 0, "empty_strided": 0,
                  "new_empty_strided": 0}  # fmt: skip
"""The fill value of operators whose result depends on a shape only (unset memory counts as zeros)."""
_FULL: Final = ("full", "full_like", "new_full", "scalar_tensor")
"""Operators whose last argument is the fill value."""
_VIEWS: Final = frozenset({
    "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "slice", "select",
    "alias", "detach", "clone", "lift_fresh_copy",
})  # fmt: skip


def _base_name(func: Any) -> str:
    """The name of an operator without its overload, such as `full`; empty for anything but an ATen call."""
    return func._schema.name.partition("::")[2] if isinstance(func, OpOverload) else ""


def is_filled(func: Any) -> bool:
    """Whether an operator fills a new tensor, and so reads only the shapes of its operands."""
    return _base_name(func) in (*_FILLED, *_FULL)


Constant = tuple[Tensor, tuple[int, ...]]
"""A folded tensor without its repetitions, and the shape to which that is expanded along dims of size 1."""


class Folded:
    """The constants of a graph that other nodes read, by node."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self._module, nodes = graph, graph.graph.nodes
        self._known: dict[fx.Node, Any] = {}
        self._constant, self._free = set[fx.Node](), set[fx.Node]()
        for node in filter(self._is_constant, nodes):
            self._constant.add(node)
            is_view = _base_name(node.target) in _VIEWS and self._free.issuperset(node.all_input_nodes)
            if is_view or is_filled(node.target) or _base_name(node.target) == "arange":
                self._free.add(node)
        # Computed are those that cost something and are read by a node that is not constant, or by the output.
        costing = (node for node in nodes if node in self._constant and node not in self._free)
        with _disable_current_modes(), torch.no_grad():
            read = [node for node in costing if not self._constant.issuperset(node.users)]
            self.values = {node: _canonical(self._value(node)) for node in read}
        self._known.clear()

    def covers(self, node: fx.Node) -> bool:
        """Whether a node is part of a constant, and so needs no instruction of its own."""
        return node in self._constant and node not in self._free and node not in self.values

    def _is_constant(self, node: fx.Node) -> bool:
        if node.op == "get_attr":
            return True
        if isinstance(node.target, OpOverload):
            results = [t for t in tree_leaves(node.meta.get("val")) if isinstance(t, Tensor)]
            if torch.Tag.nondeterministic_seeded in node.target.tags or any(t.numel() > MAX_ELEMENTS for t in results):
                return False
            name = _base_name(node.target)
            if name in _FILLED or (name in _FULL and not isinstance(node.args[-1], fx.Node)):
                return True
        elif node.op != "call_function" or node.target is not getitem:
            return False
        return self._constant.issuperset(node.all_input_nodes)

    def _value(self, node: fx.Node) -> Any:
        """The value that torch computes for a node. Iterative over the inputs, which precede the node in the graph."""
        waiting = [node]
        while waiting:
            last = waiting[-1]
            # What fills a tensor reads no elements of its inputs.
            reads = () if is_filled(last.target) else last.all_input_nodes
            missing = [source for source in reads if source not in self._known]
            waiting += missing
            if not missing and waiting.pop() not in self._known:
                self._known[last] = self._run(last)
        return self._known[node]

    def _run(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return getattr(self._module, str(node.target)).detach()
        if is_filled(node.target):
            value: Any = _FILLED[_base_name(node.target)] if _base_name(node.target) in _FILLED else node.args[-1]
            return torch.full(tuple(node.meta["val"].shape), value, dtype=node.meta["val"].dtype)
        target: Callable[..., Any] = node.target  # type: ignore[assignment]
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._known.__getitem__)
        return target(*args, **kwargs)


def _canonical(tensor: Tensor) -> Constant:
    """The constant without repetition along any dim."""
    base = tensor
    for d, size in enumerate(tensor.shape if tensor.numel() else ()):
        first = base.narrow(d, 0, 1)
        if size > 1 and (tensor.stride(d) == 0 or bool((base == first).all())):
            base = first
    # The copy has memory of its own, without the strides of 0 that contiguous() keeps where sizes are 1.
    return torch.empty(base.shape, dtype=base.dtype).copy_(base), tuple(tensor.shape)


@dataclass
class StepGraph:
    """The refs of one traced step: loss, gradients by parameter, and new values of mutated buffers.

    A parameter that the loss does not depend on, or that is frozen, has no gradient.
    """

    loss: Ref
    gradients: dict[str, Ref]
    buffers: dict[str, Ref]


class Constants:
    """Puts folded tensors into a program: as one number, an `iota`, or data `constant.N`; equal ones share data."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._names: dict[bytes, str] = {}
        self.data: dict[str, Tensor] = {}

    def ref(self, constant: Constant) -> Ref | Complex:
        """The constant as a ref. Raises `NotImplementedError` if its dtype has no exact form."""
        base, shape = constant
        if not base.is_complex():
            return self._of_reals(base, shape)
        return Complex(*(self._of_reals(part, shape) for part in torch.view_as_real(base).unbind(-1)))

    def _of_reals(self, base: Tensor, shape: tuple[int, ...]) -> Ref:
        base = _in_program_dtype(base, len(shape))
        dtype, b = PROTOCOL_DTYPES[base.dtype], self.builder
        if not base.numel():
            return b.full(shape, 0, dtype)
        first = base.flatten()[0]
        if bool((base == first).all()) or bool(torch.isnan(base).all()):
            return b.full(shape, first.item(), dtype)
        if (places := _whole(base)) is not None and (strides := _affine(places)) is not None:
            return b.cast(b.iota(tuple(base.shape), strides, int(first)), dtype).expand(shape)
        ref = self.table(base.squeeze())
        for d, size in enumerate(base.shape):
            ref = ref.unsqueeze(d) if size == 1 else ref
        return ref.expand(shape)

    def table(self, tensor: Tensor) -> Ref:
        """A tensor as data of the program, in which equal ones are one."""
        key = sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes()).digest()
        if key not in self._names:
            self._names[key] = f"constant.{len(self.data)}"
            self.data[self._names[key]] = tensor.clone()
        return self.builder.data(self._names[key], PROTOCOL_DTYPES[tensor.dtype], tuple(tensor.shape))


def _whole(tensor: Tensor) -> Tensor | None:
    """The tensor as integers, if it is i64, or if every f32 is an integer (not -0) of magnitude below 2^24."""
    if tensor.dtype == torch.float32 and bool((tensor.abs() < 1 << 24).all()):
        whole = tensor.to(torch.int64)
        return whole if torch.equal(whole.to(torch.float32).view(torch.int32), tensor.view(torch.int32)) else None
    return tensor if tensor.dtype == torch.int64 else None


def _in_program_dtype(tensor: Tensor, rank: int) -> Tensor:
    """Integers as i64 and floats as f32. Rank-0 floats are rounded, as torch does when they meet f32 tensors."""
    if tensor.dtype in PROTOCOL_DTYPES:
        return tensor
    if tensor.dtype in INTEGERS:
        return tensor.to(torch.int64)
    if tensor.dtype in (torch.float64, torch.float16, torch.bfloat16):
        as_f32 = tensor.to(torch.float32)
        if rank == 0 or torch.equal(as_f32.to(tensor.dtype).nan_to_num(), tensor.nan_to_num()):
            return as_f32
    raise NotImplementedError(f"a constant of dtype {tensor.dtype}; {dtype_hint(tensor.dtype)}")


def _affine(tensor: Tensor) -> tuple[int, ...] | None:
    """Strides s with tensor[c] = tensor[0] + sum(c * s), if such strides exist."""
    found, expected = [], torch.tensor(int(tensor.flatten()[0]))
    for d, size in enumerate(tensor.shape):
        start = tensor[tuple(slice(0, min(size, 2)) if e == d else 0 for e in range(tensor.ndim))]
        found.append(int(start[1] - start[0]) if size > 1 else 0)
        ramp = torch.arange(size) * found[-1]
        expected = expected + ramp.reshape([size if e == d else 1 for e in range(tensor.ndim)])
    return tuple(found) if torch.equal(expected.expand(tensor.shape), tensor) else None


_IN_RANGE: Final = _VIEWS | {
    "split", "split_with_sizes", "unbind", "flip", "cat", "stack", "where", "gather", "index", "index_select",
    "embedding", "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "amax", "amin", "max", "min", "relu",
    "slice_scatter", "select_scatter", "triu", "tril", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like",
    "new_zeros", "new_ones", "new_full", "scalar_tensor", "arange", "empty",
}  # fmt: skip
"""Operators that yield no integer outside the range of their operands' dtype."""


_NORMS: Final = frozenset({
    "native_layer_norm", "native_group_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
})  # fmt: skip
_STATISTICS: Final = (1, 2)
"""Mean and inverse deviation of a norm, by their place among its results: they stay float32, for the backward."""


class _Lowering:
    """Walks the traced graph once, node by node; collects everything that cannot be lowered and reports it together."""

    def __init__(
        self, builder: Builder, graph: TracedGraph, folded: Folded, constants: "Constants", what: str = "the model"
    ) -> None:  # fmt: skip
        self.builder = builder
        self.graph = graph
        self.folded = folded
        self.what = what
        self.values: dict[fx.Node, Any] = {}
        self.problems: list[tuple[str, str, str]] = []
        """Operator, place and reason of each node that cannot be lowered, in the order of the graph."""
        self._constants = constants
        self._fault: Exception | None = None
        called = (node for node in graph.module.graph.nodes if node.op == "call_function")
        self._cuts = any(has_cut(_name(node), node.args) and _is_complex(node) for node in called)
        self._drawn: dict[fx.Node, tuple[int | None, int]] = {}
        """The stream of each first draw (None: nothing reads it), and its place in `Builder.draws`."""

    def run(self, inputs: Sequence[Ref]) -> Mapping[fx.Node, Any]:
        """The refs by node. Raises a `ConfigurationError` that lists every operator without a rule."""
        waiting = iter(inputs)
        for node in self.graph.module.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = next(waiting)
            elif node in self.folded.values:
                self._guarded(node, partial(self._constants.ref, self.folded.values[node]))
            elif self.folded.covers(node):
                self.values[node] = None  # a node inside a constant: nothing reads it, or only its shape is read
            elif node.op == "call_function":
                self._call(node)
        if self.problems:
            listing = "\n  ".join(_once(self.problems))
            raise ConfigurationError(
                f"{self.what} cannot be captured; these operators have no exact form here:\n  {listing}"
            ) from self._fault
        return self.values

    def _call(self, node: fx.Node) -> None:
        if node.target is getitem:
            source, index = node.args
            value = self.values[source]  # type: ignore[index]
            self.values[node] = value if value is _FAILED else value[index]
            return
        if not isinstance(node.target, OpOverload):
            self._fail(node, "no lowering rule; operators that take functions or write to their arguments have no form")
            return
        if not node.users:
            if is_draw(node.target) and _name(node) in RULES and node not in self.graph.repeated:
                self._drawn[node] = None, len(self.builder.draws)
                self.builder.draws.append(None)
            return
        arguments = fx.node.map_arg((node.args, node.kwargs), self.values.__getitem__)
        if (bad := _unknown_dtype(node)) is not None:
            self._fail(node, f"dtype {bad}; {dtype_hint(bad)}")
        elif (rule := complex_rule(node.target) if _is_complex(node) else RULES.get(_name(node))) is None:
            self._fail(node, f"no lowering rule; {COMPLEX if _is_complex(node) else operator_hint(_name(node))}")
        elif any(argument is _FAILED for argument in tree_leaves(arguments)):
            self.values[node] = _FAILED
        else:
            args, kwargs = arguments
            operands = [n.meta.get("val") for n in node.all_input_nodes]
            context = Context(self.builder, node.meta["val"], operands, self._constants.table, self._cuts)
            lower = partial(rule, context, *args, **kwargs)
            made = partial(self._draw, node, lower) if is_draw(node.target) else lower
            self._guarded(node, lambda: self._as_held(node, made()))

    def _draw(self, node: fx.Node, lower: Callable[[], Any]) -> Any:
        """Lowers a draw. One that repeats another is made of equal instructions, which the builder emits once."""
        b, first = self.builder, self.graph.repeated.get(node, node)
        begun, count = b.streams, len(b.draws)
        stream, place = self._drawn.get(first, (None, count))
        b.streams = begun if stream is None else stream  # None: nothing reads the first one, so this is drawn instead
        self._drawn[first] = b.streams, place
        value = lower()
        b.streams, noted = max(b.streams, begun), b.draws[count:]
        del b.draws[count:]
        b.draws[place : place + len(noted) * (node is not first)] = noted
        return value

    def _guarded(self, node: fx.Node, make: Callable[[], Any]) -> None:
        self.builder.origin = self.graph.origin(node)
        try:
            self.values[node] = make()
        except NotImplementedError as error:
            self._fail(node, str(error))
        except Exception as error:  # a rule met what it does not expect; the user's model is at fault or we are
            self._fault = error
            self._fail(node, f"{UNCOVERED}; {operator_hint(_name(node))}")

    def _as_held(self, node: fx.Node, value: Any) -> Any:
        """The value as torch holds it.

        An integer of a narrow dtype, an i64 here, is wrapped if the operator may overflow; bfloat16, an f32 here, is
        rounded.
        """
        if isinstance(value, tuple | list):
            kept = _STATISTICS if _name(node).partition(".")[0] in _NORMS else ()
            return type(value)(
                self.builder.bf16(each)
                if number not in kept and isinstance(each, Ref) and getattr(t, "dtype", None) == torch.bfloat16
                else each
                for number, (each, t) in enumerate(zip(value, node.meta["val"], strict=True))
            )
        dtype = getattr(node.meta["val"], "dtype", None)
        if dtype == torch.bfloat16 and isinstance(value, Ref):
            return self.builder.bf16(value)
        if dtype not in INTEGERS or not isinstance(value, Ref) or _name(node).partition(".")[0] in _IN_RANGE:
            return value
        sources = [source.meta["val"].dtype for source in node.all_input_nodes]
        if _name(node).startswith("_to_copy") and all(_fits(source, dtype) for source in sources):
            return value
        return wrapped(self.builder, value, *INTEGERS[dtype])

    def _fail(self, node: fx.Node, problem: str) -> None:
        self.problems.append((_name(node), self.graph.place(node), problem))
        self.values[node] = _FAILED


def _once(problems: Sequence[tuple[str, str, str]]) -> list[str]:
    """A line for each operator and reason, with the first place and the number of others."""
    places: dict[tuple[str, str], dict[str, None]] = {}
    for operator, place, reason in problems:
        named = next((key for key in places if key[1] == reason and reason.startswith("dtype")), (operator, reason))
        places.setdefault(named, {})[place] = None
    return [
        f"{operator} (at {next(iter(found))}{f' and {len(found) - 1} more places' if len(found) > 1 else ''}): {reason}"
        for (operator, reason), found in places.items()
    ]


def _name(node: fx.Node) -> str:
    return str(node.target).removeprefix("aten.")


def _is_complex(node: fx.Node) -> bool:
    """Whether a node makes or takes complex numbers."""
    values = [node.meta["val"], *(source.meta.get("val") for source in node.all_input_nodes)]
    return any(isinstance(t, Tensor) and t.is_complex() for t in tree_leaves(values))


def _fits(source: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether every value of `source` is a value of `dtype`, a narrow dtype."""
    if source == torch.bool:
        return True
    if source not in INTEGERS:
        return False
    (low, bits), (least, width) = INTEGERS[source], INTEGERS[dtype]
    return low >= least and low + (1 << bits) <= least + (1 << width)


def _unknown_dtype(node: fx.Node) -> torch.dtype | None:
    dtypes = [t.dtype for t in tree_leaves(node.meta["val"]) if isinstance(t, Tensor)]
    return next((d for d in dtypes if d != torch.complex64 and element_type(d) is None), None)


_FAILED = object()
UNCOVERED: Final = "no form for these arguments"
"""Begins the problem of an operator whose rule fails by an exception: a gap of ours, in a message for the user."""


def capture(
    constants: Constants, model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Ref],
    example: Sequence[Tensor], state: Callable[[str], Ref], divisor: Ref | None = None, assigned: Collection[str] = (),
) -> StepGraph:  # fmt: skip
    """Lowers one step, or a phase of one, into the builder of its constants.

    batch: the refs of the step's batch; if the step accumulates gradients, those of its batches one after the other.
    example: tensors of the shapes and dtypes of one batch, for tracing. state: gives the ref of a parameter or buffer
    by name. divisor: of the sum of the batches' losses; None for their number. assigned: see `trace`. Raises a
    `ConfigurationError` that lists every operator that cannot be lowered, with its module path.
    """
    joint = trace(model, loss, example, assigned)
    folded, steps = Folded(joint.module), list[StepGraph]()

    def current(name: str) -> Ref:
        return steps[-1].buffers[name] if steps and name in steps[-1].buffers else state(name)

    for start in range(0, len(batch), len(example)):
        lowering = _Lowering(constants.builder, joint, folded, constants)
        own = map(current, (*joint.parameters, *joint.buffers, *joint.values))
        values = lowering.run([*own, *batch[start : start + len(example)]])
        gradients = {n: values[node] for n, node in zip(joint.parameters, joint.gradients, strict=True) if node}
        buffers = {name: values[node] for name, node in joint.mutated.items()}
        steps.append(StepGraph(loss=values[joint.loss], gradients=gradients, buffers=buffers))
    constants.builder.traced = len(constants.builder.instructions)
    return steps[0] if len(steps) == 1 and divisor is None else _accumulated(constants.builder, steps, divisor)


def lowered(constants: Constants, graph: TracedGraph, inputs: Sequence[Ref], what: str) -> list[Ref]:
    """Lowers a graph whose output is a list, and returns the refs of that. what: for messages."""
    values = _Lowering(constants.builder, graph, Folded(graph.module), constants, what).run(inputs)
    (outputs,) = next(node for node in reversed(graph.module.graph.nodes) if node.op == "output").args
    return [values[node] for node in outputs]


def _accumulated(b: Builder, steps: Sequence[StepGraph], divisor: Ref | None) -> StepGraph:
    """Loss and gradients, added in the order of the batches and divided, with the last batch's buffers."""
    b.origin = "accumulation"
    count = b.const(float(len(steps))) if divisor is None else divisor
    gradients = {name: b.div(reduce(b.add, [s.gradients[name] for s in steps]), count) for name in steps[0].gradients}
    loss = b.div(reduce(b.add, [s.loss for s in steps]), count)
    return StepGraph(loss=loss, gradients=gradients, buffers=steps[-1].buffers)
