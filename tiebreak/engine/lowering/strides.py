"""Strided reads of row-major data: whether another shape, or steps along the data's dims, describe the same read."""

from tiebreak.protocol.program.isa import row_major, unravel


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
