"""exp, log, tanh, erf, sin, cos against mpmath with far more bits, and their special cases by the letter."""

from collections.abc import Callable
from fractions import Fraction

import mpmath
import pytest

from tests.hardest.search import estimate
from tests.protocol.oracles import INF, NAN, SIGN, Stream, nearest, value
from tests.vectors.inputs import EDGES, HARD, TRANSCENDENTAL_EDGES
from tiebreak.protocol.numbers import transcendental
from tiebreak.protocol.program.isa import TRANSCENDENTALS, MapFunction

ONE = 0x3F800000
NAMES = [f.name.lower() for f in sorted(TRANSCENDENTALS)]


def exact_magnitude(name: str, bits: int, working: int) -> tuple[Fraction, int]:
    """mpmath's value, and its sign."""
    with mpmath.workprec(working):
        x = value(bits)
        sign, mantissa, exponent, _ = getattr(mpmath, name)(mpmath.mpf(x.numerator) / x.denominator)._mpf_
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent), -1 if sign else 1


def oracle(name: str, bits: int, precision: int = 32, working: int = 600) -> int:
    """Round mpmath's value; both ends of a generous interval must round alike, else the oracle itself is undecided."""
    magnitude, sign = exact_magnitude(name, bits, working)
    slack = 1 + Fraction(1, 2 ** (working - 40))
    ends = {nearest(sign * magnitude * slack, precision), nearest(sign * magnitude / slack, precision)}
    assert len(ends) == 1, (name, hex(bits))
    return ends.pop() | (SIGN if sign < 0 and magnitude else 0)


def inputs(name: str, count: int) -> list[int]:
    """Adversarial patterns, then patterns whose exponents are spread over the interesting range, then any."""
    stream = Stream(f"transcendental/{name}")
    found = [b | s for b in (*EDGES, *TRANSCENDENTAL_EDGES) for s in (0, SIGN)]
    for _ in range(count):
        found.append(stream.bits(1) << 31 | (stream.below(24) + 112) << 23 | stream.bits(23))
        found.append(stream.bits(32))
    finite = [b for b in found if b & INF != INF and b & ~SIGN]
    return [b for b in finite if b < SIGN and b != ONE] if name == "log" else finite


def call(name: str) -> Callable[..., int]:
    return getattr(transcendental, name)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_transcendentals_are_correctly_rounded(name: str, cases: Callable[[], None]) -> None:
    for bits in inputs(name, 60):
        if name == "exp" and abs(value(bits)) > 200:
            assert call(name)(bits) == (0 if bits & SIGN else INF)
        elif name in ("tanh", "erf") and abs(value(bits)) > 30:
            assert call(name)(bits) == (bits & SIGN) | ONE
        else:
            assert call(name)(bits) == oracle(name, bits), f"{name}({bits:#010x})"
        cases()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", [16, 23, 24, 31])
def test_transcendentals_are_correctly_rounded_at_lower_precision(
    name: str, precision: int, cases: Callable[[], None]
) -> None:
    """Subnormal and other tiny arguments stand next to ties of the shorter format: the hardest case for Ziv's loop."""
    ties = [0x00018080, 0x00008001, 0x01000080, 0x20000080, 0x3F000001, 0x30000010, 0x38001810, 0x00000080, 0x35000001]
    ties += [0x00008000, 0x00018000, 0x01008000, 0x20018000, 0x30808000, 0x38001000, 0x35000100, 0x2F000100, 0x00001000]
    for bits in ties + inputs(f"{name}", 12)[-24:]:
        if abs(value(bits)) > 30:
            continue
        if name == "log" and bits & SIGN:
            continue
        assert call(name)(bits, precision) == oracle(name, bits, precision, 1200), (
            f"{name}({bits:#010x}) to {precision}"
        )
        cases()


@pytest.mark.parametrize("function", sorted(TRANSCENDENTALS))
def test_hardest_arguments_are_correctly_rounded(function: MapFunction, cases: Callable[[], None]) -> None:
    """They are rounded correctly, and they are hard: the exact value is within 2^-20 ulp of a rounding boundary."""
    name = function.name.lower()
    for bits in HARD[function]:
        found = call(name)(bits)
        assert found == oracle(name, bits)
        magnitude, _ = exact_magnitude(name, bits, 200)
        here = value(found & ~SIGN)
        ulp = value((found & ~SIGN) + 1) - here
        assert abs(abs(magnitude - here) - ulp / 2) < ulp / 2**20
        cases()


SPECIAL = {
    "exp": [(0, ONE), (SIGN, ONE), (INF, INF), (SIGN | INF, 0), (0x42B17218, INF), (0x42B17217, 0x7F7FFF84), (1, ONE)],
    "log": [(0, SIGN | INF), (SIGN, SIGN | INF), (ONE, 0), (INF, INF), (SIGN | INF, NAN), (SIGN | 1, NAN)],
    "tanh": [(0, 0), (SIGN, SIGN), (INF, ONE), (SIGN | INF, SIGN | ONE), (1, 1), (SIGN | 1, SIGN | 1)],
    "erf": [(0, 0), (SIGN, SIGN), (INF, ONE), (SIGN | INF, SIGN | ONE), (1, 1), (SIGN | 5, SIGN | 6)],
    "sin": [(0, 0), (SIGN, SIGN), (INF, NAN), (SIGN | INF, NAN), (1, 1), (SIGN | 1, SIGN | 1)],
    "cos": [(0, ONE), (SIGN, ONE), (INF, NAN), (SIGN | INF, NAN), (1, ONE), (SIGN | 1, ONE)],
}


@pytest.mark.parametrize("name", NAMES)
def test_transcendentals_return_the_specified_special_values(name: str) -> None:
    for bits, expected in SPECIAL[name]:
        for precision in (24, 32):
            if precision == 24 and bits & ~SIGN in (1, 5, 0x42B17217, 0x42B17218):
                continue
            assert call(name)(bits, precision) == expected, f"{name}({bits:#010x})"
    for nan in (NAN, 0x7F800001, 0xFFFFFFFF):
        assert call(name)(nan) == NAN


@pytest.mark.parametrize("name", NAMES)
def test_estimate_error_bounds_contain_the_true_value(name: str, cases: Callable[[], None]) -> None:
    """The interval of each estimate contains mpmath's value, also at few working bits where the bound is tightest."""
    for bits in inputs(name, 40)[-80:]:
        x = value(bits & ~SIGN)
        if not Fraction(1, 2**30) < x < (4 if name == "erf" else 16):
            continue
        for working in (20, 64, 130):
            found, _ = exact_magnitude(name, bits & ~SIGN, 400)
            n, e, error = estimate(MapFunction[name.upper()], bits & ~SIGN, working)
            unit = Fraction(2) ** e
            assert (n - error) * unit < found < (n + error) * unit, f"{name}({bits:#010x}) at {working} bits"
            assert error > 0
            cases()
