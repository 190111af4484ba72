"""Products by integers on GPUs: the inequalities of docs/kernels.md, and on which GPUs they are used."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from math import gcd, isqrt, prod

import numpy as np
import pytest
import torch

from tests.engine import integer_reference as reference
from tests.engine.arithmetic_cases import matmul
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import has_integers, integer_products
from tiebreak.engine.arithmetic.gpu import integers
from tiebreak.engine.arithmetic.gpu.integers import Scales
from tiebreak.engine.arithmetic.plan import moduli
from tiebreak.engine.arithmetic.plan.moduli import MODULI, Moduli, count_of
from tiebreak.engine.arithmetic.plan.sums import ReduceTables, plan_tables


def tables_of(*shape: int) -> ReduceTables:
    """The tables of a matrix product: m, k, n and batches."""
    tables = plan_tables(matmul(*shape))
    assert tables is not None
    return tables


def test_moduli_are_coprime_and_their_numbers_are_correct() -> None:
    assert all(gcd(x, y) == 1 for x, y in combinations(MODULI, 2))
    for count in range(7, len(MODULI) + 1):
        found, whole = Moduli(count), prod(MODULI[:count])
        assert found.product == whole < 1 << 95
        assert 2 * Fraction(found.reach) ** 2 < whole * (1 - Fraction(1, 1 << 20))
        assert found.reach < 2**47
        for m, v, fraction in zip(found.numbers, found.weights, found.fractions(96), strict=True):
            assert whole // m * v % m == 1
            assert fraction == (v << 96) // m
        for x in (0, 1, -1, 12345678912345, whole // 2, -(whole // 2) + 1):
            total = sum(Fraction(x % m * v, m) for m, v in zip(found.numbers, found.weights, strict=True)) % 1
            assert total == Fraction(x, whole) % 1


def test_moduli_that_are_not_coprime_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moduli, "MODULI", (256, 254, *MODULI[2:]))
    with pytest.raises(ValueError, match="not invertible"):
        Moduli(11)


@pytest.mark.parametrize(("terms", "precision", "count"), [
    (64, 32, 10), (65, 32, 11), (4000, 32, 11), (4001, 32, 12), (64, 16, 7), (4000, 16, 7), (4001, 16, 8), (64, 24, 9),
])  # fmt: skip
def test_the_number_of_moduli_fits_terms_and_precision(terms: int, precision: int, count: int) -> None:
    assert count_of(terms, precision) == count <= len(MODULI)


@pytest.mark.parametrize("kind", reference.HOSTILE)
def test_norms_bound_sums_and_truncation_errors(kind: str) -> None:
    a, b = reference.factors(kind, 4, 70, 4)
    found = Moduli(count_of(70, 32))
    for row, column in product(a, b.T):
        x, y = reference.Scaled(row, int(found.reach)), reference.Scaled(column, int(found.reach))
        total = sum(p * q for p, q in zip(x.integers, y.integers, strict=True))
        assert 2 * abs(total) < found.product
        scale = Fraction(2) ** (x.exponent + y.exponent)
        exact = scale * sum(Fraction(float(p)) * Fraction(float(q)) for p, q in zip(row, column, strict=True))
        sizes, cuts = ([reference.squares(v) for v in pair] for pair in ((x.integers, y.integers), (x.cut, y.cut)))
        # (p + q + r)^2 <= 3 (p^2 + q^2 + r^2): without roots
        assert (exact - total) ** 2 <= 3 * (cuts[0] * sizes[1] + sizes[0] * cuts[1] + cuts[0] * cuts[1])


TERMS = (1, 64, 768, 4001, 50257, 1 << 16, 1 << 22)


def test_constants_keep_the_bounds_of_the_proof() -> None:
    for k, precision in product(TERMS, (16, 24, 32)):
        s = Scales(k, precision)
        whole, (power, part) = s.moduli.product, s.reach
        assert part * 2.0**power <= s.moduli.reach - isqrt(k) / 2 - 1
        assert 0.5 < part * 2.0**power / s.moduli.reach <= 1
        assert whole < 1 << 62 + s.unit < 2 * whole  # |S| < P / 2 is below 2^61 units
        assert s.width >= k
        assert s.fold % s.tile["BLOCK_K"] == 0 == s.width % s.fold
        assert s.fold * 128 * 128 <= 1 << 29
        assert 2 * s.slack < 1 << s.grain
        crossed = Fraction(isqrt(k * whole) + 1) / Fraction(2) ** (s.unit + s.shift)  # what is cut, times norms
        assert crossed * 33 / 32 < 1 << 31
        assert s.most_loose > 0


def test_residues_fit_in_bytes() -> None:
    """The quotient by the high half of a product, short by one at most, for every sum that 16 bits thrice can have."""
    numbers = np.array(Scales(5000, 32).of_residues(), np.uint64).reshape(-1, 5)
    r = np.random.default_rng(1)
    for m, (middle, high, added, inverse, same) in zip(MODULI, numbers.tolist(), strict=True):
        most = 0xFFFF * (1 + middle + high) + added
        assert same == m
        assert most < 1 << 25
        multiples = np.arange(0, most + 1, m, dtype=np.uint64)
        y = np.concatenate([multiples + np.uint64(d) for d in (0, 1, 2, 3, m - 1)])  # where the quotient changes
        byte = (y - (y * np.uint64(inverse) >> np.uint64(32)) * np.uint64(m)).astype(np.int64) - 128
        assert -128 <= byte.min() <= byte.max() <= 127
        assert ((byte + 128 - y.astype(np.int64)) % m == 0).all()
        for integer in r.integers(-(1 << 47), 1 << 47, 200).tolist():
            shifted = integer + (1 << 47)
            total = (shifted & 0xFFFF) + (shifted >> 16 & 0xFFFF) * middle + (shifted >> 32) * high + added
            assert (total - 128 - integer) % m == 0


@pytest.mark.parametrize("k", TERMS)
def test_the_reconstruction_error_is_within_the_proved_slack(k: int) -> None:
    """Integers within P / 2, whose residues' sums are any that are congruent, come back within the slack."""
    r = np.random.default_rng(k)
    for precision in (16, 32):
        s = Scales(k, precision)
        (scale, off), digits = s.of_folds()[:2], np.array(s.of_folds()[2:], object).reshape(-1, 3)
        assert len(digits) == s.moduli.count * s.panels
        whole, top = s.moduli.product, 1 << 64
        for share in (0, 1, -1, 0.3, -0.4999, 0.4999, 1e-9):
            x = share if isinstance(share, int) else int(share * whole)
            f = 0
            for t, m in enumerate(s.moduli.numbers):
                sums = [int(v) for v in r.integers(0, 1 << 29, s.panels)]
                sums[0] += (x - sum(sums)) % m
                for c, (a, b, d) in zip(sums, digits[t * s.panels : (t + 1) * s.panels].tolist(), strict=True):
                    c += moduli.START
                    f += ((c * a % (1 << 32)) << 32) + c * b + (c * d >> 32)
            z = (f - off + top // 2) % top - top // 2
            size = (abs(z) * (scale % top) >> 64) >> 2
            assert abs(Fraction(x) / Fraction(2) ** s.unit - (size if z >= 0 else -size)) <= s.slack


def test_integer_products_are_chosen_on_the_right_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    device, large, small = torch.device("cpu"), tables_of(512, 768, 3072), tables_of(64, 64, 64)
    for (backend, arch), chosen in {("cuda", 80): 0, ("cuda", 90): 0, ("cuda", 100): 0, ("hip", 0): 0, ("cpu", 0): 0,
                                    ("cuda", 86): 1, ("cuda", 89): 1, ("cuda", 120): 1}.items():  # fmt: skip
        monkeypatch.setattr(integers, "target", lambda _, found=(backend, arch): found)
        for forced, wanted in (("", chosen), ("0", 0), ("1", backend != "hip")):
            monkeypatch.setenv("TIEBREAK_INTEGERS", forced)
            assert (integers.choose(large, 32, device) is not None) == bool(wanted)
        assert integers.choose(small, 32, device) is not None or backend == "hip"
        monkeypatch.setenv("TIEBREAK_INTEGERS", "")
        assert integers.choose(small, 32, device) is None
        assert integers.describe(device)[1].startswith("11 moduli" if chosen else "FP64")
        monkeypatch.setattr("tiebreak.engine.arithmetic.backend.launches", lambda _: True)
        options = Arithmetic().options
        assert has_integers(options) == bool(chosen)
        assert not has_integers(replace(options, compiled=False))
        assert (integers.choose(small, 32, device, forced=True) is not None) == (backend != "hip")


@pytest.mark.parametrize("forced", ["", "1"])
def test_cpus_compute_no_products_by_integers(forced: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIEBREAK_INTEGERS", forced)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert Arithmetic().by_integers() is None
    assert integer_products() == ()
