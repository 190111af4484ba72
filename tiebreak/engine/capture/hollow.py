"""Tensors without numbers (torch's fake ones): with them a step in plain PyTorch costs no more than its Python code.

What is computed from such a tensor has no numbers either. All others keep theirs, and none gets wrong ones: it is an
error to ask for numbers that are not there, to write them into another tensor, and to go on after such an error.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._library.utils import zip_schema
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tiebreak.protocol.errors import ConfigurationError


class Hollow(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Makes tensors without numbers, and computes with them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = zip_schema(func._schema, args, kwargs := kwargs or {})
        written = tree_leaves([value for a, value in named if a.alias_info is not None and a.alias_info.is_write])
        if any(isinstance(value, Tensor) and not isinstance(value, FakeTensor) for value in written):
            raise ConfigurationError(f"expected writes of numbers, got {func} of a tensor without any")
        known = (t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and not isinstance(t, FakeTensor))
        if any(t.dtype in (torch.int64, torch.int32) for t in known) and torch._C._current_graph_task_id() == -1:
            # In forward, PyTorch itself refuses indices out of range: no process survives what a GPU does then.
            zeros = partial(tree_map_only, FakeTensor, lambda t: torch.zeros(t.shape, dtype=t.dtype))
            func(*zeros(args), **zeros(kwargs))
        return self.dispatch(func, types, args, kwargs)

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor of floats without its numbers, or of another one with them."""
        with self if tensor.is_floating_point() else nullcontext():
            return tensor.clone()


class Errors(TorchFunctionMode):
    """Refuses code that goes on after an error of torch, which may be one for want of numbers."""

    caught: Exception | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            self.caught = error
            raise

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        super().__exit__(kind, value, traceback)  # type: ignore[no-untyped-call]
        if kind is None and self.caught is not None:
            raise ConfigurationError(f"expected a step without errors, got one that catches {self.caught!r}")
