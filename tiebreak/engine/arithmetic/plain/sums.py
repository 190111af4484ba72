"""`reduce` sums in torch, on any device: FP64 products of batches of matrices, and Ziv's test of the results.

The dims of the index space fall into groups, according to the operands that read them: *batch* (output; both operands,
or the only one), *m* (output; only the first), *n* (output; only the second), *free* (output; none: computed once and
expanded), *k* (summed; both or the only one), *ra*, *rb* (summed; only the first, only the second: summed before
multiplying, which adds one rounding to the path of a term), *times* (summed; none: a factor). Every contraction thus
becomes one batched matrix product of shapes (Bt, M, K) and (Bt, K, N) in FP64, whatever views it reads; without m and n
it is a product and a sum along K.

The FP64 memory is bounded: a large instruction is cut along K into *slabs*, whose results are added, and along output
dims into *parts*.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import ceil, prod

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plain.exact import multiply_exactly, read_terms
from tiebreak.engine.arithmetic.plain.settling import Settler, decide, decide_outer
from tiebreak.engine.arithmetic.plan.options import Operands, Pieces
from tiebreak.engine.arithmetic.plan.rounding import Round
from tiebreak.engine.arithmetic.plan.stats import Counts
from tiebreak.engine.arithmetic.plan.sums import Partial, coalesced, is_swapped
from tiebreak.engine.arithmetic.plan.views import Dim, Integers, View, offsets_of, size_of
from tiebreak.engine.arithmetic.plan.ziv import Collector, coefficient
from tiebreak.protocol.program.isa import Instruction, row_major

BLOCK = 256
"""The number of terms multiplied at once if K is long: the bound is (BLOCK + number of blocks) u instead of K u."""
MAX_BLOCKS = 64
SMALL_OUTPUT, SMALL_BLOCK = 1 << 12, 64
SLAB = 1 << 12
"""The number of terms from which on an instruction is cut along K before it is cut along its output."""


@dataclass(frozen=True)
class Groups:
    """The dims of an index space, or a part of one, grouped by the operands that read them.

    Each dim has one stride per operand.
    """

    batch: tuple[Dim, ...]
    m: tuple[Dim, ...]
    n: tuple[Dim, ...]
    k: tuple[Dim, ...]
    ra: tuple[Dim, ...]
    rb: tuple[Dim, ...]
    times: int

    @classmethod
    def of(cls, output: Sequence[Dim], reduction: Sequence[Dim], limit: int) -> "Groups":
        """Classifies coalesced dims. Reductions that only one operand reads count as k beyond `limit` terms."""

        def pick(dims: Sequence[Dim], *reads: bool) -> tuple[Dim, ...]:
            return tuple(d for d in dims if tuple(s != 0 for s in d.strides) == reads)

        operands = len((*output, *reduction)[0].strides) if output or reduction else 1
        times = prod(d.size for d in reduction if not any(d.strides))
        if operands == 1:
            return cls(pick(output, True), (), (), pick(reduction, True), (), (), times)
        ra, rb = pick(reduction, True, False), pick(reduction, False, True)
        k = pick(reduction, True, True)
        if prod(d.size for d in ra) > limit:
            k, ra = k + ra, ()
        if prod(d.size for d in rb) > limit:
            k, rb = k + rb, ()
        return cls(pick(output, True, True), pick(output, True, False), pick(output, False, True), k, ra, rb, times)

    @property
    def result(self) -> tuple[Dim, ...]:
        """The dims of the result as computed: batch, m, n."""
        return self.batch + self.m + self.n

    def read_by(self, operand: int) -> tuple[tuple[Dim, ...], ...]:
        """The groups in which an operand is loaded: batch, m or n, k, ra or rb."""
        return (self.batch, self.m, self.k, self.ra) if operand == 0 else (self.batch, self.n, self.k, self.rb)


@dataclass(frozen=True)
class OperandLoad:
    """One operand of a slab as it is loaded: FP64 (Bt, M or N, K, presummed)."""

    view: View
    wide: tuple[int, ...]
    """The dims with their full sizes."""
    shape: tuple[int, int, int, int]
    k_outside: tuple[int, ...]
    """The order of dims in which the operand is copied if its own dims are longer runs in memory than k; else empty.

    Matrix products take either layout.
    """


@dataclass(frozen=True)
class ReducePart:
    """A part small enough to be computed at once, except for slabs along K."""

    groups: Groups
    first: tuple[int, ...]
    """The coordinates of the first element in the whole output."""
    starts: tuple[int, ...]
    """The offset of each operand."""
    output: tuple[int, ...]
    """The coalesced output dims; in `spread`, the free ones have size 1."""
    spread: tuple[int, ...]
    reduction: tuple[Dim, ...]
    """The reduction dims in row-major order, for reading single terms again."""
    slab: int
    """The number of positions of the first k dim that are computed at once."""
    placed: tuple[int, ...]
    """The output dim of each of the dims (batch, m, n)."""

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Permutation that takes (batch, m, n) dims to output order."""
        return tuple(sorted(range(len(self.placed)), key=lambda i: self.placed[i]))

    @cached_property
    def result_shape(self) -> tuple[int, int, int]:
        """(Bt, M, N)."""
        return size_of(self.groups.batch), size_of(self.groups.m), size_of(self.groups.n)

    @cached_property
    def terms(self) -> int:
        """K of SPEC: the number of terms of an element."""
        return size_of(self.reduction)

    @property
    def is_product(self) -> bool:
        """Whether it is a plain matrix product of rows and columns, without groups ra, rb or times."""
        groups = self.groups
        return bool(groups.m or groups.n) and not (groups.ra or groups.rb) and groups.times == 1

    def numbers(self, elements: Tensor, shape: Sequence[int]) -> tuple[Integers, Integers]:
        """The places of elements (row-major numbers) in the whole result, and which element each is.

        An element can occur in several places. `shape`: the coalesced dims of the whole output.
        """
        strides = row_major(tuple(shape))
        found = np.full(len(elements), sum(at * stride for at, stride in zip(self.first, strides, strict=True)))
        sizes = [d.size for d in self.groups.result]
        coordinates = np.unravel_index(elements.cpu().numpy(), sizes) if sizes else []
        for coordinate, at in zip(coordinates, self.placed, strict=True):
            found += coordinate * strides[at]
        free = zip(self.output, self.spread, strides, strict=True)
        copies = offsets_of([(size, stride) for size, spread, stride in free if size != spread])
        return (found[:, None] + copies).reshape(-1), np.repeat(np.arange(len(elements)), len(copies))

    @cached_property
    def slabs(self) -> tuple[tuple[OperandLoad, ...], ...]:
        """The loads of the operands, by slab."""
        k = self.groups.k
        if not k:
            return (tuple(self._load(o, start, 1) for o, start in enumerate(self.starts)),)
        return tuple(
            tuple(
                self._load(o, start + at * k[0].strides[o], min(self.slab, k[0].size - at))
                for o, start in enumerate(self.starts)
            )
            for at in range(0, k[0].size, self.slab)
        )

    def _load(self, operand: int, start: int, first: int) -> OperandLoad:
        lead, own, k, extra = self.groups.read_by(operand)
        k = (Dim(first, k[0].strides), *k[1:]) if k else k
        dims = (*lead, *own, *k, *extra)
        wide = tuple(d.size for d in dims)
        view = View.of(start, wide, [d.strides[operand] for d in dims])
        return OperandLoad(
            view, wide, (size_of(lead), size_of(own), size_of(k), size_of(extra)), self._k_outside(operand, k)
        )

    def _k_outside(self, operand: int, k: Sequence[Dim]) -> tuple[int, ...]:
        lead, own, _, extra = self.groups.read_by(operand)
        runs = [dims[-1].size if dims and dims[-1].strides[operand] == 1 else 0 for dims in (own, k)]
        if runs[0] <= min(runs[1], 64):
            return ()
        first, second = len(lead), len(lead) + len(own)
        end = second + len(k) + len(extra)
        return (*range(first), *range(second, end), *range(first, second))


@dataclass(frozen=True)
class _Reader:
    """Reads the terms of single elements, numbered row-major over (batch, m, n)."""

    part: ReducePart
    operands: Sequence[Tensor]

    @property
    def terms(self) -> int:
        return self.part.terms

    def read(self, elements: Tensor, begin: int, end: int) -> Tensor:
        part = self.part
        rows = read_terms(self.operands, part.starts, part.groups.result, part.reduction, elements, begin, end)
        return prod((row.to(torch.float64) for row in rows[1:]), start=rows[0].to(torch.float64))


def plan_parts(
    output: Sequence[Dim], reduction: Sequence[Dim], starts: Sequence[int], limit: int, first: tuple[int, ...] = ()
) -> list[ReducePart]:
    """The parts of an f32 sum over coalesced dims, which hold at most about `limit` elements of each FP64 tensor.

    starts: the offset of each operand. first: the coordinates of the first element in the whole output.
    """
    first = first or (0,) * len(output)
    groups = Groups.of(output, reduction, limit)
    # The longest k dim comes first, because slabs are cut along it. Any order of terms is right.
    k = tuple(sorted(groups.k, key=lambda d: -d.size)) if size_of(groups.k) > SLAB else groups.k
    groups = Groups(groups.batch, groups.m, groups.n, k, groups.ra, groups.rb, groups.times)
    loads = [tuple(d for group in groups.read_by(o) for d in group) for o in range(len(starts))]
    largest = max((size_of(load) for load in loads), default=1)
    slab = k[0].size if k else 1
    if largest > limit and size_of(k) > SLAB:
        slab = max(1, ceil(slab / ceil(largest / limit)), ceil(SLAB * slab / size_of(k)))
    share = slab / k[0].size if k else 1.0
    for dims in (*loads, groups.result):
        size = size_of(dims) * (share if dims is not groups.result else 1)
        candidates = [d for d in groups.result if d in dims and d.size > 1]
        if size > limit and candidates:
            cut = max(candidates, key=lambda d: d.size)
            at, step, parts = output.index(cut), max(1, cut.size // ceil(size / limit)), []
            for begin in range(0, cut.size, step):
                inner = [*output[:at], Dim(min(step, cut.size - begin), cut.strides), *output[at + 1 :]]
                moved = [start + begin * stride for start, stride in zip(starts, cut.strides, strict=True)]
                here = (*first[:at], first[at] + begin, *first[at + 1 :])
                parts += plan_parts(inner, reduction, moved, limit, here)
            return parts
    sizes = tuple(d.size for d in output)
    spread = tuple(d.size if any(d.strides) else 1 for d in output)
    placed = _placed(output)
    assert len(placed) == len(groups.result), "each dimension of the result has its place"
    return [ReducePart(groups, first, tuple(starts), sizes, spread, tuple(reduction), slab, placed)]


def _placed(output: Sequence[Dim]) -> tuple[int, ...]:
    # Different dims may compare equal, so positions are matched group by group; each group is in output order.
    operands = len(output[0].strides) if output else 1
    wanted = [(True, True), (True, False), (False, True)] if operands == 2 else [(True,)]
    return tuple(
        place for reads in wanted for place, d in enumerate(output) if tuple(s != 0 for s in d.strides) == reads
    )


@dataclass(frozen=True)
class SumPlan:
    """The plan by which torch computes one instruction."""

    instruction: Instruction
    wide: tuple[int, ...]
    """The shape of the result in the coalesced dims to which `parts` refer."""
    parts: tuple[ReducePart, ...]
    swapped: bool
    """Whether the operands are swapped so that M <= N: BLAS is several times faster for long rows of the result."""


def plan_sum(instruction: Instruction, limit: int) -> SumPlan:
    """The plan of a `reduce` sum (f32) that holds at most about `limit` elements of each FP64 tensor."""
    accesses, (output, reduction) = instruction.operands, coalesced(instruction)
    own = [prod(d.size for d in output if d.strides[o]) for o in range(len(accesses))]
    swapped = len(own) == 2 and own[0] > own[1]
    if swapped:
        accesses = accesses[::-1]
        output, reduction = ([Dim(d.size, d.strides[::-1]) for d in dims] for dims in (output, reduction))
    parts = plan_parts(output, reduction, [a.offset for a in accesses], limit)
    return SumPlan(instruction, tuple(d.size for d in output), tuple(parts), swapped)


@dataclass(frozen=True)
class PlainSums:
    """Computes sums. With `shuffled`, the terms of every reduction are taken in a random order drawn from it."""

    shuffled: torch.Generator | None
    rounded: Round
    pieces: Pieces
    rooms: dict[str, Tensor] = field(default_factory=dict)

    def run(self, plan: SumPlan, operands: Operands, counts: Counts, near: Collector | None) -> Tensor:
        """The result, f32, contiguous, of the instruction's shape.

        `near` collects open elements that are not settled.
        """
        read, wide = operands[::-1] if plan.swapped else operands, plan.wide
        if len(plan.parts) == 1:
            return self._part(plan.parts[0], wide, read, counts, near).view(plan.instruction.shape)
        out = torch.empty(wide, dtype=torch.float32, device=operands[0].device)
        for part in plan.parts:
            place = tuple(slice(at, at + size) for at, size in zip(part.first, part.output, strict=True))
            out[place] = self._part(part, wide, read, counts, near)
        return out.view(plan.instruction.shape)

    def partial(self, plan: SumPlan, operands: Operands) -> Partial:
        """The FP64 sums, of a plan with one part, that `run` would round."""
        (part,) = plan.parts
        (sums, *sizes), roundings = self.sums(part, operands[::-1] if plan.swapped else operands)
        elements = torch.arange(sums.numel()).view(part.result_shape)
        if plan.swapped != is_swapped(coalesced(plan.instruction)[0]):
            sums, elements, sizes = sums.mT, elements.mT, sizes[::-1]
        numbers, which = part.numbers(elements.reshape(-1), plan.wide)
        source = np.empty(len(numbers), dtype=np.int64)
        source[numbers] = which
        return Partial(sums, tuple(sizes), roundings, source)

    def _part(
        self, part: ReducePart, shape: Sequence[int], operands: Sequence[Tensor], counts: Counts, near: Collector | None
    ) -> Tensor:
        c, bounds = self.bounded(part, operands, near)
        if len(bounds) == 1:
            result, undecided = decide(c, bounds[0], self.rounded)
        else:
            result, undecided = decide_outer(c, bounds[0], bounds[1], self.rounded, self.pieces.tested)
        Settler(self.rounded, counts, near, self.pieces.added).settle(
            result, undecided, c, partial(_errors, bounds), _Reader(part, operands),
            places=partial(part.numbers, shape=shape), count=part.terms,
            whole=partial(self.exact, part, operands, bounds) if part.is_product else None,
        )  # fmt: skip
        if part.order != tuple(range(len(part.order))):
            result = result.view([d.size for d in part.groups.result]).permute(part.order).contiguous()
        result = result.view(part.spread)
        return result if part.spread == part.output else result.expand(part.output).contiguous()

    def bounded(
        self, part: ReducePart, operands: Sequence[Tensor], near: Collector | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """C of a part, FP64 (Bt, M, N), and e: like C, or as factors (Bt, M) and (Bt, N) of an outer product."""
        (c, *sizes), roundings = self.sums(part, operands)
        # A single exact term has bound 0, and 0 times a non-finite size would be NaN.
        factor = coefficient(roundings) if part.terms > 1 else 0.0
        factor = factor if near is None else near.coefficient(factor)
        if len(sizes) == 1:
            return c, (sizes[0].mul_(factor),)
        return c, (sizes[0].sqrt_().mul_(factor), sizes[1].sqrt_())

    def sums(self, part: ReducePart, operands: Sequence[Tensor]) -> tuple[list[Tensor], int]:
        """C of a part, FP64 (Bt, M, N), and its sizes; and how many roundings a term passes through.

        The sizes are sums of absolute terms, like C; or those of squares, (Bt, M) and (Bt, N), of a product's rows and
        columns.
        """
        flat = not part.groups.m and not part.groups.n
        total: list[Tensor] = []
        deepest = 0
        for loads in part.slabs:
            loaded = [
                self._load(load, base, role) for load, base, role in zip(loads, operands, ("a", "b"), strict=False)
            ]
            found, depth = self._along(loaded) if flat else self._product(loaded[0], loaded[1])
            deepest = max(deepest, depth)
            total = [a.add_(b) for a, b in zip(total, found, strict=True)] if total else list(found)
        groups = part.groups
        # Summing ra and rb first adds a rounding to the path of each term, and makes products inexact.
        roundings = deepest + len(part.slabs) - 1 + size_of(groups.ra) + size_of(groups.rb)
        if groups.times > 1:
            roundings += 1
            total[0].mul_(float(groups.times))
            total[1].mul_(float(groups.times) ** (len(total) - 1))
        if flat:
            total = [x.view(part.result_shape) for x in total]
        return total, roundings

    def exact(self, part: ReducePart, operands: Sequence[Tensor], bounds: Sequence[Tensor], rows: Tensor) -> Tensor:
        """Some rows of a part that is a product, f32 (Bt, rows, N); NaN where the bounds are not finite."""
        loaded: tuple[list[Tensor], list[Tensor]] = ([], [])
        for loads in part.slabs:
            for load, base, pieces in zip(loads, operands, loaded, strict=True):
                pieces.append(load.view.on(base).expand(load.wide).reshape(load.shape[:3]))
        a, b = (pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2) for pieces in loaded)
        a = a if len(rows) == a.shape[1] else a[:, rows]
        found = multiply_exactly(a, b.transpose(1, 2), self.rounded)
        left, right = (bound.isfinite() for bound in bounds)
        if not bool(left.all() & right.all()):
            found.masked_fill_(~(left[:, rows, None] & right[:, None]), float("nan"))
        return found

    def _room(self, role: str, shape: Sequence[int], device: torch.device) -> Tensor:
        """Uninitialised FP64. On the host, each role reuses its memory: fresh pages cost more than the work."""
        if not self.pieces.on_host:
            return torch.empty(shape, dtype=torch.float64, device=device)
        count = prod(shape)
        room = self.rooms.get(role)
        if room is None or len(room) < count:
            room = self.rooms[role] = torch.empty(count, dtype=torch.float64)
        return room[:count].view(shape)

    def _load(self, load: OperandLoad, base: Tensor, role: str) -> tuple[Tensor, Tensor]:
        """An operand as FP64 (Bt, M or N, K), and bounds on the absolute values of its terms, up to signs."""
        read = load.view.on(base)
        if load.view.sizes != load.wide:
            read = read.expand(load.wide)
        lead, own, k, extra = load.shape
        if load.k_outside:
            read = read.permute(load.k_outside)
            x = self._room(role, read.shape, base.device).copy_(read).view(lead, k, extra, own).permute(0, 3, 1, 2)
        else:
            x = self._room(role, read.shape, base.device).copy_(read).view(load.shape)
        if load.shape[3] == 1:
            x = x[..., 0]
            return x, x
        x = self._mix(x, 3)
        return x.sum(3), x.abs().sum(3)

    def _mix(self, x: Tensor, dim: int, order: Tensor | None = None) -> Tensor:
        if self.shuffled is None:
            return x
        return x.index_select(dim, self._order(x.shape[dim], x.device) if order is None else order)

    def _order(self, count: int, device: torch.device) -> Tensor:
        assert self.shuffled is not None
        return torch.randperm(count, generator=self.shuffled, device=self.shuffled.device).to(device)

    def _along(self, loaded: Sequence[tuple[Tensor, Tensor]]) -> tuple[tuple[Tensor, Tensor], int]:
        """Sums without m and n: (C, sum of absolute terms), each (Bt, 1), and the additions on a term's path."""
        (x, x_size), *rest = loaded
        terms = self._mix(x * rest[0][0] if rest else x, 2)
        sizes = x_size * rest[0][1] if rest and (x is not x_size or rest[0][0] is not rest[0][1]) else terms
        return (terms.sum(2), sizes.abs().sum(2)), terms.shape[2]

    def _squares(self, x: Tensor) -> Tensor:
        """Sums of squares along the last dim."""
        if x.stride(2) == 1:
            norms: Tensor = torch.linalg.vector_norm(x, dim=2)
            return norms.square_()
        x = x.transpose(1, 2)
        return torch.mul(x, x, out=self._room("squares", x.shape, x.device)).sum(1)

    def _product(
        self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]
    ) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
        """(C (Bt, M, N), squared norms (Bt, M) and (Bt, N)) and the number of additions on a term's path."""
        (a, a_size), (b, b_size) = left, right
        squares = self._squares(a_size), self._squares(b_size)
        if self.shuffled is not None:
            order = self._order(a.shape[2], a.device)
            a, b = self._mix(a, 2, order), self._mix(b, 2, order)
        c, depth = multiply(a, b.transpose(1, 2))
        return (c, *squares), depth


def multiply(a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    """(Bt, M, K) times (Bt, K, N) in FP64, in blocks of K that are added plainly; and the additions per term."""
    batch, m, k = a.shape
    n = b.shape[2]
    if k == 1:
        return a * b, 1
    small = batch * m * n <= SMALL_OUTPUT
    block = max(SMALL_BLOCK if small else BLOCK, ceil(k / MAX_BLOCKS))
    if k <= 2 * block:
        return _matmul(a, b), k
    c = _matmul(a[:, :, :block], b[:, :block])
    for at in range(block, k, block):
        c += _matmul(a[:, :, at : at + block], b[:, at : at + block])
    return c, block + ceil(k / block)


def _errors(bounds: Sequence[Tensor], elements: Tensor) -> Tensor:
    """The errors e of some elements."""
    if len(bounds) == 1:
        return bounds[0].reshape(-1)[elements]
    left, right = bounds
    row = elements.div(right.shape[1], rounding_mode="floor")
    column = elements - (row - row.div(left.shape[1], rounding_mode="floor")) * right.shape[1]
    return left.reshape(-1)[row] * right.reshape(-1)[column]


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a[0], b[0])[None] if a.shape[0] == 1 else torch.bmm(a, b)
