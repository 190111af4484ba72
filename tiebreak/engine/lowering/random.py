"""Random and unset tensors, and dropout. Philox keyed by (seed, step, instruction) stands in for torch's generators.

Whatever is drawn is made of `random`, u = k * 2^-24 in [0, 1), and of `shuffle`, by instructions that round correctly:

    normal       z = sqrt(-2 * log(1 - u)) * cos(2 pi * v)                  (Box and Muller 1958; |z| < 5.77)
    exponential  e = -log(min(1 - u, 1 - 2^-24))                            (2^-24 <= e < 16.7, so its log is finite)
    integer      i = low + (u * 2^48 + v * 2^24) mod (high - low)           (each equally likely up to range / 2^48)
    permutation  shuffle of 0 ... n-1, with the step as its epoch
    categorical  i with the greatest p[i] / e[i]                            (an exponential race; p[i] = 0 never wins)
    gamma        g = d * (1 + x / (3 * sqrt(d)))^3 * exp(-e / a)            (Marsaglia and Tsang 2000; d = a + 2/3)
    Dirichlet    softmax of log(g)                                          (a beta number is one of two)

u and v are the two halves of one `random`. Each rule also notes what its result was made of (u, z, e, the integer
before the modulus, the permutation), which `tiebreak.engine.capture.check` gives to eager PyTorch.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

from tiebreak.engine.lowering.builder import Builder, Ref, Scalar
from tiebreak.engine.lowering.more.ordering import topk
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction, ReduceFunction

MAX_RANGE: Final = 1 << 32
"""The greatest range of random integers: no value is more than 2^-16 likelier than another."""


def noted(b: Builder, drawn: Ref) -> Ref:
    """Notes the numbers that a draw is made of, which eager PyTorch gets in the check."""
    b.draws.append(drawn.value)
    return drawn


@lowers("bernoulli.p", "bernoulli.Tensor")
def bernoulli_p(c: Context, x: Ref, p: Ref | float = 0.5, **_: Any) -> Ref:
    """1 with probability p, else 0, in x's shape: random < p."""
    return c.b.cast(c.b.lt(noted(c.b, c.b.random(x.shape)), c.ref(p, DType.F32)), x.dtype)


@lowers("rand.default", "rand_like.default")
def rand(c: Context, *_: Any, **__: Any) -> Ref:
    """Uniform in [0, 1)."""
    return noted(c.b, c.b.random(c.shape))


@lowers("uniform.default")
def uniform(c: Context, _x: Ref, low: float = 0.0, high: float = 1.0) -> Ref:
    """low + (high - low) * random."""
    u = rand(c)
    return u if (low, high) == (0, 1) else c.b.add(c.b.scale(u, high - low), c.b.const(low))


@lowers("randn.default", "randn_like.default")
def randn(c: Context, *_: Any, **__: Any) -> Ref:
    """Normal: sqrt(-2 * log(1 - u)) * cos(2 pi * v) of two random numbers."""
    return noted(c.b, normal_numbers(c.b, c.shape))


def normal_numbers(b: Builder, shape: Sequence[int]) -> Ref:
    """Normal numbers of random ones."""
    u, v = _two(b, shape)
    radius = b.map(MapFunction.SQRT, b.scale(b.map(MapFunction.LOG, b.sub(b.const(1.0), u)), -2.0))
    return b.mul(radius, b.map(MapFunction.COS, b.scale(v, 2 * math.pi)))


@lowers("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", "normal.float_float")
def normal(c: Context, mean: Ref | float = 0.0, std: Ref | float = 1.0, *_: Any, **__: Any) -> Ref:
    """Normal number * std + mean."""
    z = randn(c)
    return z if (mean, std) == (0, 1) else c.b.add(c.b.mul(z, c.ref(std)), c.ref(mean))


@lowers("normal_functional.default")
def normal_functional(c: Context, _x: Ref, mean: float = 0.0, std: float = 1.0) -> Ref:
    """Normal number * std + mean."""
    return normal(c, mean, std)


@lowers("exponential.default")
def exponential(c: Context, _x: Ref, lambd: float = 1.0) -> Ref:
    """-log(min(1 - random, 1 - 2^-24)) / lambd."""
    drawn = noted(c.b, exponential_numbers(c.b, c.shape))
    return drawn if lambd == 1 else c.b.div(drawn, c.b.const(lambd))


def exponential_numbers(b: Builder, shape: Sequence[int]) -> Ref:
    """Exponential numbers of random ones."""
    rest = b.map(MapFunction.MIN, b.sub(b.const(1.0), b.random(shape)), b.const(1 - 2.0**-24))
    return b.neg(b.map(MapFunction.LOG, rest))


@lowers("randint.low", "randint_like.low_dtype", "random.to", "randint.default", "randint_like.default")
def randint(c: Context, *given: Any, **_: Any) -> Ref:
    """low + i mod (high - low) for an integer i of 48 random bits."""
    low, high = bounds([g for g in given if isinstance(g, int)])
    if not 0 < high - low <= MAX_RANGE:
        raise NotImplementedError(f"random integers of a range of {high - low}: only of 1 ... 2^32")
    b, (u, v) = c.b, (c.b.cast(c.b.scale(half, 2.0**24), DType.I64) for half in _two(c.b, c.shape))
    drawn = noted(b, b.add(b.scale(u, 1 << 24), v))
    return c.ref(b.add(b.map(MapFunction.MOD, drawn, b.i64(high - low)), b.i64(low)))


def bounds(given: list[Scalar]) -> tuple[int, int]:
    """Least value and end of random integers, from an operator's numbers: (low, end), or (end) alone."""
    low, high = (0, *given) if len(given) == 1 else given
    return int(low), int(high)


@lowers("randperm.default")
def randperm(c: Context, n: int, **_: Any) -> Ref:
    """The keyed permutation of 0 ... n-1 with the step as its epoch."""
    return c.ref(noted(c.b, c.b.shuffle(c.b.iota((n,), (1,)), c.b.step(), n)))


@lowers("native_dropout.default")
def native_dropout(c: Context, x: Ref, p: float, train: bool | None) -> tuple[Ref, Ref]:
    """x scaled by 1/(1-p) where kept, and the mask. Philox in place of the device's generator."""
    b = c.b
    if train is False or p == 0:
        return x, b.full(x.shape, True, DType.BOOL)
    if p == 1:
        return b.full(x.shape, 0.0), b.full(x.shape, False, DType.BOOL)
    kept = b.lt(noted(b, b.random(x.shape)), b.const(1 - p))
    return b.mul(x, b.scale(b.cast(kept, DType.F32), 1 / (1 - p))), kept


@lowers("empty.memory_format", "empty_permuted.default", "empty_strided.default", "new_empty_strided.default")
def empty(c: Context, *_: Any, **__: Any) -> Ref:
    """Zeros: memory that torch leaves unset must have one value here."""
    return c.b.full(c.shape, 0, c.dtype)


def _two(b: Builder, shape: Sequence[int]) -> tuple[Ref, Ref]:
    """Two random numbers for each element."""
    both = b.random((2, *shape))
    return both.select(0, 0), both.select(0, 1)


_TRIES: Final = 6
"""Numbers x that a gamma draw tries. Each fails with a probability below 1/20; if all do (2^-26), x is 0."""


@lowers("multinomial.default")
def multinomial(c: Context, weights: Ref, count: int, replacement: bool = False, **_: Any) -> Ref:
    """The index with the greatest weight / exponential number; without replacement, the first `count` in order."""
    b, weights = c.b, c.ref(weights, DType.F32)
    shares = b.div(weights, b.max(weights, [-1], keepdim=True))  # so that no quotient is infinite, nor all are zero
    if not replacement:
        return topk(c, b.div(shares, noted(b, exponential_numbers(b, shares.shape))), count)[1]
    waits = noted(b, exponential_numbers(b, (*shares.shape[:-1], count, shares.shape[-1])))
    return b.reduce_dims(ReduceFunction.ARGMAX, [-1], b.div(shares.unsqueeze(-2), waits))


@lowers("_standard_gamma.default")
def standard_gamma(c: Context, a: Ref, **_: Any) -> Ref:
    """The gamma number of a + 1, by Marsaglia and Tsang, times U^(1/a); at least 2^-126."""
    cubed, less = _gamma(c, a)
    return c.b.map(MapFunction.MAX, c.b.mul(cubed, c.b.map(MapFunction.EXP, c.b.neg(less))), c.b.const(2.0**-126))


@lowers("_sample_dirichlet.default")
def sample_dirichlet(c: Context, a: Ref, **_: Any) -> Ref:
    """The softmax of gamma numbers' logarithms, between 2^-126 and 1 - 2^-24, so that its logarithms are finite."""
    b, (cubed, less) = c.b, _gamma(c, a)
    logs = b.sub(b.map(MapFunction.LOG, cubed), less)
    parts = b.map(MapFunction.EXP, b.sub(logs, b.max(logs, [-1], keepdim=True)))
    return b.clamp(b.div(parts, b.sum(parts, [-1], keepdim=True)), 2.0**-126, 1 - 2.0**-24)


def _gamma(c: Context, a: Ref) -> tuple[Ref, Ref]:
    """A gamma number of a + 1, and e / a: times exp(-e / a), it is a gamma number of a, however small that is.

    The first x of several is taken with log(1 - u) < x^2 / 2 + d * (1 - v + log(v)), v = (1 + x / (3 * sqrt(d)))^3.
    """
    b, a = c.b, c.ref(a)
    one, d = b.const(1.0), b.add(a, b.const(2 / 3))
    root = b.scale(b.map(MapFunction.SQRT, d), 3.0)

    def cube(x: Ref) -> Ref:
        side = b.add(one, b.div(x, root))
        return b.mul(b.mul(side, side), side)

    tried, u = normal_numbers(b, (_TRIES, *a.shape)), b.random((_TRIES, *a.shape))
    v = cube(tried)  # where it is negative its logarithm is no number, which is below nothing
    slack = b.mul(d, b.add(b.sub(one, v), b.map(MapFunction.LOG, v)))
    accepted = b.lt(b.map(MapFunction.LOG, b.sub(one, u)), b.add(b.scale(b.mul(tried, tried), 0.5), slack))
    x = b.full(a.shape, 0.0)
    for number in reversed(range(_TRIES)):
        x = b.where(accepted.select(0, number), tried.select(0, number), x)
    both = noted(b, b.cat([x.unsqueeze(0), exponential_numbers(b, (1, *a.shape))], 0))
    return b.mul(d, cube(both.select(0, 0))), b.div(both.select(0, 1), a)
