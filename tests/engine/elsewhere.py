"""A device that is not the CPU, on a machine that has only a CPU: `privateuseone`, computed by torch on the CPU.

Tensors there are wrappers: they say that they are on that device, and nobody gets at their memory, as on a GPU.
`numpy()`, `data_ptr()` for a kernel and mixing with CPU tensors of more than one element are errors, and so is dividing
by a number or a CPU scalar, which CUDA does by the reciprocal. With `worse`, FP64 results are those of another device:
products of matrices and sums take their terms backwards, and transcendentals are a few ulp off.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = torch.device("privateuseone", 0)
aten = torch.ops.aten
_DIVISIONS = ("aten::div", "aten::div_")
_BACKWARDS = {aten.mm.default: (1, 0), aten.bmm.default: (2, 1)}
"""The summed dims of both operands."""
_INEXACT = {aten.exp.default, aten.log.default, aten.tanh.default, aten.erf.default, aten.sin.default, aten.cos.default}


class Elsewhere(Tensor):
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Elsewhere":
        made = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=DEVICE,
        )  # fmt: skip
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {}, worse=False)

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {DEVICE.type} device type tensor to numpy")

    def tolist(self) -> Any:
        return self.inner.tolist()

    def data_ptr(self) -> int:
        raise RuntimeError("no address of memory that is elsewhere")


class Mode(TorchDispatchMode):
    """Makes tensors on that device, and counts the operations there by name."""

    def __init__(self, worse: bool) -> None:
        super().__init__()
        self._worse = worse
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func._schema.name] += any(isinstance(x, Elsewhere) for x in tree_leaves(args))
        return _dispatch(func, args, kwargs or {}, worse=self._worse)


class _Literals(TorchFunctionMode):
    """`torch.tensor` makes its tensor without asking any mode."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and (device := kwargs.pop("device", None)) is not None:
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


@contextmanager
def elsewhere(*, worse: bool = False) -> Iterator[Mode]:
    """While this is open, `privateuseone` is a device."""
    _setup_privateuseone_for_python_backend()
    with torch.inference_mode(), _Literals(), Mode(worse) as mode:
        yield mode


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any], *, worse: bool) -> Any:
    target = kwargs.get("device")
    there = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Elsewhere)]
    if target is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    on_device = torch.device(target).type == DEVICE.type if target is not None else bool(there)
    if there and func is not aten._to_copy.default and func is not aten.copy_.default:
        _check_same_device(func, args, kwargs)
    name = func._schema.name
    if name in _DIVISIONS and there and args[0].is_floating_point() and not isinstance(args[1], Elsewhere):
        raise AssertionError("a division by a number: CUDA multiplies by the reciprocal")
    plain_args, plain_kwargs = tree_map(_inner, args), tree_map(_inner, kwargs)
    run = _worse(func) if worse and there else func
    result = run(*plain_args, **plain_kwargs)
    known = {id(x.inner): x for x in there}
    return tree_map(lambda x: _outer(x, known) if on_device else x, result)


def _check_same_device(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    for x in tree_leaves((args, kwargs)):
        if isinstance(x, Tensor) and not isinstance(x, Elsewhere) and x.dim() > 0:
            raise RuntimeError(
                f"{func}: expected all tensors on {DEVICE}, got one of shape {tuple(x.shape)} on the cpu"
            )


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, Elsewhere) else x


def _outer(x: Any, known: dict[int, Elsewhere]) -> Any:
    if not isinstance(x, Tensor):
        return x
    return known[id(x)] if id(x) in known else Elsewhere(x)


def _worse(func: Any) -> Callable[..., Any]:
    """The operation as another device's library might do it, within the bounds that every one keeps."""

    def run(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        if not isinstance(first, Tensor) or first.dtype != torch.float64:
            return func(*args, **kwargs)
        if func in _BACKWARDS:
            along_a, along_b = _BACKWARDS[func]
            return func(first.flip(along_a), args[1].flip(along_b), **kwargs)
        if func is aten.sum.dim_IntList:
            dims = args[1] or list(range(first.dim()))
            return func(first.flip(dims), *args[1:], **kwargs)
        result = func(*args, **kwargs)
        if func in _INEXACT:
            sign = torch.where(result.view(torch.int64) & 4 == 0, 1.0, -1.0)
            result = result * (1.0 + sign * 5 * 2.0**-53)
        return result

    return run
