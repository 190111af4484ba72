"""Functions that read values of tensors in eager PyTorch, here in tensors of fixed shapes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _NumberType(type):
    def __call__(cls, value: Any = 0.0) -> Any:
        return value.reshape(()).to(torch.get_default_dtype()) if is_counter(value) else float(value)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, float)


class _Float(metaclass=_NumberType):
    """Stands for `float`: of a tensor with one integer, it gives a tensor."""


def is_counter(value: object) -> bool:
    """Whether a value is a tensor of one integer. Bools follow other rules as numbers, and floats are mostly logged."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        return False
    return not value.is_floating_point() and value.dtype != torch.bool


@contextmanager
def counters_as_tensors(model: nn.Module, loss: Callable[..., Tensor]) -> Iterator[None]:
    """Gives `float` another meaning in the files of the model's classes and of the loss: it may give a tensor."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__ if issubclass(kind, nn.Module)}
    scopes = [vars(sys.modules[kind.__module__]) for kind in kinds if kind.__module__ in sys.modules]
    scopes += [getattr(getattr(loss, "loss", loss), "__globals__", {})]  # a task's loss is wrapped
    scopes = [scope for scope in {id(scope): scope for scope in scopes}.values() if "float" not in scope]
    for scope in scopes:
        scope["float"] = _Float
    try:
        yield
    finally:
        for scope in scopes:
            del scope["float"]


def batch_norm(
    input: Tensor,  # noqa: A002 (torch's name)
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.batch_norm`, whose momentum may be a tensor: 1 / (the number of batches so far)."""
    if not isinstance(momentum, Tensor):
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    with torch.no_grad():
        wide, dims = input.float(), [0, *range(2, input.dim())]
        for held, now in ((running_mean, wide.mean(dims)), (running_var, wide.var(dims))):
            if held is not None:
                held.copy_(momentum * now + (1 - momentum) * held)
    return F.batch_norm(input, None, None, weight, bias, training, 0.0, eps)
