"""Chains of elementwise instructions on GPUs: the Triton twin of elementwise.c. Only `elementwise_fused.py` imports it.

`run` executes one chain, a block of elements a program, all of whose intermediate results are registers. The chain is
a constant of the kernel's compilation, so equal chains are compiled once; sizes and strides are numbers, not constants.
f32 add, sub, mul, div and sqrt are IEEE's, correctly rounded; nothing is contracted (`enable_fp_fusion=False`).

**exp and tanh** are those of elementwise.c, operation by operation, where the proof of their bounds stands, without
FMAs. What Ziv's test leaves open is computed again in *pairs*: h + l, unevaluated, with |l| at most half an ulp
of h. Let u = 2^-53. Joldes, Muller and Popescu, "Tight and rigorous error bounds for basic building blocks of
double-word arithmetic" (2017), prove for the algorithms used here relative errors below 3 u^2 + 13 u^3 for sums
(AccurateDWPlusDW), 7 u^2 for products (DWTimesDW1) and 15 u^2 + 56 u^3 for quotients (DWDivDW2).

1. r = x - k ln 2: x - k LN2[0] is exact, as in C; k LN2[1] is an exact pair; k LN2[2] errs by less than 2^-131. So r
   errs by less than 2.2 u^2 (two sums, |r| < 0.35), and not at all where k = 0.
2. q = sum of r^j / (j + 1)! for j <= 22 leaves out less than 2^-113. A step of Horner's rule errs by 3 u^2 of its sum,
   7 u^2 of its product and u^2 of its coefficient, and the error of each is multiplied by |r| < 0.35 in the next: below
   9 u^2 in q, with r's. So r q errs by less than 9 u^2, and where k = 0 by a relative 18 u^2.
3. exp x = 2^k (1 + r q) has a relative error below 20 u^2. In tanh a = t / (t + 2), t = 2^k r q + (2^k - 1) is above
   0.4 2^(k-1), or its product is all of it: a relative error below 60 u^2; with sum and quotient, below 100 u^2.

100 u^2 < 2^-99, and the second test allows OPEN = 2^-96. For |a| < 2^-24 tanh a is between a (1 - 2^-49) and a, where
no number of 25 bits is, so any number in between rounds like it. What is still open after that is counted: there is no
such f32 (docs/decisions/0066), and the host refuses a step with one.
"""

from fractions import Fraction
from math import factorial

import triton
import triton.language as tl

from tiebreak.engine.arithmetic.kernels.random import philox
from tiebreak.engine.arithmetic.kernels.sums import round_pair, round_to, two_sum
from tiebreak.protocol.program.isa import DType, MapFunction

LOAD = tl.constexpr(-1)
IOTA = tl.constexpr(-2)
RANDOM = tl.constexpr(-3)
COPY = tl.constexpr(int(MapFunction.COPY))
ADD = tl.constexpr(int(MapFunction.ADD))
SUB = tl.constexpr(int(MapFunction.SUB))
MUL = tl.constexpr(int(MapFunction.MUL))
DIV = tl.constexpr(int(MapFunction.DIV))
SQRT = tl.constexpr(int(MapFunction.SQRT))
BF16 = tl.constexpr(int(MapFunction.BF16))
NEG = tl.constexpr(int(MapFunction.NEG))
ABS = tl.constexpr(int(MapFunction.ABS))
MAX = tl.constexpr(int(MapFunction.MAX))
MIN = tl.constexpr(int(MapFunction.MIN))
LT = tl.constexpr(int(MapFunction.LT))
LE = tl.constexpr(int(MapFunction.LE))
EQ = tl.constexpr(int(MapFunction.EQ))
NE = tl.constexpr(int(MapFunction.NE))
AND = tl.constexpr(int(MapFunction.AND))
OR = tl.constexpr(int(MapFunction.OR))
NOT = tl.constexpr(int(MapFunction.NOT))
WHERE = tl.constexpr(int(MapFunction.WHERE))
FLOORDIV = tl.constexpr(int(MapFunction.FLOORDIV))
MOD = tl.constexpr(int(MapFunction.MOD))
CAST = tl.constexpr(int(MapFunction.CAST))
EXP = tl.constexpr(int(MapFunction.EXP))
TANH = tl.constexpr(int(MapFunction.TANH))
F32 = tl.constexpr(int(DType.F32))
I64 = tl.constexpr(int(DType.I64))

LOG2_E = tl.constexpr(float.fromhex("0x1.71547652b82fep+0"))
SHIFT = tl.constexpr(1.5 * 2.0**52)
LN2 = tl.constexpr(
    tuple(map(float.fromhex, ("0x1.62e42fee00000p-1", "0x1.a39ef35793c76p-33", "0x1.cc01f97b57a08p-87")))
)
"""In three parts, the first of 32 bits."""
RELATIVE = tl.constexpr(17 * 2.0**-52)
OPEN = tl.constexpr(2.0**-96)
SPLIT = tl.constexpr(2.0**27 + 1.0)
TERMS = tl.constexpr(12)
PAIRS = tl.constexpr(22)
INVERSE = tl.constexpr(tuple(1 / factorial(j + 1) for j in range(23)))
"""The coefficients 1 / (j + 1)!, rounded."""
REST = tl.constexpr(tuple(float(Fraction(1, factorial(j + 1)) - Fraction(1 / factorial(j + 1))) for j in range(23)))
"""What rounding left of each."""


# -- instructions (SPEC 4.4) ------------------------------------------------------------------------------------------


@triton.jit
def bits_of(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def float_of(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def to_bf16(x):
    """To nearest, ties to even; what carries out of the fraction goes to the exponent."""
    bits = bits_of(x)
    rounded = float_of((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000)
    return tl.where(x == x, rounded, x)


@triton.jit
def f32_to_i64(x):
    """Toward zero; beyond i64 its greatest or least, NaN is 0. Only what fits reaches the hardware's conversion."""
    fits = tl.abs(x) < 2.0**63
    beyond = tl.where(x > 0, 0x7FFFFFFFFFFFFFFF, tl.where(x < 0, -0x8000000000000000, 0))
    return tl.where(fits, tl.where(fits, x, 0.0).to(tl.int64), beyond)


@triton.jit
def cast(x, TO: tl.constexpr):
    if TO == F32:
        value = x.to(tl.float32)
    elif TO != I64:
        value = x != 0
    elif x.dtype == tl.float32:
        value = f32_to_i64(x)
    else:
        value = x.to(tl.int64)
    return value


@triton.jit
def divide(a, b, QUOTIENT: tl.constexpr):
    """i64, floored. Neither 0 nor -1 reaches the hardware as a divisor."""
    usual = (b != 0) & (b != -1)
    safe = tl.where(usual, b, 1)
    quotient = a // safe  # toward zero
    rest = a - quotient * safe
    below = ((rest != 0) & ((rest < 0) != (safe < 0))).to(tl.int64)
    floored = tl.where(usual, quotient - below, tl.where(b == 0, 0, 0 - a))
    return floored if QUOTIENT else tl.where(usual, rest + below * safe, 0)


@triton.jit
def extreme(x, chosen):
    """Of f32 a NaN is the extreme, and a zero is +0."""
    return tl.where(x == x, chosen, x) + 0.0 if x.dtype == tl.float32 else chosen


@triton.jit
def multiply(x, y, APART: tl.constexpr):
    """APART: f32 by an instruction that LLVM does not look into.

    For sm_100 it packs products and sums of two f32, and ptxas fuses these in spite of `.rn` and `--fmad=false`.
    """
    if APART and x.dtype == tl.float32:
        value = tl.inline_asm_elementwise("mul.rn.f32 $0, $1, $2;", "=f,f,f", [x, y], tl.float32, True, 1)
    else:
        value = x * y
    return value


@triton.jit
def apply(FUNCTION: tl.constexpr, RESULT: tl.constexpr, x, y, z, APART: tl.constexpr):  # noqa: C901 - a table
    """A function that is not transcendental."""
    if FUNCTION == COPY:
        value = x
    elif FUNCTION == ADD:
        value = x + y
    elif FUNCTION == SUB:
        value = x - y
    elif FUNCTION == MUL:
        value = multiply(x, y, APART)
    elif FUNCTION == DIV:
        value = tl.div_rn(x, y)
    elif FUNCTION == SQRT:
        value = tl.sqrt_rn(x)
    elif FUNCTION == BF16:
        value = to_bf16(x)
    elif FUNCTION == NEG:
        value = float_of(bits_of(x) ^ -0x80000000) if x.dtype == tl.float32 else 0 - x
    elif FUNCTION == ABS:
        value = float_of(bits_of(x) & 0x7FFFFFFF) if x.dtype == tl.float32 else tl.where(x < 0, 0 - x, x)
    elif FUNCTION == MAX:
        value = extreme(x, tl.where(x > y, x, y))
    elif FUNCTION == MIN:
        value = extreme(x, tl.where(x < y, x, y))
    elif FUNCTION == LT:
        value = x < y
    elif FUNCTION == LE:
        value = x <= y
    elif FUNCTION == EQ:
        value = x == y
    elif FUNCTION == NE:
        value = x != y
    elif FUNCTION == AND:
        value = x & y
    elif FUNCTION == OR:
        value = x | y
    elif FUNCTION == NOT:
        value = x == 0
    elif FUNCTION == WHERE:
        value = tl.where(x, y, z)
    elif FUNCTION == FLOORDIV:
        value = divide(x, y, True)
    elif FUNCTION == MOD:
        value = divide(x, y, False)
    else:
        tl.static_assert(FUNCTION == CAST)
        value = cast(x, RESULT)
    return value


# -- exp and tanh ----------------------------------------------------------------------------------------------------


@triton.jit
def power_of_two(shifted):
    """2^k: the low bits of k + SHIFT are those of k."""
    return ((shifted.to(tl.int64, bitcast=True) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def exp_minus_one(x):
    """(e^r - 1, 2^k) with x = k ln 2 + r, for |x| <= 104; no bound holds beyond."""
    shifted = x * LOG2_E + SHIFT
    k = shifted - SHIFT
    r = (x - k * LN2[0]) - k * LN2[1]
    q = r * INVERSE[TERMS] + INVERSE[TERMS - 1]
    for j in tl.static_range(2, TERMS + 1):
        q = q * r + INVERSE[TERMS - j]
    return r * q, power_of_two(shifted)


@triton.jit
def clamp(x, LEAST: tl.constexpr, MOST: tl.constexpr):
    """The nearest number to x from LEAST to MOST; NaN stays NaN, of which no comparison is true."""
    x = tl.where(x < LEAST, LEAST, x)
    return tl.where(x > MOST, MOST, x)


@triton.jit
def join(a, b):
    """The pair of a sum; |a| >= |b| or a = 0."""
    s = a + b
    return s, b - (s - a)


@triton.jit
def two_product(a, b):
    """The pair of a product, by Dekker."""
    wide_a, wide_b = a * SPLIT, b * SPLIT
    a1, b1 = wide_a - (wide_a - a), wide_b - (wide_b - b)
    a2, b2 = a - a1, b - b1
    p = a * b
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


@triton.jit
def plus(a, a_low, b, b_low):
    """The pair of the sum of two pairs, by AccurateDWPlusDW."""
    s, e = two_sum(a, b)
    t, f = two_sum(a_low, b_low)
    s, e = join(s, e + t)
    return join(s, e + f)


@triton.jit
def times(a, a_low, b, b_low):
    """The pair of their product, by DWTimesDW1."""
    p, e = two_product(a, b)
    return join(p, e + (a * b_low + a_low * b))


@triton.jit
def over(a, a_low, b, b_low):
    """The pair of their quotient, by DWDivDW2."""
    q = a / b
    p, e = two_product(q, b)
    p, f = join(p, q * b_low)
    p, e = join(p, f + e)
    rest = (a - p) + (a_low - e)
    return join(q, rest / b)


@triton.jit
def exp_minus_one_in_pairs(x):
    """(h, l, 2^k) with h + l = e^r - 1 and x = k ln 2 + r, within the bounds above; |x| <= 104."""
    shifted = x * LOG2_E + SHIFT
    k = shifted - SHIFT
    p, e = two_product(k, k * 0.0 + LN2[1])
    r, r_low = plus(x - k * LN2[0], x * 0.0, -1.0 * p, -1.0 * e)
    r, r_low = plus(r, r_low, -LN2[2] * k, x * 0.0)
    q, q_low = r * 0.0 + INVERSE[PAIRS], r * 0.0 + REST[PAIRS]
    for j in tl.static_range(1, PAIRS + 1):
        q, q_low = times(q, q_low, r, r_low)
        q, q_low = plus(q, q_low, r * 0.0 + INVERSE[PAIRS - j], r * 0.0 + REST[PAIRS - j])
    q, q_low = times(q, q_low, r, r_low)
    return q, q_low, power_of_two(shifted)


@triton.jit
def in_pairs(x, FUNCTION: tl.constexpr):
    """exp of -104 ... 89, or tanh of 0 ... 10, as a pair."""
    if FUNCTION == EXP:
        e, e_low, scale = exp_minus_one_in_pairs(x)
        h, low = plus(e * 0.0 + 1.0, e * 0.0, e, e_low)
        h, low = h * scale, low * scale
    else:
        e, e_low, scale = exp_minus_one_in_pairs(x * 2.0)
        t, t_low = plus(e * scale, e_low * scale, scale - 1.0, e * 0.0)
        d, d_low = plus(t, t_low, e * 0.0 + 2.0, e * 0.0)
        h, low = over(t, t_low, d, d_low)
        tiny = x < 2.0**-24
        h, low = tl.where(tiny, x, h), tl.where(tiny, x * -(2.0**-51), low)
    return h, low


@triton.jit
def transcendental(x, inside, notes, FUNCTION: tl.constexpr, PRECISION: tl.constexpr):
    """RN of exp or tanh. Notes: how many FP64 leaves open, how many of these it rounds wrongly, how many pairs do."""
    sign = bits_of(x) & -0x80000000
    if FUNCTION == EXP:
        a = x.to(tl.float64)
        b = clamp(a, -104.0, 89.0)
        e, scale = exp_minus_one(b)
        y = tl.where(a < -104.0, 0.0, scale * (e + 1.0))
    else:
        a = tl.abs(x).to(tl.float64)
        b = clamp(a, 0.0, 10.0)
        e, scale = exp_minus_one(b * 2.0)
        t = scale * e + (scale - 1.0)
        y = t / (t + 2.0)
    result = round_to(y * (1.0 - RELATIVE), PRECISION)
    undecided = inside & (result != round_to(y * (1.0 + RELATIVE), PRECISION)) & (x == x)
    if tl.max(undecided.to(tl.int32)) != 0:
        h, low = in_pairs(b, FUNCTION)
        settled = round_pair(h, low - h * OPEN, PRECISION)
        left = undecided & (settled != round_pair(h, low + h * OPEN, PRECISION))
        wrong = undecided & (settled != round_to(y, PRECISION))
        tl.atomic_add(notes, tl.sum(undecided.to(tl.int64)))
        tl.atomic_add(notes + 1, tl.sum(wrong.to(tl.int64)))
        tl.atomic_add(notes + 2, tl.sum(left.to(tl.int64)))
        result = tl.where(undecided, settled, result)
    return float_of(bits_of(result) | sign) if FUNCTION == TANH else result


# -- chains ----------------------------------------------------------------------------------------------------------


@triton.jit
def number(numbers, AT: tl.constexpr):
    """As i64; Triton makes a constant of a 1."""
    return tl.cast(numbers[AT], tl.int64)


@triton.jit
def place_of(element, numbers, AT: tl.constexpr, RANK: tl.constexpr, WIDE: tl.constexpr):
    """The sum of coordinate times stride, i64, wrapping. numbers: from AT on, sizes, then strides."""
    rest = element if WIDE else element.to(tl.uint32)
    place = element * 0
    for back in tl.static_range(RANK):
        along = rest
        if back < RANK - 1:
            size = number(numbers, AT + RANK - 1 - back).to(rest.dtype)
            along = rest % size
            rest = rest // size
        place += along.to(tl.int64) * number(numbers, AT + 2 * RANK - 1 - back)
    return place


@triton.jit
def only(x, inside):
    """A single element as a scalar: where a chain has but one, other instructions may have made it a block."""
    return x if len(x.shape) == 0 else tl.sum(tl.where(inside, x, 0))


@triton.jit
def draw(first, seed, step, stream, skip, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK uniform f32 (SPEC section 7) from element `first` on; WHOLE: a block of Philox begins there."""
    place = first + skip + tl.arange(0, BLOCK)
    block = (first + skip) // 4 + tl.arange(0, BLOCK // 4) if WHOLE else place // 4
    none = block * 0
    c0, c1, c2, c3 = philox(
        block.to(tl.uint32), (block >> 32).to(tl.uint32), (none + step).to(tl.uint32), (none + stream).to(tl.uint32),
        (none + seed).to(tl.uint32), (none + (seed >> 32)).to(tl.uint32),
    )  # fmt: skip
    if WHOLE:
        word = tl.reshape(tl.join(tl.join(c0, c2), tl.join(c1, c3)), (BLOCK,))
    else:
        word = tl.where(place % 4 < 2, tl.where(place % 2 == 0, c0, c1), tl.where(place % 2 == 0, c2, c3))
    return (word >> 8).to(tl.int32).to(tl.float32) * 2.0**-24  # exact


@triton.jit
def operate(
    r, notes, pointers, numbers, first, element, inside,
    CODE: tl.constexpr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
    WIDE: tl.constexpr, APART: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The value of one operation; r: those of the operations before it."""
    if CODE == LOAD and B == 0:
        value = tl.load(pointers[A])
    elif CODE == LOAD:
        place = element if B < 0 else place_of(element, numbers, C, B, WIDE)
        value = tl.load(pointers[A] + place, mask=inside)
    elif CODE == IOTA:
        value = place_of(element, numbers, C + 1, B, WIDE) + number(numbers, C)
    elif CODE == RANDOM:
        seed, step = only(r[A], inside), only(r[B], inside)
        value = draw(first, seed, step, number(numbers, C), number(numbers, C + 1), D, BLOCK)
    elif (CODE == EXP) | (CODE == TANH):
        value = transcendental(tl.where(inside, r[A], 0.0), inside, notes + D, CODE, PRECISION)
    else:
        value = apply(CODE, D, r[A], r[B], r[C], APART)
    return value


@triton.jit
def store(x, notes, pointer, element, inside, NOTE: tl.constexpr):
    """Stores a result; a sealed one gets the one NaN, and notes where it is not finite."""
    if NOTE >= 0:
        bad = (bits_of(x) & 0x7F800000) == 0x7F800000
        tl.store(notes + NOTE + element * 0, 1, mask=inside & bad)
        x = float_of(tl.where(x == x, bits_of(x), 0x7FC00000))
    tl.store(pointer + element, x, mask=inside)


@triton.jit
def run(
    notes, pointers, numbers, count,
    PROGRAM: tl.constexpr, STORES: tl.constexpr, LATE: tl.constexpr,
    WIDE: tl.constexpr, APART: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of a chain of `count` elements; `elementwise_fused` describes programs and stores.

    LATE: of the stores, those from this one on overwrite operands.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK
    element = first + tl.arange(0, BLOCK)
    inside = element < count
    r = ()
    for k in tl.static_range(len(PROGRAM)):
        r += (operate(
            r, notes, pointers, numbers, first, element, inside,
            PROGRAM[k][0], PROGRAM[k][1], PROGRAM[k][2], PROGRAM[k][3], PROGRAM[k][4],
            WIDE, APART, PRECISION, BLOCK,
        ),)  # fmt: skip
    for k in tl.static_range(len(STORES)):
        if k == LATE:
            tl.debug_barrier()  # other threads may have to read the operand
        store(r[STORES[k][0]], notes, pointers[k], element, inside, STORES[k][1])
