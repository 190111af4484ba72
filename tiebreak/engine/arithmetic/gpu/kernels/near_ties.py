"""Listed elements of sums on GPUs, settled: by TwoSum, then exactly, in fixed point.

**By TwoSum.** Where fewer elements are undecided, `settle` sums the terms of each again by TwoSum, and the errors of
its additions plainly; `ziv` has the proof. With B lanes, an error passes through one addition for each B of K terms,
and through two for each lane that joins its own: fewer than K / B + 1 + 2B, in any order.

**Exactly.** What all tests leave open is summed again in fixed point, in the same launch. A term is a multiple of
2^-298 below 2^256, and is cut from above into slices. With q = 2^(48 j - 298), S = 1.5 * 2^52 q and |x| < 2^51 q,
S + x lies in the binade of S, whose ulp is q, so fl(x + S) is S + n q with n q nearest to x; n is the difference of its
pattern, read as an integer, and that of S. What is left, x - n q, is exact and at most q / 2 = 2^47 (q / 2^48): it fits
the next slice, |n| <= 2^47, and after the lowest slice it is 0. In the highest, |n| <= 2^42 (of products, 2^26).

The lanes of an element add the patterns of at most 2^15 terms. The sum of n, at most 2^62, is the difference to as many
patterns of S, modulo 2^64. Integers add exactly in any order. What does not fit a signed digit of 48 bits, of weight
2^(48 j - 298), is then carried into the next one; a sum of 2^30 terms has one digit more than a term has slices. A few
long sums are divided among programs, at most 2^20, which add their digits in memory by atomic additions, in halves of
24 bits, so that sums of these are below 2^53; another kernel rounds them.
"""

import triton
import triton.language as tl

from tiebreak.engine.arithmetic.gpu.kernels.rounding import round_to, to_odd, two_sum
from tiebreak.engine.arithmetic.gpu.kernels.sums import at_row, load_terms, put_doubled


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
            batch, i, j = place // n // m, place // n % m, place % n
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
    do_not_specialize=["m", "n", "k", "elements", "most", "room"], do_not_specialize_on_alignment=["run_batch", "run_k"]
)
def settle(
    a, b, a_batch, a_m, a_k, b_batch, b_n, b_k, out_batch, out_m, out_n,
    out, found, listed, counters, digits,
    m, n, run_batch, run_k, k, elements, most, room, coefficient, numbers,
    MATRIX: tl.constexpr, PAIRS: tl.constexpr, CHAIN: tl.constexpr, A_STEP: tl.constexpr, B_STEP: tl.constexpr,
    FIRST: tl.constexpr, SLICES: tl.constexpr, PRECISION: tl.constexpr, MANY: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Writes the exact results of the `found` elements that are listed; NaN where a term is not finite.

    If there are more than `most`, for which the list has room, these are all elements, decided or not. Any number of
    programs share them. counters: elements of the result (`elements` are added), undecided ones, those summed in fixed
    point whose terms are finite, and those rounded otherwise from C; or null. If there are no more than `room`, nothing
    is tried before fixed point: programs share the terms too, add to `digits` (digit, slot), and mark in a last row the
    elements whose terms are not all finite; `round_listed` does the rest.
    """
    left, lane = left_of(found, elements, MANY), tl.arange(0, BLOCK_M)
    count = tl.where(left <= most, left, elements)
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
        o = tl.load(listed + first + lane, mask=inside & (left <= most), other=0).to(tl.int64)
        o = tl.where(inside & (left > most), first + lane, o)
        place = o
        if MATRIX:
            batch, i, j = o // n // m, o // n % m, o % n
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
