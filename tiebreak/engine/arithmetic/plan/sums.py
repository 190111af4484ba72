"""Plans of sums: tables of places for kernels, orders of terms, and sums that are left to be added up.

**`reduce`**: a sum of products over groups of dims (`tiebreak.engine.arithmetic.plain.sums`) reads each operand at the
sum of one place per group, so a plan for kernels consists of a few tables of places.

**`scatter_sum`** is the exact sum of all sources whose index points at an output element (SPEC 4.3). Output dims are
*matched* (the index addresses them), *keyed* (the index depends on them) or *row* (the index ignores them); the other
dims are the reduction. With key = keyed coordinate * box + index, every source row (keyed and reduction coordinate) is
added to the row of its key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, isqrt, prod
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plan.views import MAX_TABLE, Dim, Integers, View, coalesce, offsets_of, size_of
from tiebreak.protocol.program.isa import Instruction, ScatterParams, row_major

SHUFFLED_RUNS: Final = 1 << 20
"""The most pieces into which the terms of a sum are cut to be taken in random order."""
FEW: Final = 64
"""The most terms that are taken one by one in random order; longer sums are cut into pieces."""
RUN: Final = 32
"""The least number of terms in such a piece, which kernels add side by side."""
MOST: Final = 1 << 30
"""The most terms of a sum that kernels on GPUs add: they count them in 32 bits."""
LINES: Final = 12
"""The lines of memory, of sixteen numbers, whose terms are mixed with each other."""


def kind_of(instruction: Instruction) -> str:
    """The kind under which an f32 sum is counted (`stats.Stats`)."""
    return "reduce.sum.plain" if len(instruction.operands) == 1 else "reduce.sum.products"


def coalesced(instruction: Instruction) -> tuple[list[Dim], list[Dim]]:
    """The coalesced dims of the output and of the reduction."""
    rank, accesses = len(instruction.shape), instruction.operands
    return (
        coalesce(instruction.shape, [a.strides[:rank] for a in accesses]),
        coalesce(instruction.reduction, [a.strides[rank:] for a in accesses]),
    )


@dataclass(frozen=True)
class Operand:
    """The places of an operand's batches, own rows and terms; `step` leads from an output of a run to the next."""

    index: int
    """The position among the instruction's operands."""
    batch: Integers
    own: Integers
    k: Integers
    step: int
    reach: tuple[int, int]
    """The least and the greatest place read."""


@dataclass(frozen=True)
class ReduceTables:
    """The tables by which kernels compute one instruction."""

    operands: tuple[Operand, ...]
    out: tuple[Integers, ...]
    """The places of (batch, m, n) of a matrix product. Empty if each output has its own terms: o is at place o then."""
    run_k: int
    run_batch: int

    @property
    def terms(self) -> int:
        """The number of terms of an element, K."""
        return len(self.operands[0].k) * self.run_k

    @cached_property
    def source(self) -> Integers | None:
        """The number of the kernel's sum for each element of the result; None if they are in order."""
        if not self.out:
            return None
        batch, m, n = self.out
        places = (batch[:, None, None] + m[:, None] + n).reshape(-1)
        order = np.empty_like(places)
        order[places] = np.arange(len(places))
        return None if np.array_equal(order, places) and bool((np.diff(places) == 1).all()) else order

    @cached_property
    def multiplications(self) -> int:
        """The number of terms of all elements."""
        rows, columns = (len(self.operands[i].own) for i in (0, -1))
        return len(self.operands[0].batch) * self.run_batch * rows * columns * self.terms


def is_swapped(output: Sequence[Dim]) -> bool:
    """Whether the first of two operands is B, the one with columns. If it alone reads the innermost output dim, it is.

    This depends on the instruction alone, so what back-ends leave in a `Partial` has one form.
    """
    return bool(output) and len(output[-1].strides) == 2 and output[-1].strides[1] == 0


def grouped(instruction: Instruction) -> tuple[tuple[int, ...], list[list[tuple[Dim, int]]]]:
    """The operands in order, that with rows first, and the output's dims with the result's strides, in three groups.

    Batch (all operands read them, or none does), m (only the first of two) and n (only the second).
    """
    output, _ = coalesced(instruction)
    order = (1, 0) if is_swapped(output) else tuple(range(len(instruction.operands)))
    groups: list[list[tuple[Dim, int]]] = [[], [], []]
    for dim, place in zip(output, row_major(tuple(d.size for d in output)), strict=True):
        alike = all(dim.strides) or not any(dim.strides)
        groups[0 if alike else 1 if dim.strides[order[0]] else 2].append((dim, place))
    return order, groups


def norms(instruction: Instruction) -> int:
    """The number of norms of rows and columns in a `Partial`; 0 if each element has a sum of absolute terms."""
    batch, m, n = (size_of([dim for dim, _ in group]) for group in grouped(instruction)[1])
    return batch * (m + n) if m * n > 1 else 0


def plan_tables(instruction: Instruction) -> ReduceTables | None:
    """The tables of a `reduce` of f32.

    None if torch must compute it: outputs or terms that no operand reads, terms that only one of two reads, or tables
    that would be too large.
    """
    output, reduction = coalesced(instruction)
    if (
        not (output or reduction)
        or not all(any(d.strides) for d in output)
        or not all(all(d.strides) for d in reduction)
    ):
        return None
    accesses, (order, groups) = instruction.operands, grouped(instruction)
    matrix = bool(groups[1] or groups[2])
    batch, m, n = ([dim for dim, _ in group] for group in groups)
    run_k, run_batch = (1 if matrix else _run(dims) for dims in (reduction, batch))
    k, batch = (list(dims[: len(dims) - (run > 1)]) for dims, run in ((reduction, run_k), (batch, run_batch)))
    if sum(map(size_of, (batch, m, n, k))) > MAX_TABLE:
        return None

    def places_of(dims: Sequence[Dim], operand: int) -> Integers:
        return offsets_of([(d.size, d.strides[operand]) for d in dims])

    operands = tuple(
        Operand(
            o, accesses[o].offset + places_of(batch, o), places_of(own, o), places_of(k, o), int(run_batch > 1),
            accesses[o].extent(instruction.index_space),
        )
        for o, own in zip(order, (m, n), strict=False)
    )  # fmt: skip
    out = tuple(offsets_of([(dim.size, place) for dim, place in group]) for group in groups if matrix)
    return ReduceTables(operands, out, run_k, run_batch)


def reads_each_once(instruction: Instruction, numel: int) -> bool:
    """Whether a `reduce` has tables, and reads each of the `numel` elements of one operand for one term."""
    dims = coalesced(instruction)
    return (
        len(instruction.operands) == 1
        and prod(instruction.index_space) == numel
        and 1 < prod(instruction.reduction) <= MOST
        and all(d.strides[0] for d in (*dims[0], *dims[1]))
        and sum(size_of(d) // _run(d) for d in dims) + 2 <= MAX_TABLE
    )


def _run(dims: Sequence[Dim]) -> int:
    """The number of coordinates of the innermost dim that follow each other in every operand."""
    return dims[-1].size if dims and all(stride == 1 for stride in dims[-1].strides) else 1


def progression(table: Integers) -> int | None:
    """The step of a table 0, step, 2 step ...; 0 if it has one place, None if it is no such table."""
    step = int(table[1]) if len(table) > 1 else 0
    return step if np.array_equal(table, step * np.arange(len(table))) else None


def shuffle(terms: Sequence[Integers], run: int, shuffled: torch.Generator) -> tuple[list[Integers], int]:
    """The terms in random order: single ones if they are few, else in pieces that are one run in memory."""
    total = len(terms[0]) * run
    small = [c for c in range(1, isqrt(run) + 1) if run % c == 0]
    divisors = (*small, *(run // c for c in reversed(small)))
    least = 1 if total <= FEW or run == 1 else RUN
    fitting = [c for c in divisors if c >= least and total // c <= SHUFFLED_RUNS] or [run]
    cut = next((c for c in fitting if c % least == 0), fitting[0])
    starts = np.arange(0, run, cut, dtype=np.int64)
    order = _order(len(terms[0]) * len(starts), shuffled, apart=cut > 1 or total <= FEW)
    return [(table[:, None] + starts).reshape(-1)[order] for table in terms], cut


def _order(count: int, shuffled: torch.Generator, *, apart: bool) -> Integers:
    """A random order of all numbers below `count`.

    Unless `apart`, four that follow each other stay together, and sixteen of them, which share a line of memory, near.
    """

    def drawn(size: int) -> Integers:
        found: Integers = torch.randperm(size, generator=shuffled, device=shuffled.device).cpu().numpy()
        return found

    if apart:
        return drawn(count)
    lines = drawn(ceil(count / 16))
    lines = np.append(lines, np.full(-len(lines) % LINES, len(lines)))
    pieces = (4 * lines[:, None] + np.arange(4)).reshape(-1, 4 * LINES)[:, drawn(4 * LINES)]
    order: Integers = (4 * pieces.reshape(-1, 1) + np.arange(4)).reshape(-1)
    return order[order < count]


@dataclass(frozen=True)
class Partial:
    """FP64 sums of all elements of a result over some of their terms; those over the others are added by the caller."""

    sums: Tensor
    """(Bt, M, N), or the result's elements in order. Columns are those of the operand that `is_swapped` says."""
    sizes: tuple[Tensor, ...]
    """Sums of absolute terms, like `sums`; or sums of squares, (Bt, M) and (Bt, N), of a product's rows and columns."""
    roundings: int
    """The number of roundings that a term passes through."""
    source: Integers | None
    """The number of the sum for each of the result's elements; None if they are in order."""

    def in_order(self, sums: Tensor) -> Tensor:
        """Numbers like `sums` for the result's elements in order, 1-d."""
        flat = sums.reshape(-1)
        return flat if self.source is None else flat[torch.from_numpy(self.source).to(flat.device)]

    def errors(self, rows: Tensor, columns: Tensor, begin: int, end: int) -> Tensor:
        """Products of a row's number (Bt, M) and a column's (Bt, N), for elements begin ... end - 1 of the result."""
        (batch, m), n = rows.shape, columns.shape[1]
        if self.source is None and batch == 1 and begin % n == 0 and end % n == 0:
            return (rows.view(m, 1)[begin // n : end // n] * columns).view(-1)
        at = torch.arange(begin, end, device=rows.device)
        if self.source is not None:
            at = torch.from_numpy(self.source[begin:end]).to(rows.device)
        row = at.div(n, rounding_mode="floor")
        return rows.view(-1)[row] * columns.view(-1)[row.div(m, rounding_mode="floor") * n + at.remainder(n)]


@dataclass(frozen=True)
class ScatterTables:
    """The places that kernels read and write, by coordinate."""

    source: tuple[Integers, Integers, Integers]
    """Places by keyed, summed and row coordinate."""
    index: tuple[Integers, Integers]
    """Places by keyed and summed coordinate."""
    out: tuple[Integers, Integers, Integers]
    """Places by keyed, matched and row coordinate."""
    reach: tuple[tuple[int, int], tuple[int, int]]
    """The least and the greatest place read of the source and of the index."""


@dataclass(frozen=True)
class ScatterPlan:
    """The plan by which one `scatter_sum` is computed."""

    shape: tuple[int, ...]
    source: View
    """Dims (keyed, reduction, row)."""
    index: View
    """Dims (keyed, reduction): the key under which each source row is added."""
    keyed: tuple[int, ...]
    summed: tuple[int, ...]
    row: tuple[int, ...]
    matched: tuple[int, ...]
    order: tuple[int, ...]
    """Permutation that takes (keyed, matched, row) dims to output order."""
    tables: ScatterTables | None
    """The tables of the kernels; None if they would be too large."""

    @property
    def box(self) -> int:
        """The number of outputs that an index can address."""
        return prod(self.matched)

    def numbers(self, keys: Tensor, elements: Tensor) -> Tensor:
        """The places in the result of elements numbered over (keys, row)."""
        width, at = prod(self.row), elements.cpu().numpy()
        places = keys.cpu().numpy()[at // width] * width + at % width
        if self.shape:
            coordinates = np.unravel_index(places, (*self.keyed, *self.matched, *self.row))
            places = np.ravel_multi_index([coordinates[number] for number in self.order], self.shape)
        return torch.from_numpy(places).to(keys.device)


def plan_scatter(instruction: Instruction) -> ScatterPlan:
    """The plan of a validated `scatter_sum`."""
    params, shape, space = instruction.params, instruction.shape, instruction.index_space
    assert isinstance(params, ScatterParams)
    source, index = instruction.operands
    rank = len(shape)
    matched = [d for d in range(rank) if params.match[d] != 0]
    keyed = [d for d in range(rank) if params.match[d] == 0 and index.strides[d] != 0 and shape[d] > 1]
    row = [d for d in range(rank) if d not in matched and d not in keyed]
    summed = list(range(rank, len(space)))

    def view(offset: int, strides: Sequence[int], dims: Sequence[int]) -> View:
        return View.of(offset, [space[d] for d in dims], [strides[d] for d in dims])

    def places(strides: Sequence[int], dims: Sequence[int], offset: int = 0) -> Integers:
        return offset + offsets_of([(space[d], strides[d]) for d in dims])

    tables = None
    if sum(prod(space[d] for d in dims) for dims in (matched, keyed, row, summed)) <= MAX_TABLE:
        written = row_major(shape)
        tables = ScatterTables(
            (places(source.strides, keyed, source.offset), places(source.strides, summed), places(source.strides, row)),
            (places(index.strides, keyed, index.offset), places(index.strides, summed)),
            (places(written, keyed), places(written, matched), places(written, row)),
            (source.extent(space), index.extent(space)),
        )
    placed = [*keyed, *matched, *row]
    return ScatterPlan(
        shape,
        view(source.offset, source.strides, [*keyed, *summed, *row]),
        view(index.offset, index.strides, [*keyed, *summed]),
        tuple(shape[d] for d in keyed),
        instruction.reduction,
        tuple(shape[d] for d in row),
        tuple(shape[d] for d in matched),
        tuple(placed.index(d) for d in range(rank)),
        tables,
    )
