"""Keeps torch from decomposing operators that have a better rule of their own (`lowering.registry.WHOLE`).

torch decomposes an operator in two places: through the table of decompositions given to the tracer and, for some
operators, through a Python kernel that runs before autograd. Like `tiebreak.engine.capture.tracing`, this uses
internals of torch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import core_aten_decompositions
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from tiebreak.engine.lowering import WHOLE

_EARLY = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
"""Kernels under these keys decompose an operator before its backward is chosen."""
_COMPILED = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Operators that torch must decompose with compiled code, because the Python form omits the dropout between layers."""

_EARLIEST = ("silu_backward", "mish_backward")
"""Operators that torch decomposes, with compiled code, before it asks the table of decompositions."""


def _names() -> list[str]:
    """The operators, without overloads, that bypass torch's Python decompositions."""
    return sorted({name.partition(".")[0] for name in WHOLE} | set(_COMPILED))


@cache  # torch collects its table anew, which takes longer than tracing a small model
def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """torch's core decompositions, without those of operators that stay whole."""
    kept, whole = {f"aten::{name}" for name in _names()}, torch.ops.aten.gelu_backward.default
    table = {o: r for o, r in dict(core_aten_decompositions()).items() if isinstance(o, OpOverload)}
    gelu = table[whole]

    def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Any:
        """The decomposition of torch; from 16 on, where the slope is 1 or 0, x^2 must not overflow to 0 * infinity."""
        return gelu(grad, x.clamp(-16, 16) if approximate == "tanh" else x, approximate=approximate)

    table |= {whole: gelu_backward}
    return {o: _rounded_once(r) for o, r in table.items() if o._schema.name not in kept}


def _rounded_once(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition as PyTorch's kernels compute it of bfloat16: in float32, with only the results rounded."""

    @wraps(decomposition)
    def of_floats(*args: Any, **kwargs: Any) -> Any:
        if not any(_is_bf16(value) for value in tree_leaves((args, kwargs))):
            return decomposition(*args, **kwargs)
        with _disable_current_modes():
            shapes, options = tree_map_only(Tensor, _shape_of, (args, kwargs))
            like = decomposition(*shapes, **options)
        args, kwargs = tree_map(lambda value: value.float() if _is_bf16(value) else value, (args, kwargs))
        found = decomposition(*args, **kwargs)
        return tree_map(lambda value, held: value.bfloat16() if _is_bf16(held) else value, found, like)

    return of_floats


def _is_bf16(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bfloat16


def _shape_of(tensor: Tensor) -> Tensor:
    """A tensor of the same shape, strides and dtype that holds nothing."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


@contextmanager
def kept_whole() -> Iterator[None]:
    """Keeps the operators of `WHOLE` undecomposed inside the block, in every overload.

    oneDNN is switched off, because its recurrent layers could not be decomposed.
    """
    saved: dict[OpOverload, dict[Any, Any]] = {}
    onednn = torch._C._get_mkldnn_enabled()  # by these two: `torch.backends.mkldnn.flags` sets TF32 too, with a warning
    try:
        for name in _names():
            packet = getattr(torch.ops.aten, name)
            for overload in packet.overloads():
                operator = getattr(packet, overload)
                saved[operator] = operator.py_kernels.copy()
                for key in _EARLY:
                    operator.py_kernels.pop(key, None)
                operator._dispatch_cache.clear()
        for name in _EARLIEST:
            operator = getattr(torch.ops.aten, name).default
            saved[operator] = operator.py_kernels.copy()
            key = DispatchKey.CompositeImplicitAutograd
            operator.py_kernels[key] = _rounded_once(partial(operator._op_dk, key))
            operator._dispatch_cache.clear()
        torch._C._set_mkldnn_enabled(False)
        yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        for operator, kernels in saved.items():
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()
