"""Sums of products, plain sums and extremes on GPUs: the Triton twin of reduce.c. Only `fused.py` imports this module.

An element is sum over k of a[a_batch + a_m + a_k] * b[b_batch + b_n + b_k], the offsets being tables, as in reduce.c.
Each program computes one tile over one part of the terms: FP32 is loaded, widened in registers, and multiplied in FP64.

**The bound** (`tiebreak.engine.arithmetic.ziv` has the proof). A product of two f32 is exact in FP64. After FLUSH terms
the accumulator joins the total by a plain addition and starts again at zero, so a term passes through at most FLUSH
roundings, one for each flush, and one for each part: `fused.py` computes e's coefficient from this count. How a matrix
unit orders the terms of a flush does not matter, as long as each step is a correctly rounded FMA or addition. Squares
of f32 are exact too; the sums of squares need no flush, because the proof allows them 2K + 8 roundings.

**Exactly.** What Ziv's test leaves open is added in fixed point, like in exact.h: 32 lanes hold digits of 24 bits, 768
in all, of weight 2^(24 d - 298). A term adds less than 2^24 to each, so 2^30 terms fit without a carry. Integers add
exactly in any order, so several programs may share an element.

**No contraction.** Kernels are compiled with `enable_fp_fusion=False`, and a test reads the machine code.
"""

import triton
import triton.language as tl


@triton.jit
def round_to(x, PRECISION: tl.constexpr):
    """FP64 to an f32 number of b bits: `tiebreak.engine.arithmetic.rounding` has the proof. A zero has any sign."""
    if PRECISION == 32:
        return x.to(tl.float32)
    drop: tl.constexpr = 61 - PRECISION
    bits = x.to(tl.int64, bitcast=True)
    kept = (bits + ((bits >> drop) & 1) + ((1 << (drop - 1)) - 1)) & (-1 << drop)
    shift: tl.constexpr = 1.5 * 2.0 ** (-65 - PRECISION)
    rounded = tl.where(tl.abs(x) < 2.0**-126, (x + shift) - shift, kept.to(tl.float64, bitcast=True))
    return tl.where(x == x, rounded, x).to(tl.float32)


@triton.jit
def finish(c, e, place, number, inside, out, found, room, listed, sums, errors, PRECISION: tl.constexpr):
    """Ziv's test of a tile: writes the results, and appends (number, C, e) of what is undecided to the list.

    number: of each element, row-major over (batch, m, n). found: how many there are. Past the list's room only the
    count grows.
    """
    low, high = round_to(c - e, PRECISION), round_to(c + e, PRECISION)
    tl.store(out + place, tl.where(high == 0, 0.0, high), mask=inside)
    undecided = inside & ~(high <= low)  # so is NaN, of which no comparison is true
    at = tl.atomic_add(found + tl.zeros_like(place), 1, mask=undecided)
    kept = undecided & (at < room)
    tl.store(listed + at, number, mask=kept)
    tl.store(sums + at, c, mask=kept)
    tl.store(errors + at, e, mask=kept)


@triton.jit(do_not_specialize=["room", "step"])
def contract(
    a, b, a_batch, a_m, a_k, b_batch, b_n, b_k, out_batch, out_m, out_n,
    out, found, room, listed, sums, errors, sizes,
    m, n, k, batches, step, coefficient,
    PRECISION: tl.constexpr, LEAVE: tl.constexpr, FLUSH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One tile (BLOCK_M, BLOCK_N) of one batch, over one part of at most `step` terms.

    With LEAVE nothing is rounded: C goes to `sums` (part, batch, m, n), squared norms to `sizes` (part, batch, m + n).
    """
    rows, columns = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    task = tl.program_id(0).to(tl.int64)
    tile_n, tile_m = task % columns, task // columns % rows
    batch, part = task // (columns * rows) % batches, task // (columns * rows * batches)
    i, j, t = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    in_m, in_n = i < m, j < n
    row = a + tl.load(a_batch + batch) + tl.load(a_m + i, mask=in_m, other=0)
    column = b + tl.load(b_batch + batch) + tl.load(b_n + j, mask=in_n, other=0)
    begin = (part * step).to(tl.int32)
    end = tl.minimum(begin + step, k)

    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float64)
    squares_a = tl.zeros((BLOCK_M, BLOCK_K), tl.float64)
    squares_b = tl.zeros((BLOCK_K, BLOCK_N), tl.float64)
    for first in range(begin, end, FLUSH):
        c = tl.zeros((BLOCK_M, BLOCK_N), tl.float64)
        for at in range(first, tl.minimum(first + FLUSH, end), BLOCK_K):
            term = at + t
            in_k = term < end
            left = row[:, None] + tl.load(a_k + term, mask=in_k, other=0)[None, :]
            right = column[None, :] + tl.load(b_k + term, mask=in_k, other=0)[:, None]
            x = tl.load(left, mask=in_m[:, None] & in_k[None, :], other=0.0).to(tl.float64)
            y = tl.load(right, mask=in_k[:, None] & in_n[None, :], other=0.0).to(tl.float64)
            squares_a += x * x
            squares_b += y * y
            c = tl.dot(x, y, c, out_dtype=tl.float64)
        total += c
    norm_a, norm_b = tl.sum(squares_a, 1), tl.sum(squares_b, 0)

    inside = in_m[:, None] & in_n[None, :]
    if LEAVE:
        which = part * batches + batch
        tl.store(sums + (which * m + i[:, None]) * n + j[None, :], total, mask=inside)
        tl.store(sizes + which * (m + n) + i, norm_a, mask=in_m & (tile_n == 0))
        tl.store(sizes + which * (m + n) + m + j, norm_b, mask=in_n & (tile_m == 0))
    else:
        e = (tl.sqrt(norm_a) * coefficient)[:, None] * tl.sqrt(norm_b)[None, :]
        to_m, to_n = tl.load(out_m + i, mask=in_m, other=0), tl.load(out_n + j, mask=in_n, other=0)
        place = tl.load(out_batch + batch) + to_m[:, None] + to_n[None, :]
        number = (batch * m + i[:, None]) * n + j[None, :]
        finish(total, e, place, number, inside, out, found, room, listed, sums, errors, PRECISION)


@triton.jit(do_not_specialize=["room", "step"])
def add_up(
    a, b, a_batch, a_k, b_batch, b_k,
    out, found, room, listed, sums, errors, sizes,
    run_batch, run_k, k, batches, step, coefficient,
    PAIRS: tl.constexpr, A_STEP: tl.constexpr, B_STEP: tl.constexpr,
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
    row = a + tl.load(a_batch + o // run_batch, mask=inside, other=0) + o % run_batch * A_STEP
    column = row
    if PAIRS:
        column = b + tl.load(b_batch + o // run_batch, mask=inside, other=0) + o % run_batch * B_STEP
    begin = (part * step).to(tl.int32)
    end = tl.minimum(begin + step, k)

    total = tl.zeros((BLOCK_M, BLOCK_K), tl.float64)
    size = tl.zeros((BLOCK_M, BLOCK_K), tl.float64)
    for first in range(begin, end, FLUSH * BLOCK_K):
        c = tl.zeros((BLOCK_M, BLOCK_K), tl.float64)
        for at in range(first, tl.minimum(first + FLUSH * BLOCK_K, end), BLOCK_K):
            term = at + t
            in_k = term < end
            used = inside[:, None] & in_k[None, :]
            skip = tl.load(a_k + term // run_k, mask=in_k, other=0) + term % run_k
            x = tl.load(row[:, None] + skip[None, :], mask=used, other=0.0).to(tl.float64)
            if PAIRS:
                skip = tl.load(b_k + term // run_k, mask=in_k, other=0) + term % run_k
                x *= tl.load(column[:, None] + skip[None, :], mask=used, other=0.0).to(tl.float64)
            c += x
            size += tl.abs(x)
        total += c
    c, bound = tl.sum(total, 1), tl.sum(size, 1)

    if LEAVE:
        tl.store(sums + part * batches + o, c, mask=inside)
        tl.store(sizes + part * batches + o, bound, mask=inside)
    else:
        finish(c, bound * coefficient, o, o, inside, out, found, room, listed, sums, errors, PRECISION)


@triton.jit
def decode(x):
    """(m, bit) of a finite f32 m * 2^(bit - 149); |m| < 2^24, 0 <= bit <= 253."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) & 0xFF
    normal = (exponent != 0).to(tl.int32)
    size = (bits & 0x7FFFFF) | (normal << 23)
    return tl.where(bits < 0, -size, size).to(tl.int64), exponent - normal


@triton.jit(do_not_specialize=["step"])
def add_digits(
    a, b, rows, columns, a_k, b_k, digits, run_k, k, parts, step,
    PAIRS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Adds one part of the finite terms of one element, from `rows` and `columns` on, to its 32 digits."""
    task, t, lane = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_K), tl.arange(0, 32)
    element, part = task // parts, task % parts
    row = a + tl.load(rows + element)
    column = b + tl.load(columns + element)
    begin = (part * step).to(tl.int32)
    end = tl.minimum(begin + step, k)
    total = tl.zeros((BLOCK_K, 32), tl.int64)
    for at in range(begin, end, BLOCK_K):
        term = at + t
        used = term < end
        skip = tl.load(a_k + term // run_k, mask=used, other=0) + term % run_k
        m, bit = decode(tl.load(row + skip, mask=used, other=0.0))
        if PAIRS:
            skip = tl.load(b_k + term // run_k, mask=used, other=0) + term % run_k
            right, above = decode(tl.load(column + skip, mask=used, other=0.0))
            m, bit = m * right, bit + above
        else:
            bit += 149
        shift = bit[:, None] - 24 * lane[None, :]
        up, down = tl.minimum(tl.maximum(shift, 0), 24), tl.minimum(tl.maximum(-shift, 0), 63)
        size = ((tl.abs(m)[:, None] << up) >> down) & 0xFFFFFF  # what leaves the 64 bits is in no digit's reach
        total += tl.where(m[:, None] < 0, -size, size)
    tl.atomic_add(digits + element * 32 + lane, tl.sum(total, 0))


@triton.jit(do_not_specialize=["count"])
def round_digits(digits, values, count, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    """RN of sums in digits, by digits of 48 bits as `round_bins` of exact.h; zero is +0."""
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < count
    over, last, rest = (element * 0, element * 0, element * 0)
    top, under, below, place = (element * 0, element * 0, element * 0, element * 0)
    for p in range(0, 32, 2):
        low = tl.load(digits + element * 32 + p, mask=inside, other=0)
        high = tl.load(digits + element * 32 + p + 1, mask=inside, other=0)
        digit = ((over + low + (high << 24)) << 16) >> 16  # its lowest bits are right, whatever leaves the 64
        over = (high + ((low + over) >> 24) + (1 << 23)) >> 24  # rounded: digits are signed
        found = digit != 0
        top, under = tl.where(found, digit, top), tl.where(found, last, under)
        below, place = tl.where(found, rest, below), tl.where(found, p, place)
        rest = tl.where(last != 0, last, rest)
        last = digit
    half = tl.where(below < 0, -0.5, tl.where(below > 0, 0.5, 0.0)).to(tl.float64)
    s, x = top.to(tl.float64) * 2.0**48, under.to(tl.float64) + half
    h = s + x
    v = h - s
    left = (s - (h - v)) + (x - v)
    bits = h.to(tl.int64, bitcast=True)
    away = tl.where((h < 0) == (left < 0), 1, -1)
    odd = tl.where((left != 0) & ((bits & 1) == 0), bits + away, bits).to(tl.float64, bitcast=True)
    unit = ((24 * place + (1023 - 298 - 48)) << 52).to(tl.float64, bitcast=True)
    tl.store(values + element, round_to(odd * unit, PRECISION) + 0.0, mask=inside)


@triton.jit(do_not_specialize=["step"])
def find_greatest(
    a, a_batch, a_k, out, packed, run_batch, run_k, k, batches, step,
    A_STEP: tl.constexpr, PLACE: tl.constexpr, LEAVE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The greatest of the terms of BLOCK_M outputs, or with PLACE which it is: NaN above all, of equals the first.

    A term is packed as 2^32 times a number that is ordered as f32 are, and 2^32 - 1 less its position. With LEAVE the
    greatest goes to `packed` (part, batch).
    """
    tiles, task = tl.cdiv(batches, BLOCK_M), tl.program_id(0).to(tl.int64)
    tile, part = task % tiles, task // tiles
    o, t = tile * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    inside = o < batches
    row = a + tl.load(a_batch + o // run_batch, mask=inside, other=0) + o % run_batch * A_STEP
    begin = (part * step).to(tl.int32)
    end = tl.minimum(begin + step, k)
    best = tl.full((BLOCK_M, BLOCK_K), -(1 << 63), tl.int64)
    for at in range(begin, end, BLOCK_K):
        term = at + t
        in_k = term < end
        used = inside[:, None] & in_k[None, :]
        skip = tl.load(a_k + term // run_k, mask=in_k, other=0) + term % run_k
        x = tl.load(row[:, None] + skip[None, :], mask=used, other=0.0)
        bits = x.to(tl.int32, bitcast=True)
        order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        order = tl.where(x == 0, 0, tl.where(x == x, order, 0x7FFFFFFF)).to(tl.int64)
        found = (order << 32) + (0xFFFFFFFF - term[None, :].to(tl.int64))
        best = tl.where(used, tl.maximum(best, found), best)
    greatest = tl.max(best, 1)
    if LEAVE:
        tl.store(packed + part * batches + o, greatest, mask=inside)
    elif PLACE:
        tl.store(out + o, 0xFFFFFFFF - (greatest & 0xFFFFFFFF), mask=inside)
    else:
        order = (greatest >> 32).to(tl.int32)
        bits = tl.where(order < 0, order ^ 0x7FFFFFFF, order)
        tl.store(out + o, bits.to(tl.float32, bitcast=True), mask=inside)
