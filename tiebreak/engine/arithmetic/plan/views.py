"""Access maps (SPEC 4.2) as strided torch views, and the index arithmetic around them.

A dim that an operand ignores (stride 0) keeps size 1 in its view. Broadcasting does the rest, so no copy is larger than
the data that is really read. torch has no negative strides, so such dims are read forward and flipped (a copy).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tiebreak.protocol.program.isa import Access, row_major

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MAX_TABLE: Final = 1 << 24
"""The most entries in the tables of a compiled kernel's plan: 128 MiB."""


@dataclass(frozen=True)
class View:
    """One operand as it is read over the dims of an index space: sizes and strides >= 0, then flips.

    `sizes` has one entry per dim, 1 where the stride is 0.
    """

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    flips: tuple[int, ...]

    @classmethod
    def of(cls, offset: int, sizes: Sequence[int], strides: Sequence[int]) -> "View":
        """The view at `offset` over dims of these sizes and signed strides."""
        real = tuple(1 if stride == 0 else size for size, stride in zip(sizes, strides, strict=True))
        flips = tuple(d for d, (size, stride) in enumerate(zip(real, strides, strict=True)) if stride < 0 and size > 1)
        start = offset + sum(strides[d] * (real[d] - 1) for d in flips)
        return cls(
            start, real, tuple(abs(stride) if n > 1 else 0 for n, stride in zip(real, strides, strict=True)), flips
        )

    @staticmethod
    @lru_cache(1 << 13)  # every step asks for the same
    def of_access(access: Access, dims: tuple[int, ...]) -> "View":
        """The view of an operand over an index space."""
        return View.of(access.offset, dims, access.strides)

    def on(self, base: Tensor) -> Tensor:
        """The view of a contiguous base tensor. Validating the program has checked the bounds."""
        if self.whole and base.shape == self.sizes:
            return base
        view = base.as_strided(self.sizes, self.strides, base.storage_offset() + self.offset)
        return view.flip(self.flips) if self.flips else view

    @cached_property
    def whole(self) -> bool:
        """Whether the view is all of a base tensor of these sizes, in order."""
        plain = tuple(0 if n == 1 else stride for n, stride in zip(self.sizes, row_major(self.sizes), strict=True))
        return self.offset == 0 and not self.flips and self.strides == plain


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim of an index space: its size, and the stride of each operand along it."""

    size: int
    strides: tuple[int, ...]


def size_of(dims: Sequence[Dim]) -> int:
    """The number of coordinates of a box."""
    return prod(d.size for d in dims)


def coalesce(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> list[Dim]:
    """The index space without dims of size 1, and with neighbours merged if every operand reads them as one dim.

    `strides` has one sequence per operand. The row-major numbering of coordinates does not change.
    """
    dims: list[Dim] = []
    for size, steps in zip(sizes, zip(*strides, strict=True), strict=True):
        if size == 1:
            continue
        if dims and all(outer == inner * size for outer, inner in zip(dims[-1].strides, steps, strict=True)):
            dims[-1] = Dim(dims[-1].size * size, tuple(steps))
        else:
            dims.append(Dim(size, tuple(steps)))
    return dims


def offsets(elements: Tensor, sizes: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
    """offset + sum(c * stride) for row-major element numbers (i64) of a box; same shape as `elements`."""
    result = torch.full_like(elements, offset)
    rest = elements
    for d in range(len(sizes) - 1, -1, -1):
        if d == 0:
            coordinate = rest
        else:
            coordinate = rest.remainder(sizes[d])
            rest = rest.div(sizes[d], rounding_mode="floor")
        if strides[d]:
            result = result + coordinate * strides[d]
    return result


def ramp(sizes: Sequence[int], strides: Sequence[int], device: torch.device) -> Tensor:
    """sum(c * stride), i64, wrapping, at every coordinate of a box; dims of stride 0 keep size 1."""
    rank = len(sizes)
    result = torch.zeros((1,) * rank, dtype=torch.int64, device=device)
    for d, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        if stride and size > 1:
            along = torch.arange(size, dtype=torch.int64, device=device) * stride
            result = result + along.view([-1 if e == d else 1 for e in range(rank)])
    return result


def read_rows(
    base: Tensor, starts: Tensor, sizes: Sequence[int], strides: Sequence[int], begin: int, end: int
) -> Tensor:
    """Elements begin ... end-1 (row-major in the box of `sizes`) of the rows at `starts`; shape (U, end-begin)."""
    flat = base.reshape(-1)
    if not sizes or all(stride == 0 for stride in strides):
        return flat[starts][:, None].expand(len(starts), end - begin)
    if len(sizes) == 1 and strides[0] > 0:
        reach = (end - begin - 1) * strides[0]
        windows = flat.as_strided((flat.numel() - reach, end - begin), (1, strides[0]), flat.storage_offset())
        return windows.index_select(0, starts + begin * strides[0])
    inner = offsets(torch.arange(begin, end, dtype=torch.int64, device=base.device), sizes, strides, 0)
    return flat.take(starts[:, None] + inner[None, :])


def offsets_of(steps: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """The sums of coordinate * stride over a box of (size, stride), row-major."""
    place = np.zeros((1,), dtype=np.int64)
    for size, stride in steps:
        place = (place[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return place


def check_reach(tensor: Tensor, reach: tuple[int, int]) -> None:
    """Raises `ValueError` unless the least and the greatest place read lie inside a contiguous tensor."""
    # SAFETY: the kernels trust their tables. Validating the program has checked the same, but this costs nothing.
    if reach[0] < 0 or reach[1] >= tensor.numel() or not tensor.is_contiguous():
        raise ValueError(f"expected places 0 ... {tensor.numel() - 1} of a contiguous tensor, got {reach}")
