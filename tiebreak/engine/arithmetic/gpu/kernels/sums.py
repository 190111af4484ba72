"""Sums of products, plain sums and extremes on GPUs: the Triton twin of c/sums.c. Only `gpu/sums.py` uses this module.

An element is sum over k of a[a_batch + a_m + a_k] * b[b_batch + b_n + b_k], the offsets being tables, as in c/sums.c.
Each program computes one tile over one part of the terms: FP32 is loaded, widened in registers, and multiplied in FP64.

`product` copies tiles two steps ahead. Where the tables of an operand are 0, step, 2 step ..., and terms or rows have
the step 1, it does without them and copies 16 bytes at a time; else it reads places two steps before the copies, and
is told how many lie side by side.

**The bound** (`tiebreak.engine.arithmetic.plan.ziv` has the proof). A product of two f32 is exact in FP64. After FLUSH
terms the accumulator joins the total by a plain addition and starts again at zero, so a term passes through at most
FLUSH roundings, one for each flush, and one for each part: `gpu/sums.py` computes e's coefficient from this count. How
a matrix unit orders the terms of a flush does not matter, as long as each step is a correctly rounded FMA or addition.
Squares of f32 are exact too; the sums of squares need no flush, because the proof allows them 2K + 8 roundings.

Squares are added by `norms`, in lanes, lanes in pairs, and cuts of the terms one by one: fewer than K + 8 additions
each, in an order that the proof leaves open.

**Twice.** Where one element in `MANY` is undecided, a matrix product is computed again in doubled precision. Let 2^E
be above all factors of a row, and q = 2^(E - 22). Each is cut into x1, the nearest multiple of q, at most 2^E, and x2,
at most q / 2, both exact; so are the columns' y1 and y2, with q'. A sum of 2^8 products x1 y1 consists of multiples of
q q' and is at most 2^52 q q', so in FP64 it is exact. K <= 2^30 terms are at most 2^22 such sums (FLUSH = 2^8), which
TwoSum adds: its errors are multiples of q q' too, at most 2^21 q q' each and 2^43 q q' together, so they add exactly.
The rest, x1 y2 + x2 y, is summed plainly: 2K products, exact in FP64, whose sizes add up to |x1| |y2| + |x2| |y| at
most, by norms. How the three sums are joined and tested is proven for `doubled` in `ziv`.

Where few bits lie below the cuts, the rest is exact too, e is 0, and ties are decided. If all x are multiples of p, a
power of two, so are x1 (which is x if p > q) and x2. Then all is a multiple of p p'. The terms of the rest are at most
2^22 K q q' together, and TwoSum's errors, of K / 2^8 sums, 2^13 K q q'; what the last one leaves of both sums of
multiples is no more than the lesser. If K q q' <= 2^30 p p', these are below 2^53 p p' together, and add exactly.

**By TwoSum.** Where fewer elements are undecided, `settle` sums the terms of each again by TwoSum, and the errors of
its additions plainly; `ziv` has the proof. With B lanes, an error passes through one addition for each B of K terms,
and through two for each lane that joins its own: fewer than K / B + 1 + 2B, in any order.

**Exactly.** What all tests leave open is summed again in fixed point, in the same launch. A term is a multiple of
2^-298 below 2^256, and is cut from above into slices. With q = 2^(48 j - 298), S = 1.5 * 2^52 q and |x| < 2^51 q,
S + x lies in the binade of S, whose ulp is q, so fl(x + S) is S + n q with n q nearest to x; n is the difference of its
pattern, read as an integer, and that of S. What is left, x - n q, is exact and at most q / 2 = 2^47 (q / 2^48): it fits
the next slice, |n| <= 2^47, and after the lowest slice it is 0. In the highest, |n| <= 2^42.

The lanes of an element add the patterns of at most 2^15 terms. The sum of n, at most 2^62, is the difference to as many
patterns of S, modulo 2^64. Integers add exactly in any order. What does not fit a signed digit of 48 bits, of weight
2^(48 j - 298), is then carried into the next one; a sum of 2^30 terms has one digit more than a term has slices. A few
long sums are divided among programs, at most 2^20, which add their digits in memory by atomic additions, in halves of
24 bits, so that sums of these are below 2^53; another kernel rounds them.

**Prologues.** A plain sum or an extreme may have a chain (`kernels/chains.py`), of which its operand is the last
result. Then nothing is read where a term lies: the chain computes the element of that number. `settle` computes the
terms of listed elements once more, by the same operations, so they are the same terms. `a` is the tuple of pointers to
what the chain reads, CHAIN its program, and `numbers` and `notes` are its own, without notes where terms were noted.

**No contraction.** Kernels are compiled with `enable_fp_fusion=False`, and a test reads the machine code.
"""

import triton
import triton.language as tl

from tiebreak.engine.arithmetic.gpu.kernels.chains import compute
from tiebreak.engine.arithmetic.gpu.kernels.rounding import round_pair, round_to, to_odd, two_sum


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
def whole(x, UNIT: tl.constexpr):
    """x, of which the host says that it is a multiple of UNIT, in a form that shows the compiler that it is one."""
    return x // UNIT * UNIT


@triton.jit
def listed_at(table, i, inside, RUN: tl.constexpr, UNIT: tl.constexpr):
    """The places of rows or terms i in a table.

    The host says that each RUN of them, counted from a multiple of RUN, lie side by side, and that the first of a run
    is at a multiple of UNIT. Only that one is read, so what the compiler is told of the others is so.
    """
    first = whole(tl.load(table + i // RUN * RUN, mask=inside, other=0), UNIT)
    return tl.max_contiguous(first + i % RUN, RUN)


@triton.jit
def at_rows(x, table, i, inside, step, t, ALONG: tl.constexpr, RUN: tl.constexpr, UNIT: tl.constexpr):
    """The addresses of rows i, from a table, or of terms t in them where the places of both have steps.

    Where terms (ALONG) or rows lie side by side, `step` is the other's.
    """
    if table is not None:
        source = x + listed_at(table, i, inside, 1 if ALONG else RUN, UNIT)[:, None]
    elif ALONG:
        source = x + i[:, None] * step + t[None, :]
    else:
        source = x + i[:, None] + t[None, :] * step
    return source


@triton.jit
def at_terms(row, table, term, inside, ALONG: tl.constexpr, RUN: tl.constexpr, UNIT: tl.constexpr):
    """The addresses of terms in rows; the rows' own where places have steps, which a loop adds."""
    source = row
    if table is not None:
        source += listed_at(table, term, inside, RUN if ALONG else 1, UNIT)[None, :]
    return source


@triton.jit
def squared(
    x, to, own, terms, i, rows, begin, end, step,
    ALONG: tl.constexpr, RUN: tl.constexpr, UNIT: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Stores the sums of squares of terms begin ... end - 1 of rows i."""
    step, in_m, t = whole(step.to(tl.int64), UNIT), i < (rows if ALONG else whole(rows, UNIT)), tl.arange(0, BLOCK_K)
    end = whole(end, UNIT) if ALONG else end
    total = tl.zeros((i.shape[0], BLOCK_K), tl.float64)
    source = at_rows(x, own, i, in_m, step, begin + t, ALONG, RUN, UNIT)
    for at in range(begin, end, BLOCK_K):
        in_k = at + t < end
        place = at_terms(source, terms, at + t, in_k, ALONG, RUN, UNIT)
        v = tl.load(place, mask=in_m[:, None] & in_k[None, :], other=0.0).to(tl.float64)
        total += v * v
        if terms is None:
            source += BLOCK_K if ALONG else BLOCK_K * step
    tl.store(to + i, tl.sum(total, 1), mask=i < rows)


@triton.jit(do_not_specialize=["m", "n", "k", "batches", "cut", "a_step", "b_step"])
def norms(
    a, b, a_batch, a_m, a_k, b_batch, b_n, b_k, sizes, loose, m, n, k, batches, cut, a_step, b_step,
    A_ALONG: tl.constexpr, B_ALONG: tl.constexpr, A_RUN: tl.constexpr, B_RUN: tl.constexpr,
    A_UNIT: tl.constexpr, B_UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Squared norms of the rows and columns of a `product`, to `sizes` (cut, batch, m + n).

    A program takes BLOCK_M rows or columns of one batch, and at most `cut` of their terms.
    """
    rows, tiles = tl.cdiv(m, BLOCK_M), tl.cdiv(m, BLOCK_M) + tl.cdiv(n, BLOCK_M)
    tile, which = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, begin = which % batches, which // batches * whole(cut, 16)
    end = tl.minimum(begin + cut, k)
    if loose is not None:
        end = tl.where(is_loose(loose), end, begin)
    to = sizes + which.to(tl.int64) * (m + n)
    if tile < rows:
        x, i = a + whole(tl.load(a_batch + batch), A_UNIT), tile * BLOCK_M + tl.arange(0, BLOCK_M)
        squared(x, to, a_m, a_k, i, m, begin, end, a_step, A_ALONG, A_RUN, A_UNIT, BLOCK_K)
    else:
        x, i = b + whole(tl.load(b_batch + batch), B_UNIT), (tile - rows) * BLOCK_M + tl.arange(0, BLOCK_M)
        squared(x, to + m, b_n, b_k, i, n, begin, end, b_step, B_ALONG, B_RUN, B_UNIT, BLOCK_K)


@triton.jit
def squares_of(sizes, i, inside, cuts, width):
    """The sums of the squares that `norms` left of all cuts."""
    total = tl.zeros_like(i).to(tl.float64)
    for _ in range(cuts):
        total += tl.load(sizes + i, mask=inside, other=0.0)
        sizes += width
    return total


@triton.jit(do_not_specialize=["room", "m", "n", "k", "batches", "cuts", "step", "a_step", "b_step", "out_step"])
def product(
    a, b, a_batch, a_m, a_k, b_batch, b_n, b_k, out_batch, out_m, out_n,
    out, found, room, listed, sums, errors, sizes, loose,
    m, n, k, batches, cuts, step, a_step, b_step, out_step, coefficient,
    A_ALONG: tl.constexpr, B_ALONG: tl.constexpr, A_RUN: tl.constexpr, B_RUN: tl.constexpr,
    A_UNIT: tl.constexpr, B_UNIT: tl.constexpr, PRECISION: tl.constexpr, LEAVE: tl.constexpr, FLUSH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile (BLOCK_M, BLOCK_N) of one batch, over one part of at most `step` terms. `norms` has left the squares.

    Of each operand there are tables of rows and of terms, or a step. Of the result there are tables too, or the step
    of its rows, whose elements lie side by side. Programs take GROUP tiles of a column after each other, which share
    lines. With LEAVE nothing is rounded: C goes to `sums` (part, batch, m, n). Nothing is done where `loose` says that
    integers compute the product (`kernels/integers.py`).
    """
    rows, columns = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    tile, which = tl.program_id(0) % (rows * columns), tl.program_id(0) // (rows * columns)
    batch, begin = which % batches, which // batches * whole(step, 16)
    first = tile // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)
    tile = tile % (GROUP * columns)
    top, left_most = (first + tile % height) * BLOCK_M, tile // height * BLOCK_N
    i, j = top + tl.arange(0, BLOCK_M), left_most + tl.arange(0, BLOCK_N)
    end, t = tl.minimum(begin + step, k), tl.arange(0, BLOCK_K)
    if loose is not None:
        end = tl.where(is_loose(loose), end, begin)
    a_end, b_end = whole(end, A_UNIT) if A_ALONG else end, whole(end, B_UNIT) if B_ALONG else end
    in_m, in_n = i < (m if A_ALONG else whole(m, A_UNIT)), j < (n if B_ALONG else whole(n, B_UNIT))
    a_step, b_step = whole(a_step.to(tl.int64), A_UNIT), whole(b_step.to(tl.int64), B_UNIT)
    a += whole(tl.load(a_batch + batch), A_UNIT)
    b += whole(tl.load(b_batch + batch), B_UNIT)
    left = at_rows(a, a_m, i, in_m, a_step, begin + t, A_ALONG, A_RUN, A_UNIT)
    right = at_rows(b, b_n, j, in_n, b_step, begin + t, B_ALONG, B_RUN, B_UNIT)

    total, c = tl.zeros((BLOCK_M, BLOCK_N), tl.float64), tl.zeros((BLOCK_M, BLOCK_N), tl.float64)
    for at in range(begin, end, BLOCK_K):
        in_a, in_b = at + t < a_end, at + t < b_end
        x = tl.load(
            at_terms(left, a_k, at + t, in_a, A_ALONG, A_RUN, A_UNIT), mask=in_m[:, None] & in_a[None, :], other=0.0
        )
        y = tl.load(
            tl.trans(at_terms(right, b_k, at + t, in_b, B_ALONG, B_RUN, B_UNIT)),
            mask=in_b[:, None] & in_n[None, :], other=0.0,
        )  # fmt: skip
        c = tl.dot(x.to(tl.float64), y.to(tl.float64), c, out_dtype=tl.float64)
        if a_k is None:
            left += BLOCK_K if A_ALONG else BLOCK_K * a_step
        if b_k is None:
            right += BLOCK_K if B_ALONG else BLOCK_K * b_step
        if (at + BLOCK_K - begin) % FLUSH == 0:
            total += c
            c = tl.zeros((BLOCK_M, BLOCK_N), tl.float64)
    total += c

    # Computed again in 64 bits, so that nothing of this lives in registers through the loop.
    i, j = top.to(tl.int64) + tl.arange(0, BLOCK_M), left_most.to(tl.int64) + tl.arange(0, BLOCK_N)
    in_m, in_n, which, batch = i < m, j < n, which.to(tl.int64), batch.to(tl.int64)
    inside = in_m[:, None] & in_n[None, :]
    if loose is not None:
        inside = inside & is_loose(loose)
    if LEAVE:
        tl.store(sums + (which * m + i[:, None]) * n + j[None, :], total, mask=inside)
    else:
        sizes += batch * (m + n)
        e = (tl.sqrt(squares_of(sizes, i, in_m, cuts, batches * (m + n))) * coefficient)[:, None]
        e = e * tl.sqrt(squares_of(sizes + m, j, in_n, cuts, batches * (m + n)))[None, :]
        place = tl.load(out_batch + batch)
        if out_m is None:
            place += i[:, None] * out_step + j[None, :]
        else:
            place += tl.load(out_m + i, mask=in_m, other=0)[:, None] + tl.load(out_n + j, mask=in_n, other=0)[None, :]
        number = (batch * m + i[:, None]) * n + j[None, :]
        finish(total, e, place, number, inside, out, found, room, listed, sums, errors, PRECISION)


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
    tiles, task = tl.cdiv(batches, BLOCK_M), tl.program_id(0).to(tl.int64)
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
        batch, i, j = o // (m * n), o // n % m, o % n
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


# ---- twice ----


@triton.jit
def lowest(x, least):
    """The lesser of `least` and the highest power of two of which x, f32, is a multiple, or half of that."""
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    others = (bits & (bits - 1)).to(tl.float32, bitcast=True)
    return tl.where(bits == 0, least, tl.minimum(least, tl.abs(x) - others))


@triton.jit
def cutting(peak):
    """1.5 * 2^(52 + E - 22) for the least E >= -126 with 2^E above some f32 sizes."""
    exponent = (peak.to(tl.int32, bitcast=True) >> 23).to(tl.int64) - 126
    return (((1023 + 52 - 22 + exponent) << 52) + (1 << 51)).to(tl.float64, bitcast=True)


@triton.jit(do_not_specialize=["m", "n", "k", "batches", "elements"])
def contract_twice(
    a, b, a_batch, a_m, a_k, b_batch, b_n, b_k, out_batch, out_m, out_n,
    out, found, listed, counters,
    m, n, k, batches, elements, coefficient,
    PRECISION: tl.constexpr, MANY: tl.constexpr, FLUSH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Does nothing if few of a product's elements are undecided. Else computes all again, in doubled precision.

    found: how many the list had. The list begins anew with what this leaves undecided, whose number goes to found + 1.
    Any number of programs share the tiles.
    """
    rows, columns = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    tiles = tl.where(tl.load(found) * MANY < elements, 0, batches * rows * columns)
    t, differ = tl.arange(0, BLOCK_K), tl.zeros((BLOCK_M,), tl.int64)
    for task in range(tl.program_id(0).to(tl.int64), tiles, tl.num_programs(0)):
        tile_n, tile_m, batch = task % columns, task // columns % rows, task // (columns * rows)
        i, j = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        in_m, in_n = i < m, j < n
        row = a + tl.load(a_batch + batch) + tl.load(a_m + i, mask=in_m, other=0)
        column = b + tl.load(b_batch + batch) + tl.load(b_n + j, mask=in_n, other=0)
        peak_a, peak_b = tl.zeros((BLOCK_M, BLOCK_K), tl.float32), tl.zeros((BLOCK_K, BLOCK_N), tl.float32)
        least_a, least_b = peak_a + float("inf"), peak_b + float("inf")
        for at in range(0, k, BLOCK_K):
            in_k = at + t < k
            left = row[:, None] + tl.load(a_k + at + t, mask=in_k, other=0)[None, :]
            right = column[None, :] + tl.load(b_k + at + t, mask=in_k, other=0)[:, None]
            x = tl.load(left, mask=in_m[:, None] & in_k[None, :], other=0.0)
            y = tl.load(right, mask=in_k[:, None] & in_n[None, :], other=0.0)
            peak_a, peak_b = tl.maximum(peak_a, tl.abs(x)), tl.maximum(peak_b, tl.abs(y))
            least_a, least_b = lowest(x, least_a), lowest(y, least_b)
        cut_a, cut_b = cutting(tl.max(peak_a, 1))[:, None], cutting(tl.max(peak_b, 0))[None, :]
        units = tl.min(least_a, 1).to(tl.float64)[:, None] * tl.min(least_b, 0).to(tl.float64)[None, :]
        exact = cut_a * cut_b * k <= units * (2.25 * 2.0**134)  # cuts are 1.5 * 2^52 q

        high, low = tl.zeros((BLOCK_M, BLOCK_N), tl.float64), tl.zeros((BLOCK_M, BLOCK_N), tl.float64)
        rest = tl.zeros((BLOCK_M, BLOCK_N), tl.float64)
        squares_x1, squares_x2 = tl.zeros((BLOCK_M, BLOCK_K), tl.float64), tl.zeros((BLOCK_M, BLOCK_K), tl.float64)
        squares_y, squares_y2 = tl.zeros((BLOCK_K, BLOCK_N), tl.float64), tl.zeros((BLOCK_K, BLOCK_N), tl.float64)
        for first in range(0, k, FLUSH):
            c = tl.zeros((BLOCK_M, BLOCK_N), tl.float64)
            for at in range(first, tl.minimum(first + FLUSH, k), BLOCK_K):
                in_k = at + t < k
                left = row[:, None] + tl.load(a_k + at + t, mask=in_k, other=0)[None, :]
                right = column[None, :] + tl.load(b_k + at + t, mask=in_k, other=0)[:, None]
                x = tl.load(left, mask=in_m[:, None] & in_k[None, :], other=0.0).to(tl.float64)
                y = tl.load(right, mask=in_k[:, None] & in_n[None, :], other=0.0).to(tl.float64)
                x1, y1 = (x + cut_a) - cut_a, (y + cut_b) - cut_b
                x2, y2 = x - x1, y - y1
                squares_x1 += x1 * x1
                squares_x2 += x2 * x2
                squares_y += y * y
                squares_y2 += y2 * y2
                c = tl.dot(x1, y1, c, out_dtype=tl.float64)
                rest = tl.dot(x1, y2, rest, out_dtype=tl.float64)
                rest = tl.dot(x2, y, rest, out_dtype=tl.float64)
            high, error = two_sum(high, c)
            low += error

        size = tl.sqrt(tl.sum(squares_x1, 1))[:, None] * tl.sqrt(tl.sum(squares_y2, 0))[None, :]
        size += tl.sqrt(tl.sum(squares_x2, 1))[:, None] * tl.sqrt(tl.sum(squares_y, 0))[None, :]
        s, tail = two_sum(high, low)
        tail += rest
        e = tl.where(exact, 0.0, size * coefficient + tl.abs(tail) * 2.0**-51)
        below, above = round_pair(s, tail - e, PRECISION), round_pair(s, tail + e, PRECISION)
        inside = in_m[:, None] & in_n[None, :]
        to_m, to_n = tl.load(out_m + i, mask=in_m, other=0), tl.load(out_n + j, mask=in_n, other=0)
        place = tl.load(out_batch + batch) + to_m[:, None] + to_n[None, :]
        decided = inside & (above <= below) & (size == size)
        value = tl.where(above == 0, 0.0, above)
        differ += tl.sum((decided & (tl.load(out + place, mask=inside, other=0.0) != value)).to(tl.int64), 1)
        tl.store(out + place, value, mask=decided)
        at = tl.atomic_add(found + 1 + tl.zeros_like(place), 1, mask=inside & ~decided)
        tl.store(listed + at, (batch * m + i[:, None]) * n + j[None, :], mask=inside & ~decided)
    if tl.program_id(0) < tiles:
        tl.atomic_add(counters + 3, tl.sum(differ, 0))


@triton.jit
def join(s, low, size, s2, low2, size2):
    """The sum of two sums in doubled precision, as `add_doubled` returns them."""
    s, error = two_sum(s, s2)
    return s, low + low2 + error, size + size2 + tl.abs(error)


@triton.jit
def add_doubled(
    row, column, a_k, b_k, inside, k, run_k, chain,
    PAIRS: tl.constexpr, CHAIN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Sums of the terms of BLOCK_M elements, of the errors of their additions, and of the sizes of these errors."""
    # Backwards, Triton sees no places side by side in the tables, so their entries are loaded into the lanes that need
    # them. Else they would pass through shared memory, with four barriers in each step.
    s, t = tl.zeros((BLOCK_M, BLOCK_K), tl.float64), BLOCK_K - 1 - tl.arange(0, BLOCK_K)
    low, size = s, s
    for at in range(0, k, BLOCK_K):
        s, error = two_sum(s, load_terms(row, column, a_k, b_k, inside, at + t, k, run_k, chain, PAIRS, CHAIN))
        low += error
        size += tl.abs(error)
    return tl.reduce((s, low, size), 1, join)


@triton.jit
def put_doubled(s, low, e, place, inside, out, PRECISION: tl.constexpr):
    """Rounds s + low +- e to their places where that decides; where it does not, and where `out` had it otherwise."""
    below, above = round_pair(s, low - e, PRECISION), round_pair(s, low + e, PRECISION)
    decided, value = inside & (above <= below), tl.where(above == 0, 0.0, above)
    differ = decided & (tl.load(out + place, mask=inside, other=0.0) != value)
    tl.store(out + place, value, mask=decided)
    return inside & ~decided, differ.to(tl.int32)


# ---- exactly ----

SAFE: tl.constexpr = tl.constexpr(1 << 15)
"""The most terms that all lanes of an element together may add before carries."""


@triton.jit
def zeros(SHAPE: tl.constexpr, COUNT: tl.constexpr):
    """A tuple of COUNT tensors of i64, all 0: digits or slices of a block before the first term."""
    made = ()
    for _ in tl.static_range(COUNT):
        made = made + (tl.zeros(SHAPE, tl.int64),)
    return made


@triton.jit
def add_slices(sums, x, FIRST: tl.constexpr, SLICES: tl.constexpr):
    """Adds the slices of finite FP64 numbers to their sums, as the patterns of x + S; the highest comes first."""
    added = ()
    for j in tl.static_range(SLICES):
        shift = 1.5 * 2.0 ** (52 - 298 + 48 * (FIRST + SLICES - 1 - j))
        shifted = x + shift
        x -= shifted - shift
        added = added + (sums[j] + shifted.to(tl.int64, bitcast=True),)
    return added


@triton.jit
def add_digits(digits, sums, terms, FIRST: tl.constexpr, SLICES: tl.constexpr):
    """Adds the slices of some terms, empty lanes included, to the digits, from the lowest one, and carries."""
    added, over = (), digits[0] * 0
    for j in tl.static_range(SLICES):
        pattern = ((1023 + 52 - 298 + 48 * (FIRST + j)) << 52) + (1 << 51)
        n = digits[j] + over + (tl.sum(sums[SLICES - 1 - j], 1) - terms.to(tl.int64) * pattern)
        over = (n + (1 << 47)) >> 48  # rounded: digits are signed
        added = added + (n - (over << 48),)
    return added + (digits[SLICES] + over,)


@triton.jit
def round_digits(digits, FIRST: tl.constexpr, SLICES: tl.constexpr, PRECISION: tl.constexpr):
    """RN of sums in digits of 48 bits, as `round_bins` of exact.h; zero is +0."""
    zero = digits[0] * 0
    last, rest, top, under, below, place = zero, zero, zero, zero, zero, zero
    for j in tl.static_range(SLICES + 1):
        digit = digits[j]
        found = digit != 0
        top, under = tl.where(found, digit, top), tl.where(found, last, under)
        below, place = tl.where(found, rest, below), tl.where(found, FIRST + j, place)
        rest = tl.where(last != 0, last, rest)
        last = digit
    half = tl.where(below < 0, -0.5, tl.where(below > 0, 0.5, 0.0)).to(tl.float64)
    s, x = top.to(tl.float64) * 2.0**48, under.to(tl.float64) + half
    h, left = two_sum(s, x)
    odd = to_odd(h, left)
    unit = ((48 * place + (1023 - 298 - 48)) << 52).to(tl.float64, bitcast=True)
    return round_to(odd * unit, PRECISION) + 0.0


@triton.jit
def put_exact(digits, good, place, inside, out, FIRST: tl.constexpr, SLICES: tl.constexpr, PRECISION: tl.constexpr):
    """Rounds sums in digits to their places, NaN where not `good`; which are good, and which `out` had otherwise."""
    value = tl.where(good, round_digits(digits, FIRST, SLICES, PRECISION), float("nan"))
    good &= inside
    differ = good & (tl.load(out + place, mask=inside, other=0.0) != value)
    tl.store(out + place, value, mask=inside)
    return good.to(tl.int32), differ.to(tl.int32)


@triton.jit
def share_digits(held, good, to, room, inside, SLICES: tl.constexpr):
    """Adds digits of 48 bits to those of slots, of 24 bits, and marks the slots whose terms are not all finite."""
    for j in tl.static_range(SLICES):
        high = held[j] >> 24
        if j == SLICES - 1:
            high += held[SLICES] << 24
        tl.atomic_add(to, held[j] & 0xFFFFFF, mask=inside)
        tl.atomic_add(to + room, high, mask=inside)
        to += 2 * room
    tl.atomic_add(to, 1, mask=inside & ~good)


@triton.jit
def count_settled(counters, exact, differ, count, BLOCK: tl.constexpr):
    """Adds to the counts of settled elements, if this program had any of `count`."""
    if tl.program_id(0) * BLOCK < count:
        tl.atomic_add(counters + 2, tl.sum(exact, 0))
        tl.atomic_add(counters + 3, tl.sum(differ, 0))


@triton.jit
def left_of(found, elements, MANY: tl.constexpr):
    """How many elements are listed: `contract_twice` has listed anew where it was due."""
    undecided = tl.load(found)
    return tl.where(undecided * MANY < elements, undecided, tl.load(found + 1))  # with MANY = 0 the first


@triton.jit(do_not_specialize=["elements", "room"])
def round_listed(
    digits, spoiled, out_batch, out_m, out_n, out, found, listed, counters, m, n, elements, room,
    MATRIX: tl.constexpr, FIRST: tl.constexpr, SLICES: tl.constexpr, PRECISION: tl.constexpr, MANY: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Rounds the sums of listed elements, in digits of 24 bits (digit, slot); nothing where there are more than slots.

    Any number of programs share the list. spoiled: 0 for each slot whose terms are all finite, as all are where it is
    null.
    """
    exact, differ = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32)
    count = left_of(found, elements, MANY)
    count = tl.where(count <= room, count, 0)
    for first in range(tl.program_id(0).to(tl.int64) * BLOCK, count, tl.num_programs(0) * BLOCK):
        slot = first + tl.arange(0, BLOCK)
        inside = slot < count
        place = tl.load(listed + slot, mask=inside, other=0).to(tl.int64)
        if MATRIX:
            batch, i, j = place // (m * n), place // n % m, place % n
            place = tl.load(out_batch + batch) + tl.load(out_m + i) + tl.load(out_n + j)
        good = inside
        if spoiled is not None:
            good = inside & (tl.load(spoiled + slot, mask=inside, other=0) == 0)
        held, over, digit = (), tl.zeros((BLOCK,), tl.int64), digits + slot
        for _ in tl.static_range(SLICES):
            low, high = tl.load(digit, mask=inside, other=0), tl.load(digit + room, mask=inside, other=0)
            # The lowest bits of a sum are right, whatever leaves the 64; it is rounded, since digits are signed.
            held = held + (((over + low + (high << 24)) << 16) >> 16,)
            over = (high + ((low + over) >> 24) + (1 << 23)) >> 24
            digit += 2 * room
        settled, otherwise = put_exact(held + (over,), good, place, inside, out, FIRST, SLICES, PRECISION)
        exact += settled
        differ += otherwise
    if counters is not None:
        count_settled(counters, exact, differ, count, BLOCK)


@triton.jit
def add_exactly(
    row, column, a_k, b_k, inside, begin, until, run_k, chain,
    PAIRS: tl.constexpr, CHAIN: tl.constexpr, FIRST: tl.constexpr, SLICES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The digits of the sums of terms begin ... until - 1 of BLOCK_M elements, and whether these terms are finite."""
    t, digits = tl.arange(0, BLOCK_K), zeros((BLOCK_M,), SLICES + 1)
    finite = tl.full((BLOCK_M, BLOCK_K), 1, tl.int32)
    for start in range(begin, until, SAFE):
        sums, end = zeros((BLOCK_M, BLOCK_K), SLICES), tl.minimum(start + SAFE, until)
        for at in range(start, end, BLOCK_K):
            x = load_terms(row, column, a_k, b_k, inside, at + t, end, run_k, chain, PAIRS, CHAIN)
            finite = tl.where(tl.abs(x) < 2.0**256, finite, 0)
            sums = add_slices(sums, x, FIRST, SLICES)
        digits = add_digits(digits, sums, tl.cdiv(end - start, BLOCK_K) * BLOCK_K, FIRST, SLICES)
    return digits, tl.min(finite, 1) > 0


@triton.jit(
    do_not_specialize=["m", "n", "k", "elements", "room"], do_not_specialize_on_alignment=["run_batch", "run_k"]
)
def settle(
    a, b, a_batch, a_m, a_k, b_batch, b_n, b_k, out_batch, out_m, out_n,
    out, found, listed, counters, digits,
    m, n, run_batch, run_k, k, elements, room, coefficient, numbers,
    MATRIX: tl.constexpr, PAIRS: tl.constexpr, CHAIN: tl.constexpr, A_STEP: tl.constexpr, B_STEP: tl.constexpr,
    FIRST: tl.constexpr, SLICES: tl.constexpr, PRECISION: tl.constexpr, MANY: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Writes the exact results of the `found` elements that are listed; NaN where a term is not finite.

    Any number of programs share the list. counters: elements of the result (`elements` are added), listed ones, those
    summed in fixed point whose terms are finite, and those rounded otherwise from C; or null. If no more than `room`
    elements are listed, nothing is tried before fixed point: programs share the terms too, add to `digits` (digit,
    slot), and mark in a last row the elements whose terms are not all finite; `round_listed` does the rest.
    """
    count, lane = left_of(found, elements, MANY), tl.arange(0, BLOCK_M)
    exact, differ = tl.zeros((BLOCK_M,), tl.int32), tl.zeros((BLOCK_M,), tl.int32)
    doubled = tl.where((count > room) & (count * MANY < elements), k, 0)  # no branch: Triton 3.6.0 fails on it, for AMD
    blocks = tl.cdiv(count, BLOCK_M)
    parts = tl.where(count <= room, tl.num_programs(0) // tl.maximum(blocks, 1), 1)
    width: tl.constexpr = BLOCK_K // 4  # fixed point takes more registers for a term
    step = tl.cdiv(tl.cdiv(k, parts), width) * width
    for task in range(tl.program_id(0), blocks * parts, tl.num_programs(0)):
        first, part = task % blocks * BLOCK_M, task // blocks
        until = tl.minimum((part + 1) * step, k).to(tl.int32)
        inside = first + lane < count
        o = tl.load(listed + first + lane, mask=inside, other=0).to(tl.int64)
        place = o
        if MATRIX:
            batch, i, j = o // (m * n), o // n % m, o % n
            row = a + tl.load(a_batch + batch) + tl.load(a_m + i)
            column = b + tl.load(b_batch + batch) + tl.load(b_n + j)
            place = tl.load(out_batch + batch) + tl.load(out_m + i) + tl.load(out_n + j)
        else:
            row = at_row(a, tl.load(a_batch + o // run_batch) + o % run_batch * A_STEP, CHAIN)
            column = row
            if PAIRS:
                column = b + tl.load(b_batch + o // run_batch) + o % run_batch * B_STEP
        s, low, size = add_doubled(
            row, column, a_k, b_k, inside, doubled, run_k, (a, None, numbers), PAIRS, CHAIN, BLOCK_M, BLOCK_K
        )
        e = tl.where(doubled > 0, size * coefficient, float("nan"))
        inside, otherwise = put_doubled(s, low, e, place, inside, out, PRECISION)
        differ += otherwise
        if tl.max(inside.to(tl.int32), 0) > 0:
            held, good = add_exactly(
                row, column, a_k, b_k, inside, (part * step).to(tl.int32), until, run_k, (a, None, numbers),
                PAIRS, CHAIN, FIRST, SLICES, BLOCK_M, width,
            )  # fmt: skip
            if digits is not None and count <= room:
                share_digits(held, good, digits + first + lane, room, inside, SLICES)
            if count > room:
                settled, otherwise = put_exact(held, good, place, inside, out, FIRST, SLICES, PRECISION)
                exact += settled
                differ += otherwise
    if counters is not None:
        if tl.program_id(0) == 0:
            tl.atomic_add(counters, elements)
            tl.atomic_add(counters + 1, tl.load(found))
        count_settled(counters, exact, differ, count, BLOCK_M)


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
    tiles, task = tl.cdiv(batches, BLOCK_M), tl.program_id(0).to(tl.int64)
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
        if found.dtype == tl.float32:
            found = packed_of(found, term)
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
