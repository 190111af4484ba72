"""Instructions, operands and oracles for the tests of `tiebreak.engine.arithmetic` (no tests in here)."""

import os
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c import sums
from tiebreak.engine.data.tensors import canonical, from_bytes
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.native import Build, load
from tiebreak.engine.run.schedule import is_elementwise
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.program.isa import Access, DType, Instruction, MapFunction, Opcode, ReduceFunction, ScatterParams
from tiebreak.protocol.program.reference import element, pack, unpack
from tiebreak.protocol.program.rounding import Rounding

EDGE_F32 = [0, 0x80000000, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x807FFFFF, 0x3F800000, 0xBF800000]
EDGE_F32 += [0x3F800001, 0x3F7FFFFF]
EDGE_F32 += [0x33800000, 0x33800001, 0x337FFFFF, 0x34000000, 0x7F7FFFFF, 0xFF7FFFFF, 0x4B800000, 0x4B7FFFFF, 0x5F000000]
EDGE_F32 += [0xDF000000, 0xDF000001, 0x5EFFFFFF, 0x42B17218, 0xC2CFF1B5, 0x40490FDB, 0x3FC90FDB, 0x41100000, 0x3727C5AC]
NON_FINITE = [0x7F800000, 0xFF800000, 0x7FC00000]
EDGE_I64 = [0, 1, -1, 2, -2, 7, -7, (1 << 63) - 1, -(1 << 63)]
EDGE_I64 += [(1 << 53) + 1, -(1 << 53) - 1, (1 << 24) + 1, (1 << 62) + 1]
EDGE_I64 += [(1 << 60) + (1 << 36), (1 << 60) + (1 << 36) + 1, -((1 << 60) + (1 << 36) + 1), (1 << 54) + (1 << 30) + 1]


def bits_f32(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def tensor_of(dtype: DType, elements: Sequence[int], shape: Sequence[int] | None = None) -> torch.Tensor:
    return from_bytes(pack(dtype, elements), dtype, (len(elements),) if shape is None else tuple(shape))


def elements_of(tensor: torch.Tensor) -> list[int]:
    """Protocol elements of a tensor, NaN as the one NaN."""
    tensor = canonical(tensor).contiguous()
    return unpack(PROTOCOL_DTYPES[tensor.dtype], tensor.numpy().tobytes())


def expected(
    i: Instruction, operands: Sequence[torch.Tensor], step: int = 0, precision: int = MAX_PRECISION
) -> list[int]:
    values = [elements_of(x) for x in operands]
    types = [PROTOCOL_DTYPES[x.dtype] for x in operands]
    return [
        element(i, n, lambda o, at: values[o][at], types, step=step + 1, rounding=Rounding(precision=precision))
        for n in range(i.numel)
    ]


def check(
    arithmetic: Arithmetic,
    i: Instruction,
    operands: Sequence[torch.Tensor],
    step: int = 0,
    right: list[int] | None = None,
) -> list[int]:
    """Asserts that a result is the reference's, bit for bit, contiguous, and that no operand was written.

    right: what the reference says, where that is known.
    """
    before = [elements_of(x) for x in operands]
    result = arithmetic.execute(i, [x.to(arithmetic.device) for x in operands], step).cpu()
    assert result.shape == i.shape
    assert result.is_contiguous()
    assert PROTOCOL_DTYPES[result.dtype] == i.dtype
    assert [elements_of(x) for x in operands] == before
    precision = arithmetic.options.precision
    found, right = elements_of(result), right or expected(i, operands, step, precision)
    wrong = [(n, hex(a), hex(b)) for n, (a, b) in enumerate(zip(right, found, strict=True)) if a != b]
    assert not wrong, f"expected, got (element, bits, bits): {wrong[:5]} in {i}"
    other = Arithmetic(arithmetic.device, precision=precision)  # the caller's statistics stay what they are
    if other.chains is not None and is_elementwise(i, other.chains.functions):
        assert elements_of(other.backend.run_once([i], operands)[0]) == right, i
        assert [elements_of(x) for x in operands] == before
    return found


def sum_of(*operands: Sequence[int]) -> Instruction:
    """A sum of everything in one or two vectors of equal length."""
    return sum_over((), (len(operands[0]),), *(Access(o, 0, (1,)) for o in range(len(operands))))


def product(rows: int, terms: int, columns: int) -> Instruction:
    return sum_over((rows, columns), (terms,), Access(0, 0, (terms, 0, 1)), Access(1, 0, (0, 1, columns)))


def matmul(m: int, k: int, n: int, batch: int = 1, *, transposed: Sequence[bool] = (False, False)) -> Instruction:
    """(batch, m, n) = (batch, m, k) x (batch, k, n), each operand row-major or transposed."""
    a = (m * k, 1, 0, m) if transposed[0] else (m * k, k, 0, 1)
    b = (k * n, 0, k, 1) if transposed[1] else (k * n, 0, 1, n)
    return sum_over((batch, m, n), (k,), Access(0, 0, a), Access(1, 0, b))


def map_of(function: MapFunction, result: DType, shape: tuple[int, ...], *operands: Access) -> Instruction:
    return Instruction(opcode=Opcode.MAP, function=function, dtype=result, shape=shape, operands=operands)


def sum_over(shape: tuple[int, ...], terms: tuple[int, ...], *operands: Access) -> Instruction:
    return Instruction(opcode=Opcode.REDUCE, dtype=DType.F32, shape=shape, reduction=terms, operands=operands)


def extreme_of(
    function: ReduceFunction, shape: tuple[int, ...], terms: tuple[int, ...], strides: tuple[int, ...]
) -> Instruction:
    """The greatest of some f32 numbers, or its place among them."""
    dtype = DType.I64 if function == ReduceFunction.ARGMAX else DType.F32
    return replace(sum_over(shape, terms, Access(0, 0, strides)), function=function, dtype=dtype)


def scatter_of(
    shape: tuple[int, ...], terms: tuple[int, ...], source: Access, index: Access, match: tuple[int, ...]
) -> Instruction:
    params = ScatterParams(match=match)
    return replace(sum_over(shape, terms, source, index), opcode=Opcode.SCATTER_SUM, params=params)


@dataclass
class Maker:
    """Random valid access maps and operands from one seed."""

    random: random.Random

    def access(self, operand: int, dims: Sequence[int], *, dead: Sequence[int] = ()) -> tuple[Access, int]:
        """An access map over dims (strides 0 along `dead`) and the size of a base that it fits."""
        style = self.random.choice(["permuted", "overlap", "negative", "broadcast"])
        strides, size = [0] * len(dims), 1
        order = list(range(len(dims)))
        self.random.shuffle(order)
        for d in order:
            strides[d] = 0 if d in dead else size
            if style == "overlap":
                strides[d] = 0 if d in dead else self.random.randint(0, 3)
            elif style == "broadcast" and self.random.random() < 0.4:
                strides[d] = 0
            elif style == "negative" and self.random.random() < 0.5:
                strides[d] = -strides[d]
            if strides[d]:
                size *= dims[d] + self.random.randint(0, 1)
        low, high = Access(operand, 0, tuple(strides)).extent(tuple(dims))
        lead = self.random.randint(0, 2)
        return Access(operand, lead - low, tuple(strides)), lead + high - low + 1 + self.random.randint(0, 2)

    def dims(self, most: int, largest: int) -> tuple[int, ...]:
        return tuple(self.random.randint(1, largest) for _ in range(self.random.randint(0, most)))

    def f32(self, style: str) -> int:
        """Bits of an f32: `gauss`, `ties` (few short significands: ties and cancellations), `wide`, `edge`, `any`."""
        r = self.random
        match style:
            case "gauss":
                return bits_f32(struct.unpack("<f", struct.pack("<f", r.gauss(0, 1)))[0])
            case "ties":
                significand = r.choice([-1, 1]) * r.choice([0, 1, 3, 2**24 - 1, 2**23 + 1])
                return bits_f32(significand * 2.0 ** r.choice([-24, -1, 0, 1]))
            case "wide":
                return r.getrandbits(1) << 31 | r.randint(1, 254) << 23 | r.getrandbits(23)
            case "edge":
                return r.choice(EDGE_F32)
            case _:
                return r.choice(EDGE_F32 + NON_FINITE)

    def tensor(self, dtype: DType, size: int, style: str = "any") -> torch.Tensor:
        r = self.random
        if dtype == DType.F32:
            return tensor_of(dtype, [self.f32(style) for _ in range(size)])
        if dtype == DType.I64:
            return tensor_of(dtype, [r.choice(EDGE_I64) if style == "any" else r.randint(-2, 9) for _ in range(size)])
        return tensor_of(dtype, [r.getrandbits(1) for _ in range(size)])


STYLES = ["gauss", "ties", "wide", "edge", "any"]


def random_reduction(make: Maker, function: ReduceFunction, dtype: DType) -> tuple[Instruction, list[torch.Tensor]]:
    shape, reduction = make.dims(3, 4), make.dims(3, 5)
    count = make.random.randint(1, 2) if function == ReduceFunction.SUM and dtype == DType.F32 else 1
    style = make.random.choice(STYLES)
    made = [make.access(o, (*shape, *reduction)) for o in range(count)]
    instruction = Instruction(
        opcode=Opcode.REDUCE,
        function=function,
        dtype=DType.I64 if function == ReduceFunction.ARGMAX else dtype,
        shape=shape,
        reduction=reduction,
        operands=tuple(access for access, _ in made),
    )
    return instruction, [make.tensor(dtype, size, style) for _, size in made]


def random_scatter(make: Maker) -> tuple[Instruction, list[torch.Tensor]]:
    """A random `scatter_sum`: keyed, matched and row dims in any order, indices inside and outside the box."""
    r = make.random
    count, matched = r.randint(1, 12), r.choice([(3,), (2, 3)])
    kinds = ["matched"] * len(matched) + ["keyed"] * r.randint(0, 1) + ["row"] * r.randint(0, 2)
    r.shuffle(kinds)
    box = iter(matched)
    shape = tuple(next(box) if kind == "matched" else r.randint(1, 3) for kind in kinds)
    steps = iter((3, 1)[-len(matched) :])
    match = tuple(next(steps) if kind == "matched" else 0 for kind in kinds)
    source, index, sizes = [], [], [1, 1]
    for kind, size in zip((*kinds, "summed"), (*shape, count), strict=True):
        source.append(0 if kind == "matched" else sizes[0])
        index.append(sizes[1] if kind in ("keyed", "summed") else 0)
        sizes = [n * (size if s[-1] else 1) for n, s in zip(sizes, (source, index), strict=True)]
    i = scatter_of(shape, (count,), Access(0, 0, tuple(source)), Access(1, 0, tuple(index)), match)
    indices = [r.randint(-1, torch.Size(matched).numel()) for _ in range(sizes[1])]
    return i, [make.tensor(DType.F32, sizes[0], r.choice(STYLES)), tensor_of(DType.I64, indices)]


PLAIN = ("#ifdef ADD_LOW", "#if 0")
"""The change that leaves out what needs products of 52 bits."""


def forced_integers() -> Any:
    """A context in which `TIEBREAK_INTEGERS` is 1."""
    return mock.patch.dict(os.environ, TIEBREAK_INTEGERS="1")


def kernel_with(folder: Path, *changes: tuple[str, str]) -> Build:
    """The kernel of sums compiled from a changed source: each old text, which occurs once, becomes the new one."""
    original = Path(sums.__file__).parent
    counts = [0] * len(changes)
    for path in original.glob("*.[ch]"):
        text = path.read_text()
        for at, (old, new) in enumerate(changes):
            counts[at] += text.count(old)
            text = text.replace(old, new)
        (folder / path.name).write_text(text)
    assert counts == [1] * len(changes)
    built = load(folder / "sums.c")
    assert built.library is not None, built.reason
    return built
