"""`scatter_sum` on GPUs: the Triton twin of scatter.c, on the same tables of places.

Sums of FP64 and of absolute terms are added by atomic additions, each rounded once, in whatever order: no term passes
through more roundings than there are sources (`tiebreak.engine.arithmetic.plan.ziv`). Outputs that Ziv's test leaves
open get slots, in which the terms are added once more, exactly, to digits as `near_ties.py` has them: integers add so
in any order.

SAFETY: the caller has checked that every sum of table entries lies inside the operand and the result. Indices come from
data that nobody has checked: those outside the box are left out, as SPEC 4.3 says.
"""

import triton
import triton.language as tl

from tiebreak.engine.arithmetic.gpu.kernels.rounding import round_to


@triton.jit
def reach(
    source, index, source_group, source_place, source_row, index_group, index_place, out_group, out_match, out_row,
    groups, sources, rows, box, task, BLOCK: tl.constexpr,
):  # fmt: skip
    """The terms of BLOCK lanes, the places of their outputs, and whether they have one."""
    lane = task * BLOCK + tl.arange(0, BLOCK)
    w, s, group = lane % rows, lane // rows % sources, lane // rows // sources
    used = group < groups
    at = tl.load(index_group + group, mask=used, other=0) + tl.load(index_place + s)
    key = tl.load(index + at, mask=used, other=-1)
    used = used & (key >= 0) & (key < box)
    from_group, to_group = (
        tl.load(source_group + group, mask=used, other=0),
        tl.load(out_group + group, mask=used, other=0),
    )
    x = tl.load(source + from_group + tl.load(source_place + s) + tl.load(source_row + w), mask=used, other=0.0)
    return x, to_group + tl.load(out_match + key, mask=used, other=0) + tl.load(out_row + w), used


@triton.jit(do_not_specialize=["groups", "sources", "rows", "box"])
def add_terms(
    source, index, source_group, source_place, source_row, index_group, index_place, out_group, out_match, out_row,
    groups, sources, rows, box, sums, sizes, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds the terms of BLOCK lanes to `sums` and `sizes`, by place in the result."""
    x, place, used = reach(
        source, index, source_group, source_place, source_row, index_group, index_place, out_group, out_match, out_row,
        groups, sources, rows, box, tl.program_id(0).to(tl.int64), BLOCK,
    )  # fmt: skip
    wide = x.to(tl.float64)
    tl.atomic_add(sums + place, wide, mask=used)
    tl.atomic_add(sizes + place, tl.abs(wide), mask=used)


@triton.jit(do_not_specialize=["count", "room"])
def decide_sums(
    sums, sizes, out, slots, found, listed, digits, counters, count, room, coefficient,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Ziv's test: writes the results, NaN where a term is not finite, and slots of the open ones; -1 for all others.

    Open ones are rounded from C, and listed; the digits of their slots become 0. `slots` may be where `sums` are. There
    is room for all that can be open; were there more, they would be NaN, and not in memory that is not the list's.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    c = tl.load(sums + place, mask=inside, other=0.0)
    e = tl.load(sizes + place, mask=inside, other=0.0) * coefficient
    low, high = round_to(c - e, PRECISION), round_to(c + e, PRECISION)
    # No zero is -0: sums begin at +0, and are multiples of 2^-149.
    finite = e < float("inf")  # false for NaN; 2^24 terms do not overflow in FP64
    undecided = inside & finite & ~(high <= low)
    value = tl.where(undecided, round_to(c, PRECISION), high)
    tl.store(out + place, tl.where(finite, value, float("nan")), mask=inside)
    slot, opened = tl.full((BLOCK,), -1, tl.int64), tl.sum(undecided.to(tl.int64), 0)
    if opened > 0:
        at = tl.atomic_add(found + tl.zeros_like(place), 1, mask=undecided)
        kept = undecided & (at < room)
        slot = tl.where(kept, at, -1)
        tl.store(listed + slot, place, mask=kept)
        digit = digits + slot
        for _ in tl.static_range(12):
            tl.store(digit, 0, mask=kept)
            digit += room
        beyond = undecided & ~kept
        excess = tl.sum(beyond.to(tl.int64), 0)
        if excess > 0:
            tl.store(out + place, float("nan"), mask=beyond)
            tl.atomic_add(found, -excess)
        tl.atomic_add(counters + 1, opened)
    tl.store(slots + place, slot, mask=inside)
    if tl.program_id(0) == 0:
        tl.atomic_add(counters, count)


@triton.jit(do_not_specialize=["groups", "sources", "rows", "box", "room", "tasks"])
def add_open(
    source, index, source_group, source_place, source_row, index_group, index_place, out_group, out_match, out_row,
    groups, sources, rows, box, slots, found, digits, room, tasks, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds the terms of open outputs to `digits` (digit, slot), each to two of them, of 24 bits.

    Any number of programs share the tasks, of BLOCK lanes; there are none if nothing is open.
    """
    for task in range(tl.program_id(0).to(tl.int64), tl.where(tl.load(found) == 0, 0, tasks), tl.num_programs(0)):
        x, place, used = reach(
            source, index, source_group, source_place, source_row, index_group, index_place, out_group, out_match,
            out_row, groups, sources, rows, box, task, BLOCK,
        )  # fmt: skip
        slot = tl.load(slots + place, mask=used, other=-1)
        used = used & (slot >= 0)
        bits = x.to(tl.int32, bitcast=True)
        exponent = (bits >> 23) & 0xFF
        normal = (exponent != 0).to(tl.int32)
        bit = exponent - normal + 5  # of an f32 in units of 2^-154, where the slices of plain sums begin
        size = ((bits & 0x7FFFFF) | (normal << 23)).to(tl.int64) << (bit % 24)
        low, high = size & 0xFFFFFF, size >> 24
        at = digits + (bit // 24).to(tl.int64) * room + slot
        tl.atomic_add(at, tl.where(bits < 0, -low, low), mask=used)
        tl.atomic_add(at + room, tl.where(bits < 0, -high, high), mask=used & (high != 0))
