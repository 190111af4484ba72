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

/* ---- exactly: a superaccumulator (Neal 2015) ----
 *
 * An f32 is m * 2^(4 p - 149), m an integer below 2^27 and 0 <= p <= 63. So a product is m * 2^(4 p - 298) with |m| < 2^54
 * and p <= 126; a plain term has 149 bits more below it. Terms are added by their place p: `sums[p] += m`, exact for 2^9
 * terms. Then the sums are added into limbs: digits of 32 bits in 64-bit integers, the lowest of weight 2^-298. A few
 * elements are summed side by side, so that no addition waits for the one before it. */

#define UNIT 298
#define SIDE 8    /* elements summed side by side; a multiple of LANES */
#define PLACES 128
#define STEP (PLACES + 8) /* from one element's sums to the next one's: equal places of all share no cache set */
#define LIMBS 20   /* 506 + 48 bits, 2^31 terms and a sign: 586 bits */
#define SAFE 512   /* terms added before the sums are moved into limbs */
#define DIRECT 12  /* terms up to which each goes into the limbs by itself: moving sums costs more */

typedef struct {
    int64_t sums[SIDE * STEP]; /* all zero while nothing is being summed */
    int64_t limbs[SIDE][LIMBS];
    int64_t m[SAFE * SIDE];
    uint8_t p[SAFE * SIDE];
} superaccumulator;

static _Thread_local superaccumulator exact_sums;

/* Compiled apart from its callers: GCC else looks up inside of the loops where this thread's memory is. */
#if defined(__clang__)
#define OUTSIDE __attribute__((noinline))
#else
#define OUTSIDE __attribute__((noipa))
#endif

/* m of x, below 2^24, and its place in single bits. */
static inline int32_t decode(float x, int32_t *bit) {
    uint32_t pattern;
    memcpy(&pattern, &x, 4);
    const int32_t exponent = pattern >> 23 & 0xff, normal = exponent != 0, sign = -(int32_t)(pattern >> 31);
    *bit = exponent - normal;
    const int32_t size = (int32_t)(pattern & 0x7fffff) | normal << 23;
    return (size ^ sign) - sign;
}

/* limbs += value * 2^(4 p). */
static inline void add_at(int64_t *limbs, int64_t value, int p) {
    const int limb = p >> 3, bit = 4 * (p & 7);
    const uint64_t size = value < 0 ? -(uint64_t)value : (uint64_t)value;
    const uint64_t low = size << bit, high = bit ? size >> (64 - bit) : 0;
    const int64_t sign = value < 0 ? -1 : 1;
    limbs[limb] += sign * (int64_t)(low & 0xffffffffull);
    limbs[limb + 1] += sign * (int64_t)(low >> 32);
    limbs[limb + 2] += sign * (int64_t)high;
}

/* Moves the sums of 8 places into limbs: of sums = high * 2^32 + low, each shifted to its place. */
static inline void move_sums(int64_t *restrict sums, int64_t *restrict limbs) {
    uint64_t low = 0, high = 0;
    for (int r = 0; r < 8; r++) {
        const uint64_t biased = (uint64_t)sums[r] + (1ull << 63);
        low += (biased & 0xffffffffull) << 4 * r;
        high += (biased >> 32) << 4 * r;
        sums[r] = 0;
    }
    const int64_t top = (int64_t)(high - (0x11111111ull << 31)); /* less the biases, 2^31 each */
    limbs[0] += (int64_t)(low & 0xffffffffull);
    limbs[1] += (int64_t)(low >> 32) + (int64_t)((uint64_t)top & 0xffffffffull);
    limbs[2] += top >> 32;
}

/* 2^exponent, of a normal FP64 number. */
static inline double power_of_two(int exponent) { return from_pattern((uint64_t)(1023 + exponent) << 52); }

/* RN of the value of limbs that are zero before `first`; zero is +0. */
static float round_exactly(int64_t *limbs, int first, int precision) {
    int64_t carry = 0;
    for (int i = first; i < LIMBS; i++) {
        const int64_t value = limbs[i] + carry;
        limbs[i] = value & 0xffffffffll;
        carry = value >> 32;
    }
    const int negative = carry < 0;
    if (negative) { /* two's complement of the digits */
        int64_t borrow = 1;
        for (int i = first; i < LIMBS; i++) {
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
    for (int i = top - 3; i >= first; i--) sticky |= (uint64_t)limbs[i];
    const int exponent = 32 * top + 31 - zeros - UNIT; /* lead's first bit has this weight */
    /* Bits kept: precision - 8 (24 of f32), fewer for a subnormal result (smallest unit 2^least, 2^-149 of f32). */
    const int least = -117 - precision;
    const int keep = exponent < -126 ? exponent - least + 1 : precision - 8;
    float result;
    if (keep < 0) return 0.0f;
    if (keep == 0) { /* between half the smallest unit and all of it: up unless exactly the tie */
        const int up = (lead << 1) != 0 || sticky != 0;
        result = up ? (float)power_of_two(least) : 0.0f;
    } else {
        uint64_t kept = lead >> (64 - keep);
        const uint64_t rest = lead << keep, halfway = 1ull << 63;
        if (rest > halfway || (rest == halfway && (sticky != 0 || (kept & 1)))) kept++;
        result = (float)((double)kept * power_of_two(exponent - keep + 1)); /* exact, or infinity */
    }
    return negative && result != 0.0f ? -result : result;
}

/* Adds terms of SIDE elements at their places: m[k][s] at p[k][s]. */
static OUTSIDE void add_terms(int64_t *restrict sums, const int64_t *restrict m, const uint8_t *restrict p, int64_t count) {
    for (int64_t k = 0; k < count; k++, m += SIDE, p += SIDE)
#pragma GCC unroll 8
        for (int s = 0; s < SIDE; s++) sums[s * STEP + p[s]] += m[s];
}

/* Moves the sums of the places lo ... hi of `count` elements into their limbs. */
static OUTSIDE void move_all(superaccumulator *x, int64_t count, int lo, int hi) {
    for (int64_t s = 0; s < count; s++)
        for (int g = lo >> 3; g <= hi >> 3; g++) move_sums(x->sums + s * STEP + 8 * g, x->limbs[s] + g);
}

/* `first`: the first limb that is not zero. */
static void put_exact(const element *e, int64_t *limbs, int first, progress *shared) {
    const int precision = (int)shared->precision;
    *e->to = isfinite(e->e) ? round_exactly(limbs, first, precision) : NAN; /* e is not finite where a term is not */
    shared->twice++;
    shared->wrong += isfinite(e->e) && *e->to != round_to(e->c, precision);
}

/* Decodes terms [k, k + n) of an element into m and p, SIDE apart; widens the range of places that are not zero. */
static OUTSIDE void decode_terms(
    const terms *t, const element *from, int64_t k, int64_t n, int64_t *m, uint8_t *p, int *lo, int *hi) {
    int32_t least = *lo, most = *hi;
    for (int64_t done = 0; done < n;) {
        const int64_t r = (k + done) / t->run, skip = (k + done) % t->run;
        const int64_t length = t->run - skip < n - done ? t->run - skip : n - done;
        const float *a = from->a + t->a_k[r] + skip, *b = from->b ? from->b + t->b_k[r] + skip : 0;
        for (int64_t i = 0; i < length; i++, m += SIDE, p += SIDE) {
            int32_t left, right = 149;
            int64_t term = decode(a[i], &left);
            if (b) term *= decode(b[i], &right);
            left += right;
            *m = term << (left & 3); /* below 2^51 */
            *p = (uint8_t)(left >> 2);
            const int32_t place = left >> 2;
            least = term && place < least ? place : least;
            most = term && place > most ? place : most;
        }
        done += length;
    }
    *lo = least;
    *hi = most;
}

/* Exact sums of up to SIDE elements. */
static void settle_side(const terms *t, const element *open, int64_t count, progress *shared) {
    superaccumulator *x = &exact_sums;
    const int64_t all = t->runs * t->run, most = all < SAFE ? all : SAFE;
    int lo = PLACES, hi = -1;
    memset(x->limbs, 0, sizeof x->limbs);
    if (count < SIDE) {
        memset(x->m, 0, (size_t)most * SIDE * sizeof *x->m);
        memset(x->p, 0, (size_t)most * SIDE);
    }
    for (int64_t k = 0; k < all; k += SAFE) {
        const int64_t n = all - k < SAFE ? all - k : SAFE;
        for (int64_t s = 0; s < count; s++) decode_terms(t, open + s, k, n, x->m + s, x->p + s, &lo, &hi);
        if (all <= DIRECT) {
            for (int64_t i = 0; i < n * SIDE; i++)
                if (x->m[i]) add_at(x->limbs[i % SIDE], x->m[i], x->p[i]);
            continue;
        }
        add_terms(x->sums, x->m, x->p, n);
        move_all(x, count, lo, hi);
    }
    for (int64_t s = 0; s < count; s++) put_exact(open + s, x->limbs[s], all <= DIRECT || hi < 0 ? 0 : lo >> 3, shared);
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
#define DENSE 8     /* where one in so many is undecided, all of them are summed exactly at once */
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
 * 0, s is exact, ties included. NaN if a term is not finite. Whether that decides it. */
static int round_doubled(const terms *t, double s, double low, double size, int precision, float *to) {
    *to = NAN;
    if (!isfinite(s)) return 1; /* FP64 sums of f32 products do not overflow */
    const double count = (double)(t->runs * t->run + 8);
    const double bound = size * (count * 0x1.0001p-53) + fabs(low) * 0x1p-51;
    *to = round_pair(s, size > 0 ? low + bound : 0, precision);
    return *to == round_pair(s, size > 0 ? low - bound : 0, precision);
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

/* Settles up to OPEN elements of which there are few among many: in doubled precision, which reads scattered terms
 * faster; what that leaves undecided moves to the front: how many. `open` has room for LANES more. */
static int64_t settle_doubled(const terms *t, element *open, int64_t count, progress *shared) {
    const int64_t step = t->run < PASS ? PASS / t->run : 1;
    const int precision = (int)shared->precision;
    doubled sums[OPEN / LANES + 1];
    int64_t wrong = 0, left = 0;
    memset(sums, 0, sizeof sums);
    for (int l = 0; l < LANES; l++) open[count + l] = open[count - 1];
    for (int64_t r = 0; r < t->runs; r += step)
        for (int64_t j = 0; j < count; j += LANES)
            add_doubled(sums + j / LANES, t, open + j, r, r + step < t->runs ? r + step : t->runs);
    for (int64_t j = 0; j < count; j++) {
        const doubled *sum = sums + j / LANES;
        const int l = (int)(j % LANES);
        float value;
        if (!round_doubled(t, sum->s[l], sum->t[l], sum->size[l], precision, &value)) {
            open[left++] = open[j];
            continue;
        }
        *open[j].to = value;
        wrong += value == value && value != round_to(open[j].c, precision);
    }
    shared->wrong += wrong;
    return left;
}

/* Reports or settles up to OPEN undecided elements. `open` has room for LANES more. `dense`: they are many among few. */
static void settle(const terms *t, element *open, int64_t count, int dense, progress *shared) {
    if (!count) return;
    const int64_t started = now();
    shared->undecided += count;
    if (shared->limit > 0) count = report(t, open, count, shared);
    if (count && !dense) count = settle_doubled(t, open, count, shared);
    for (int64_t j = 0; j < count; j += SIDE) settle_side(t, open + j, count - j < SIDE ? count - j : SIDE, shared);
    shared->nanoseconds += now() - started;
}

/* ---- Ziv's test ---- */

/* Ziv's test of one row of results +- left * right[j]: results in `high`; how many are undecided (`is_open`). */
static int test_f32(const double *restrict c, double left, const double *restrict right, int64_t n, float *restrict high) {
    int open = 0;
    for (int64_t j = 0; j < n; j++) {
        const double e = left * right[j];
        const float upper = (float)(c[j] + e), lower = (float)(c[j] - e);
        high[j] = upper + 0.0f; /* -0 + 0 = +0 */
        open += !(upper == lower);
    }
    return open;
}

static int test_bits(
    const double *restrict c, double left, const double *restrict right, int64_t n, float *restrict high, int precision) {
    int open = 0;
    for (int64_t j = 0; j < n; j++) {
        const double e = left * right[j];
        const float upper = round_bits(c[j] + e, precision), lower = round_bits(c[j] - e, precision);
        high[j] = upper + 0.0f;
        open += !(upper == lower);
    }
    return open;
}

static int test_row(
    const double *restrict c, double left, const double *restrict right, int64_t n, float *restrict high, int precision) {
    return precision == 32 ? test_f32(c, left, right, n, high) : test_bits(c, left, right, n, high, precision);
}
