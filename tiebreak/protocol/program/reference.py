"""The meaning of every instruction, in integers (SPEC sections 4 to 7): the reference for torch and Solidity.

An element is an int: the 32-bit pattern of an f32, a signed i64, or 0 or 1 for a bool. Operands are read one element at
a time through a `Reader`, so the same code computes an element from whole tensors, judges one from openings
(`tiebreak.protocol.game.referee`) and finds out which elements it needs (`needed_elements`). The elements read are
specified: `map` and `shuffle` read all operands; `gather` reads the index and, if it is in bounds, the table; `window`
reads the one operand that fills the place; `scatter_sum` reads each index, and the source where it matches.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.numbers import float32, philox, transcendental
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, NAN_BITS, canonical
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.accumulator import Accumulator, add_term, finish, initial, kind_of, leaf_count, wrap_i64
from tiebreak.protocol.program.isa import TERMS_PER_LEAF, DType, Instruction, MapFunction, Opcode, SourceKind, unravel
from tiebreak.protocol.program.rounding import NEAREST, Rounding

Reader = Callable[[int, int], int]
"""Called with an operand number and the row-major index of an element in its value; returns the element."""

_I64_MASK: Final = (1 << 64) - 1

_F32_FUNCTIONS: Final[dict[MapFunction, Callable[..., int]]] = {
    MapFunction.COPY: canonical,
    MapFunction.ADD: float32.add,
    MapFunction.SUB: float32.subtract,
    MapFunction.MUL: float32.multiply,
    MapFunction.DIV: float32.divide,
    MapFunction.SQRT: float32.square_root,
    MapFunction.BF16: float32.to_bf16,
    MapFunction.NEG: float32.negate,
    MapFunction.ABS: float32.absolute,
    MapFunction.MAX: float32.maximum,
    MapFunction.MIN: float32.minimum,
    MapFunction.LT: float32.less,
    MapFunction.LE: float32.less_equal,
    MapFunction.EQ: float32.equal,
    MapFunction.NE: lambda x, y: not float32.equal(x, y),
}

TRANSCENDENTAL_FUNCTIONS: Final[dict[MapFunction, Callable[[int, int], int]]] = {
    MapFunction.EXP: transcendental.exp,
    MapFunction.LOG: transcendental.log,
    MapFunction.TANH: transcendental.tanh,
    MapFunction.ERF: transcendental.erf,
    MapFunction.SIN: transcendental.sin,
    MapFunction.COS: transcendental.cos,
}
"""Each function takes (bits, precision)."""

_INTEGER_FUNCTIONS: Final[dict[MapFunction, Callable[..., int]]] = {
    MapFunction.COPY: lambda x: x,
    MapFunction.ADD: lambda x, y: x + y,
    MapFunction.SUB: lambda x, y: x - y,
    MapFunction.MUL: lambda x, y: x * y,
    MapFunction.NEG: lambda x: -x,
    MapFunction.ABS: abs,
    MapFunction.MAX: max,
    MapFunction.MIN: min,
    MapFunction.LT: lambda x, y: x < y,
    MapFunction.LE: lambda x, y: x <= y,
    MapFunction.EQ: lambda x, y: x == y,
    MapFunction.NE: lambda x, y: x != y,
    MapFunction.FLOORDIV: lambda x, y: x // y if y else 0,
    MapFunction.MOD: lambda x, y: x % y if y else 0,
    MapFunction.AND: lambda x, y: x & y,
    MapFunction.OR: lambda x, y: x | y,
    MapFunction.NOT: lambda x: 1 - x,
}
"""Functions of i64 before they wrap, and of bools, which are 0 and 1. The registry says which takes which."""
_CASTS: Final[dict[tuple[DType, DType], Callable[[int], int]]] = {
    (DType.F32, DType.I64): float32.to_i64,
    (DType.F32, DType.BOOL): lambda x: int(not float32.is_zero(x)),
    (DType.I64, DType.F32): float32.from_i64,
    (DType.I64, DType.BOOL): lambda x: int(x != 0),
    (DType.BOOL, DType.F32): lambda x: float32.ONE if x else 0,
    (DType.BOOL, DType.I64): lambda x: x,
}


def scalar(
    function: MapFunction, types: Sequence[DType], result: DType, values: Sequence[int], precision: int = MAX_PRECISION
) -> int:
    """Apply a function of `map` (SPEC 4.4). The dtypes must be one of its signatures in the registry."""
    if function in isa.TRANSCENDENTALS:
        return TRANSCENDENTAL_FUNCTIONS[function](values[0], precision)
    if function == MapFunction.WHERE:
        return normal(result, values[1] if values[0] else values[2])
    if function == MapFunction.CAST:
        return _CASTS[types[0], result](values[0])
    functions = _F32_FUNCTIONS if types[0] == DType.F32 else _INTEGER_FUNCTIONS
    found = int(functions[function](*values))
    return wrap_i64(found) if result == DType.I64 else found


def normal(dtype: DType, x: int) -> int:
    """The element itself, with any f32 NaN replaced by the canonical one."""
    return canonical(x) if dtype == DType.F32 else x


def from_raw(dtype: DType, bits: int) -> int:
    """The element for the raw bits of a constant or a fill."""
    return wrap_i64(bits) if dtype == DType.I64 else normal(dtype, bits)


def to_raw(dtype: DType, x: int) -> int:
    """An element as unsigned bits: the inverse of `from_raw`."""
    return x & _I64_MASK if dtype == DType.I64 else x


def base_element(instruction: Instruction, operand: int, coordinate: Sequence[int]) -> int:
    """Index of the element that an operand reads at an output coordinate, with all reduction coordinates zero."""
    access = instruction.operands[operand]
    return access.offset + sum(c * s for c, s in zip(coordinate, access.strides, strict=False))


def element(
    instruction: Instruction,
    index: int,
    read: Reader,
    operand_dtypes: Sequence[DType],
    *,
    step: int = 1,
    rounding: Rounding = NEAREST,
) -> int:
    """Element `index` (row-major) of a result. Raises `ValueError` for `source` of state or data and for `commit`."""
    coordinate = unravel(index, instruction.shape)
    match instruction.opcode, instruction.params:
        case Opcode.MAP, _:
            values = [read(k, base_element(instruction, k, coordinate)) for k in range(len(instruction.operands))]
            return scalar(
                MapFunction(instruction.function), operand_dtypes, instruction.dtype, values, rounding.precision
            )
        case ((Opcode.REDUCE | Opcode.SCATTER_SUM), _):
            start = initial(kind_of(instruction, operand_dtypes[0]))
            return finish(_accumulate(instruction, index, range(instruction.terms), start, read), rounding)
        case Opcode.GATHER, isa.GatherParams() as params:
            return _gather(instruction, params, coordinate, read)
        case Opcode.WINDOW, isa.WindowParams() as params:
            return _window(instruction, params, coordinate, read)
        case Opcode.IOTA, isa.IotaParams() as params:
            return wrap_i64(params.offset + sum(c * s for c, s in zip(coordinate, params.strides, strict=True)))
        case Opcode.RANDOM, isa.RandomParams() as params:
            seed, drawn_step = (read(k, base_element(instruction, k, coordinate)) for k in range(2))
            return philox.random_bits(seed, drawn_step, params.stream, index)
        case Opcode.SHUFFLE, isa.ShuffleParams() as params:
            position, seed, epoch = (read(k, base_element(instruction, k, coordinate)) for k in range(3))
            return philox.shuffle(position, seed, epoch, params.n, params.stream)
        case Opcode.SOURCE, isa.SourceConst() as params:
            return from_raw(instruction.dtype, params.bits)
        case Opcode.SOURCE, None if instruction.function == SourceKind.STEP:
            return step - 1
    raise ValueError(f"{instruction.opcode.name} {instruction.function} is not computed element by element")


def _gather(instruction: Instruction, params: isa.GatherParams, coordinate: Sequence[int], read: Reader) -> int:
    j = read(1, base_element(instruction, 1, coordinate))
    if not 0 <= j < params.bound:
        return NAN_BITS if instruction.dtype == DType.F32 else 0
    table = base_element(instruction, 0, coordinate) + j * params.index_stride
    return normal(instruction.dtype, read(0, table))


def _window(instruction: Instruction, params: isa.WindowParams, coordinate: Sequence[int], read: Reader) -> int:
    inner = []
    for c, lo, hi, step in zip(coordinate, params.lo, params.hi, params.step, strict=True):
        q, rest = divmod(c - lo, step)
        if not lo <= c < hi or rest:
            break
        inner.append(q)
    if len(inner) == len(coordinate):
        return normal(instruction.dtype, read(0, base_element(instruction, 0, inner)))
    if instruction.function == isa.WindowFunction.FILL:
        return from_raw(instruction.dtype, params.fill)
    return normal(instruction.dtype, read(1, base_element(instruction, 1, coordinate)))


def _factors(instruction: Instruction, index: int, positions: range, read: Reader) -> Iterator[list[int] | None]:
    """The factors of each term, or None where a `scatter_sum` does not match."""
    coordinate = unravel(index, instruction.shape)
    rank = len(coordinate)
    bases = [base_element(instruction, k, coordinate) for k in range(len(instruction.operands))]
    inner = [access.strides[rank:] for access in instruction.operands]
    params = instruction.params
    target = None
    if isinstance(params, isa.ScatterParams):
        target = sum(c * s for c, s in zip(coordinate, params.match, strict=True))
    for position in positions:
        r = unravel(position, instruction.reduction)
        at = [base + sum(map(int.__mul__, r, strides)) for base, strides in zip(bases, inner, strict=True)]
        if target is None:
            yield [read(k, where) for k, where in enumerate(at)]
        else:
            yield [read(0, at[0])] if read(1, at[1]) == target else None


def _accumulate(
    instruction: Instruction, index: int, positions: range, accumulator: Accumulator, read: Reader
) -> Accumulator:
    terms = zip(positions, _factors(instruction, index, positions, read), strict=True)
    for position, factors in terms:
        if factors is not None:
            accumulator = add_term(accumulator, factors, position)
    return accumulator


def accumulate_leaf(
    instruction: Instruction,
    index: int,
    leaf: int,
    previous: Accumulator | None,
    read: Reader,
    operand_dtypes: Sequence[DType],
) -> Accumulator:
    """The accumulator after the terms of leaf `leaf` of element `index`. `previous` is None exactly for leaf 0."""
    if not 0 <= leaf < leaf_count(instruction.terms):
        raise ValueError(f"expected a leaf below {leaf_count(instruction.terms)}, got {leaf}")
    if (previous is None) != (leaf == 0):
        raise ValueError(f"expected a previous accumulator exactly for leaves above 0, got leaf {leaf}")
    kind = kind_of(instruction, operand_dtypes[0])
    if previous is not None and previous.kind != kind:
        raise EncodingError(f"expected an accumulator of kind {kind.value[0]}, got {previous.kind.value[0]}")
    first = leaf * TERMS_PER_LEAF
    positions = range(first, min(first + TERMS_PER_LEAF, instruction.terms))
    return _accumulate(instruction, index, positions, previous or initial(kind), read)


def accumulators(
    instruction: Instruction, index: int, read: Reader, operand_dtypes: Sequence[DType]
) -> list[Accumulator]:
    """The accumulators at the leaves of the accumulator tree of element `index`."""
    found: list[Accumulator] = []
    for leaf in range(leaf_count(instruction.terms)):
        previous = found[-1] if found else None
        found.append(accumulate_leaf(instruction, index, leaf, previous, read, operand_dtypes))
    return found


def needed_elements(
    instruction: Instruction, index: int, leaf: int | None, read: Reader, operand_dtypes: Sequence[DType]
) -> tuple[tuple[int, int], ...]:
    """The (operand number, element) pairs from which an element, or one leaf of its accumulators, is computed.

    They are found by computing it, since `gather` and `scatter_sum` read where their data says. Ordered by first read.
    """
    seen: dict[tuple[int, int], int] = {}

    def recording(operand: int, where: int) -> int:
        found = seen[operand, where] = read(operand, where)
        return found

    if leaf is None:
        element(instruction, index, recording, operand_dtypes)
    else:
        first = leaf * TERMS_PER_LEAF
        positions = range(first, min(first + TERMS_PER_LEAF, instruction.terms))
        _accumulate(instruction, index, positions, initial(kind_of(instruction, operand_dtypes[0])), recording)
    return tuple(seen)


def unpack(dtype: DType, data: bytes | memoryview) -> list[int]:
    """The elements of tensor data; NaNs become canonical. Raises `EncodingError` for bools other than 0 and 1."""
    raw = bytes(data)
    if len(raw) % dtype.size:
        raise EncodingError(f"expected a multiple of {dtype.size} bytes of {dtype.name}, got {len(raw)}")
    if dtype == DType.BOOL:
        if raw.strip(b"\x00\x01"):
            raise EncodingError("expected bools of 0 or 1, got another byte")
        return list(raw)
    starts = range(0, len(raw), dtype.size)
    if dtype == DType.I64:
        return [int.from_bytes(raw[at : at + 8], "little", signed=True) for at in starts]
    return [canonical(int.from_bytes(raw[at : at + 4], "little")) for at in starts]


def pack(dtype: DType, elements: Sequence[int]) -> bytes:
    """The tensor data of some elements: the inverse of `unpack`."""
    return b"".join(to_raw(dtype, x).to_bytes(dtype.size, "little") for x in elements)
