"""What workers send of their sums is as near to them as its bound says. The oracle is `Fraction`."""

from fractions import Fraction
from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tiebreak.engine.distributed.wire import BOUND_BYTES, ROUNDINGS, SCALE, SUM_BYTES, above, integers, message, parts

LARGEST = 2.0**160
"""More than any norm of a row of f32 numbers; the least that is not 0 is 2^-149."""
sizes = st.one_of(
    st.just(0.0), st.floats(2.0**-149, LARGEST), st.integers(-149, 160).map(lambda e: 2.0**e),
    st.integers(-149, 160).map(lambda e: 2.0**e * (1 - 2.0**-53)),
)  # fmt: skip


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def received(sums: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """What the others make of some sums, each with a row and a column of its own: the sums, and N of each."""
    left, right = above(rows), above(columns)
    coded = integers(sums, left.reciprocal() * SCALE * right.reciprocal())
    sent = message(coded, torch.cat([left, right]))
    assert len(sent) == SUM_BYTES * len(sums) + 2 * BOUND_BYTES * len(rows)
    found, bounds = parts(sent, len(sums))
    assert torch.equal(bounds, torch.cat([left, right]))
    return found * (left / SCALE * right), left * right


@given(st.lists(st.tuples(sizes, sizes, st.floats(-1, 1)), min_size=1, max_size=20))
@settings(max_examples=300)
def test_received_sums_are_within_their_error_bound(cases: list[tuple[float, float, float]]) -> None:
    rows, columns, sums = doubles(*(r for r, _, _ in cases)), doubles(*(c for _, c, _ in cases)), []
    for r, c, share in cases:
        size = Fraction(r) * Fraction(c)
        sums.append(float(size * Fraction(share) * (1 + Fraction(1, 1 << 20))))  # sizes are computed, and so too small
    found, bounds = received(doubles(*sums), rows, columns)
    for exact, value, bound, (r, c, _) in zip(sums, found.tolist(), bounds.tolist(), cases, strict=True):
        assert Fraction(bound) > Fraction(r) * Fraction(c) * (1 + Fraction(1, 1 << 16))
        assert abs(Fraction(value) - Fraction(exact)) <= (ROUNDINGS - 2) * Fraction(bound) / (1 << 53)


@given(st.lists(sizes, min_size=1, max_size=20))
def test_bounds_exceed_sizes_only_slightly(given: list[float]) -> None:
    for size, bound in zip(given, above(doubles(*given)).tolist(), strict=True):
        assert size * (1 + 2.0**-16) < bound <= max(size * (1 + 2.0**-16) * (1 + 2.0**-4), 2.0**-400)


def test_the_error_bound_of_messages_cannot_be_halved() -> None:
    """Sums half a unit beside an integer: a bound of half as many roundings would not hold."""
    rows = torch.ones(1000, dtype=torch.float64)
    sums = (torch.arange(1000, dtype=torch.float64) * 997 + 2.0**40 + 0.5) * (above(rows) / SCALE)
    sums *= 1 - 2.0**-40 * torch.arange(1000, dtype=torch.float64)
    found, bounds = received(sums, rows, rows)
    assert ((found - sums).abs() > ROUNDINGS / 2 * bounds * 2.0**-53).any()


@pytest.mark.parametrize("size", [inf, nan, -nan])
@pytest.mark.parametrize("value", [inf, -inf, nan, 3.0])
def test_non_finite_sums_arrive_as_non_finite(size: float, value: float) -> None:
    found, bounds = received(doubles(value, 0.5), doubles(size, 1.0), doubles(0.0, 1.0))
    assert not found[0].isfinite()
    assert bounds[0] == inf
    assert found[1] == pytest.approx(0.5, rel=2.0**-46)


def test_nan_payloads_are_not_sent_between_workers() -> None:
    """Machines make different ones, and workers compare what they would send."""
    one, other = (torch.tensor([bits]).view(torch.float64) for bits in (0x7FF8 << 48, -(1 << 48) + 77))
    assert torch.equal(message(integers(one, one), above(one)), message(integers(other, other), above(other)))


def test_worker_messages_have_the_specified_bytes() -> None:
    bounds = above(doubles(1.0, 3.0))  # 17/16 and 50/16
    sums = doubles(17 / 16 * 5 / SCALE, -50 / 16 / SCALE)
    assert bytes(message(integers(sums, SCALE / bounds), bounds).tolist()).hex() == (
        "05000000ffffffff"  # 2^47 + 5 and 2^47 - 1: their low 32 bits
        "0080ff7f"  # and the others
        "f13f0940"  # 3ff1 and 4009: 2^0 x 17/16, 2^1 x 25/16
    )
