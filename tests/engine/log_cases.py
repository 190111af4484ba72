"""Programs with logged sums of any size, logs of theirs, and a naive twin of their encoding."""

import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np
import zstandard
from hypothesis import strategies as st

from tiebreak.engine.lowering.builder import Builder
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, Entries, StepLog, sum_kind

MANY = (3, 129, 1, 70, 513)
"""Sizes of the logged sums of the program that most tests use: 716 elements."""


@cache
def program_of(sizes: Sequence[int]) -> Program:
    """One logged sum of each size, products and plain in turn, with other values between them."""
    b = Builder()
    x = b.data("x", DType.F32, (max(sizes, default=1), len(sizes) + 1))
    state = {"w": b.const(2.0)}
    for k, size in enumerate(sizes):
        part = x.slice(0, 0, size).slice(1, k, k + 2)
        total = b.sum(part, (1,)) if k % 2 else b.dot(part, part, (1,))
        state[f"s{k:03d}"] = b.add(total, total)
    return b.finish(state, b.const(1.0))


def peak_of(work: Callable[[], object]) -> int:
    """Bytes of the greatest allocation while it works, beyond what there was."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def row(program: Program) -> list[tuple[int, int]]:
    """(value, element) of every place, in order: the naive twin of `ElementOrder`."""
    return [
        (value, element)
        for value, instruction in enumerate(program.body)
        if sum_kind(instruction) is not None
        for element in range(instruction.numel)
    ]


def log_of(program: Program, codes: Iterable[tuple[int, Direction]]) -> StepLog:
    places, found = row(program), dict[int, list[tuple[int, bool]]]()
    for place, direction in sorted(codes):
        value, element = places[place]
        found.setdefault(value, []).append((element, direction == Direction.UP))
    return StepLog({value: entries(pairs) for value, pairs in found.items()})


def entries(pairs: Sequence[tuple[int, bool]]) -> Entries:
    elements = np.array([element for element, _ in pairs], dtype=np.int64)
    return Entries(elements, np.array([up for _, up in pairs], dtype=np.bool_))


def random_log(program: Program, count: int, seed: int = 0) -> StepLog:
    (value,) = (value for value, body in enumerate(program.body) if sum_kind(body) is not None)
    generator = np.random.default_rng(seed)
    gaps = generator.integers(1, max(2, 9 * program.body[value].numel // (5 * count)), count)
    elements = np.cumsum(gaps) - 1
    assert elements[-1] < program.body[value].numel
    return StepLog({value: Entries(elements, generator.random(count) < 0.5)})


@st.composite
def programs_and_logs(draw: st.DrawFn) -> tuple[Program, StepLog]:
    """A program of a few logged sums, none included, and any log of it: single entries, runs, everything."""
    program = program_of(tuple(draw(st.lists(st.sampled_from([1, 2, 5, 127, 128, 129, 400]), max_size=4))))
    total = len(row(program))
    directions = st.sampled_from([Direction.DOWN, Direction.UP])
    if not total:
        return program, StepLog()
    codes = draw(st.dictionaries(st.integers(0, total - 1), directions, max_size=12))
    first = draw(st.integers(0, total))
    run = dict.fromkeys(range(first, draw(st.integers(first, total))), draw(directions))
    return program, log_of(program, (run | codes).items())


def naive_sparse(data: bytes, program: Program, block: int) -> dict[tuple[int, int], Direction]:
    places, found, place = row(program), dict[tuple[int, int], Direction](), -1
    count, at = int.from_bytes(data[9:17], "big"), 17

    def part(size: int) -> bytes:
        nonlocal at
        length = int.from_bytes(data[at : at + 3], "big")
        kept, at = data[at + 3 : at + 3 + length], at + 3 + length
        reader = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS)
        return kept if length == size else reader.decompress(kept)

    while count:
        here = min(count, block)
        width, at = data[at], at + 1
        planes = [part(here) for _ in range(width)]
        bits = part((here + 7) // 8)
        for k in range(here):
            place += 1 + sum(planes[j][k] << 8 * j for j in range(width))
            found[places[place]] = Direction.UP if bits[k // 8] >> (7 - k % 8) & 1 else Direction.DOWN
        count -= here
    assert at == len(data)
    return found


def codes_of(log: StepLog) -> dict[tuple[int, int], Direction]:
    return {
        (value, element): direction for value, found in log.entries.items() for element, direction in found.directions()
    }
