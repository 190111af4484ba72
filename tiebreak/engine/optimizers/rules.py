"""Optimizers as instructions: rules that emit one step of every parameter. No rule calls `pow`.

Powers are state, multiplied once per step, or exact tables. All instructions are elementwise, but for Adafactor's sums.
b1 and b2 are the betas as FP32 numbers, and t is the step from 1. Weight decay costs 2 instructions per parameter, or 1
where it is decoupled, in addition to these:

    SGD      2, with momentum 4 to 6               p - rate * buf
    Adam    12, with amsgrad 13                    p - rate * sqrt(1 - b2^t) / (1 - b1^t) * (m / (sqrt(v) + eps'))
    RMSprop  9, with momentum 11, centered 15      p - rate * (g / (sqrt(v) + eps))
    Adagrad  7      p - rate * decay(t) * (g / (sqrt(s) + eps))
    NAdam   15      p - rate * root(t) * ((x(t) * g + y(t) * m) / (sqrt(v) + eps * root(t)))
    RAdam   13      p - rate * scale(t) * (m / (sqrt(v) + eps)), at first m / 1
    Lion    11      p - rate * sign(b1 * m + (1 - b1) * g)
    Adafactor 6, and 4 sums per element of a matrix (see `adafactor`)

Tables are numbers that depend on the step alone and become data of the job, f32 [steps], correctly rounded. They are
made with integers and decimals of 60 digits, so everyone who makes one gets the same bytes. Betas are the FP32 numbers
of the program, so that the weights of a moving average agree with its correction.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction
from functools import reduce
from math import prod, sqrt
from mmap import ACCESS_COPY, mmap
from typing import Any, Final

import torch
from torch import Tensor

from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.optimizers import settings
from tiebreak.engine.optimizers.settings import SGD, Adafactor, Adagrad, Adam, AdamW, NAdam, Optimizer, RAdam, f32
from tiebreak.protocol.numbers.float32 import round_ratio
from tiebreak.protocol.program.isa import DType, MapFunction

ADAFACTOR: Final = "second_moment_weight"
"""The data entry f32 [steps] with the weight of the newest squared gradient."""
ADAGRAD: Final = "adagrad.decay"
"""The data entry f32 [steps] with 1 / (1 + (t - 1) * lr_decay), if there is a decay."""
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
            decay = Fraction(optimizer.lr_decay)
            ratios = ((decay.denominator, decay.denominator + t * decay.numerator) for t in range(steps))
            return {ADAGRAD: _tensor(ratios)} if decay else {}
        case NAdam():
            return nadam_tables(optimizer, steps)
        case RAdam():
            return radam_table(optimizer, steps)
    return {}


def _rounded(values: Iterable[Decimal]) -> Tensor:
    return _tensor(value.as_integer_ratio() for value in values)


def _tensor(ratios: Iterable[tuple[int, int]]) -> Tensor:
    return torch.tensor([round_ratio(n, d) for n, d in ratios], dtype=torch.int64).to(torch.int32).view(torch.float32)


AVERAGE: Final = "average."
"""Prefix of the averages in the state."""
MARGIN: Final = 1e-6
"""`clip_grad_norm_` adds this to the norm before it divides."""
MAPPED: Final = 1 << 16
"""Zeros of at least this many elements are left to the system, which gives them memory when they are first written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedParameter:
    """A parameter with a gradient of the same shape. rate: its learning rate in this step, f32 of rank 0."""

    name: str
    value: Ref
    gradient: Ref
    rate: Ref
    weight_decay: float


@dataclass
class Update:
    """New values by state name (without the group prefix), and the initial values of the optimizer's own entries."""

    parameters: dict[str, Ref] = field(default_factory=dict)
    state: dict[str, Ref] = field(default_factory=dict)
    initial: dict[str, Tensor] = field(default_factory=dict)

    def entry(self, builder: Builder, name: str, initial: Tensor) -> Ref:
        """The state entry of this name before the step."""
        self.initial[name] = initial
        return builder.state(f"optimizer.{name}", DType.F32, tuple(initial.shape))

    def moment(self, builder: Builder, name: str, shape: tuple[int, ...]) -> Ref:
        """A state entry that is zero before the first step."""
        if (count := prod(shape)) < MAPPED:
            return self.entry(builder, name, torch.zeros(shape))
        memory = mmap(-1, 4 * count, access=ACCESS_COPY)
        return self.entry(builder, name, torch.frombuffer(memory, dtype=torch.float32).view(shape))


def sum_of_squares(b: Builder, x: Ref) -> Ref:
    """The exact sum of squares, rounded once; f32 of rank 0."""
    return b.dot(x, x) if x.rank else b.mul(x, x)


def decayed(b: Builder, p: TrainedParameter, *, decoupled: bool) -> tuple[Ref, Ref]:
    """Value and gradient with weight decay, which shrinks the value (decoupled) or is added to the gradient."""
    if not p.weight_decay:
        return p.value, p.gradient
    if decoupled:
        return b.mul(p.value, b.sub(b.const(1.0), b.scale(p.rate, p.weight_decay))), p.gradient
    return p.value, b.add(p.gradient, b.scale(p.value, p.weight_decay))


def each_decayed(
    b: Builder, trained: Iterable[TrainedParameter], *, decoupled: bool
) -> Iterator[tuple[TrainedParameter, Ref, Ref]]:
    """Each parameter with its value and its gradient, decayed. What is emitted meanwhile is of this parameter."""
    for p in trained:
        b.origin = f"optimizer:{p.name}"
        yield p, *decayed(b, p, decoupled=decoupled)


def averaged(b: Builder, key: str, share: float, new: Ref, result: Update) -> Ref:
    """The entry times `share`, plus (1 - share) * new; 1 - share of the FP32 number."""
    kept = b.scale(result.moment(b, key, new.shape), share)
    average = result.state[key] = b.add(kept, b.mul(new, b.const(1.0 - f32(share))))
    return average


# Before the update: clipping, by value 2 elementwise instructions per gradient; by norm 1, and an exact sum.


def clipped(b: Builder, clip: settings.Clip, gradients: dict[str, Ref]) -> dict[str, Ref]:
    """The clipped gradients by name. When clipping by norm, one that is not finite makes all NaN, which stops the run.

    (torch differs: if its norm is infinite, finite gradients become zero and infinite ones NaN.)
    """
    b.origin = "clip"
    if clip.value is not None:
        low, high = b.const(-clip.value), b.const(clip.value)
        inside = {name: b.map(MapFunction.MAX, g, low) for name, g in gradients.items()}
        gradients = {name: b.map(MapFunction.MIN, g, high) for name, g in inside.items()}
    if clip.norm is not None:
        ratio = b.div(b.const(clip.norm), b.add(total_norm(b, gradients), b.const(MARGIN)))
        factor = b.map(MapFunction.MIN, ratio, b.const(1.0))
        gradients = {name: b.mul(g, factor) for name, g in gradients.items()}
    return gradients


def total_norm(b: Builder, gradients: dict[str, Ref]) -> Ref:
    """The 2-norm of all gradients, f32 of rank 0.

    Each gradient's sum of squares is exact and rounded once. These sums are added one after the other, in the model's
    order of parameters, and the root is correctly rounded.
    """
    return b.map(MapFunction.SQRT, reduce(b.add, [sum_of_squares(b, g) for g in gradients.values()]))


# After the update: a moving average of the parameters, 3 elementwise instructions for each. Training does not read it.


def moving_averages(b: Builder, decay: float, before: Mapping[str, Ref], after: Mapping[str, Ref]) -> dict[str, Ref]:
    """average + (1 - decay) * (parameter after the step - average), by state entry.

    before: the parameters in the state before the step, for their shapes. The average starts from the initial
    parameters, like `torch.optim.swa_utils.AveragedModel` with `get_ema_avg_fn(decay)` if it is updated once before
    training.
    """
    found = {}
    for name, p in before.items():
        held = b.state(AVERAGE + name, p.dtype, p.shape)
        b.origin = f"average:{name}"
        found[AVERAGE + name] = b.add(held, b.scale(b.sub(after[name], held), 1 - decay))
    return found


def sgd(b: Builder, o: SGD, _steps: int, trained: Sequence[TrainedParameter], result: Update) -> None:
    """Emits one step: buf = momentum * buf + g; p -= rate * buf, or rate * (g + momentum * buf) with Nesterov.

    g includes weight decay.
    """
    for p, _, g in each_decayed(b, trained, decoupled=False):
        if o.momentum:
            key = f"momentum.{p.name}"
            kept = b.scale(result.moment(b, key, p.value.shape), o.momentum)
            if o.dampening:  # the gradient's weight is 1 in the first step, as in torch, then 1 - dampening
                is_first = b.eq(b.step(), b.i64(0))
                g = b.mul(g, b.where(is_first, b.const(1.0), b.const(1 - o.dampening)))
            buffer = result.state[key] = b.add(kept, g)
            g = b.add(g, b.scale(buffer, o.momentum)) if o.nesterov else buffer
        result.parameters[p.name] = b.sub(p.value, b.mul(g, p.rate))


def adam(b: Builder, o: Adam, _steps: int, trained: Sequence[TrainedParameter], result: Update) -> None:
    """One step of Adam (decay added to the gradient) or AdamW (decay of the parameter itself).

        m = b1 * m + (1 - b1) * g                  v = b2 * v + (1 - b2) * (g * g)
        p = p - rate * sqrt(1 - b2^t) / (1 - b1^t) * (m / (sqrt(v) + eps * sqrt(1 - b2^t)))

    This is torch's p - rate / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps) with numerator and denominator
    multiplied by sqrt(1 - b2^t) (Kingma and Ba, end of section 2), which leaves one root and one division per element.
    1 - b is computed from the FP32 number b (exact from 1/2 on), so that the weights of a moving average agree with its
    correction.
    """
    first, second = (_correction(b, i, beta, result) for i, beta in enumerate(o.betas, start=1))
    root = b.map(MapFunction.SQRT, second)
    eps, scale = b.mul(root, b.const(o.eps)), b.div(root, first)
    for p, value, g in each_decayed(b, trained, decoupled=isinstance(o, AdamW)):
        m = averaged(b, f"exp_avg.{p.name}", o.betas[0], g, result)
        v = averaged(b, f"exp_avg_sq.{p.name}", o.betas[1], b.mul(g, g), result)
        if o.amsgrad:
            key = f"max_exp_avg_sq.{p.name}"
            v = result.state[key] = b.map(MapFunction.MAX, result.moment(b, key, v.shape), v)
        deviation = b.add(b.map(MapFunction.SQRT, v), eps)
        result.parameters[p.name] = b.sub(value, b.mul(b.div(m, deviation), b.mul(p.rate, scale)))


def _correction(b: Builder, number: int, beta: float, result: Update) -> Ref:
    """1 - beta^t, with the power kept as state."""
    b.origin = f"optimizer:beta{number}_power"
    key = f"beta{number}_power"
    power = result.state[key] = b.scale(result.entry(b, key, torch.ones(())), beta)
    return b.sub(b.const(1.0), power)


def rmsprop(b: Builder, o: settings.RMSprop, _steps: int, trained: Sequence[TrainedParameter], result: Update) -> None:
    for p, value, g in each_decayed(b, trained, decoupled=False):
        v = averaged(b, f"square_avg.{p.name}", o.alpha, b.mul(g, g), result)
        if o.centered:
            mean = averaged(b, f"grad_avg.{p.name}", o.alpha, g, result)
            v = b.map(MapFunction.MAX, b.sub(v, b.mul(mean, mean)), b.const(0.0))
        move = b.div(g, _deviation(b, v, b.const(o.eps)))
        if o.momentum:
            key = f"momentum.{p.name}"
            move = result.state[key] = b.add(b.scale(result.moment(b, key, g.shape), o.momentum), move)
        result.parameters[p.name] = b.sub(value, b.mul(move, p.rate))


def adagrad(b: Builder, o: Adagrad, steps: int, trained: Sequence[TrainedParameter], result: Update) -> None:
    b.origin = "optimizer:rate_decay"
    decay = _entry(b, ADAGRAD, steps) if o.lr_decay else None
    for p, value, g in each_decayed(b, trained, decoupled=False):
        key = f"sum.{p.name}"
        held = result.entry(b, key, torch.full(g.shape, f32(o.initial_accumulator_value)))
        total = result.state[key] = b.add(held, b.mul(g, g))
        rate = p.rate if decay is None else b.mul(p.rate, decay)
        result.parameters[p.name] = b.sub(value, b.mul(b.div(g, _deviation(b, total, b.const(o.eps))), rate))


def nadam(b: Builder, o: NAdam, steps: int, trained: Sequence[TrainedParameter], result: Update) -> None:
    """One step of every parameter; see `nadam_tables`."""
    b.origin = "optimizer:shares"
    of_gradient, of_moment, root = (_entry(b, name, steps) for name in NADAM)
    eps = b.mul(root, b.const(o.eps))
    for p, value, g in each_decayed(b, trained, decoupled=o.decoupled_weight_decay):
        m = averaged(b, f"exp_avg.{p.name}", o.betas[0], g, result)
        v = averaged(b, f"exp_avg_sq.{p.name}", o.betas[1], b.mul(g, g), result)
        move = b.div(b.add(b.mul(g, of_gradient), b.mul(m, of_moment)), _deviation(b, v, eps))
        result.parameters[p.name] = b.sub(value, b.mul(move, b.mul(p.rate, root)))


def radam(b: Builder, o: RAdam, steps: int, trained: Sequence[TrainedParameter], result: Update) -> None:
    """One step of every parameter; see `radam_table`."""
    b.origin = "optimizer:rectification"
    scale, one = _entry(b, RADAM, steps), b.const(1.0)
    plain = b.lt(b.step(), b.i64(radam_begins(o, steps)))
    for p, value, g in each_decayed(b, trained, decoupled=o.decoupled_weight_decay):
        m = averaged(b, f"exp_avg.{p.name}", o.betas[0], g, result)
        v = averaged(b, f"exp_avg_sq.{p.name}", o.betas[1], b.mul(g, g), result)
        unit = b.where(plain, one, _deviation(b, v, b.const(o.eps)))
        result.parameters[p.name] = b.sub(value, b.mul(b.div(m, unit), b.mul(p.rate, scale)))


def lion(b: Builder, o: settings.Lion, _steps: int, trained: Sequence[TrainedParameter], result: Update) -> None:
    """One step of every parameter. Where b1 * m + (1 - b1) * g is zero, it stays as it is but for its decay."""
    zero = b.const(0.0)
    for p, value, g in each_decayed(b, trained, decoupled=True):
        held, share = result.moment(b, f"exp_avg.{p.name}", g.shape), f32(o.betas[0])
        mixed = b.add(b.scale(held, share), b.mul(g, b.const(1.0 - share)))
        falling = b.where(b.lt(mixed, zero), b.neg(p.rate), zero)
        move = b.where(b.lt(zero, mixed), p.rate, falling)
        averaged(b, f"exp_avg.{p.name}", o.betas[1], g, result)
        result.parameters[p.name] = b.sub(value, move)


def _entry(b: Builder, name: str, steps: int) -> Ref:
    """This step's number of a table."""
    return b.rows(b.data(name, DType.F32, (steps,)), b.step())


def _deviation(b: Builder, square: Ref, eps: Ref) -> Ref:
    return b.add(b.map(MapFunction.SQRT, square), eps)


def adafactor(b: Builder, o: Adafactor, steps: int, trained: Sequence[TrainedParameter], result: Update) -> None:
    """One step of every parameter.

    For a matrix g, with w = t^beta2_decay (a table) and rate the learning rate:

        row += w * (mean of g^2 over columns - row)      col += w * (mean of g^2 over rows - col)
        v = row / max(mean of row, eps1) * col           u = g / sqrt(max(v, eps1^2))
        step = max(eps2, RMS(p)) * min(rate, 1 / sqrt(t)) / max(1, RMS(u) / d)
        p = p * (1 - rate * weight_decay) - u * step

    Tensors of more dims are stacks of matrices (the last two dims); a vector keeps v itself. Sums of squares are exact
    and rounded once. torch multiplies row by col before it divides, which underflows for gradients below 1e-11; here
    row / mean comes first. The squares themselves underflow below 1e-23; there eps1 dominates, as in torch.
    """
    b.origin = "optimizer:relative_step"
    weight = _entry(b, ADAFACTOR, steps)
    one, number = b.const(1.0), b.cast(b.add(b.step(), b.i64(1)), DType.F32)
    fading = b.div(one, b.map(MapFunction.SQRT, number))
    floor = 2.0**-23 if o.eps[0] is None else o.eps[0]
    for p in trained:
        b.origin = f"optimizer:{p.name}"
        relative = b.map(MapFunction.MIN, p.rate, fading)
        size = b.map(MapFunction.MAX, _rms(b, p.value), b.const(o.eps[1]))
        if p.value.rank > 1:
            v = _factored(b, p, weight, floor, result)
        else:
            v = _towards(b, f"variance.{p.name}", b.mul(p.gradient, p.gradient), weight, result)
        u = b.div(p.gradient, b.map(MapFunction.SQRT, b.map(MapFunction.MAX, v, b.const(floor * floor))))
        excess = b.map(MapFunction.MAX, _rms(b, u, o.d), one)
        step = b.div(b.mul(size, relative), excess)
        value, _ = decayed(b, p, decoupled=True)
        result.parameters[p.name] = b.sub(value, b.mul(u, step))


def _rms(b: Builder, x: Ref, unit: float = 1.0) -> Ref:
    """The root mean square in some unit: root of the exact sum, divided by the root of the count times the unit."""
    return b.div(b.map(MapFunction.SQRT, sum_of_squares(b, x)), b.const(sqrt(prod(x.shape)) * unit))


def _towards(b: Builder, key: str, new: Ref, weight: Ref, result: Update) -> Ref:
    """The entry moved towards `new` by the share `weight` of the difference."""
    held = result.moment(b, key, new.shape)
    moved = result.state[key] = b.add(held, b.mul(b.sub(new, held), weight))
    return moved


def _factored(b: Builder, p: TrainedParameter, weight: Ref, floor: float, result: Update) -> Ref:
    g = p.gradient
    row_mean = b.div(b.dot(g, g, [-1], keepdim=True), b.const(float(g.shape[-1])))
    col_mean = b.div(b.dot(g, g, [-2], keepdim=True), b.const(float(g.shape[-2])))
    row = _towards(b, f"row_var.{p.name}", row_mean, weight, result)
    col = _towards(b, f"col_var.{p.name}", col_mean, weight, result)
    return b.mul(b.div(row, b.map(MapFunction.MAX, b.mean(row, [-2], keepdim=True), b.const(floor))), col)


_RULES: Final[dict[type, Callable[[Builder, Any, int, Sequence[TrainedParameter], Update], None]]] = {
    SGD: sgd, Adam: adam, AdamW: adam, Adafactor: adafactor, settings.RMSprop: rmsprop, Adagrad: adagrad, NAdam: nadam,
    RAdam: radam, settings.Lion: lion,
}  # fmt: skip


def update(
    b: Builder, optimizer: Optimizer, rate: Ref, steps: int, parameters: dict[str, Ref], gradients: dict[str, Ref]
) -> Update:
    """Emits the optimizer's step for every parameter that has a gradient; the others stay as they are.

    rate: this step's learning rate without the groups' factors. steps: the number of steps of the job, which is the
    length of tables.
    """
    result, trained = Update(parameters=dict(parameters)), []
    for name in (name for name in parameters if name in gradients):
        factor, decay = settings.settings_of(optimizer, name)
        b.origin = "schedule"
        own = rate if factor == 1 else b.scale(rate, factor)
        value, gradient = parameters[name], gradients[name]
        trained.append(TrainedParameter(name=name, value=value, gradient=gradient, rate=own, weight_decay=decay))
    _RULES[type(optimizer)](b, optimizer, steps, trained, result)
    return result
