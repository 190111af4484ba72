"""Sums of products by integers modulo coprime numbers, on GPUs: `kernels/integers.py` over the tables of a plan.

docs/kernels.md explains and proves it. It is used on GPUs that multiply bytes very much faster than FP64, and on
others if `TIEBREAK_INTEGERS` is 1, which leaves no product to FP64, for tests. The host waits for nothing: kernels
of both ways are launched, and what integers would leave undecided tells the device which of them compute.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from math import ceil, frexp, log2, sqrt
from typing import Any, Final

import torch
from torch import Tensor

from tiebreak.engine import native
from tiebreak.engine.arithmetic.gpu.launching import kernels, launch, programs, target
from tiebreak.engine.arithmetic.plan.moduli import LONG, MOST_TERMS, PAYS, Moduli, count_of, round_up
from tiebreak.engine.arithmetic.plan.sums import ReduceTables

RATES: Final = {86: (2, 1024), 87: (2, 1024), 89: (2, 1024), 120: (2, 1024), 121: (2, 1024)}
"""FMAs in FP64, and multiplications of bytes by the matrix unit, of a multiprocessor in a cycle (NVIDIA's tables).

Keys are compute capabilities: RTX 30, RTX A and A40 (86), Orin (87), RTX 40 and L40S (89), RTX 50 (120), GB10 (121).
A100, H100, H200 and B200 have 64 to 128 FMAs, and there nobody has measured which is faster. Nothing was compiled for
B300."""
MUCH: Final = 32
"""FP64 computes a product if one element in this many or more will be undecided, or else it would be computed once more
in doubled precision."""
SHARE: Final = 0.5
"""The part of the matrix unit's rate that products of residues are taken to reach, by the machine code."""
LEAST: Final = 1 << 22
"""The least number of multiplications that is worth five more launches."""
RESIDUES: Final = 1 << 30
"""The most bytes that residues of each operand may take at once; others are computed after these."""
FOLD: Final = 1 << 15
"""The most terms that are added before the sum is folded into the fraction: 2^29 in magnitude."""
FACTS: Final[dict[str, Any]] = {"BLOCK_M": 16, "BLOCK_K": 128, "enable_fp_fusion": False, "num_warps": 4}
"""The blocks of `measure` and `find_residues`, and the compiler's options."""
FEW: Final = {"BLOCK_M": 2, "BLOCK_K": 1024}
"""The blocks of `measure` for so few rows that multiprocessors would be idle."""
ENDS: Final[dict[str, Any]] = {"BLOCK_M": 16, "BLOCK_N": 64, "enable_fp_fusion": False, "num_warps": 4}
"""The blocks of `join_fractions`, and the compiler's options."""
KEPT: Final = 1024
"""The terms of a fold that take as long as writing a tile's fractions, and a launch that reads them, by figures."""
TILE: Final[dict[str, Any]] = {
    "BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP": 8,
    "enable_fp_fusion": False, "num_warps": 8, "num_stages": 4,
}  # fmt: skip
"""The blocks of `multiply_residues` and the compiler's options: 32 elements in a lane, each of three registers."""


def describe(device: torch.device) -> tuple[str, str]:
    """The way in which a device computes large products, by name and value."""
    rates = rates_of(device)
    name = f"products on {device}"
    if rates is None:
        return name, "FP64"
    fp64, byte = rates
    count = count_of(LONG, 32)
    return name, f"{count} moduli; FP64 would take {SHARE * byte / count / fp64:.0f} times as long, it is estimated"


def rates_of(device: torch.device, *, forced: bool = False) -> tuple[int, int] | None:
    """The rates by which a device computes products by integers; None if it computes none so."""
    backend, arch = target(device)
    wanted = "1" if forced else native.integers()
    if wanted == "0" or backend == "hip":
        return None
    return RATES.get(arch, (1, 1) if wanted == "1" else None)


def cost(tables: ReduceTables, count: int, rates: tuple[int, int]) -> tuple[float, float]:
    """Cycles of a multiprocessor for a product by integers, and in FP64.

    By the machine code, 60 instructions and 8 for each modulus prepare a factor, and 220 and 9 end an element; 64 lanes
    compute them in a cycle. FP64 has some 14 instructions of its own for each element's end.
    """
    fp64, byte = rates
    batches, m, n = map(len, tables.out)
    packed = (m + n) * tables.terms * (60 + 8 * count) / 64
    ended = m * n * (220 + 9 * count * ceil(tables.terms / FOLD)) / 64
    elements = round_up(m, TILE["BLOCK_M"]) * round_up(n, TILE["BLOCK_N"])
    multiplied = elements * round_up(tables.terms, 64) * count / (SHARE * byte)
    return batches * (packed + multiplied + ended), batches * m * n * (tables.terms + 14) / fp64


def choose(
    tables: ReduceTables, precision: int, device: torch.device, *, forced: bool = False
) -> "LaunchedIntegers | None":
    """Computes a sum of products by integers; None if the device is not known, or FP64 is faster (unless `forced`)."""
    rates = rates_of(device, forced=forced) if len(tables.operands) > 1 and tables.out else None
    if rates is None or tables.terms > MOST_TERMS:
        return None
    count, forced = count_of(tables.terms, precision), forced or native.integers() == "1"
    if len(tables.out[0]) * count * round_up(tables.terms, TILE["BLOCK_K"]) * TILE["BLOCK_M"] > RESIDUES:
        return None
    integers, fp64 = cost(tables, count, rates)
    if not forced and (tables.multiplications < LEAST or integers > PAYS * fp64):
        return None
    return LaunchedIntegers(tables, precision, device, stays=forced)


def parts_of(tiles: int, folds: int, fold: int, processors: int) -> int:
    """The number of parts of a sum's folds that keeps all multiprocessors busy, where each takes a tile at a time."""

    def cost(parts: int) -> float:
        return ceil(tiles * parts / processors) * (ceil(folds / parts) + (parts > 1) * KEPT / fold)

    return min(range(1, min(folds, ceil(2 * processors / tiles)) + 1), key=cost)


class Scales:
    """The numbers of the kernels, for sums of `terms` terms rounded to b bits: all are derived from the moduli."""

    def __init__(self, terms: int, precision: int) -> None:
        self.moduli, self.terms, self.precision = Moduli(count_of(terms, precision)), terms, precision
        half, count, whole = TILE["BLOCK_K"] // 2, self.moduli.count, self.moduli.product
        self.tile = {**TILE, "BLOCK_K": half if terms <= half else 2 * half}
        """The blocks of `multiply_residues` and the compiler's options: half as many terms where they suffice."""
        self.panels = ceil(terms / FOLD)
        """The number of pieces of the terms whose products are added at once."""
        self.fold = round_up(ceil(terms / self.panels), self.tile["BLOCK_K"])
        """The terms that are added at once, a multiple of the block."""
        self.width = self.panels * self.fold
        """The terms of a row with the zeros that follow them."""
        self.unit = whole.bit_length() - 62
        """Sums are kept as multiples of 2^unit, below 2^61."""
        self.slack = ceil((count * self.panels + 1) / 4) + 2
        """The error of such a multiple, where nothing was cut."""
        self.grain = (2 * self.slack).bit_length()
        """The least power of two, in units, whose multiples differ by more than the slack."""
        self.shift = max(0, ceil(log2(sqrt(terms * whole)) - self.unit) + 1 - 30)
        """Errors by what was cut are kept as multiples of 2^shift units, below 2^30."""
        part, power = frexp(self.moduli.reach - sqrt(terms) / 2 - 1)
        self.reach = power - 1, int(2 * part * 2**23) / 2**23
        """The most that a norm may be: an exponent, and a number of 1 ... 2 in FP32, cut."""
        self.most_loose = int(2.0**60 / (MUCH * 2.0 ** (precision - 7) * sqrt(terms)))
        """The parts of norms that may be cut, in units of 2^-60."""

    def of_residues(self) -> list[int]:
        """Five numbers for each modulus: see `store_residues`."""
        return [n for m in self.moduli.numbers for n in (2**16 % m, 2**32 % m, (128 - 2**47) % m, 2**32 // m, m)]

    def of_folds(self) -> list[int]:
        """The scale of fractions, what is taken off them, and three digits of 32 bits for each fold."""
        whole, mask = self.moduli.product, (1 << 32) - 1
        scale = (whole << 64) >> whole.bit_length()
        off = (self.moduli.offset(self.panels, 64) - self.moduli.count * self.panels) % (1 << 64)
        digits = [n for v in self.moduli.fractions(96) for n in self.panels * [v >> 64, v >> 32 & mask, v & mask]]
        return [n - (n >> 63 << 64) for n in (scale, off, *digits)]


class LaunchedIntegers:
    """A matrix product by integers, planned once."""

    def __init__(self, tables: ReduceTables, precision: int, device: torch.device, *, stays: bool) -> None:
        """stays: whether nothing is left to FP64, however much is undecided."""
        self._scales = Scales(tables.terms, precision)
        self._shape, self._device, self._stays = tuple(map(len, tables.out)), device, stays

    @cached_property
    def _numbers(self) -> tuple[Tensor, Tensor]:
        residues, folds = self._scales.of_residues(), self._scales.of_folds()
        return torch.tensor(residues, device=self._device), torch.tensor(folds, device=self._device)

    def run(
        self, read: Sequence[Any], tables: Sequence[Tensor | None], steps: Sequence[int], sides: dict[str, Any],
        out: Tensor, found: Tensor, listed: Tensor,
    ) -> Tensor:  # fmt: skip
        """Computes the product unless FP64 has to: returns a number on the device that is positive then.

        read: both operands; tables, steps, sides: as `product` gets them.
        """
        (batches, m, n), s, device = self._shape, self._scales, self._device
        powers = torch.empty((2, batches * (m + n)), dtype=torch.int32, device=device)
        sizes = torch.empty((2, batches * (m + n)), dtype=torch.float32, device=device)
        loose = torch.full((1,), -(1 << 62) if self._stays else -s.most_loose, dtype=torch.int64, device=device)
        promised = [{**FACTS, **{key[2:]: x for key, x in sides.items() if key[0] == name}} for name in "AB"]
        processors = programs(device) // 4
        for at, (size, unit) in enumerate(((m, 2.0 ** -(s.unit + s.shift)), (n, 1.0))):
            blocks = promised[at] | (FEW if batches * size < FACTS["BLOCK_M"] * processors else {})
            launch(
                kernels("integers").measure, batches * ceil(size / blocks["BLOCK_M"]), read[at],
                *tables[3 * at : 3 * at + 3], powers[0, at * m :], sizes[0, at * m :], loose, size, s.terms, steps[at],
                m + n, batches * (m + n), *s.reach, unit, 2.0**60 / batches / size, **blocks,
            )  # fmt: skip
        pitch = s.moduli.count * s.width
        most = [min(size, max(1, RESIDUES // (batches * pitch * 128)) * 128) for size in (m, n)]
        residues = [torch.empty(batches * rows * pitch, dtype=torch.int8, device=device) for rows in most]
        for b_first, a_first in product(range(0, n, most[1]), range(0, m, most[0])):
            counts = min(most[0], m - a_first), min(most[1], n - b_first)
            for at, fresh in enumerate((b_first == 0 or most[0] < m, a_first == 0)):
                tiles = batches * ceil(counts[at] / FACTS["BLOCK_M"]) * ceil(s.width / FACTS["BLOCK_K"])
                if fresh:
                    launch(
                        kernels("integers").find_residues, tiles, read[at], *tables[3 * at : 3 * at + 3],
                        powers[0, at * m :], loose, residues[at], self._numbers[0], (m, n)[at], s.terms, steps[at],
                        m + n, (a_first, b_first)[at], counts[at], pitch, s.width, s.moduli.count, **promised[at],
                    )  # fmt: skip
            tiles = batches * ceil(counts[0] / TILE["BLOCK_M"]) * ceil(counts[1] / TILE["BLOCK_N"])
            folds, left = s.moduli.count * s.panels, None
            share = ceil(folds / parts_of(tiles, folds, s.fold, processors))
            if (parts := ceil(folds / share)) > 1:
                left = torch.empty((parts, batches, *counts), dtype=torch.int64, device=device)
            facts = powers, sizes, loose, *tables[6:], out, found, len(listed), listed
            places = m, n, batches, a_first, counts[0], b_first, counts[1], steps[2]
            ends = s.shift, s.unit, s.slack, s.grain
            launch(
                kernels("integers").multiply_residues, tiles * parts, *residues, self._numbers[1], left, *facts,
                *places, pitch, s.fold, share * s.fold, *ends, PRECISION=s.precision, **s.tile,
            )  # fmt: skip
            if left is not None:
                tiles = batches * ceil(counts[0] / ENDS["BLOCK_M"]) * ceil(counts[1] / ENDS["BLOCK_N"])
                launch(
                    kernels("integers").join_fractions, tiles, left, self._numbers[1], *facts, *places, parts, *ends,
                    PRECISION=s.precision, **ENDS,
                )  # fmt: skip
        return loose
