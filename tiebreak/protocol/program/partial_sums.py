"""The accumulators of a reduction (SPEC section 6), thousands of leaves at a time.

This is the fast twin of `tiebreak.protocol.program.reference.accumulators`, which takes one term at a time and serves
as the oracle in tests. numpy reads the terms of a block and multiplies significands, exactly; Python's integers add
them up. A term takes less than a microsecond, and one at a time 6.6: norms by which gradients are clipped are sums of
tens of millions of terms, and a party has to show their accumulators within its time for a move.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import lshift
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tiebreak.protocol.numbers import float32
from tiebreak.protocol.numbers.float32 import canonical
from tiebreak.protocol.program.accumulator import (
    Accumulator,
    Kind,
    decode,
    encode,
    initial,
    kind_of,
    leaf_count,
    wrap_i64,
    wrap_sum,
)
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, Access, DType, Instruction, ScatterParams, unravel

BLOCK_HEIGHT: Final = 12
BLOCK_LEAVES: Final = 1 << BLOCK_HEIGHT
BLOCK_TERMS: Final = BLOCK_LEAVES * TERMS_PER_LEAF

_TYPES: Final[dict[DType, np.dtype[Any]]] = {DType.F32: np.dtype("<u4"), DType.I64: np.dtype("<i8")}
"""The numpy type of each operand dtype; f32 is read as its bits."""

Array = NDArray[Any]
Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]


class ElementTerms:
    """The terms of one output element: elements of the operands, for any range of positions in the reduction space."""

    def __init__(
        self, instruction: Instruction, index: int, tensors: Sequence[bytes | memoryview], dtypes: Sequence[DType]
    ) -> None:
        """`tensors` holds the data of each operand's value, `dtypes` the dtype of each operand."""
        if not instruction.is_reduction:
            raise ValueError(f"expected a reduction, got {instruction.opcode.name}")
        if not 0 <= index < instruction.numel:
            raise ValueError(f"expected an element below {instruction.numel}, got {index}")
        self.kind = kind_of(instruction, dtypes[0])
        self.count = instruction.terms
        self._tensors = [np.frombuffer(data, _TYPES[dtype]) for data, dtype in zip(tensors, dtypes, strict=True)]
        coordinate = unravel(index, instruction.shape)
        accesses = [_within(access, coordinate) for access in instruction.operands]
        for number, (access, tensor) in enumerate(zip(accesses, self._tensors, strict=True)):
            # numpy counts a negative index from the end, so the range of all positions is checked here.
            low, high = access.extent(instruction.reduction)
            if low < 0 or high >= tensor.size:
                raise ValueError(f"operand {number}: expected elements below {tensor.size}, got {low} to {high}")
        self._offsets = [access.offset for access in accesses]
        self._dims = _merged(instruction.reduction, [access.strides for access in accesses])
        self._target: int | None = None
        if isinstance(instruction.params, ScatterParams):
            self._target = sum(c * s for c, s in zip(coordinate, instruction.params.match, strict=True))

    def read(self, first: int, stop: int) -> tuple[list[Array], Mask | None]:
        """The factors of terms first ... stop - 1 and, for a `scatter_sum`, which of them match."""
        found = [tensor[at] for tensor, at in zip(self._tensors, self._places(first, stop), strict=True)]
        if self._target is None:
            return found, None
        return found[:1], found[1] == self._target

    def _places(self, first: int, stop: int) -> list[Longs]:
        """The elements read from each operand. Cannot overflow: every stride of a dim above 1 stays within a tensor."""
        rest = np.arange(first, stop, dtype=np.int64)
        places = [np.full(stop - first, offset, dtype=np.int64) for offset in self._offsets]
        for number, (dim, strides) in reversed(list(enumerate(self._dims))):
            coordinate = rest
            if number:
                rest = coordinate // dim
                coordinate = coordinate - rest * dim
            for at, stride in zip(places, strides, strict=True):
                if stride:
                    at += coordinate * stride
        return places


def _within(access: Access, coordinate: Sequence[int]) -> Access:
    """The access map over the reduction coordinates alone, at one output coordinate."""
    rank = len(coordinate)
    offset = access.offset + sum(c * s for c, s in zip(coordinate, access.strides, strict=False))
    return Access(access.value, offset, access.strides[rank:])


def _merged(dims: Sequence[int], strides: Sequence[Sequence[int]]) -> list[tuple[int, tuple[int, ...]]]:
    """The dims as (size, stride of each operand), without those of size 1, and with contiguous neighbours merged."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for dim, steps in zip(dims, zip(*strides, strict=True), strict=True):
        if dim == 1:
            continue
        if found and found[-1][1] == tuple(step * dim for step in steps):
            found[-1] = found[-1][0] * dim, steps
        else:
            found.append((dim, steps))
    return found


class PartialSums:
    """The encoded accumulators of one element, block by block. Only the accumulator before each block is kept."""

    def __init__(self, terms: ElementTerms) -> None:
        self.count = leaf_count(terms.count)
        """Total number of leaves."""
        self._terms = terms
        self._starts = [encode(initial(terms.kind))]

    def block(self, number: int) -> bytes:
        """The concatenated encodings of the leaves from number * BLOCK_LEAVES; fewer of them in the last block."""
        if not 0 <= number * BLOCK_LEAVES < self.count:
            raise ValueError(f"expected a block of {self.count} leaves, got number {number}")
        while len(self._starts) <= number:
            self._compute(len(self._starts) - 1)
        return self._compute(number)

    def _compute(self, number: int) -> bytes:
        first = number * BLOCK_TERMS
        stop = min(first + BLOCK_TERMS, self._terms.count)
        factors, matches = self._terms.read(first, stop)
        before = self._starts[number]
        made = after_leaves(decode(self._terms.kind, before), factors, matches, first)
        if len(self._starts) == number + 1:
            self._starts.append(made[-1])
        return b"".join(made)


def after_leaves(
    start: Accumulator, factors: Sequence[Array], matches: Mask | None = None, first: int = 0
) -> list[bytes]:
    """The encoded accumulators after every leaf, for at most BLOCK_TERMS terms.

    `factors` holds two arrays for a sum of products, otherwise one; f32 are given as bits. `first` is the position of
    the first term, which starts a leaf. `matches` marks the terms that count, if not all do (f32 sums only).
    """
    kind, count = start.kind, factors[0].size
    if not 1 <= count <= BLOCK_TERMS:
        raise ValueError(f"expected 1 to {BLOCK_TERMS} terms, got {count}")
    ends = [*range(TERMS_PER_LEAF, count, TERMS_PER_LEAF), count]
    if kind.is_f32_sum:
        product, shift, invalid = _products(factors)
        if matches is not None:
            product, invalid = np.where(matches, product, 0), invalid & matches
        sums = [*accumulate(map(lshift, product.tolist(), shift.tolist()), initial=start.value)]
        valid = 0 if start.invalid else int(invalid.argmax()) if invalid.any() else count
        return [
            encode(Accumulator(kind=kind, value=wrap_sum(sums[end]) if end <= valid else 0, invalid=end > valid))
            for end in ends
        ]
    if kind is Kind.I64_SUM:
        sums = [*accumulate(factors[0].tolist(), initial=start.value)]
        return [encode(Accumulator(kind=kind, value=wrap_i64(sums[end]))) for end in ends]
    return [encode(found) for found in _greatest(start, factors[0].tolist(), ends, first)]


def _greatest(start: Accumulator, elements: list[int], ends: Sequence[int], first: int) -> Iterator[Accumulator]:
    """The accumulators of a maximum or its position after each block of elements: the greatest so far of (key, order).

    Of equal keys the one held wins, whose order is 1, then the one that came first.
    """
    kind = start.kind
    is_float, is_place = kind in (Kind.F32_MAX, Kind.F32_ARGMAX), kind in (Kind.F32_ARGMAX, Kind.I64_ARGMAX)
    elements = [canonical(x) for x in elements] if is_float else elements
    keys = [_key(x) for x in elements] if is_float else elements
    held = (_key(start.value) if is_float else start.value, 1)
    if is_place and start.index == -1:  # even the smallest element replaces none
        held = keys[0], -len(keys)
    greatest = [*accumulate(zip(keys, range(0, -len(keys), -1), strict=True), max, initial=held)]
    for key, order in (greatest[end] for end in ends):
        if not is_place:
            yield Accumulator(kind=kind, value=float32.SIGN - key if is_float and key < 0 else key)
        elif order == 1:
            yield Accumulator(kind=kind, value=start.value, index=start.index)
        else:
            yield Accumulator(kind=kind, value=elements[-order], index=first - order)


def _key(bits: int) -> int:
    """An integer in the order of f32 values: both zeros are equal, the canonical NaN is above all."""
    return -(bits & 0x7FFFFFFF) if bits & float32.SIGN else bits


def _products(factors: Sequence[Array]) -> tuple[Longs, Longs, Mask]:
    """Products as (n, s, invalid): n * 2^s units with |n| < 2^48 and 0 <= s <= 506, unless a factor is not finite."""
    product, shift = np.ones(1, dtype=np.int64), np.full(1, (2 - len(factors)) * -float32.MIN_EXPONENT)
    invalid = np.zeros(factors[0].size, dtype=np.bool_)
    for bits in factors:
        exponent = (bits >> np.uint32(float32.FRACTION_BITS) & np.uint32(0xFF)).astype(np.int64)
        significand = (bits & np.uint32(0x7FFFFF)).astype(np.int64)
        significand |= (exponent != 0).astype(np.int64) << float32.FRACTION_BITS
        product = product * np.where(bits & np.uint32(float32.SIGN), -significand, significand)
        shift = shift + np.maximum(exponent - 1, 0)
        invalid |= exponent == 0xFF
    return product, shift, invalid
