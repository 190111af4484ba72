"""Constant folding at capture: torch computes once whatever depends on no parameter, buffer, batch or random draw.

The result becomes part of the agreed job: one number that is read everywhere, an `iota`, or data named `constant.N`.
Integers and bools are exact. Floats that went through torch's functions (such as the frequencies of rotary embeddings)
are whatever this machine's torch computed. Nobody computes them again: as with the initial weights, the client's bytes
are what counts.

Constants that cost a program nothing (a full tensor, a range, views of those) are left to their lowering rules.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

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


def _name(node: fx.Node) -> str:
    """The operator's name, such as `full` for `aten.full.default`; empty for anything but an ATen call."""
    return node.target._schema.name.partition("::")[2] if isinstance(node.target, OpOverload) else ""


def is_filled(func: Any) -> bool:
    """Whether an operator fills a new tensor, and so reads only the shapes of its operands."""
    name = func._schema.name.partition("::")[2] if isinstance(func, OpOverload) else ""
    return name in _FILLED or name in _FULL


def _is_fill(node: fx.Node) -> bool:
    return is_filled(node.target)


@dataclass(frozen=True, slots=True)
class Constant:
    """A folded tensor without its repetitions: `base` is expanded to `shape` along dims of size 1."""

    base: Tensor
    shape: tuple[int, ...]


class Folded:
    """The constants of a graph that other nodes read, by node."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self._module, nodes = graph, graph.graph.nodes
        self._known: dict[fx.Node, Any] = {}
        self._constant, self._free = set[fx.Node](), set[fx.Node]()
        for node in filter(self._is_constant, nodes):
            self._constant.add(node)
            is_view = _name(node) in _VIEWS and self._free.issuperset(node.all_input_nodes)
            if is_view or _is_fill(node) or _name(node) == "arange":
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
            if _is_fill(node) and (_name(node) in _FILLED or not isinstance(node.args[-1], fx.Node)):
                return True
        elif node.op != "call_function" or node.target is not operator.getitem:
            return False
        return self._constant.issuperset(node.all_input_nodes)

    def _value(self, node: fx.Node) -> Any:
        """The value that torch computes for a node. Iterative over the inputs, which precede the node in the graph."""
        waiting = [node]
        while waiting:
            last = waiting[-1]
            # What fills a tensor reads no elements of its inputs.
            missing = [] if _is_fill(last) else [source for source in last.all_input_nodes if source not in self._known]
            waiting += missing
            if not missing and waiting.pop() not in self._known:
                self._known[last] = self._run(last)
        return self._known[node]

    def _run(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return getattr(self._module, str(node.target)).detach()
        if _is_fill(node):
            value: Any = _FILLED[_name(node)] if _name(node) in _FILLED else node.args[-1]
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
    return Constant(torch.empty(base.shape, dtype=base.dtype).copy_(base), tuple(tensor.shape))
