"""Checks all instructions of a program file at once, field by field, in vectors (SPEC section 4).

`survey` names the instructions that may break a rule. It is a filter: whatever it names, the rules in
`tiebreak.protocol.program.program` decide, one by one and with a message. It must name every instruction that breaks a
rule of its own, (2) to (5) of the plan there, and should name few others, since each costs time.
A million valid instructions pass without an object being made of any.

No number overflows: in a valid instruction, every offset and stride times its dim is below 2^40 in magnitude, so larger
ones are doubtful, and all others are exact in 64 bits.
"""

import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from tiebreak.protocol.codec import MAX_NAME_BYTES
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.isa import DType, Opcode, SourceKind

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

BLOCK: Final = 1 << 16
"""Instructions that are checked at a time, which bounds the memory for it."""
_HEADER: Final = 6
_RANK: Final = isa.MAX_RANK
_REACH: Final = float(1 << 41)
"""Above every product of a stride and a dim that a valid instruction can have."""
_FUNCTIONS: Final = 32
_ABSENT: Final = 3
"""The dtype of an operand that is not there."""
_CODES: Final = tuple(int(opcode) for opcode in Opcode)
_NAME: Final = re.compile(rb"[!-~]+")
_BITS: Final = np.array([32, 64, 1])


def _accepted() -> Flags:
    """A table of the combinations of opcode, function, operand dtypes and dtype that exist (`isa.signatures`)."""
    table = np.zeros((len(_CODES) + 1, _FUNCTIONS, 4, 4, 4, 3), dtype=np.bool_)
    table[Opcode.SOURCE, : len(SourceKind), _ABSENT, _ABSENT, _ABSENT] = True
    functions: dict[Opcode, Any] = {
        Opcode.MAP: isa.MapFunction,
        Opcode.REDUCE: isa.ReduceFunction,
        Opcode.SCATTER_SUM: isa.ScatterFunction,
        Opcode.WINDOW: isa.WindowFunction,
    }
    for opcode in Opcode:
        for function in functions.get(opcode, range(1) if opcode is not Opcode.SOURCE else ()):
            found = isa.signatures(isa.Instruction(opcode=opcode, function=int(function), dtype=DType.F32))
            for types, dtype in found or ():
                table[(opcode, function, *types, *[_ABSENT] * (3 - len(types)), dtype)] = True
    return table


_ACCEPTED: Final = _accepted()


class Survey:
    """The findings of `survey` about the instructions of a program file."""

    def __init__(self, count: int, body: int) -> None:
        self.body = body
        self.doubtful: list[int] = []
        """The indices of instructions that may break a rule of their own, ascending."""
        self.dtype: Integers = np.zeros(count, dtype=np.int64)
        self.numel: Floats = np.ones(count)
        self.terms: Floats = np.ones(count)
        """Terms of the whole result of each instruction, as FP64: never an overflow, but not exact above 2^53."""
        self.repeated_stream: int | None = None
        """The first instruction that draws from a random stream which an earlier one uses."""
        self.slotted: Integers = np.zeros(0, dtype=np.int64)
        """The indices of instructions with a slot and a name that are not doubtful, ordered as `slots` and `names`."""
        self.slots: Integers = np.zeros(0, dtype=np.int64)
        self.names: list[bytes] = []
        self.misses_slots = False
        """Whether an instruction with a slot was doubtful, but breaks no rule: then `slotted` does not have all."""


class Columns:
    """The fields of a block of encoded instructions, one array for each. Reads only inside an instruction's bytes."""

    def __init__(self, data: bytes, first: int, starts: Integers, lengths: Integers) -> None:
        self._data = data
        self.count, self.first, self.starts = len(starts), first, starts
        header = np.frombuffer(data, dtype=np.uint8)[starts[:, None] + np.arange(_HEADER)].astype(np.int64)
        self.opcode, self.function, self.dtype, self.rank, self.reduction, self.operands = header.T
        self.space = self.rank + self.reduction
        self.params = starts + _HEADER + 8 * self.space + self.operands * (12 + 8 * self.space) + 2
        """The start of the parameters of each instruction, after their length."""
        self.doubt: Flags = (self.opcode == 0) | (self.opcode > len(_CODES)) | (self.function >= _FUNCTIONS)
        self.doubt |= (self.dtype > max(DType)) | (self.rank > _RANK) | (self.reduction > _RANK)
        self.doubt |= (self.operands > isa.MAX_OPERANDS) | (lengths > isa.MAX_INSTRUCTION_BYTES)
        size = starts + lengths - self.params
        self.doubt |= size < 0
        fine = self.fine(np.ones(self.count, dtype=np.bool_))
        said = self.read(self.params[fine] - 2, 2)
        self.size = size
        self.doubt[fine] |= said != size[fine]

    def fine(self, those: Flags) -> Integers:
        """The indices of those that are not in doubt yet."""
        return np.flatnonzero(those & ~self.doubt)

    def of(self, *opcodes: Opcode) -> Integers:
        return self.fine(np.isin(self.opcode, opcodes))

    def read(self, places: Integers, width: int) -> Integers:
        return integers(self._data, places, width)

    def names(self, indices: Integers) -> list[bytes]:
        """The names of these, which follow their slots."""
        places, sizes = self.params[indices] + 6, self.size[indices] - 6
        ends = (places + sizes).tolist()
        return [self._data[start:end] for start, end in zip(places.tolist(), ends, strict=True)]

    def check(self, indices: Integers, holds: Flags) -> None:
        """Whichever of these do not hold are in doubt."""
        self.doubt[indices[~holds]] = True


def integers(data: bytes, places: Integers, width: int) -> Integers:
    """Big-endian integers at these places, signed if they have 8 bytes (so 2^63 and more read as negative)."""
    kind = {2: ">u2", 4: ">u4", 8: ">i8"}[width]
    # An element at every byte, so that one index finds each.
    every = np.ndarray((len(data) - width + 1,), kind, data, strides=(1,))
    return every[places].astype(np.int64)


def survey(data: bytes, starts: Integers, lengths: Integers, body: int) -> Survey:
    """Check instructions, each with at least the bytes of a header, block by block."""
    found = Survey(len(starts), body)
    streams: list[Integers] = []
    slots: list[Integers] = []
    for first in range(0, len(starts), BLOCK):
        c = Columns(data, first, starts[first : first + BLOCK], lengths[first : first + BLOCK])
        _check(c, found)
        found.doubtful += (first + np.flatnonzero(c.doubt)).tolist()
        slotted = c.fine(named_slots(c))
        slots.append(np.stack([first + slotted, c.read(c.params[slotted], 4)]))
        found.names += c.names(slotted)
        drawn = c.of(Opcode.RANDOM, Opcode.SHUFFLE)
        at = c.params[drawn] + np.where(c.opcode[drawn] == Opcode.RANDOM, 0, 8)
        streams.append(np.stack([first + drawn, c.read(at, 4)]))
    found.slotted, found.slots = np.concatenate(slots, axis=1)
    indices, drawn_from = np.concatenate(streams, axis=1)
    again = np.delete(indices, np.unique(drawn_from, return_index=True)[1])
    found.repeated_stream = int(again[0]) if len(again) else None
    return found


def _check(c: Columns, found: Survey) -> None:
    block, indices = slice(c.first, c.first + c.count), c.first + np.arange(c.count)
    _sizes_of_params(c)
    dims = _dims(c)
    numel, reduced = np.prod(dims[:, :_RANK], axis=1), np.prod(dims[:, _RANK:], axis=1)
    found.numel[block], found.terms[block] = numel, numel * reduced
    found.dtype[block] = np.minimum(c.dtype, max(DType))
    c.doubt |= (numel > isa.MAX_NUMEL) | (reduced > isa.MAX_TERMS)
    c.doubt |= (c.reduction > 0) & ~np.isin(c.opcode, (Opcode.REDUCE, Opcode.SCATTER_SUM))
    c.doubt |= (c.opcode == Opcode.COMMIT) != (indices >= found.body)
    box = _params(c, dims)
    _operands(c, dims, box, np.minimum(indices, found.body), found)


def alike(data: bytes, some: Integers, others: Integers) -> Flags:
    """Whether valid instructions that start at these places have the same dtype and shape as others, pair by pair."""
    view = np.frombuffer(data, dtype=np.uint8)
    holds = cast("Flags", (view[some + 2] == view[others + 2]) & (view[some + 3] == view[others + 3]))
    for d in range(_RANK):
        rows = np.flatnonzero(holds & (view[some + 3] > d))
        at = _HEADER + 8 * d
        holds[rows] = integers(data, some[rows] + at, 8) == integers(data, others[rows] + at, 8)
    return holds


def whole(data: bytes, starts: Integers) -> tuple[Flags, Integers]:
    """Whether valid commits that start at these places take their values in row-major order, and which these are."""
    rank = np.frombuffer(data, dtype=np.uint8)[starts + 3].astype(np.int64)
    operand = starts + _HEADER + 8 * rank
    holds, step = integers(data, operand + 4, 8) == 0, np.ones(len(starts), dtype=np.int64)
    for d in reversed(range(_RANK)):
        rows = np.flatnonzero(rank > d)
        holds[rows] &= integers(data, operand[rows] + 12 + 8 * d, 8) == step[rows]
        step[rows] *= integers(data, starts[rows] + _HEADER + 8 * d, 8)
    return holds, integers(data, operand, 4)


def first_over(each: Floats, limit: int) -> int | None:
    """The first index at which a running sum exceeds a limit below 2^53. Numbers above that need not be exact."""
    if not len(each) or np.cumsum(each)[-1] <= limit * (1 - 1e-9):  # far more than the sum can be off
        return None
    return next((k for k, total in enumerate(accumulate(map(int, each.tolist()))) if total > limit), None)


def _sizes_of_params(c: Columns) -> None:
    """Each opcode's parameters have a length that follows from its header; those with a name are read one by one."""
    lengths: dict[Opcode, Callable[[], Integers | int]] = {
        Opcode.SOURCE: lambda: np.where(c.function == SourceKind.CONST, 8, 0),
        Opcode.MAP: lambda: 0,
        Opcode.REDUCE: lambda: 0,
        Opcode.GATHER: lambda: 16,
        Opcode.SCATTER_SUM: lambda: 8 * c.rank,
        Opcode.WINDOW: lambda: 24 * c.rank + 8 * (c.function == isa.WindowFunction.FILL),
        Opcode.IOTA: lambda: 8 + 8 * c.rank,
        Opcode.RANDOM: lambda: 4,
        Opcode.SHUFFLE: lambda: 12,
    }
    named = named_slots(c)
    for opcode, length in lengths.items():
        c.doubt |= (c.opcode == opcode) & ~named & (c.size != length())
    slots = c.fine(named)
    c.check(slots, c.size[slots] > 6)
    slots = c.fine(named)
    c.check(slots, c.read(c.params[slots] + 4, 2) == c.size[slots] - 6)
    slots = c.fine(named)
    c.check(slots, c.size[slots] - 6 <= MAX_NAME_BYTES)
    slots = c.fine(named)
    names = c.names(slots)
    if names and not _NAME.fullmatch(b"".join(names)):
        c.check(slots, np.array([_NAME.fullmatch(name) is not None for name in names]))


def named_slots(c: Columns) -> Flags:
    """A mask of the instructions that have a slot and a name."""
    source = (c.opcode == Opcode.SOURCE) & np.isin(c.function, (SourceKind.STATE, SourceKind.DATA))
    return cast("Flags", source | (c.opcode == Opcode.COMMIT))


def _dims(c: Columns) -> Floats:
    """Output dims in columns 0 to 7, reduction dims in 8 to 15, 1 where there are none."""
    dims = np.ones((c.count, 2 * _RANK))
    for offset, rank, start in ((0, c.rank, 0 * c.rank), (_RANK, c.reduction, c.rank)):
        for d in range(_RANK):
            with_it = c.fine(rank > d)
            found = c.read(c.starts[with_it] + _HEADER + 8 * (start[with_it] + d), 8)
            dims[with_it, offset + d] = found
            c.check(with_it, (found >= 1) & (found <= isa.MAX_NUMEL))
    dims[c.doubt] = 1
    return dims


def _params(c: Columns, dims: Floats) -> Floats:
    """Check parameters. Returns the dims in which operand 0 is read: a window's box, else `dims`."""
    constant = c.fine((c.opcode == Opcode.SOURCE) & (c.function <= SourceKind.STEP))
    c.check(constant, (c.rank[constant] == 0) & ((c.function[constant] == 0) | (c.dtype[constant] == DType.I64)))
    constant = c.fine((c.opcode == Opcode.SOURCE) & (c.function == SourceKind.CONST))
    _constants(c, constant, c.params[constant])
    for opcode, at in ((Opcode.GATHER, 8), (Opcode.SHUFFLE, 0)):
        bounded = c.of(opcode)
        bound = c.read(c.params[bounded] + at, 8)
        c.check(bounded, (bound >= 1) & (bound <= isa.MAX_NUMEL))
    _scatters(c, dims)
    box = dims.copy()
    windows = c.of(Opcode.WINDOW)
    for d in range(_RANK):
        inside = windows[c.rank[windows] > d]
        lo, hi, step = (c.read(c.params[inside] + 24 * d + at, 8) for at in (0, 8, 16))
        holds = (lo >= 0) & (lo < hi) & (hi <= dims[inside, d]) & (step >= 1) & (step <= 1 << 32)
        c.check(inside, holds)
        box[inside[holds], d] = -(-(hi - lo)[holds] // step[holds])
    filled = windows[c.function[windows] == isa.WindowFunction.FILL]
    _constants(c, filled, c.params[filled] + 24 * c.rank[filled])
    return box


def _constants(c: Columns, indices: Integers, places: Integers) -> None:
    bits, dtype = c.read(places, 8), c.dtype[indices]
    nan = (dtype == DType.F32) & (bits & 0x7F800000 == 0x7F800000) & (bits & 0x7FFFFF != 0) & (bits != NAN_BITS)
    c.check(indices, ((dtype == DType.I64) | ((bits >= 0) & (bits >> np.minimum(_BITS[dtype], 63) == 0))) & ~nan)


def _scatters(c: Columns, dims: Floats) -> None:
    """Match strides are row-major over the matched dims, and operands ignore those."""
    scatters = c.of(Opcode.SCATTER_SUM)
    step, matched_any = np.ones(len(scatters)), np.zeros(len(scatters), dtype=np.bool_)
    holds = np.ones(len(scatters), dtype=np.bool_)
    for d in reversed(range(_RANK)):
        rows = np.flatnonzero(c.rank[scatters] > d)
        indices = scatters[rows]
        stride = c.read(c.params[indices] + 8 * d, 8)
        matched = stride != 0
        holds[rows] &= ~matched | (stride == step[rows])
        for k in range(isa.MAX_OPERANDS):
            inside = c.operands[indices] > k
            own = np.zeros(len(indices), dtype=np.int64)
            own[inside] = c.read(_operand(c, indices[inside], k) + 12 + 8 * d, 8)
            holds[rows] &= ~matched | (own == 0)
        matched_any[rows] |= matched
        step[rows] = np.where(matched, step[rows] * dims[indices, d], step[rows])
    c.check(scatters, holds & matched_any)


def _operand(c: Columns, indices: Integers, k: int) -> Integers:
    """The byte at which operand k of each of these instructions starts."""
    space = c.space[indices]
    return cast("Integers", c.starts[indices] + _HEADER + 8 * space + k * (12 + 8 * space))


def _operands(c: Columns, dims: Floats, box: Floats, limit: Integers, found: Survey) -> None:
    """Operands name earlier values, have types that fit, and are read inside their tensors."""
    types = np.full((c.count, isa.MAX_OPERANDS), _ABSENT)
    for k in range(isa.MAX_OPERANDS):
        indices = c.fine(c.operands > k)
        places = _operand(c, indices, k)
        value, offset = c.read(places, 4), c.read(places + 4, 8)
        c.check(indices, (value < limit[indices]) & (np.abs(offset.astype(np.float64)) < _REACH))
        earlier = np.minimum(value, found.body - 1)
        types[indices, k] = found.dtype[earlier]
        low, high, moves = _extents(c, indices, places, offset, box if k == 0 else dims)
        if k == 0:
            gathers = np.flatnonzero(c.opcode[indices] == Opcode.GATHER)
            at = c.params[indices[gathers]]
            _reach(c, indices, low, high, gathers, c.read(at, 8), c.read(at + 8, 8).astype(np.float64))
        c.check(indices, (low >= 0) & (high < found.numel[earlier]))
        alone = (c.opcode[indices] == Opcode.RANDOM) & (k <= 1) | (c.opcode[indices] == Opcode.SHUFFLE) & (k == 1)
        c.check(indices, ~(alone & moves))
    indices = c.fine(np.ones(c.count, dtype=np.bool_))
    first, second, third = types[indices].T
    c.check(indices, _ACCEPTED[c.opcode[indices], c.function[indices], first, second, third, c.dtype[indices]])


def _extents(
    c: Columns, indices: Integers, places: Integers, offset: Integers, dims: Floats
) -> tuple[Integers, Integers, Flags]:
    """The least and the greatest element that an operand reads, and whether it has a stride."""
    low, high, moves = offset.copy(), offset.copy(), np.zeros(len(indices), dtype=np.bool_)
    for d in range(2 * _RANK):
        rows = np.flatnonzero(c.space[indices] > d)
        if not len(rows):
            break
        stride = c.read(places[rows] + 12 + 8 * d, 8)
        moves[rows] |= stride != 0
        column = np.where(d < c.rank[indices[rows]], d, _RANK + d - c.rank[indices[rows]])
        _reach(c, indices, low, high, rows, stride, dims[indices[rows], column])
    return low, high, moves


def _reach(
    c: Columns, indices: Integers, low: Integers, high: Integers, rows: Integers, stride: Integers, dim: Floats
) -> None:
    """Add stride * (dim - 1) to the lower or the upper end in these rows."""
    far = np.abs(stride.astype(np.float64)) * (dim - 1) >= _REACH
    c.check(indices[rows], ~far)
    step = np.where(far, 0, stride) * (dim - 1).astype(np.int64)
    low[rows] += np.minimum(step, 0)
    high[rows] += np.maximum(step, 0)
