"""Products by integers on GPUs: residues of rows, products of bytes on the matrix unit, and an end in integers.

docs/kernels.md has the proof; `gpu/integers.py` launches these kernels and makes their numbers. Nothing here computes
in FP64, because GPUs that need this have little of it: f32 numbers are taken apart by their bits, and what is computed
in FP32 is bounds, with room for any order and for contraction.

Facts of a row or column, at [batch, m + n] of tables: its power s, where 2^s is what it is multiplied by, or ZERO or
BAD; its grain, the power of two that divides all its integers, or NONE if something was cut; bounds on the norms of
what was cut and of the integers.
"""

import triton
import triton.language as tl

from tiebreak.engine.arithmetic.gpu.kernels.products import at_rows, at_terms, whole
from tiebreak.engine.arithmetic.gpu.kernels.sums import is_loose, list_elements

ZERO: tl.constexpr = tl.constexpr(1 << 16)
BAD: tl.constexpr = tl.constexpr(1 << 17)
NONE: tl.constexpr = tl.constexpr(-(1 << 20))
MORE: tl.constexpr = tl.constexpr(1 + 2.0**-7)
"""A bound over a norm as computed in FP32."""
PLAIN = [
    "rows", "k", "step", "each", "total", "reach_power", "first", "count", "pitch", "width", "moduli", "room", "m", "n",
    "batches", "a_first", "a_rows", "b_first", "b_rows", "out_step", "fold", "folded", "parts", "shift", "unit",
    "slack", "grain",
]  # fmt: skip
"""Numbers for which Triton compiles no kernel of its own."""


@triton.jit
def split(bits, power):
    """Integers next to f32 numbers times 2^power: their digits, the places that these are short by, and what is cut.

    The digits of what is cut have the weight 2^h, which comes last.
    """
    exponent = (bits >> 23) & 255
    digits = (bits & 0x7FFFFF) + (tl.minimum(exponent, 1) << 23)
    h = tl.maximum(exponent, 1) - 150 + power
    cut = tl.minimum(tl.maximum(-h, 0), 25)
    kept = (digits + ((1 << cut) >> 1)) >> cut
    return kept, tl.maximum(h, 0), digits - (kept << cut), h


@triton.jit
def bits_at(source, terms, at, end, in_m, t, ALONG: tl.constexpr, RUN: tl.constexpr, UNIT: tl.constexpr):
    """The bits of terms `at` and following of rows; 0 beyond."""
    in_k = at + t < end
    place = at_terms(source, terms, at + t, in_k, ALONG, RUN, UNIT)
    x = tl.load(place, mask=in_m[:, None] & in_k[None, :], other=0.0).to(tl.float32)
    return x.to(tl.int32, bitcast=True)


@triton.jit
def two_to(power):
    """2^power as f32, of -126 ... 127."""
    return ((power + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=PLAIN)
def measure(
    x, batches_at, own, terms, powers, sizes, loose, rows, k, step, each, total, reach_power, reach, unit, share,
    ALONG: tl.constexpr, RUN: tl.constexpr, UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Facts of an operand's rows, norms times `unit`, to tables of `each` for a batch; a program takes BLOCK_M of one.

    Adds what was cut, as parts of norms, to `loose`.
    """
    batch = tl.program_id(0) // tl.cdiv(rows, BLOCK_M)
    i = tl.program_id(0) % tl.cdiv(rows, BLOCK_M) * BLOCK_M + tl.arange(0, BLOCK_M)
    x += whole(tl.load(batches_at + batch), UNIT)
    powers += batch.to(tl.int64) * each
    sizes += batch.to(tl.int64) * each
    step, in_m, t = whole(step.to(tl.int64), UNIT), i < (rows if ALONG else whole(rows, UNIT)), tl.arange(0, BLOCK_K)
    end, jump = whole(k, UNIT) if ALONG else k, BLOCK_K if ALONG else BLOCK_K * step
    first = at_rows(x, own, i, in_m, step, t, ALONG, RUN, UNIT)
    if terms is not None:
        jump = step * 0

    source, peak = first, tl.zeros((BLOCK_M, BLOCK_K), tl.int32)
    for at in range(0, end, BLOCK_K):
        bits = bits_at(source, terms, at, end, in_m, t, ALONG, RUN, UNIT)
        peak = tl.maximum(peak, bits & 0x7FFFFFFF)
        source += jump
    top = tl.max(peak, 1)
    raised = tl.maximum(top >> 23, 2)  # so that the greatest becomes 4 to 8; less if it is subnormal
    factor = two_to(129 - raised)

    source, squares = first, tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for at in range(0, end, BLOCK_K):
        bits = bits_at(source, terms, at, end, in_m, t, ALONG, RUN, UNIT)
        y = bits.to(tl.float32, bitcast=True) * factor[:, None]
        squares += y * y
        source += jump
    norm = tl.sqrt_rn(tl.sum(squares, 1)) * MORE
    pattern = norm.to(tl.int32, bitcast=True)
    above = ((pattern & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True) > reach
    raise_by = reach_power + 127 - (pattern >> 23) - above.to(tl.int32)
    known = (top > 0) & (top < 0x7F800000)
    raise_by = tl.where(known, raise_by, 0)
    power = raise_by + 129 - raised

    source, lost = first, tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    lowest = tl.full((BLOCK_M, BLOCK_K), 1 << 20, tl.int32)
    for at in range(0, end, BLOCK_K):
        bits = bits_at(source, terms, at, end, in_m, t, ALONG, RUN, UNIT)
        kept, places, rest, h = split(bits, power[:, None])
        y = rest.to(tl.float32) * two_to(tl.minimum(tl.maximum(h, -60), 0))
        lost += y * y
        last = ((kept & -kept).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127 + places
        lowest = tl.where(kept > 0, tl.minimum(lowest, last), lowest)
        source += jump
    cut = tl.sqrt_rn(tl.sum(lost, 1)) * MORE
    cut, size = tl.where(known, cut, 0.0), tl.where(known, norm * two_to(raise_by), 1.0)
    part = tl.where((i < rows) & known, tl.div_rn(cut, size) * share, 0.0)
    tl.atomic_add(loose, tl.sum(part.to(tl.int64), 0))
    power = tl.where(top >= 0x7F800000, BAD, tl.where(top == 0, ZERO, power))
    tl.store(powers + i, power, mask=i < rows)
    tl.store(powers + total + i, tl.where(cut > 0, NONE, tl.min(lowest, 1)), mask=i < rows)
    tl.store(sizes + i, cut * unit, mask=i < rows)
    tl.store(sizes + total + i, (size + cut) * unit, mask=i < rows)


@triton.jit(do_not_specialize=PLAIN)
def find_residues(
    x, batches_at, own, terms, powers, loose, to, numbers, rows, k, step, each, first, count, pitch, width, moduli,
    ALONG: tl.constexpr, RUN: tl.constexpr, UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Residues of `count` rows of an operand from the first on, in -128 ... 127: (batch, row, modulus, term).

    A program takes BLOCK_K terms, 0 beyond the last, of BLOCK_M rows. Nothing if FP64 computes the product.
    """
    task, tiles, steps = tl.program_id(0), tl.cdiv(count, BLOCK_M), tl.cdiv(width, BLOCK_K)
    batch, begin = task // steps // tiles, task % steps * BLOCK_K
    i = whole(first, 16) + task // steps % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    x += whole(tl.load(batches_at + batch), UNIT)
    powers += batch.to(tl.int64) * each
    to += (batch.to(tl.int64) * count - first) * whole(pitch, 16)
    moduli, rows = tl.where(is_loose(loose), 0, moduli), tl.minimum(rows, first + count)
    step, in_m, t = whole(step.to(tl.int64), UNIT), i < (rows if ALONG else whole(rows, UNIT)), tl.arange(0, BLOCK_K)
    end = whole(k, UNIT) if ALONG else k
    source = at_rows(x, own, i, in_m, step, begin + t, ALONG, RUN, UNIT)
    bits = bits_at(source, terms, begin, end, in_m, t, ALONG, RUN, UNIT)
    power = tl.load(powers + i, mask=i < rows, other=0)
    kept, places, _, _ = split(bits, tl.where(power < ZERO, power, -1000)[:, None])
    integer = kept.to(tl.int64) << tl.minimum(places, 46)
    integer = tl.where(bits < 0, -integer, integer) + (1 << 47)
    low, middle = (integer & 0xFFFF).to(tl.uint32), ((integer >> 16) & 0xFFFF).to(tl.uint32)
    high = (integer >> 32).to(tl.uint32)
    to += i[:, None].to(tl.int64) * whole(pitch, 16) + (begin + t)[None, :]
    stored = (i < rows)[:, None] & (begin + t < width)[None, :]
    for _ in range(moduli):
        y = low + middle * tl.load(numbers).to(tl.uint32) + high * tl.load(numbers + 1).to(tl.uint32)
        y += tl.load(numbers + 2).to(tl.uint32)
        quotient = tl.umulhi(y, tl.load(numbers + 3).to(tl.uint32))
        residue = y - quotient * tl.load(numbers + 4).to(tl.uint32) - 128
        tl.store(to, residue.to(tl.int8), mask=stored)
        to += width
        numbers += 5


@triton.jit
def round_integers(size, error, exact, power, PRECISION: tl.constexpr):
    """Rounds size * 2^power to b bits, size < 2^61 being off by `error` at most, or `exact`: bits, and if decided."""
    high = (size >> 30).to(tl.int32)
    top = ((high & ~(high >> 1)).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127 + 30
    decided = (high > 0) & (error <= size >> 2)
    up = tl.where(high > 0, 60 - top, 0)
    size, error = size << up.to(tl.int64), tl.where(decided, error, 0) << up.to(tl.int64)
    power -= up
    drop = tl.minimum(tl.maximum(69 - PRECISION, -117 - PRECISION - power), 62)
    cell = (up * 0 + 1).to(tl.int64) << drop.to(tl.int64)
    size += cell >> 1
    rest = size & (cell - 1)
    decided &= exact | ((error < cell >> 2) & (rest > error) & (rest < cell - error))
    digits = (size >> drop.to(tl.int64)).to(tl.int32)
    digits -= tl.where(exact & (rest == 0), digits & 1, 0)
    exponent = power + drop + (149 - 32 + PRECISION)
    found = tl.where(exponent < 254, (exponent << 23) + (digits << (32 - PRECISION)), 0x7F800000)
    return tl.where(digits > 0, found, 0), decided | (exact & (size == cell >> 1))


@triton.jit
def finish_fractions(
    f, folds, powers, sizes, out_batch, out_m, out_n, out, found, room, listed, batch, i, j, in_m, in_n,
    m, n, batches, out_step, shift, unit, slack, grain, PRECISION: tl.constexpr,
):  # fmt: skip
    """Tests and rounds the sums of rows i and columns j, whose fractions are f; lists those that are undecided."""
    total, row, column = batches.to(tl.int64) * (m + n), batch * (m + n) + i, batch * (m + n) + m + j
    z = f.to(tl.int64, bitcast=True) - tl.load(folds + 1)
    size = (tl.umulhi(tl.abs(z).to(tl.uint64), tl.load(folds).to(tl.uint64, bitcast=True)) >> 2).to(tl.int64)
    divided = tl.load(powers + total + row, mask=in_m, other=0)[:, None]
    divided = divided + tl.load(powers + total + column, mask=in_n, other=0)[None, :] - unit
    exact = divided >= grain
    cut_a, cut_b = tl.load(sizes + row, mask=in_m, other=0.0)[:, None], tl.load(sizes + column, mask=in_n, other=0.0)
    size_b = tl.load(sizes + total + column, mask=in_n, other=0.0) + cut_b
    crossed = cut_a * size_b[None, :]
    crossed += tl.load(sizes + total + row, mask=in_m, other=0.0)[:, None] * cut_b[None, :]
    error = ((crossed.to(tl.int32) + 1).to(tl.int64) << shift) + slack
    if tl.max(tl.ravel(exact.to(tl.int32)), 0) > 0:
        places = tl.minimum(tl.maximum(divided, 0), 62).to(tl.int64)
        nearest = (size + (((places * 0 + 1) << places) >> 1)) >> places << places
        size, error = tl.where(exact, nearest, size), tl.where(exact, 0, error)
    power_a, power_b = tl.load(powers + row, mask=in_m, other=0), tl.load(powers + column, mask=in_n, other=0)
    power = unit - power_a[:, None] - power_b[None, :]
    bits, decided = round_integers(size, error, exact, power, PRECISION)
    most = tl.maximum(power_a[:, None], power_b[None, :])
    decided = (most < BAD) & (decided | (most >= ZERO))
    value = tl.where((z < 0) & (bits > 0), bits | (-1 << 31), bits).to(tl.float32, bitcast=True)
    place = tl.load(out_batch + batch)
    if out_m is None:
        place += i[:, None] * out_step + j[None, :]
    else:
        place += tl.load(out_m + i, mask=in_m, other=0)[:, None] + tl.load(out_n + j, mask=in_n, other=0)[None, :]
    inside = in_m[:, None] & in_n[None, :]
    tl.store(out + place, value, mask=inside)
    undecided = inside & ~decided
    if tl.sum(tl.ravel(undecided.to(tl.int32)), 0) > 0:
        list_elements(undecided, (batch * m + i[:, None]) * n + j[None, :], found, room, listed)


@triton.jit(do_not_specialize=PLAIN)
def multiply_residues(
    left, right, folds, fractions, powers, sizes, loose, out_batch, out_m, out_n, out, found, room, listed,
    m, n, batches, a_first, a_rows, b_first, b_rows, out_step, pitch, fold, folded, shift, unit, slack, grain,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile (BLOCK_M, BLOCK_N) of a product of residues: for each modulus all terms, then the next one.

    All moduli's terms of a row lie side by side, so they are terms of one product, whose sums are folded into the
    fraction after each `fold` terms. folds: the scale of fractions, what is taken off, and three digits of 32 bits
    for each fold. A program takes `folded` terms; if these are not all, its part of the fractions goes to `fractions`
    (part, batch, row, column), for `join_fractions`. Nothing if FP64 computes the product.
    """
    rows, columns = tl.cdiv(a_rows, BLOCK_M), tl.cdiv(b_rows, BLOCK_N)
    tile, which = tl.program_id(0) % (rows * columns), tl.program_id(0) // (rows * columns)
    batch, begin = which % batches, which // batches * whole(folded, 16)
    top_most = tile // (GROUP * columns) * GROUP
    height = tl.minimum(rows - top_most, GROUP)
    tile = tile % (GROUP * columns)
    top, left_most = (top_most + tile % height) * BLOCK_M, tile // height * BLOCK_N
    t, left_out = tl.arange(0, BLOCK_K), is_loose(loose)
    # Rows that are not there are read as the last one is, and not stored.
    i = batch.to(tl.int64) * a_rows + tl.minimum(top + tl.arange(0, BLOCK_M), a_rows - 1)
    j = batch.to(tl.int64) * b_rows + tl.minimum(left_most + tl.arange(0, BLOCK_N), b_rows - 1)
    one = left + i[:, None] * whole(pitch, 16) + (begin + t)[None, :]
    other = right + j[None, :] * whole(pitch, 16) + (begin + t)[:, None]

    c, f = tl.full((BLOCK_M, BLOCK_N), 1 << 30, tl.int32), tl.zeros((BLOCK_M, BLOCK_N), tl.uint64)
    number, until = folds + 2 + begin // fold * 3, begin + fold
    for at in range(begin, tl.where(left_out, begin, tl.minimum(begin + folded, pitch)), BLOCK_K):
        c = tl.dot(tl.load(one), tl.load(other), c, out_dtype=tl.int32)
        one += BLOCK_K
        other += BLOCK_K
        if at + BLOCK_K == until:
            x = c.to(tl.uint32, bitcast=True)
            f += (x * tl.load(number).to(tl.uint32)).to(tl.uint64) << 32
            f += x.to(tl.uint64) * tl.load(number + 1).to(tl.uint32).to(tl.uint64)
            f += tl.umulhi(x, tl.load(number + 2).to(tl.uint32)).to(tl.uint64)
            c = tl.full((BLOCK_M, BLOCK_N), 1 << 30, tl.int32)
            number += 3
            until += fold

    i, batch = (a_first + top + tl.arange(0, BLOCK_M)).to(tl.int64), batch.to(tl.int64)
    in_m = (top + tl.arange(0, BLOCK_M) < a_rows) & ~left_out
    if fractions is not None:
        j = left_most + tl.arange(0, BLOCK_N)
        place = (which.to(tl.int64) * a_rows + i[:, None] - a_first) * b_rows + j[None, :]
        tl.store(fractions + place, f.to(tl.int64, bitcast=True), mask=in_m[:, None] & (j < b_rows)[None, :])
    else:
        # In two parts, every other column, so that fewer numbers are in registers at a time.
        even, odd = tl.split(tl.reshape(f, (BLOCK_M, BLOCK_N // 2, 2)))
        for part in tl.static_range(2):
            j = left_most + 2 * tl.arange(0, BLOCK_N // 2) + part
            finish_fractions(
                odd if part else even, folds, powers, sizes, out_batch, out_m, out_n, out, found, room, listed, batch,
                i, (b_first + j).to(tl.int64), in_m, j < b_rows, m, n, batches, out_step, shift, unit, slack, grain,
                PRECISION,
            )  # fmt: skip


@triton.jit(do_not_specialize=PLAIN)
def join_fractions(
    fractions, folds, powers, sizes, loose, out_batch, out_m, out_n, out, found, room, listed,
    m, n, batches, a_first, a_rows, b_first, b_rows, out_step, parts, shift, unit, slack, grain,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Adds the parts of the fractions of one tile modulo 1, in 64 bits, then tests and rounds."""
    rows, columns = tl.cdiv(a_rows, BLOCK_M), tl.cdiv(b_rows, BLOCK_N)
    tile, batch = tl.program_id(0) % (rows * columns), (tl.program_id(0) // (rows * columns)).to(tl.int64)
    i, j = tile // columns * BLOCK_M + tl.arange(0, BLOCK_M), tile % columns * BLOCK_N + tl.arange(0, BLOCK_N)
    in_m, in_n, f = (i < a_rows) & ~is_loose(loose), j < b_rows, tl.zeros((BLOCK_M, BLOCK_N), tl.int64)
    place = (batch * a_rows + i[:, None]) * b_rows + j[None, :]
    for _ in range(parts):
        f += tl.load(fractions + place, mask=in_m[:, None] & in_n[None, :], other=0)
        place += batches.to(tl.int64) * a_rows * b_rows
    finish_fractions(
        f, folds, powers, sizes, out_batch, out_m, out_n, out, found, room, listed, batch, (a_first + i).to(tl.int64),
        (b_first + j).to(tl.int64), in_m, in_n, m, n, batches, out_step, shift, unit, slack, grain, PRECISION,
    )  # fmt: skip
