"""The hardest arguments to round: that the list is right, and that the search would find what it lists.

The search itself tries all 2^32 (`make hardest`, minutes); what it found is verified here in a moment. That the
contract's error bounds are below half of the least distance is in contracts/test/Transcendentals.t.sol.
"""

import json
import math
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.hardest import search
from tests.hardest.search import PUBLISHED, RANGES, distance, estimate, record
from tiebreak.engine import native
from tiebreak.protocol.numbers.float32 import INF, MAX_PRECISION, MIN_PRECISION, decode
from tiebreak.protocol.numbers.transcendental import Estimate, _ziv
from tiebreak.protocol.program.isa import MapFunction
from tiebreak.protocol.program.reference import TRANSCENDENTAL_FUNCTIONS as FUNCTIONS

FILE = Path(__file__).resolve().parents[1] / "vectors" / "hardest.json"
RECORD = 43


def content(function: MapFunction) -> dict[str, Any]:
    return dict(json.loads(FILE.read_text("ascii"))[function.name.lower()])


def inside(function: MapFunction, x: int) -> bool:
    return any(first <= x <= last for first, last in RANGES[function])


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.name.lower())
def test_hardest_arguments_file_matches_recomputed_distances(
    function: MapFunction, cases: Callable[[int], None]
) -> None:
    listed = content(function)
    near = [distance(function, int(line.split()[0], 16)) for line in listed["nearest"]]
    assert listed["nearest"] == [f"0x{n.x:08x} at {n.precision or 'none'}: 2^-{n.distance:.2f}" for n in near]
    assert near == sorted(near, reverse=True)
    assert len(near) >= 8
    assert listed["bits"] == math.ceil(near[0].distance)
    assert listed["arguments"] == sum(last - first + 1 for first, last in RANGES[function])
    assert listed["ranges"] == [end for ends in RANGES[function] for end in ends]
    blob = bytes.fromhex(listed["cases"][2:])
    assert len(blob) == RECORD * listed["count"]
    for start in range(0, len(blob), RECORD):
        x, precision = int.from_bytes(blob[start : start + 4], "big"), blob[start + 4]
        assert blob[start : start + RECORD] == record(function, x, precision)
        assert inside(function, x)
    cases(listed["count"])


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.name.lower())
def test_published_hard_cases_are_no_nearer_than_those_found(function: MapFunction, cases: Callable[[], None]) -> None:
    """What other libraries know to be hard is hard here too, and nothing of it is nearer than what the search found."""
    nearest = distance(function, int(content(function)["nearest"][0].split()[0], 16))
    for x in PUBLISHED[function]:
        assert 43 < distance(function, x).distance <= nearest.distance
        cases()


def test_ties_of_every_precision_have_at_most_25_significant_bits(cases: Callable[[], None]) -> None:
    """The middle between two numbers of b bits has at most b - 7 significant bits, so at most 25."""
    stream = random.Random("ties")
    for precision in range(MIN_PRECISION, MAX_PRECISION + 1):
        step = 1 << (MAX_PRECISION - precision)
        last = INF - step  # the middle above the greatest number is where infinity begins
        for x in [0, step, 0x00800000 - step, 0x00800000, last, *(stream.randrange(last) for _ in range(200))]:
            d = x // step * step
            n, e = decode(d)
            exponent = max(d >> 23, 1) - 150 + MAX_PRECISION - precision  # of the gap
            middle = Fraction(n) * Fraction(2) ** e + Fraction(2) ** (exponent - 1)
            odd = middle.numerator // (middle.numerator & -middle.numerator)
            assert odd.bit_length() <= precision - 7 <= 25
            cases()


def test_arguments_nearest_multiples_of_half_pi_match_published_ones() -> None:
    """The f32 next to a multiple of pi/2, known from range reduction elsewhere (Arm's optimized-routines, rredf.c)."""
    assert content(MapFunction.COS)["least"] == 0x6F79BE45
    assert content(MapFunction.COS)["leastExponent"] == -30
    assert content(MapFunction.SIN)["leastExponent"] >= -30


def test_distance_to_a_rounding_boundary_matches_fractions() -> None:
    """`distance` against fractions, at a known neighbourhood: exp of 2^-23 - 2^-47 is 1 + 2^-23 + O(2^-70)."""
    near = distance(MapFunction.EXP, 0x33FFFFFF)
    x = Fraction(0xFFFFFF, 1 << 47)
    value = 1 + x + x**2 / 2 + x**3 / 6 + x**4 / 24
    assert math.isclose(-math.log2(abs(value - 1 - Fraction(1, 1 << 23)) / value), near.distance, abs_tol=1e-6)
    assert near.precision == 31


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.name.lower())
def test_listed_bits_suffice_for_the_reference_and_one_less_does_not(function: MapFunction) -> None:
    """Ziv's loop decides the hardest argument; one bit less than the distance would not."""
    listed = content(function)
    near = distance(function, int(listed["nearest"][0].split()[0], 16))
    precision = near.precision or 32
    n, e, _ = estimate(function, near.x)

    def spoiled(bits: int) -> Estimate:
        return Estimate(n, e, int(n / Fraction(2) ** (near.distance - 1)))

    if near.precision:
        with pytest.raises(AssertionError, match="no decision"):
            _ziv(spoiled, precision)
    assert FUNCTIONS[function](near.x, precision) & 0x7FFFFFFF == _ziv(lambda bits: Estimate(n, e, n >> 90), precision)


@pytest.mark.skipif(native._compiler() is None, reason="needs a C compiler")
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.name.lower())
def test_compiled_filter_keeps_arguments_near_a_boundary(
    function: MapFunction, tmp_path: Path, cases: Callable[[int], None]
) -> None:
    """The compiled filter around each listed argument keeps it, and exactly those that the integers say it must."""
    program = search.compile_filter(tmp_path)
    xs = [int(line.split()[0], 16) for line in content(function)["nearest"]]
    for x in xs:
        kept, tried, _ = search._run(program, function, (x - 40, x + 40))
        assert tried == 81
        assert x in kept
        for other in range(x - 40, x + 40):
            if inside(function, other) and distance(function, other).distance > 43:
                assert other in kept
    cases(len(xs))
