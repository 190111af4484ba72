"""Convolutions: contractions over overlapping strided views.

Letters: N batch, G groups, O out (per group), C in (per group), xyz the output's spatial dims, ijk the kernel's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tiebreak.engine.lowering.builder import Ref
from tiebreak.engine.lowering.registry import Context, lowers
from tiebreak.protocol.program.isa import MAX_RANK

Sizes = Sequence[int]


def spread(values: Sizes, space: int) -> tuple[int, ...]:
    """Returns one value per spatial dim, given one for all or one for each."""
    return tuple(values) * space if len(values) == 1 else tuple(values)


def windows(x: Ref, out: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Ref:
    """x (..., space), already padded, as overlapping windows (..., out, kernel)."""
    for d, sizes in enumerate(zip(out, kernel, stride, dilation, strict=True), start=x.rank - len(out)):
        x = x.unfold(d, *sizes)
    return x


def _grouped(c: Context, x: Ref, d: int, groups: int) -> Ref:
    """Splits dim d into (groups, size / groups)."""
    return c.b.reshape(x, (*x.shape[:d], groups, x.shape[d] // groups, *x.shape[d + 1 :]))


def _padded(c: Context, x: Ref, padding: Sizes) -> Ref:
    """Puts zeros around the spatial dims of x."""
    if not any(padding):
        return x
    lo = (0, 0, *padding)
    return c.b.window(tuple(n + 2 * p for n, p in zip(x.shape, lo, strict=True)), x, lo)


@lowers("convolution.default")
def convolution(
    c: Context, x: Ref, weight: Ref, bias: Ref | None, stride: Sizes, padding: Sizes, dilation: Sizes,
    transposed: bool, _output_padding: Sizes, groups: int,
) -> Ref:  # fmt: skip
    """out[n, g, o, s] = sum over c, k of x[n, g, c, s * stride + k * dilation] * w[g, o, c, k]."""
    space = x.rank - 2
    stride, padding, dilation = (spread(v, space) for v in (stride, padding, dilation))
    if transposed:
        out = input_gradient(c, x, weight, c.shape, stride, padding, dilation, groups)
    else:
        out = _correlate(c, _padded(c, x, padding), weight, c.shape, stride, dilation, groups)
    return out if bias is None else c.b.add(out, bias.append_dims(space))


def _correlate(c: Context, x: Ref, weight: Ref, shape: Sizes, stride: Sizes, dilation: Sizes, groups: int) -> Ref:
    """Correlates x, (N, G*C, space) and already padded, with weight, (G*O, C, kernel); `shape` is (N, G*O, space)."""
    x = windows(_grouped(c, x, 1, groups), shape[2:], weight.shape[2:], stride, dilation)
    xyz, ijk = "xyz"[: len(stride)], "ijk"[: len(stride)]
    out = c.b.einsum(f"NGC{xyz}{ijk},GOC{ijk}->NGO{xyz}|C{ijk}", x, _grouped(c, weight, 0, groups))
    return c.b.reshape(out, shape)


def input_gradient(
    c: Context, grad: Ref, weight: Ref, shape: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Ref:
    """The gradient of the input, of `shape` (N, G*C, space); grad is (N, G*O, space'), weight (G*O, C, kernel).

    Takes one contraction over all phases of the stride or, if that has no form, over a gradient spread with zeros.
    """
    dilation = [1 if k == 1 else e for k, e in zip(weight.shape[2:], dilation, strict=True)]
    phases = [
        GradientPhase.of(*sizes)
        for sizes in zip(grad.shape[2:], shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    ]
    rank = 2 + (groups > 1) + sum(1 + (phase.kept > 1) for phase in phases)
    if rank > MAX_RANK or any(s > 1 and e > 1 for s, e in zip(stride, dilation, strict=True)):
        return _spread_gradient(c, grad, weight, shape, stride, padding, dilation, groups)
    grad, weight = _fitted(c, grad, weight, phases)
    return _interleaved(c, _phase_sums(c, grad, weight, phases, groups), shape, phases)


@dataclass(frozen=True)
class GradientPhase:
    """One spatial dim of a strided input gradient.

    Input position i contributes to output y through kernel tap i + padding - y * stride (for stride 1: only through
    multiples of the dilation; for stride > 1 the dilation is 1). Written as i = a * stride + r - skipped, it reads tap
    r + stride * t - front in output y = a - t * dilation + const. Phases r that no tap reaches are zero, and are not
    `kept`.
    """

    stride: int
    dilation: int
    size: int
    """The size of the input."""
    taps: int
    """The number of values of t."""
    kept: int
    """The number of phases that have taps."""
    count: int
    """The number of values of a."""
    skipped: int
    """The number of positions of the first a that lie before the input."""
    front: int
    """The number of zeros that the kernel needs in front."""
    before: int
    """The number of zeros that the gradient needs in front (negative: outputs to drop)."""
    after: int

    @classmethod
    def of(cls, outputs: int, size: int, kernel: int, stride: int, padding: int, dilation: int) -> "GradientPhase":
        """The phases of a dim with `size` inputs and `outputs` outputs."""
        taps = -(-kernel // stride)
        skipped, front = padding % stride, 0
        if -(-(kernel + -padding % stride) // stride) == taps and kernel >= stride:
            # Zeros in front of the kernel add no terms here, and positions before the input need not be computed. In
            # the sum of such a position one factor of each term is zero, and such a sum is the slowest to decide.
            skipped, front = 0, -padding % stride
        count = -(-(size + skipped) // stride)
        first = (padding - skipped + front) // stride
        before, after = (taps - 1) * dilation - first, count - 1 + first - (outputs - 1)
        return cls(stride, dilation, size, taps, min(stride, kernel), count, skipped, front, before, after)


def _fitted(c: Context, grad: Ref, weight: Ref, phases: Sequence[GradientPhase]) -> tuple[Ref, Ref]:
    """The gradient with every output that some input position reads, and the weight with whole rows of phases."""
    for d, phase in enumerate(phases, start=2):
        grad = grad.slice(d, max(0, -phase.before), grad.shape[d] - max(0, -phase.after))
    lo = (0, 0, *(max(0, phase.before) for phase in phases))
    after = (0, 0, *(max(0, phase.after) for phase in phases))
    if (wide := tuple(n + a + z for n, a, z in zip(grad.shape, lo, after, strict=True))) != grad.shape:
        grad = c.b.window(wide, grad, lo)
    if (kernel := (*weight.shape[:2], *(phase.kept * phase.taps for phase in phases))) != weight.shape:
        weight = c.b.window(kernel, weight, (0, 0, *(phase.front for phase in phases)))
    return grad, weight


def _phase_sums(c: Context, grad: Ref, weight: Ref, phases: Sequence[GradientPhase], groups: int) -> Ref:
    """(N, [G,] C, a, [r,] ...): sums over o and t of grad[n, g, o, a - t] * weight[g, o, c, r + stride * t].

    Dims of size 1 in brackets are left out. t runs backwards, so that the gradient, the larger one, is read forwards.
    """
    counts, taps = [phase.count for phase in phases], [phase.taps for phase in phases]
    grad = windows(_grouped(c, grad, 1, groups), counts, taps, [1] * len(phases), [p.dilation for p in phases])
    weight = _grouped(c, weight, 0, groups)
    weight = c.b.reshape(weight, (*weight.shape[:3], *(n for phase in phases for n in (phase.taps, phase.kept))))
    for d in range(len(phases)):
        weight = weight.flip(3 + 2 * d)
    abc, ijk, rst = (letters[: len(phases)] for letters in ("abc", "ijk", "rst"))
    kernel = "".join(i + r for i, r in zip(ijk, rst, strict=True))
    space = "".join(a + r * (phase.kept > 1) for a, r, phase in zip(abc, rst, phases, strict=True))
    return c.b.einsum(f"NGO{abc}{ijk},GOC{kernel}->N{'G' * (groups > 1)}C{space}|O{ijk}", grad, weight)


def _interleaved(c: Context, sums: Ref, shape: Sizes, phases: Sequence[GradientPhase]) -> Ref:
    """The phases interleaved, with zeros for those that no tap reaches."""
    lead = sums.rank - sum(1 + (phase.kept > 1) for phase in phases)
    apart = [n for phase in phases for n in (phase.count, phase.kept)]
    sums = c.b.reshape(sums, (*sums.shape[:lead], *apart))
    if any(phase.kept < phase.stride for phase in phases):
        whole = [n for phase in phases for n in (phase.count, phase.stride)]
        if sums.rank > MAX_RANK:  # merges groups and channels
            sums = c.b.reshape(sums, (shape[0], shape[1], *apart))
        sums = c.b.window((*sums.shape[: sums.rank - len(whole)], *whole), sums, (0,) * sums.rank)
    joined = c.b.reshape(sums, (shape[0], shape[1], *(phase.count * phase.stride for phase in phases)))
    for d, phase in enumerate(phases, start=2):
        joined = joined.slice(d, phase.skipped, phase.skipped + phase.size)
    return joined


def _spread_gradient(
    c: Context, grad: Ref, weight: Ref, shape: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Ref:
    """`input_gradient` by correlating the spread gradient with the flipped kernel.

    The spread gradient holds grad[y] at position y * stride + (k - 1) * dilation - padding of a tensor of size space +
    (k - 1) * dilation; positions outside are dropped.
    """
    kernel = weight.shape[2:]
    lo, sizes = [0, 0], list(grad.shape[:2])
    for d, (k, s, p, e) in enumerate(zip(kernel, stride, padding, dilation, strict=True), start=2):
        size = shape[d] + (k - 1) * e
        first = (k - 1) * e - p
        skip = max(0, -(first // s) if first < 0 else 0)
        grad = grad.slice(d, skip, min(grad.shape[d], max(0, (size - 1 - first) // s + 1)))
        lo.append(first + skip * s)
        sizes.append(size)
    zeros = c.b.window(tuple(sizes), grad, lo, step=(1, 1, *stride))
    w_GOC = _grouped(c, weight, 0, groups)
    for d in range(len(kernel)):
        w_GOC = w_GOC.flip(3 + d)
    w_GCO = w_GOC.permute([0, 2, 1, *range(3, w_GOC.rank)])
    swapped = c.b.reshape(c.b.copy(w_GCO), (w_GCO.shape[0] * w_GCO.shape[1], *w_GCO.shape[2:]))
    return _correlate(c, zeros, swapped, shape, (1,) * len(kernel), dilation, groups)


def _weight_gradient(c: Context, grad: Ref, x: Ref, shape: Sizes, stride: Sizes, dilation: Sizes, groups: int) -> Ref:
    """dw[g, o, c, k] = sum over n, s of grad[n, g, o, s] * x[n, g, c, s * stride + k * dilation]; x is padded."""
    x = windows(_grouped(c, x, 1, groups), grad.shape[2:], shape[2:], stride, dilation)
    xyz, ijk = "xyz"[: len(stride)], "ijk"[: len(stride)]
    return c.b.reshape(c.b.einsum(f"NGO{xyz},NGC{xyz}{ijk}->GOC{ijk}|N{xyz}", _grouped(c, grad, 1, groups), x), shape)


@lowers("convolution_backward.default")
def convolution_backward(
    c: Context, grad: Ref, x: Ref, weight: Ref, _bias_sizes: Sizes | None, stride: Sizes, padding: Sizes,
    dilation: Sizes, transposed: bool, _output_padding: Sizes, groups: int, wanted: Sequence[bool],
) -> tuple[Ref | None, Ref | None, Ref | None]:  # fmt: skip
    """Gradients of input, weight and bias."""
    stride, padding, dilation = (spread(v, x.rank - 2) for v in (stride, padding, dilation))
    d_input = d_weight = d_bias = None
    if wanted[0] and transposed:
        d_input = _correlate(c, _padded(c, grad, padding), weight, x.shape, stride, dilation, groups)
    elif wanted[0]:
        d_input = input_gradient(c, grad, weight, x.shape, stride, padding, dilation, groups)
    if wanted[1]:
        small, large = (x, grad) if transposed else (grad, x)
        d_weight = _weight_gradient(c, small, _padded(c, large, padding), weight.shape, stride, dilation, groups)
    if wanted[2]:
        d_bias = c.b.sum(grad, [0, *range(2, grad.rank)])
    return d_input, d_weight, d_bias
