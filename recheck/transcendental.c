/* exp, log, tanh, erf, sin, cos: enclosures in fixed point, both ends of which must round to one number.

Fixed point means 448 bits of fraction. Series stop where their terms are zero; each operation loses less than a unit,
and a squaring of exp doubles what was lost, so `slack` bits below which the ends of an enclosure differ are bounds with
a wide margin. */
#include "recheck.h"

enum { POINT = 448, HALVINGS = 16 };
enum { EXP = 10, LOG, TANH, ERF, SIN, COS };

typedef struct {
    bool negative;
    Wide low, high;
    int exponent;
} Enclosure;

static Wide one, pi_half, ln2, two_over_root_pi;

static Wide fixed(u128 value, int exponent) { return shifted(wide(value), POINT + exponent); }

/* Sum of t^(2k+1) / (2k+1) with t = numerator / denominator, of alternating signs for the arc tangent. */
static Wide arc(uint32_t numerator, uint32_t denominator, bool alternating) {
    Wide power = over(fixed(numerator, 0), denominator), sum = wide(0), square = scaled(power, power, POINT);
    for (uint32_t k = 1; !is_zero(power); k += 2, power = scaled(power, square, POINT)) {
        Wide term = over(power, k);
        sum = alternating && k % 4 == 3 ? minus(sum, term) : plus(sum, term);
    }
    return sum;
}

static void make_constants(void) {
    one = fixed(1, 0);
    pi_half = minus(shifted(arc(1, 5, true), 3), shifted(arc(1, 239, true), 1)); /* Machin 1706 */
    ln2 = shifted(arc(1, 3, false), 1);
    Wide y = one, quarter = shifted(pi_half, -1);
    for (int k = 0; k < 14; k++) { /* Newton for 1 / sqrt(pi / 4): y (3 - pi/4 y^2) / 2 */
        Wide rest = minus(fixed(3, 0), scaled(quarter, scaled(y, y, POINT), POINT));
        y = shifted(scaled(y, rest, POINT), -1);
    }
    two_over_root_pi = y;
}

static Enclosure around(bool minus_sign, Wide magnitude, int exponent, int slack) {
    Wide width = shifted(wide(1), slack);
    return (Enclosure){minus_sign, minus(magnitude, width), plus(magnitude, width), exponent};
}

/* A little less than p: by less than p / 2^40, so that no number or tie of any format is between. */
static Enclosure just_below(Parts p) {
    Wide high = shifted(wide(p.mantissa), 100);
    return (Enclosure){p.negative, minus(high, shifted(wide(p.mantissa), 60)), minus(high, wide(1)), p.exponent - 100};
}

/* exp of a magnitude below 2^8, or of its negative, as a fixed-point number in [1, 2] times 2^*power. */
static Wide exponential(Wide x, bool minus_sign, int *power) {
    Wide r, q = quotient(x, ln2, &r), sum = one, term = one;
    *power = (int)q.w[0];
    if (minus_sign) *power = -*power - 1, r = minus(ln2, r);
    r = shifted(r, -HALVINGS);
    for (uint32_t k = 1; !is_zero(term); k++) {
        term = over(scaled(term, r, POINT), k);
        sum = plus(sum, term);
    }
    for (int k = 0; k < HALVINGS; k++) sum = scaled(sum, sum, POINT);
    return sum;
}

static Enclosure enclose_log(Parts p) {
    int k = 23 + p.exponent;
    while (p.mantissa < 0x800000) p.mantissa *= 2, k--;
    Wide part = shifted(arc((uint32_t)p.mantissa - 0x800000, (uint32_t)p.mantissa + 0x800000, false), 1);
    Wide whole = scaled(ln2, wide((u128)(k < 0 ? -k : k)), 0);
    return around(k < 0, k < 0 ? minus(whole, part) : plus(whole, part), -POINT, 40);
}

static Enclosure enclose_tanh(Parts p) {
    int power;
    if (p.exponent > -19) return just_below((Parts){p.negative, 1, 0}); /* at least 2^5 */
    Wide e = exponential(fixed(p.mantissa, p.exponent + 1), false, &power);
    e = shifted(e, power);
    return around(p.negative, quotient(shifted(minus(e, one), 140), plus(e, one), NULL), -140, 4);
}

/* 2 / sqrt(pi) * x * sum of (-x^2)^k / (k! (2k + 1)). */
static Enclosure enclose_erf(Parts p) {
    Wide square = fixed((u128)p.mantissa * p.mantissa, 2 * p.exponent), power = one, sum = wide(0);
    if (compare(square, fixed(36, 0)) >= 0 || p.exponent > 0) return just_below((Parts){p.negative, 1, 0});
    for (uint32_t k = 0; !is_zero(power); k++, power = over(scaled(power, square, POINT), k)) {
        Wide term = over(power, 2 * k + 1);
        sum = k % 2 ? minus(sum, term) : plus(sum, term);
    }
    Wide factor = scaled(two_over_root_pi, sum, POINT);
    return around(p.negative, scaled(factor, wide(p.mantissa), 0), p.exponent - POINT, 120);
}

static Enclosure enclose_sine(Parts p, bool cosine) {
    Wide r, turns = quotient(fixed(p.mantissa, p.exponent), pi_half, &r), sum = wide(0), term = one;
    uint64_t quadrant = (turns.w[0] + cosine) % 4;
    for (uint32_t k = 0; !is_zero(term); k++, term = over(scaled(term, r, POINT), k)) {
        if (k % 2 == quadrant % 2) continue; /* even quadrants take the sine of the rest, odd ones its cosine */
        sum = k % 4 < 2 ? plus(sum, term) : minus(sum, term);
    }
    return around((quadrant >= 2) != (p.negative && !cosine), sum, -POINT, 150);
}

static Enclosure enclose(int function, Parts p) {
    int power, top = 63 - __builtin_clzll(p.mantissa) + p.exponent;
    if (is_zero(one)) make_constants();
    if ((function == TANH || function == SIN) && top < -30) return just_below(p);
    if (function == COS && top < -30) return just_below((Parts){false, 1, 0});
    switch (function) {
    case EXP: {
        Wide e = exponential(fixed(p.mantissa, p.exponent), p.negative, &power);
        return around(false, e, power - POINT, 40);
    }
    case LOG: return enclose_log(p);
    case TANH: return enclose_tanh(p);
    case ERF: return enclose_erf(p);
    default: return enclose_sine(p, function == COS);
    }
}

/* Results that need no enclosure; false if there is none. */
static bool special(int function, uint32_t x, uint32_t *result) {
    bool minus_sign = x >> 31;
    uint32_t magnitude = x & 0x7fffffff;
    *result = NAN_BITS;
    if (is_nan(x) || (function == LOG && minus_sign && magnitude)) return true;
    if (!magnitude) *result = function == EXP || function == COS ? 0x3f800000 : function == LOG ? 0xff800000 : x;
    else if (function == EXP && magnitude >= 0x43800000) *result = minus_sign ? 0 : 0x7f800000; /* 2^8 and more */
    else if (function == LOG && x == 0x3f800000) *result = 0;
    else if (is_finite(x)) return false;
    else if (function == LOG) *result = x;
    else if (function == TANH || function == ERF) *result = (x & 0x80000000) | 0x3f800000;
    return true;
}

uint32_t transcendental(int function, uint32_t x, int precision) {
    uint32_t result;
    if (special(function, x, &result)) return result;
    Enclosure e = enclose(function, parts_of(x));
    Rounding rounding = {.precision = precision};
    result = round_number(e.negative, e.low, e.exponent, false, rounding);
    if (result != round_number(e.negative, e.high, e.exponent, false, rounding))
        refuse("expected an enclosure that decides, got none for function %d of %08x", function, x);
    return result;
}

bool encloses(int function, uint32_t x, Wide v, int e) {
    uint32_t result;
    if (special(function, x, &result)) refuse("expected an argument that needs an enclosure, got %08x", x);
    Enclosure mine = enclose(function, parts_of(x));
    int shift = mine.exponent - e;
    Wide low = shifted(mine.low, shift), high = shifted(mine.high, shift); /* in units of 2^e, floored */
    return compare(low, v) <= 0 && compare(v, high) <= 0;
}
