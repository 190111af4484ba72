"""Data made to be undecided get the reference's bits, with kernels and without (`tiebreak.lab.worst`)."""

from functools import cache

import pytest
import torch
from torch import Tensor

from tests.engine.arithmetic_cases import check, expected
from tests.engine.test_exact import kernel, plain_kernel  # noqa: F401  (each test runs in each of these ways)
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.lab import worst

SMALL = (
    worst.product(1, 24, 40, 40), worst.product(3, 9, 12, 5), worst.product(2, 40, 7, 33),
    worst.convolution(2, 4, 6, 3), worst.plain(11, 50), worst.plain(40, 9, columns=True), worst.scatter(60, 6, 5),
)  # fmt: skip


@cache
def hostile(case: worst.Case, pattern: worst.Pattern, seed: int) -> tuple[list[Tensor], list[int]]:
    operands = case.operands(pattern, torch.Generator().manual_seed(seed))
    return operands, expected(case.instruction, operands)


def check_hostile(case: worst.Case, pattern: worst.Pattern, seed: int) -> None:
    operands, right = hostile(case, pattern, seed)
    for permute in (None, 1):
        check(Arithmetic(permute=permute), case.instruction, operands, right=right)


def test_some_hostile_data_get_the_exactly_rounded_results() -> None:
    for case, pattern in zip(SMALL[::3], worst.PATTERNS.values(), strict=False):
        check_hostile(case, pattern, 3)


@pytest.mark.slow
def test_all_hostile_data_get_the_exactly_rounded_results() -> None:
    for case in SMALL:
        for pattern in worst.PATTERNS.values():
            check_hostile(case, pattern, 4)


def test_most_hostile_patterns_leave_nearly_all_elements_undecided() -> None:
    """Three of four, or more, leave nearly every element of a product undecided."""
    hostile = 0
    for pattern in worst.PATTERNS.values():
        case, arithmetic = worst.product(1, 64, 64, 64), Arithmetic()
        arithmetic.execute(case.instruction, case.operands(pattern, torch.Generator().manual_seed(5)), 0)
        counts = arithmetic.stats.of("reduce.sum.products")
        hostile += counts.undecided > 0.9 * counts.elements
    assert hostile >= 0.75 * len(worst.PATTERNS)


def test_infinite_or_nan_terms_do_not_disturb_other_hostile_sums() -> None:
    """Rows and columns with them are NaN, the others exact, where the block is summed as a whole."""
    case = worst.product(1, 24, 40, 40)
    operands = case.operands(worst.PATTERNS["cancelling over all exponents"], torch.Generator().manual_seed(6))
    operands[0][5 * 40 + 3], operands[1][7 * 40 + 9] = float("inf"), float("nan")
    found = check(Arithmetic(), case.instruction, operands)
    assert found.count(0x7FC00000) == 40 + 24 - 1
