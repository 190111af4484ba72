"""Capture: a task's training step, forward and backward, as one flat graph of ATen calls, lowered to instructions.

The only module that touches torch's tracing internals. Tested with torch 2.13.0; the program it makes no longer depends on torch's version.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._decomp import core_aten_decompositions
from torch._functorch.aot_autograd import aot_export_module
from torch._ops import OpOverload
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from engine.builder import Builder, Ref
from engine.lowering import DTYPES, RULES, Context
from protocol.errors import ConfigurationError

TESTED_TORCH = ("2.13.0",)
"""torch versions whose tracing this module is tested on."""

_OURS = ("embedding_dense_backward",)
"""Operators that have a better rule here than torch's decomposition."""


@dataclass
class StepGraph:
    """Refs of one traced step: loss, gradient by parameter, new value by mutated buffer, constants as data."""

    loss: Ref
    gradients: dict[str, Ref]
    buffers: dict[str, Ref]
    constants: dict[str, Tensor] = field(default_factory=dict)


class _Functional(nn.Module):
    """The loss as a function of unique parameters, so that tied weights have one gradient."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self._hidden = (model, loss)  # in a tuple: must not be registered as a submodule
        self.parameter_names = [name for name, _ in model.named_parameters()]
        self.buffer_names = [name for name, _ in model.named_buffers()]
        self.unique = nn.ParameterList([p for _, p in model.named_parameters()])
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


@contextmanager
def _module_paths(model: nn.Module) -> Iterator[None]:
    """While tracing, node.meta tells which submodule a node comes from (by forward hooks)."""
    stack: list[str] = []
    handles = []

    def enter(path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            stack.append(path)
            _annotate(stack)

        return hook

    def leave(*_: Any) -> None:
        stack.pop()
        _annotate(stack)

    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enter(path)))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        with fx.traceback.preserve_node_meta():
            yield
    finally:
        for handle in handles:
            handle.remove()
        fx.traceback.current_meta.pop("custom", None)


def _annotate(stack: Sequence[str]) -> None:
    fx.traceback.current_meta["custom"] = {"module": stack[-1] if stack else ""}


def _origin(node: fx.Node) -> str:
    custom = node.meta.get("custom") or {}
    path = custom.get("module", "")
    return f"{path}:{node.name}" if path else node.name


def trace(
    model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor]
) -> tuple[fx.GraphModule, Any, _Functional]:
    """The joint forward and backward graph of `loss(model, *batch)` and its signature."""
    wrapped = _Functional(model, loss)
    table = {
        op: rule
        for op, rule in core_aten_decompositions().items()
        if not (isinstance(op, OpOverload) and op._schema.name.removeprefix("aten::") in _OURS)
    }
    with sdpa_kernel(SDPBackend.MATH), _module_paths(model):
        graph, signature = aot_export_module(
            wrapped, tuple(batch), trace_joint=True, output_loss_index=0, decompositions=table
        )
    return graph, signature, wrapped


class _Lowering:
    """Walks the traced graph once, node by node; what cannot be lowered is collected and reported together."""

    def __init__(self, builder: Builder, graph: fx.GraphModule) -> None:
        self.builder = builder
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
        if not node.users:
            return
        name = str(node.target).removeprefix("aten.")
        where = _origin(node)
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


def capture(
    builder: Builder, model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Ref], example: Sequence[Tensor],
    state: Callable[[str], Ref],
) -> StepGraph:  # fmt: skip
    """Lowers one step into `builder`.

    batch: refs of the step's batch. example: tensors of the same shapes and dtypes, for tracing. state: the ref of a
    parameter or buffer by name. Raises `ConfigurationError` that lists every operator that cannot be lowered, with its module path.
    """
    graph, signature, wrapped = trace(model, loss, example)
    names = _Names(wrapped)
    inputs = [state(names.of(n)) for n in (*signature.parameters, *signature.buffers)]
    lowering = _Lowering(builder, graph)
    outputs = lowering.run([*inputs, *batch])
    by_name = dict(zip(_output_names(graph), outputs, strict=True))
    backward = signature.backward_signature
    loss_ref = outputs[
        len(signature.buffers_to_mutate)
    ]  # after the mutated buffers; signature.loss_output ignores them
    if not isinstance(loss_ref, Ref) or loss_ref.shape != ():
        raise ConfigurationError(f"expected a loss of rank 0, got {getattr(loss_ref, 'shape', None)}")
    return StepGraph(
        loss=loss_ref,
        gradients={names.of(p): by_name[g] for g, p in backward.gradients_to_parameters.items()},
        buffers={names.of(b): by_name[o] for o, b in signature.buffers_to_mutate.items()},
        constants=lowering.constants,
    )


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
