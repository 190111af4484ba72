"""Lazily read tensors: a value and an affine access map over its row-major data.

Permuting, slicing, expanding and most reshaping change only the map.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tiebreak.protocol.program.isa import Access, DType, row_major, unravel

Scalar = float | int | bool


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of `shape`: coordinate c is read from value `value` at offset + sum(c * stride), in elements."""

    value: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def rank(self) -> int:
        return len(self.shape)

    def dim(self, d: int) -> int:
        """The index of a dim as a non-negative number; negative ones count from the end."""
        if not -self.rank <= d < max(self.rank, 1):
            raise ValueError(f"expected a dim of a rank-{self.rank} tensor, got {d}")
        return d % self.rank if self.rank else 0

    def permute(self, order: Sequence[int]) -> "Ref":
        """Puts the dims in a new order."""
        dims = [self.dim(d) for d in order]
        return replace(self, shape=tuple(self.shape[d] for d in dims), strides=tuple(self.strides[d] for d in dims))

    def unpermute(self, order: Sequence[int]) -> "Ref":
        """The inverse of `permute` with the same order, of non-negative dims."""
        return self.permute([order.index(d) for d in range(self.rank)])

    def expand(self, shape: Sequence[int]) -> "Ref":
        """Broadcasts to `shape` (-1 keeps a dim); new dims are on the left."""
        lead = len(shape) - self.rank
        old = (1,) * lead + self.shape
        strides = (0,) * lead + self.strides
        new = tuple(o if n == -1 else n for o, n in zip(old, shape, strict=True))
        if any(o not in (1, n) for o, n in zip(old, new, strict=True)):
            raise ValueError(f"cannot expand {self.shape} to {tuple(shape)}")
        return replace(self, shape=new, strides=tuple(0 if o == 1 else s for o, s in zip(old, strides, strict=True)))

    def unsqueeze(self, d: int) -> "Ref":
        """Inserts a dim of size 1 before position d."""
        d = d if d >= 0 else d + self.rank + 1
        return replace(
            self, shape=(*self.shape[:d], 1, *self.shape[d:]), strides=(*self.strides[:d], 0, *self.strides[d:])
        )

    def append_dims(self, count: int) -> "Ref":
        """The same elements in a shape with `count` more dims of size 1 at its end."""
        return replace(self, shape=(*self.shape, *(1,) * count), strides=(*self.strides, *(0,) * count))

    def squeeze(self, dims: Sequence[int]) -> "Ref":
        """Drops those of `dims` that have size 1."""
        drop = {self.dim(d) for d in dims}
        return self.permute([d for d in range(self.rank) if d not in drop or self.shape[d] != 1])

    def slice(self, d: int, start: int, stop: int, step: int = 1) -> "Ref":
        """Elements start, start + step, ... below stop of dim d; negative numbers as in Python."""
        d = self.dim(d)
        span = range(self.shape[d])[start:stop:step]
        shape = (*self.shape[:d], len(span), *self.shape[d + 1 :])
        strides = (*self.strides[:d], self.strides[d] * step, *self.strides[d + 1 :])
        return replace(self, shape=shape, strides=strides, offset=self.offset + span.start * self.strides[d])

    def unfold(self, d: int, count: int, size: int, step: int = 1, dilation: int = 1) -> "Ref":
        """`count` windows of dim d, `step` apart; their `size` elements, `dilation` apart, become a last dim."""
        d = self.dim(d)
        shape = (*self.shape[:d], count, *self.shape[d + 1 :], size)
        strides = (*self.strides[:d], self.strides[d] * step, *self.strides[d + 1 :], self.strides[d] * dilation)
        return replace(self, shape=shape, strides=strides)

    def select(self, d: int, index: int) -> "Ref":
        """Drops dim d by reading it at one index."""
        d = self.dim(d)
        index = range(self.shape[d])[index]
        return self.slice(d, index, index + 1).squeeze([d])

    def flip(self, d: int) -> "Ref":
        d = self.dim(d)
        strides = (*self.strides[:d], -self.strides[d], *self.strides[d + 1 :])
        return replace(self, strides=strides, offset=self.offset + (self.shape[d] - 1) * self.strides[d])

    def access(self) -> Access:
        """The access map over this ref's own coordinates. Dims of size 1 get stride 0."""
        return self.access_over(self.shape, self.strides)

    def access_over(self, dims: Sequence[int], strides: Sequence[int]) -> Access:
        """A map of another index space, from this ref's offset. Dims of size 1 get stride 0."""
        return Access(self.value, self.offset, tuple(0 if n == 1 else s for n, s in zip(dims, strides, strict=True)))


def view_strides(shape: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides that read `new` over the same elements in the same order, or None if no affine map does."""
    groups: list[tuple[int, int]] = []  # (size, stride) of the maximal runs that one stride covers
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if groups and groups[-1][1] == stride * size:
            groups[-1] = (groups[-1][0] * size, stride)
        else:
            groups.append((size, stride))
    result: list[int] = []
    left, step = groups.pop() if groups else (1, 0)
    for size in reversed(new):
        if size == 1:
            result.append(0)
            continue
        while left == 1 and groups:
            left, step = groups.pop()
        if left % size:
            return None
        result.append(step)
        left //= size
        step *= size
    return tuple(reversed(result))


def walked(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, base: tuple[int, ...]
) -> tuple[tuple[int, ...], list[tuple[int, int] | None]] | None:
    """The start of a strided read of row-major data of shape `base`, and the (dim, step) along which each dim moves.

    A dim that does not move has None. The whole result is None if a dim moves along several dims of `base`, or past the
    end of one.
    """
    flat, start = row_major(base), unravel(offset, base)
    low, high, moves = list(start), list(start), list[tuple[int, int] | None]()
    for stride, n in zip(strides, shape, strict=True):
        if n == 1 or stride == 0:
            moves.append(None)
            continue
        fitting = [d for d, f in enumerate(flat) if stride % f == 0 and abs(stride) // f * (n - 1) < base[d]]
        if not fitting:
            return None
        d, step = fitting[0], stride // flat[fitting[0]]
        low[d] += min(0, step * (n - 1))
        high[d] += max(0, step * (n - 1))
        moves.append((d, step))
    inside = all(a >= 0 and b < size for a, b, size in zip(low, high, base, strict=True))
    return (start, moves) if inside else None


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape to which tensors are broadcast."""
    rank = max(len(shape) for shape in shapes)
    result = []
    for sizes in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        large = {size for size in sizes if size != 1}
        if len(large) > 1:
            raise ValueError(f"cannot broadcast {shapes}")
        result.append(large.pop() if large else 1)
    return tuple(result)
