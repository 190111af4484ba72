"""Fake quantization: numbers rounded to levels that an integer dtype would hold, and the observers that set these."""

from typing import Final

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.lowering.elementwise import round_
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction

_LEAST_SCALE: Final = 6.1e-5
"""The least distance of two levels that torch's observers set."""


def _quantized(c: Context, x: Ref, scale: Ref, zero: Ref, low: int, high: int) -> tuple[Ref, Ref]:
    b = c.b
    level = b.add(round_(c, b.mul(x, b.div(b.const(1.0), scale))), zero)
    kept = b.clamp(level, float(low), float(high))
    return b.mul(b.sub(kept, zero), scale), b.eq(kept, level)


@lowers("fake_quantize_per_tensor_affine_cachemask.default")
def fake_quantize(c: Context, x: Ref, scale: float, zero: int, low: int, high: int) -> tuple[Ref, Ref]:
    """(clamp(round(x * (1 / scale)) + zero, low, high) - zero) * scale, and where nothing was clamped."""
    return _quantized(c, x, c.b.const(scale), c.b.const(float(zero)), low, high)


@lowers("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def fake_quantize_by_tensors(
    c: Context, x: Ref, scale: Ref, zero: Ref, enabled: Ref, low: int, high: int
) -> tuple[Ref, Ref]:
    """The same with scale and zero from tensors; x itself where that is switched off."""
    scale, zero, enabled = (c.b.reshape(ref, ()) for ref in (scale, zero, enabled))
    return _if(c.b, enabled, _quantized(c, x, scale, c.ref(zero), low, high), x)


def _if(b: Builder, enabled: Ref, found: tuple[Ref, Ref], x: Ref) -> tuple[Ref, Ref]:
    is_on = _is_on(b, enabled)
    return b.where(is_on, found[0], x), b.where(is_on, found[1], b.const(True, DType.BOOL))


def _is_on(b: Builder, enabled: Ref) -> Ref:
    return b.ne(enabled, b.const(0, enabled.dtype))


@lowers("fake_quantize_per_channel_affine_cachemask.default")
def fake_quantize_channels(
    c: Context, x: Ref, scale: Ref, zero: Ref, axis: int, low: int, high: int
) -> tuple[Ref, Ref]:
    """The same with a scale and a zero for each index of a dim."""
    if zero.dtype != DType.I64:
        raise NotImplementedError("zero points that are floats; use int32")
    shape = [x.shape[axis] if d == axis else 1 for d in range(x.rank)]
    scale, zero = (c.b.reshape(ref, shape) for ref in (scale, c.ref(zero)))
    return _quantized(c, x, scale, zero, low, high)


@lowers("_fused_moving_avg_obs_fq_helper_functional.default")
def observed(
    c: Context, x: Ref, observes: Ref, quantizes: Ref, least: Ref, greatest: Ref, scale: Ref, zero: Ref,
    rate: float, low: int, high: int, _axis: int, by_row: bool = False, symmetric: bool = False,
) -> tuple[Ref, ...]:  # fmt: skip
    """Moving averages of the extremes (of all, or of each row) set scale and zero, by which x is quantized."""
    b, rows = c.b, c.b.reshape(x, (x.shape[0] if by_row else 1, -1))
    observes, quantizes, zero = b.reshape(observes, ()), b.reshape(quantizes, ()), c.ref(zero)

    def moved(held: Ref, now: Ref) -> Ref:
        new = b.add(held, b.scale(b.sub(b.reshape(now, held.shape), held), rate))
        return b.where(_is_on(b, observes), new, held)

    least, greatest = moved(least, b.neg(b.max(b.neg(rows), [1]))), moved(greatest, b.max(rows, [1]))
    levels = zip(_levels(c, least, greatest, low, high, symmetric=symmetric), (scale, zero), strict=True)
    scale, zero = (b.where(_is_on(b, quantizes), b.reshape(new, old.shape), old) for new, old in levels)
    shape = (-1, *(1 for _ in x.shape[1:])) if by_row else ()
    found = _quantized(c, x, b.reshape(scale, shape), b.reshape(zero, shape), low, high)
    return *_if(b, quantizes, found, x), least, greatest, scale, b.cast(zero, DType.I64)


def _levels(c: Context, least: Ref, greatest: Ref, low: int, high: int, *, symmetric: bool) -> tuple[Ref, Ref]:
    """Scale and zero, as torch's observers choose them: 0 is a level, and is the middle one if they are symmetric."""
    b, nothing = c.b, c.b.const(0.0)
    both = b.both(b.lt(least, nothing), b.lt(nothing, greatest))
    if symmetric:
        down, up = float((high - low) // 2 + 1), float((high - low) // 2)
        reach = b.map(MapFunction.MAX, b.div(b.neg(least), b.const(down)), b.div(greatest, b.const(up)))
        least, greatest = b.where(both, b.scale(reach, -down), least), b.where(both, b.scale(reach, up), greatest)
    least, greatest = b.map(MapFunction.MIN, least, nothing), b.map(MapFunction.MAX, greatest, nothing)
    scale = b.div(b.sub(greatest, least), b.const(float(high - low)))
    scale = b.where(b.eq(b.div(b.const(1.0), scale), b.const(float("inf"))), b.const(0.1), scale)
    below, above = b.div(least, scale), b.div(greatest, scale)
    from_low, from_high = b.sub(b.const(float(low)), below), b.sub(b.const(float(high)), above)
    nearer = b.lt(b.add(b.const(float(abs(low))), below), b.sub(b.const(float(abs(high))), above))
    zero = b.where(nearer, from_low, from_high)
    zero = b.where(both, b.const((low + high) / 2), zero) if symmetric else zero
    zero = round_(c, b.clamp(zero, float(low), float(high)))
    return b.map(MapFunction.MAX, scale, b.const(_LEAST_SCALE)), zero
