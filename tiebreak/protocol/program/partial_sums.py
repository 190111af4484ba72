"""The accumulators of a reduction (SPEC section 6), thousands of leaves at a time, in numpy integers.

This is the fast twin of `tiebreak.protocol.program.reference.accumulators`, which takes one term at a time and serves
as the oracle in tests. No floats are used. A sum is stored as 24 limbs of 32 bits, the lowest first. A product adds its
low part to one limb and everything above it to the next. Limbs are summed as i64 over a whole block of leaves, and
carries are propagated once at the end.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tiebreak.protocol.numbers import float32
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.program.accumulator import (
    SUM_BYTES,
    Accumulator,
    Kind,
    decode,
    encode,
    initial,
    kind_of,
    leaf_count,
)
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, Access, DType, Instruction, ScatterParams, unravel

BLOCK_HEIGHT: Final = 12
BLOCK_LEAVES: Final = 1 << BLOCK_HEIGHT
BLOCK_TERMS: Final = BLOCK_LEAVES * TERMS_PER_LEAF

_LIMBS: Final = SUM_BYTES // 4
_LIMB_BITS: Final = 32
_LIMB_MASK: Final = (1 << _LIMB_BITS) - 1
_REST_BITS: Final = 2 * (float32.FRACTION_BITS + 1) - 1
"""A product has 48 bits and is shifted by at most 31; its lowest 32 bits go to the limb below, which leaves 47."""
assert BLOCK_TERMS << _REST_BITS <= 1 << 62, "the limbs of a block fit into i64, with one limb of the start and a carry"
_TYPES: Final[dict[DType, np.dtype[Any]]] = {DType.F32: np.dtype("<u4"), DType.I64: np.dtype("<i8")}
"""The numpy type of each operand dtype; f32 is read as its bits."""

Array = NDArray[Any]
Words = NDArray[np.uint32]
Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]
Bytes = NDArray[np.uint8]


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
        made = after_leaves(decode(self._terms.kind, before), factors, matches, first).tobytes()
        if len(self._starts) == number + 1:
            self._starts.append(made[-len(before) :])
        return made


def after_leaves(start: Accumulator, factors: Sequence[Array], matches: Mask | None = None, first: int = 0) -> Bytes:
    """The encoded accumulators after every leaf, one per row, for at most BLOCK_TERMS terms.

    `factors` holds two arrays for a sum of products, otherwise one; f32 are given as bits. `first` is the position of
    the first term, which starts a leaf. `matches` marks the terms that count, if not all do (f32 sums only).
    """
    count = factors[0].size
    if not 1 <= count <= BLOCK_TERMS:
        raise ValueError(f"expected 1 to {BLOCK_TERMS} terms, got {count}")
    if start.kind.is_f32_sum:
        return _f32_sums(start, [x.astype(np.uint32, copy=False) for x in factors], matches)
    ends = np.minimum(np.arange(TERMS_PER_LEAF, count + TERMS_PER_LEAF, TERMS_PER_LEAF), count) - 1
    if start.kind is Kind.I64_SUM:
        sums = np.cumsum(factors[0].astype(np.uint64)) + np.uint64(start.value % (1 << 64))  # modulo 2^64
        return _columns(sums[ends])
    if start.kind in (Kind.F32_MAX, Kind.F32_ARGMAX):
        bits = _one_nan(factors[0].astype(np.uint32, copy=False))
        keys, held = _keys(bits), int(_keys(np.array([start.value], dtype=np.uint32))[0])
    else:
        bits, keys, held = factors[0], factors[0].astype(np.int64, copy=False), start.value
    if start.kind in (Kind.F32_MAX, Kind.I64_MAX):
        greatest = np.maximum(np.maximum.accumulate(keys), np.int64(held))[ends]
        return _columns(greatest if start.kind is Kind.I64_MAX else _from_keys(greatest))
    return _columns(*(column[ends] for column in _argmax(start, bits, keys, held, first)))


def _columns(*columns: Array) -> Bytes:
    """Rows of big-endian numbers, with one number from each column."""
    parts = [column.astype(column.dtype.newbyteorder(">"))[:, None].view(np.uint8) for column in columns]
    return np.concatenate(parts, axis=1)


# ---------------------------------------------------------------- greatest elements


def _one_nan(bits: Words) -> Words:
    return np.where((bits & 0x7FFFFFFF) > float32.INF, np.uint32(NAN_BITS), bits)


def _keys(bits: Words) -> Longs:
    """Integers in the order of f32 values: both zeros are equal, the canonical NaN is above all."""
    magnitude = (bits & np.uint32(0x7FFFFFFF)).astype(np.int64)
    return np.where(bits & np.uint32(float32.SIGN), -magnitude, magnitude)


def _from_keys(keys: Longs) -> Words:
    """The f32 bits for keys; a zero becomes +0."""
    return np.where(keys < 0, float32.SIGN - keys, keys).astype(np.uint32)


def _argmax(start: Accumulator, bits: Array, keys: Longs, held: int, first: int) -> tuple[Array, Longs]:
    """The element held and its position, after each term."""
    before = np.maximum.accumulate(np.concatenate((np.array([held], dtype=np.int64), keys[:-1])))
    replaces = keys > before
    if start.index == -1:
        replaces[0] = True  # even the smallest element replaces none
    latest = np.maximum.accumulate(np.where(replaces, np.arange(keys.size), -1))
    none = latest < 0
    element = np.where(none, bits.dtype.type(start.value), bits[latest])
    return element, np.where(none, start.index, latest + first)


# ---------------------------------------------------------------- f32 sums


def _f32_sums(start: Accumulator, factors: Sequence[Words], matches: Mask | None) -> Bytes:
    leaves = -(-factors[0].size // TERMS_PER_LEAF)
    product, shift, invalid = _products(factors)
    if matches is not None:
        product, invalid = np.where(matches, product, 0), invalid & matches
    starts = np.arange(0, factors[0].size, TERMS_PER_LEAF)
    nan = np.logical_or.accumulate(np.logical_or.reduceat(invalid, starts)) | start.invalid
    limbs = _limbs(product, shift, leaves)
    limbs[:, 0] += np.frombuffer(encode(start)[:0:-1], dtype="<u4")
    np.cumsum(limbs, axis=1, out=limbs)
    _carry(limbs)
    limbs[:, nan] = 0
    rows = np.empty((leaves, 1 + SUM_BYTES), dtype=np.uint8)
    rows[:, 0] = nan
    rows[:, 1:] = limbs[::-1].T.astype(">u4", order="C").view(np.uint8)
    return rows


def _products(factors: Sequence[Words]) -> tuple[Longs, Longs, Mask]:
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


def _limbs(product: Longs, shift: Longs, leaves: int) -> Longs:
    """The sums that the terms of each leaf add to each limb, with shape (limbs, leaves)."""
    limbs = np.zeros(_LIMBS * leaves, dtype=np.int64)
    place = (shift >> 5) * leaves + np.arange(product.size) // TERMS_PER_LEAF
    within = shift & 31
    # The shift rounds down, so a negative product is also (rest << 32) + low, with a low part of 32 bits that is >= 0.
    rest = product >> (_LIMB_BITS - within)
    np.add.at(limbs, place, (product << within) & _LIMB_MASK)
    np.add.at(limbs, place + leaves, rest)
    return limbs.reshape(_LIMBS, leaves)


def _carry(limbs: Longs) -> None:
    """Propagate carries until every limb has its own 32 bits: two's complement modulo 2^768."""
    for low, high in pairwise(limbs):
        high += low >> _LIMB_BITS
        low &= _LIMB_MASK
    limbs[-1] &= _LIMB_MASK
