"""Sums on GPUs by one Triton kernel (`kernels.py`) that adds, bounds, tests and rounds, on the tables of `compiled.py`.

Two more settle exactly what it lists, and one finds extremes.

The bytes are those of `pure`, which computes a result again if the kernel's list of undecided elements has no room.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.exact import Integers, Terms
from tiebreak.engine.arithmetic.launching import kernels, launch, programs, target
from tiebreak.engine.arithmetic.reduce.compiled import Tables, shuffle
from tiebreak.engine.arithmetic.rounding import Round
from tiebreak.engine.arithmetic.stats import Counts
from tiebreak.engine.arithmetic.views import check_reach
from tiebreak.engine.arithmetic.ziv import DENSE, Collector, Settler, coefficient, decide
from tiebreak.protocol.program.isa import Instruction

FLUSH: Final = 256
"""After so many terms an accumulator joins the total."""
FEWEST: Final = 2 * FLUSH
"""The terms of a part, at least."""
MOST: Final = 1 << 30
"""The most terms of a sum, which the kernels count in 32 bits."""
ROOM: Final = 64
"""The room of the list of undecided elements, in addition to one in `DENSE`."""
OPTIONS: Final = {"enable_fp_fusion": False, "num_warps": 8}
"""Of Triton's compiler: no contraction, and so many warps that nothing is spilled on sm_80 and sm_90."""
SETTLING: Final[dict[str, Any]] = {"BLOCK_K": 64, **OPTIONS}
ROUNDED: Final[dict[str, Any]] = {"BLOCK": 128, "enable_fp_fusion": False, "num_warps": 4}
"""The blocks of `add_digits` and `round_digits`, and the compiler's options."""


def _kernels(device: torch.device) -> ModuleType | None:
    return kernels(f"{__package__}.kernels", device)


def runs_on(device: torch.device, terms: int) -> bool:
    """Whether the kernels run on a device, for sums of so many terms."""
    return terms <= MOST and _kernels(device) is not None


def tile(backend: str, arch: int) -> dict[str, Any]:
    """The blocks of `contract` and the compiler's options for a target of Triton, such as ("cuda", 90).

    With these blocks Triton 3.6.0 takes FP64 matrix instructions on sm_80 and sm_90, and FMA elsewhere: on sm_100 it
    fails on tiles of 64 rows (it takes an instruction that has no FP64), on AMD on all matrix instructions in FP64.
    """
    blocks = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 16, **OPTIONS}
    if backend == "hip":
        return {**blocks, "matrix_instr_nonkdim": 4}
    return {**blocks, "BLOCK_M": 32} if arch >= 100 else blocks


def lanes(tables: Tables) -> dict[str, Any]:
    """The blocks of `add_up` and the compiler's options: along the terms, or along outputs that lie side by side."""
    across = tables.terms <= 16 or (tables.run_batch > 1 and tables.run_k < 32)
    return {"BLOCK_M": 128 if across else 8, "BLOCK_K": 8 if across else 128, **OPTIONS}


@dataclass(frozen=True)
class _Call:
    """One launch: `numbers` are the kernel's arguments between `sizes` and `step`."""

    kernel: Any
    tables: list[Tensor]
    numbers: tuple[int, ...]
    options: dict[str, Any]
    tiles: int
    """Of all batches together."""
    parts: int
    step: int
    """The most terms of a part; the last one may have fewer."""
    roundings: int
    """On a term's path, additions of parts included."""

    def places(self, numbers: Tensor) -> Tensor:
        """Where elements are in the result, by their row-major numbers over (batch, m, n)."""
        if len(self.tables) == 4:  # without m and n
            return numbers
        m, n = self.numbers[:2]
        batch, rows, columns = self.tables[-3:]
        return batch[numbers // (m * n)] + rows[numbers // n % m] + columns[numbers % n]

    def launch(self, read: Sequence[Tensor], memory: Sequence[Any], factor: float, **options: Any) -> None:
        """memory: out, found, room, listed, sums, errors and sizes, as in `kernels.py`."""
        launch(
            self.kernel, self.tiles * self.parts, read[0], read[-1], *self.tables, *memory, *self.numbers, self.step,
            factor, FLUSH=FLUSH, **self.options, **options,
        )  # fmt: skip


def _prepare(tables: Tables, device: torch.device, shuffled: torch.Generator | None) -> _Call:
    first, last, k = tables.operands[0], tables.operands[-1], tables.terms
    terms, run_k = [o.k for o in tables.operands], tables.run_k
    if shuffled is not None:
        terms, run_k = shuffle(terms, run_k, shuffled)
    held: list[Integers]
    if tables.out:
        options, batches, m, n = tile(*target(device)), len(first.batch), len(first.own), len(last.own)
        held = [first.batch, first.own, terms[0], last.batch, last.own, terms[-1], *tables.out]
        tiles, numbers = batches * ceil(m / options["BLOCK_M"]) * ceil(n / options["BLOCK_N"]), (m, n, k, batches)
        lane = 1
    else:
        batches = len(first.batch) * tables.run_batch
        steps = {"PAIRS": len(tables.operands) > 1, "A_STEP": first.step, "B_STEP": last.step}
        options, held = {**lanes(tables), **steps}, [first.batch, terms[0], last.batch, terms[-1]]
        tiles, numbers = ceil(batches / options["BLOCK_M"]), (tables.run_batch, run_k, k, batches)
        lane = options["BLOCK_K"]
    step, parts = _cut(k, tiles, device)
    # In `contract` a term stays in its lane; `add_up` adds the lanes in the end.
    roundings = min(k, FLUSH + ceil(step / (FLUSH * lane)) + lane + parts)
    kernel = getattr(_kernels(device), "contract" if tables.out else "add_up")
    return _Call(
        kernel, [torch.from_numpy(t).to(device) for t in held], numbers, options, tiles, parts, step, roundings
    )


def _cut(terms: int, tiles: int, device: torch.device) -> tuple[int, int]:
    """How many terms a part has, at most, and the parts that give the device work."""
    step = ceil(terms / max(1, min(ceil(programs(device) / tiles), terms // FEWEST)))
    return step, ceil(terms / step)


def _reading(
    tables: Tables, operands: Sequence[Tensor], shuffled: torch.Generator | None
) -> tuple[_Call, list[Tensor]]:
    read = [operands[o.index] for o in tables.operands]
    for operand, tensor in zip(tables.operands, read, strict=True):
        check_reach(tensor, operand.reach)
    device = read[0].device
    if shuffled is not None:
        return _prepare(tables, device, shuffled), read
    call = tables.launches.get(device)
    if call is None:
        call = tables.launches[device] = _prepare(tables, device, None)
    return call, read


def run_fused(
    instruction: Instruction, tables: Tables, operands: Sequence[Tensor], counts: Counts,
    shuffled: torch.Generator | None, rounded: Round, near: Collector | None,
) -> Tensor | None:  # fmt: skip
    """The result, f32, contiguous, of the instruction's shape; None if too much is undecided.

    With `shuffled`, the terms are taken in random order. `near` collects open elements that are not settled.
    """
    call, read = _reading(tables, operands, shuffled)
    factor = coefficient(call.roundings) if tables.terms > 1 else 0.0
    factor = _up(factor if near is None else near.coefficient(factor))
    device = read[0].device
    out = torch.empty(instruction.shape, dtype=torch.float32, device=device)
    room = out.numel() // DENSE + ROOM
    if call.parts > 1:
        listed, c, e = _round_parts(tables, call, read, factor, rounded, out)
    else:
        listed, found = (
            torch.empty(room, dtype=torch.int64, device=device),
            torch.zeros(1, dtype=torch.int64, device=device),
        )
        c, e = torch.empty((2, room), dtype=torch.float64, device=device)
        call.launch(read, (out, found, room, listed, c, e, None), factor, PRECISION=rounded.precision, LEAVE=False)
        count = int(found)
        if count > room:
            return None
        listed, c, e = listed[:count], c[:count], e[:count]
    if len(listed) > room:
        return None
    if not len(listed):
        counts.elements += out.numel()
        return out
    reading = _Listed(Terms(instruction, operands), tables, call, read, listed)
    _settle(reading, out, c, e, Settler(rounded, counts, near))
    return out


def _up(x: float) -> float:
    """The next f32 that is not below x: Triton passes numbers as f32."""
    nearest = np.float32(x)
    return float(nearest if nearest >= x else np.nextafter(nearest, np.float32(np.inf)))


def leave_fused(
    tables: Tables, operands: Sequence[Tensor], shuffled: torch.Generator | None
) -> tuple[list[Tensor], int]:
    """The FP64 sums and the sizes of all elements before rounding, and the roundings: as `leave_sums` of `compiled`."""
    call, read = _reading(tables, operands, shuffled)
    return _leave(tables, call, read), call.roundings


def _leave(tables: Tables, call: _Call, read: Sequence[Tensor]) -> list[Tensor]:
    m, n = call.numbers[:2] if tables.out else (1, 1)
    batches = len(tables.operands[0].batch) * tables.run_batch
    widths = (m * n, m + n) if tables.out else (1, 1)
    sums, sizes = (
        torch.empty((call.parts, batches, width), dtype=torch.float64, device=read[0].device) for width in widths
    )
    call.launch(read, (None, None, 0, None, sums, None, sizes), 0.0, PRECISION=32, LEAVE=True)
    total, size = sums.sum(0), sizes.sum(0)
    if not tables.out:
        return [total.view(-1), size.view(-1)]
    return [total.view(batches, m, n), *torch.split(size, [m, n], 1)]


def _round_parts(
    tables: Tables, call: _Call, read: Sequence[Tensor], factor: float, rounded: Round, out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Adds the parts and rounds them into `out`; returns number, C and e of what is undecided."""
    c, *sizes = _leave(tables, call, read)
    if tables.out:
        e = sizes[0].sqrt_().mul_(factor)[:, :, None] * sizes[1].sqrt_()[:, None, :]
    else:
        e = sizes[0].mul_(factor)
    result, undecided = decide(c, e, rounded)
    out.view(-1)[call.places(torch.arange(c.numel(), device=c.device))] = result.view(-1)
    at = undecided.view(-1).nonzero().view(-1)
    return at, c.view(-1)[at], e.view(-1)[at]


@dataclass(frozen=True)
class _Listed:
    """Reads the terms of listed elements, numbered by their places in the list."""

    all: Terms
    tables: Tables
    call: _Call
    read_from: Sequence[Tensor]
    listed: Tensor
    """Row-major numbers over (batch, m, n)."""

    @cached_property
    def places(self) -> Tensor:
        """Where the elements are in the result."""
        return self.call.places(self.listed)

    @property
    def terms(self) -> int:
        return self.all.terms

    def read(self, elements: Tensor, begin: int, end: int) -> Tensor:
        return self.all.read(self.places[elements], begin, end)

    def starts(self, elements: Tensor) -> list[Tensor]:
        """Where each element's terms start in the first and in the last operand, i64."""
        numbers, tables = self.listed[elements], self.call.tables
        if self.tables.out:
            m, n = self.call.numbers[:2]
            batch, row, column = numbers // (m * n), numbers // n % m, numbers % n
            return [tables[0][batch] + tables[1][row], tables[3][batch] + tables[4][column]]
        run, (first, last) = self.tables.run_batch, (self.tables.operands[o] for o in (0, -1))
        pairs = zip((tables[0], tables[2]), (first.step, last.step), strict=True)
        return [table[numbers // run] + numbers % run * step for table, step in pairs]

    def exactly(self, elements: Tensor, precision: int) -> Tensor:
        """RN of the exact sums of some elements with finite terms, f32, computed where the operands are."""
        device, k, count = elements.device, self.tables.terms, len(elements)
        digits = torch.zeros((count, 32), dtype=torch.int64, device=device)
        values = torch.empty(count, dtype=torch.float32, device=device)
        step, parts = _cut(k, count, device)
        tables, run_k = self.call.tables, 1 if self.tables.out else self.call.numbers[1]
        terms = [tables[2], tables[5]] if self.tables.out else [tables[1], tables[3]]
        found, pairs = _kernels(device), len(self.tables.operands) > 1
        assert found is not None
        launch(
            found.add_digits, count * parts, self.read_from[0], self.read_from[-1], *self.starts(elements), *terms,
            digits, run_k, k, parts, step, PAIRS=pairs, **SETTLING,
        )  # fmt: skip
        launch(
            found.round_digits, ceil(count / ROUNDED["BLOCK"]), digits, values, count, PRECISION=precision, **ROUNDED
        )
        return values


def _settle(reading: _Listed, out: Tensor, c: Tensor, e: Tensor, settler: Settler) -> None:
    """Writes the exact results of listed elements into `out`, or reports them."""
    listed = reading.listed
    values = torch.empty(len(listed), dtype=torch.float32, device=out.device)
    settler.settle(
        values, torch.ones_like(listed, dtype=torch.bool), c, e.__getitem__, reading,
        places=lambda at: (reading.places[at].cpu().numpy(), np.arange(len(at))), count=reading.terms,
        exactly=lambda at: reading.exactly(at, settler.rounded.precision), among=out.numel(),
    )  # fmt: skip
    out.view(-1)[reading.places] = values


def run_extreme_fused(tables: Tables, operand: Tensor, out: Tensor, *, place: bool) -> None:
    """Writes the greatest term of each output into `out`, or its position among the terms, which is i64."""
    call, (read,) = _reading(tables, [operand], None)
    run_batch, run_k, k, batches = call.numbers
    left = None
    if call.parts > 1:
        left = torch.empty((call.parts, batches), dtype=torch.int64, device=operand.device)
    found = _kernels(operand.device)
    assert found is not None
    options = {name: value for name, value in call.options.items() if name not in ("PAIRS", "B_STEP")}
    launch(
        found.find_greatest, call.tiles * call.parts, read, *call.tables[:2], out, left, run_batch, run_k, k, batches,
        call.step, PLACE=place, LEAVE=left is not None, **options,
    )  # fmt: skip
    if left is None:
        return
    greatest = left.amax(0)
    if place:
        out.view(-1).copy_(0xFFFFFFFF - greatest.bitwise_and(0xFFFFFFFF))
    else:
        order = (greatest >> 32).to(torch.int32)
        out.view(-1).copy_(torch.where(order < 0, order ^ 0x7FFFFFFF, order).view(torch.float32))
