"""`reduce` on GPUs by Triton kernels that add, test and round, on the tables of a plan.

`kernels/products.py` has those of matrix products, `kernels/sums.py` those of plain sums and extremes, and
`kernels/near_ties.py` those that settle exactly what others list.

Under policy `exact` the host waits for nothing: kernels read the list's length, and settle all elements if it has no
room. Under policy `logged` the host reads the list; torch computes a result again if it has no room.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.gpu.integers import choose
from tiebreak.engine.arithmetic.gpu.launching import kernels, launch, programs, target
from tiebreak.engine.arithmetic.gpu.operands import OperandLayout, arrange
from tiebreak.engine.arithmetic.plain.exact import ElementReader, settle
from tiebreak.engine.arithmetic.plan.options import Counts, Operands, Options
from tiebreak.engine.arithmetic.plan.sums import Partial, ReduceTables, progression, shuffle
from tiebreak.engine.arithmetic.plan.views import Integers, check_reach
from tiebreak.engine.arithmetic.plan.ziv import DENSE, Collector, coefficient
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.protocol.program.isa import Instruction, ReduceFunction

FLUSH: Final = 256
"""The number of terms after which an accumulator joins the total."""
FEWEST: Final = 2 * FLUSH
"""The least number of terms in a part."""
ROOM: Final = 64
"""The room of the list of undecided elements, in addition to one in `DENSE`, under policy `logged`."""
OPTIONS: Final = {"enable_fp_fusion": False, "num_warps": 8}
"""Options of Triton's compiler: no contraction, and enough warps that nothing is spilled on sm_80 and sm_90."""
MATRIX: Final = (("cuda", 80), ("cuda", 90))
"""The targets on which products use FP64 matrix instructions."""
MANY: Final = 32
"""A product is computed again in doubled precision if one element in this many is undecided."""
LONG: Final = 1 << 14
"""A listed sum of more terms than this may be divided among programs. One of this length takes as long as a launch."""
NORMS: Final[dict[str, Any]] = {"BLOCK_M": 32, "BLOCK_K": 64, "enable_fp_fusion": False, "num_warps": 4}
"""The blocks of `norms` and the compiler's options: 32 rows that lie side by side are a line of memory."""
PARTS: Final[dict[str, Any]] = {"BLOCK": 128, "enable_fp_fusion": False, "num_warps": 4}
"""The block of `add_parts` and `round_listed`, and the compiler's options."""


def tile(backend: str, arch: int) -> dict[str, Any]:
    """The blocks of a product and the compiler's options for a target of Triton, such as ("cuda", 90).

    With these blocks Triton 3.6.0 takes FP64 matrix instructions on sm_80 and sm_90, and FMA elsewhere: on sm_100 it
    fails on tiles of 64 rows (it takes an instruction that has no FP64), on AMD on all matrix instructions in FP64.
    """
    blocks = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 16, "APART": (backend, arch) in MATRIX, **OPTIONS}
    if backend == "hip":
        return {**blocks, "matrix_instr_nonkdim": 4}
    return {**blocks, "BLOCK_M": 32} if arch >= 100 else blocks


def product_tile(backend: str, arch: int, m: int, *, tables: bool) -> dict[str, Any]:
    """The blocks of `product` and the compiler's options for a target, for results of m rows, and for places in tables.

    Where there are FP64 matrix instructions, a warp computes 32 x 32 elements. Copies run two steps ahead, and reading
    their places two more: the compiler divides its stages among both.
    """
    options = {**tile(backend, arch), "GROUP": 8}
    if (backend, arch) in MATRIX:
        options |= {"num_stages": 7 if tables else 4} | ({"BLOCK_M": 128} if m > 64 else {"BLOCK_N": 128})
    return options


def twice(options: dict[str, Any]) -> dict[str, Any]:
    """The blocks of `contract_twice` and the compiler's options, by those of a product."""
    return {**options, "BLOCK_M": min(32, options["BLOCK_M"])}


def lanes(tables: ReduceTables, *, prologue: bool) -> dict[str, Any]:
    """The blocks of `add_up` and the compiler's options: along the terms, or along outputs that lie side by side.

    A prologue takes registers, so a program has half the elements then.
    """
    across = tables.terms <= 16 or (tables.run_batch > 1 and tables.run_k < 32)
    return {"BLOCK_M": (128 if across else 8) >> prologue, "BLOCK_K": 8 if across else 128, **OPTIONS}


def settling(backend: str, terms: int, *, prologue: bool) -> dict[str, Any]:
    """The blocks of `settle` and the compiler's options for a target: one element at a time if it has many terms.

    128 registers let four programs run on a multiprocessor of NVIDIA's, which wait for memory most of the time.
    Prologues need up to 168, with which it runs three.
    """
    elements = 512 >> prologue
    block = elements if terms > 128 else 64
    options = {"BLOCK_M": elements // block, "BLOCK_K": block, "enable_fp_fusion": False, "num_warps": 4}
    return {**options, "maxnreg": 168 if prologue else 128} if backend == "cuda" else options


@dataclass(frozen=True)
class Form:
    """The way in which `product` reads its operands and writes its result."""

    layouts: tuple[OperandLayout, OperandLayout]
    out_step: int | None
    """The distance of two rows of the result, whose columns lie side by side; None if places are in tables."""
    cut: int
    """The most terms whose squares a program of `norms` adds."""
    cuts: int

    @classmethod
    def of(cls, tables: ReduceTables, terms: Sequence[Integers], device: torch.device) -> "Form":
        """The form of a sum with rows and columns, by its tables, and those of its terms as they are to be taken."""
        a, b = (OperandLayout.of(o.batch, o.own, k) for o, k in zip(tables.operands, terms, strict=True))
        rows, columns = map(progression, tables.out[1:])
        tiles = len(tables.out[0]) * sum(ceil(len(o.own) / NORMS["BLOCK_M"]) for o in tables.operands)
        out_step = rows if columns == 1 or len(tables.out[2]) == 1 else None
        return cls((a, b), out_step, *_cut(tables.terms, tiles, device))

    @cached_property
    def options(self) -> dict[str, Any]:
        return {
            f"{name}_{key}": value
            for name, layout in zip("AB", self.layouts, strict=True)
            for key, value in (("ALONG", layout.along), ("RUN", layout.run), ("UNIT", layout.unit))
        }

    @cached_property
    def steps(self) -> tuple[int | None, ...]:
        """The steps of both operands and of the result's rows; None for each of them that is read from tables."""
        return *(layout.step for layout in self.layouts), self.out_step


Read = Tensor | tuple[Tensor, ...]
"""An operand as kernels read it: a tensor, or all that a chain reads which computes its elements."""


class Prologue(NamedTuple):
    """A chain that computes the operand of a `reduce`, as kernels read it."""

    program: tuple[Any, ...]
    numbers: tuple[int, ...]
    notes: Callable[[], Tensor]


@dataclass(frozen=True)
class _Call:
    """One launch: `numbers` are the kernel's arguments between `sizes` and `step`."""

    kernel: Any
    tables: list[Tensor]
    shape: tuple[int, int, int]
    """Batches, m and n; m and n are 1 for a sum without rows and columns."""
    numbers: tuple[int, ...]
    options: dict[str, Any]
    tiles: int
    """The number of tiles in all batches together."""
    parts: int
    step: int
    """The most terms of a part; the last one may have fewer."""
    roundings: int
    """The number of roundings on a term's path, additions of parts included."""
    device: torch.device
    form: Form | None
    cuts: int
    """The number of pieces of the terms whose sizes are left."""
    prologue: Prologue | None

    def places(self, numbers: Tensor) -> Tensor:
        """The places of elements in the result, by their row-major numbers over (batch, m, n)."""
        if not self.matrix:
            return numbers
        _, m, n = self.shape
        batch, rows, columns = self.tables[-3:]
        return batch[numbers // (m * n)] + rows[numbers // n % m] + columns[numbers % n]

    @property
    def matrix(self) -> bool:
        """Whether the result has m and n."""
        return len(self.tables) > 4

    @property
    def chain(self) -> tuple[Any, ...]:
        """The notes and numbers of the prologue; nulls if there is none."""
        return (None, None) if self.prologue is None else (self.prologue.notes(), self.prologue.numbers)

    @cached_property
    def reading(self) -> tuple[list[Tensor | None], list[int], dict[str, Any]]:
        """The tables that are read, the steps in place of others, and what is promised of both operands."""
        if self.form is None:
            return [*self.tables], [], {}
        steps = self.form.steps
        tables = [t if at % 3 == 0 or steps[at // 3] is None else None for at, t in enumerate(self.tables)]
        return tables, [step or 0 for step in steps], self.form.options

    def launch(
        self, read: Sequence[Any], memory: Sequence[Any], factor: float, loose: Tensor | None = None, **options: Any
    ) -> None:
        """Launches the kernel. memory: out, found, room, listed, sums, errors, sizes, as in `kernels/products.py`."""
        numbers, (tables, steps, sides) = (*self.numbers, self.step), self.reading
        if (form := self.form) is not None:
            *others, sizes = memory
            batches, m, n = self.shape
            if sizes is None:
                sizes = torch.empty((form.cuts, batches, m + n), dtype=torch.float64, device=self.device)
            memory = *others, sizes, loose
            tiles = batches * sum(ceil(rows / NORMS["BLOCK_M"]) for rows in (m, n))
            launch(
                kernels("products").norms, tiles * form.cuts, read[0], read[-1], *tables[:6], sizes, loose,
                *self.numbers, form.cut, *steps[:2], **sides, **NORMS,
            )  # fmt: skip
            numbers = (*self.numbers, form.cuts, self.step, *steps)
        launch(
            self.kernel, self.tiles * self.parts, read[0], read[-1], *tables, *memory, *numbers, factor,
            *(self.chain if form is None else ()), FLUSH=FLUSH, **sides, **self.options, **options,
        )  # fmt: skip

    def leave(self, read: Sequence[Read], loose: Tensor | None = None) -> list[Tensor]:
        """FP64 sums (parts, batches, m n) and what bounds are made of (cuts, batches, m + n), of each part and cut."""
        batches, m, n = self.shape
        forms = ((self.parts, m * n), (self.cuts, m + n)) if self.matrix else ((self.parts, 1), (self.cuts, 1))
        sums, sizes = (
            torch.empty((count, batches, width), dtype=torch.float64, device=self.device) for count, width in forms
        )
        self.launch(read, (None, None, 0, None, sums, None, sizes), 0.0, loose, PRECISION=32, LEAVE=True)
        return [sums, sizes]


def _cut(terms: int, tiles: int, device: torch.device) -> tuple[int, int]:
    """The most terms of a part, and the number of parts that gives the device work."""
    step = ceil(terms / max(1, min(ceil(programs(device) / tiles), terms // FEWEST)))
    step = ceil(step / 16) * 16  # so that parts of operands that lie side by side begin at multiples of 16 bytes
    return step, ceil(terms / step)


class LaunchedSum:
    """A `reduce` that kernels compute, planned once. With `shuffled`, terms are taken in random order."""

    def __init__(
        self, instruction: Instruction, tables: ReduceTables, options: Options, prologue: Prologue | None = None
    ) -> None:
        """prologue: what computes the operand; then all that is read takes its place among the operands."""
        tables, self._copies = arrange(instruction, tables)
        self._instruction, self._tables, self._prologue = instruction, tables, prologue
        self._shuffled, self._rounded = options.shuffled, options.rounding(instruction)
        self._integers = choose(tables, self._rounded.precision, options.device, forced=options.by_integers)
        self._call: _Call | None = None
        """The call that all launches with terms in order share."""

    def run(self, operands: Sequence[Read], counts: Counts, near: Collector | None) -> Tensor | None:
        """The result, f32, contiguous, of the instruction's shape; None if too much is undecided.

        `near` collects open elements that are not settled.
        """
        tables, precision = self._tables, self._rounded.precision
        call, read = self._reading(operands)
        factor = coefficient(call.roundings) if tables.terms > 1 else 0.0
        factor = _up(factor if near is None else near.coefficient(factor))
        device, numel = call.device, prod(call.shape)
        out = torch.empty(self._instruction.shape, dtype=torch.float32, device=device)
        found = torch.zeros(2, dtype=torch.int64, device=device)
        room = min(numel, numel // DENSE + programs(device)) if near is None else numel // DENSE + ROOM
        listed = torch.empty(room, dtype=torch.int32 if numel < 1 << 31 else torch.int64, device=device)
        c, e = [None] * 2 if near is None else torch.empty((2, room), dtype=torch.float64, device=device)
        memory, loose = (out, found, room, listed, c, e), None
        if near is None and self._integers is not None:  # auditors expect near ties of FP64 to be reported
            loose = self._integers.run(read, *call.reading, out, found, listed)
        if call.parts > 1:
            batches, m, n = call.shape
            launch(
                kernels("sums").add_parts, ceil(numel / PARTS["BLOCK"]), *call.leave(read, loose), *call.tables[-3:],
                *memory, loose, m, n, batches, call.parts, call.cuts, factor,
                MATRIX=call.matrix, PRECISION=precision, **PARTS,
            )  # fmt: skip
        else:
            call.launch(read, (*memory, None), factor, loose, PRECISION=precision, LEAVE=False)
        if near is not None and c is not None and e is not None:
            if (count := int(found[0])) > room:
                return None
            whole = [x for x in operands if isinstance(x, Tensor)]  # nothing is logged of prologues
            reader = ElementReader(self._instruction, whole)
            self._settle_or_report(reader, call, read, out, listed[:count].to(torch.int64), c[:count], e, counts, near)
            return out
        counters, many = counts.on(device), 0
        if call.matrix and call.parts == 1:
            many, again = MANY, _up(coefficient(2 * tables.terms))
            launch(
                kernels("products").contract_twice, programs(device), read[0], read[-1], *call.tables, out, found,
                room, listed, counters, *call.numbers, numel, again, PRECISION=precision, MANY=many, FLUSH=FLUSH,
                **twice(tile(*target(device))),
            )  # fmt: skip
        self._settle(call, read, out, found, listed, counters, many)
        return out

    def partial(self, operands: Operands) -> Partial:
        """The FP64 sums and the sizes of all elements before rounding."""
        call, read = self._reading(operands)
        total, size = (parts.sum(0) for parts in call.leave(read))
        if not call.matrix:
            return Partial(total.view(-1), (size.view(-1),), call.roundings, None)
        rows, columns = torch.split(size, list(call.shape[1:]), 1)
        return Partial(total.view(call.shape), (rows, columns), call.roundings, self._tables.source)

    def greatest(self, operands: Sequence[Read]) -> Tensor:
        """The greatest term of each output, or its position among the terms, which is i64."""
        (call, (read,)), i = self._reading(operands), self._instruction
        out = torch.empty(i.shape, dtype=TORCH_DTYPES[i.dtype], device=call.device)
        place, left = i.function == ReduceFunction.ARGMAX, None
        run_batch, run_k, k, batches = call.numbers
        if call.parts > 1:
            left = torch.empty((call.parts, batches), dtype=torch.int64, device=call.device)
        options = {name: value for name, value in call.options.items() if name not in ("PAIRS", "B_STEP")}
        launch(
            kernels("sums").find_greatest, call.tiles * call.parts, read, *call.tables[:2], out, left,
            run_batch, run_k, k, batches, call.step, *call.chain, PLACE=place, LEAVE=left is not None, **options,
        )  # fmt: skip
        if left is None:
            return out
        greatest = left.amax(0)
        if place:
            greatest = 0xFFFFFFFF - greatest.bitwise_and(0xFFFFFFFF)
        elif out.dtype == torch.float32:
            order = (greatest >> 32).to(torch.int32)
            greatest = torch.where(order < 0, order ^ 0x7FFFFFFF, order).view(torch.float32)
        out.view(-1).copy_(greatest)
        return out

    def _reading(self, operands: Sequence[Read]) -> tuple[_Call, list[Any]]:
        made: dict[int, Any] = {at: copy.make(operands[at]) for at, copy in self._copies.items()}
        read, device = [made.get(o.index, operands[o.index]) for o in self._tables.operands], None
        for operand, x in zip(self._tables.operands, read, strict=True):
            if isinstance(x, Tensor):
                check_reach(x, operand.reach)
            device = x.device if isinstance(x, Tensor) else x[0].device
        assert device is not None  # it has an operand
        if self._shuffled is not None and self._instruction.is_f32_sum:
            return self._prepare(device, self._shuffled), read
        if self._call is None:
            self._call = self._prepare(device, None)
        return self._call, read

    def _prepare(self, device: torch.device, shuffled: torch.Generator | None) -> _Call:
        tables = self._tables
        first, last, k = tables.operands[0], tables.operands[-1], tables.terms
        terms, run_k = [o.k for o in tables.operands], tables.run_k
        if shuffled is not None:
            terms, run_k = shuffle(terms, run_k, shuffled)
        held: list[Integers]
        kernel, form = kernels("sums").add_up, None
        if tables.out:
            shape = batches, m, n = len(first.batch), len(first.own), len(last.own)
            kernel, form = kernels("products").product, Form.of(tables, terms, device)
            options = product_tile(*target(device), m, tables=any(layout.step is None for layout in form.layouts))
            held = [first.batch, first.own, terms[0], last.batch, last.own, terms[-1], *tables.out]
            tiles, numbers = batches * ceil(m / options["BLOCK_M"]) * ceil(n / options["BLOCK_N"]), (m, n, k, batches)
            lane = 1
        else:
            batches = len(first.batch) * tables.run_batch
            shape = batches, 1, 1
            steps: dict[str, Any] = {"PAIRS": len(tables.operands) > 1, "A_STEP": first.step, "B_STEP": last.step}
            steps |= {"CHAIN": None if self._prologue is None else self._prologue.program}
            options = {**lanes(tables, prologue=self._prologue is not None), **steps}
            held = [first.batch, terms[0], last.batch, terms[-1]]
            tiles, numbers = ceil(batches / options["BLOCK_M"]), (tables.run_batch, run_k, k, batches)
            lane = options["BLOCK_K"]
        step, parts = _cut(k, tiles, device)
        # In a product a term stays in its lane; `add_up` adds the lanes in the end.
        roundings = min(k, FLUSH + ceil(step / (FLUSH * lane)) + lane + parts)
        on_device = [torch.from_numpy(t).to(device) for t in held]
        cuts = parts if form is None else form.cuts
        return _Call(
            kernel,
            on_device,
            shape,
            numbers,
            options,
            tiles,
            parts,
            step,
            roundings,
            device,
            form,
            cuts,
            self._prologue,
        )

    def _settle_or_report(
        self, reader: ElementReader, call: _Call, read: Sequence[Any], out: Tensor, listed: Tensor,
        c: Tensor, e: Tensor, counts: Counts, near: Collector,
    ) -> None:  # fmt: skip
        """Writes the exact results of listed elements, or reports those that may stay open (policy `logged`).

        listed: their row-major numbers over (batch, m, n), i64.
        """
        places = call.places(listed)

        def exactly(at: Tensor) -> Tensor:
            self._settle(call, read, out, torch.tensor([len(at)], device=out.device), listed[at], None, 0)
            return out.view(-1)[places[at]]

        counts.elements += out.numel()
        out.view(-1)[places] = settle(c, e[: len(c)], places, reader, self._rounded, counts, near, exactly=exactly)

    def _settle(
        self, call: _Call, read: Sequence[Any], out: Tensor, found: Tensor, listed: Tensor,
        counters: Tensor | None, many: int,
    ) -> None:  # fmt: skip
        """Writes the exact results of `found` listed elements, without waiting for anything."""
        tables, precision = self._tables, self._rounded.precision
        t, (_, m, n), device, pairs = call.tables, call.shape, out.device, len(read) > 1
        all_tables = t if call.matrix else [t[0], t[0], t[1], t[2], t[2], t[3], *t[:3]]
        runs = (1, 1) if call.matrix else call.numbers[:2]
        steps = {"A_STEP": tables.operands[0].step, "B_STEP": tables.operands[-1].step}
        # A plain term is a multiple of 2^-149, below 2^128.
        options = {"MATRIX": call.matrix, "PRECISION": precision, "MANY": many}
        options |= {"FIRST": 0, "SLICES": 12} if pairs else {"FIRST": 3, "SLICES": 6}
        room, digits = programs(device) if tables.terms > LONG else 0, None
        if room:
            digits = torch.zeros((2 * options["SLICES"] + 1, room), dtype=torch.int64, device=device)
        blocks = settling(target(device)[0], tables.terms, prologue=call.prologue is not None)
        factor = _up(coefficient(ceil(tables.terms / blocks["BLOCK_K"]) + 2 * blocks["BLOCK_K"]))
        launch(
            kernels("near_ties").settle, programs(device), read[0], read[-1], *all_tables, out, found, listed, counters,
            digits, m, n, *runs, tables.terms, out.numel(), len(listed), room, factor, call.chain[1],
            PAIRS=pairs, CHAIN=call.options.get("CHAIN"), **steps, **options, **blocks,
        )  # fmt: skip
        if digits is not None:
            launch(
                kernels("near_ties").round_listed, ceil(room / PARTS["BLOCK"]), digits, digits[-1], *all_tables[-3:],
                out, found, listed, counters, m, n, out.numel(), room, **options, **PARTS,
            )  # fmt: skip


def _up(x: float) -> float:
    """The nearest f32 that is not below x: Triton passes numbers as f32."""
    nearest = np.float32(x)
    return float(nearest if nearest >= x else np.nextafter(nearest, np.float32(np.inf)))
