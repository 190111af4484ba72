"""Sums of products by integers modulo coprime numbers, on CPUs: integers.c over the tables of a plan.

docs/kernels.md explains and proves it. It is used where the processor multiplies matrices of bytes (AMX), for products
that are faster this way. If `TIEBREAK_INTEGERS` is 1, for tests, it computes there every product that it can, and
leaves none to FP64.
"""

import ctypes
import threading
from dataclasses import dataclass
from functools import cache
from itertools import product as product_of
from math import ceil, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tiebreak.engine import native
from tiebreak.engine.arithmetic.c.threads import ZivProgress, together
from tiebreak.engine.arithmetic.plan.moduli import MODULI, MOST_TERMS, PAYS, Moduli, count_of, round_up
from tiebreak.engine.arithmetic.plan.sums import ReduceTables
from tiebreak.engine.arithmetic.plan.views import Floats
from tiebreak.engine.native import Build, load

TILE: Final = 64
"""Terms of a tile, as in integers.c."""
PANEL: Final = 12
"""The most tiles of a panel, whose residues of `WIDTH` columns lie in the second-level cache."""
WIDTH, HEIGHT = 128, 2048
"""The most columns and rows of a block."""
TIES: Final = 1 << 15
"""The most terms whose products of residues fit 30 bits, so that exact ties can be decided by residues."""
RESIDUES: Final = 1 << 28
"""The most bytes that residues of rows may take; other rows are computed after these."""
LEFT: Final = 2
"""The result of integers.c if too much would be undecided."""
_held = threading.local()


class _Moduli(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("count", "tiles", "panel", "strips", "high", "width", "ties", "stays")),
        *((name, ctypes.c_double) for name in ("product", "reach", "slack", "loose")),
        *((name, ctypes.c_uint64) for name in ("added", "centre")),
        *((name, ctypes.c_uint64 * len(MODULI)) for name in ("v1", "v2")),
        ("over", ctypes.c_uint64 * (2 * len(MODULI))),
        ("whole", ctypes.c_uint64 * 2),
        ("weight", ctypes.c_uint64 * len(MODULI)),
        *((n, ctypes.c_int32 * len(MODULI)) for n in ("low", "high_bytes", "first", "minus", "modulus")),
        *((name, ctypes.c_float * len(MODULI)) for name in ("inverse", "add")),
        ("reciprocal", ctypes.c_double * len(MODULI)),
        *((name, ctypes.c_void_p) for name in ("residues", "row_sizes")),
    ]


def build() -> Build:
    """The compiled kernel, or the reason why there is none."""
    signature = ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
    return load(__file__, find_tiles=(ctypes.c_int,), pack_rows=signature, multiply_packed=signature)


@cache
def _has_amx() -> bool:
    return "amx_int8" in native.processor_features().split()


def kernel() -> ctypes.CDLL | None:
    """The kernel, which takes seconds to compile, if this machine has AMX and lets us use it."""
    library = build().library if _has_amx() else None
    return library if library is not None and library.find_tiles() else None


def describe() -> tuple[tuple[str, str], ...]:
    """The way in which this machine computes typical products, by size; or that it computes none by integers."""
    if kernel() is None:
        return (("products by integers", "none: no AMX here, without which FP64 is faster"),)
    shapes = (512, 768, 3072), (512, 3072, 768), (2048, 768, 768), (512, 768, 50257), (512, 50257, 768), (512, 64, 512)
    rows = []
    for (m, k, n), precision in product_of(shapes, (32, 16)):
        count = count_of(k, precision)
        integers, fp64 = cost(Shape(1, m, n, k), count)
        way = f"{count} moduli" if integers <= PAYS * fp64 else "FP64"
        name = f"{'bf16 ' if precision == 16 else ''}{m} x {k} x {n}"
        rows.append((name, f"{way}; integers are estimated at {integers / fp64:.2f} of FP64's cycles"))
    return tuple(rows)


def cost(shape: "Shape", count: int) -> tuple[float, float]:
    """Cycles of a core with AMX for a product by integers, and in FP64.

    The rates were measured on a Sapphire Rapids core with an earlier kernel of the same design: packing half a cycle
    for each residue and two for each factor, 370 products of residues in a cycle, and ten products of FP64.
    """
    batches, m, n, k = shape.batches, shape.m, shape.n, shape.k
    packed = (m + n * ceil(m / max(1, min(HEIGHT, shape.rows(count))))) * k * (count / 2 + 2)
    folded = m * n * (4 + ceil(k / (PANEL * TILE)) * count * 3 / 16)
    multiplied = round_up(m, 32) * round_up(n, 32) * round_up(k, TILE) * count / 370
    return batches * (packed + multiplied + folded), batches * m * n * k / 10


@dataclass(frozen=True)
class Shape:
    """The numbers of batches, rows, columns and terms of a product."""

    batches: int
    m: int
    n: int
    k: int

    def rows(self, count: int) -> int:
        """The number of rows of each batch, a multiple of 32, whose residues fit `RESIDUES` together."""
        return RESIDUES // (self.batches * round_up(self.k, TILE) * count) // 32 * 32


def choose(tables: ReduceTables, precision: int, *, forced: bool = False) -> "IntegerSum | None":
    """Computes a sum of products by integers; None if nothing can, or FP64 is faster (unless `forced`)."""
    if len(tables.operands) < 2 or not tables.out or (wanted := "1" if forced else native.integers()) == "0":
        return None
    batches, m, n = map(len, tables.out)
    shape, count = Shape(batches, m, n, tables.terms), count_of(tables.terms, precision)
    if tables.terms > MOST_TERMS or not shape.rows(count):
        return None
    integers, fp64 = cost(shape, count)
    if (wanted != "1" and integers > PAYS * fp64) or (library := kernel()) is None:
        return None
    found = IntegerSum(library, shape, count, precision)
    found.moduli.stays = wanted == "1"
    return found


class IntegerSum:
    """A matrix product by integers. Only one thread at a time may run it."""

    def __init__(self, library: ctypes.CDLL, shape: Shape, count: int, precision: int) -> None:
        self._library, self._shape = library, shape
        self.moduli = _moduli(shape, count, precision)

    def run(self, task: ctypes.Structure, threads: int, progress: ZivProgress) -> bool:
        """Computes `task`, a contraction of sums.py; False if FP64 must (too much is undecided, or no memory)."""
        shape, rows = self._shape, self._shape.rows(self.moduli.count)
        for first in range(0, shape.m, rows):
            part = type(task).from_buffer_copy(task)
            part.m = min(rows, shape.m - first)
            part.a_m, part.out_m = part.a_m + 8 * first, part.out_m + 8 * first
            try:
                done = self._multiply(part, threads, progress)
            except MemoryError:
                done = [0]
            if LEFT in done or not all(done):
                progress.undecided = progress.twice = progress.wrong = progress.logged = 0
                return False
        return True

    def _multiply(self, task: ctypes.Structure, threads: int, progress: ZivProgress) -> list[int]:
        """Packs rows, then multiplies them; returns the last results of integers.c."""
        plan = self.moduli
        plan.strips = ceil(task.m / 32)
        held = _memory(task.batches * plan.strips * 32, plan)
        plan.residues, plan.row_sizes = (int(memory.ctypes.data) for memory in held)
        _set_blocks(plan, task, threads)
        arguments = ctypes.byref(task), ctypes.byref(plan), ctypes.byref(progress)
        done: list[int] = []
        for kernel in (self._library.pack_rows, self._library.multiply_packed):
            progress.next = 0
            done = together(lambda: kernel(*arguments), threads)  # noqa: B023
        return done


def _memory(rows: int, plan: _Moduli) -> tuple[NDArray[np.int8], Floats]:
    """Memory for residues of rows, which this thread keeps, at a multiple of 64 bytes; and for the rows' sizes."""
    bytes_wanted = rows * plan.count * plan.tiles * TILE
    memory: NDArray[np.int8] | None = getattr(_held, "residues", None)
    if memory is None or len(memory) < bytes_wanted:
        whole = np.empty(bytes_wanted + 64, np.int8)
        memory = _held.residues = whole[-whole.ctypes.data % 64 :]
    return memory, np.empty(4 * rows)


def _set_blocks(plan: _Moduli, task: ctypes.Structure, threads: int) -> None:
    """Chooses blocks that give every thread work."""
    plan.width, plan.high = min(WIDTH, round_up(task.n, 32)), min(HEIGHT, round_up(task.m, 32))
    wanted = 1 if threads == 1 else 2 * threads
    while task.batches * ceil(task.m / plan.high) * ceil(task.n / plan.width) < wanted:
        if max(plan.width, plan.high) == 32:
            return
        name = "width" if plan.width > 64 or plan.high == 32 else "high"
        setattr(plan, name, round_up(getattr(plan, name) // 2, 32))


def _moduli(shape: Shape, count: int, precision: int) -> _Moduli:
    """The numbers by which integers.c computes: all are derived from the moduli here."""
    moduli, tiles = Moduli(count), ceil(shape.k / TILE)
    panel = ceil(tiles / ceil(tiles / PANEL))
    panels = ceil(tiles / panel)
    plan = _Moduli(
        count=count, ties=shape.k <= TIES, tiles=tiles, panel=panel, product=moduli.product, reach=moduli.reach,
        slack=moduli.product * 2.0**-52 * (panels / 2 + 3) * (1 + 2.0**-30),
        loose=2.0 ** (precision - 7) * sqrt(shape.k), centre=panels // 2, added=moduli.offset(panels, 52),
    )  # fmt: skip
    for t, (m, weight, fraction) in enumerate(zip(moduli.numbers, moduli.weights, moduli.fractions(104), strict=True)):
        plan.v1[t], plan.v2[t], plan.weight[t] = fraction >> 52, fraction & (1 << 52) - 1, weight
        plan.over[2 * t], plan.over[2 * t + 1] = _parts(moduli.product // m)
        # The bytes of an integer become its residue modulo m (docs/kernels.md, "Residues").
        powers = [(r := pow(256, i, m)) - (m if r > 127 else 0) for i in range(7)]
        whole = (2**23 + 2**19) // m
        plan.low[t] = int.from_bytes(bytes(p & 255 for p in powers[:4]), "little", signed=True)
        plan.high_bytes[t] = int.from_bytes(bytes(p & 255 for p in powers[4:]), "little")
        plan.first[t] = 0x4B000000 + m * whole - 0x38 * pow(256, 6, m) % m - 2**23
        plan.minus[t], plan.modulus[t] = -m & 0xFFFF, m
        plan.reciprocal[t] = 1 / m
        plan.inverse[t], plan.add[t] = 1 / m, float(3 * 2**22 - whole + (whole & 255))
    plan.whole[0], plan.whole[1] = _parts(moduli.product)
    return plan


def _parts(x: int) -> tuple[int, int]:
    """The lower 44 bits, and the rest."""
    return x & (1 << 44) - 1, x >> 44
