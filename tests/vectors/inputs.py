"""Inputs of the test vectors: reproducible (SHAKE-128 of a name) and adversarial (subnormals, ties, cancellation)."""

from collections.abc import Iterator
from hashlib import shake_128
from typing import Final

from tests.protocol import oracles
from tiebreak.protocol.numbers.float32 import INF, NAN_BITS, ONE, SIGN
from tiebreak.protocol.program.isa import DType, MapFunction

EDGES: Final = (
    0, 1, 2, 0x007FFFFF, 0x00800000, 0x00800001, 0x33800000, 0x3F7FFFFF, ONE, 0x3F800001, 0x40400000, 0x4B7FFFFF,
    0x5F000000, 0x7F000000, 0x7F7FFFFF, INF, NAN_BITS,
)  # fmt: skip
"""Magnitudes: 0, least and greatest subnormal and normal numbers, 2^-24, around 1, 3, 2^24 - 1, 2^63, infinity, NaN."""
TRANSCENDENTAL_EDGES: Final = (
    0x3F000000, 0x40000000, 0x3EAAAAAB, 0x3FB504F3, 0x3FB504F4, 0x402DF854, 0x3F490FDA, 0x3F490FDB, 0x3FC90FDB,
    0x40490FDB, 0x40C90FDB, 0x4016CBE4, 0x4B800001, 0x53B146A6, 0x5922AA80, 0x6A09E667, 0x6C6CBC45, 0x7E967699,
    0x42AEAC4F, 0x42AEAC50, 0x42B17217, 0x42B17218, 0x42B20000, 0x42CE8ECF, 0x42CFF1B4, 0x42CFF1B5, 0x42D00000,
    0x407AD446, 0x407AD447, 0x407FFFFF, 0x40800000, 0x41102CB3, 0x41102CB4, 0x417FFFFF, 0x41800000, 0x32FFFFFF,
    0x33000001, 0x33800001, 0x39000000, 0x3A000001, 0x3C9374BC, 0x007FFFFF, 0x00400000, 0x00000003,
)  # fmt: skip
"""Around e, sqrt 2, multiples of pi/2 up to 2^126, the thresholds of exp, tanh and erf, and very small arguments."""
HARD: Final[dict[MapFunction, tuple[int, ...]]] = {
    MapFunction.EXP: (
        0xC16912CD, 0x3D1A274E, 0x4001B249, 0x40315B33, 0x3FE67199, 0xBC2A461A, 0xC0781533,
        0x41CBF87B, 0xC13D6631, 0x4034D02B, 0x3C971AAA, 0x3C608A0E, 0x3CAFFE2E, 0xBCB8F40F,
    ),
    MapFunction.LOG: (
        0x3C413D3A, 0x41178FEB, 0x3FD364D7, 0x3E2B3421, 0x4056EE45, 0x3FC55379, 0x40504CB2,
        0x41E3B2AF, 0x3FDC4750, 0x404DC250, 0x3F7FFFFE, 0x3FA66C0B, 0x3E5C31F6, 0x3CA1C99F,
    ),
    MapFunction.TANH: (
        0x3EEE0566, 0x3CD41B91, 0x3C96AE2E, 0x3D7C3055, 0x3F20B67F, 0x3FF8BC7E, 0x4013CD84,
        0x3F97FBC7, 0x3EF6AFEE, 0x3F172BE6, 0x3E150CD4, 0x3DC95DB7, 0x3FB3C82A, 0x3C4E34B0,
    ),
    MapFunction.ERF: (
        0x3F043A75, 0x3C7C9E9F, 0x3E1FCC60, 0x3F44DDFD, 0x3E97E551, 0x3E2F129D, 0x3C45AAF6,
        0x3D3E3BD9, 0x3CC37934, 0x3CAFEB05, 0x3CB655CB, 0x3CE105F6, 0x3C722D53, 0x3D844128,
    ),
    MapFunction.SIN: (
        0x3EF3830F, 0x3DCF5597, 0x3D0650EA, 0x401F2100, 0x3EF32001, 0x3FA0FA4E, 0x40E70813,
        0x3CA025C6, 0x3DE26FD0, 0x3F86B3D2, 0x3C56AA1E, 0x3EB00D62, 0x3C62EDA4, 0x40241807,
    ),
    MapFunction.COS: (
        0x3C107FE6, 0x3E5FA70E, 0x3FDB3C0E, 0x4010A4BF, 0x3FAA2672, 0x3DAC4FC0, 0x3F8626A5,
        0x40259F7C, 0x3D58A0EA, 0x3CFCFBFF, 0x3EA0E6EF, 0x3EFEC12E, 0x3F22061D, 0x4179E3A4,
    ),
}  # fmt: skip
"""Arguments whose results lie nearest to a rounding boundary: within some 2^-24 of an ulp, where binary64 alone cannot
decide. Found by a search over all 2^-7 <= |x| < 32."""
I64_EDGES: Final = (
    0, 1, -1, 2, -2, 7, -7, 1 << 24, (1 << 24) + 1, (1 << 25) + 2, (1 << 25) + 6, (1 << 53) + 1, (1 << 32) - 1,
    -(1 << 31), (1 << 62) + (1 << 38), (1 << 63) - 1, -(1 << 63), -(1 << 63) + 1,
)  # fmt: skip

LONG_WALKS: Final = (
    (2, 10138, 3, 5, 1), (8, 119659, 3, 17, 1), (1 << 19, 4603285, 3, (1 << 20) + 1, 1),
)  # fmt: skip
"""Arguments (index, seed, epoch, n, stream) of `shuffle` that walk longest for their n, of all seeds below 2^20 (n = 5:
12 walks, the most there can be; n = 17: 37) or 14 * 2^20 (62 walks)."""


class Stream(oracles.Stream):
    """A reproducible stream of integers; the same name gives the same numbers."""

    def bits(self, width: int) -> int:
        """`width` <= 64 uniform bits."""
        self._count += 1
        return int.from_bytes(shake_128(f"{self._name} {self._count}".encode()).digest(8), "big") >> (64 - width)

    def f32(self, low: int, high: int) -> int:
        """A pattern with biased exponent low ... high-1 and any sign."""
        return self.bits(1) << 31 | (low + self.below(high - low)) << 23 | self.bits(23)

    def short_f32(self, low: int, high: int, width: int) -> int:
        """The same with only the first `width` fraction bits, so that results are exact or ties."""
        return self.bits(1) << 31 | (low + self.below(high - low)) << 23 | self.bits(width) << (23 - width)

    def i64(self) -> int:
        """An integer whose magnitude is spread over all binades."""
        return (self.bits(64) - (1 << 63)) >> self.below(63)

    def data(self, length: int) -> bytes:
        return bytes(self.bits(8) for _ in range(length))


def _neighbour(x: int, step: int) -> int:
    return x & SIGN | max(0, min(INF, (x & ~SIGN) + step))


def _add_pair(s: Stream) -> tuple[int, int]:
    """y near -x (cancellation), or half an ulp of x and a little more or less (ties)."""
    x = s.f32(1, 254)
    if s.bits(1):
        return x, _neighbour(x ^ SIGN, s.below(5) - 2)
    exponent = (x >> 23 & 255) - 24 + s.below(3) - 1
    half = max(exponent, 0) << 23 | (s.bits(1) or s.bits(2) << 21)
    return x, s.bits(1) << 31 | half


def _mul_pair(s: Stream) -> tuple[int, int]:
    """Products with few bits (ties), or next to underflow and overflow."""
    x = s.short_f32(100, 155, 12)
    if s.bits(1):
        return x, s.short_f32(100, 155, 12)
    low = max(1, (s.below(26) + 102 if s.bits(1) else 380 + s.below(3)) - (x >> 23 & 255))
    return x, s.short_f32(low, low + 1, 12)


def _div_pair(s: Stream) -> tuple[int, int]:
    """Quotients next to 1, exact quotients, and quotients next to underflow and overflow."""
    y = s.short_f32(60, 190, 10)
    kind = s.below(3)
    if kind == 0:
        return _neighbour(y, s.below(7) - 3), y
    if kind == 1:
        return s.short_f32(60, 190, 10), y
    exponent = (y >> 23 & 255) + (128 if s.bits(1) else -127 - s.below(24))
    return s.bits(1) << 31 | max(0, min(254, exponent)) << 23 | s.bits(23), y


_PAIRS: Final = {
    MapFunction.ADD: _add_pair,
    MapFunction.SUB: _add_pair,
    MapFunction.MUL: _mul_pair,
    MapFunction.DIV: _div_pair,
}


def f32_pairs(function: MapFunction, extra: int) -> Iterator[tuple[int, int]]:
    """All pairs of half the edges, both signs of one; then adversarial ones of this function; then any."""
    for a in EDGES:
        for b in EDGES[::2]:
            yield a, b
            yield a | SIGN, b
    yield from ((SIGN, SIGN), (SIGN, 0), (0, SIGN), (INF | SIGN, INF | SIGN), (ONE | SIGN, ONE | SIGN))
    stream = Stream(f"f32 pairs of {function.name}")
    for _ in range(extra):
        yield _PAIRS.get(function, _add_pair)(stream)
        yield stream.bits(32), stream.bits(32)


def f32_singles(function: MapFunction, extra: int) -> Iterator[int]:
    """Edges of both signs, then numbers of this function's interesting range, then any pattern."""
    for edge in EDGES + TRANSCENDENTAL_EDGES + HARD.get(function, ()):
        yield edge
        yield edge ^ SIGN
    stream = Stream(f"f32 singles of {function.name}")
    for _ in range(extra):
        if function == MapFunction.SQRT:  # squares of short numbers, and their neighbours
            root = (1 << 11) + stream.bits(11)
            square = root * root << 1 if (root * root).bit_length() < 24 else root * root
            yield _neighbour((64 + stream.bits(7)) << 23 | square & 0x7FFFFF, stream.below(3) - 1)
        elif function == MapFunction.CAST:  # halves and the ends of i64
            yield stream.f32(120, 194)
        else:
            yield stream.f32(114, 136)
        yield stream.bits(32)


def i64_pairs(extra: int) -> Iterator[tuple[int, int]]:
    """All pairs of edges, then pairs of all magnitudes."""
    for a in I64_EDGES:
        for b in I64_EDGES:
            yield a, b
    stream = Stream("i64 pairs")
    for _ in range(extra):
        yield stream.i64(), stream.i64()


def i64_singles(extra: int) -> Iterator[int]:
    """Edges, then integers of all magnitudes, then ties of a conversion to f32."""
    yield from I64_EDGES
    stream = Stream("i64 singles")
    for _ in range(extra):
        yield stream.i64()
        shift = 1 + stream.below(38)
        tie = ((1 << 23) + stream.bits(23)) * 2 + 1
        yield (tie << (shift - 1)) + stream.below(3) - 1


def raw(dtype: DType, x: int) -> int:
    """An element as the unsigned number of its 8-byte field."""
    return x & (1 << 64) - 1 if dtype == DType.I64 else x
