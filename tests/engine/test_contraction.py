"""The compiled kernel of sums against integers and its pure twin; and kernels with a fault, which are caught."""

import ctypes
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.arithmetic_cases import Maker, check, elements_of, expected, random_reduction, sum_of, tensor_of
from tests.parts import slow_except
from tiebreak.engine import native
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic import reduce_native as contraction
from tiebreak.engine.arithmetic.reduce_native import plan_native
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.float32 import round_ratio
from tiebreak.protocol.program.isa import Access, DType, Instruction, Opcode, ReduceFunction

SOURCE = Path(contraction.__file__).with_suffix(".c")
LIBRARY = contraction.build().library
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs a C compiler")
ONE, INF = 0x3F800000, 0x7F800000
HALF_ULP, FAR = 0x33800000, 0x0E800000
HARD = [ONE, HALF_ULP, 1, FAR, FAR | 0x80000000]
"""1 + 2^-24 + 2^-149 beside +-2^-98: only integers decide it."""


def matmul(m: int, k: int, n: int, batch: int = 1, *, transposed: tuple[bool, bool] = (False, False)) -> Instruction:
    """(batch, m, n) = (batch, m, k) x (batch, k, n), each operand row-major or transposed."""
    a = (m * k, 1, 0, m) if transposed[0] else (m * k, k, 0, 1)
    b = (k * n, 0, k, 1) if transposed[1] else (k * n, 0, 1, n)
    return Instruction(
        opcode=Opcode.REDUCE, dtype=DType.F32, shape=(batch, m, n), reduction=(k,),
        operands=(Access(0, 0, a), Access(1, 0, b)),
    )  # fmt: skip


class Terms(ctypes.Structure):
    """`terms` of exact.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("a_k", "b_k")),
        *((name, ctypes.c_int64) for name in ("runs", "run")),
    ]


class Element(ctypes.Structure):
    """`element` of exact.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("a", "b", "to")),
        *((name, ctypes.c_double) for name in ("c", "e")),
    ]


def in_integers(a: torch.Tensor, b: torch.Tensor | None, precision: int) -> int:
    """f32 bits of the exact sum of a (times b), by the kernel's integers alone."""
    assert LIBRARY is not None
    function = LIBRARY.sum_in_integers
    function.restype = ctypes.c_float
    places = np.zeros(1, dtype=np.int64)
    terms = Terms(places.ctypes.data, places.ctypes.data, 1, len(a))
    element = Element(a.data_ptr(), None if b is None else b.data_ptr(), None, 0.0, 0.0)
    return elements_of(torch.tensor([function(ctypes.byref(terms), ctypes.byref(element), precision)]))[0]


@settings(max_examples=300)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["ties", "wide", "edge", "any", "gauss"]),
    st.integers(1, 60),
    st.integers(16, 32),
)
def test_integers_against_rationals(seed: int, style: str, count: int, precision: int) -> None:
    make = Maker(random.Random(seed))
    a, b = (make.tensor(DType.F32, count, style).nan_to_num(1.0, 2.0, -2.0) for _ in range(2))
    a[count // 2 :] = -a[: count - count // 2].flip(0)  # cancellation
    for factors in ((a, None), (a, b)):
        terms = [Fraction(x) for x in a.tolist()]
        if factors[1] is not None:
            terms = [t * Fraction(y) for t, y in zip(terms, b.tolist(), strict=True)]
        exact = sum(terms, Fraction(0))
        bits = round_ratio(exact.numerator, exact.denominator, precision=precision)
        assert in_integers(a, factors[1], precision) == (0 if bits == 0x80000000 else bits)


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.booleans())
def test_any_reduction_against_its_twin_and_integers(seed: int, permuted: bool) -> None:
    instruction, operands = random_reduction(Maker(random.Random(seed)), ReduceFunction.SUM, DType.F32)
    check(Arithmetic(permute=seed % 1000 if permuted else None), instruction, operands)


SHAPES = [
    (1, 2, 1, 1), (1, 1, 700, 1), (5, 193, 13, 1), (97, 192, 25, 2), (96, 385, 36, 1), (400, 64, 30, 1),
    (3, 5000, 2, 1), (2, 20011, 30, 1), (64, 64, 64, 6), (1, 300, 800, 1), (800, 300, 1, 1), (2, 2, 2, 300),
]  # fmt: skip
"""Around the sizes of panels, blocks of terms and blocks of outputs, and where terms are cut into parts."""


@pytest.mark.parametrize("shape", slow_except(SHAPES, *SHAPES[1:6]))
@pytest.mark.parametrize("style", ["gauss", "ties"])
def test_products_against_the_pure_twin(
    shape: tuple[int, int, int, int], style: str, monkeypatch: pytest.MonkeyPatch, cases: Callable[[], None]
) -> None:
    m, k, n, batch = shape
    make = Maker(random.Random(m * k * n))
    operands = [make.tensor(DType.F32, batch * m * k, style), make.tensor(DType.F32, batch * k * n, style)]
    before = torch.get_num_threads()
    for transposed in ((False, False), (True, False), (False, True), (True, True)):
        instruction = matmul(m, k, n, batch, transposed=transposed)
        monkeypatch.setenv("TIEBREAK_NATIVE", "0")
        right = Arithmetic().execute(instruction, operands, 0)
        monkeypatch.delenv("TIEBREAK_NATIVE")
        assert plan_native(instruction) is not None
        try:
            for threads, permute in ((1, None), (2, None), (3, 5)):
                torch.set_num_threads(threads)
                found = Arithmetic(permute=permute).execute(instruction, operands, 0)
                assert torch.equal(found, right)
                cases()
        finally:
            torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("shape", "reduction", "strides"),
    slow_except(
        [
            ((7,), (1000,), (1000, 1)),
            ((1000,), (7,), (1, 1000)),
            ((3, 300), (5, 40), (60000, 1, 12000, 300)),
            ((4, 5), (6, 70), (1, 4, 1400, 20)),
            ((), (100_003,), (1,)),
            ((), (300, 301), (301, 1)),
            ((260,), (1,), (1, 0)),
            ((2, 3), (50,), (150, -50, 1)),
        ],
        ((7,), (1000,), (1000, 1)),
        several=True,
    ),
)
@pytest.mark.parametrize("operands", [1, 2])
def test_flat_sums_against_the_pure_twin(
    shape: tuple[int, ...], reduction: tuple[int, ...], strides: tuple[int, ...], operands: int,
    monkeypatch: pytest.MonkeyPatch, cases: Callable[[], None],
) -> None:  # fmt: skip
    offset = -sum(stride * (size - 1) for stride, size in zip(strides, (*shape, *reduction), strict=True) if stride < 0)
    instruction = Instruction(
        opcode=Opcode.REDUCE, dtype=DType.F32, shape=shape, reduction=reduction,
        operands=tuple(Access(i, offset, strides) for i in range(operands)),
    )  # fmt: skip
    make = Maker(random.Random(str(strides)))
    for style in ("gauss", "ties", "wide"):
        read = [make.tensor(DType.F32, 200_000, style) for _ in range(operands)]
        monkeypatch.setenv("TIEBREAK_NATIVE", "0")
        right = Arithmetic().execute(instruction, read, 0)
        monkeypatch.delenv("TIEBREAK_NATIVE")
        for permute in (None, 3):
            found = Arithmetic(permute=permute).execute(instruction, read, 0)
            assert torch.equal(found.nan_to_num(7.0), right.nan_to_num(7.0))
            cases()


def test_non_finite_rows_are_nan_and_leave_others_alone() -> None:
    left = torch.ones(40, 30)
    left[3, 7], left[9, 0], left[17, 29] = float("inf"), float("nan"), float("-inf")
    right = torch.ones(30, 50)
    right[5] = 0
    instruction = matmul(40, 30, 50)
    found = Arithmetic().execute(instruction, [left, right], 0)[0]
    assert elements_of(found) == expected(instruction, [left, right])
    assert torch.isnan(found[[3, 9, 17]]).all()
    assert (found[[0, 1, 2, 39]] == 29).all()


def test_a_table_that_leaves_its_operand_is_refused() -> None:
    """Validation of programs comes first; the kernel's caller checks again."""
    with pytest.raises(ValueError, match=r"places 0 \.\.\. 18"):
        Arithmetic().execute(matmul(3, 4, 5), [torch.ones(12), torch.ones(19)], 0)


def faulty(monkeypatch: pytest.MonkeyPatch, folder: Path, old: str, new: str) -> None:
    """Puts a kernel compiled from a changed source in place of the real one."""
    sources = {name: SOURCE.with_name(name).read_text() for name in ("reduce.c", "exact.h", "lanes.h", "rounding.h")}
    assert sum(text.count(old) for text in sources.values()) == 1
    for name, text in sources.items():
        (folder / name).write_text(text.replace(old, new))
    built = native.load(folder / "reduce.c")
    assert built.library is not None, built.reason
    monkeypatch.setattr("tiebreak.engine.arithmetic.reduce.build", lambda: built)


ZERO = "/* -0 + 0 = +0 */"
FAULTS = [
    (
        f"{ZERO}\n        any |= !(upper == lower);",
        f"{ZERO}\n        any |= !(c[j] == c[j]);",
    ),  # Ziv's test left out: FP64, then rounded
    ("if (upper == lower) return upper;", "if (upper == upper) return upper;"),  # the integers switched off
    ("pattern += (h > 0) == (l > 0) ? 1 : (uint64_t)-1;", "pattern += 0;"),  # rounded twice
    (f"high[j] = upper + 0.0f; {ZERO}", "high[j] = upper;"),  # zero of either sign
    ("if (!isfinite(s)) return NAN;", "if (!isfinite(s)) return (float)s;"),  # infinities that should be NaN
]


@pytest.mark.parametrize(("old", "new"), slow_except(FAULTS, FAULTS[0], several=True))
def test_a_faulty_kernel_is_caught(old: str, new: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By sums whose exact value lies next to a tie, is -0, or has no finite terms."""
    tiny = 0x80000001  # -2^-149
    rows = [
        [HARD],
        [[ONE, HALF_ULP, tiny, *HARD[3:]]],
        [[ONE, HALF_ULP, 0x00800000]],
        [[1, 0], [tiny, 0]],
        [[INF, ONE]],
    ]

    def wrong() -> int:
        found = 0
        for row in rows:
            for order in (row, [factors[::-1] for factors in row]):
                i = sum_of(*order)
                terms = [tensor_of(DType.F32, factors) for factors in order]
                found += elements_of(Arithmetic().execute(i, terms, 0).reshape(-1)) != expected(i, terms)
        return found

    assert wrong() == 0
    faulty(monkeypatch, tmp_path, old, new)
    assert wrong() > 0
    with pytest.raises(ConfigurationError, match="does not compute reduce sum"):
        qualify(Arithmetic())


FAULTS_OF_FEWER_BITS = [
    ("(pattern >> drop & 1)", "1"),  # ties away from zero
    ("fabs(x) < 0x1p-126 ? small : from_pattern(kept)", "from_pattern(kept)"),  # subnormals keep too many places
    ("x == x ? rounded : x", "rounded"),  # a NaN's payload carries into the exponent
    ("round_to(odd, precision) + 0.0f", "(float)odd + 0.0f"),  # settled elements keep all their bits
    ("const int least = -117 - precision;", "const int least = -149;"),  # those settled in integers too
    ("exponent - least + 1 : precision - 8", "exponent - least + 1 : 24"),
]


@pytest.mark.parametrize(("old", "new"), slow_except(FAULTS_OF_FEWER_BITS, FAULTS_OF_FEWER_BITS[0], several=True))
def test_a_faulty_rounding_is_caught(old: str, new: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By sums of 16 bits at ties, below 2^-126, not finite, and beside ties by less than doubled precision can tell."""
    half, negative = 0x3B800000, FAR | 0x80000000
    rows = [
        [ONE, half],
        [0x0000C000, 0],  # three quarters of the smallest number of 16 bits
        [0x7FFFFFFF, 0],
        [ONE, half, 1, FAR, negative],
        [0x00008000, ONE, 0xBF800000],  # half of that number
    ]

    def wrong() -> int:
        found = 0
        for row in rows:
            # A NaN of any payload, as other instructions may leave it.
            i, terms = sum_of(row), [torch.tensor(row, dtype=torch.int64).to(torch.int32).view(torch.float32)]
            right = expected(i, terms, precision=16)
            found += elements_of(Arithmetic(precision=16).execute(i, terms, 0).reshape(-1)) != right
        return found

    assert wrong() == 0
    faulty(monkeypatch, tmp_path, old, new)
    assert wrong() > 0


def test_operands_may_be_swapped_and_the_output_of_any_order() -> None:
    """Rows of the output that neither operand reads in one run."""
    make = Maker(random.Random(3))
    a, b = make.tensor(DType.F32, 6 * 35, "ties"), make.tensor(DType.F32, 4 * 35, "gauss")
    base = Instruction(
        opcode=Opcode.REDUCE, dtype=DType.F32, shape=(2, 4, 3), reduction=(7, 5),
        operands=(Access(0, 0, (105, 0, 35, 5, 1)), Access(1, 0, (0, 35, 0, 5, 1))),
    )  # fmt: skip
    check(Arithmetic(), base, [a, b])
    check(Arithmetic(), replace(base, operands=base.operands[::-1]), [b, a])
