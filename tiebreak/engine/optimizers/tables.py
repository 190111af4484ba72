"""Numbers that depend on the step alone, as tables that become data of the job: f32 [steps], correctly rounded.

They are made with integers and decimals of 60 digits, so everyone who makes a table gets the same bytes. Betas are the
FP32 numbers of the program, so that the weights of a moving average agree with its correction.
"""

from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.optimizers.settings import Adafactor, Adagrad, NAdam, Optimizer, RAdam, f32
from tiebreak.protocol.numbers.float32 import round_ratio

ADAFACTOR: Final = "second_moment_weight"
"""The data entry f32 [steps] with the weight of the newest squared gradient."""
ADAGRAD: Final = "adagrad.decay"
NADAM: Final = ("nadam.gradient", "nadam.moment", "nadam.deviation")
RADAM: Final = "radam.scale"
_CONTEXT: Final = Context(prec=60, rounding=ROUND_HALF_EVEN)


def second_moment_weights(steps: int, decay: float) -> Tensor:
    """t^decay for t = 1 ... steps, correctly rounded, f32 [steps]: whoever makes the table gets the same bytes.

    An FP64 power is used if changing it by 2^-40 (far beyond any library's error) gives the same FP32 number; otherwise
    50 decimal digits decide.
    """
    powers = torch.arange(1, steps + 1, dtype=torch.float64) ** decay
    low, high = ((powers * (1 + e)).float() for e in (-(2.0**-40), 2.0**-40))
    context, table = Context(prec=50), low.clone()
    for i in (low != high).nonzero().flatten().tolist():
        below, above = low[i].item(), high[i].item()  # neighbours, of which the nearer one is taken
        is_below = context.power(Decimal(i + 1), Decimal(decay)) < (Decimal(below) + Decimal(above)) / 2
        table[i] = below if is_below else above
    return table


def adagrad_table(o: Adagrad, steps: int) -> dict[str, Tensor]:
    """1 / (1 + (t - 1) * lr_decay); none without decay."""
    decay = Fraction(o.lr_decay)
    ratios = ((decay.denominator, decay.denominator + t * decay.numerator) for t in range(steps))
    return {ADAGRAD: _tensor(ratios)} if o.lr_decay else {}


def nadam_tables(o: NAdam, steps: int) -> dict[str, Tensor]:
    """The weights of the gradient and of the moment, and the root of the second moment's correction.

    With u(t) = b1 * (1 - 0.96^(t * momentum_decay) / 2) and U(t) their product, they are (1 - u(t)) / (1 - U(t)),
    u(t+1) / (1 - U(t+1)) and sqrt(1 - b2^t).
    """
    rows = []
    with localcontext(_CONTEXT):
        b1, b2 = (Decimal(f32(beta)) for beta in o.betas)
        fall = Decimal("0.96") ** Decimal(o.momentum_decay)
        share, u, product, power = fall, b1 * (1 - fall / 2), b1 * (1 - fall / 2), b2
        for _ in range(steps):
            share *= fall
            following = b1 * (1 - share / 2)
            rows.append(((1 - u) / (1 - product), following / (1 - product * following), (1 - power).sqrt()))
            u, product, power = following, product * following, power * b2
    return {name: _rounded(column) for name, column in zip(NADAM, zip(*rows, strict=True), strict=True)}


def radam_table(o: RAdam, steps: int) -> dict[str, Tensor]:
    """The factor of the rate: 1 / (1 - b1^t), from `radam_begins` on times rectification and sqrt(1 - b2^t)."""
    column = []
    with localcontext(_CONTEXT):
        b1, b2 = (Decimal(f32(beta)) for beta in o.betas)
        end, power1, power2 = 2 / (1 - b2) - 1, b1, b2
        for t in range(1, steps + 1):
            length = end - 2 * t * power2 / (1 - power2)
            factor = 1 / (1 - power1)
            if length > 5:
                ratio = (length - 4) * (length - 2) * end / ((end - 4) * (end - 2) * length)
                factor *= (ratio * (1 - power2)).sqrt()
            column.append(factor)
            power1, power2 = power1 * b1, power2 * b2
    return {RADAM: _rounded(column)}


def radam_begins(o: RAdam, steps: int) -> int:
    """The first step (from 0) whose average has a length above 5; `steps` if none has.

    The length, end - 2 t b2^t / (1 - b2^t), grows with t, since (b2^-t - 1) / t does.
    """
    with localcontext(_CONTEXT):
        b2 = power = Decimal(f32(o.betas[1]))
        for t in range(1, steps + 1):
            if 2 / (1 - b2) - 1 - 2 * t * power / (1 - power) > 5:
                return t - 1
            power *= b2
    return steps


def tables(optimizer: Optimizer, steps: int) -> dict[str, Tensor]:
    """The data entries that an optimizer reads in addition to the learning rates."""
    match optimizer:
        case Adafactor():
            return {ADAFACTOR: second_moment_weights(steps, optimizer.beta2_decay)}
        case Adagrad():
            return adagrad_table(optimizer, steps)
        case NAdam():
            return nadam_tables(optimizer, steps)
        case RAdam():
            return radam_table(optimizer, steps)
    return {}


def _rounded(values: Iterable[Decimal]) -> Tensor:
    return _tensor(value.as_integer_ratio() for value in values)


def _tensor(ratios: Iterable[tuple[int, int]]) -> Tensor:
    return torch.tensor([round_ratio(n, d) for n, d in ratios], dtype=torch.int64).to(torch.int32).view(torch.float32)
