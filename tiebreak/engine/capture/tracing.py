"""Traces a training step, forward and backward, as one flat graph of ATen calls, with the module of each call.

Apart from `tiebreak.engine.capture.undecomposed` and `hollow`, this is the only module that touches torch's tracing
internals. It is tested with torch 2.13 and 2.14; the program made from the graph no longer depends on torch's version.

The graph is traced on fake tensors, so nothing is computed and no parameter is copied. Meanwhile torch reports the same
as inside `torch.export` (`torch.compiler.is_compiling()` and `is_exporting()` are true), which makes libraries take
paths that do not depend on data. If such a path fails because the library left out an argument there, the path for
eager PyTorch is traced instead. If a step needs a number, it is traced again with counters that stay tensors, and then
with answers from plain PyTorch, provided that they reach nothing but reports.
"""

import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from itertools import zip_longest
from typing import Any, Final

import torch
import torch.fx.traceback
from torch import Tensor, fx, nn
from torch._guards import TracingContext, tracing
from torch._library.simple_registry import singleton
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from tiebreak.engine.capture import four_bit, reports, substitutes
from tiebreak.engine.capture.draws import Draws, is_draw
from tiebreak.engine.capture.reports import Answers
from tiebreak.engine.capture.step_run import LossModule, as_written, exchanged
from tiebreak.engine.capture.undecomposed import decompositions, kept_whole
from tiebreak.engine.capture.user_code import described, is_users, operator_hint, refusal, user_line
from tiebreak.protocol.errors import ConfigurationError

TESTED_TORCH: Final = ("2.13", "2.14")
"""The minor versions of torch that this module's tracing is tested on."""
_VERSION: Final = Tensor._version
_SCALER: Final = torch.amp.grad_scaler.__file__
_MAKE: Final[Any] = torch.autocast.__init__
_ENTER: Final[Any] = torch.autocast.__enter__


def _write_data(parameter: Tensor, value: Tensor) -> None:
    """Does what `p.data = value` does for a frozen parameter; the rehearsal lets no other pass."""
    with torch.no_grad():
        parameter.copy_(value)


_OWN: Final[dict[Any, Any]] = {
    vars(torch._C.TensorBase)["data"].__set__: _write_data,
    torch.nn.functional.batch_norm: substitutes.batch_norm,
    torch.nn.functional.ctc_loss: substitutes.ctc_loss,
    torch.nn.functional.gaussian_nll_loss: substitutes.gaussian_nll_loss,
}
"""Functions of torch that are traced as compositions of ours."""
_PATH: Final = "module"
_LINE: Final = "line"
"""The keys of a node's annotations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedGraph:
    """A graph of ATen calls, with the place in the user's code of each."""

    module: fx.GraphModule
    repeated: dict[fx.Node, fx.Node] = field(default_factory=dict)
    """The first draw of the same numbers, by each draw that repeats it."""

    def origin(self, node: fx.Node) -> str:
        """`module.path:node (file.py:12)`: the module and the user's line that make the node, or its forward."""
        noted = node.meta.get("custom", {})
        named = f"{noted[_PATH]}:{node.name}" if noted.get(_PATH) else node.name
        return f"{named} ({noted[_LINE]})" if noted.get(_LINE) else named

    def place(self, node: fx.Node) -> str:
        """`module.path: file.py:12`, the module and the user's line that make the node or its forward."""
        noted = node.meta.get("custom", {})
        return ": ".join(filter(None, (noted.get(_PATH), noted.get(_LINE)))) or node.name


@dataclass(frozen=True, slots=True, kw_only=True)
class JointGraph(TracedGraph):
    """The graph of a step. Its inputs are the parameters, then the buffers, then the batch.

    Each tuple names nodes of the graph, or holds None where there is none. `parameters` and `buffers` are the model's
    names in the order of the inputs; `gradients` belong to the parameters, in the same order.
    """

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    loss: fx.Node
    gradients: tuple[fx.Node | None, ...]
    values: tuple[str, ...]
    """The parameters whose values are inputs of their own, between buffers and batch."""
    mutated: dict[str, fx.Node]
    """The new value of each mutated buffer or parameter."""


class _Step(LossModule):
    """Turns the assignment of a buffer (`self.c = ...`) into a write in place, which the trace shows as new state.

    assigned: the buffers that this is expected of. The model gets copies of these, so that what its backward reads of
    them is not overwritten.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor], assigned: Collection[str]) -> None:
        super().__init__(model, loss)
        self._expected = assigned

    def forward(self, *batch: Tensor) -> Tensor:
        given = dict(self.model.named_buffers(remove_duplicate=False))
        for name in self._expected:
            owner, _, own = name.rpartition(".")
            self.model.get_submodule(owner)._buffers[own] = given[name].clone()
        loss = _checked(super().forward(*batch), learns=any(p.requires_grad for p in self.model.parameters()))
        now = dict(self.model.named_buffers(remove_duplicate=False))
        for name, tensor in given.items():
            if now[name] is not tensor:
                _written(name, tensor, now[name].detach())
        return loss


def _written(name: str, buffer: Tensor, value: Tensor) -> None:
    if (buffer.shape, buffer.dtype) != (value.shape, value.dtype):
        raise ConfigurationError(
            f"expected buffer {name} to stay {buffer.dtype} of shape {tuple(buffer.shape)}, got "
            f"{value.dtype} of shape {tuple(value.shape)} assigned to it; register it with the shape that it keeps"
        )
    with torch.no_grad():
        buffer.copy_(value)


class _Lines(TorchFunctionMode):
    """Notes the user's line of each call of torch, and refuses what only eager PyTorch knows.

    counters: leaves a tensor of one integer as it is where `item()` asks for the number. answers: to what else the
    step asks.
    """

    def __init__(self, *, counters: bool, answers: Answers | None, weights: substitutes.FollowedWeights) -> None:
        super().__init__()
        self._counters, self._answers, self._weights = counters, answers, weights
        self._packed = substitutes.PackedSequences()
        self._asked = ""
        """The user's line that first read the values of a tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        line = user_line(sys._getframe(1))
        torch.fx.traceback.current_meta["custom"] = _noted() | {_LINE: line}
        deed = ""
        if any(isinstance(value, torch.Generator) for value in (*args, *(kwargs or {}).values())):
            deed = "draws from a generator of its own (`generator=`); leave it out, so that the job's seed counts"
        if getattr(func, "__self__", None) is _VERSION and is_users(sys._getframe(1).f_code.co_filename):
            deed = "asks how often a tensor was written to (`_version`), which grows from step to step; leave that out"
        if sys._getframe(1).f_code.co_filename == _SCALER:
            deed = (
                "scales the loss for small numbers of narrow dtypes (GradScaler), which FP32 does not need, and steps "
                "that it would skip no program can; leave it out"
            )
        is_packed = self._packed.concern(func, args)
        if is_packed and not deed:
            deed = self._packed.deed(func, args, sys._getframe(1).f_code.co_filename)
        if self._counters and substitutes.needs_number(func, args):
            deed = "needs the number of a counter, which a tensor cannot stand for"
        if deed:
            raise _refused(f"{described(_noted().get(_PATH), line)} it {deed}")
        is_branch = sys._getframe(1).f_code.co_name == "__bool__"  # which asks again, for ever, if it gets a tensor
        if func is Tensor.item and self._counters and substitutes.is_counter(args[0]) and not is_branch:
            return args[0].reshape(()).to(torch.int64, copy=True)
        if is_packed:
            return self._packed.call(func, args, kwargs or {})
        return self._answered(*self._weights.call(func, args, kwargs or {}), line)

    def _answered(self, func: Any, args: Any, kwargs: Any, line: str) -> Any:
        """Calls a function of torch. If it reads values, the result is that of a run in plain PyTorch, or an error."""
        try:
            return _OWN.get(func, func)(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            answer = None if self._answers is None else self._answers.of(func, args)
            if answer is None:
                error.add_note(substitutes.question(func, args, sys._getframe(2).f_code.co_name))
                self._asked = self._asked or described(_noted().get(_PATH), line)
                raise
            return answer

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        super().__exit__(kind, value, traceback)  # type: ignore[no-untyped-call]
        if self._asked and kind is None:
            raise _refused(
                f"{self._asked} it needs the values of tensors, and catches the error that a trace raises there, so it "
                "would always take that way; leave out the `try`"
            )


def _refused(deed: str) -> ConfigurationError:
    """The refusal of a step. deed: the place in the user's code, in words, and what it does there."""
    return ConfigurationError(f"the model cannot be captured: at {deed}")


def _noted() -> dict[str, str]:
    found: dict[str, str] = torch.fx.traceback.current_meta.get("custom", {})
    return found


def _make_autocast(context: Any, *args: Any, **kwargs: Any) -> None:
    _MAKE(context, *args, **kwargs)
    context.is_meant_off = not signature(_MAKE).bind(context, *args, **kwargs).arguments.get("enabled", True)


def _enter_autocast(context: Any) -> Any:
    """Refuses that of another device, which does nothing here, unless it is to do nothing."""
    idle = getattr(context, "is_meant_off", False) and not torch.is_autocast_enabled("cpu")
    if context.device != "cpu" and not idle:
        raise _refused(
            f"{described(_noted().get(_PATH), user_line(sys._getframe(1)))} it enters torch.autocast"
            f'("{context.device}"); a step is captured on the CPU, so give it the type of the device of its tensors '
            "(`x.device.type`)"
        )
    return _ENTER(context)


@contextmanager
def _reporting(export: bool) -> Iterator[None]:
    """Makes torch report whether it is compiling and exporting, and skips what libraries assert about values.

    Skipped are `torch._check_tensor_all` and the checks that torch's distributions make by default. The rehearsal and
    the check against eager PyTorch do not skip them.
    """
    wanted = {
        (torch.compiler, "_is_compiling_flag"): export,
        (torch.compiler, "_is_exporting_flag"): export,
        (torch, "_check_tensor_all_with"): lambda *_: None,
        (torch.distributions.Distribution, "_validate_args"): False,
        (singleton.find("aten::_linalg_check_errors").effect, "_effect"): None,  # dropped, so constants are folded
        (torch.autocast, "__init__"): _make_autocast,
        (torch.autocast, "__enter__"): _enter_autocast,
    }
    before = {place: getattr(*place) for place in wanted}
    try:
        for place, value in wanted.items():
            setattr(*place, value)
        yield
    finally:
        for place, value in before.items():
            setattr(*place, value)


@contextmanager
def _paths(model: nn.Module) -> Iterator[None]:
    """Annotates nodes with the path of the innermost submodule whose forward makes them.

    A node of the backward pass gets the annotation of the forward node whose gradient it computes.
    """
    entered = list[str]()

    def mark() -> None:
        torch.fx.traceback.current_meta["custom"] = _noted() | {_PATH: entered[-1] if entered else ""}

    def enter(path: str) -> None:
        entered.append(path)
        mark()

    def leave() -> None:
        entered.pop()
        mark()

    with ExitStack() as stack, torch.fx.traceback.preserve_node_meta():
        for path, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                raise ConfigurationError(
                    f"{described(path, '')} is scripted; give it as it was before torch.jit.script or torch.jit.trace"
                )
            stack.enter_context(module.register_forward_pre_hook(lambda *_, path=path: enter(path)))
            stack.enter_context(module.register_forward_hook(lambda *_: leave(), always_call=True))
        yield


def trace(
    model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor], assigned: Collection[str] = ()
) -> JointGraph:
    """Traces `loss(model, *batch)` and its gradients. Raises `ConfigurationError` for a step that is not one graph.

    assigned: the names of the buffers that the step assigns, as `rehearsal.rehearse` finds them.
    """
    _check_version(TESTED_TORCH)
    try:
        return _traced(model, loss, batch, assigned, export=True)
    except ConfigurationError as error:
        first, cause = error, error.__cause__
    if isinstance(cause, (AttributeError, TypeError)):
        return _traced(model, loss, batch, assigned, export=False)
    if "requires_grad flags" in str(cause):  # the step sets those of parameters
        return _traced(model, loss, batch, {*assigned, *dict(model.named_parameters())}, export=True)
    if not isinstance(cause, (DataDependentOutputException, DynamicOutputShapeException)):
        raise first
    try:
        return _traced(model, loss, batch, assigned, export=True, counters=True)
    except ConfigurationError:
        answers = reports.asked(model, loss, batch)
    try:
        found = _traced(model, loss, batch, assigned, export=True, answers=answers)
    except ConfigurationError:
        raise first from cause
    if not reports.are_reports(model, loss, batch, answers.used):
        raise first from cause
    return found


def _traced(
    model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Tensor], assigned: Collection[str], *,
    export: bool, counters: bool = False, answers: Answers | None = None,
) -> JointGraph:  # fmt: skip
    parameters = dict(model.named_parameters())  # tied parameters appear once: they have one gradient
    buffers, written = dict(model.named_buffers()), not parameters.keys().isdisjoint(assigned)
    values = {n: torch.empty_like(p, requires_grad=False) for n, p in parameters.items() if written and p.requires_grad}
    # Imported here because it loads torch._dynamo, which takes seconds that training and auditing need not spend.
    from torch._functorch.aot_autograd import _aot_export_function  # noqa: PLC0415

    names, learns = [*parameters, *buffers], any(p.requires_grad for p in parameters.values())
    wrapped, draws = _Step(model, loss, buffers.keys() & assigned), Draws()
    held, weights = (*parameters.values(), *buffers.values(), *values.values()), substitutes.FollowedWeights({}, {})

    def step(*flat: Tensor) -> tuple[Tensor]:
        nonlocal weights
        inputs.close()  # torch calls this more than once
        draws.restart()
        if answers is not None:
            answers.restart()
        given = dict(zip((*parameters, *buffers), flat, strict=False))
        own = dict(zip(values, flat[len(names) :], strict=False))
        weights = substitutes.FollowedWeights(own, given)
        inputs.enter_context(exchanged(wrapped, {f"model.{name}": t for name, t in {**given, **own}.items()}))
        with _Lines(counters=counters, answers=answers, weights=weights):
            return (wrapped(*flat[len(held) :]),)

    # Tensors that the model or the loss closes over (masks, class weights) are constants; they need this mode.
    context = TracingContext(FakeTensorMode(allow_non_fake_inputs=True))
    with (
        sdpa_kernel(SDPBackend.MATH),
        kept_whole(),
        _reporting(export),
        as_written(model),
        four_bit.decoded(model),
        _refusals(model),
        _paths(model),
        substitutes.counters_as_tensors(model, loss) if counters else nullcontext(),
        tracing(context),
        torch.compiler.set_stance("force_eager"),
        ExitStack() as inputs,  # until the backward pass is traced, too
        draws,
        torch._inductor.config.patch(fallback_random=True),  # else the trace loses draws that nothing reads
    ):
        graph, metadata, _, _ = _aot_export_function(
            step, (*held, *batch), decompositions=decompositions(), num_params_buffers=len(held), trace_joint=learns,
            no_tangents=learns,  # the only output is the loss, whose gradient is 1
        )  # fmt: skip
    assert isinstance(graph, fx.GraphModule)  # the joint trace makes a GraphModule
    repeated = _repeated(graph.graph, draws.earlier)
    _only_inputs(graph.graph, len(held) + len(batch))
    mutated = [([*names, *values][place]) for place in metadata.mutated_inp_runtime_indices]
    return _joint(graph, mutated, parameters, buffers, values, weights.off, repeated)


def _repeated(graph: fx.Graph, earlier: Sequence[int | None]) -> dict[fx.Node, fx.Node]:
    """The first draw of each draw that repeats one. earlier: their numbers, in the order of the draws."""
    if not any(first is not None for first in earlier):
        return {}
    drawing = [node for node in graph.nodes if is_draw(node.target)]
    if len(drawing) != len(earlier):
        raise ConfigurationError(
            f"the model cannot be captured: it sets a state of torch's random numbers again, and of its {len(earlier)} "
            f"draws {len(drawing)} are in the trace; draw once, and use what is drawn twice"
        )
    return {node: drawing[first] for node, first in zip(drawing, earlier, strict=True) if first is not None}


def trace_function(function: Callable[..., list[Tensor]], example: Sequence[Tensor]) -> TracedGraph:
    """Traces a function of tensors that writes to none of them, without gradients."""
    with kept_whole(), torch.fx.traceback.preserve_node_meta(), torch.no_grad():
        made = make_fx(
            torch.func.functionalize(function), decompositions(), "fake", _allow_non_fake_inputs=True
        )(*example)  # fmt: skip
    made.graph.eliminate_dead_code()
    return TracedGraph(module=made)


def annotate(path: str, line: str) -> None:
    """Gives a place to the nodes that are traced next."""
    torch.fx.traceback.current_meta["custom"] = {_PATH: path, _LINE: line}


def _only_inputs(graph: fx.Graph, count: int) -> None:
    """Removes the tangents, which the gradient of one loss does not need, and all inputs that nothing reads."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects):
        noted, operator = node.meta.get("custom", {}), str(node.args[1]).removeprefix("aten.")
        place = described(noted.get(_PATH), noted.get(_LINE))
        raise _refused(f"{place} {operator} would act on values while the step runs; {operator_hint(operator)}")
    for tangent in graph.find_nodes(op="placeholder")[count:]:
        graph.erase_node(tangent)  # raises if anything reads it
    graph.eliminate_dead_code()
    for node in graph.nodes:
        if not node.users and is_draw(node.target):
            node.args = ()  # eager PyTorch makes this draw, which nothing reads; what it is made from can go
    graph.eliminate_dead_code()


def _joint(
    graph: fx.GraphModule, mutated: Sequence[str], parameters: Iterable[str], buffers: Iterable[str],
    values: Iterable[str], off: Collection[str], repeated: dict[fx.Node, fx.Node],
) -> JointGraph:  # fmt: skip
    """Names the outputs: the new values of mutated inputs, the loss, and a gradient (or None) for each input.

    off: the parameters that have none.
    """
    (outputs,) = next(node for node in reversed(graph.graph.nodes) if node.op == "output").args
    flat: list[Any] = list(fx.node.map_arg(outputs, lambda node: node))
    gradients = zip_longest(parameters, flat[len(mutated) + 1 :][: len([*parameters])])
    return JointGraph(
        module=graph, parameters=tuple(parameters), buffers=tuple(buffers), values=tuple(values),
        loss=flat[len(mutated)], gradients=tuple(None if name in off else gradient for name, gradient in gradients),
        mutated=dict(zip(mutated, flat, strict=False)), repeated=repeated,
    )  # fmt: skip


def _checked(loss: Any, *, learns: bool) -> Tensor:
    if not isinstance(loss, Tensor) or loss.shape != ():
        raise ConfigurationError(
            f"expected a loss of rank 0, got {getattr(loss, 'shape', type(loss).__name__)}; return its `.mean()`"
        )
    if loss.is_complex():
        raise ConfigurationError(f"expected a real loss, got {loss.dtype}; return its `.real` or `.abs()`")
    if learns and not loss.requires_grad:
        raise ConfigurationError(
            "expected a loss that depends on a trainable parameter, got one that does not; leave out `.detach()`"
        )
    return loss


@contextmanager
def _refusals(model: nn.Module) -> Iterator[None]:
    """Turns whatever torch or the user's code raises during the trace into one error with its place."""
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:
        raise refusal(error, model, "the model cannot be captured") from error


@cache
def _check_version(tested: tuple[str, ...]) -> None:
    """Warns of another version than those tested, once in a process, in one line: no line of code follows it."""
    if ".".join(torch.__version__.split(".")[:2]) not in tested:
        text = f"capture is tested with torch {' and '.join(tested)}, this is {torch.__version__}; check the program"
        warnings.warn_explicit(text, UserWarning, "tiebreak", 1)
