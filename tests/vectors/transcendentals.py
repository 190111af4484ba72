"""Vectors of the transcendentals in bulk: arguments that both sides draw alike, and digests of the results.

Thousands of results of each function at random precisions would be a large file; drawn from SHA-256 by a rule that fits
in a few lines of Python and Solidity, they need none. What is kept is, for each run of 16 cases, the first 4 bytes of
the SHA-256 of their results. The rule is in README.md.
"""

from hashlib import sha256
from typing import Any, Final

from tests.vectors.inputs import EDGES, HARD, TRANSCENDENTAL_EDGES
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION, SIGN, round_f32
from tiebreak.protocol.program.isa import MapFunction
from tiebreak.protocol.program.reference import TRANSCENDENTAL_FUNCTIONS

CASES: Final = 6144
"""The number of cases of each function."""
RUN: Final = 16
_LEAST, _FORMATS = MIN_PRECISION, MAX_PRECISION + 1 - MIN_PRECISION
EXPONENTS: Final[dict[MapFunction, tuple[int, int]]] = {
    MapFunction.EXP: (100, 34),
    MapFunction.LOG: (0, 255),
    MapFunction.TANH: (110, 21),
    MapFunction.ERF: (90, 39),
    MapFunction.SIN: (110, 145),
    MapFunction.COS: (112, 143),
}
"""low and span: biased exponents."""

_PI: Final = 0x3243F6A8885A308D3
"""Pi in units of 2^-64, rounded down."""


def anchors(function: MapFunction) -> tuple[int, ...]:
    """Patterns next to which results are hard: edges, thresholds, multiples of pi/2, values near a tie; NaNs."""
    small = (round_f32(k * _PI, -65) for k in range(1, 65))
    large = (round_f32((2 * k + 1) * _PI, e - 64) for k in range(2) for e in range(6, 126, 3))
    return (*EDGES, *TRANSCENDENTAL_EDGES, *HARD[function], *small, *large, 0x7F800001, 0x7FFFFFFF)


def argument(function: MapFunction, case: int, near: tuple[int, ...]) -> tuple[int, int]:
    """(pattern, precision) of a case."""
    h = sha256(bytes([function]) + case.to_bytes(4, "big")).digest()
    word = int.from_bytes(h[:4], "big")
    anchor = near[int.from_bytes(h[6:8], "big") % len(near)]
    shape = h[4] % 8
    if shape == 0:
        return word, _LEAST + h[5] % _FORMATS
    if function == MapFunction.LOG:
        word &= ~SIGN
    if shape < 5:
        low, span = EXPONENTS[function]
        word = word & 0x807FFFFF | low + h[6] % span << 23
    else:
        offset = h[8] % 17 - 8 if shape > 5 else 0
        word = word & SIGN | (anchor + offset) % SIGN
    return word, _LEAST + h[5] % _FORMATS


def run_digest(function: MapFunction, first: int, near: tuple[int, ...]) -> bytes:
    """The digest of the results of `RUN` cases."""
    results = (
        TRANSCENDENTAL_FUNCTIONS[function](*argument(function, case, near)) for case in range(first, first + RUN)
    )
    return sha256(b"".join(result.to_bytes(4, "big") for result in results)).digest()[:4]


def bulk() -> dict[str, Any]:
    """The file."""
    groups: dict[str, Any] = {}
    for function in TRANSCENDENTAL_FUNCTIONS:
        near = anchors(function)
        groups[function.name.lower()] = {
            "function": int(function),
            "exponents": list(EXPONENTS[function]),
            "anchors": "0x" + b"".join(x.to_bytes(4, "big") for x in near).hex(),
            "digests": "0x" + b"".join(run_digest(function, first, near) for first in range(0, CASES, RUN)).hex(),
        }
    return {"names": list(groups), "cases": CASES, "run": RUN, **groups}
