"""Draws from other distributions, made of those of `tiebreak.engine.lowering.random`.

categorical  i with the greatest p[i] / e[i]                            (an exponential race; p[i] = 0 never wins)
gamma        g = d * (1 + x / (3 * sqrt(d)))^3 * exp(-e / a)            (Marsaglia and Tsang 2000; d = a + 2/3)
Dirichlet    softmax of log(g)                                          (a beta number is one of two)
"""

from typing import Any, Final

from tiebreak.engine.lowering.builder import Ref
from tiebreak.engine.lowering.more.ordering import topk
from tiebreak.engine.lowering.random import exponential_numbers, normal_numbers, noted
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import DType, MapFunction, ReduceFunction

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
