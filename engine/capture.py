"""Capture: a task's training step, forward and backward, as one flat graph of ATen calls, lowered to instructions.

The only module that touches torch's tracing internals. Tested with torch 2.13.0; the program it makes no longer
depends on torch's version.
"""

import warnings
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import aot_export_module
from torch._guards import TracingContext, tracing
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from engine.builder import Builder, Ref
from engine.lowering import DTYPES, RULES, Context
from engine.undecomposed import decompositions, kept_whole
from protocol.errors import ConfigurationError

TESTED_TORCH = ("2.13.0",)
"""torch versions whose tracing this module is tested on."""


@dataclass
class StepGraph:
    """Refs of one traced step: loss, gradient by parameter, new value by mutated buffer, constants as data."""

    loss: Ref
    gradients: dict[str, Ref]
    buffers: dict[str, Ref]
    constants: dict[str, Tensor] = field(default_factory=dict)


class _Functional(nn.Module):
    """The loss as a function of unique parameters, so that tied weights have one gradient.

    idle: names of trainable parameters that the loss does not depend on. Here they need no gradient, for torch refuses
    to trace a step that gives one none.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor], idle: Container[str]) -> None:
        super().__init__()
        self._hidden = (model, loss)  # in a tuple: must not be registered as a submodule
        self.parameter_names = [name for name, _ in model.named_parameters()]
        self.buffer_names = [name for name, _ in model.named_buffers()]
        self.unique = nn.ParameterList(
            [
                nn.Parameter(p.detach(), requires_grad=False) if name in idle else p
                for name, p in model.named_parameters()
            ]
        )
        for i, (_, buffer) in enumerate(model.named_buffers()):
            self.register_buffer(f"b{i}", buffer)

    def forward(self, *batch: Tensor) -> tuple[Tensor]:
        model, loss = self._hidden
        tensors: dict[str, Tensor] = dict(zip(self.parameter_names, self.unique, strict=True))
        tensors |= {name: getattr(self, f"b{i}") for i, name in enumerate(self.buffer_names)}
        return (functional_call(_Loss(model, loss), {f"model.{k}": v for k, v in tensors.items()}, batch),)


class _Loss(nn.Module):
    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, *batch: Tensor) -> Tensor:
        return self._loss(self.model, *batch)


class _Paths(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records each dispatched ATen call with the path of the innermost submodule whose forward is running."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, str]] = []
        self.stack: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((str(func).removeprefix("aten."), self.stack[-1] if self.stack else ""))
        return func(*args, **(kwargs or {}))

    def watch(self, model: nn.Module) -> list[RemovableHandle]:
        """Hooks that keep `stack`; the caller removes them."""
        handles = []
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(lambda *_, path=path: self.stack.append(path)))
            handles.append(module.register_forward_hook(lambda *_: (self.stack.pop(), None)[1], always_call=True))
        return handles


def _forward_calls(model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor]) -> list[tuple[str, str]]:
    """(operator, module path) of the forward pass, in order, on fake tensors: the joint trace does not keep paths."""
    paths = _Paths()
    named = [*model.named_parameters(), *model.named_buffers()]
    handles = paths.watch(model)
    try:
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        tensors: dict[str, Tensor] = {f"model.{name}": fake.from_tensor(t) for name, t in named}
        inputs = tuple(fake.from_tensor(t) for t in batch)
        with fake, sdpa_kernel(SDPBackend.MATH), kept_whole(), paths:
            functional_call(_Loss(model, loss), tensors, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return paths.calls


def _idle(model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor]) -> set[str]:
    """Names of trainable parameters that the loss does not depend on: as in eager torch, they stay as they are."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    tensors: dict[str, Tensor] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        tensors[f"model.{name}"] = fake.from_tensor(tensor)
    trained = {name: tensors[f"model.{name}"] for name, p in model.named_parameters() if p.requires_grad}
    with fake, sdpa_kernel(SDPBackend.MATH), kept_whole():
        value = functional_call(_Loss(model, loss), tensors, tuple(fake.from_tensor(t) for t in batch))
        if not value.requires_grad:
            return set(trained)
        found: Sequence[Tensor | None] = torch.autograd.grad(value.sum(), list(trained.values()), allow_unused=True)
    return {name for name, gradient in zip(trained, found, strict=True) if gradient is None}


class _Origins:
    """Guesses the module of a traced node: its operator is one of the next few forward calls. For people only."""

    REACH = 12

    def __init__(self, calls: list[tuple[str, str]]) -> None:
        self._calls = calls
        self._next = 0

    def of(self, node: fx.Node) -> str:
        """`module.path:node`, or the node's name where no module is known."""
        name = _base(str(node.target).removeprefix("aten."))
        for position, (operator, path) in enumerate(self._calls[self._next : self._next + self.REACH]):
            if _base(operator) in name:
                self._next += position + 1
                return f"{path}:{node.name}" if path else node.name
        return node.name


def _base(operator: str) -> str:
    """`native_batch_norm` of `_native_batch_norm.default`."""
    return operator.partition(".")[0].strip("_")


def trace(
    model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor]
) -> tuple[fx.GraphModule, Any, _Functional]:
    """The joint forward and backward graph of `loss(model, *batch)` and its signature."""
    if torch.__version__.partition("+")[0] not in TESTED_TORCH:
        tested = ", ".join(TESTED_TORCH)
        warnings.warn(
            f"capture is tested with torch {tested}, this is {torch.__version__}; check the program", stacklevel=2
        )
    wrapped = _Functional(model, loss, _idle(model, loss, batch))
    # Tensors that the loss closes over (class weights, say) are constants of the program; torch needs this mode then.
    context = TracingContext(FakeTensorMode(allow_non_fake_inputs=True))
    with sdpa_kernel(SDPBackend.MATH), kept_whole(), tracing(context):
        graph, signature = aot_export_module(
            wrapped, tuple(batch), trace_joint=True, output_loss_index=0, decompositions=decompositions()
        )
    assert isinstance(graph, fx.GraphModule)  # the joint trace makes one
    return graph, signature, wrapped


class _Lowering:
    """Walks the traced graph once, node by node; what cannot be lowered is collected and reported together."""

    def __init__(self, builder: Builder, graph: fx.GraphModule, origins: _Origins) -> None:
        self.builder = builder
        self.origins = origins
        self.graph = graph
        self.values: dict[fx.Node, Any] = {}
        self.problems: list[str] = []
        self.constants: dict[str, Tensor] = {}

    def run(self, inputs: Sequence[Ref]) -> list[Any]:
        """Refs of the graph's outputs. Raises `ConfigurationError` that lists every operator without a rule."""
        waiting = iter(inputs)
        outputs: list[Any] = []
        for node in self.graph.graph.nodes:
            match node.op:
                case "placeholder":
                    self.values[node] = next(waiting)
                case "get_attr":
                    self.values[node] = self._constant(str(node.target))
                case "call_function":
                    self._call(node)
                case "output":
                    outputs = list(node.args[0])
        if self.problems:
            listing = "\n  ".join(dict.fromkeys(self.problems))
            raise ConfigurationError(
                f"the model cannot be captured; these operators have no exact form here:\n  {listing}"
            )
        return [None if node is None else self.values[node] for node in outputs]

    def _constant(self, name: str) -> Ref:
        tensor: Tensor = getattr(self.graph, name)
        if tensor.dtype not in DTYPES:
            self.problems.append(f"constant {name}: dtype {tensor.dtype}")
            return self.builder.const(0.0)
        dtype = DTYPES[tensor.dtype]
        if bool((tensor == tensor.flatten()[0]).all()):
            return self.builder.full(tuple(tensor.shape), tensor.flatten()[0].item(), dtype)
        key = f"constant.{len(self.constants)}"
        self.constants[key] = tensor.detach().clone()
        return self.builder.data(key, dtype, tuple(tensor.shape))

    def _call(self, node: fx.Node) -> None:
        if not isinstance(node.target, OpOverload):
            self.values[node] = self._getitem(node)
            return
        where = self.origins.of(node)
        if not node.users:
            return
        name = str(node.target).removeprefix("aten.")
        rule = RULES.get(name)
        if rule is None:
            self._fail(node, f"{name} (at {where}): no lowering rule; write this part with supported operators")
            return
        if (bad := self._unknown_dtype(node)) is not None:
            self._fail(node, f"{name} (at {where}): dtype {bad}; use float32, int64 or bool")
            return
        arguments = fx.node.map_arg((node.args, node.kwargs), self.values.__getitem__)
        if _contains_failure(arguments):
            self.values[node] = _FAILED
            return
        self.builder.origin = where
        args, kwargs = arguments
        try:
            self.values[node] = rule(Context(self.builder, node.meta["val"]), *args, **kwargs)
        except NotImplementedError as error:
            self._fail(node, f"{name} (at {where}): {error}")

    def _getitem(self, node: fx.Node) -> Any:
        source, index = node.args
        value = self.values[source]  # type: ignore[index]
        return value if value is _FAILED else value[index]

    def _fail(self, node: fx.Node, problem: str) -> None:
        self.problems.append(problem)
        self.values[node] = _FAILED

    @staticmethod
    def _unknown_dtype(node: fx.Node) -> torch.dtype | None:
        value = node.meta["val"]
        tensors = value if isinstance(value, tuple | list) else [value]
        return next((t.dtype for t in tensors if isinstance(t, Tensor) and t.dtype not in DTYPES), None)


_FAILED = object()


def _contains_failure(arguments: Any) -> bool:
    if isinstance(arguments, dict):
        arguments = list(arguments.values())
    if isinstance(arguments, tuple | list):
        return any(_contains_failure(a) for a in arguments)
    return arguments is _FAILED


@dataclass(frozen=True)
class Traced:
    """A step as torch traced it; it may be lowered more than once, each time over other refs."""

    graph: fx.GraphModule
    signature: Any
    names: "_Names"
    calls: list[tuple[str, str]]

    def lower(self, builder: Builder, batch: Sequence[Ref], state: Callable[[str], Ref]) -> StepGraph:
        """As `capture`, of what is traced already."""
        inputs = [state(self.names.of(n)) for n in (*self.signature.parameters, *self.signature.buffers)]
        lowering = _Lowering(builder, self.graph, _Origins(self.calls))
        outputs = lowering.run([*inputs, *batch])
        by_name = dict(zip(_output_names(self.graph), outputs, strict=True))
        backward = self.signature.backward_signature
        loss_ref = outputs[
            len(self.signature.buffers_to_mutate)
        ]  # after the mutated buffers; signature.loss_output ignores them
        if not isinstance(loss_ref, Ref) or loss_ref.shape != ():
            raise ConfigurationError(f"expected a loss of rank 0, got {getattr(loss_ref, 'shape', None)}")
        return StepGraph(
            loss=loss_ref,
            gradients={self.names.of(p): by_name[g] for g, p in backward.gradients_to_parameters.items()},
            buffers={self.names.of(b): by_name[o] for o, b in self.signature.buffers_to_mutate.items()},
            constants=lowering.constants,
        )


def trace_step(model: nn.Module, loss: Callable[..., Tensor], example: Sequence[Tensor]) -> Traced:
    """Traces a step, to be lowered. example: tensors of the batch's shapes and dtypes."""
    graph, signature, wrapped = trace(model, loss, example)
    return Traced(graph, signature, _Names(wrapped), _forward_calls(model, loss, example))


def capture(
    builder: Builder, model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Ref], example: Sequence[Tensor],
    state: Callable[[str], Ref],
) -> StepGraph:  # fmt: skip
    """Lowers one step into `builder`.

    batch: refs of the step's batch; of several batches, one after the other, if the step accumulates gradients.
    example: tensors of the same shapes and dtypes as one batch, for tracing. state: the ref of a parameter or buffer by
    name. Raises `ConfigurationError` that lists every operator that cannot be lowered, with its module path.
    """
    traced = trace_step(model, loss, example)
    steps: list[StepGraph] = []

    def current(name: str) -> Ref:
        return steps[-1].buffers[name] if steps and name in steps[-1].buffers else state(name)

    for start in range(0, len(batch), len(example)):
        step = traced.lower(builder, batch[start : start + len(example)], current)
        steps.append(step)  # before the next is lowered, which reads its buffers
    return steps[0] if len(steps) == 1 else _accumulated(builder, steps)


def _accumulated(b: Builder, steps: Sequence[StepGraph]) -> StepGraph:
    """Means of losses and of gradients, added in the order of the batches; the last batch's buffers."""
    b.origin = "accumulation"
    count = b.const(float(len(steps)))
    gradients = {name: b.div(reduce(b.add, [s.gradients[name] for s in steps]), count) for name in steps[0].gradients}
    loss = b.div(reduce(b.add, [s.loss for s in steps]), count)
    return StepGraph(loss=loss, gradients=gradients, buffers=steps[-1].buffers, constants=steps[0].constants)


class _Names:
    """From the wrapper's parameter and buffer names to the model's."""

    def __init__(self, wrapped: _Functional) -> None:
        self._names = {f"unique.{i}": name for i, name in enumerate(wrapped.parameter_names)}
        self._names |= {f"b{i}": name for i, name in enumerate(wrapped.buffer_names)}

    def of(self, name: str) -> str:
        """The model's name."""
        return self._names[name]


def _output_names(graph: fx.GraphModule) -> list[str]:
    output = next(node for node in reversed(graph.graph.nodes) if node.op == "output")
    return ["" if node is None else node.name for node in output.args[0]]
