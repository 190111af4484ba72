"""Measures how much longer sums take over hostile data than over ordinary data, on this machine.

Finite data can be chosen so that no fast path decides a sum: exact ties, near ties at any depth, terms that cancel. A
client who knows the order of its data can aim them at one step, so windows and clocks must allow for this factor. Each
case runs one instruction over ordinary data and over each hostile pattern, in turns, in one process.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c.threads import limited
from tiebreak.protocol.program.isa import Access, DType, Instruction, Opcode, ScatterParams

Pattern = Callable[[int, int, int, torch.Generator], tuple[Tensor, Tensor]]
"""(rows, terms, columns, randomness) -> f32 factors of shapes (rows, terms) and (terms, columns)."""


def _spread(terms: int, left: Sequence[float], right: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Spreads a few terms evenly among zeros, so that no way of splitting the sum brings them together."""
    a, b = torch.zeros(terms), torch.ones(terms)
    count = min(len(left), terms)
    at = torch.linspace(0, terms - 1, count).long()
    a[at], b[at] = (torch.tensor(x[:count], dtype=torch.float32) for x in (left, right))
    return a, b


def _fixed(left: Sequence[float], right: Sequence[float]) -> Pattern:
    def made(rows: int, terms: int, columns: int, _: torch.Generator) -> tuple[Tensor, Tensor]:
        a, b = _spread(terms, left, right)
        return a.expand(rows, terms).contiguous(), b[:, None].expand(terms, columns)

    return made


def _cancelling(low: int, high: int, *, rest: float, alike: bool = True) -> Pattern:
    """Every term and its negative, plus a remainder; the exponents of both factors are drawn from low ... high.

    alike: all columns of the second factor hold the same numbers.
    """

    def made(rows: int, terms: int, columns: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        half = terms // 2

        def drawn(*shape: int) -> Tensor:
            exponents = torch.randint(low, high + 1, shape, generator=generator)
            return torch.ldexp(1 + torch.rand(shape, generator=generator), exponents)

        a, b = drawn(rows, half), drawn(half, 1 if alike else columns).expand(half, columns)
        odd = torch.full((rows, terms - 2 * half), rest)
        left, right = torch.cat((a, -a, odd), 1), torch.cat((b, b, torch.ones(terms - 2 * half, columns)))
        if terms > 2:
            left[:, half - 1], left[:, 2 * half - 1] = 1, -1 + rest
        order = torch.randperm(terms, generator=generator)
        return left[:, order].contiguous(), right[order].contiguous()

    return made


def _deep(left: float, right: float) -> Pattern:
    """1 + 2^-24, a pair that cancels far below, and a term that decides the rounding."""
    return _fixed((1, 2.0**-12, 2.0**-100, -(2.0**-100), left), (1, 2.0**-12, 2.0**-100, 2.0**-100, right))


PATTERNS: Final[dict[str, Pattern]] = {
    "exact ties": _fixed((1, 2.0**-24), (1, 1)),
    "near ties of 2^-60": _deep(2.0**-30, 2.0**-30),
    "near ties of 2^-120": _deep(2.0**-60, -(2.0**-60)),
    "near ties of 2^-290": _deep(2.0**-145, 2.0**-145),
    "cancelling noise": _cancelling(-2, 2, rest=2.0**-60),
    "cancelling over 2^60": _cancelling(-15, 15, rest=2.0**-140),
    "cancelling over all exponents": _cancelling(-126, 63, rest=2.0**-149),
    "cancelling over all exponents, each column apart": _cancelling(-126, 63, rest=2.0**-149, alike=False),
    "subnormal": _cancelling(-126, -126, rest=2.0**-149),
    "huge and small": _cancelling(60, 63, rest=2.0**-149),
}


@dataclass(frozen=True)
class Case:
    """One instruction, and how the data of its float operands are made of a pattern; `index` is its last operand."""

    name: str
    instruction: Instruction
    sizes: tuple[int, ...]
    """The numbers of elements of its float operands."""
    hostile: Callable[[Pattern, torch.Generator], list[Tensor]]
    index: Tensor | None = None

    def operands(self, pattern: Pattern | None, generator: torch.Generator) -> list[Tensor]:
        """Flat operands of a pattern, or ordinary ones if that is None."""
        if pattern is None:
            found = [torch.randn(size, generator=generator) for size in self.sizes]
        else:
            found = self.hostile(pattern, generator)
        return found if self.index is None else [*found, self.index]


def _sum(shape: tuple[int, ...], terms: tuple[int, ...], *accesses: Access) -> Instruction:
    return Instruction(opcode=Opcode.REDUCE, dtype=DType.F32, shape=shape, reduction=terms, operands=accesses)


def product(batches: int, m: int, k: int, n: int) -> Case:
    """Batches of matrix products (m, k) x (k, n)."""

    def hostile(pattern: Pattern, generator: torch.Generator) -> list[Tensor]:
        a, b = pattern(batches * m, k, n, generator)
        return [a.reshape(-1), b.expand(batches, k, n).reshape(-1)]

    i = _sum((batches, m, n), (k,), Access(0, 0, (m * k, k, 0, 1)), Access(1, 0, (k * n, 0, 1, n)))
    return Case(f"product of {batches} x {m} x {k} x {n}", i, (batches * m * k, batches * k * n), hostile)


def plain(rows: int, k: int, *, columns: bool = False) -> Case:
    """Sums along rows or columns."""

    def hostile(pattern: Pattern, generator: torch.Generator) -> list[Tensor]:
        a, b = pattern(rows, k, 1, generator)
        terms = a * b[:, 0]  # may round or underflow, but equally in every row
        return [(terms.T if columns else terms).reshape(-1)]

    i = _sum((rows,), (k,), Access(0, 0, (1, rows) if columns else (k, 1)))
    return Case(f"{'columns' if columns else 'rows'} of {k}, {rows} of them", i, (rows * k,), hostile)


def convolution(images: int, channels: int, side: int, filters: int) -> Case:
    """Filters of 3 x 3 over overlapping windows."""
    out, area = side - 2, side * side

    def hostile(pattern: Pattern, generator: torch.Generator) -> list[Tensor]:
        # The pattern runs along the channels. Only the middle of a filter is not zero, so that no tie occurs nine times
        # in a sum.
        a, b = pattern(1, channels, filters, generator)
        filter_ = torch.zeros(filters, channels, 9)
        filter_[:, :, 4] = b.T
        return [a.view(1, channels, 1).expand(images, channels, area).reshape(-1), filter_.view(-1)]

    i = _sum(
        (images, filters, out, out), (channels, 3, 3),
        Access(0, 0, (channels * area, 0, side, 1, area, side, 1)), Access(1, 0, (0, channels * 9, 0, 0, 9, 3, 1)),
    )  # fmt: skip
    sizes = (images * channels * area, filters * channels * 9)
    return Case(f"convolution of {images} x {channels} x {side} x {side}, {filters} filters", i, sizes, hostile)


def scatter(sources: int, outputs: int, width: int) -> Case:
    """Rows of `width` added to the outputs that an index names; every output gets the same number of rows."""
    each = sources // outputs

    def hostile(pattern: Pattern, generator: torch.Generator) -> list[Tensor]:
        a, b = pattern(width, each, 1, generator)
        return [(a * b[:, 0]).T[:, None, :].expand(each, outputs, width).reshape(-1)]

    i = Instruction(
        opcode=Opcode.SCATTER_SUM, dtype=DType.F32, shape=(outputs, width), reduction=(sources,),
        operands=(Access(0, 0, (0, 1, width)), Access(1, 0, (0, 0, 1))), params=ScatterParams(match=(1, 0)),
    )  # fmt: skip
    name, index = f"scatter of {sources} x {width} to {outputs}", torch.arange(sources) % outputs
    return Case(name, i, (sources * width,), hostile, index)


CASES: Final = (
    product(1, 256, 512, 256), product(1, 64, 4096, 64), product(1, 8, 50_000, 8), product(1, 256, 16, 256),
    product(16, 64, 64, 64), convolution(2, 32, 16, 64), plain(4096, 64), plain(256, 4096), plain(4, 50_000),
    plain(4096, 64, columns=True), scatter(4096, 64, 64),
)  # fmt: skip
PIECES: Final = 64
"""The number of pieces into which a partly hostile operand is divided."""
QUICK: Final = (CASES[0], CASES[4], CASES[7], CASES[10])
"""The cases that `tiebreak worst` runs."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The slowdown of one case under one pattern."""

    case: str
    pattern: str
    factor: float
    seconds: float
    """The best time over ordinary data."""


def measure(
    case: Case, *, compiled: bool = True, repeats: int = 5, share: float = 1.0, device: str = "cpu"
) -> Iterator[Slowdown]:
    """The factor of each pattern: the best time over it divided by the best time over ordinary data, measured in turns.

    share: the part of the first operand's rows that is hostile. On a CPU, its time is counted, elsewhere all time.
    """
    generator = torch.Generator().manual_seed(1)
    ordinary = case.operands(None, generator)
    data = {name: _mixed(ordinary, case.operands(pattern, generator), share) for name, pattern in PATTERNS.items()}
    best = dict.fromkeys(("", *data), float("inf"))
    placed = {name: [x.to(device) for x in operands] for name, operands in {"": ordinary, **data}.items()}

    def now() -> float:
        if device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    arithmetic = Arithmetic(device, compiled=compiled)
    for turn in range(repeats + 1):
        for name, operands in placed.items():
            started = now()
            arithmetic.execute(case.instruction, operands, 0)
            if turn:
                best[name] = min(best[name], now() - started)
    for name in data:
        yield Slowdown(case.name, name, best[name] / best[""], best[""])


def _mixed(ordinary: Sequence[Tensor], hostile: list[Tensor], share: float) -> list[Tensor]:
    """The hostile operands, with ordinary data in all but a share of the pieces of the first one."""
    if share == 1:
        return hostile
    first = hostile[0].clone()
    size = max(1, len(first) // PIECES)
    for piece in range(PIECES):
        if piece % round(1 / share):
            first[piece * size : (piece + 1) * size] = ordinary[0][piece * size : (piece + 1) * size]
    return [first, *hostile[1:]]


def worst(*, compiled: bool = True, repeats: int = 3) -> Slowdown:
    """The largest factor of a few cases, measured on one thread."""
    with limited(1):
        found = [f for case in QUICK for f in measure(case, compiled=compiled, repeats=repeats)]
    return max(found, key=lambda factor: factor.factor)
