"""The engine against the integers where hardware and languages differ: the ends of i64, NaN, signed zeros, indices."""

import struct

import pytest

from tests.protocol.instructions import counted, drawn, gathered, mapped, reduced, scattered, shuffled, windowed
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.data.tensors import from_bytes, tensor_bytes
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.protocol.program.isa import (
    Access,
    DType,
    Instruction,
    MapFunction,
    ReduceFunction,
)
from tiebreak.protocol.program.reference import element, pack, unpack

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
LEAST, MOST = -(1 << 63), (1 << 63) - 1
INTEGERS = [0, 1, -1, 2, -2, 3, 7, -7, LEAST, LEAST + 1, MOST, MOST - 1, 1 << 62, -(1 << 62), (1 << 53) + 1, 16777217]
FLOATS = [
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000,
    0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x5F000000, 0xDF000000, 0x5EFFFFFF,
]  # fmt: skip
N = len(INTEGERS)
RAW = {
    F32: struct.pack(f"<{N}I", *FLOATS),
    I64: struct.pack(f"<{N}q", *INTEGERS),
    BOOL: bytes(k % 2 for k in range(N)),
}


def check(i: Instruction, *operands: bytes, types: tuple[DType, ...]) -> None:
    elements = [unpack(t, data) for t, data in zip(types, operands, strict=True)]
    want = pack(i.dtype, [element(i, k, lambda o, w: elements[o][w], types) for k in range(i.numel)])
    tensors = [from_bytes(data, t, (len(data) // t.size,)) for t, data in zip(types, operands, strict=True)]
    found = Arithmetic().execute(i, tensors, 0)
    assert found.dtype == TORCH_DTYPES[i.dtype]
    assert bytes(tensor_bytes(found)) == want


def pairs(*values: int) -> tuple[Access, ...]:
    """Operand k of an N x N result runs along dim k: all pairs."""
    return tuple(Access(value, 0, ((1, 0), (0, 1))[k]) for k, value in enumerate(values))


BINARY = [
    (f, t, BOOL if f in (MapFunction.LT, MapFunction.LE, MapFunction.EQ, MapFunction.NE) else t)
    for t, names in (
        (F32, "ADD SUB MUL DIV MAX MIN LT LE EQ NE"),
        (I64, "ADD SUB MUL MAX MIN LT LE EQ NE FLOORDIV MOD"),
        (BOOL, "EQ NE AND OR"),
    )
    for f in (MapFunction[name] for name in names.split())
]


@pytest.mark.parametrize(("function", "dtype", "result"), BINARY)
def test_all_pairs_of_edges(function: MapFunction, dtype: DType, result: DType) -> None:
    i = mapped(function, result, (N, N), *pairs(0, 1))
    check(i, RAW[dtype], RAW[dtype], types=(dtype, dtype))


@pytest.mark.parametrize("source", DType)
@pytest.mark.parametrize("result", DType)
def test_casts_and_copies_of_edges(source: DType, result: DType) -> None:
    function = MapFunction.COPY if source == result else MapFunction.CAST
    i = mapped(function, result, (N,), Access(0, 0, (1,)))
    check(i, RAW[source], types=(source,))


REDUCTIONS = [
    (f, dtype) for f in ReduceFunction for dtype in (F32, I64) if (f, dtype) != (ReduceFunction.SUM_BF16, I64)
]


@pytest.mark.parametrize(("function", "dtype"), REDUCTIONS)
@pytest.mark.parametrize("offset", range(0, N, 3))
def test_reductions_over_edges(function: ReduceFunction, dtype: DType, offset: int) -> None:
    result = I64 if function == ReduceFunction.ARGMAX else dtype
    i = reduced(result, (), (N - offset,), Access(0, offset, (1,)), function=function)
    check(i, RAW[dtype], types=(dtype,))
    backward = reduced(result, (), (N,), Access(0, N - 1, (-1,)), function=function)
    check(backward, RAW[dtype], types=(dtype,))


def test_indices_beyond_everything_reach_nothing() -> None:
    for stride, offset in ((1, 0), (-1, 9), (0, 3)):
        gather = gathered(F32, (N,), Access(0, offset, (0,)), Access(1, 0, (1,)), stride=stride, bound=10)
        check(gather, RAW[F32], RAW[I64], types=(F32, I64))
    scatter = scattered((8,), (N,), Access(0, 0, (0, 1)), Access(1, 0, (0, 1)), match=(1,))
    check(scatter, RAW[F32], RAW[I64], types=(F32, I64))


def test_windows_iotas_and_draws_at_the_ends() -> None:
    window = windowed(I64, (N,), Access(0, 4, (-1,)), Access(1, 0, (1,)), lo=(2,), hi=(15,), step=(3,))
    check(window, RAW[I64], RAW[I64], types=(I64, I64))
    iota = counted((5,), offset=MOST - 1, strides=(MOST,))
    check(iota, types=())
    for seed in (0, -1, LEAST, MOST):
        scalar = struct.pack("<q", seed)
        draw = drawn((3, 3), Access(0, 0, (0, 0)), Access(1, 0, (0, 0)), stream=(1 << 32) - 1)
        check(draw, scalar, scalar, types=(I64, I64))
        for n in (1, 2, 5, (1 << 40) - 1):
            shuffle = shuffled((N,), Access(0, 0, (1,)), Access(1, 0, (0,)), Access(2, 0, (0,)), n=n, stream=7)
            check(shuffle, RAW[I64], scalar, scalar, types=(I64, I64, I64))
