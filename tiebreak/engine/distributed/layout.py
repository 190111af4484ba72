"""The places of a value's elements: whole on every worker, or in shards along one dim.

A value is an array of `outer` x `size` x `inner` elements to its layout, whatever dims its instruction gives it, and a
worker of several holds its share of the middle dim, for every position of the outer one. Access maps are affine, so
whether an instruction reads an operand shard by shard can be told from its strides: one coordinate of its index space
must run through the middle dim from end to end, and all others must stay in the inner or in the outer one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from tiebreak.engine.arithmetic.plan.views import Dim

EVEN: Final = 4
"""The least number of rows that shards of whole rows have on average."""


def share(size: int, worker: int, workers: int) -> tuple[int, int]:
    """The coordinates [begin, end) of a dim that one of several workers holds."""
    return size * worker // workers, size * (worker + 1) // workers


@dataclass(frozen=True, slots=True)
class Split:
    """The layout of a value that is held in shards."""

    outer: int
    size: int
    inner: int

    @property
    def numel(self) -> int:
        """The number of elements of the whole value."""
        return self.outer * self.size * self.inner

    @property
    def period(self) -> int:
        """The distance between two positions of the outer dim."""
        return self.size * self.inner

    def __str__(self) -> str:
        return f"{self.outer} x [{self.size}] x {self.inner}"


def leading(shape: Sequence[int], workers: int) -> Split | None:
    """The layout in shards of the first elements, the next, and so on; None if there are too few elements.

    Leading dims are taken together until shards differ little in size.
    """
    size = 1
    for at, dim in enumerate(shape):
        size *= dim
        if size >= EVEN * workers:
            return Split(1, size, prod(shape[at + 1 :]))
    return Split(1, size, 1) if size >= workers else None


def cut(dims: Sequence[Dim], operand: int, split: Split) -> list[Dim]:
    """The same coordinates with dims cut in two where an operand's dim would cross the borders of its layout."""
    for unit in (split.period, split.inner):
        found: list[Dim] = []
        for dim in dims:
            stride = dim.strides[operand]
            run = unit // stride if stride > 0 and unit % stride == 0 else 0
            if 1 < run < dim.size and dim.size % run == 0:
                found += [Dim(dim.size // run, tuple(run * s for s in dim.strides)), Dim(run, dim.strides)]
            else:
                found.append(dim)
        dims = found
    return list(dims)


def along(dims: Sequence[Dim], operand: int, offset: int, split: Split) -> int | None:
    """The dim that runs through the middle dim of an operand's layout; None if it is not read shard by shard."""
    least = greatest = offset % split.inner
    found = None
    for at, dim in enumerate(dims):
        stride, reach = dim.strides[operand], dim.strides[operand] * (dim.size - 1)
        if not reach or stride % split.period == 0:
            continue
        if stride == split.inner and dim.size == split.size and found is None:
            found = at
        elif abs(reach) < split.inner:
            least, greatest = least + min(reach, 0), greatest + max(reach, 0)
        else:
            return None
    inside = least >= 0 and greatest < split.inner and offset // split.inner % split.size == 0
    return found if inside else None


def localized(offset: int, strides: Sequence[int], split: Split, held: int) -> tuple[int, tuple[int, ...]]:
    """An access that reads shard by shard, as it reads a shard that holds `held` positions of the middle dim."""
    period = held * split.inner

    def move(stride: int) -> int:
        return stride // split.period * period if stride % split.period == 0 else stride

    return offset // split.period * period + offset % split.inner, tuple(map(move, strides))
