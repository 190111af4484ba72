"""Device qualification: a device must reproduce the integer reference before it computes anything that is committed.

1. Every function of `map`, on every signature, over all pairs (triples) of edge values; transcendentals at many more
   arguments.
2. Sums (plain, of products, scattered): ties, results next to ties, cancellation, subnormals, overflow and non-finite
   terms, long and wide enough that the device takes its fast kernels.
   Devices other than CPUs also compute one large matrix product, because a vendor's library may emulate FP64 there.
3. max and argmax (zeros, NaN, equal values), gather, window, iota, casts, random, shuffle.
4. Where matrix products may be computed by integers, those of 2 so, whatever their sizes.
5. Ids of tensors of all dtypes, around the boundaries of words, blocks, chunks and tree levels, with NaN of all kinds.

An arithmetic that logs near ties is also checked for what it reports: each reported value must lie within the error
that it claims, and each result that is not reported must be exact.

Instructions that may be part of an elementwise chain are run by the compiled chain kernel as well, if there is one: all
functions of the same operands as one chain, and each transcendental as one of its own.

The oracle is `tiebreak.protocol.program.reference`, which computes in integers. The first mismatch raises a
`ConfigurationError` that names the operation, the operand bits and both results: such a device would fork the run.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import chain, islice, product
from math import prod
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import identities, is_host
from tiebreak.engine.arithmetic.plan.sums import reads_each_once
from tiebreak.engine.data.tensors import canonical, from_bytes, memory_of
from tiebreak.engine.dtypes import PROTOCOL_DTYPES, TORCH_DTYPES
from tiebreak.engine.native import EMULATION, SWITCH, emulation
from tiebreak.engine.run.schedule import is_elementwise
from tiebreak.protocol.commitments.records import identify
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.hashing import one_nan
from tiebreak.protocol.numbers.float32 import plus_zero, round_ratio
from tiebreak.protocol.numbers.philox import random_bits
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.isa import Access, DType, Instruction, MapFunction, Opcode, ReduceFunction
from tiebreak.protocol.program.reference import element, needed_elements, pack, to_raw, unpack
from tiebreak.protocol.program.rounding import Rounding, sum_kind
from tiebreak.protocol.tags import Digest

_EDGES: Final[dict[DType, tuple[int, ...]]] = {
    DType.F32: (
        *(0, 0x80000000, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x807FFFFF, 0x3F800000, 0xBF800000, 0x3F800001, 0x3F7FFFFF),
        *(0x33800000, 0x33800001, 0x34000000, 0x40400000, 0x7F7FFFFF, 0xFF7FFFFF, 0x4B800000, 0x5F000000, 0xDF000000),
        *(0x42B17218, 0xC2CFF1B5, 0x40490FDB, 0x3FC90FDB, 0x6E51A3B7, 0x7F800000, 0xFF800000, 0x7FC00000),
    ),
    DType.I64: (
        *(0, 1, -1, 2, 7, -7, (1 << 63) - 1, -(1 << 63), (1 << 53) + 1, (1 << 24) + 1, (1 << 60) + (1 << 36) + 1),
        *((1 << 54) + (1 << 30) + 1, -((1 << 60) + (1 << 36))),
    ),
    DType.BOOL: (0, 1),
}
_ONE: Final = 0x3F800000
_INFINITY: Final = 0x7F800000
_SIGN: Final = 0x80000000
_HARD_ROWS: Final[tuple[tuple[int, ...], ...]] = (
    (_ONE, 0x33800000),
    (_ONE + 1, 0x33800000),
    (_ONE, 0x33800000, 1),
    (_ONE, 0x33800000, 1 | _SIGN),
    (_ONE, 0x33800000, 1, 0x0E800000, 0x0E800000 | _SIGN),
    (_ONE, 0x33800000, 1 | _SIGN, 0x0E800000, 0x0E800000 | _SIGN),
    (0x49800000, 0x3D800000, 1),
    (0x7F7FFFFF, 0x7F7FFFFF, 0xFF7FFFFF),
    (0x7F7FFFFF, 0x73000000),
    (0x7F7FFFFF, 0x73000000, 1 | _SIGN),
    (_ONE, 0xBF800000),
    (_SIGN, _SIGN),
    (1, 1, 1),
    (0x7F7FFFFF, 0xFF7FFFFF, 0x7FFFFF, 3),
    (1 | _SIGN,),
    (0x7F800000, _ONE),
    (0x7F800000, 0xFF800000),
    (0x7FC00000, _ONE),
)
"""Rows to be padded with zeros: ties, next to ties, cancellation, overflow, zeros, subnormals, infinities, NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualificationReport:
    """The result for a device that passed."""

    device: str
    cases: int
    """The number of elements compared."""
    operations: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Case:
    """An instruction, its operands, and the elements to compare (empty: all)."""

    name: str
    instruction: Instruction
    operands: tuple[tuple[DType, tuple[int, ...]], ...]
    elements: tuple[int, ...] = ()
    held: bool = False
    """Whether its last operand is held in bfloat16, as frozen weights may be."""


def qualify(arithmetic: Arithmetic) -> QualificationReport:
    """Runs the conformance vectors on the arithmetic's device; raises `ConfigurationError` at the first mismatch.

    Refuses a CUDA device also where the vendor's FP64 may be emulated: no vectors can show that its error is bounded.
    """
    check_emulation(arithmetic.device)
    started = perf_counter()
    operations: dict[str, int] = {}
    precision = arithmetic.options.precision
    large = () if is_host(arithmetic.device) else _vectors(precision, large=True)
    vectors = (*_vectors(precision), *large)
    arithmetic.backend.compile_ahead(lambda: _rehearse(arithmetic, vectors))
    for case, right in vectors:
        operations[case.name] = operations.get(case.name, 0) + _compare(arithmetic, case, right)
    for chained, wanted, result in _chained(arithmetic, vectors):
        _compare_result(arithmetic, chained, wanted, result)
    if (other := arithmetic.by_integers()) is not None:
        for case, right in vectors:
            if case.instruction.is_f32_sum and len(case.instruction.operands) == 2:
                named = replace(case, name=f"{case.name} by integers")
                operations[named.name] = operations.get(named.name, 0) + _compare(other, named, right)
    operations["hashing"] = _compare_ids(arithmetic)
    return QualificationReport(
        device=str(arithmetic.device),
        cases=sum(operations.values()),
        operations=tuple(operations),
        seconds=perf_counter() - started,
    )


def check_emulation(device: torch.device) -> None:
    """Raises `ConfigurationError` if the device's vendor was asked to emulate FP64."""
    if not is_host(device) and (value := emulation()) not in ("", "0"):
        raise ConfigurationError(f"expected {EMULATION} to be unset or 0 where {device} computes, got {value!r}")


def _compare(arithmetic: Arithmetic, case: _Case, right: Sequence[int]) -> int:
    tensors, i = _operands(arithmetic, case), case.instruction
    _compare_result(arithmetic, case, right, arithmetic.execute(i, tensors, 0))
    if arithmetic.options.logging is not None and sum_kind(i) is not None:
        _compare_logged(arithmetic, replace(case, name=f"{case.name} (logged)"), right, tensors)
    return len(right)


def _operands(arithmetic: Arithmetic, case: _Case) -> list[Tensor]:
    made = [from_bytes(pack(t, x), t, (len(x),)).to(arithmetic.device) for t, x in case.operands]
    return [*made[:-1], made[-1].to(torch.bfloat16)] if case.held else made


def _rehearse(arithmetic: Arithmetic, vectors: Sequence[tuple[_Case, Sequence[int]]]) -> None:
    """Executes all cases once without comparing results, so that their kernels can be compiled ahead."""
    for case, _ in vectors:
        arithmetic.execute(case.instruction, _operands(arithmetic, case), 0)
    for _ in _chained(arithmetic, vectors):
        pass
    _ids(arithmetic)


def _chained(
    arithmetic: Arithmetic, vectors: Sequence[tuple[_Case, Sequence[int]]]
) -> Iterator[tuple[_Case, Sequence[int], Tensor]]:
    """Some cases once more, as chains and with prologues: case, right answers, and the device's result."""
    chains, together = arithmetic.chains, defaultdict[object, list[tuple[_Case, Sequence[int]]]](list)
    if chains is None:
        return
    for case, right in vectors:
        i = case.instruction
        if is_elementwise(i, chains.functions):
            alone = i.function if i.opcode == Opcode.MAP and i.function in isa.TRANSCENDENTALS else None
            together[i.opcode, i.shape, i.operands, case.operands, alone].append((case, right))
    for members in together.values():
        instructions, operands = [case.instruction for case, _ in members], _operands(arithmetic, members[0][0])
        for (case, right), result in zip(members, arithmetic.backend.run_once(instructions, operands), strict=True):
            yield replace(case, name=f"{case.name} (compiled)"), right, result
    # The first sum and the first maximum that may have a prologue, which copies their operand.
    wanted: set[int] = {ReduceFunction.SUM, ReduceFunction.MAX} if chains.prologues else set()
    for case, right in vectors:
        i = case.instruction
        plain = i.opcode == Opcode.REDUCE and i.dtype == DType.F32 and i.function in wanted
        if plain and reads_each_once(i, size := len(case.operands[0][1])):
            wanted.remove(i.function)
            copy = _one(Opcode.MAP, DType.F32, (size,), Access(0, 0, (1,)), function=MapFunction.COPY)
            reduced = replace(i, operands=(replace(i.operands[0], value=1),))
            named = replace(case, name=f"{case.name} (with a prologue)")
            yield named, right, arithmetic.backend.run_once([copy, reduced], _operands(arithmetic, case))[0]


def _ids(arithmetic: Arithmetic) -> dict[str, Digest]:
    """The ids of tensors that are hashed on the device, all at once as those of a state."""
    tensors = {str(n): x.to(arithmetic.device) for n, x in enumerate(_tensors())}
    return identities(tensors, compiled=arithmetic.options.compiled)


def _compare_ids(arithmetic: Arithmetic) -> int:
    """Compares ids with hashlib's."""
    found = _ids(arithmetic)
    for n, x in enumerate(_tensors()):
        data = one_nan(memory_of(x)) if x.dtype == torch.float32 else memory_of(x)
        right = identify(PROTOCOL_DTYPES[x.dtype], tuple(x.shape), data)
        if found[str(n)] != right:
            raise ConfigurationError(
                f"{arithmetic.device} does not hash {x.dtype} {tuple(x.shape)} right: expected {right.hex()}, got "
                f"{found[str(n)].hex()}. What it commits to would be wrong: use another device, driver or version of "
                f"Triton, or set {SWITCH}=0"
            )
    return len(found)


def _tensors() -> Iterator[Tensor]:
    """Tensors to hash: at the edges of a block (13, 14 words), of a chunk, and of trees, one of which is large."""
    for words in (1, 11, 12, 13, 14, 125, 126, 127, 128, 129, 256, 257, 640, 641, 1 << 16):
        drawn = torch.arange(words, dtype=torch.int64).mul_(0x9E3779B97F4A7C15 - (1 << 64))
        yield drawn
        yield drawn.view(torch.int32)[::2].contiguous().view(torch.float32)
        yield drawn > 0
    nan = (0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x80000000, 0xFF800000, 0xFF800001, 0xFFC00000, 0xFFFFFFFF)
    yield torch.tensor(nan * 33, dtype=torch.int64).to(torch.int32).view(torch.float32).view(9, 33)


def _compare_logged(arithmetic: Arithmetic, case: _Case, right: Sequence[int], tensors: Sequence[Tensor]) -> None:
    """Reported elements may differ from the exact result, but their value c must be within e of the exact sum."""
    i = case.instruction
    result, ties = arithmetic.execute_logged(i, tensors, 0)
    listed = zip(ties.elements.tolist(), ties.values.tolist(), ties.errors.tolist(), strict=True)
    near = {at: (c, e) for at, c, e in listed}
    found = _elements(result)
    sums = dict(zip(near, arithmetic.exact_sums(i, tensors, list(near)), strict=True))
    for at, want in zip(case.elements or range(i.numel), right, strict=True):
        exact = sums.get(at)
        if exact is None:
            if found[at] != want:
                raise ConfigurationError(_mismatch(arithmetic, case, at, want, found[at]))
            continue
        c, e = near[at]
        x = Fraction(exact[0]) * Fraction(2) ** exact[1]
        rounded = plus_zero(round_ratio(*c.as_integer_ratio(), precision=arithmetic.options.precision))
        if abs(Fraction(c) - x) > Fraction(e) or found[at] != rounded:
            raise ConfigurationError(
                f"{arithmetic.device}: {case.name}: expected a sum within {e} of the exact {float(x)}, rounded, for a "
                f"near tie, got {c} as {found[at]:#x}. Thresholds may be too small for this device: calibrate again"
            )


def _compare_result(arithmetic: Arithmetic, case: _Case, right: Sequence[int], result: Tensor) -> None:
    i = case.instruction
    if result.shape != i.shape or result.dtype != TORCH_DTYPES[i.dtype] or not result.is_contiguous():
        raise ConfigurationError(
            f"{arithmetic.device}: {case.name}: expected a contiguous {i.dtype.name} {i.shape}, got {result.dtype} "
            f"{tuple(result.shape)}"
        )
    found = _elements(result)
    for at, want in zip(case.elements or range(i.numel), right, strict=True):
        if found[at] != want:
            raise ConfigurationError(_mismatch(arithmetic, case, at, want, found[at]))


def _mismatch(arithmetic: Arithmetic, case: _Case, at: int, want: int, got: int) -> str:
    i = case.instruction
    types = [t for t, _ in case.operands]
    read = needed_elements(i, at, None, lambda o, where: case.operands[o][1][where], types)
    bits = [f"{to_raw(types[o], case.operands[o][1][where]):#x}" for o, where in read[:8]]
    more = f" and {len(read) - 8} more" if len(read) > 8 else ""
    return (
        f"{arithmetic.device} does not compute {case.name} exactly: expected {to_raw(i.dtype, want):#x}, got "
        f"{to_raw(i.dtype, got):#x} for the operands {', '.join(bits)}{more}. It would fork the run: use another "
        f"device, driver or build of torch; check that FP64 emulation and flushing of subnormals are off"
    )


def _elements(tensor: Tensor) -> list[int]:
    tensor = canonical(tensor).cpu().contiguous()
    return unpack(PROTOCOL_DTYPES[tensor.dtype], tensor.numpy().tobytes())


@cache
def _vectors(precision: int, *, large: bool = False) -> tuple[tuple[_Case, tuple[int, ...]], ...]:
    """Every case, or the large ones, with its right answers, which are computed once per process."""
    return tuple((case, _right(case, precision)) for case in (_large_products() if large else _cases()))


def _right(case: _Case, precision: int) -> tuple[int, ...]:
    types = [t for t, _ in case.operands]
    values = [x for _, x in case.operands]
    i, rounding = case.instruction, Rounding(precision=precision)
    return tuple(
        element(i, at, lambda o, where: values[o][where], types, rounding=rounding)
        for at in case.elements or range(i.numel)
    )


def _cases() -> Iterator[_Case]:
    parts = _maps, _transcendentals, _sums, _products, _scatters, _to_bf16, _extremes, _selections, _draws
    return chain.from_iterable(part() for part in parts)


@cache
def _draw(count: int, seed: int) -> tuple[int, ...]:
    """`count` f32 bit patterns in (-2, 2) without zeros, drawn with the protocol's own generator."""
    words = (random_bits(seed, 0, 0, n) for n in range(count))
    return tuple(word | (_SIGN if n % 3 == 0 else 0) if word else _ONE for n, word in enumerate(words))


def _maps() -> Iterator[_Case]:
    for function, signatures in isa.MAP_SIGNATURES.items():
        for types, result in signatures:
            edges = [_EDGES[t][:: 3 if len(types) == 3 and t != DType.BOOL else 1] for t in types]
            # Both as whole vectors and broadcast over the product: the two may use different kernels.
            grid = list(product(*edges))
            count = len(grid)
            operands = tuple((t, tuple(row[o] for row in grid)) for o, t in enumerate(types))
            accesses = tuple(Access(o, 0, (1,)) for o in range(len(types)))
            name = f"map {function.name.lower()} {'*'.join(t.name for t in types)} to {result.name}"
            yield _Case(name, _one(Opcode.MAP, result, (count,), *accesses, function=function), operands)
            if len(types) == 2:
                shape = tuple(map(len, edges))
                spread = (Access(0, 0, (1, 0)), Access(1, 0, (0, 1)))
                i = _one(Opcode.MAP, result, shape, *spread, function=function)
                yield _Case(name, i, tuple(zip(types, edges, strict=True)))


def _one(opcode: Opcode, dtype: DType, shape: tuple[int, ...], *operands: Access, **more: Any) -> Instruction:
    return Instruction(opcode=opcode, dtype=dtype, shape=shape, operands=operands, **more)


def _transcendentals() -> Iterator[_Case]:
    near_one = tuple(exponent << 23 | fraction for exponent in range(100, 136, 3) for fraction in (0, 0x123456))
    x = (*_draw(40, 1), *near_one, *(n | _SIGN for n in near_one))
    for function in (*sorted(isa.TRANSCENDENTALS), MapFunction.SQRT):
        i = _one(Opcode.MAP, DType.F32, (len(x),), Access(0, 0, (1,)), function=function)
        yield _Case(f"map {function.name.lower()}", i, ((DType.F32, x),))


def _rows(width: int, seed: int) -> tuple[int, ...]:
    """The hard rows, each padded with zeros to `width` terms, which stand at places that depend on the row."""
    found: list[int] = []
    for n, row in enumerate(_HARD_ROWS):
        line = [0] * width
        for k, bits in enumerate(row):
            line[(k * 7 + n * seed) % width] = bits
        found += line
    return tuple(found)


def _reduce(
    function: ReduceFunction, dtype: DType, shape: tuple[int, ...], reduction: tuple[int, ...], *operands: Access
) -> Instruction:
    return _one(Opcode.REDUCE, dtype, shape, *operands, function=function, reduction=reduction)


def _sum_of(
    shape: tuple[int, ...], reduction: tuple[int, ...], *read: tuple[Access, tuple[int, ...]],
    elements: tuple[int, ...] = (),
) -> _Case:  # fmt: skip
    """An f32 sum, plain or of products. read: for each operand, how it is read, and the bits of its elements."""
    i = _reduce(ReduceFunction.SUM, DType.F32, shape, reduction, *(access for access, _ in read))
    name = "reduce sum" if len(read) == 1 else "reduce sum of products"
    return _Case(name, i, tuple((DType.F32, bits) for _, bits in read), elements)


def _sums() -> Iterator[_Case]:
    count = len(_HARD_ROWS)
    for width in (5, 64, 333):
        x = _rows(width, width % 5 + 1)
        yield _sum_of((count,), (width,), (Access(0, 0, (width, 1)), x))
        turned = tuple(x[r * width + c] for c in range(width) for r in range(count))
        yield _sum_of((count,), (width,), (Access(0, 0, (1, count)), turned))
        yield _sum_of((), (width * 9,), (Access(0, 0, (1,)), x))
        # One hard row in sixteen: few undecided elements are settled in another way than many. Once without rows that
        # are not finite, which alone would make a kernel look at all others.
        easy = (_ONE, *[0] * (width - 1)) * 15
        lines = [x[r * width : (r + 1) * width] for r in range(count)]
        for hard in (lines, [line for line in lines if all(bits & _INFINITY != _INFINITY for bits in line)]):
            sparse = tuple(bits for line in hard for bits in (*line, *easy))
            rows = 16 * len(hard)
            yield _sum_of((rows,), (width,), (Access(0, 0, (width, 1)), sparse), elements=tuple(range(0, rows, 16)))
    wrapping = _reduce(ReduceFunction.SUM, DType.I64, (), (len(_EDGES[DType.I64]),), Access(0, 0, (1,)))
    yield _Case("reduce sum of i64", wrapping, ((DType.I64, _EDGES[DType.I64]),))


def _products() -> Iterator[_Case]:
    """Hard rows, a cancelling row and a drawn row, times columns of ones, powers of two and drawn numbers."""
    for width, columns in ((5, 3), (96, 17), (700, 40)):
        drawn = _draw(width // 2, width)
        cancelling = (*drawn, *(bits ^ _SIGN for bits in drawn), *((1,) * (width % 2)))
        left = (*_rows(width, 3), *cancelling, *_draw(width, 9))
        rows = len(_HARD_ROWS) + 2
        spare = _draw(width * (columns - 2), 5)
        right = tuple(
            (_ONE if c == 0 else 0x34800000 if c == 1 else spare[(c - 2) * width + k % (width // 2)])
            for k in range(width)
            for c in range(columns)
        )
        read = (Access(0, 0, (width, 0, 1)), left), (Access(1, 0, (0, 1, columns)), right)
        chosen = tuple(r * columns + c for r in range(rows) for c in {0, 1, 2, columns - 1})
        yield _sum_of((rows, columns), (width,), *read, elements=chosen)
    # A convolution: overlapping views, a batch dim, a reversed filter.
    image, filters = _draw(2 * 2 * 36, 11), _draw(3 * 2 * 9, 12)
    read = (Access(0, 0, (72, 0, 6, 1, 36, 6, 1)), image), (Access(1, 8, (0, 18, 0, 0, 9, -3, -1)), filters)
    yield _sum_of((2, 3, 4, 4), (2, 3, 3), *read)
    # A unit that cuts additions, or aligns several terms and cuts them, is further off here than the bound allows.
    a, b = (_ONE, 0x33800000, 0xB63E0000, *253 * (0x32FC0000,)), (_ONE, _ONE, 0x32800000, *253 * (0x32000000,))
    x, y = 32 * (*a, *(bits ^ _SIGN for bits in a)), tuple(bits for bits in b for _ in range(64))
    read = (Access(0, 0, (256, 0, 1)), x), (Access(1, 0, (0, 1, 64)), y)
    case = _sum_of((64, 64), (256,), *read, elements=(0, 65, 62 * 65, 63 * 65))
    yield from (case, replace(case, held=True, name=f"{case.name} (of bfloat16)"))
    # Ties, and some that a factor far below the others of its column, or its row, decides; eight rows begin with a tie.
    for rows, columns in (12, 1), (8, 12):
        x = tuple(bits for row in range(12) for bits in (_ONE, 0x1C800000 * (row >= rows), _ONE, 0x33800000))
        y = (*12 * (0x3F800002,), *12 * (_ONE,), *columns * (0,), *(12 - columns) * (0x1C800000,), *12 * (_ONE,))
        read = (Access(0, 0, (4, 0, 1)), x), (Access(1, 0, (0, 1, 12)), y)
        yield _sum_of((12, 12), (4,), *read, elements=(0, 11, 132, 143))
    # Neither side has a dim of its own: a product row by row.
    flat = _rows(48, 5)
    ones = tuple(_ONE for _ in flat)
    yield _sum_of((len(_HARD_ROWS),), (48,), (Access(0, 0, (48, 1)), flat), (Access(1, 0, (48, 1)), ones))


def _large_products() -> Iterator[_Case]:
    """Hard and cancelling rows, repeated many times, times columns of ones, powers of two and drawn numbers.

    Large enough that a vendor's library may emulate FP64 with smaller formats, and that kernels copy an operand first.
    """
    width, columns, copies = 1024, 512, 28
    drawn = _draw(width // 2, width)
    once = (*_rows(width, 3), *drawn, *(bits ^ _SIGN for bits in drawn))
    rows, spare = len(once) // width, _draw(1009, 5)
    right = tuple(
        _ONE if c == 0 else 0x34800000 if c == 1 else spare[(c * 31 + k % (width // 2)) % len(spare)]
        for k in range(width)
        for c in range(columns)
    )
    first, last = range(rows), range(rows * (copies - 1), rows * copies)
    chosen = tuple(r * columns + c for r in (*first, *last) for c in (0, 1, 2, columns - 1))
    for reduction, left_strides, right_strides, some in (
        ((width,), (width, 0, 1), (0, 1, columns), chosen),
        ((32, 32), (width, 0, 1, 32), (0, width, 31, 1), chosen[::8]),
    ):
        read = (Access(0, 0, left_strides), once * copies), (Access(1, 0, right_strides), right)
        case = _sum_of((rows * copies, columns), reduction, *read, elements=some)
        yield replace(case, name=f"{case.name} (large)")


def _scatters() -> Iterator[_Case]:
    """Adds term k of hard row n to output n, in an order that mixes the rows; and adds whole rows of an embedding."""
    terms = [(n, bits) for n, row in enumerate(_HARD_ROWS) for bits in row]
    terms = [terms[k * 11 % len(terms)] for k in range(len(terms))] if len(terms) % 11 else terms
    terms += [(-1, _ONE), (len(_HARD_ROWS), _ONE)]
    count = len(terms)
    source, index = tuple(bits for _, bits in terms), tuple(n for n, _ in terms)
    for width in (1, 6):
        i = _one(
            Opcode.SCATTER_SUM, DType.F32, (len(_HARD_ROWS), width), Access(0, 0, (0, 0, 1)), Access(1, 0, (0, 0, 1)),
            reduction=(count,), params=isa.ScatterParams(match=(1, 0)),
        )  # fmt: skip
        yield _Case("scatter_sum", i, ((DType.F32, source), (DType.I64, index)))


def _to_bf16() -> Iterator[_Case]:
    """Some of the sums, to bfloat16: their own ties are 16 bits away from those of f32."""
    rows = [(_ONE, 0x3B800000, more, 0, 0) for more in (0, 1, 1 | _SIGN, 0x0E800000)]
    ties = _sum_of((len(rows),), (5,), (Access(0, 0, (5, 1)), tuple(bits for row in rows for bits in row)))
    sums, products, scatters = (
        islice((case for case in made() if case.instruction.is_f32_sum), 2) for made in (_sums, _products, _scatters)
    )
    for case in (ties, *sums, *products, *scatters):
        is_scatter = case.instruction.opcode == Opcode.SCATTER_SUM
        function = isa.ScatterFunction.SUM_BF16 if is_scatter else ReduceFunction.SUM_BF16
        yield replace(case, name=f"{case.name} to bf16", instruction=replace(case.instruction, function=function))


def _extremes() -> Iterator[_Case]:
    rows = ((_SIGN, 0), (0, _SIGN), (0x7FC00000, _INFINITY), (1, 0x7FC00000), (_INFINITY | _SIGN,) * 2, (3, 3))
    x = tuple(bits for row in rows for k in range(20) for bits in row)
    for function, dtype in ((ReduceFunction.MAX, DType.F32), (ReduceFunction.ARGMAX, DType.I64)):
        name = f"reduce {function.name.lower()}"
        for width in (2, 40):
            i = _reduce(function, dtype, (len(rows),), (width,), Access(0, 0, (40, 1)))
            yield _Case(name, i, ((DType.F32, x),))
        i = _reduce(function, DType.I64, (), (4, 3), Access(0, 0, (3, 1)))
        yield _Case(f"{name} of i64", i, ((DType.I64, _EDGES[DType.I64]),))


def _selections() -> Iterator[_Case]:
    for dtype, table in ((DType.F32, _draw(24, 3)), (DType.I64, tuple(range(24))), (DType.BOOL, (0, 1, 1) * 8)):
        for strides in ((0, 1), (1, 0)):  # whole rows, single elements
            params = isa.GatherParams(index_stride=4, bound=4)
            i = _one(Opcode.GATHER, dtype, (7, 4), Access(0, 0, strides), Access(1, 0, (1, 0)), params=params)
            yield _Case("gather", i, ((dtype, table), (DType.I64, (3, 0, 3, -1, 4, 1, -(1 << 63)))))
        for function in isa.WindowFunction:
            shape, fill = (5, 4), 1 if function == isa.WindowFunction.FILL else 0
            box = isa.WindowParams(lo=(1, 0), hi=(5, 4), step=(2, 1), fill=fill)
            accesses = (Access(0, 7, (-4, 1)), Access(1, 0, isa.row_major(shape)))[: 1 + function]
            i = _one(Opcode.WINDOW, dtype, shape, *accesses, function=function, params=box)
            yield _Case("window", i, ((dtype, table), (dtype, table[::-1][: prod(shape)]))[: 1 + function])
    wrapping = isa.IotaParams(offset=(1 << 63) - 3, strides=(1, -(1 << 63)))
    yield _Case("iota", _one(Opcode.IOTA, DType.I64, (3, 5), params=wrapping), ())


def _draws() -> Iterator[_Case]:
    zeros = ((DType.I64, (-5,)), (DType.I64, ((1 << 40) + 3,)))
    same = Access(0, 0, (0, 0)), Access(1, 0, (0, 0))
    i = _one(Opcode.RANDOM, DType.F32, (11, 13), *same, params=isa.RandomParams(stream=(1 << 32) - 1))
    yield _Case("random", i, zeros)
    for n in (1, 5, 60, 1 << 40):
        index = (*range(min(n, 30)), n - 1, n, -1)
        accesses = Access(0, 0, (1,)), Access(1, 0, (0,)), Access(2, 0, (0,))
        i = _one(Opcode.SHUFFLE, DType.I64, (len(index),), *accesses, params=isa.ShuffleParams(n=n, stream=9))
        yield _Case("shuffle", i, ((DType.I64, index), *zeros))
