"""Sums of products of matrices on GPUs, in FP64, and once more in doubled precision.

An element is sum over k of a[a_batch + a_m + a_k] * b[b_batch + b_n + b_k], the offsets being tables, as in c/sums.c.

`product` copies tiles two steps ahead. Where the tables of an operand are 0, step, 2 step ..., and terms or rows have
the step 1, it does without them and copies 16 bytes at a time; else it reads places two steps before the copies, and
is told how many lie side by side.

The bound is that of `sums.py`. How a matrix unit orders the terms of a flush does not matter, as long as each step is
a correctly rounded FMA or addition. Squares of f32 are exact too; the sums of squares need no flush, because the proof
allows them 2K + 8 roundings.

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
"""

import triton
import triton.language as tl

from tiebreak.engine.arithmetic.gpu.kernels.rounding import two_sum
from tiebreak.engine.arithmetic.gpu.kernels.sums import finish, is_loose, list_elements, put_doubled


@triton.jit
def widened(x, APART: tl.constexpr):
    """Factors in f32, of f32 or bfloat16. APART: by an instruction that Triton does not look into.

    Triton 3.6.0 sees that factors of FP64 matrix instructions were loaded as 16 bits, and fails to take them in twos.
    """
    if APART and x.dtype == tl.bfloat16:
        bits = x.to(tl.int16, bitcast=True).to(tl.int32)
        value = tl.inline_asm_elementwise("shl.b32 $0, $1, 16;", "=f,r", [bits], tl.float32, False, 1)
    else:
        value = x.to(tl.float32)
    return value


@triton.jit
def whole(x, UNIT: tl.constexpr):
    """x, of which the host says that it is a multiple of UNIT, in a form that shows the compiler that it is one."""
    return x // UNIT * UNIT


@triton.jit(do_not_specialize=["first", "points", "lanes", "line_step", "lane_step"])
def copy_lanes(x, to, first, points, lanes, line_step, point_step, lane_step, BLOCK: tl.constexpr):
    """Copies x[first + line * line_step + point * point_step + lane * lane_step] to (line, point, lane)."""
    # A program copies BLOCK points of BLOCK lanes: it reads along points and writes along lanes.
    across, down = tl.cdiv(lanes, BLOCK), tl.cdiv(points, BLOCK)
    task, t = tl.program_id(0), tl.arange(0, BLOCK)
    line = (task // across // down).to(tl.int64)
    lane, point = (task % across * BLOCK + t).to(tl.int64), (task // across % down * BLOCK + t).to(tl.int64)
    inside = (lane < lanes)[:, None] & (point < points)[None, :]
    x += first + line * line_step + lane[:, None] * lane_step + point[None, :] * point_step
    to += line * points * lanes + lane[:, None] + point[None, :] * lanes
    tl.store(tl.trans(to), tl.trans(tl.load(x, mask=inside, other=0.0)), mask=tl.trans(inside))


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
        y, j = b + whole(tl.load(b_batch + batch), B_UNIT), (tile - rows) * BLOCK_M + tl.arange(0, BLOCK_M)
        squared(y, to + m, b_n, b_k, j, n, begin, end, b_step, B_ALONG, B_RUN, B_UNIT, BLOCK_K)


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
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, APART: tl.constexpr, GROUP: tl.constexpr,
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
        c = tl.dot(widened(x, APART).to(tl.float64), widened(y, APART).to(tl.float64), c, out_dtype=tl.float64)
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


@triton.jit(do_not_specialize=["room", "m", "n", "k", "batches", "elements"])
def contract_twice(
    a, b, a_batch, a_m, a_k, b_batch, b_n, b_k, out_batch, out_m, out_n,
    out, found, room, listed, counters,
    m, n, k, batches, elements, coefficient,
    PRECISION: tl.constexpr, MANY: tl.constexpr, FLUSH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, APART: tl.constexpr,
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
            x = tl.load(left, mask=in_m[:, None] & in_k[None, :], other=0.0).to(tl.float32)
            y = tl.load(right, mask=in_k[:, None] & in_n[None, :], other=0.0).to(tl.float32)
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
                x = tl.load(left, mask=in_m[:, None] & in_k[None, :], other=0.0)
                y = tl.load(right, mask=in_k[:, None] & in_n[None, :], other=0.0)
                x, y = widened(x, APART).to(tl.float64), widened(y, APART).to(tl.float64)
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
        e = tl.where(exact & (size == size), 0.0, size * coefficient + tl.abs(tail) * 2.0**-51)
        inside = in_m[:, None] & in_n[None, :]
        to_m, to_n = tl.load(out_m + i, mask=in_m, other=0), tl.load(out_n + j, mask=in_n, other=0)
        place = tl.load(out_batch + batch) + to_m[:, None] + to_n[None, :]
        still, otherwise = put_doubled(s, tail, e, place, inside, out, PRECISION)
        differ += tl.sum(otherwise.to(tl.int64), 1)
        list_elements(still, (batch * m + i[:, None]) * n + j[None, :], found + 1, room, listed)
    if tl.program_id(0) < tiles:
        tl.atomic_add(counters + 3, tl.sum(differ, 0))
