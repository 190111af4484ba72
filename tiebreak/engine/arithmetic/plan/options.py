"""The options, the rounding and the counts that all instructions of an `Arithmetic` share.

**Rounding** takes FP64 to f32 numbers of b bits (1 sign, 8 exponent, b - 9 fraction bits), to nearest, ties to even. A
normal result keeps b - 9 of the 52 fraction bits. Adding half of the last kept bit's weight, less one unit unless that
bit is set, and truncating the rest rounds the magnitude, including a carry into the exponent; 2^128 becomes infinity,
as in FP32. Below 2^-126 the spacing is fixed, 2^(-126-(b-9)): adding and subtracting 1.5 * 2^52 times the spacing
rounds to it, except for the sign of a zero. Infinities stay as they are. A NaN is handled separately, because its
payload might carry into the sign.

**Counts** say exactly, per kind of instruction, how often the fast path was not enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plan.ziv import Collector, Logging
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.program.isa import Instruction

_LEAST_NORMAL: Final = 2.0**-126
_EXPONENT_MASK: Final = 0x7FF << 52


class Round:
    """`round(x)`: rounds FP64 numbers of any shape and device to a new f32 tensor of some precision."""

    def __init__(self, precision: int = MAX_PRECISION) -> None:
        if not MIN_PRECISION <= precision <= MAX_PRECISION:
            raise ValueError(f"expected a precision of {MIN_PRECISION} to {MAX_PRECISION} bits, got {precision}")
        self.precision = precision

    def __call__(self, x: Tensor, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
        """Rounds; a zero result keeps its sign."""
        if self.precision == MAX_PRECISION:
            return x.to(torch.float32, memory_format=memory_format)
        drop = 61 - self.precision
        bits = x.view(torch.int64)
        kept = (bits >> drop).bitwise_and_(1).add_((1 << (drop - 1)) - 1).add_(bits)
        normal = kept.bitwise_and_(-1 << drop).view(torch.float64)
        shift = 1.5 * 2.0 ** (-65 - self.precision)
        small = (x + shift).sub_(shift).copysign_(x)
        rounded = torch.where(x.abs() < _LEAST_NORMAL, small, normal)
        return torch.where(x.isnan(), x, rounded).to(torch.float32, memory_format=memory_format)

    def gaps(self, c: Tensor) -> Tensor:
        """The gap between the two neighbours, of this precision, around each finite FP64 number."""
        power = (c.contiguous().view(torch.int64) & _EXPONENT_MASK).view(torch.float64)
        return power.clamp_min_(_LEAST_NORMAL).mul_(2.0 ** (9 - self.precision))


class _Counter:
    """A count to which the host adds, and kernels at one index of `Counts.on`. Reading it waits for their device."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, counts: "Counts", _: type["Counts"]) -> int:
        found = 0 if counts.on_device is None else int(counts.on_device[self._place])
        return counts.on_host[self._place] + found

    def __set__(self, counts: "Counts", value: int) -> None:
        counts.on_host[self._place] += value - self.__get__(counts, Counts)


@dataclass(slots=True)
class Counts:
    """The number of output elements of each kind of instruction, by how they were settled."""

    logged: int = 0
    """Elements that the first test did not decide, and that were reported as near ties instead of settled."""
    seconds_resolving: float = 0.0
    """Time spent on undecided elements, as if all threads shared it equally. Kernels on a device do not measure it."""
    on_host: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    on_device: Tensor | None = None
    elements = _Counter(0)
    undecided = _Counter(1)
    """Elements that the first Ziv test (in FP64) did not decide."""
    undecided_twice = _Counter(2)
    """Elements summed exactly. The others are sums on a grid (C) or decided in doubled precision (GPUs)."""
    double_rounded = _Counter(3)
    """Elements that FP64-then-round would have got wrong: rounded, C is not the exact result's rounding."""

    def on(self, device: torch.device) -> Tensor:
        """i64 (4,), always the same: elements, undecided, undecided twice and double rounded, for kernels to add to."""
        if self.on_device is None:
            self.on_device = torch.zeros(len(self.on_host), dtype=torch.int64, device=device)
        return self.on_device


@dataclass(slots=True)
class Stats:
    """Counts by kind: `reduce.sum.products`, `reduce.sum.plain`, `scatter_sum`, `map.exp`, ..."""

    kinds: dict[str, Counts] = field(default_factory=dict)

    def of(self, kind: str) -> Counts:
        """The counts of a kind; created on first use."""
        return self.kinds.setdefault(kind, Counts())

    @property
    def seconds_resolving(self) -> float:
        """Time spent on undecided elements of all kinds."""
        return sum(counts.seconds_resolving for counts in self.kinds.values())


Operands = Sequence[Tensor]
Prepared = Callable[[Operands, int, Collector | None], Tensor]
"""A prepared instruction: (operands, step, collector of a logged sum's near ties) -> result."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an `Arithmetic`."""

    device: torch.device
    shuffled: torch.Generator | None
    """The source of random orders in which the terms of every sum are taken, by kernels long ones in pieces; None for
    their own order. No order changes a bit, which audits use it to show."""
    precision: int
    """The number of bits to which sums and transcendentals are rounded."""
    logging: Logging | None
    """The rules for finding near ties; None under policy `exact`."""
    fp64: int
    """About how many elements one FP64 tensor of torch's has: on a CPU it stays in the cache, elsewhere it gives a
    device work."""
    reads_values: bool
    """Whether to read values on the host in order to skip work costs less than that work: on CPUs."""
    compiled: bool
    """Whether compiled kernels may compute; without them it is torch alone."""
    by_integers: bool
    """Whether a GPU computes all products by integers that it can, faster or not; else the environment decides."""

    def rounding(self, instruction: Instruction) -> Round:
        """Rounds the sums of an instruction: to bfloat16, or to the job's precision."""
        return Round(MIN_PRECISION if instruction.is_bf16_sum else self.precision)
