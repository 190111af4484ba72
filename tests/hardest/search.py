"""The arguments whose function values lie nearest to a boundary of rounding, by trying all 2^32 (`make hardest`).

How many bits an evaluation needs so that its error bound always decides the rounding is not a matter of estimates: it
is found. `search.c` evaluates a function for every argument in FP64 and keeps those near a boundary; their distances
are then computed in integers (`tiebreak.protocol.numbers.transcendental` with 400 bits), and
tests/vectors/hardest.json lists the least.

A boundary is every number of at most 25 significant bits: f32 numbers, and the ties of each precision of 16 to 32 bits,
those of subnormal results among them (a tie of b bits has at most b - 7). Left out are the arguments that
`Transcendentals.sol` answers without evaluation (tiny, large or special; it says why), and by symmetry the negative
ones of all but exp.
"""

import argparse
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, NamedTuple

from tiebreak.protocol.numbers import transcendental
from tiebreak.protocol.numbers.float32 import decode
from tiebreak.protocol.program.isa import MapFunction
from tiebreak.protocol.program.reference import TRANSCENDENTAL_FUNCTIONS as FUNCTIONS

RANGES: Final[dict[MapFunction, tuple[tuple[int, int], ...]]] = {
    MapFunction.EXP: ((0x32800000, 0x42B1FFFF), (0xB2800000, 0xC2CFFFFF)),
    MapFunction.LOG: ((0x00000001, 0x3F7FFFFF), (0x3F800001, 0x7F7FFFFF)),
    MapFunction.TANH: ((0x39000000, 0x411FFFFF),),
    MapFunction.ERF: ((0x00000001, 0x407FFFFF),),
    MapFunction.SIN: ((0x39000000, 0x7F7FFFFF),),
    MapFunction.COS: ((0x39800000, 0x7F7FFFFF),),
}
"""First and last pattern of the arguments that are evaluated."""
PUBLISHED: Final[dict[MapFunction, tuple[int, ...]]] = {
    MapFunction.EXP: (0xC236BD8C,),
    MapFunction.LOG: (0x3F7F4D6F, 0x41178FEB, 0x1E88452D, 0x4C5D65A5, 0x65D890D3, 0x6F31A8EC, 0x7A17F30A),
    MapFunction.TANH: (0x4058E0A3,),
    MapFunction.ERF: (0x3F659229, 0x40041E6A),
    MapFunction.SIN: (0x46199998, 0x3F3ADC51, 0x3FA7832A),
    MapFunction.COS: (0x55325019, 0x5922AA80, 0x5AA4542C, 0x5F18B878, 0x6115CB11, 0x7BEEF5EF),
}
"""Arguments that other libraries treat apart as too hard for FP64: LLVM's libc (libc/src/math/generic/: expf.cpp,
logf.cpp, tanhf.cpp, erff.cpp, sinf.cpp, cosf.cpp) and CORE-MATH (src/binary32/: sin/sinf.c, cos/cosf.c). A search that
does not come across each of them is wrong."""

_BITS: Final = 400
_PIECE: Final = 1 << 26
_SURE: Final = 44
"""The filter drops nothing nearer than 2^-44: what is reported does not depend on the machine's library."""
_LIBRARY_ERROR: Final = 4
"""The error in units of the last of 53 bits; 240 times as much would do no harm (see search.c)."""


class Near(NamedTuple):
    """An argument, and how near its value is to which boundary."""

    distance: float
    """-log2 of the distance, relative to the value."""
    x: int
    precision: int
    """The precision, 24 to 32 bits, at which the boundary is a tie; 0 if it is a number of all these formats."""


def estimate(function: MapFunction, x: int, bits: int = _BITS) -> transcendental.Estimate:
    """The magnitude of f(x), by as many working bits, for x inside the ranges."""
    n, e = decode(x)
    shift = 24 - n.bit_length()
    match function:
        case MapFunction.EXP:
            found = transcendental._exp_estimate(n, e, bits)
        case MapFunction.LOG:
            found = transcendental._log_estimate(n << shift, e - shift + 23, bits)
        case MapFunction.TANH:
            found = transcendental._tanh_estimate(n, e, bits)
        case MapFunction.ERF:
            found = transcendental._erf_estimate(n, e, bits)
        case _:
            found = transcendental._sine_estimate(n, e, bits, int(function == MapFunction.COS))
    return found._replace(n=abs(found.n))


def _magnitude(function: MapFunction, x: int) -> Fraction:
    n, e, _ = estimate(function, x)
    return Fraction(n) * Fraction(2) ** e


def distance(function: MapFunction, x: int) -> Near:
    """How near f(x) is to a number of 25 significant bits."""
    n, e, error = estimate(function, x)
    shift = n.bit_length() - 25
    boundary = (n + (1 << (shift - 1))) >> shift
    rest = abs(n - (boundary << shift))
    assert rest > error << 10, "more bits are needed to see the distance"
    lowest = (boundary & -boundary).bit_length() - 1 + shift + e
    top = max(boundary.bit_length() - 1 + shift + e, -126)
    precision = top + 8 - lowest  # a tie's last bit is one below the last of its b - 9 fraction bits
    return Near(-math.log2(Fraction(rest, n)), x, precision if 24 <= precision <= 32 else 0)


def library_error(function: MapFunction, count: int = 2000) -> float:
    """The largest error of this machine's FP64 function among random arguments, in units of the last of 53 bits."""
    stream = random.Random(int(function))
    call = getattr(math, function.name.lower())
    worst = 0.0
    for first, last in RANGES[function] * count:
        x = stream.randint(first, last)
        value = abs(call(struct.unpack(">f", x.to_bytes(4, "big"))[0]))
        error = abs(Fraction(value) - _magnitude(function, x))
        worst = max(worst, float(error / Fraction(math.ulp(value))))
    return worst


def _pieces(function: MapFunction) -> Iterator[tuple[int, int]]:
    for first, last in RANGES[function]:
        for start in range(first, last + 1, _PIECE):
            yield start, min(last, start + _PIECE - 1)


def _run(program: Path, function: MapFunction, piece: tuple[int, int]) -> tuple[list[int], int, int]:
    command = [str(program), function.name.lower(), *(f"{bits:08x}" for bits in piece)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    words = lines[-2].split()
    return [int(line, 16) for line in lines[:-2]], int(words[1].rstrip(",")), int(words[3], 16)


def _select(found: Sequence[Near]) -> list[Near]:
    """The eight nearest of all, and of each precision; nearest first, without repetition."""
    surely = sorted((near for near in found if near.distance > _SURE), reverse=True)
    chosen = set(surely[:8])
    for precision in range(24, 33):
        chosen.update([near for near in surely if near.precision == precision][:1])
    return sorted(chosen, reverse=True)


def _samples(function: MapFunction, count: int = 40) -> Iterator[tuple[int, int]]:
    """The ends of the ranges, both sides of powers of two (series change their length there), arguments of no note."""
    stream = random.Random(int(function))
    ends = [end for ends in RANGES[function] for end in ends]
    powers = [(exponent << 23) - step for exponent in (115, 126, 127, 128, 129, 130, 254) for step in (0, 1)]
    for x in ends + [x for x in powers if any(first <= x <= last for first, last in RANGES[function])]:
        yield x, stream.randint(24, 32)
    for _ in range(count):
        yield stream.randint(*stream.choice(RANGES[function])), stream.randint(24, 32)


def record(function: MapFunction, x: int, precision: int) -> bytes:
    """x, precision, result, and the magnitude as 255 bits v and their exponent e: between v 2^e and (v + 1) 2^e."""
    n, e, error = estimate(function, x)
    drop = n.bit_length() - 255
    assert n - error >> drop == n + error >> drop, "more bits are needed"
    result = FUNCTIONS[function](x, precision)
    head = struct.pack(">IBI", x, precision, result)
    return head + (n >> drop).to_bytes(32, "big") + struct.pack(">h", e + drop)


def _report(function: MapFunction, found: Sequence[Near], tried: int, least: int) -> dict[str, Any]:
    nearest = _select(found)
    cases = [(near.x, near.precision or 32) for near in nearest] + list(_samples(function))
    n, e, _ = estimate(function, least)
    return {
        "function": int(function),
        "ranges": [end for ends in RANGES[function] for end in ends],
        "arguments": tried,
        "bits": math.ceil(nearest[0].distance),
        "nearest": [f"0x{near.x:08x} at {near.precision or 'none'}: 2^-{near.distance:.2f}" for near in nearest],
        "least": least,
        "leastExponent": n.bit_length() + e - 1,
        "count": len(cases),
        "cases": "0x" + b"".join(record(function, *case) for case in cases).hex(),
    }


def _search(program: Path, function: MapFunction, threads: int) -> dict[str, Any]:
    error = library_error(function)
    if error >= _LIBRARY_ERROR:
        raise SystemExit(f"expected an error of this machine's {function.name} below {_LIBRARY_ERROR}, got {error:.2f}")
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(lambda piece: _run(program, function, piece), _pieces(function)))
    kept = [x for part in parts for x in part[0]]
    if missing := set(PUBLISHED[function]) - set(kept):
        raise SystemExit(f"expected the published hard cases among those kept, got none of {sorted(map(hex, missing))}")
    tried = sum(part[1] for part in parts)
    least = min((part[2] for part in parts), key=lambda x: _magnitude(function, x))
    print(f"{function.name.lower()}: {tried} arguments, {len(kept)} near, library error {error:.2f}", flush=True)
    return _report(function, [distance(function, x) for x in kept], tried, least)


def compile_filter(folder: Path) -> Path:
    """The program, with the machine's C compiler; no option that would let it change a result."""
    program = folder / "search"
    source = Path(__file__).with_name("search.c")
    flags = ["-O2", "-std=c11", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", str(program), str(source), "-lm"], check=True)
    return program


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hardest.search", description="The hardest arguments to round."
    )
    parser.add_argument("file", type=Path, help="where the result is, or shall be")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        program = compile_filter(Path(folder))
        found = {f.name.lower(): _search(program, f, options.threads) for f in RANGES}
    text = json.dumps({"names": list(found), **found}, indent=1) + "\n"
    if not options.check:
        options.file.write_text(text, encoding="ascii")
        return 0
    if options.file.read_text(encoding="ascii") != text:
        print(f"{options.file}: expected what the search finds, got something else", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
