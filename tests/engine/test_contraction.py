"""The compiled kernel of sums against integers and its pure twin; and kernels with a fault, which are caught."""

import ctypes
import mmap
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.engine.arithmetic_cases import PLAIN, Maker, elements_of, expected, kernel_with, matmul, sum_of, sum_over
from tests.parts import slow_except
from tiebreak.engine.arithmetic import Arithmetic, Logging
from tiebreak.engine.arithmetic.c import sums
from tiebreak.engine.arithmetic.c.threads import limited
from tiebreak.engine.arithmetic.plan.options import Stats
from tiebreak.engine.arithmetic.plan.sums import plan_tables
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Access, DType, Instruction
from tiebreak.protocol.program.rounding import SumKind

LIBRARY = sums.build().library
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs a C compiler")
ONE, INF, INFINITE = 0x3F800000, 0x7F800000, float("inf")
HALF_ULP, FAR = 0x33800000, 0x0E800000
HARD = [ONE, HALF_ULP, 1, FAR, FAR | 0x80000000]
"""1 + 2^-24 + 2^-149 beside +-2^-98: only integers decide it."""


SHAPES = [
    (1, 1, 700, 1), (5, 193, 13, 1), (97, 192, 25, 2), (2, 20011, 30, 1), (800, 300, 1, 1), (2, 2, 2, 300),
]  # fmt: skip
"""Around the sizes of panels, blocks of terms and blocks of outputs, and where terms are cut into parts."""


@pytest.mark.parametrize("shape", slow_except(SHAPES, *SHAPES[1:3]))
@pytest.mark.parametrize("style", ["gauss", "ties"])
def test_compiled_matrix_products_match_pure_torch(
    shape: tuple[int, int, int, int], style: str, cases: Callable[[], None]
) -> None:
    m, k, n, batch = shape
    make = Maker(random.Random(m * k * n))
    operands = [make.tensor(DType.F32, batch * m * k, style), make.tensor(DType.F32, batch * k * n, style)]
    for precision, *transposed in product((32, 20), (False, True), (False, True)):
        instruction = matmul(m, k, n, batch, transposed=transposed)
        right = Arithmetic(precision=precision, compiled=False).execute(instruction, operands, 0)
        assert plan_tables(instruction) is not None
        for threads, permute in ((1, None), (2, None), (3, 5)):
            with limited(threads):
                found = Arithmetic(permute=permute, precision=precision).execute(instruction, operands, 0)
            assert torch.equal(found, right)
            cases()


def few_bits(r: random.Random, rows: int, terms: int, hostile: Callable[[int], float]) -> torch.Tensor:
    """Numbers of bfloat16 in rows; one of each row is what `hostile` says."""
    generator = torch.Generator().manual_seed(r.randrange(2**32))
    x = torch.randn(rows, terms, generator=generator).bfloat16().float()
    for row in range(rows):
        x[row, r.randrange(terms)] = hostile(row)
    return x


SPOILS: dict[str, Callable[[int], float]] = {
    "none": lambda _: 1.0,
    "zeros": lambda row: 0.0 if row % 2 else -1.0,
    "small": lambda row: (1 + 2.0**-7) * 2.0 ** -(row % 60),
    "large": lambda row: (1 + 2.0**-7) * 2.0 ** (row % 60),
    "least": lambda row: 2.0**-149 if row % 3 else 1.0,
    "longer": lambda row: 1 + 2.0 ** -(row % 24),
    "not finite": lambda row: (1.0, INFINITE, -INFINITE, INFINITE - INFINITE, 2.0**100)[row % 5],
}
"""One number of each row of a factor, around the size from which on FP64 does not add exactly."""


@pytest.mark.parametrize("spoils", SPOILS)
def test_products_of_few_bits_are_exact(spoils: str, cases: Callable[[], None]) -> None:
    """Ties are common among them, and where FP64 had no error they are decided without integers."""
    r, (m, k, n) = random.Random(spoils), (70, 64, 61)
    left, right = few_bits(r, m, k, SPOILS["none"]), few_bits(r, n, k, SPOILS[spoils])
    for a, b, precision, *transposed in product((left, right), (left, right), (32, 24), (False, True), (False, True)):
        i = matmul(len(a), k, len(b), transposed=transposed)
        turned = zip((a.T if transposed[0] else a, b if transposed[1] else b.T), strict=False)
        given = [x.contiguous().view(-1) for (x,) in turned]
        found, arithmetic = (
            Arithmetic(precision=precision, compiled=False).execute(i, given, 0),
            Arithmetic(precision=precision),
        )
        assert torch.equal(arithmetic.execute(i, given, 0).nan_to_num(7.0), found.nan_to_num(7.0))
        counts = arithmetic.stats.of("reduce.sum.products")
        if spoils == "none" and precision == 32:
            assert counts.undecided > len(a) + len(b)
            assert counts.undecided_twice == 0
        cases()


FLAT = [
    ((7,), (1000,), (1000, 1)), ((3, 300), (5, 40), (60000, 1, 12000, 300)), ((4, 5), (6, 70), (1, 4, 1400, 20)),
    ((), (100_003,), (1,)), ((260,), (1,), (1, 0)), ((2, 3), (50,), (150, -50, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "reduction", "strides"), slow_except(FLAT, FLAT[0], several=True))
@pytest.mark.parametrize("operands", slow_except([1, 2], 2))
def test_compiled_sums_of_any_stride_match_pure_torch(
    shape: tuple[int, ...],
    reduction: tuple[int, ...],
    strides: tuple[int, ...],
    operands: int,
    cases: Callable[[], None],
) -> None:
    offset = -sum(stride * (size - 1) for stride, size in zip(strides, (*shape, *reduction), strict=True) if stride < 0)
    instruction = sum_over(shape, reduction, *(Access(i, offset, strides) for i in range(operands)))
    make = Maker(random.Random(str(strides)))
    length = 1 + sum(abs(stride) * (size - 1) for stride, size in zip(strides, (*shape, *reduction), strict=True))
    for style in ("gauss", "ties", "wide"):
        read = [make.tensor(DType.F32, length, style) for _ in range(operands)]
        right = Arithmetic(compiled=False).execute(instruction, read, 0)
        for permute in (None, 3):
            found = Arithmetic(permute=permute).execute(instruction, read, 0)
            assert torch.equal(found.nan_to_num(7.0), right.nan_to_num(7.0))
            cases()


TILES = [(1, 1, 1), (2, 3, 9), (3, 4, 10), (5, 17, 12), (6, 5, 16), (7, 34, 25), (8, 1, 7), (11, 20, 49)]
CONVOLUTIONS = [
    ((2, 1, 5, 4, 8), (2, 3, 3), (0, (120, 0, 0, 10, 1, 60, 10, 1)), (0, (0, 0, 18, 0, 0, 9, 3, 1))),
    ((3, 1, 5, 3, 3), (2, 3, 3), (0, (50, 0, 0, 5, 1, 25, 5, 1)), (0, (0, 0, 18, 0, 0, 9, 3, 1))),
    ((3, 5, 4, 4), (6, 3, 3), (0, (216, 0, 6, 1, 36, 6, 1)), (8, (0, 9, 0, 0, 45, -3, -1))),
    ((2, 7, 1, 2, 1, 2), (6, 2, 2), (0, (24, 0, 0, 0, 0, 0, 4, 2, 1)), (10, (0, 16, 0, 4, 0, 1, 112, -8, -2))),
    ((1, 6, 5, 3, 3), (3, 4, 4), (0, (0, 16, 0, 0, 0, 96, 4, 1)), (0, (0, 0, 36, 6, 1, 180, 6, 1))),
]
EDGES = [
    *(matmul(m, k, n, 2, transposed=(k % 2 == 0, n % 2 == 0)) for m, k, n in TILES),
    *(sum_over(shape, terms, Access(0, *a), Access(1, *b)) for shape, terms, a, b in CONVOLUTIONS),
]
"""Products whose tiles are not full, and convolutions: filters, turned ones, strided ones, and gradients."""


def fenced(x: torch.Tensor, *, front: bool) -> torch.Tensor:
    """A copy that begins where readable memory begins, or ends where it ends."""
    size = -(-4 * x.numel() // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + 2 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for fence in (address, address + mmap.PAGESIZE + size):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    start = mmap.PAGESIZE + (0 if front else size - 4 * x.numel())
    return torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=start).copy_(x)


@pytest.mark.parametrize("style", ["gauss", "ties", "any"])
def test_edges_of_products_match_pure_torch_and_touch_nothing_else(style: str, cases: Callable[[], None]) -> None:
    assert LIBRARY is not None
    for number, (i, front) in enumerate(product(EDGES, (False, True))):
        make, tables = Maker(random.Random(number)), plan_tables(i)
        assert tables is not None
        given = [make.tensor(DType.F32, a.extent(i.index_space)[1] + 1, style) for a in i.operands]
        right, fences = Arithmetic(compiled=False).execute(i, given, 0), [fenced(x, front=front) for x in given]
        out = fenced(torch.full(i.shape, 7.0).view(-1), front=front)
        host = SimpleNamespace(stats=Stats(), empty=lambda *_, out=out: out.fill_(7.0))
        for order in (None, number):
            for near in (None, Logging({}, {SumKind.PRODUCTS: 2}).collector(SumKind.PRODUCTS)):
                sums.TabledSum(LIBRARY, tables, i, Arithmetic(permute=order).options).run(fences, host, near)
                if near is not None:
                    out[near.found().elements] = right.view(-1)[near.found().elements]
                assert torch.equal(out.nan_to_num(7.0), right.view(-1).nan_to_num(7.0)), i
                cases()


def test_sums_that_read_outside_their_operand_are_refused() -> None:
    """Validation of programs comes first; the kernel's caller checks again."""
    with pytest.raises(ValueError, match=r"places 0 \.\.\. 18"):
        Arithmetic().execute(matmul(3, 4, 5), [torch.ones(12), torch.ones(19)], 0)


def settings_of(left: list[int], right: list[int] | None = None) -> list[tuple[Instruction, list[torch.Tensor]]]:
    """A sum by itself; the only hard one of many; and a block of a product that is full of it."""

    def tensor(bits: list[int]) -> torch.Tensor:
        return torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32)

    k, rows, side, width = len(left), 40, 12, 30
    given = [tensor(factors) for factors in (left, right) if factors is not None]
    easy = tensor([ONE, *[0] * (k - 1)])
    among = [torch.cat((factors, *[easy] * (rows - 1))) for factors in given]
    many = sum_over((rows,), (k,), *(Access(o, 0, (k, 1)) for o in range(len(given))))
    block = torch.zeros(side, width)
    block[:, :k] = given[0]
    columns = torch.ones(width, side)
    if len(given) > 1:
        columns[:k] = given[1][:, None]
        columns[:, -1] *= 2.0**-40  # what the columns share is not all of the others
    whole = matmul(side, width, side, 1)
    alone = sum_of(*(factors for factors in (left, right) if factors is not None))
    return [(alone, given), (many, among), (whole, [block.view(-1), columns.view(-1)])]


ZERO, EACH_TERM = "/* -0 + 0 = +0 */", "lowest_bit(at[unit ? term[0] + k : term[k]]);\n            "
FAULTS = [
    (
        f"{ZERO}\n        open += !(upper == lower);",
        f"{ZERO}\n        open += !(c[j] == c[j]);",
    ),  # Ziv's test left out: FP64, then rounded
    ("return lowest > peak + k;", "return 1;"),  # no integers
    ("UNIT - 52 - held", "UNIT - 400 - held"),  # sums of a block that FP64 has rounded pass for exact
    ("lowest[r] = low < lowest[r] ? low : lowest[r];", "lowest[r] = low;"),  # columns of which one term is looked at
    (f"{EACH_TERM}least = low < least ? low : least;", f"{EACH_TERM}least = low;"),  # rows as well
    ("(away & (l != 0) & -(~(integers)h & 1))", "0"),  # rounded twice
    (f"high[j] = upper + 0.0f; {ZERO}", "high[j] = upper;"),  # zero of either sign
    ("isfinite(open[s].e) ? value : NAN;", "value;"),  # infinities that should be NaN
    ("exact[s] + (float)(e - e);", "exact[s];"),  # those of a block that is summed as a whole
    ("return (size ^ sign) - sign;", "return size;"),  # exact sums of absolute terms
    ("x->below = WHERE(digit, x->rest, x->below);", ""),  # what decides a tie is not looked at
    ("x->over = over;", ""),  # nothing is carried
    ("*bin = (integers){0};", ""),  # the next element's sums begin with this one's
]
FAULTS_OF_PIECES = [
    ("high[s] = (m - (low[s] >> shift)) >> (24 - shift);", "high[s] = 0;"),  # half of a factor is lost
    ("low[s] = (int32_t)((uint32_t)m << (shift + 8)) >> 8;", "low[s] = 0;"),  # the other half
]
"""Where the processor has no products of 52 bits."""
FAULTS_OF_LIMBS = [
    ("= ~limb;", "= limb;"),  # negative factors of a row count as positive ones
    ("sums[p][0] - sums[p][1];", "sums[p][0] + sums[p][1];"),  # their offset as well
    ("to->negative[p] = sums[p][1];", "to->negative[p] = 0;"),  # what complements add stays in the sums
    ("(l == limbs - 1 ? 1 << 26 : 0)", "0"),  # negative factors of a column without the offset
    ("_mm512_mask_srav_epi64(up, down, m, _mm512_sub_epi64(none, shift))", "up"),  # the upper part of a factor is lost
    ("all = bit + (int32_t)common[i]", "all = bit"),  # rows without what columns share
    ("memset(to->factors + end, 0, 8 * (GROUP - 1));", ""),  # groups end with factors of before
]
"""Where it has."""
HAS_LIMBS = "avx512ifma" in (Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else "")
FAULTS_OF_FEWER_BITS = [
    ("(pattern >> drop & 1)", "1"),  # ties away from zero
    ("fabs(x) < 0x1p-126 ? small : from_pattern(kept)", "from_pattern(kept)"),  # subnormals keep too many places
    ("x == x ? rounded : x", "rounded"),  # a NaN's payload carries into the exponent
    ("round_to(odd[s], precision) + 0.0f", "(float)odd[s] + 0.0f"),  # settled elements keep all their bits
    ("round_to(open[j].c, (int)shared->precision) + 0.0f", "(float)open[j].c + 0.0f"),  # those on a grid too
]
FAULTS_OF_SCATTERED_TERMS = [
    ("sums[l] += product;", ""),  # the terms themselves
    ("sizes[l] += fabs(product);", ""),  # the error bound
]
TINY = 0x80000001  # -2^-149
ROWS = [
    [HARD],
    [[*HARD, *[0] * 14]],
    [[ONE, HALF_ULP, TINY, *HARD[3:]]],
    [[ONE, HALF_ULP, 0x00800000]],
    [[1, 0], [TINY, 0]],
    [[INF, ONE]],
    [[0x49800000, 0x3D800000, 1]],  # 2^20 and half its ulp: more bits than FP64 has between the digits that decide
    [[ONE, HALF_ULP, 1], [0x3F800001, ONE, ONE]],
    [[ONE, ONE], [0x4B000001, 0x3F000000]],  # 2^23 + 1 lies in two limbs
]
"""Sums whose exact value lies next to a tie, is -0, or has no finite terms."""
ROWS_OF_16_BITS = [
    [[ONE, 0x3B800000]],
    [[0x0000C000, 0]],  # three quarters of the smallest number of 16 bits
    [[0x7FFFFFFF, 0]],  # a NaN of any payload, as other instructions may leave it
    [[ONE, 0x3B800000, 1, FAR, FAR | 0x80000000]],
    [[0x00008000, ONE, 0xBF800000]],  # half of that number
]


def scattered() -> list[tuple[Instruction, list[torch.Tensor]]]:
    """Terms that do not follow each other: plain sums, and sums of products, of more than a chunk."""
    terms = 600
    bits = torch.zeros(2, terms, 2, dtype=torch.int64)
    bits[0, :: terms // len(HARD), 0][: len(HARD)] = torch.tensor(HARD)
    bits[1, 7::9, 0] = ONE
    data = bits.to(torch.int32).view(torch.float32).view(-1)
    access = Access(0, 0, (2 * terms, 2))
    plain, products = (sum_over((2,), (terms,), *given) for given in ((access,), (access, replace(access, value=1))))
    return [(plain, [data]), (products, [data, torch.ones_like(data)])]


def mixed() -> list[tuple[Instruction, list[torch.Tensor]]]:
    """Blocks of ties, and of some that a factor far below the others of its column, or its row, decides."""
    made = []
    for rows, columns in (12, 1), (8, 12):
        left, right = torch.ones(12, 4), torch.ones(4, 12)
        left[:rows, 1], left[rows:, 1], left[:, 3] = 0, 2.0**-70, 2.0**-24
        right[0], right[2, :columns], right[2, columns:] = 1 + 2.0**-22, 0, 2.0**-70
        made.append((matmul(12, 4, 12), [left.view(-1), right.view(-1)]))
    return made


@cache
def hard_sums(kind: str) -> list[tuple[Instruction, list[torch.Tensor], list[int]]]:
    made = {"scattered": scattered, "32 bits": mixed}.get(kind, list)()
    for row in {"32 bits": ROWS, "16 bits": ROWS_OF_16_BITS}.get(kind, []):
        for order in (row, [factors[::-1] for factors in row]):
            made += settings_of(*order)
    precision = 16 if kind == "16 bits" else 32
    return [(i, given, expected(i, given, precision=precision)) for i, given in made]


def wrong(kind: str) -> int:
    arithmetic = Arithmetic(precision=16 if kind == "16 bits" else 32)
    return sum(elements_of(arithmetic.execute(i, x, 0).reshape(-1)) != right for i, x, right in hard_sums(kind))


@pytest.mark.parametrize("kind", ["32 bits", "16 bits", "scattered"])
def test_the_unmodified_kernel_passes_the_mutation_cases(kind: str) -> None:
    assert wrong(kind) == 0


ALL_FAULTS = [
    *((*fault, False, "32 bits") for fault in (*FAULTS, *FAULTS_OF_LIMBS * HAS_LIMBS)),
    *((*fault, True, "32 bits") for fault in FAULTS_OF_PIECES),
    *((*fault, False, "16 bits") for fault in FAULTS_OF_FEWER_BITS),
    *((*fault, False, "scattered") for fault in FAULTS_OF_SCATTERED_TERMS),
]


@pytest.mark.parametrize(("old", "new", "plain", "kind"), slow_except(ALL_FAULTS, ALL_FAULTS[0], several=True))
def test_kernel_mutants_are_caught(
    old: str, new: str, plain: bool, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built = kernel_with(tmp_path, (old, new), *([PLAIN] if plain else []))
    monkeypatch.setattr(sums, "build", lambda: built)
    assert wrong(kind) > 0
    if kind == "32 bits":
        with pytest.raises(ConfigurationError, match="does not compute reduce sum"):
            qualify(Arithmetic())
