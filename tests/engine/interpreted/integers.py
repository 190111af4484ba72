"""Products by integers on GPUs, of matrices of all kinds; test_integers.py checks the numbers of their kernels."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton
from triton import language as tl

from tests.engine.arithmetic_cases import STYLES, Maker, check, elements_of, forced_integers, matmul
from tests.engine.integer_reference import HOSTILE, check_non_finite, exact_product, factors, multiply
from tests.engine.interpreted import Mutants, NoReads, Suite, killed, main
from tests.engine.interpreted.sums import affine, convolution, vectors
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.gpu import integers as launching
from tiebreak.engine.arithmetic.gpu.kernels import integers as kernels
from tiebreak.engine.run.qualify import _compare
from tiebreak.protocol.numbers.float32 import plus_zero, round_ratio
from tiebreak.protocol.program.isa import DType

SMALL = {**launching.TILE, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 32}
FEW = {**launching.FACTS, "BLOCK_M": 16, "BLOCK_K": 32}
MATRICES = "gauss", "ties", "wide", "subnormal", "zeros"


@contextmanager
def small(**changes: Any) -> Iterator[list[bool]]:
    """Small blocks, and integers wherever they can compute; yields, for each product, whether it is left to FP64.

    Where it is, nothing may be written: neither results nor what is listed. FP64 would put right results over others,
    and so hide them. No product is computed again as a whole, which would hide what is wrong where enough is undecided.
    """
    ran, run = [], launching.LaunchedIntegers.run

    def watched(self: Any, *given: Any) -> Any:
        before = [memory.clone() for memory in given[-3:]]
        loose = run(self, *given)
        ran.append(int(loose[0]) > 0)
        if ran[-1]:
            for was, memory in zip(before, given[-3:], strict=True):
                assert torch.equal(was.view(torch.uint8), memory.view(torch.uint8)), "integers wrote what FP64 computes"
        return loose

    blocks = mock.patch.multiple(launching, **{"TILE": SMALL, "FACTS": FEW, **changes})
    once = mock.patch("tiebreak.engine.arithmetic.gpu.sums.MANY", 0)
    with blocks, once, forced_integers(), mock.patch.object(launching.LaunchedIntegers, "run", watched):
        yield ran


def hostile(
    *kinds: str, size: tuple[int, int, int] = (20, 70, 18), precisions: Sequence[int] = (32, 20, 16), **changes: Any
) -> int:
    """Matrices of some kinds at some precisions, in order or permuted."""
    ran = 0
    for kind in kinds:
        a, b = factors(kind, *size)
        for precision in precisions:
            with small(**changes) as products:
                found, _ = multiply(a, b, precision, 3 if precision == 20 else None)
            assert products == [False]
            assert np.array_equal(found, exact_product(a, b, precision)), (kind, precision)
            ran += found.size
    return ran


def forms(seeds: int, make: Callable[[random.Random], Any]) -> int:
    """Operands in any layout, batches, gaps and convolutions, with hostile values, infinities and NaN among them."""
    ran = 0
    for seed in range(seeds):
        r = random.Random(seed)
        i, sizes = make(r)
        operands = [Maker(r).tensor(DType.F32, size, STYLES[seed % len(STYLES)]) for size in sizes]
        arithmetic = Arithmetic(precision=32 - seed % 17, permute=seed if seed % 4 == 0 else None)
        with small() as products:
            ran += len(check(arithmetic, i, operands))
        assert products == [False]
    return ran


def far_rows() -> int:
    """Rows whose residues lie 64 MiB apart, so that they take over 2 GiB, of which little is touched."""
    far, launch, spread = 1 << 26, launching.launch, dict[tuple[int, int], Any]()

    def launched(kernel: Any, programs: int, *given: Any, **options: Any) -> None:
        arguments, name = list(given), kernel.fn.__name__
        if name in ("find_residues", "multiply_residues"):
            residues, pitch = ((6,), 14) if name == "find_residues" else ((0, 1), 22)
            for n in residues:
                size = len(given[n]) // given[pitch] * far
                arguments[n] = spread.setdefault((id(given[n]), size), torch.empty(size, dtype=torch.int8))
            arguments[pitch] = far
        launch(kernel, programs, *arguments, **options)

    with mock.patch.object(launching, "launch", launched):
        return hostile("gauss", size=(40, 24, 3))


def special() -> int:
    """Rows with infinities or NaN are NaN, also times zeros; no others are touched. What underflows is +0."""
    with small():
        tiny, _ = multiply(np.full((3, 5), -(2.0**-100), np.float32), np.full((5, 3), 2.0**-100, np.float32), 32)
    assert not tiny.any()
    with small():
        return check_non_finite(9, 40, 20)


def decides_ties() -> int:
    """Exact ties whose factors have one scale, and sums of zero, are decided without another pass; by their grain."""
    a, b = np.zeros((16, 40), np.float32), np.ones((40, 16), np.float32)
    a[:, 0], a[:, 20] = 1 + np.arange(16) * 2.0**-23, 2.0**-24
    cancelling = np.concatenate([a, -a], 1)
    with small():
        for factor, other in ((a, b), (-a, b), (cancelling, np.ones((80, 16), np.float32))):
            found, counts = multiply(factor, other, 32)
            assert np.array_equal(found, exact_product(factor, other, 32))
            assert counts.undecided == 0
        found, counts = multiply(np.nextafter(a, np.float32(9)), b, 32)
        assert np.array_equal(found, exact_product(np.nextafter(a, np.float32(9)), b, 32))
    return 4 * 256


def cut_beyond_middles() -> int:
    """What was cut, of rows or of columns, takes sums of integers from one side of a middle to the other."""
    unit = 2.0 ** -launching.Scales(70, 32).reach[0]  # of rows whose norm is 1 and a bit
    a, b = np.full((16, 70), 0.375 * unit, np.float32), np.ones((70, 16), np.float32)
    a[:, 0], a[:, 1] = 1 + np.arange(16) * 2.0**-22, 2.0**-24 - 20 * unit
    for left, right in ((a, b), (-a, b), (b.T, a.T)):
        with small():
            found, counts = multiply(left, right, 32)
        assert np.array_equal(found, exact_product(left, right, 32))
        assert counts.double_rounded == counts.undecided == 256
    return 3 * 256


def beside_middles() -> int:
    """Sums beside a middle by so little that an error of some units of the fraction would show, and nothing was cut."""
    decided = 0
    for power in (25, 26, 27, 30):
        a, b = np.zeros((8, 70), np.float32), np.ones((70, 8), np.float32)
        a[:, 0], a[:, 1], a[:, 2], b[2] = 1 + np.arange(8) * 2.0**-23, 2.0**-24, 2.0**-power, 2.0**-power
        a[4:, 2] *= -1
        for left, right in ((a, b), (-a, b), (b.T, a.T)):
            with small():
                found, counts = multiply(left, right, 32)
            assert np.array_equal(found, exact_product(left, right, 32)), power
            decided += counts.elements - counts.undecided
    assert 0 < decided < 12 * 64
    return 12 * 64


def leaves(kind: str, *, stays: bool, left: bool, much: int = 1 << 14) -> int:
    """What would leave much undecided, by what was cut, is left to FP64, which does nothing otherwise."""
    a, b = factors(kind, 20, 70, 18)
    choose = launching.choose

    def chosen(tables: Any, precision: int, device: torch.device, **_: bool) -> Any:
        assert choose(tables, precision, device) is not None
        return launching.LaunchedIntegers(tables, precision, device, stays=stays)

    for parts in (1, 4):
        inside = "tiebreak.engine.arithmetic.gpu.sums."
        room = mock.patch(f"{inside}DENSE", 1)  # for all elements, so that those listed are counted
        with mock.patch(f"{inside}FEWEST", 64 // parts), mock.patch(f"{inside}programs", return_value=4), room:
            _, fp64 = multiply(a, b, 32)
            with mock.patch(f"{inside}choose", chosen), small(MUCH=much) as products:
                found, counts = multiply(a, b, 32)
        assert products == [left]
        assert np.array_equal(found, exact_product(a, b, 32))
        assert kind != "wide" or left == (counts.undecided == fp64.undecided)
    return 2 * found.size


def in_parts(check: Callable[[], int], processors: int = 40) -> int:
    """A check in which programs share the folds of a sum, and small blocks measure and end it."""
    blocks, seen, parts_of = {**launching.ENDS, "BLOCK_N": 16}, [], launching.parts_of
    changes = {"programs": lambda _: 4 * processors, "KEPT": 0, "ENDS": blocks}
    watched = mock.patch.object(launching, "parts_of", lambda *given: seen.append(parts_of(*given)) or seen[-1])
    with mock.patch.multiple(launching, **changes), watched:
        ran = check()
    assert max(seen) > 2
    return ran


def chunks() -> int:
    """Residues of rows or columns that are computed after those of the first 128."""
    return sum(hostile("gauss", size=size, precisions=(32,), RESIDUES=12_000) for size in ((140, 8, 9), (9, 8, 140)))


def fills_multiprocessors() -> int:
    """Parts leave no multiprocessor idle where tiles are few, are none where they are many, and nowhere take longer."""
    for tiles, folds, fold, processors, parts in (
        (1, 1, 128, 128, 1), (9, 11, 64, 128, 1), (48, 11, 768, 128, 2), (128, 11, 4096, 128, 1),
        (72, 12, 8192, 128, 3), (48, 24, 25216, 128, 5), (2, 24, 25088, 128, 24), (3144, 11, 768, 128, 1),
        (1, 1500, 32768, 128, 125),
    ):  # fmt: skip
        assert launching.parts_of(tiles, folds, fold, processors) == parts, (tiles, folds, fold, processors)
    return 9


def leaves_wide() -> int:
    return leaves("wide", stays=False, left=True)


def waits_for_nothing() -> int:
    a, b = factors("ties", 20, 70, 18)
    with mock.patch.multiple(launching, TILE=SMALL, FACTS=FEW), forced_integers(), NoReads():
        arithmetic = Arithmetic()
        found = arithmetic.execute(matmul(20, 70, 18), [torch.from_numpy(x).reshape(-1) for x in (a, b)], 0)
    assert elements_of(found) == exact_product(a, b, 32).ravel().tolist()
    return found.numel()


def qualifies() -> int:
    """Qualification's products, where a device computes products by integers, at any size."""
    ran = 0
    known = mock.patch.dict(launching.RATES, {0: (2, 1024)})
    with known, mock.patch.multiple(launching, TILE=SMALL, FACTS=FEW):
        for case, right in vectors(20):
            if len(case.instruction.operands) == 2:
                other = Arithmetic(precision=20).by_integers()
                assert other is not None
                _compare(other, case, right)
                ran += len(right)
    return ran


# ---- rounding ----


@triton.jit
def round_all(size, error, power, bits, decided, PRECISION: tl.constexpr, EXACT: tl.constexpr, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    exact = tl.full((COUNT,), 1 if EXACT else 0, tl.int32) > 0
    found, good = launching.kernels("integers").round_integers(
        tl.load(size + at), tl.load(error + at), exact, tl.load(power + at), PRECISION
    )  # fmt: skip
    tl.store(bits + at, found)
    tl.store(decided + at, good.to(tl.int32))


def rounds(precision: int, *, exact: bool) -> int:
    """Numbers at and beside middles, powers of two and the ends of the range: both ends round to what was found."""
    r = random.Random(precision)
    rows: list[tuple[int, int, int]] = [(0, 0, 0), ((1 << 61) - 1, 0, 0), (1 << 60, 0, 0)]
    while len(rows) < 4096:
        top = r.choice([60, 60, 59, 50, 40, 31, 20])
        size = 1 << top | r.getrandbits(top)
        middle = 1 << max(0, top - precision + 8)
        size = size // middle * middle + r.choice([0, 0, r.randint(-9, 9)]) if r.random() < 0.6 else size
        size = (1 << top) + r.randint(-40, 40) if r.random() < 0.2 else size
        error = r.choice([0, 1, 7, r.getrandbits(20), r.getrandbits(max(1, top - 20))])
        power = r.choice([r.randint(-220, 80), -150 - top, -127 - top, 127 - top, r.randint(-30, 30)])
        if 0 < size < 1 << 61 and error < 1 << 45:
            rows.append((size, 0 if exact else error, power))
    size, error, power = (torch.tensor(x) for x in zip(*rows, strict=True))
    bits, decided = torch.empty(4096, dtype=torch.int32), torch.empty(4096, dtype=torch.int32)
    round_all[(1,)](
        size, error, power.to(torch.int32), bits, decided, PRECISION=precision, EXACT=exact, COUNT=4096
    )  # fmt: skip

    def rounded(n: int, power: int) -> int:
        value = Fraction(n) * Fraction(2) ** power
        return plus_zero(round_ratio(value.numerator, value.denominator, precision=precision)) & 0x7FFFFFFF

    told = 0
    for (n, e, p), found, good in zip(rows, bits.tolist(), decided.tolist(), strict=True):
        if good:
            told += 1
            assert found == rounded(n, p), (n, e, p)
            assert exact or e == 0 or {rounded(max(0, n - e), p), rounded(n + e, p)} == {found}, (n, e, p)
        elif exact:
            assert 0 < n < 1 << 30
        elif e < n >> 40 and n >> 30:
            ends = {rounded(n - e - 1, p), rounded(n + e + 1, p), rounded(2 * (n - e) - 1, p - 1)}
            assert len(ends) > 1 or rounded(n, p) == 0x7F800000 or found == 0, (n, e, p)
    assert told > 1000
    return told


MUTANTS: Mutants = [
    ("no norm of what rows cut", cut_beyond_middles, "crossed = cut_a * size_b[None, :]", "crossed = cut_a * 0"),
    ("no norm of what columns cut", cut_beyond_middles, "[:, None] * cut_b[None, :]", "[:, None] * 0 * cut_b[None, :]"),
    ("nothing was cut", cut_beyond_middles, "y = rest.to(tl.float32)", "y = 0 * rest.to(tl.float32)"),
    ("the last that was cut", cut_beyond_middles, "lost += y * y", "lost = y * y"),
    ("norms of rows for columns", lambda: hostile("wide"),
     "batch * (m + n) + i, batch * (m + n) + m + j", "batch * (m + n) + i, batch * (m + n) + j"),
    ("one place too many", lambda: hostile("positive", "gauss"), "reach_power + 127 -", "reach_power + 129 -"),
    ("digits without the first", lambda: hostile("gauss"), "(tl.minimum(exponent, 1) << 23)", "0"),
    ("residues without a sign", lambda: hostile("gauss"), "tl.where(bits < 0, -integer, integer)", "integer"),
    ("the lowest digit of residues", lambda: hostile("gauss"), "y = low + middle", "y = middle"),
    ("the highest digit of residues", lambda: hostile("gauss"), "+ high * tl.load", "+ 0 * high * tl.load"),
    ("the first digit of fractions", lambda: hostile("gauss"), ".to(tl.uint64) << 32", ".to(tl.uint64) << 31"),
    ("the second digit of fractions", lambda: hostile("gauss"),
     "tl.load(number + 1).to(tl.uint32).to", "tl.load(number).to(tl.uint32).to"),
    ("one modulus for all", lambda: hostile("gauss"), "number += 3", "number += 0"),
    ("sums that go on", lambda: hostile("gauss"),
     "            c = tl.full((BLOCK_M, BLOCK_N), 1 << 30, tl.int32)\n            number", "            number"),
    ("no sign", lambda: hostile("gauss"), "bits | (-1 << 31), bits)", "bits, bits)"),
    ("subnormals as others", lambda: hostile("subnormal"), "(tl.minimum(exponent, 1) << 23)", "(1 << 23)"),
    ("the third digit of fractions", lambda: hostile("ties", "gauss", "cancelling"),
     "f += tl.umulhi(x, tl.load(number + 2)", "f += 0 * tl.umulhi(x, tl.load(number + 2)"),
    ("rows within 2 GiB", far_rows, "i[:, None].to(tl.int64) * whole", "i[:, None] * whole"),
    ("the offset stays", beside_middles, "- tl.load(folds + 1)", "- 0 * tl.load(folds + 1)"),
    ("what was cut is exact", lambda: hostile("wide", "ties"),
     "tl.where(cut > 0, NONE, tl.min(lowest, 1))", "tl.min(lowest, 1)"),
    ("a grain too large", lambda: hostile("small integers", "ties"), "- 127 + places", "- 121 + places"),
    ("ties away from zero", decides_ties, "exact & (rest == 0), digits & 1, 0)", "exact & (rest == 1), digits & 1, 0)"),
    ("zeros with a sign", special, "(z < 0) & (bits > 0)", "(z < 0)"),
    ("what is not finite is decided", special, "(most < BAD) & (decided", "(decided"),
    ("undecided ones are left", lambda: hostile("ties", "wide"),
     "undecided = inside & ~decided", "undecided = inside & ~inside"),
    ("FP64 and integers", leaves_wide,
     "left_out = tl.arange(0, BLOCK_K), is_loose(loose)", "left_out = tl.arange(0, BLOCK_K), tl.load(loose) > 1 << 61"),
    ("nothing is loose", leaves_wide, "tl.div_rn(cut, size) * share", "0 * share"),
    ("lower than a middle", lambda: rounds(32, exact=False), "(rest > error)", "(rest + error >= 0)"),
    ("higher than a middle", lambda: rounds(32, exact=False), "(rest < cell - error)", "(rest < cell)"),
    ("a power of two from below", lambda: rounds(32, exact=False), "(error < cell >> 2)", "(error < cell)"),
    ("no subnormals", lambda: rounds(32, exact=True), "-117 - PRECISION - power", "0 * power"),
    ("parts: one modulus for all", lambda: in_parts(lambda: hostile("gauss")), "2 + begin // fold * 3", "2"),
    ("parts: the first rows' residues", lambda: in_parts(lambda: hostile("gauss")),
     "one = left + i[:, None] * whole(pitch, 16) + (begin + t)", "one = left + i[:, None] * whole(pitch, 16) + t"),
    ("parts: more than their folds", lambda: in_parts(lambda: hostile("gauss")),
     "tl.minimum(begin + folded, pitch)", "pitch"),
    ("parts: terms beyond the last", lambda: in_parts(lambda: hostile("gauss")),
     "tl.minimum(begin + folded, pitch)", "begin + folded"),
    ("parts: the last alone", lambda: in_parts(lambda: hostile("gauss")),
     "f += tl.load(fractions", "f = tl.load(fractions"),
    ("chunks: the first rows", chunks,
     "(a_first + top + tl.arange(0, BLOCK_M)).to(tl.int64)", "(top + tl.arange(0, BLOCK_M)).to(tl.int64)"),
    ("parts: the next batch", lambda: in_parts(lambda: forms(4, affine)),
     "place += batches.to(tl.int64) * a_rows * b_rows", "place += a_rows * b_rows"),
    ("parts: the first rows", lambda: in_parts(chunks), "batch, (a_first + i).to(tl.int64)", "batch, i.to(tl.int64)"),
    ("parts: FP64 and integers", lambda: in_parts(leaves_wide), "(i < a_rows) & ~is_loose(loose)", "(i < a_rows)"),
    ("no infinity", lambda: rounds(16, exact=True), "tl.where(exponent < 254, ", "tl.where(exponent < 999, "),
]  # fmt: skip

FAST = {
    "hostile": lambda: hostile(*MATRICES), "special": special, "ties": decides_ties, "cut": cut_beyond_middles,
    "loose": leaves_wide, "far": far_rows, "parts": lambda: in_parts(lambda: hostile("ties", "wide")),
    "rounding": lambda: rounds(32, exact=False) + rounds(16, exact=True),
}  # fmt: skip
SLOW = {
    "hostile": lambda: hostile(*(kind for kind in HOSTILE if kind not in MATRICES)),  # which FAST has
    "long": lambda: hostile("gauss", size=(3, 4100, 2), precisions=(32,)),
    "panels": lambda: hostile("gauss", "ties", "wide", FOLD=32),
    "chunks": chunks, "multiprocessors": fills_multiprocessors, "chunks in parts": lambda: in_parts(chunks),
    "panels in parts": lambda: in_parts(lambda: hostile("ties", "wide", FOLD=32), 20),
    "loose in parts": lambda: in_parts(leaves_wide), "batches in parts": lambda: in_parts(lambda: forms(4, affine)),
    "single": lambda: hostile("gauss", "ties", "wide", size=(3, 1, 5)),
    "matrices": lambda: forms(12, affine), "convolutions": lambda: forms(12, convolution),
    "not loose": lambda: leaves("gauss", stays=False, left=False, much=32),
    "stays": lambda: leaves("wide", stays=True, left=False),
    "no reads": waits_for_nothing, "beside middles": beside_middles, "qualified": qualifies,
    "rounding": lambda: sum(rounds(bits, exact=e) for bits in (16, 20, 24, 25, 31, 32) for e in (False, True)),
}  # fmt: skip


SUITE = Suite(FAST, SLOW, MUTANTS, lambda: killed(MUTANTS, launching, kernels))

if __name__ == "__main__":
    main(SUITE)
