"""Frozen weights for eager PyTorch that stay in the dtype that the model holds them in, in the model's own memory.

A `HeldWeight` says that it is of another dtype, and is converted where an operator reads it: by rows in embeddings, by
panels in products, so that no copy of an embedding or a head as large as a vocabulary is made. What is saved for the
backward pass is the weight itself, and only views of it that are such tensors, too, share its memory: a step that
writes to one fails.
"""

import weakref
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

from tiebreak.engine.native import release

LARGE: Final = 1 << 20
"""The fewest elements of a weight that is held so."""
PANEL: Final = 1 << 24
"""The number of elements that a product converts at a time."""
_ATEN: Final = torch.ops.aten
_OF_LOGARITHMS: Final = (_ATEN.nll_loss_backward.default, _ATEN.nll_loss2d_backward.default)
_VIEWS: Final = frozenset({
    _ATEN.alias.default, _ATEN.detach.default, _ATEN.expand.default, _ATEN.permute.default, _ATEN.select.int,
    _ATEN.slice.Tensor, _ATEN.t.default, _ATEN.transpose.int, _ATEN.unsqueeze.default, _ATEN.view.default,
})  # fmt: skip


def is_held(tensor: Tensor) -> bool:
    """Whether a tensor of a model is a large frozen weight."""
    is_frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad
    return is_frozen and tensor.numel() >= LARGE and tensor.is_floating_point()


class HeldWeight(Tensor):
    """A tensor with the numbers of another one, in a dtype that holds all of them."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor, dtype: torch.dtype) -> "HeldWeight":
        found: HeldWeight = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=dtype,
            device=held.device,
        )  # fmt: skip
        found.held = held.detach()
        return found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        first: Any = args[0] if args else None
        if func in _VIEWS:
            viewed = cls(func(first.held, *args[1:], **kwargs), first.dtype)
            return return_and_correct_aliasing(func, args, kwargs, viewed)  # type: ignore[no-untyped-call]
        if func is _ATEN.embedding.default and isinstance(first, cls):
            return func(first.held, *tree_map_only(cls, _wide, args[1:]), **kwargs).to(first.dtype)
        if func in (_ATEN.mm.default, _ATEN.addmm.default) and isinstance(args[-1], cls):
            *bias, left = tree_map_only(cls, _wide, args[:-1])
            if left.dtype == args[-1].dtype != args[-1].held.dtype and not kwargs:
                product = _product(left, args[-1])
                return product.add_(bias[0]) if bias else product
        writes = func._schema.is_mutable and (isinstance(first, cls) or cls in map(type, kwargs.values()))
        if writes or (not func._schema.is_mutable and any(found.alias_info for found in func._schema.returns)):
            raise RuntimeError(f"expected reads of a frozen weight, got {func}, which writes to it or gives its memory")
        return func(*tree_map_only(cls, _wide, args), **tree_map_only(cls, _wide, kwargs))


class InPlace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets the gradient of many logits take the memory of that of their logarithms, which a cross entropy has made.

    Unless that gradient is to be differentiated, too, which reads it once more.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: weakref.ref[Tensor] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ATEN._log_softmax_backward_data.default and self._made and args[0] is self._made():
            return _ATEN._log_softmax_backward_data.out(*args, **(kwargs or {}), out=args[0])
        found = func(*args, **(kwargs or {}))
        if func in _OF_LOGARITHMS and found.numel() >= LARGE and not torch.is_grad_enabled():
            self._made = weakref.ref(found)
        return found


def _wide(weight: HeldWeight) -> Tensor:
    return weight.held.to(weight.dtype)


def _product(left_TK: Tensor, weight_KN: HeldWeight) -> Tensor:
    """left @ weight; some columns of the weight are converted at a time."""
    if len(left_TK) * weight_KN.shape[1] >= PANEL:
        release()  # malloc keeps what the layers have freed, and memory peaks at a result as large as logits
    found_TN, step = left_TK.new_empty(len(left_TK), weight_KN.shape[1]), max(1, PANEL // len(weight_KN))
    for into, panel in zip(*(torch.split(t, step, 1) for t in (found_TN, weight_KN.held)), strict=True):
        into.copy_(left_TK @ panel.to(weight_KN.dtype))
    return found_TN
