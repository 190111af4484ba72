/* Ziv's test of a row of sums, and what becomes of those that it leaves undecided: exact sums of f32 terms, or of products
 * of two; or, under policy `logged`, near ties that are reported (ziv.py: the rules). */
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
    _Atomic int64_t twice;       /* of those: not on a grid either */
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

static int consecutive(const int64_t *table, int64_t n) {
    for (int64_t j = 1; j < n; j++)
        if (table[j] != table[0] + j) return 0;
    return 1;
}

static inline int is_open(double c, double e, int precision) {
    return !(round_to(c + e, precision) == round_to(c - e, precision));
}

/* ---- exactly: a superaccumulator (Neal 2015) of WIDE sums side by side ----
 *
 * A finite f32 is m * 2^(bit - 149), |m| < 2^24 and 0 <= bit <= 253. So a product is m * 2^(bit - 298) with |m| < 2^48 and
 * bit <= 506; a plain term has 149 bits more below it. Bin p holds integers of weight 2^(8 p - 298): a term adds
 * m * 2^(bit mod 8), below 2^55, to bin bit / 8. Before a bin can overflow, all that does not fit a signed digit of 8 bits
 * is carried into the next one.
 *
 * Rounding: a number's digits of 48 (or 52) bits, -2^47 ... 2^47 - 1, from the lowest up: those below one add up to less than 0.51
 * of its unit. So the highest that is not zero, the one below it and the sign of the rest decide: the two are added in
 * FP64, with a half for the rest, and rounded to odd. What that leaves, 46 bits or more, is rounded to at most 24 like the
 * exact value (Boldo and Melquiond 2008). */

#define UNIT 298
#define WIDE 16   /* sums side by side: in vectors, and no addition waits for the one before it */
#define ABOVE 12  /* bins above the highest term's: its 55 bits, 2^31 terms and a sign */
#define BINS 80   /* of 506 bits and ABOVE, in whole digits */
#define DIGIT 48  /* bits: a multiple of a bin's; 52 of bins of 26 */
#define OPEN 256  /* elements settled together: they often share lines of memory */
#define SAFE 480  /* terms below 2^54 that fit a bin together, digits and carries too; of those below 2^55, half as many */

/* Compiled apart from its callers: GCC else looks up inside of the loops where this thread's memory is. */
#if defined(__clang__)
#define OUTSIDE __attribute__((noinline))
#else
#define OUTSIDE __attribute__((noipa))
#endif

/* m of x, below 2^24, and its lowest bit. */
static inline int32_t decode(float x, int32_t *bit) {
    uint32_t pattern;
    memcpy(&pattern, &x, 4);
    const int32_t exponent = pattern >> 23 & 0xff, normal = exponent != 0, sign = -(int32_t)(pattern >> 31);
    *bit = exponent - normal;
    const int32_t size = (int32_t)(pattern & 0x7fffff) | normal << 23;
    return (size ^ sign) - sign;
}

/* 2^exponent, of a normal FP64 number. */
static inline double power_of_two(int exponent) { return from_pattern((uint64_t)(1023 + exponent) << 52); }

/* Leaves digits in the bins lo ... hi + above; terms were added to lo ... hi. Subtracts `offsets` of bins, unless they are
 * null, from all sums, and clears them. */
static inline __attribute__((always_inline)) void carry(int64_t *sums, int64_t *offsets, int lo, int hi, const int bits) {
    integers over[WIDE / LANES];
    memset(over, 0, sizeof over);
    for (int p = lo; p <= hi + ABOVE * 8 / bits; p++)
        for (int v = 0; v < WIDE / LANES; v++) {
            integers *bin = (integers *)(sums + p * WIDE) + v;
            const integers value = *bin + over[v] - (offsets ? offsets[p] : 0);
            over[v] = (value + (1 << (bits - 1))) >> bits;
            *bin = value - (over[v] << bits);
        }
    if (offsets) memset(offsets + lo, 0, 8 * (size_t)(hi + 1 - lo));
}

static OUTSIDE void carry_sums(int64_t *sums, int lo, int hi) { carry(sums, 0, lo, hi, 8); }

/* s + x rounded to FP64, to the neighbour with odd significand unless it is exact. */
static inline vec add_odd(vec s, vec x) {
    const vec h = s + x, v = h - s, l = (s - (h - v)) + (x - v);
    const integers away = ((h < 0) ^ (l < 0)) | 1;
    return (vec)((integers)h + (away & (l != 0) & -(~(integers)h & 1)));
}

/* As FP64; |x| < 2^51. */
static inline vec as_fp64(integers x) { return (vec)(x + 0x4338000000000000) - 0x1.8p52; }

/* The digits of a number so far: the last one, and the highest that is not zero with its unit and the two below it, of
 * which the lower one stands for the sign of all that is below. */
typedef struct {
    integers over, last, rest, top, under, below;
    vec unit;
} rounding;

/* RN of the sums, less `offsets`, in the bins lo ... hi + above, which are cleared; zero is +0. */
static inline __attribute__((always_inline)) void round_bins(
    int64_t *sums, int64_t *offsets, int lo, int hi, int precision, float *to, const int bits) {
    const int each = bits == 26 ? 2 : DIGIT / bits, size = each * bits;
    rounding found[WIDE / LANES];
    double odd[WIDE];
    memset(found, 0, sizeof found);
    for (int p = lo - lo % each; p <= hi + ABOVE * 8 / bits; p += each)
        for (int v = 0; v < WIDE / LANES; v++) {
            rounding *x = found + v;
            integers over = x->over, digit = over, *bin = (integers *)(sums + p * WIDE) + v;
#pragma GCC unroll 12
            for (int q = 0; q < each; q++, bin += WIDE / LANES) {
                const integers value = *bin - (offsets ? offsets[p + q] : 0);
                digit += value << bits * q; /* its lowest bits are the number's, whatever leaves the 64 (-fwrapv) */
                over = (value + over + (q == each - 1 ? 1 << (bits - 1) : 0)) >> bits; /* rounded: digits are signed */
                *bin = (integers){0};
            }
            x->over = over;
            digit = digit << (64 - size) >> (64 - size);
            x->top = WHERE(digit, digit, x->top);
            x->under = WHERE(digit, x->last, x->under);
            x->below = WHERE(digit, x->rest, x->below);
            x->unit = (vec)WHERE(digit, (integers)SPREAD(power_of_two(bits * p - UNIT - size)), (integers)x->unit);
            x->rest = WHERE(x->last, x->last, x->rest);
            x->last = digit;
        }
    if (offsets) memset(offsets + lo, 0, 8 * (size_t)(hi + 1 - lo));
    for (int v = 0; v < WIDE / LANES; v++) {
        const rounding *x = found + v;
        const vec half = as_fp64((x->below < 0) - (x->below > 0)) * 0.5;
        const vec sum = add_odd(as_fp64(x->top) * power_of_two(size), as_fp64(x->under) + half) * x->unit;
        memcpy(odd + v * LANES, &sum, sizeof sum);
    }
    for (int s = 0; s < WIDE; s++) to[s] = round_to(odd[s], precision) + 0.0f;
}

static OUTSIDE void round_sums(int64_t *sums, int lo, int hi, int precision, float *to) {
    round_bins(sums, 0, lo, hi, precision, to, 8);
}

typedef struct {
    _Alignas(64) int64_t sums[OPEN / WIDE][BINS * WIDE]; /* all zero while nothing is being summed */
    float x[2][WIDE][SAFE / 2 + 8];         /* factors; rows apart, so that they share no cache set */
    int64_t m[WIDE][SAFE / 2 + 8];
    int16_t place[WIDE][SAFE / 2 + 8];
} superaccumulator;

static _Thread_local superaccumulator exact_sums;

/* Copies factors [k, k + n) of an operand of some elements. */
static OUTSIDE void read_factors(
    const terms *t, const element *from, int64_t count, int right, int64_t k, int64_t n, float (*x)[SAFE / 2 + 8]) {
    const int64_t *table = right ? t->b_k : t->a_k;
    if (t->run == 1) { /* elements often follow each other in memory, but terms do not */
        for (int64_t i = 0; i < n; i++)
            for (int64_t s = 0; s < count; s++) x[s][i] = (right ? from[s].b : from[s].a)[table[k + i]];
        return;
    }
    for (int64_t s = 0; s < count; s++)
        for (int64_t done = 0, length; done < n; done += length) {
            const int64_t skip = (k + done) % t->run;
            length = t->run - skip < n - done ? t->run - skip : n - done;
            memcpy(x[s] + done, (right ? from[s].b : from[s].a) + table[(k + done) / t->run] + skip, 4 * (size_t)length);
        }
}

/* Decodes terms; widens the range of bins of those that are not zero. */
static OUTSIDE void decode_terms(
    const float *restrict x, const float *restrict y, int64_t n, int64_t *restrict m, int16_t *restrict place, int *lo,
    int *hi) {
    int32_t least = *lo, most = *hi;
    for (int64_t i = 0; i < n; i++) {
        int32_t bit, right = 149;
        int64_t term = decode(x[i], &bit);
        if (y) term *= decode(y[i], &right);
        bit += right;
        m[i] = term * (1 << (bit & 7));
        bit >>= 3;
        place[i] = (int16_t)(bit * WIDE);
        const int32_t low = term ? bit : BINS, high = term ? bit : -1;
        least = low < least ? low : least;
        most = high > most ? high : most;
    }
    *lo = least;
    *hi = most;
}

static OUTSIDE void add_terms(superaccumulator *x, int64_t *sums, int64_t count, int64_t n) {
    for (int64_t k = 0; k < n; k++)
        for (int64_t s = 0; s < count; s++) sums[x->place[s][k] + s] += x->m[s][k];
}

/* Exact sums of up to OPEN elements. */
static void sum_exactly(const terms *t, const element *open, int64_t count, progress *shared) {
    superaccumulator *x = &exact_sums;
    const int64_t all = t->runs * t->run;
    const int precision = (int)shared->precision;
    int lo[OPEN / WIDE], hi[OPEN / WIDE];
    int64_t wrong = 0;
    for (int64_t g = 0; g < OPEN / WIDE; g++) lo[g] = BINS, hi[g] = -1;
    for (int64_t k = 0; k < all; k += SAFE / 2)
        for (int64_t first = 0; first < count; first += WIDE) {
            const int64_t n = all - k < SAFE / 2 ? all - k : SAFE / 2, g = first / WIDE;
            const int64_t width = count - first < WIDE ? count - first : WIDE;
            for (int right = 0; right <= (open->b != 0); right++) read_factors(t, open + first, width, right, k, n, x->x[right]);
            for (int64_t s = 0; s < width; s++)
                decode_terms(x->x[0][s], open->b ? x->x[1][s] : 0, n, x->m[s], x->place[s], lo + g, hi + g);
            add_terms(x, x->sums[g], width, n);
            if (hi[g] >= 0 && k + n < all) carry_sums(x->sums[g], lo[g], hi[g]);
        }
    for (int64_t first = 0; first < count; first += WIDE) {
        const int64_t g = first / WIDE;
        float result[WIDE] = {0};
        if (hi[g] >= 0) round_sums(x->sums[g], lo[g], hi[g], precision, result);
        for (int64_t s = first; s < count && s < first + WIDE; s++) {
            const float value = result[s - first];
            *open[s].to = isfinite(open[s].e) ? value : NAN; /* e is not finite where a term is not */
            wrong += isfinite(open[s].e) && value != round_to(open[s].c, precision);
        }
    }
    shared->twice += count;
    shared->wrong += wrong;
}

/* ---- on a grid, and near ties ---- */

static inline double term_of(const terms *t, const element *e, int64_t r, int64_t i) {
    const double x = (double)e->a[t->a_k[r] + i];
    return e->b ? x * (double)e->b[t->b_k[r] + i] : x;
}

/* Whether all terms are multiples of 2^(E+k-52), where they are below 2^E: then any order adds them exactly. */
static int on_grid(const terms *t, const element *e, int64_t k) {
    int64_t peak = 0, lowest = INT64_MAX; /* exponent of the greatest; of the lowest bit of all that are not zero */
    for (int64_t r = 0; r < t->runs; r++)
        for (int64_t i = 0; i < t->run; i++) {
            const double x = fabs(term_of(t, e, r, i));
            int64_t pattern;
            memcpy(&pattern, &x, 8);
            const int64_t exponent = pattern >> 52, low = exponent + __builtin_ctzll((uint64_t)pattern | 1ull << 52);
            peak = exponent > peak ? exponent : peak;
            lowest = low < lowest && pattern ? low : lowest;
        }
    return lowest > peak + k;
}

/* The least k > 0 with count <= 2^k. */
static int64_t logarithm(int64_t count) {
    int64_t k = 1;
    while ((int64_t)1 << k < count) k++;
    return k;
}

/* Settles sums on a grid, which many ties are: c is exact. Moves the others to the front: how many. */
static int64_t settle_on_grid(const terms *t, element *open, int64_t count, progress *shared) {
    const int64_t k = logarithm(t->runs * t->run);
    int64_t left = 0;
    for (int64_t j = 0; j < count; j++) {
        if (!isfinite(open[j].e) || !on_grid(t, open + j, k)) open[left++] = open[j];
        else *open[j].to = round_to(open[j].c, (int)shared->precision) + 0.0f;
    }
    return left;
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

#define DENSE 8  /* where one in so many is undecided, a block is summed exactly as a whole */
#define FEW 64   /* products whose grid is looked at first: factors of few bits, as those of images, leave many ties */

/* Reports or settles up to OPEN undecided elements. */
static void settle(const terms *t, element *open, int64_t count, progress *shared) {
    if (!count) return;
    const int64_t started = now();
    shared->undecided += count;
    if (shared->limit > 0) count = report(t, open, count, shared);
    const int64_t terms_each = t->runs * t->run; /* two passes over many scattered terms cost more */
    if (open->b ? terms_each <= FEW : t->run > 1) count = settle_on_grid(t, open, count, shared);
    if (count) sum_exactly(t, open, count, shared);
    shared->nanoseconds += now() - started;
}

/* ---- Ziv's test ---- */

/* Ziv's test of one row of results +- left * right[j]: results in `high`; how many are undecided (`is_open`). With `lowest`,
 * a result is exact if size * right[j] is at most 2^lowest[j]. */
static inline __attribute__((always_inline)) int test_with(
    const double *restrict c, double left, const double *restrict right, int64_t n, float *restrict high, const int precision,
    const int32_t *restrict lowest, double size) {
    int open = 0;
    for (int64_t j = 0; j < n; j++) {
        const double e = lowest && size * right[j] <= power_of_two(lowest[j]) ? 0 : left * right[j];
        const float upper = round_to(c[j] + e, precision), lower = round_to(c[j] - e, precision);
        high[j] = upper + 0.0f; /* -0 + 0 = +0 */
        open += !(upper == lower);
    }
    return open;
}

static int test_row(
    const double *restrict c, double left, const double *restrict right, int64_t n, float *restrict high, int precision) {
    return precision == 32 ? test_with(c, left, right, n, high, 32, 0, 0) : test_with(c, left, right, n, high, precision, 0, 0);
}

/* The first of a row's undecided elements from j on; n if there is none. */
static OUTSIDE int64_t next_open(const double *c, double left, const double *right, int64_t j, int64_t n, int precision) {
    for (int open = 0; j + 8 <= n; j += 8) {
        for (int s = 0; s < 8; s++) open |= is_open(c[j + s], left * right[j + s], precision);
        if (open) break;
    }
    while (j < n && !is_open(c[j], left * right[j], precision)) j++;
    return j;
}
