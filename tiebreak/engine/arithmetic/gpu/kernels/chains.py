"""Chains of elementwise instructions on GPUs: the Triton twin of c/chains.c. Only `gpu/chains.py` uses it.

`run` executes one chain, a block of elements a program, all of whose intermediate results are registers. The chain is
a constant of the kernel's compilation, so equal chains are compiled once; sizes and strides are numbers, not constants.
f32 add, sub, mul, div and sqrt are IEEE's, correctly rounded; nothing is contracted (`enable_fp_fusion=False`).

**Transcendental functions** are computed in FP64 with a relative error below 23 ulp of 2^-52; RELATIVE allows 32. Let
u = 2^-53. exp and tanh are those of c/chains.c, operation by operation without FMAs, where the proof of their bounds
stands. The others:

- log x = k ln 2 + 2 artanh z, z = (m - 1) / (m + 1), x = 2^k m. m + 1 and m - 1 are exact. |z| < 0.172, and 11 terms
  leave out less than 2^-59 of the series. With u of z and 3 u of z^2, 2 artanh z errs by a relative 4 u. Where k is not
  0, the result is at least as large as 2 artanh z; so the sum, with two more roundings, errs by less than 9 u.
- erf x = 2 / sqrt(pi) x e^-y P(y), y = x^2 <= 16, exact. P(y) = sum of (2 y)^k / (1 3 5 ... (2 k + 1)) has no negative
  term. y P'(y) / P(y), the mean k by which the 2 k + 2 roundings of a term are weighted, is below 16: at most 34 u, and
  45 u with e^-y (4 u), the constant and three products. 61 terms leave out less than 2^-57. k LN2[0] cancels as it does
  in exp: where k is not 0, x is a multiple of 2^-24 and y of 2^-48.
- sin and cos: `quarters` gives x = (k + 4 n + f) pi / 2; r = f pi / 2, |r| < 0.786. 9 terms leave out less than 2^-58
  of either series in r^2. With u of r and 3 u of r^2, results err by less than 6 u.

`quarters` multiplies x, of 24 bits, by 2 / pi in parts of 29 bits each. These products are exact; so is taking off
multiples of 4 and whole numbers. Products that may exceed 2^-33 are multiples of 2^-86, so a pair holds their sum.
No f32 has a sine or cosine below 2^-30 (tests/hardest), so their sum is above 2^-31 or, of small x, nothing was taken
off; it errs by a relative 3 u^2 for each later part. Nine parts leave out less than 2^-133, or 2^-261 of x.

What Ziv's test leaves open is computed again in *pairs*: h + l, unevaluated, with |l| at most half an ulp of h. Joldes,
Muller and Popescu, "Tight and rigorous error bounds for basic building blocks of double-word arithmetic" (2017), prove
for the algorithms used here relative errors below 3 u^2 + 13 u^3 for sums (AccurateDWPlusDW), 7 u^2 for products
(DWTimesDW1) and 15 u^2 + 56 u^3 for quotients (DWDivDW2). `series` sums 1 + v n_1 / d_1 (1 + v n_2 / d_2 (...)) by a
product, a quotient and a sum for each term, 25 u^2 (of log, which has an n, 32 u^2), and leaves out less than 2^-105.

1. r = x - k ln 2: x - k LN2[0] is exact, as in C; k LN2[1] is an exact pair; k LN2[2] errs by less than 2^-131. So r
   errs by less than 2.2 u^2 (two sums, |r| < 0.35), and not at all where k = 0.
2. q = sum of r^j / (j + 1)! is 1 + r / 2 (...): 3 u^2 of its last sum, 22 u^2 |r| / 2 of the product and the quotient,
   and the error of what is within times |r| / 2: below 12 u^2 with r's. r q errs by a relative 22 u^2 at most, and by
   less than 10 u^2.
3. exp x = 2^k (1 + r q) has a relative error below 24 u^2. In tanh a = t / (t + 2), t = 2^k r q + (2^k - 1) is above
   0.4 2^(k-1), or its product is all of it: a relative error below 60 u^2; with sum and quotient, below 100 u^2.
4. log: z errs by 15 u^2, z^2 by 37 u^2, 2 artanh z by 30 u^2; the sum with k ln 2, at most twice the result, by less
   than 60 u^2.
5. erf: as in FP64, 25 u^2 (16 + 1) of P, 24 u^2 of e^-y, and three products: below 500 u^2.
6. sin, cos: f errs by less than 30 u^2, r by 40 u^2, r^2 by 90 u^2, and results by less than 100 u^2.

500 u^2 < 2^-97, and the second test allows OPEN = 2^-90; no f32 has a result within 2^-71 of a middle (`make hardest`).
For |a| < 2^-24, tanh a and sin a are between a (1 - 2^-49) and a, where no number of 25 bits is, so any number in
between rounds like them. What is still open after that is counted, and the host refuses a step with any.
"""

from fractions import Fraction
from math import factorial, prod

import triton
import triton.language as tl

from tiebreak.engine.arithmetic.gpu.kernels.random import philox
from tiebreak.engine.arithmetic.gpu.kernels.rounding import round_pair, round_to, two_sum
from tiebreak.protocol.numbers.transcendental import pi
from tiebreak.protocol.program.isa import DType, MapFunction

LOAD = tl.constexpr(-1)
IOTA = tl.constexpr(-2)
RANDOM = tl.constexpr(-3)
(
    COPY, ADD, SUB, MUL, DIV, SQRT, NEG, ABS, MAX, MIN, EXP, LOG, TANH, ERF, SIN, COS, BF16, LT, LE, EQ, NE, AND, OR,
    NOT, WHERE, CAST, FLOORDIV, MOD,
) = (tl.constexpr(int(function)) for function in MapFunction)  # fmt: skip
"""The functions of `map`, all of them, in the order of their numbers."""
F32 = tl.constexpr(int(DType.F32))
I64 = tl.constexpr(int(DType.I64))

LOG2_E = tl.constexpr(float.fromhex("0x1.71547652b82fep+0"))
SHIFT = tl.constexpr(1.5 * 2.0**52)
LN2 = tl.constexpr(
    tuple(map(float.fromhex, ("0x1.62e42fee00000p-1", "0x1.a39ef35793c76p-33", "0x1.cc01f97b57a08p-87")))
)
"""ln 2 in three parts, the first of 32 bits."""
RELATIVE = tl.constexpr(32 * 2.0**-52)
OPEN = tl.constexpr(2.0**-90)
SPLIT = tl.constexpr(2.0**27 + 1.0)
INVERSE = tl.constexpr(tuple(1 / factorial(j + 1) for j in range(13)))
ARTANH = tl.constexpr(tuple(1 / (2 * k + 1) for k in range(11)))
GROWING = tl.constexpr(tuple(float(Fraction(2**k, prod(range(1, 2 * k + 2, 2)))) for k in range(61)))
SINE = tl.constexpr(tuple((-1) ** k / factorial(2 * k + 1) for k in range(9)))
COSINE = tl.constexpr(tuple((-1) ** k / factorial(2 * k) for k in range(9)))
"""Coefficients in FP64 of (e^r - 1) / r, of artanh z / z in z^2, of P in y, and of sin r / r and cos r in r^2."""
TWO_OVER_ROOT_PI = tl.constexpr(tuple(map(float.fromhex, ("0x1.20dd750429b6dp+0", "0x1.1ae3a914fed80p-56"))))
HALF_PI = tl.constexpr(tuple(map(float.fromhex, ("0x1.921fb54442d18p+0", "0x1.1a62633145c07p-54"))))
PART = 29
TWO_OVER_PI = tl.constexpr(
    tuple((((1 << 641) // pi(320) >> 320 - PART * i) % (1 << PART)) * 2.0 ** (-PART * i) for i in range(1, 10))
)
"""2 / pi in parts of 29 bits."""


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


# -- transcendental functions ----------------------------------------------------------------------------------------


@triton.jit
def clamp(x, LEAST: tl.constexpr, MOST: tl.constexpr):
    """The nearest number to x from LEAST to MOST; NaN stays NaN, of which no comparison is true."""
    x = tl.where(x < LEAST, LEAST, x)
    return tl.where(x > MOST, MOST, x)


@triton.jit
def power_of_two(shifted):
    """2^k: the low bits of k + SHIFT are those of k."""
    return ((shifted.to(tl.int64, bitcast=True) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def logarithm_parts(x):
    """(k, m) with x = 2^k m and m from sqrt(1/2) to sqrt(2), for x > 0."""
    bits = x.to(tl.int64, bitcast=True)
    k = (bits - 0x3FE6A09E00000000) >> 52
    return k.to(tl.float64), (bits - (k << 52)).to(tl.float64, bitcast=True)


@triton.jit
def is_odd(k):
    return k * 0.5 != tl.floor(k * 0.5)


# in FP64


@triton.jit
def polynomial(v, C: tl.constexpr, DEGREE: tl.constexpr):
    """The sum of C[j] v^j, j <= DEGREE, by Horner's rule."""
    y = v * C[DEGREE] + C[DEGREE - 1]
    for j in tl.static_range(2, DEGREE + 1):
        y = y * v + C[DEGREE - j]
    return y


@triton.jit
def exp_minus_one(x):
    """(e^r - 1, 2^k) with x = k ln 2 + r, for |x| <= 104; no bound holds beyond."""
    shifted = x * LOG2_E + SHIFT
    k = shifted - SHIFT
    r = (x - k * LN2[0]) - k * LN2[1]
    return r * polynomial(r, INVERSE, 12), power_of_two(shifted)


@triton.jit
def in_fp64(x, FUNCTION: tl.constexpr):
    """The function of a `usual` argument."""
    if FUNCTION == EXP:
        e, scale = exp_minus_one(x)
        y = scale * (e + 1.0)
    elif FUNCTION == TANH:
        e, scale = exp_minus_one(x * 2.0)
        t = scale * e + (scale - 1.0)
        y = t / (t + 2.0)
    elif FUNCTION == LOG:
        k, m = logarithm_parts(x)
        z = (m - 1.0) / (m + 1.0)
        y = k * LN2[0] + (k * LN2[1] + z * 2.0 * polynomial(z * z, ARTANH, 10))
    elif FUNCTION == ERF:
        e, scale = exp_minus_one(-1.0 * (x * x))
        y = (x * TWO_OVER_ROOT_PI[0]) * (scale * (e + 1.0)) * polynomial(x * x, GROWING, 60)
    else:
        k, f, f_low = quarters(x)
        k = k + 1.0 if FUNCTION == COS else k
        r = times(f, f_low, f * 0.0 + HALF_PI[0], f * 0.0 + HALF_PI[1])[0]
        y = tl.where(is_odd(k), polynomial(r * r, COSINE, 8), r * polynomial(r * r, SINE, 8))
        y = tl.where(is_odd(tl.floor(k * 0.5)), -1.0 * y, y)
    return y


# in pairs


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
def plus_rest_of_ln2(a, k):
    """a + k (ln 2 - LN2[0])."""
    p, e = two_product(k, k * 0.0 + LN2[1])
    h, low = plus(a, k * 0.0, p, e)
    return plus(h, low, k * LN2[2], k * 0.0)


@triton.jit
def quarters(x):
    """(k, f, f_low) with x = (k + 4 n + f) pi / 2 for some whole n, |f| <= 1/2; x >= 0."""
    k, f, f_low = x * 0.0, x * 0.0, x * 0.0
    for i in tl.static_range(9):
        p = x * TWO_OVER_PI[i]
        p -= 4.0 * tl.floor(p * 0.25)
        n = tl.floor(p + 0.5)
        f, f_low = plus(f, f_low, p - n, x * 0.0)
        m = tl.floor(f + 0.5)
        f, f_low = join(f - m, f_low)
        k += n + m
    return k, f, f_low


@triton.jit
def series(v, v_low, odd, FUNCTION: tl.constexpr, TERMS: tl.constexpr):
    """1 + v n_1 / d_1 (1 + v n_2 / d_2 (...)), where n and d are whole; odd: sin and cos where this is cos."""
    k = v * 0.0 + TERMS
    t, low = k * 0.0 + 1.0, k * 0.0
    for _ in range(TERMS):
        t, low = times(t, low, v, v_low)
        if FUNCTION == EXP:
            d = k + 1.0
        elif FUNCTION == SIN:
            d = 2.0 * k * (2.0 * k + tl.where(odd, -1.0, 1.0))
        else:
            d = 2.0 * k + 1.0
        if FUNCTION == LOG:
            t, low = times(t, low, d - 2.0, d * 0.0)
        t, low = over(t, low, d, d * 0.0)
        t, low = plus(d * 0.0 + 1.0, d * 0.0, t, low)
        k -= 1.0
    return t, low


@triton.jit
def exp_minus_one_in_pairs(x):
    """(h, l, 2^k) with h + l = e^r - 1 and x = k ln 2 + r; |x| <= 104."""
    shifted = x * LOG2_E + SHIFT
    k = shifted - SHIFT
    r, r_low = plus_rest_of_ln2(x - k * LN2[0], -1.0 * k)
    q, q_low = series(r, r_low, False, EXP, 22)
    q, q_low = times(q, q_low, r, r_low)
    return q, q_low, power_of_two(shifted)


@triton.jit
def exp_in_pairs(x):
    e, e_low, scale = exp_minus_one_in_pairs(x)
    h, low = plus(e * 0.0 + 1.0, e * 0.0, e, e_low)
    return h * scale, low * scale


@triton.jit
def in_pairs(x, FUNCTION: tl.constexpr):
    """As `in_fp64`, as a pair."""
    none = x * 0.0
    if FUNCTION == EXP:
        h, low = exp_in_pairs(x)
    elif FUNCTION == TANH:
        e, e_low, scale = exp_minus_one_in_pairs(x * 2.0)
        t, t_low = plus(e * scale, e_low * scale, scale - 1.0, none)
        d, d_low = plus(t, t_low, none + 2.0, none)
        h, low = over(t, t_low, d, d_low)
    elif FUNCTION == LOG:
        k, m = logarithm_parts(x)
        z, z_low = over(m - 1.0, none, m + 1.0, none)
        v, v_low = times(z, z_low, z, z_low)
        s, s_low = series(v, v_low, False, LOG, 20)
        s, s_low = times(s, s_low, z * 2.0, z_low * 2.0)
        h, low = plus_rest_of_ln2(k * LN2[0], k)
        h, low = plus(h, low, s, s_low)
    elif FUNCTION == ERF:
        h, low = exp_in_pairs(-1.0 * (x * x))
        s, s_low = series(x * x * 2.0, none, False, ERF, 84)
        h, low = times(h, low, s, s_low)
        s, s_low = times(x, none, none + TWO_OVER_ROOT_PI[0], none + TWO_OVER_ROOT_PI[1])
        h, low = times(h, low, s, s_low)
    else:
        k, f, f_low = quarters(x)
        k = k + 1.0 if FUNCTION == COS else k
        r, r_low = times(f, f_low, none + HALF_PI[0], none + HALF_PI[1])
        v, v_low = times(-1.0 * r, -1.0 * r_low, r, r_low)
        s, s_low = series(v, v_low, is_odd(k), SIN, 14)
        h, low = times(s, s_low, tl.where(is_odd(k), 1.0, r), tl.where(is_odd(k), 0.0, r_low))
        sign = tl.where(is_odd(tl.floor(k * 0.5)), none - 1.0, none + 1.0)
        h, low = h * sign, low * sign
    if (FUNCTION == TANH) | (FUNCTION == SIN):
        tiny = x < 2.0**-24
        h, low = tl.where(tiny, x, h), tl.where(tiny, x * -(2.0**-51), low)
    return h, low


@triton.jit
def usual(x, FUNCTION: tl.constexpr):
    """The argument in FP64: its size if the function is odd or even, cut off where results are 0, 1 or infinite."""
    a = x.to(tl.float64)
    if FUNCTION == EXP:
        a = clamp(a, -104.0, 89.0)  # e^-104 < 2^-150, e^89 > 2^128
    elif FUNCTION != LOG:
        a = tl.abs(a)
    if FUNCTION == TANH:
        a = clamp(a, 0.0, 10.0)
    elif FUNCTION == ERF:
        a = clamp(a, 0.0, 4.0)
    return a


@triton.jit
def transcendental(x, inside, notes, FUNCTION: tl.constexpr, PRECISION: tl.constexpr):
    """RN of a function. Notes, or null: how many FP64 leaves open, how many of these it rounds wrongly, pairs do."""
    a = usual(x, FUNCTION)
    y = in_fp64(a, FUNCTION)
    if FUNCTION == LOG:
        y = tl.where(a < float("inf"), y, a)
        y = tl.where(a < 0, float("nan"), tl.where(a == 0, float("-inf"), y))
    result = round_to(y * (1.0 - RELATIVE), PRECISION)
    undecided = inside & (result != round_to(y * (1.0 + RELATIVE), PRECISION)) & (y == y)
    if tl.max(undecided.to(tl.int32)) != 0:
        h, low = in_pairs(a, FUNCTION)
        settled = round_pair(h, low - h * OPEN, PRECISION)
        left = undecided & (settled != round_pair(h, low + h * OPEN, PRECISION))
        wrong = undecided & (settled != round_to(y, PRECISION))
        if notes is not None:
            tl.atomic_add(notes, tl.sum(undecided.to(tl.int64)))
            tl.atomic_add(notes + 1, tl.sum(wrong.to(tl.int64)))
            tl.atomic_add(notes + 2, tl.sum(left.to(tl.int64)))
        result = tl.where(undecided, settled, result)
    if (FUNCTION == TANH) | (FUNCTION == ERF) | (FUNCTION == SIN):
        result = float_of(bits_of(result) ^ (bits_of(x) & -0x80000000))
    return result


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
def draw(first, element, seed, step, stream, skip, BLOCK: tl.constexpr):
    """Uniform f32 (SPEC section 7) of elements by number.

    BLOCK: 0, or the number of these elements, which go on from `first`, where a block of Philox begins.
    """
    place = element + skip
    block = (first + skip) // 4 + tl.arange(0, BLOCK // 4) if BLOCK else place // 4
    none = block * 0
    c0, c1, c2, c3 = philox(
        block.to(tl.uint32), (block >> 32).to(tl.uint32), (none + step).to(tl.uint32), (none + stream).to(tl.uint32),
        (none + seed).to(tl.uint32), (none + (seed >> 32)).to(tl.uint32),
    )  # fmt: skip
    if BLOCK:
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
        value = draw(first, element, seed, step, number(numbers, C), number(numbers, C + 1), D * BLOCK)
    elif (CODE >= EXP) & (CODE <= COS):
        value = transcendental(
            tl.where(inside, r[A], 0.0), inside, None if notes is None else notes + D, CODE, PRECISION
        )
    else:
        value = apply(CODE, D, r[A], r[B], r[C], APART)
    return value


@triton.jit
def compute(notes, pointers, numbers, first, element, inside, CHAIN: tl.constexpr, BLOCK: tl.constexpr):
    """The values of a chain's operations for elements by number: BLOCK of them from `first` on, or any if it is 0.

    CHAIN: whether they are counted in 64 bits, whether products are apart, and the precision; then the operations.
    """
    r = ()
    for k in tl.static_range(1, len(CHAIN)):
        r += (operate(
            r, notes, pointers, numbers, first, element, inside,
            CHAIN[k][0], CHAIN[k][1], CHAIN[k][2], CHAIN[k][3], CHAIN[k][4],
            CHAIN[0][0], CHAIN[0][1], CHAIN[0][2], BLOCK,
        ),)  # fmt: skip
    return r


@triton.jit
def store(x, notes, pointer, element, inside, NOTE: tl.constexpr):
    """Stores a result; a finalized one gets the one NaN, and notes where it is not finite."""
    if NOTE >= 0:
        bad = (bits_of(x) & 0x7F800000) == 0x7F800000
        tl.store(notes + NOTE + element * 0, 1, mask=inside & bad)
        x = float_of(tl.where(x == x, bits_of(x), 0x7FC00000))
    tl.store(pointer + element, x, mask=inside)


@triton.jit
def run(
    notes, pointers, numbers, count,
    CHAIN: tl.constexpr, STORES: tl.constexpr, LATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A block of a chain of `count` elements; `gpu/chains.py` describes operations and stores.

    LATE: of the stores, those from this one on overwrite operands.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK
    element = first + tl.arange(0, BLOCK)
    inside = element < count
    r = compute(notes, pointers, numbers, first, element, inside, CHAIN, BLOCK)
    for k in tl.static_range(len(STORES)):
        if k == LATE:
            tl.debug_barrier()  # other threads may have to read the operand
        store(r[STORES[k][0]], notes, pointers[k], element, inside, STORES[k][1])
