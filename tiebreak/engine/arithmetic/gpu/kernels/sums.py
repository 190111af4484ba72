"""Plain sums, extremes and Ziv's test on GPUs: with `products.py` and `near_ties.py` the Triton twin of c/sums.c.

Only `gpu/sums.py` launches the kernels of these modules. `add_up` sums without rows and columns, `add_parts` joins the
parts of any sum, `find_greatest` finds extremes, and `finish` tests and lists. Each program computes one tile over one
part of the terms: FP32 is loaded, widened in registers, and multiplied in FP64.

**The bound** (`tiebreak.engine.arithmetic.plan.ziv` has the proof). A product of two f32 is exact in FP64. After FLUSH
terms the accumulator joins the total by a plain addition and starts again at zero, so a term passes through at most
FLUSH roundings, one for each flush, and one for each part: `gpu/sums.py` computes e's coefficient from this count.

**Prologues.** A plain sum or an extreme may have a chain (`kernels/chains.py`), of which its operand is the last
result. Then nothing is read where a term lies: the chain computes the element of that number. `settle` computes the
terms of listed elements once more, by the same operations, so they are the same terms. `a` is the tuple of pointers to
what the chain reads, CHAIN its program, and `numbers` and `notes` are its own, without notes where terms were noted.

**No contraction.** Kernels are compiled with `enable_fp_fusion=False`, and a test reads the machine code.
"""

import triton
import triton.language as tl

from tiebreak.engine.arithmetic.gpu.kernels.chains import compute
from tiebreak.engine.arithmetic.gpu.kernels.rounding import round_pair, round_to


@triton.jit
def is_loose(loose):
    """Whether FP64 computes a product, as integers would leave too much of it undecided."""
    return tl.load(loose) > 0


@triton.jit
def list_elements(undecided, number, found, room, listed):
    """Lists some elements of a tile as far as there is room; returns which are listed, and their places in the list."""
    at = tl.atomic_add(found + tl.zeros_like(number), 1, mask=undecided)
    kept = undecided & (at < room)
    tl.store(listed + at, number, mask=kept)
    return kept, at


@triton.jit
def finish(c, e, place, number, inside, out, found, room, listed, sums, errors, PRECISION: tl.constexpr):
    """Ziv's test of a tile: writes the results, and lists what is undecided, rounded from C until it is settled.

    The list has an element's number, row-major over (batch, m, n), and C and e where they are wanted. found: how many
    there are. Past the list's room only the count grows.
    """
    low, high = round_to(c - e, PRECISION), round_to(c + e, PRECISION)
    tl.store(out + place, tl.where(high == 0, 0.0, high), mask=inside)
    undecided = inside & ~(high <= low)  # so is NaN, of which no comparison is true
    if tl.sum(tl.ravel(undecided.to(tl.int32)), 0) > 0:
        if sums is None:
            tl.store(out + place, round_to(c, PRECISION) + 0.0, mask=undecided)
        kept, at = list_elements(undecided, number, found, room, listed)
        if sums is not None:
            tl.store(sums + at, c, mask=kept)
            tl.store(errors + at, e, mask=kept)


@triton.jit
def put_doubled(s, low, e, place, inside, out, PRECISION: tl.constexpr):
    """Rounds s + low +- e to their places where that decides; where it does not, and where `out` had it otherwise."""
    below, above = round_pair(s, low - e, PRECISION), round_pair(s, low + e, PRECISION)
    decided, value = inside & (above <= below), tl.where(above == 0, 0.0, above)
    differ = decided & (tl.load(out + place, mask=inside, other=0.0) != value)
    tl.store(out + place, value, mask=decided)
    return inside & ~decided, differ.to(tl.int32)


@triton.jit
def at_row(x, place, CHAIN: tl.constexpr):
    """The address of a place in an operand; the place itself if a chain computes what would lie there."""
    return x + place if CHAIN is None else place


@triton.jit
def element_of(place, used, chain, CHAIN: tl.constexpr):
    """What lies at a place as `at_row` returns them, 0 where it is not used. chain: pointers, notes and numbers."""
    if CHAIN is None:
        x = tl.load(place, mask=used, other=0.0)
    else:
        made = compute(chain[1], chain[0], chain[2], None, place, used, CHAIN, 0)
        last: tl.constexpr = len(CHAIN) - 2
        x = tl.where(used, made[last], 0)
    return x


@triton.jit
def load_terms(row, column, a_k, b_k, inside, term, end, run_k, chain, PAIRS: tl.constexpr, CHAIN: tl.constexpr):
    """Terms (elements, terms) in FP64 of elements whose operands begin at `row` and `column`; 0 from `end` on."""
    in_k = term < end
    used = inside[:, None] & in_k[None, :]
    skip = tl.load(a_k + term // run_k, mask=in_k, other=0) + term % run_k
    x = element_of(row[:, None] + skip[None, :], used, chain, CHAIN).to(tl.float64)
    if PAIRS:
        skip = tl.load(b_k + term // run_k, mask=in_k, other=0) + term % run_k
        x *= tl.load(column[:, None] + skip[None, :], mask=used, other=0.0).to(tl.float64)
    return x


@triton.jit(do_not_specialize=["room", "k", "batches", "step"], do_not_specialize_on_alignment=["run_batch", "run_k"])
def add_up(
    a, b, a_batch, a_k, b_batch, b_k,
    out, found, room, listed, sums, errors, sizes,
    run_batch, run_k, k, batches, step, coefficient, notes, numbers,
    PAIRS: tl.constexpr, A_STEP: tl.constexpr, B_STEP: tl.constexpr, CHAIN: tl.constexpr,
    PRECISION: tl.constexpr, LEAVE: tl.constexpr, FLUSH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Sums without m and n: BLOCK_M outputs of one part, in BLOCK_K lanes. Tables hold the first of each run.

    Output o is at place o. With PAIRS a term is a product. With LEAVE C goes to `sums` and the sum of absolute terms
    to `sizes`, both (part, batch).
    """
    tiles, task = (batches - 1) // BLOCK_M + 1, tl.program_id(0).to(tl.int64)
    tile, part = task % tiles, task // tiles
    o, t = tile * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    inside = o < batches
    row = at_row(a, tl.load(a_batch + o // run_batch, mask=inside, other=0) + o % run_batch * A_STEP, CHAIN)
    column, chain = row, (a, notes, numbers)
    if PAIRS:
        column = b + tl.load(b_batch + o // run_batch, mask=inside, other=0) + o % run_batch * B_STEP
    begin = (part * step).to(tl.int32)
    end = tl.minimum(begin + step, k)

    total = tl.zeros((BLOCK_M, BLOCK_K), tl.float64)
    size = tl.zeros((BLOCK_M, BLOCK_K), tl.float64)
    for first in range(begin, end, FLUSH * BLOCK_K):
        c = tl.zeros((BLOCK_M, BLOCK_K), tl.float64)
        for at in range(first, tl.minimum(first + FLUSH * BLOCK_K, end), BLOCK_K):
            x = load_terms(row, column, a_k, b_k, inside, at + t, end, run_k, chain, PAIRS, CHAIN)
            c += x
            size += tl.abs(x)
        total += c
    c, bound = tl.sum(total, 1), tl.sum(size, 1)

    if LEAVE:
        tl.store(sums + part * batches + o, c, mask=inside)
        tl.store(sizes + part * batches + o, bound, mask=inside)
    else:
        finish(c, bound * coefficient, o, o, inside, out, found, room, listed, sums, errors, PRECISION)


@triton.jit(do_not_specialize=["room", "m", "n", "batches", "parts", "cuts"])
def add_parts(
    left, sizes, out_batch, out_m, out_n,
    out, found, room, listed, sums, errors, loose,
    m, n, batches, parts, cuts, coefficient,
    MATRIX: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds, tests and rounds what other kernels left of the parts of some elements: of products, if MATRIX.

    Sizes are of `cuts` pieces of the terms, which need not be the parts.
    """
    o, elements = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK), batches * m * n
    inside = o < elements
    if loose is not None:
        inside = inside & is_loose(loose)
    c, size = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    other, place = size, o
    if MATRIX:
        batch, i, j = o // n // m, o // n % m, o % n
        place = tl.load(out_batch + batch, mask=inside, other=0) + tl.load(out_m + i, mask=inside, other=0)
        place += tl.load(out_n + j, mask=inside, other=0)
    for part in range(parts):
        c += tl.load(left + part * elements + o, mask=inside, other=0.0)
    for cut in range(cuts):
        if MATRIX:
            squares = sizes + (cut * batches + batch) * (m + n)
            size += tl.load(squares + i, mask=inside, other=0.0)
            other += tl.load(squares + m + j, mask=inside, other=0.0)
        else:
            size += tl.load(sizes + cut * elements + o, mask=inside, other=0.0)
    e = tl.sqrt(size) * coefficient * tl.sqrt(other) if MATRIX else size * coefficient
    finish(c, e, place, o, inside, out, found, room, listed, sums, errors, PRECISION)


@triton.jit
def packed_of(x, term):
    bits = x.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    order = tl.where(x == 0, 0, tl.where(x == x, order, 0x7FFFFFFF)).to(tl.int64)
    return (order << 32) + (0xFFFFFFFF - term[None, :].to(tl.int64))


@triton.jit(do_not_specialize=["k", "batches", "step"], do_not_specialize_on_alignment=["run_batch", "run_k"])
def find_greatest(
    a, a_batch, a_k, out, packed, run_batch, run_k, k, batches, step, notes, numbers,
    A_STEP: tl.constexpr, CHAIN: tl.constexpr, PLACE: tl.constexpr, LEAVE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The greatest of the terms of BLOCK_M outputs, or with PLACE which it is: NaN above all, of equals the first.

    An f32 is packed as 2^32 times a number that is ordered as f32 are, and 2^32 - 1 less its position. With LEAVE the
    greatest goes to `packed` (part, batch). An i64 is its own number.
    """
    tiles, task = (batches - 1) // BLOCK_M + 1, tl.program_id(0).to(tl.int64)
    tile, part = task % tiles, task // tiles
    o, t = tile * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    inside = o < batches
    row = at_row(a, tl.load(a_batch + o // run_batch, mask=inside, other=0) + o % run_batch * A_STEP, CHAIN)
    begin = (part * step).to(tl.int32)
    end = tl.minimum(begin + step, k)
    best = tl.full((BLOCK_M, BLOCK_K), -(1 << 63), tl.int64)
    for at in range(begin, end, BLOCK_K):
        term = at + t
        in_k = term < end
        used = inside[:, None] & in_k[None, :]
        skip = tl.load(a_k + term // run_k, mask=in_k, other=0) + term % run_k
        found = element_of(row[:, None] + skip[None, :], used, (a, notes, numbers), CHAIN)
        if found.dtype != tl.int64:
            found = packed_of(found.to(tl.float32), term)
        best = tl.where(used, tl.maximum(best, found), best)
    greatest = tl.max(best, 1)
    if LEAVE:
        tl.store(packed + part * batches + o, greatest, mask=inside)
    elif out.dtype.element_ty == tl.int64 and not PLACE:
        tl.store(out + o, greatest, mask=inside)
    elif PLACE:
        tl.store(out + o, 0xFFFFFFFF - (greatest & 0xFFFFFFFF), mask=inside)
    else:
        order = (greatest >> 32).to(tl.int32)
        bits = tl.where(order < 0, order ^ 0x7FFFFFFF, order)
        tl.store(out + o, bits.to(tl.float32, bitcast=True), mask=inside)
