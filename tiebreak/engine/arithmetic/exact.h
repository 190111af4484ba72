/* Ziv's test of a row of sums, and what becomes of those that it leaves undecided: sums of f32 terms, or of products of
 * two, in doubled precision and integers; or, under policy `logged`, near ties that are reported (near.py: the rules). */
#pragma once

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "lanes.h"
#include "rounding.h"

/* A near tie: its place in the result, c and e. */
typedef struct {
    int64_t place;
    double c, e;
} near_tie;

typedef struct {
    _Atomic int64_t next;        /* the next task */
    _Atomic int64_t undecided;   /* elements that Ziv's test left */
    _Atomic int64_t twice;       /* of those: not decided in doubled precision either */
    _Atomic int64_t wrong;       /* of those: whose FP64 value rounds to another f32 than the exact one */
    _Atomic int64_t nanoseconds; /* spent on them, all threads together */
    _Atomic int64_t logged;      /* near ties; what `near` has no room for is counted, not kept */
    int64_t precision;           /* bits of a result, 16 to 32 */
    int64_t grid;                /* k with K <= 2^k: near ties on a grid are settled. 0: they are reported too */
    int64_t room;                /* of `near` */
    double limit;                /* errors of near ties are at most this times the gap. 0: none is reported */
    near_tie *near;
    const float *result;         /* its first element */
} progress;

/* Where the terms of every element are, from its own first one on: `runs` runs of `run` terms. */
typedef struct {
    const int64_t *a_k, *b_k;
    int64_t runs, run;
} terms;

/* An element: its first term in the operands (b null: a plain sum), where its result goes, its FP64 value +- e. */
typedef struct {
    const float *a, *b;
    float *to;
    double c, e;
} element;

static inline double term_of(const terms *t, const element *e, int64_t r, int64_t i) {
    const double x = (double)e->a[t->a_k[r] + i];
    return e->b ? x * (double)e->b[t->b_k[r] + i] : x;
}

static int consecutive(const int64_t *table, int64_t n) {
    for (int64_t j = 1; j < n; j++)
        if (table[j] != table[0] + j) return 0;
    return 1;
}

static inline int is_open(double c, double e, int precision) {
    return !(round_to(c + e, precision) == round_to(c - e, precision));
}

/* ---- in integers: digits of 32 bits in 64-bit limbs, the lowest of weight 2^-352 ---- */

#define LIMBS 22
#define UNIT 352

static void add_exactly(int64_t *limbs, double term) {
    uint64_t bits;
    memcpy(&bits, &term, 8);
    const int exponent = (int)(bits >> 52 & 0x7ff);
    if (exponent == 0) return; /* zero: products of f32 are no FP64 subnormals */
    const uint64_t significand = (bits & 0xfffffffffffffull) | 1ull << 52;
    const int shift = exponent - 1075 + UNIT; /* >= 0: a product is a multiple of 2^-298, or 2^-350 with its zeros */
    const int limb = shift >> 5, bit = shift & 31;
    const uint64_t low = significand << bit, high = bit ? significand >> (64 - bit) : 0;
    const int64_t sign = bits >> 63 ? -1 : 1;
    limbs[limb] += sign * (int64_t)(low & 0xffffffffull);
    limbs[limb + 1] += sign * (int64_t)(low >> 32);
    limbs[limb + 2] += sign * (int64_t)high;
}

/* RN of the limbs' value; zero is +0. */
static float round_exactly(int64_t *limbs, int precision) {
    int64_t carry = 0;
    for (int i = 0; i < LIMBS; i++) {
        const int64_t value = limbs[i] + carry;
        limbs[i] = value & 0xffffffffll;
        carry = value >> 32;
    }
    const int negative = carry < 0;
    if (negative) { /* two's complement of the digits */
        int64_t borrow = 1;
        for (int i = 0; i < LIMBS; i++) {
            const int64_t value = (0xffffffffll ^ limbs[i]) + borrow;
            limbs[i] = value & 0xffffffffll;
            borrow = value >> 32;
        }
    }
    int top = LIMBS - 1;
    while (top >= 0 && limbs[top] == 0) top--;
    if (top < 0) return 0.0f;
    /* The leading 64 bits from the top three digits, then a sticky bit, then one rounding. */
    const uint64_t d0 = (uint64_t)limbs[top], d1 = top > 0 ? (uint64_t)limbs[top - 1] : 0,
                   d2 = top > 1 ? (uint64_t)limbs[top - 2] : 0;
    const int zeros = __builtin_clzll(d0) - 32;
    uint64_t lead = d0 << 32 | d1;
    uint64_t sticky = zeros ? (d2 << zeros) & 0xffffffffull : d2;
    if (zeros) lead = lead << zeros | d2 >> (32 - zeros);
    for (int i = top - 3; i >= 0; i--) sticky |= (uint64_t)limbs[i];
    const int exponent = 32 * top + 31 - zeros - UNIT; /* lead's first bit has this weight */
    /* Bits kept: precision - 8 (24 of f32), fewer for a subnormal result (smallest unit 2^least, 2^-149 of f32). */
    const int least = -117 - precision;
    const int keep = exponent < -126 ? exponent - least + 1 : precision - 8;
    float result;
    if (keep < 0) return 0.0f;
    if (keep == 0) { /* between half the smallest unit and all of it: up unless exactly the tie */
        const int up = (lead << 1) != 0 || sticky != 0;
        result = up ? (float)ldexp(1.0, least) : 0.0f;
    } else {
        uint64_t kept = lead >> (64 - keep);
        const uint64_t rest = lead << keep, halfway = 1ull << 63;
        if (rest > halfway || (rest == halfway && (sticky != 0 || (kept & 1)))) kept++;
        result = (float)ldexp((double)kept, exponent - keep + 1); /* exact, or infinity */
    }
    return negative && result != 0.0f ? -result : result;
}

/* The sum of finite terms by integers alone. */
float sum_in_integers(const terms *t, const element *e, int precision) {
    int64_t limbs[LIMBS] = {0};
    for (int64_t r = 0; r < t->runs; r++)
        for (int64_t i = 0; i < t->run; i++) add_exactly(limbs, term_of(t, e, r, i));
    return round_exactly(limbs, precision);
}

/* ---- in doubled precision ---- */

/* h + l, |l| <= ulp(h)/2, rounded: first to FP64 to odd, so that the second rounding sees no false tie. */
static float round_pair(double s, double t, int precision) {
    const double h = s + t, v = h - s, l = (s - (h - v)) + (t - v);
    uint64_t pattern;
    memcpy(&pattern, &h, 8);
    if (l != 0 && !(pattern & 1)) pattern += (h > 0) == (l > 0) ? 1 : (uint64_t)-1;
    double odd;
    memcpy(&odd, &pattern, 8);
    return round_to(odd, precision) + 0.0f;
}

typedef int64_t bits __attribute__((vector_size(8 * LANES)));

/* s is a running FP64 sum, t the sum of its rounding errors e_i, which TwoSum finds exactly, size that of |e_i|. */
typedef struct {
    vec s, t, size;
} doubled;

#define OPEN 256    /* elements settled together */
#define PASS 128    /* terms of each of them read before the next one's: what they share stays in cache */

/* Elements [first, first + LANES) over the runs [r0, r1). */
static void add_doubled(doubled *sum, const terms *t, const element *first, int64_t r0, int64_t r1) {
    vec s = sum->s, low = sum->t, size = sum->size;
    for (int64_t r = r0; r < r1; r++)
        for (int64_t i = 0; i < t->run; i++) {
            vec x;
            for (int l = 0; l < LANES; l++) x[l] = term_of(t, first + l, r, i);
            const vec h = s + x, v = h - s, e = (s - (h - v)) + (x - v);
            s = h;
            low += e;
            size += (vec)((bits)e & 0x7fffffffffffffffll); /* |e| */
        }
    *sum = (doubled){s, low, size};
}

/* exact = s + t + d, |d| <= K u (1 + 2^-16) size, K < 2^31; t -+ the bound are rounded once more each. Where every e_i is
 * 0, s is exact, ties included. What that leaves undecided is summed in integers. NaN if a term is not finite. */
static float round_doubled(const terms *t, const element *e, double s, double low, double size, progress *shared) {
    if (!isfinite(s)) return NAN; /* FP64 sums of f32 products do not overflow */
    const double count = (double)(t->runs * t->run + 8);
    const double bound = size * (count * 0x1.0001p-53) + fabs(low) * 0x1p-51;
    const int precision = (int)shared->precision;
    const float upper = round_pair(s, size > 0 ? low + bound : 0, precision);
    const float lower = round_pair(s, size > 0 ? low - bound : 0, precision);
    if (upper == lower) return upper;
    shared->twice++;
    return sum_in_integers(t, e, precision);
}

/* ---- near ties ---- */

/* Whether all terms are multiples of 2^(E+k-52), where they are below 2^E: then any order adds them exactly. */
static int on_grid(const terms *t, const element *e, int64_t k) {
    double peak = 0;
    for (int64_t r = 0; r < t->runs; r++)
        for (int64_t i = 0; i < t->run; i++) {
            const double x = fabs(term_of(t, e, r, i));
            peak = x > peak ? x : peak;
        }
    uint64_t pattern;
    memcpy(&pattern, &peak, 8);
    pattern = ((pattern >> 52) + 1 + (uint64_t)k) << 52 | 1ull << 51; /* 1.5 * 2^(E+k) */
    double shift;
    memcpy(&shift, &pattern, 8);
    for (int64_t r = 0; r < t->runs; r++)
        for (int64_t i = 0; i < t->run; i++) {
            const double x = term_of(t, e, r, i), high = x + shift;
            if (high - shift != x) return 0;
        }
    return 1;
}

/* Reports those of `count` open elements that may be left rounded from c; moves the others to the front: how many. */
static int64_t report(const terms *t, element *open, int64_t count, progress *shared) {
    const int precision = (int)shared->precision;
    int64_t left = 0;
    for (int64_t j = 0; j < count; j++) {
        const element *e = open + j;
        if (!isfinite(e->c) || !(e->e <= shared->limit * gap_at(e->c, precision)) || (shared->grid && on_grid(t, e, shared->grid))) {
            open[left++] = *e;
            continue;
        }
        *e->to = round_to(e->c, precision) + 0.0f;
        const int64_t at = shared->logged++;
        if (at < shared->room) shared->near[at] = (near_tie){e->to - shared->result, e->c, e->e};
    }
    return left;
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Settles up to OPEN elements; `open` has room for LANES more. */
static void settle_exactly(const terms *t, element *open, int64_t count, progress *shared) {
    const int64_t step = t->run < PASS ? PASS / t->run : 1;
    doubled sums[OPEN / LANES + 1];
    int64_t wrong = 0;
    memset(sums, 0, sizeof sums);
    for (int l = 0; l < LANES; l++) open[count + l] = open[count - 1];
    for (int64_t r = 0; r < t->runs; r += step)
        for (int64_t j = 0; j < count; j += LANES)
            add_doubled(sums + j / LANES, t, open + j, r, r + step < t->runs ? r + step : t->runs);
    for (int64_t j = 0; j < count; j++) {
        const doubled *sum = sums + j / LANES;
        const int l = (int)(j % LANES);
        const float value = round_doubled(t, open + j, sum->s[l], sum->t[l], sum->size[l], shared);
        *open[j].to = value;
        wrong += value == value && value != round_to(open[j].c, (int)shared->precision);
    }
    shared->wrong += wrong;
}

/* Reports or settles up to OPEN undecided elements. `open` has room for LANES more. */
static void settle(const terms *t, element *open, int64_t count, progress *shared) {
    if (!count) return;
    const int64_t started = now();
    shared->undecided += count;
    if (shared->limit > 0) count = report(t, open, count, shared);
    if (count) settle_exactly(t, open, count, shared);
    shared->nanoseconds += now() - started;
}

/* ---- Ziv's test ---- */

/* Ziv's test of one row of results +- left * right[j]: results in `high`; whether any is undecided (`is_open`). */
static int test_f32(const double *restrict c, double left, const double *restrict right, int64_t n, float *restrict high) {
    int any = 0;
    for (int64_t j = 0; j < n; j++) {
        const double e = left * right[j];
        const float upper = (float)(c[j] + e), lower = (float)(c[j] - e);
        high[j] = upper + 0.0f; /* -0 + 0 = +0 */
        any |= !(upper == lower);
    }
    return any;
}

static int test_bits(
    const double *restrict c, double left, const double *restrict right, int64_t n, float *restrict high, int precision) {
    int any = 0;
    for (int64_t j = 0; j < n; j++) {
        const double e = left * right[j];
        const float upper = round_bits(c[j] + e, precision), lower = round_bits(c[j] - e, precision);
        high[j] = upper + 0.0f;
        any |= !(upper == lower);
    }
    return any;
}

static int test_row(
    const double *restrict c, double left, const double *restrict right, int64_t n, float *restrict high, int precision) {
    return precision == 32 ? test_f32(c, left, right, n, high) : test_bits(c, left, right, n, high, precision);
}
