"""Keeps torch from taking operators apart that have a better rule of their own (`lowering.registry.WHOLE`).

torch takes an operator apart in two places: through the table of decompositions given to the tracer, and, for some,
through a Python kernel that runs before autograd does. Internals of torch, like those of `tiebreak.engine.capture`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey
from torch._decomp import core_aten_decompositions
from torch._ops import OpOverload

from tiebreak.engine.lowering import WHOLE

_EARLY = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
"""Kernels under these keys take an operator apart before its backward is chosen."""
_COMPILED = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Operators that torch must take apart by its compiled code: the Python form leaves out the dropout between layers."""


def _packet(operator: str) -> str:
    return operator.partition(".")[0]


def _names() -> list[str]:
    """Operators, without their overloads, that keep away from torch's Python decompositions."""
    return sorted({_packet(name) for name in WHOLE} | set(_COMPILED))


def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """torch's core decompositions, without those of operators that stay whole."""
    kept = {f"aten::{name}" for name in _names()}
    return {
        operator: rule
        for operator, rule in dict(core_aten_decompositions()).items()
        if isinstance(operator, OpOverload) and operator._schema.name not in kept
    }


@contextmanager
def kept_whole() -> Iterator[None]:
    """While this runs, operators of `WHOLE` reach the tracer as they are, in every overload.

    oneDNN is off: its recurrent layers could not be taken apart.
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
        torch._C._set_mkldnn_enabled(False)
        yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        for operator, kernels in saved.items():
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()
