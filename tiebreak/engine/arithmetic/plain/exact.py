"""Exact sums in fixed point, in torch on any device: the fallback of every sum that nothing else decides.

Terms are FP64 numbers: exact products of two f32, or f32 themselves, which are multiples of 2^-298 below 2^256. A sum
of terms is kept as *digits*, signed 64-bit integers with room for carries (Neal's small superaccumulator, 2015, for
many elements at once).

**Terms.** With S = 1.5 * 2^(52 + g), fl(fl(p + S) - S) is p rounded to a multiple of 2^g, for |p| < 2^(51 + g), and the
remainder is exact and at most 2^(g - 1). As g goes down a fixed grid of 32 bits, each step moves the highest digit of
the remainders into the sums; the loop skips steps without remainders.

**Matrices.** A tile of a matrix product with many undecided elements is computed as a whole, modulo primes below 2^22:
residues are at most 2^21, so 2^10 of their products add exactly in FP64, in any order, and each prime costs one fast
matrix product whatever the data (Ozaki's scheme II, 2025). For at most 2^6 terms, primes go up to 2^24.39, and fewer
are enough. With M the product of the primes, x is sum(y_i M / p_i) - q M for y_i = x (M / p_i)^-1 mod p_i; M is at
least 4 |x|, so q is the nearest integer to sum(y_i / p_i). The number of primes depends on the range of the data's
exponents, and is at most 27.

**Rounding.** What does not fit a signed digit is carried, from the lowest digit up. Those below one then add up to less
than 0.51 of its unit. So the sum in FP64 of the digits from the highest down to any one has the sign of the exact one,
and its exponent says where the number begins; two or three digits from there on and the sign of the rest decide.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, pairwise
from math import isqrt, prod
from operator import mul
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plan.rounding import Round
from tiebreak.engine.arithmetic.plan.views import Dim, Integers, coalesce, offsets, read_rows
from tiebreak.protocol.program.isa import Instruction, Opcode, ScatterParams
from tiebreak.protocol.program.rounding import sum_kind

ROW_BUDGET: Final = 1 << 20
"""The number of terms read at once."""
CACHED: Final = 1 << 15
"""The number of terms or residues that a CPU works on at once, and keeps in its cache."""
LEAST: Final = -298
"""Terms are multiples of 2^LEAST."""
_BITS: Final = 32
_DIGITS: Final = 20
"""Enough for 506 + 48 bits, 2^31 terms and a sign."""
_EXPONENT: Final = 0x7FF

Exact = tuple[int, int] | None
"""(n, e) of the exact sum n * 2^e; None if a term is not finite."""


class Digits:
    """Exact sums of some elements, as i64 digits (digits, U) of 32 bits, the lowest of weight 2^LEAST."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

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

    def packed(self) -> Tensor:
        """The same numbers in digits of i32, which are unique."""
        values = self.values.clone()
        while bool((up := (values + (1 << (_BITS - 1))).bitwise_right_shift_(_BITS)).any()):
            values -= up << _BITS
            values[1:] += up[:-1]
        return values.to(torch.int32)

    def rounded(self, rounded: Round) -> Tensor:
        """RN of each sum, f32 (U,); zero is +0."""
        used = self.values.ne(0).any(1).nonzero().view(-1)
        if not len(used):
            return torch.zeros(self.values.shape[1:], dtype=torch.float32, device=self.values.device)
        first, last = int(used[0]), min(int(used[-1]) + 3, len(self.values))
        digits = _room(last - first, self.values)
        over = torch.zeros_like(self.values[0])
        for at, digit in enumerate(digits[2:-1], first):
            over += self.values[at]
            up = (over + (1 << (_BITS - 1))).bitwise_right_shift_(_BITS)
            digit.copy_(over.sub_(up << _BITS))
            over = up
        return _round_digits(digits, _BITS, LEAST + _BITS * first, rounded)

    def integers(self) -> list[int]:
        """The sums in units of 2^LEAST."""
        rows = self.values.T.tolist()
        return [sum(digit << (_BITS * at) for at, digit in enumerate(row)) for row in rows]


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(s, t) with s = fl(a + b) and s + t = a + b exactly (Knuth)."""
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def round_to_odd(s: Tensor, t: Tensor) -> Tensor:
    """s + t (|t| <= ulp(s)/2, FP64) rounded to FP64, to the neighbour with odd significand unless exact."""
    bits = s.contiguous().view(torch.int64)
    away = s.sign().mul_(t.sign()).to(torch.int64)  # 0 if exact
    return away.mul_(~bits & 1).add_(bits).view(torch.float64)


def _room(digits: int, like: Tensor) -> Tensor:
    """FP64 memory for some rows of digits, with two rows of zeros below the lowest and one above the highest."""
    room = torch.empty((digits + 3, *like.shape[1:]), dtype=torch.float64, device=like.device)
    room[:2], room[-1] = 0, 0
    return room


def _power(exponent: Tensor) -> Tensor:
    """2^exponent, FP64, for i64 exponents of normal numbers."""
    return (exponent + 1023).bitwise_left_shift_(52).view(torch.float64)


def _round_digits(digits: Tensor, bits: int, least: int, rounded: Round) -> Tensor:
    """RN of numbers in signed digits of some bits, the third (`_room`) of weight 2^least; zero is +0."""
    below = torch.empty_like(digits)
    below[0] = 0
    for digit, under, here in zip(digits[1:], below, below[1:], strict=False):
        torch.add(digit, under, alpha=2.0**-bits, out=here)
    exponent = (below[-1].view(torch.int64) >> 52).bitwise_and_(_EXPONENT)
    whole = -(-1023 // bits)  # so that a product and a shift divide a number that is not negative
    place = exponent.add_(bits * whole - 1023).mul_(-(-(1 << 20) // bits)).bitwise_right_shift_(20)
    place.add_(len(digits) - 1 - whole).clamp_(2, len(digits) - 2)
    count = digits.shape[1]
    at = torch.arange(-2 * count, -count, device=digits.device).add_(place, alpha=count)
    over, top, under = (digits.view(-1)[n * count :].index_select(0, at) for n in (3, 2, 1))
    rest = below.view(-1).index_select(0, at).sign_()
    high = over.mul_(2.0**bits).add_(top).mul_(2.0**bits)
    odd = round_to_odd(*two_sum(high, under.add_(rest, alpha=0.5)))
    return rounded(odd.mul_(_power(place.sub_(3).mul_(bits).add_(least)))).add_(0.0)


# ---- matrix products, modulo primes ----

_DIGIT_BITS: Final = 26
_POWERS: Final = 254
_BLOCK: Final = 1 << 10
"""The number of products of residues that add exactly modulo primes below `_PRIMES_BELOW`."""
_PRIMES_BELOW: Final = 1 << 22
_FEW: Final = 1 << 6
"""The number of products that add exactly modulo primes below `_GREATER_BELOW`."""
_GREATER_BELOW: Final = 22_000_000
TILE: Final = 1 << 18
"""The number of elements of a result that are computed at once."""


@dataclass(frozen=True)
class _Basis:
    """Primes p_i whose product M exceeds some number of bits; numbers are kept as digits of 26 bits."""

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
    def digits(self) -> tuple[Tensor, Tensor]:
        """The signed digits of each M / p_i and of -M (digits, primes + 1), and 1 / p_i (primes,), in FP64."""
        count = self.modulus.bit_length() // (2 * _DIGIT_BITS) * 2 + 2
        rows, half = [], 1 << (_DIGIT_BITS - 1)
        for n in (*(self.modulus // p for p in self.primes), -self.modulus):
            lower = list(accumulate(range(count - 1), lambda n, _: (n + half) >> _DIGIT_BITS, initial=n))
            rows.append([*((n + half) % (2 * half) - half for n in lower[:-1]), lower[-1]])
        found = torch.tensor(rows, dtype=torch.float64)
        return found.T.contiguous(), 1 / torch.tensor(self.primes, dtype=torch.float64)

    @cached_property
    def powers(self) -> tuple[Tensor, Tensor]:
        """2^n modulo each prime, and 2^n (M / p_i)^-1: FP64 (primes, 254), at most p / 2 in magnitude."""
        found: tuple[list[list[int]], list[list[int]]] = ([], [])
        for p, inverse in zip(self.primes, self.inverses, strict=True):
            for rows, first in zip(found, (1, inverse), strict=True):
                powers = list(accumulate(range(_POWERS - 1), lambda n, _, p=p: 2 * n % p, initial=first))  # type: ignore[misc]
                rows.append([n if n <= p // 2 else n - p for n in powers])
        plain, inverted = (torch.tensor(rows, dtype=torch.float64) for rows in found)
        return plain, inverted


@cache
def _primes(below: int) -> tuple[int, ...]:
    """The 28 greatest primes below an even number."""
    found: list[int] = []
    at = below - 1
    while len(found) < 28:
        if all(at % d for d in range(3, isqrt(at) + 1, 2)):
            found.append(at)
        at -= 2
    return tuple(found)


@cache
def _basis(bits: int, below: int) -> _Basis:
    products = accumulate(_primes(below), mul)
    return _Basis(_primes(below)[: next(n for n, found in enumerate(products, 1) if found.bit_length() > bits)])


_Primes = tuple[Tensor, Tensor]
"""Some primes and their reciprocals, FP64, each (G, 1)."""


@dataclass(frozen=True)
class Factors:
    """An operand of a matrix product as integers times powers of two: finite f32 values, any shape, in FP64."""

    whole: Tensor
    """Signed integers below 2^24 in magnitude."""
    bit: Tensor
    """The exponents: each number is `whole` times 2^(low + bit - 149); i32."""
    low: int
    high: int
    """The greatest bit of the numbers that are not zero; `low` is the least."""

    @classmethod
    def of(cls, x: Tensor) -> "Factors":
        """Converts f32 values; those that are not finite become zero."""
        x = torch.where(x.isfinite(), x, 0.0).contiguous()
        bit = (x.view(torch.int32) >> 23).bitwise_and_(0xFF).sub_(1).clamp_min_(0)
        scale = torch.tensor([2.0 ** (149 - n) for n in range(254)], dtype=torch.float64, device=x.device)
        whole = x.to(torch.float64).mul_(scale.index_select(0, bit.view(-1)).view(x.shape))
        low, high = int(torch.where(x == 0, 254, bit).min()), int(bit.max())
        low = min(low, high)
        return cls(whole, bit.sub_(low).clamp_min_(0), low, high)  # the bit of a zero is arbitrary

    def modulo(self, primes: _Primes, powers: Tensor, out: Tensor, room: Tensor) -> Tensor:
        """Residues modulo G primes with `powers` of two (G, 254), in `out`: (G, *shape). `room`: as for `_reduce`."""
        out = out[: len(powers)]
        pieces = (torch.split(x, max(1, CACHED // len(out)), -1) for x in (out, self.bit.view(-1), self.whole.view(-1)))
        for to, bit, whole in zip(*pieces, strict=True):
            for row, those in zip(to, powers, strict=True):
                torch.index_select(those, 0, bit, out=row)
            _reduce(to.mul_(whole), primes, room)
        return out.view(len(out), *self.whole.shape)


def _reduce(x: Tensor, primes: _Primes, room: Tensor) -> Tensor:
    """Integers below 2^53 in FP64, (G, n), modulo primes, in place: at most p / 2 in magnitude, or slightly more.

    `room`: FP64 memory for `CACHED` numbers, made once, because fresh pages cost more than the work on them.
    """
    p, inverse = primes
    for piece in (x,) if x.numel() <= CACHED else torch.split(x, max(1, CACHED // len(x)), 1):
        quotient = torch.mul(piece, inverse, out=room[: piece.numel()].view_as(piece)).round_()
        piece.addcmul_(quotient, p, value=-1)
    return x


def multiply_exactly(a: Tensor, b: Tensor, rounded: Round) -> Tensor:
    """RN of the exact products (Bt, M, K) x (Bt, K, N) of f32 values: f32 (Bt, M, N).

    Elements with a term that is not finite are undefined.
    """
    out = torch.empty((a.shape[0], a.shape[1], b.shape[2]), dtype=torch.float32, device=a.device)
    rows = max(1, TILE // (a.shape[0] * b.shape[2]))
    right = Factors.of(b)
    for at in range(0, a.shape[1], rows):
        out[:, at : at + rows] = _multiply_factors(Factors.of(a[:, at : at + rows]), right, rounded)
    return out


def _multiply_factors(left: Factors, right: Factors, rounded: Round) -> Tensor:
    shape = (left.whole.shape[0], left.whole.shape[1], right.whole.shape[2])
    terms, device = left.whole.shape[2], left.whole.device
    bits = left.high - left.low + right.high - right.low + 48 + terms.bit_length() + 3
    basis = _basis(bits, _GREATER_BELOW if terms <= _FEW else _PRIMES_BELOW)
    primes = torch.tensor(basis.primes, dtype=torch.float64, device=device)[:, None]
    residues = torch.empty((len(primes) + 1, prod(shape)), dtype=torch.float64, device=device)  # and q
    room = torch.empty(CACHED, dtype=torch.float64, device=device)
    group = max(1, CACHED // max(left.whole.numel(), right.whole.numel()))
    rooms = [torch.empty((group, x.whole.numel()), dtype=torch.float64, device=device) for x in (left, right)]
    tables = (torch.split(x.to(device), group) for x in (residues[:-1], primes, 1 / primes, *basis.powers))
    for sums, p, inverse, plain, inverted in zip(*tables, strict=True):
        a, b = left.modulo((p, inverse), inverted, rooms[0], room), right.modulo((p, inverse), plain, rooms[1], room)
        for n, out in enumerate(sums):
            _multiply_modulo(a[n], b[n], (p[n : n + 1], inverse[n : n + 1]), out.view(shape), room)
    weights, parts = (digits.to(device) for digits in basis.digits)
    found = []
    for flat in torch.split(residues, CACHED // 2, 1):
        torch.mv(flat[:-1].T, parts, out=flat[-1]).round_()
        total = torch.mm(weights, flat)
        digits = _room(len(total) // 2, total)
        torch.add(*_carried(total), alpha=2.0**_DIGIT_BITS, out=digits[2:-1])
        found.append(_round_digits(digits, 2 * _DIGIT_BITS, left.low + right.low + LEAST, rounded))
    return torch.cat(found).view(shape)


def _multiply_modulo(a: Tensor, b: Tensor, p: _Primes, out: Tensor, room: Tensor) -> None:
    """a x b modulo one prime, for residues: blocks of terms whose products add exactly, many at once if few results."""
    (batch, m, terms), n = a.shape, b.shape[2]
    if terms <= _BLOCK:
        _reduce(torch.bmm(a, b, out=out).view(1, -1), p, room)
        return
    step = _BLOCK * max(1, min(terms // _BLOCK, TILE // out.numel()))
    out.zero_()
    for at in range(0, terms, step):
        blocks = max(1, min(step, terms - at) // _BLOCK)
        whole = slice(at, at + min(blocks * _BLOCK, terms - at))
        left = a[:, :, whole].reshape(batch, m, blocks, -1).transpose(1, 2).reshape(batch * blocks, m, -1)
        sums = torch.bmm(left, b[:, whole].reshape(batch * blocks, -1, n))
        out.add_(_reduce(sums.view(1, -1), p, room).view(batch, blocks, m, n).sum(1))
        if whole.stop < min(at + step, terms):
            rest = slice(whole.stop, min(at + step, terms))
            sums = torch.bmm(a[:, :, rest], b[:, rest])
            out.add_(_reduce(sums.view(1, -1), p, room).view(out.shape))
    _reduce(out.view(1, -1), p, room)


def _carried(digits: Tensor) -> tuple[Tensor, Tensor]:
    """Digits of 26 bits, an even number of them and below 2^53, as signed ones: those at even and at odd places."""
    shift, over = 1.5 * 2.0 ** (52 + _DIGIT_BITS), torch.empty_like(digits[0])
    for low, high in pairwise(digits):
        torch.add(low, shift, out=over).sub_(shift)
        low.sub_(over)
        high.add_(over, alpha=2.0**-_DIGIT_BITS)
    return digits[0::2], digits[1::2]


# ---- single elements of an instruction ----


def read_terms(
    operands: Sequence[Tensor], starts: Sequence[int], output: Sequence[Dim], summed: Sequence[Dim],
    elements: Tensor, begin: int, end: int,
) -> list[Tensor]:  # fmt: skip
    """Terms begin ... end - 1 of some elements (row-major numbers) from each operand, each (U, end - begin)."""
    sizes, terms, rows = [d.size for d in output], [d.size for d in summed], []
    for o, (base, start) in enumerate(zip(operands, starts, strict=True)):
        places = offsets(elements, sizes, [d.strides[o] for d in output], start)
        rows.append(read_rows(base, places, terms, [d.strides[o] for d in summed], begin, end))
    return rows


@dataclass(frozen=True)
class ElementReader:
    """Reads the terms of single elements, numbered row-major over the result."""

    instruction: Instruction
    operands: Sequence[Tensor]

    @property
    def terms(self) -> int:
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
        i, (output, summed) = self.instruction, self._dims
        rows = read_terms(self.operands, [a.offset for a in i.operands], output, summed, elements, begin, end)
        if i.opcode == Opcode.SCATTER_SUM:
            wanted = offsets(elements, [d.size for d in output], [d.strides[2] for d in output], 0)
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
    numbers = torch.from_numpy(np.array(elements, dtype=np.int64)).to(operands[0].device)
    total, finite = exact_digits(instruction, operands, numbers)
    pairs = zip(total.integers(), finite.tolist(), strict=True)
    return [(n, LEAST) if usable else None for n, usable in pairs]


def exact_digits(instruction: Instruction, operands: Sequence[Tensor], elements: Tensor) -> tuple[Digits, Tensor]:
    """The exact sums of some elements (i64 row-major numbers), and a mask of those with only finite terms."""
    terms = ElementReader(instruction, operands)
    chunks = torch.split(elements, max(1, ROW_BUDGET // terms.terms))
    found = [add_elements(terms.read, chunk, terms.terms) for chunk in chunks]
    return Digits(torch.cat([total.values for total, _ in found], 1)), torch.cat([finite for _, finite in found])
