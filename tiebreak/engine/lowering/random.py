"""Random and unset tensors, and dropout. Philox keyed by (seed, step, instruction) stands in for torch's generators."""

from typing import Any

from tiebreak.engine.lowering.builder import Ref
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction


@lowers("bernoulli.p")
def bernoulli_p(c: Context, x: Ref, p: float = 0.5, **_: Any) -> Ref:
    """1 with probability p, else 0, in x's shape: random < p."""
    return c.b.cast(c.b.compare(MapFunction.LT, c.b.random(x.shape), c.b.const(p)), x.dtype)


@lowers("bernoulli.default")
def bernoulli(c: Context, x: Ref, **_: Any) -> Ref:
    """1 with the probability that stands in x, else 0: random < x."""
    return c.b.cast(c.b.compare(MapFunction.LT, c.b.random(x.shape), x), x.dtype)


@lowers("rand.default", "rand_like.default")
def rand(c: Context, *_: Any, **__: Any) -> Ref:
    """Uniform in [0, 1)."""
    return c.b.random(c.shape)


@lowers("native_dropout.default")
def native_dropout(c: Context, x: Ref, p: float, train: bool | None) -> tuple[Ref, Ref]:
    """x scaled by 1/(1-p) where kept, and the mask. Philox in place of the device's generator."""
    b = c.b
    if not train or p == 0:
        return x, b.full(x.shape, True, DType.BOOL)
    if p == 1:
        return b.full(x.shape, 0.0), b.full(x.shape, False, DType.BOOL)
    kept = b.compare(MapFunction.LT, b.random(x.shape), b.const(1 - p))
    return b.mul(x, b.scale(b.cast(kept, DType.F32), 1 / (1 - p))), kept


@lowers("empty.memory_format", "empty_like.default", "new_empty.default", "empty_permuted.default",
        "empty_strided.default", "new_empty_strided.default")  # fmt: skip
def empty(c: Context, *_: Any, **__: Any) -> Ref:
    """Zeros: memory that torch leaves unset must have one value here."""
    return c.b.full(c.shape, 0, c.dtype)
