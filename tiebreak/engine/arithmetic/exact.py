"""Exact sums in fixed point, in torch on any device: the fallback of every sum that nothing else decides.

Terms are FP64 numbers: exact products of two f32, or f32 themselves, which are multiples of 2^-298 below 2^256. A sum
of terms is kept as *digits*, signed 64-bit integers with room for carries (Neal's small superaccumulator, 2015, for
many elements at once).

**Terms.** With S = 1.5 * 2^(52 + g), fl(fl(p + S) - S) is p rounded to a multiple of 2^g, for |p| < 2^(51 + g), and the
remainder is exact and at most 2^(g - 1). As g goes down a fixed grid of 32 bits, each step moves the highest digit of
the remainders into the sums; the loop skips steps without remainders.

**Matrices.** A tile of a matrix product with many undecided elements is computed as a whole, modulo primes below 2^22:
residues are at most 2^21, so 2^10 of their products add exactly in FP64, in any order, and each prime costs one fast
matrix product whatever the data (Ozaki's scheme II, 2025). With M the product of the primes, x is
sum(y_i M / p_i) - q M for y_i = x (M / p_i)^-1 mod p_i; M is at least 4 |x|, so q is the nearest integer to
sum(y_i / p_i). The number of primes depends on the range of the data's exponents, and is at most 27.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from math import prod
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tiebreak.engine.arithmetic.rounding import Round
from tiebreak.engine.arithmetic.views import Dim, coalesce, offsets, read_rows
from tiebreak.protocol.program.isa import Instruction, Opcode, ScatterParams
from tiebreak.protocol.program.rounding import sum_kind

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ROW_BUDGET: Final = 1 << 20
"""The number of terms read at once."""
CACHED: Final = 1 << 15
"""The number of terms added at once on a CPU, which keeps them in its cache."""
LEAST: Final = -298
"""Terms are multiples of 2^LEAST."""
_BITS: Final = 32
_DIGITS: Final = 20
"""Enough for 506 + 48 bits, 2^31 terms and a sign."""
_EXPONENT: Final = 0x7FF

Exact = tuple[int, int] | None
"""(n, e) of the exact sum n * 2^e; None if a term is not finite."""


class Digits:
    """Exact sums of some elements, as i64 digits (digits, U) of `bits` bits, the lowest of weight 2^least."""

    def __init__(self, values: Tensor, bits: int = _BITS, least: int = LEAST) -> None:
        self.values, self.bits, self.least = values, bits, least

    @classmethod
    def zeros(cls, elements: int, device: torch.device) -> "Digits":
        """Sums without terms."""
        return cls(torch.zeros((_DIGITS, elements), dtype=torch.int64, device=device))

    def add(self, terms: Tensor) -> None:
        """Adds finite terms (U, K), K at most 2^20."""
        rest, peak = terms, float(terms.abs().max()) if terms.numel() else 0.0
        while peak:
            digit = (int(np.frexp(peak)[1]) - 1 - LEAST) // _BITS
            shift = 1.5 * 2.0 ** (52 + LEAST + _BITS * digit)
            high = (rest + shift).sub_(shift)
            self.values[digit] += (high.sum(1) * 2.0 ** -(LEAST + _BITS * digit)).to(torch.int64)
            rest = rest - high
            peak = float(rest.abs().max())

    def rounded(self, rounded: Round) -> Tensor:
        """RN of each sum, f32 (U,); zero is +0.

        From below, all is carried that does not fit a signed digit. The digits below one then add up to at most half of
        its unit, so the highest that is not zero, the one below it and the sign of the rest round like the whole sum.
        """
        used = self.values.ne(0).any(1).nonzero().view(-1)
        if not len(used):
            return torch.zeros(self.values.shape[1:], dtype=torch.float32, device=self.values.device)
        first, last = int(used[0]), min(int(used[-1]) + 3, len(self.values))
        digits = self.values.new_zeros((last - first + 3, self.values.shape[1]))  # two zeros stand below the lowest
        over = digits[0].clone()
        for at, digit in enumerate(digits[2:], first):
            over += self.values[at] if at < last else 0
            digit.copy_(over)
            over.add_(1 << (self.bits - 1)).bitwise_right_shift_(self.bits)
            digit.sub_(over << self.bits)
        index = torch.arange(len(digits), dtype=torch.uint8, device=digits.device)[:, None]
        numbered = digits.ne(0) * index
        place = numbered.amax(0).clamp_min_(2)
        rest = torch.where(numbered < place - 1, numbered, 0).amax(0)
        place = place.to(torch.int64)
        top, under, below = (digits.gather(0, n[None])[0] for n in (place, place - 1, rest.to(torch.int64)))
        high = top.to(torch.float64).mul_(2.0**self.bits)
        odd = round_to_odd(*two_sum(high, under.to(torch.float64).add_(below.sign().mul(0.5))))
        return rounded(torch.ldexp(odd, (place + (first - 3)) * self.bits + self.least)).add_(0.0)

    def integers(self) -> list[int]:
        """Each sum in units of 2^least."""
        rows = self.values.T.tolist()
        return [sum(digit << (self.bits * at) for at, digit in enumerate(row)) for row in rows]


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(s, t) with s = fl(a + b) and s + t = a + b exactly (Knuth)."""
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def round_to_odd(s: Tensor, t: Tensor) -> Tensor:
    """s + t (|t| <= ulp(s)/2, FP64) rounded to FP64, to the neighbour with odd significand unless exact."""
    bits = s.contiguous().view(torch.int64)
    away = torch.where((s > 0) == (t > 0), 1, -1)
    odd = torch.where((t != 0) & (bits & 1 == 0), bits + away, bits)
    return odd.view(torch.float64)


# ---- matrix products, modulo primes ----

_PRIME_BITS: Final = 22
_BLOCK: Final = 1 << 10
"""The number of products of residues that add exactly."""
TILE: Final = 1 << 18
"""The number of elements of a result that are computed at once."""


@dataclass(frozen=True)
class _Basis:
    """Primes p_i whose product M exceeds some number of bits; numbers are kept as digits of 22 bits."""

    primes: tuple[int, ...]

    @cached_property
    def modulus(self) -> int:
        """The product M of the primes."""
        return prod(self.primes)

    @cached_property
    def inverses(self) -> tuple[int, ...]:
        """(M / p_i)^-1 mod p_i for each prime."""
        return tuple(pow(self.modulus // p, -1, p) for p in self.primes)

    @cached_property
    def digits(self) -> tuple[Tensor, Tensor, Tensor]:
        """The digits of each M / p_i (digits, primes) and of M (digits,), and 1 / p_i (primes,), in FP64."""
        count = self.modulus.bit_length() // (2 * _PRIME_BITS) * 2 + 2
        mask = (1 << _PRIME_BITS) - 1
        rows = [[n >> (_PRIME_BITS * d) & mask for d in range(count)] for n in self._weights()]
        found = torch.tensor(rows, dtype=torch.float64)
        parts = 1 / torch.tensor(self.primes, dtype=torch.float64)
        return found[:-1].T.contiguous(), found[-1], parts

    def _weights(self) -> Iterator[int]:
        yield from (self.modulus // p for p in self.primes)
        yield self.modulus


@cache
def _primes() -> tuple[int, ...]:
    """The 28 greatest primes below 2^22."""
    found: list[int] = []
    at = (1 << _PRIME_BITS) - 1
    while len(found) < 28:
        if all(at % d for d in range(3, 1 << (_PRIME_BITS // 2), 2)):
            found.append(at)
        at -= 2
    return tuple(found)


@cache
def _basis(bits: int) -> _Basis:
    count = next(n for n in range(1, 29) if prod(_primes()[:n]).bit_length() > bits)
    return _Basis(_primes()[:count])


@dataclass(frozen=True)
class Factors:
    """An operand of a matrix product as integers times powers of two: finite f32 values in FP64, any shape."""

    whole: Tensor
    """Signed integers below 2^24 in magnitude."""
    bit: Tensor
    """The exponents: each number is `whole` times 2^(low + bit - 149); i32."""
    low: int
    high: int
    """The greatest bit of the numbers that are not zero; `low` is the least."""

    @classmethod
    def of(cls, x: Tensor) -> "Factors":
        """Converts values; those that are not finite become zero."""
        x = torch.where(x.isfinite(), x, 0.0)
        bit = ((x.view(torch.int64) >> 52 & _EXPONENT) - (1023 - 126)).clamp_min_(0)
        whole = torch.ldexp(x, 149 - bit)
        used = bit[whole != 0]
        low, high = (int(used.min()), int(used.max())) if used.numel() else (0, 0)
        at = (bit - low).clamp_(0, high - low).to(torch.int32)  # the bit of a zero is arbitrary
        return cls(whole.contiguous(), at.contiguous(), low, high)

    def modulo(self, p: int, out: Tensor, room: Tensor, factor: int = 1) -> Tensor:
        """The residues of the numbers times a factor, at most p / 2, in `out`, FP64. `room`: as for `_reduce`."""
        powers = [factor * pow(2, n, p) % p for n in range(self.high - self.low + 1)]
        table = torch.tensor([n if n <= p // 2 else n - p for n in powers], dtype=torch.float64)
        torch.index_select(table.to(self.whole.device), 0, self.bit.view(-1), out=out.view(-1))
        return _reduce(out.mul_(self.whole), p, room)


def _reduce(x: Tensor, p: int, room: Tensor) -> Tensor:
    """x mod p for integers below 2^53 in FP64, in place. `room` is FP64 memory of x's size or more, overwritten.

    The result is at most p / 2 in magnitude, or slightly more because the quotient is rounded.
    """
    quotient = torch.mul(x, 1 / p, out=room[: x.numel()].view(x.shape))
    return x.sub_(quotient.round_().mul_(p))


def multiply_exactly(a: Tensor, b: Tensor, rounded: Round) -> Tensor:
    """RN of the exact products (Bt, M, K) x (Bt, K, N) of f32 values in FP64: f32 (Bt, M, N).

    Elements with a term that is not finite are undefined.
    """
    out = torch.empty((a.shape[0], a.shape[1], b.shape[2]), dtype=torch.float32, device=a.device)
    rows = max(1, TILE // (a.shape[0] * b.shape[2]))
    right = Factors.of(b)
    for at in range(0, a.shape[1], rows):
        left = Factors.of(a[:, at : at + rows].contiguous())
        out[:, at : at + rows] = _multiply_factors(left, right, rounded)
    return out


def _multiply_factors(left: Factors, right: Factors, rounded: Round) -> Tensor:
    terms, device = left.whole.shape[2], left.whole.device
    shape = (left.whole.shape[0], left.whole.shape[1], right.whole.shape[2])
    basis = _basis(left.high - left.low + right.high - right.low + 48 + terms.bit_length() + 3)
    residues = torch.empty((len(basis.primes), *shape), dtype=torch.float64, device=device)
    # Memory is made once: fresh pages cost more than the work on them.
    a, b = torch.empty_like(left.whole), torch.empty_like(right.whole)
    room = torch.empty(max(a.numel(), b.numel(), residues[0].numel()), dtype=torch.float64, device=device)
    for sums, p, inverse in zip(residues, basis.primes, basis.inverses, strict=True):
        left.modulo(p, a, room, inverse)
        right.modulo(p, b, room)
        torch.bmm(a[:, :, :_BLOCK], b[:, :_BLOCK], out=sums)
        for at in range(_BLOCK, terms, _BLOCK):
            _reduce(sums, p, room).add_(torch.bmm(a[:, :, at : at + _BLOCK], b[:, at : at + _BLOCK]))
        _reduce(sums, p, room)
    weights, modulus, parts = (digits.to(device) for digits in basis.digits)
    found = []
    for flat in torch.split(residues.view(len(basis.primes), -1), CACHED // 4, 1):
        total = torch.mm(weights, flat).addr_(modulus, torch.mv(flat.T, parts).round_(), alpha=-1)
        digits = Digits(_joined(total.to(torch.int64)), 2 * _PRIME_BITS, left.low + right.low + LEAST)
        found.append(digits.rounded(rounded))
    return torch.cat(found).view(shape)


def _joined(digits: Tensor) -> Tensor:
    """Pairs of digits of 22 bits, an even number of them and below 2^53, as digits of 44 bits; in place."""
    for low, high in pairwise(digits):
        high += low >> _PRIME_BITS
        low &= (1 << _PRIME_BITS) - 1
    return digits[0::2].add_(digits[1::2].bitwise_left_shift_(_PRIME_BITS))


# ---- single elements of an instruction ----


@dataclass(frozen=True)
class _Terms:
    """Reads the terms of single elements, numbered row-major over the result."""

    instruction: Instruction
    operands: Sequence[Tensor]

    @property
    def count(self) -> int:
        """The number of terms of an element, K."""
        return prod(self.instruction.reduction)

    @cached_property
    def _dims(self) -> tuple[list[Dim], list[Dim]]:
        i, rank = self.instruction, len(self.instruction.shape)
        strides = [access.strides for access in i.operands]
        # The match strides count as another operand, so that dims are merged only where these allow it too.
        extra = [i.params.match] if isinstance(i.params, ScatterParams) else []
        output = coalesce(i.shape, [*(s[:rank] for s in strides), *extra])
        return output, coalesce(i.reduction, [s[rank:] for s in strides])

    def read(self, elements: Tensor, begin: int, end: int) -> Tensor:
        """Terms begin ... end - 1 of some elements, FP64 (U, end - begin)."""
        output, summed = self._dims
        sizes = [d.size for d in output]
        rows = []
        for o, access in enumerate(self.instruction.operands):
            starts = offsets(elements, sizes, [d.strides[o] for d in output], access.offset)
            steps = [d.strides[o] for d in summed]
            rows.append(read_rows(self.operands[o], starts, [d.size for d in summed], steps, begin, end))
        if self.instruction.opcode == Opcode.SCATTER_SUM:
            wanted = offsets(elements, sizes, [d.strides[2] for d in output], 0)
            return torch.where(rows[1] == wanted[:, None], rows[0].to(torch.float64), 0.0)
        found = rows[0].to(torch.float64)
        return found if len(rows) == 1 else found * rows[1].to(torch.float64)


Read = Callable[[Tensor, int, int], Tensor]
"""(elements, begin, end) -> terms begin ... end - 1 of these elements, FP64 (U, end - begin)."""


def add_elements(read: Read, elements: Tensor, terms: int, budget: int = ROW_BUDGET) -> tuple[Digits, Tensor]:
    """The exact sums of some elements (i64 numbers), and a mask of those with only finite terms."""
    total, finite = Digits.zeros(len(elements), elements.device), torch.ones_like(elements, dtype=torch.bool)
    step = max(1, min(terms, budget // max(1, len(elements))))
    for begin in range(0, terms, step):
        piece = read(elements, begin, min(begin + step, terms))
        usable = piece.isfinite()
        if not bool(usable.all()):
            finite &= usable.all(1)
            piece = torch.where(usable, piece, 0.0)
        total.add(piece)
    return total, finite


def exact_sums(instruction: Instruction, operands: Sequence[Tensor], elements: Sequence[int] | Integers) -> list[Exact]:
    """The exact sums of some elements (row-major numbers) of an f32 `reduce` sum or a `scatter_sum`.

    `operands`: for each operand the whole tensor that it reads, in order, as for `Arithmetic.execute`.
    """
    if sum_kind(instruction) is None:
        raise ValueError(f"expected an f32 sum, got {instruction.opcode.name} {instruction.function}")
    terms = _Terms(instruction, operands)
    numbers = torch.from_numpy(np.array(elements, dtype=np.int64)).to(operands[0].device)
    found: list[Exact] = []
    for chunk in torch.split(numbers, max(1, ROW_BUDGET // terms.count)):
        total, finite = add_elements(terms.read, chunk, terms.count)
        pairs = zip(total.integers(), finite.tolist(), strict=True)
        found += [(n, LEAST) if usable else None for n, usable in pairs]
    return found
