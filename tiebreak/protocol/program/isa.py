"""The instruction set (SPEC section 4): the single registry of opcodes, functions and dtypes.

Python, torch, the Solidity constants and the tables in the documentation are derived from this module or checked
against it. Nothing is computed here; `tiebreak.protocol.program.reference` defines the meaning in integers.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import Final

TERMS_PER_LEAF: Final = 4
"""Number of terms of a reduction in one leaf of an accumulator tree."""

MAX_RANK: Final = 8
MAX_NUMEL: Final = 1 << 40
MAX_TERMS: Final = 1 << 32
MAX_OPERANDS: Final = 3
MAX_INSTRUCTIONS: Final = 1 << 17
MAX_INSTRUCTION_BYTES: Final = 4096


class DType(IntEnum):
    """Element types. The values are the codes in encodings."""

    F32 = 0
    I64 = 1
    BOOL = 2

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return (4, 8, 1)[self]


class Opcode(IntEnum):
    """Instruction families (SPEC 4.3)."""

    SOURCE = 1
    MAP = 2
    REDUCE = 3
    GATHER = 4
    SCATTER_SUM = 5
    WINDOW = 6
    IOTA = 7
    RANDOM = 8
    SHUFFLE = 9
    COMMIT = 10


class SourceKind(IntEnum):
    """Functions of `source`."""

    CONST = 0
    STEP = 1
    STATE = 2
    DATA = 3
    LATE = 4


class MapFunction(IntEnum):
    """Functions of `map` (SPEC 4.4)."""

    COPY = 0
    ADD = 1
    SUB = 2
    MUL = 3
    DIV = 4
    SQRT = 5
    NEG = 6
    ABS = 7
    MAX = 8
    MIN = 9
    EXP = 10
    LOG = 11
    TANH = 12
    ERF = 13
    SIN = 14
    COS = 15
    BF16 = 16
    LT = 20
    LE = 21
    EQ = 22
    NE = 23
    AND = 24
    OR = 25
    NOT = 26
    WHERE = 27
    CAST = 28
    FLOORDIV = 30
    MOD = 31


class ReduceFunction(IntEnum):
    """Functions of `reduce`."""

    SUM = 0
    MAX = 1
    ARGMAX = 2
    SUM_BF16 = 3


class ScatterFunction(IntEnum):
    """Functions of `scatter_sum`, both of f32: they differ in what the exact sum is rounded to."""

    SUM = 0
    SUM_BF16 = 1


class WindowFunction(IntEnum):
    """Functions of `window`: the values that fill the output outside the box."""

    FILL = 0
    ELSE = 1


_F, _I, _B = DType.F32, DType.I64, DType.BOOL
_ANY = (_F, _I, _B)

Signature = tuple[tuple[DType, ...], DType]


def _same(arity: int, types: tuple[DType, ...], result: DType | None = None) -> tuple[Signature, ...]:
    """Operands of one dtype, which is also that of the result if no other is given."""
    return tuple(((t,) * arity, t if result is None else result) for t in types)


TRANSCENDENTALS: Final = frozenset(
    {MapFunction.EXP, MapFunction.LOG, MapFunction.TANH, MapFunction.ERF, MapFunction.SIN, MapFunction.COS}
)

MAP_SIGNATURES: Final[dict[MapFunction, tuple[Signature, ...]]] = {
    MapFunction.COPY: _same(1, _ANY),
    MapFunction.ADD: _same(2, (_F, _I)),
    MapFunction.SUB: _same(2, (_F, _I)),
    MapFunction.MUL: _same(2, (_F, _I)),
    MapFunction.DIV: _same(2, (_F,)),
    MapFunction.SQRT: _same(1, (_F,)),
    MapFunction.NEG: _same(1, (_F, _I)),
    MapFunction.ABS: _same(1, (_F, _I)),
    MapFunction.MAX: _same(2, (_F, _I)),
    MapFunction.MIN: _same(2, (_F, _I)),
    **{f: _same(1, (_F,)) for f in sorted(TRANSCENDENTALS)},
    MapFunction.BF16: _same(1, (_F,)),
    MapFunction.LT: _same(2, (_F, _I), _B),
    MapFunction.LE: _same(2, (_F, _I), _B),
    MapFunction.EQ: _same(2, _ANY, _B),
    MapFunction.NE: _same(2, _ANY, _B),
    MapFunction.AND: _same(2, (_B,)),
    MapFunction.OR: _same(2, (_B,)),
    MapFunction.NOT: _same(1, (_B,)),
    MapFunction.WHERE: tuple(((_B, t, t), t) for t in _ANY),
    MapFunction.CAST: tuple(((a,), b) for a in _ANY for b in _ANY if a != b),
    MapFunction.FLOORDIV: _same(2, (_I,)),
    MapFunction.MOD: _same(2, (_I,)),
}
"""The operand dtypes and the result dtype that each function accepts."""


@dataclass(frozen=True, slots=True)
class Access:
    """An affine access map: element `offset + sum(c * stride)` of the row-major data of value `value`.

    `strides` has one entry for each coordinate of the index space (output dims, then reduction dims), in elements.
    """

    value: int
    offset: int
    strides: tuple[int, ...]

    def extent(self, dims: tuple[int, ...]) -> tuple[int, int]:
        """Smallest and largest element index that is read over a box with these dims."""
        steps = [stride * (dim - 1) for stride, dim in zip(self.strides, dims, strict=True)]
        return self.offset + sum(s for s in steps if s < 0), self.offset + sum(s for s in steps if s > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConst:
    """Parameters of a constant `source`: the raw bits (for f32 the low 32)."""

    bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Parameters of `source` state, `source` data and `commit`."""

    slot: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherParams:
    """Parameters of `gather`: it reads the table at (table map) + j * index_stride, for an index 0 <= j < bound."""

    index_stride: int
    bound: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterParams:
    """Parameters of `scatter_sum`: a term is added to output coordinate c iff its index equals sum(c * match)."""

    match: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowParams:
    """A box (per output dim, every step-th c with lo <= c < hi), and the bits that FILL writes outside it."""

    lo: tuple[int, ...]
    hi: tuple[int, ...]
    step: tuple[int, ...]
    fill: int = 0

    @property
    def extents(self) -> tuple[int, ...]:
        """Size of the box in its own coordinates."""
        return tuple(-(-(hi - lo) // step) for lo, hi, step in zip(self.lo, self.hi, self.step, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class IotaParams:
    """Parameters of `iota`: the result at coordinate c is offset + sum(c * stride)."""

    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomParams:
    """Parameters of `random`: the Philox stream, unique among a program's random and shuffle instructions."""

    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleParams:
    """Parameters of `shuffle`: a permutation of 0 ... n-1, and its Philox stream."""

    n: int
    stream: int


Params = (
    SourceConst | Slot | GatherParams | ScatterParams | WindowParams | IotaParams | RandomParams | ShuffleParams | None
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction. The result of body instruction i is value i."""

    opcode: Opcode
    function: int = 0
    dtype: DType
    shape: tuple[int, ...] = ()
    reduction: tuple[int, ...] = ()
    operands: tuple[Access, ...] = ()
    params: Params = None
    origin: str = field(default="", compare=False)
    """The place in the captured model that the instruction comes from. For display only, not encoded."""

    @property
    def numel(self) -> int:
        """Number of elements of the result."""
        return prod(self.shape)

    @property
    def terms(self) -> int:
        """Number of terms of one output element of a reduction."""
        return prod(self.reduction)

    @property
    def index_space(self) -> tuple[int, ...]:
        """The output dims followed by the reduction dims."""
        return self.shape + self.reduction

    @property
    def is_reduction(self) -> bool:
        """Whether the result's elements are sums or maxima of terms, with accumulator trees."""
        return self.opcode in (Opcode.REDUCE, Opcode.SCATTER_SUM)

    @property
    def is_f32_sum(self) -> bool:
        """Whether the result's elements are exact sums of f32, rounded once."""
        sums = (ReduceFunction.SUM, ReduceFunction.SUM_BF16)
        return self.dtype == DType.F32 and (
            self.opcode == Opcode.SCATTER_SUM or (self.opcode == Opcode.REDUCE and self.function in sums)
        )

    @property
    def is_bf16_sum(self) -> bool:
        """Whether its sums are rounded to bfloat16, whatever the job's precision."""
        return (self.opcode, self.function) in (
            (Opcode.REDUCE, ReduceFunction.SUM_BF16),
            (Opcode.SCATTER_SUM, ScatterFunction.SUM_BF16),
        )


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of the contiguous row-major layout."""
    strides = []
    step = 1
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def unravel(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The coordinates of a row-major index."""
    coordinates = []
    for dim in reversed(shape):
        index, c = divmod(index, dim)
        coordinates.append(c)
    return tuple(reversed(coordinates))


_SIGNATURES: Final[dict[tuple[Opcode, int], tuple[Signature, ...]]] = {
    (Opcode.REDUCE, ReduceFunction.SUM): (((_F,), _F), ((_F, _F), _F), ((_I,), _I)),
    (Opcode.REDUCE, ReduceFunction.MAX): _same(1, (_F, _I)),
    (Opcode.REDUCE, ReduceFunction.ARGMAX): (((_F,), _I), ((_I,), _I)),
    (Opcode.REDUCE, ReduceFunction.SUM_BF16): (((_F,), _F), ((_F, _F), _F)),
    (Opcode.GATHER, 0): tuple(((t, _I), t) for t in _ANY),
    **{(Opcode.SCATTER_SUM, function): (((_F, _I), _F),) for function in ScatterFunction},
    (Opcode.WINDOW, WindowFunction.FILL): _same(1, _ANY),
    (Opcode.WINDOW, WindowFunction.ELSE): _same(2, _ANY),
    (Opcode.IOTA, 0): (((), _I),),
    (Opcode.RANDOM, 0): (((_I, _I), _F),),
    (Opcode.SHUFFLE, 0): _same(3, (_I,)),
    (Opcode.COMMIT, 0): _same(1, _ANY),
}


def operand_counts(opcode: Opcode) -> set[int]:
    """The numbers of operands that instructions with this opcode may have."""
    if opcode == Opcode.MAP:
        found = [*MAP_SIGNATURES.values()]
    else:
        found = [accepted for (of, _), accepted in _SIGNATURES.items() if of == opcode]
    return {len(types) for accepted in found for types, _ in accepted} or {0}


def signatures(instruction: Instruction) -> tuple[Signature, ...] | None:
    """The operand and result dtypes that an instruction may have; None for `source`, which has no operands."""
    if instruction.opcode == Opcode.MAP:
        return MAP_SIGNATURES[MapFunction(instruction.function)]
    return _SIGNATURES.get((instruction.opcode, instruction.function))
