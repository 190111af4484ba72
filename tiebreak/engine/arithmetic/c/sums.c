/* Sums of products of f32, correctly rounded: the twin of plain/sums.py, for CPUs.
 *
 * An element is sum over k of a[a_batch + a_m + a_k] * b[b_batch + b_n + b_k], the offsets being tables (an affine access
 * map is a sum of one offset per coordinate, so one table per group of coordinates says it all: matmul, bmm and
 * convolutions look alike). A task is one block of the output. Its operands are converted to FP64 into panels, K in
 * blocks of at most KC terms whose results are added by plain additions; the block stays in cache until Ziv's test
 * (tiebreak/engine/arithmetic/plan/ziv.py: the bound and its proof) has decided its elements; exact.h settles the others.
 *
 * SAFETY: the caller has checked that every sum of table entries lies inside the operand and the result.
 */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "contraction.h"
#include "exact.h"
#include "lanes.h"
#include "panels.h"

#define MC 96
#define MC_ALONE 256 /* rows that are not cut: their panels stay in the second-level cache */

/* ---- blocks ---- */

static int64_t blocks_of(int64_t size, int64_t step) { return (size + step - 1) / step; }

typedef struct {
    double *a, *b, *c, *group, *squares_a, *squares_b; /* c and group: rows of `row` elements */
    float *high; /* a row of results */
    int *opens;  /* undecided elements of each row */
    int32_t *lowest_a, *lowest_b; /* of a row's, a column's terms that are not zero: the lowest bit, from 2^-149 up */
    int *beside; /* whether each four columns' results lie side by side */
    size_t bytes;
    void *memory;
} room;

static _Thread_local room held;

static size_t padded(size_t count) { return (count + 63) & ~(size_t)63; }

/* This thread's memory for blocks of block_m x block_n; 0 if there is none. Kept for the next call. */
static int make_room(int64_t block_m, int64_t block_n) {
    const size_t m = padded((size_t)block_m + MR), n = padded((size_t)block_n + NR);
    const size_t doubles = m * KC + n * KC + 2 * m * n + m + n;
    const size_t bytes = 8 * doubles + 4 * (3 * n + 2 * m) + 256;
    if (bytes > held.bytes) {
        free(held.memory);
        held.memory = aligned_alloc(64, padded(bytes));
        held.bytes = held.memory ? bytes : 0;
        if (!held.memory) return 0;
    }
    held.a = held.memory;
    held.b = held.a + m * KC;
    held.c = held.b + n * KC;
    held.group = held.c + m * n;
    held.squares_a = held.group + m * n;
    held.squares_b = held.squares_a + m;
    held.high = (float *)(held.squares_b + n);
    held.opens = (int *)(held.high + n);
    held.beside = held.opens + m;
    held.lowest_a = held.beside + n;
    held.lowest_b = held.lowest_a + m;
    return 1;
}

/* A block of one batch: outputs [m0, m0 + m) x [n0, n0 + n). */
typedef struct {
    int64_t batch, m0, m, n0, n;
} block;

/* C of one block and the sums of squares, over the terms [k0, k1) into `c` whose rows have `row`
 * elements. */
static void multiply_block(const contraction *t, const block *at, int64_t k0, int64_t k1, double *c, int64_t row) {
    const float *a = t->a + t->a_batch[at->batch], *b = t->b + t->b_batch[at->batch];
    const int64_t *row_m = t->a_m + at->m0, *row_n = t->b_n + at->n0, m = at->m, n = at->n;
    const int64_t rows = m <= MC_ALONE ? m : MC; /* few rows: each panel of columns is used at once, and stays near */
    for (int64_t k = k0; k < k1; k += t->kc) {
        const int64_t kc = k1 - k < t->kc ? k1 - k : t->kc;
        for (int64_t top = 0; top < m; top += rows) {
            const int64_t end = m < top + rows ? m : top + rows;
            for (int64_t i = top; i < end; i += MR)
                pack(held.a + (i - top) * kc, held.squares_a + i, a, row_m + i, m - i < MR ? m - i : MR, t->a_k + k, kc,
                     m - i < 2 * MR ? 0 : row_m + i + MR, MR);
            for (int64_t j = 0; j < n; j += NR) {
                const int vectors = n - j < NR ? (int)blocks_of(n - j, LANES) : VECTORS;
                double *panel = held.b + (rows < m ? j * kc : 0);
                if (!top)
                    pack(panel, held.squares_b + j, b, row_n + j, n - j < NR ? n - j : NR, t->b_k + k, kc,
                         n - j < 2 * NR ? 0 : row_n + j + NR, vectors * LANES);
                for (int64_t i = top; i < end; i += MR)
                    multiply(held.a + (i - top) * kc, panel, kc, c + i * row + j, row, k == k0, end - i < MR ? end - i : MR, vectors);
            }
        }
    }
}

/* The same into held.c. No term passes through more than kc + group + number of groups roundings. */
static void accumulate(const contraction *t, const block *at, int64_t k0, int64_t k1, int64_t row) {
    const int64_t step = t->kc * t->group;
    memset(held.squares_a, 0, 8 * padded((size_t)at->m + MR));
    memset(held.squares_b, 0, 8 * padded((size_t)at->n + NR));
    for (int64_t k = k0; k < k1; k += step) {
        double *c = k == k0 ? held.c : held.group;
        multiply_block(t, at, k, k1 - k < step ? k1 : k + step, c, row);
        if (k == k0) continue;
        for (int64_t i = 0; i < at->m; i++)
            for (int64_t j = 0; j < at->n; j++) held.c[i * row + j] += c[i * row + j];
    }
}

/* ---- sums of a block that FP64 has added exactly ----
 *
 * If all terms of a row and a column are multiples of u, and the sum of their magnitudes, which the product of their norms
 * bounds, is at most 2^53 u, then whatever is added of them, in any order, has no error. So are most sums of 64 products of
 * bfloat16, of which many are ties: products have 16 bits. */

#define MANY 16 /* a row's and a column's lowest bits are found in the time in which one term in so many is summed exactly */
#define TRIED 8

typedef uint32_t pattern __attribute__((may_alias)); /* of an f32 */

/* The lowest bit of a number, from 2^-149 up; 1000 of zero. */
static inline int32_t lowest_bit(pattern x) {
    const int32_t exponent = x >> 23 & 0xff, normal = exponent != 0, m = (int32_t)(x & 0x7fffff) | normal << 23;
    const float bit = (float)(m & -m);
    pattern of_bit;
    memcpy(&of_bit, &bit, sizeof bit);
    return m ? exponent - normal + (int32_t)(of_bit >> 23) - 127 : 1000;
}

static OUTSIDE void find_lowest(
    const float *from, const int64_t *row, int64_t rows, const int64_t *term, int64_t count, int32_t *restrict lowest) {
    const int beside = consecutive(row, rows), unit = consecutive(term, count);
    for (int64_t r = 0; r < rows; r++) lowest[r] = 1000;
    for (int64_t k = 0; beside && k < count; k++) {
        const pattern *at = (const void *)(from + row[0] + term[k]);
        for (int64_t r = 0; r < rows; r++) {
            const int32_t low = lowest_bit(at[r]);
            lowest[r] = low < lowest[r] ? low : lowest[r];
        }
    }
    for (int64_t r = 0; !beside && r < rows; r++) {
        const pattern *at = (const void *)(from + row[r]);
        int32_t least = 1000;
        for (int64_t k = 0; k < count; k++) {
            const int32_t low = lowest_bit(at[unit ? term[0] + k : term[k]]);
            least = low < least ? low : least;
        }
        lowest[r] = least;
    }
}

/* ---- exact sums of a block of which many elements are undecided ---- */

typedef struct {
    int32_t wrong[WIDE]; /* by lane */
    int precision;
} tally;

/* Ziv's test of a row's elements again; of the undecided ones, those whose FP64 values do not round to the exact ones. */
static inline __attribute__((always_inline)) void judge(
    const double *restrict c, double left, const double *restrict right, int64_t n, float *restrict exact,
    int32_t *restrict open, int32_t *restrict wrong, int precision) {
    for (int64_t s = 0; s < n; s++) {
        const double e = left * right[s];
        const float value = exact[s] + (float)(e - e); /* NaN where e is not finite */
        open[s] = is_open(c[s], e, precision);
        wrong[s] = open[s] & (value == value) & (value != round_to(c[s], precision));
        exact[s] = value;
    }
}

/* Writes the exact sums of undecided elements of row i, columns [j, j + width). */
static void put_row(
    const contraction *t, const block *at, int64_t row, int64_t i, int64_t j, int64_t width, float *value, tally *found) {
    float *to = t->out + t->out_batch[at->batch] + t->out_m[at->m0 + i], *first = to + t->out_n[at->n0 + j];
    const double left = sqrt(held.squares_a[i]) * t->coefficient, *c = held.c + i * row + j;
    int32_t open[WIDE], wrong[WIDE];
    if (found->precision == 32) judge(c, left, held.squares_b + j, width, value, open, wrong, 32);
    else judge(c, left, held.squares_b + j, width, value, open, wrong, found->precision);
    for (int64_t s = 0; s < width; s++) found->wrong[s] += wrong[s];
    if (consecutive(t->out_n + at->n0 + j, width))
        for (int64_t s = 0; s < width; s++) first[s] = open[s] ? value[s] : first[s];
    else
        for (int64_t s = 0; s < width; s++)
            if (open[s]) to[t->out_n[at->n0 + j + s]] = value[s];
}

#ifdef ADD_LOW

/* With products of 52 bits: the power of two that a term's factors share in all columns goes to the rows. What is left of a
 * column's factors, and its complement, become up to LIMBS limbs of 52 bits. The magnitudes of a row's factors become
 * integers below 2^50 in windows of 26 bits, half a limb, as bins are, and are sorted by window. If there are few limbs, they
 * are added in groups, so that no branch depends on the data; else a window at a time, so that its sums stay in registers. An
 * offset of 2^(52 limbs - 26) makes columns' factors positive, and the complement of x is 2^(52 limbs) - 1 - x; what both add
 * is counted in `offsets`. Room: a term adds less than 2^52 of a low half, 2^50 of a high one and 2^51 for the offsets, so
 * TOGETHER * CARRIED terms and what was carried stay below 2^63. */

#define LIMBS 6        /* of 52 bits: 254 + 24 + 25 bits and the offset */
#define TOGETHER 256   /* terms of a chunk, which are sorted together */
#define CARRIED 4      /* chunks, until sums are carried */
#define SHIFTED 20     /* windows of 508 bits */
#define GROUP 4        /* terms of a group */
#define GROUPS (TOGETHER / GROUP + SHIFTED)
#define IN_GROUPS 2    /* limbs, at most, that are added in groups */
#define BINS_26 36     /* of the highest window, LIMBS above it and ABOVE, in whole digits */
#define ROWS 128       /* at most, that share decoded columns */
#define SORTED 6291456 /* bytes of rows that are kept sorted, unless one row has more */

typedef struct {
    uint64_t factors[GROUPS * GROUP + TOGETHER]; /* from bit 52 on, which limbs they multiply; groups are filled up with zeros */
    int64_t sum[SHIFTED], negative[SHIFTED];     /* of a window's factors; of the magnitudes of negative ones */
    int32_t groups;                              /* how many there are */
    uint8_t window[GROUPS + 4];                  /* of each group */
    uint16_t count[SHIFTED];                     /* how many factors of each window */
} sorted_terms;

typedef struct {
    _Alignas(64) int64_t sums[ROWS][BINS_26 * WIDE]; /* all zero while nothing is being summed */
    int64_t offsets[ROWS][BINS_26];                  /* as well */
    integers limbs[2 * TOGETHER * LIMBS][WIDE / LANES]; /* of each term, and their complements */
    int32_t m[TOGETHER][WIDE], bit[TOGETHER][WIDE];
    sorted_terms *sorted; /* of each row, its chunks */
    uint32_t *common;     /* lowest bit of each term's factors in all columns */
    size_t bytes;
    void *memory;
} wide;
static _Thread_local wide wide_sums;

/* The lowest bit of each term's factors in n columns that are not zero. */
static OUTSIDE void find_common(
    const float *b, const int64_t *row_n, int64_t n, const int64_t *b_k, int64_t count, uint32_t *restrict common) {
    const int unit = consecutive(row_n, n);
    for (int64_t k = 0; k < count; k++) {
        const pattern *from = (const void *)(b + b_k[k]);
        uint32_t least = -1; /* magnitude as a pattern, less one: that of zero is the greatest */
        for (int64_t j = 0; j < n; j++) {
            const uint32_t size = (from[unit ? row_n[0] + j : row_n[j]] & 0x7fffffff) - 1;
            least = size < least ? size : least;
        }
        const uint32_t exponent = (least + 1) >> 23;
        common[k] = exponent - (exponent != 0);
    }
}

/* Sorts n factors of a row; widens the range of windows of those that are not zero. */
static OUTSIDE void sort_row(
    const float *restrict a, const int64_t *restrict a_k, const uint32_t *restrict common, int64_t n, sorted_terms *restrict to,
    int *lo, int *hi) {
    uint64_t packed[TOGETHER];
    int64_t sums[SHIFTED + 1][2] = {{0}};
    int32_t key[TOGETHER], next[SHIFTED + 1] = {0}, first = 0, low = SHIFTED, high = -1;
    for (int64_t i = 0; i < n; i++) {
        int32_t bit;
        const int32_t m = decode(a[a_k[i]], &bit), all = bit + (int32_t)common[i], window = all / 26;
        key[i] = m ? window : SHIFTED;
        packed[i] = (uint64_t)(m < 0 ? -m : m) << (all - 26 * window) | (uint64_t)(2 * i + (m < 0)) << 52;
    }
    for (int64_t i = 0; i < n; i++) {
        next[key[i]]++;
        sums[key[i]][packed[i] >> 52 & 1] += (int64_t)(packed[i] & ((1ull << 52) - 1));
    }
    for (int p = 0; p < SHIFTED; p++) {
        const int32_t count = next[p], end = first + count;
        to->sum[p] = sums[p][0] - sums[p][1];
        to->negative[p] = sums[p][1];
        to->count[p] = (uint16_t)count;
        next[p] = first;
        if (!count) continue;
        low = p < low ? p : low;
        high = p;
        memset(to->window + first / GROUP, p, 4);
        for (int32_t i = first + 4 * GROUP; i < end; i += GROUP) to->window[i / GROUP] = (uint8_t)p;
        memset(to->factors + end, 0, 8 * (GROUP - 1));
        first = (end + GROUP - 1) / GROUP * GROUP;
    }
    to->groups = first / GROUP;
    next[SHIFTED] = GROUPS * GROUP; /* zeros: behind all others */
    for (int64_t i = 0; i < n; i++) to->factors[next[key[i]]++] = packed[i];
    *lo = low < *lo ? low : *lo;
    *hi = high > *hi ? high : *hi;
}

/* Cuts n factors of up to WIDE columns: how many limbs they have, from window *low on; 0 if all are zero. */
static OUTSIDE int cut_columns(
    wide *x, const float *b, const int64_t *row_n, int64_t width, const int64_t *b_k, const uint32_t *common, int64_t n, int *low) {
    const int unit = width == WIDE && consecutive(row_n, WIDE);
    __m512i lows = _mm512_set1_epi32(BINS_26 * 26), highs = _mm512_set1_epi32(-1);
    for (int64_t k = 0; k < n; k++) { /* as `decode` */
        float factors[WIDE] = {0};
        for (int64_t s = 0; !unit && s < width; s++) factors[s] = b[row_n[s] + b_k[k]];
        const __m512i one = _mm512_set1_epi32(1), x_32 = _mm512_loadu_si512(unit ? b + row_n[0] + b_k[k] : factors);
        const __m512i exponent = _mm512_and_si512(_mm512_srli_epi32(x_32, 23), _mm512_set1_epi32(0xff));
        const __mmask16 normal = _mm512_test_epi32_mask(exponent, exponent);
        const __m512i size = _mm512_and_si512(x_32, _mm512_set1_epi32(0x7fffff));
        const __m512i m = _mm512_mask_or_epi32(size, normal, size, _mm512_set1_epi32(0x800000));
        const __m512i bit = _mm512_sub_epi32(_mm512_mask_sub_epi32(exponent, normal, exponent, one), _mm512_set1_epi32((int)common[k]));
        lows = _mm512_mask_min_epi32(lows, _mm512_test_epi32_mask(m, m), lows, bit);
        highs = _mm512_mask_max_epi32(highs, _mm512_test_epi32_mask(m, m), highs, bit);
        _mm512_storeu_si512(x->m[k], _mm512_mask_sub_epi32(m, _mm512_movepi32_mask(x_32), _mm512_setzero_si512(), m));
        _mm512_storeu_si512(x->bit[k], bit);
    }
    const int lo = _mm512_reduce_min_epi32(lows), hi = _mm512_reduce_max_epi32(highs);
    if (hi < 0) return 0;
    *low = lo / 26;
    const int limbs = (hi - 26 * *low + 49) / 52 + 1;
    for (int64_t k = 0; k < n; k++)
        for (int v = 0; v * LANES < width; v++) { /* what the lanes of no column hold does not count */
            const __m512i m = _mm512_cvtepi32_epi64(_mm256_loadu_si256((const void *)(x->m[k] + v * LANES)));
            __m512i shift = _mm512_cvtepi32_epi64(_mm256_loadu_si256((const void *)(x->bit[k] + v * LANES)));
            shift = _mm512_sub_epi64(shift, _mm512_set1_epi64(26 * *low));
            for (int l = 0; l < limbs; l++) {
                const __m512i none = _mm512_setzero_si512(), up = _mm512_sllv_epi64(m, shift); /* by 0 ... 63, else 0 */
                const __mmask8 down = _mm512_cmplt_epi64_mask(shift, none);
                const __m512i cut = _mm512_mask_srav_epi64(up, down, m, _mm512_sub_epi64(none, shift));
                const integers limb = (integers)cut + (l == limbs - 1 ? 1 << 26 : 0); /* 52 bits of it are read */
                x->limbs[2 * k * limbs + l][v] = limb;
                x->limbs[(2 * k + 1) * limbs + l][v] = ~limb;
                shift = _mm512_sub_epi64(shift, _mm512_set1_epi64(52));
            }
        }
    return limbs;
}

typedef integers limb_row[WIDE / LANES], limb_sums[LIMBS + 1][WIDE / LANES];

/* Adds the products of a row's factor and the limbs of the columns. */
static inline __attribute__((always_inline)) void add_factor(
    limb_sums sum, uint64_t factor, const limb_row *restrict limbs, const int count) {
    const limb_row *b = limbs + (factor >> 52) * count;
    const integers a = (integers)_mm512_set1_epi64((int64_t)factor);
#pragma GCC unroll 8
    for (int l = 0; l < count; l++)
        for (int v = 0; v < WIDE / LANES; v++) {
            sum[l][v] = ADD_LOW(sum[l][v], a, b[l][v]);
            sum[l + 1][v] = ADD_HIGH(sum[l + 1][v], a, b[l][v]);
        }
}

/* Adds the products of a row's sorted factors and the columns to the bins, which begin with the lowest window. */
static inline __attribute__((always_inline)) void add_limbs(
    int64_t *sums, const sorted_terms *restrict from, const limb_row *restrict limbs, const int count) {
    const int grouped = count <= IN_GROUPS;
    const uint64_t *factors = from->factors;
    for (int64_t g = 0; g < from->groups;) {
        const int window = from->window[g], terms = grouped ? GROUP : from->count[window];
        integers *to = (integers *)(sums + window * WIDE);
        limb_sums even, odd; /* apart, so that additions wait less for each other */
        memset(odd, 0, sizeof odd);
#pragma GCC unroll 8
        for (int l = 0; l <= count; l++)
            for (int v = 0; v < WIDE / LANES; v++) even[l][v] = to[2 * l * (WIDE / LANES) + v];
        for (int i = 0; i < terms; i += 2) { /* by two: half as many branches that depend on the data */
            add_factor(even, factors[i], limbs, count);
            add_factor(grouped ? odd : even, factors[i + 1], limbs, count);
        }
#pragma GCC unroll 8
        for (int l = 0; l <= count; l++)
            for (int v = 0; v < WIDE / LANES; v++) to[2 * l * (WIDE / LANES) + v] = grouped ? even[l][v] + odd[l][v] : even[l][v];
        g += (terms + GROUP - 1) / GROUP;
        factors = from->factors + g * GROUP;
    }
}

#define ADDER(n) static OUTSIDE void add_##n(int64_t *to, const sorted_terms *t, const limb_row *b) { add_limbs(to, t, b, n); }
ADDER(1) ADDER(2) ADDER(3) ADDER(4) ADDER(5) ADDER(6)
static void (*const adders[])(int64_t *, const sorted_terms *, const limb_row *) = {0, add_1, add_2, add_3, add_4, add_5, add_6};

/* Counts what a chunk's offsets and complements have added; `offsets` begin with the lowest window. */
static OUTSIDE void count_offsets(int64_t *restrict offsets, const sorted_terms *restrict from, int lo, int hi, int limbs) {
    for (int p = lo; p <= hi; p++) offsets[p] -= from->negative[p]; /* of windows without factors: 0 */
    for (int p = 0; p < SHIFTED; p++) offsets[p + 2 * limbs - 1] += from->sum[p];
    for (int p = 0; p < SHIFTED; p++) offsets[p + 2 * limbs] += from->negative[p];
}

static OUTSIDE void carry_26(int64_t *sums, int64_t *offsets, int lo, int hi) { carry(sums, offsets, lo, hi, 26); }
static OUTSIDE void round_26(int64_t *sums, int64_t *offsets, int lo, int hi, int precision, float *to) {
    round_bins(sums, offsets, lo, hi, precision, to, 26);
}

/* Memory for sorted rows; 0 if there is none. */
static int make_sorted(wide *x, size_t rows, size_t terms) {
    const size_t count = rows * (size_t)blocks_of((int64_t)terms, TOGETHER), bytes = count * sizeof *x->sorted + 4 * terms;
    if (bytes > x->bytes) {
        free(x->memory);
        x->memory = malloc(bytes);
        x->bytes = x->memory ? bytes : 0;
    }
    x->sorted = x->memory;
    x->common = (void *)(x->sorted + count);
    return x->memory != 0;
}

/* Exact sums of the undecided elements of some rows, ROWS at most. */
static void settle_rows(const contraction *t, const block *at, int64_t row, const int64_t *rows, int64_t count, tally *found) {
    wide *x = &wide_sums;
    const float *a = t->a + t->a_batch[at->batch], *b = t->b + t->b_batch[at->batch];
    const int64_t chunks = blocks_of(t->k, TOGETHER);
    int lo = BINS_26, hi = -1;
    for (int64_t r = 0; r < count; r++)
        for (int64_t c = 0, k = 0; c < chunks; c++, k += TOGETHER)
            sort_row(a + t->a_m[at->m0 + rows[r]], t->a_k + k, x->common + k, t->k - k < TOGETHER ? t->k - k : TOGETHER,
                     x->sorted + r * chunks + c, &lo, &hi);
    for (int64_t j = 0; j < at->n; j += WIDE) {
        const int64_t width = at->n - j < WIDE ? at->n - j : WIDE;
        int first = BINS_26, last = -1, added = 0;
        for (int64_t c = 0, k = 0; c < chunks; c++, k += TOGETHER) {
            const int64_t n = t->k - k < TOGETHER ? t->k - k : TOGETHER;
            int low = 0;
            const int limbs = hi < 0 ? 0 : cut_columns(x, b, t->b_n + at->n0 + j, width, t->b_k + k, x->common + k, n, &low);
            if (limbs) {
                added++;
                first = lo + low < first ? lo + low : first;
                last = hi + low + 2 * limbs > last ? hi + low + 2 * limbs : last;
            }
            for (int64_t r = 0; r < count; r++) {
                float value[WIDE] = {0};
                const int64_t own = chunks == 1 ? 0 : r; /* if rounded at once, the sums of one row stay in the first-level cache */
                if (limbs) {
                    adders[limbs](x->sums[own] + low * WIDE, x->sorted + r * chunks + c, (const void *)x->limbs);
                    count_offsets(x->offsets[own] + low, x->sorted + r * chunks + c, lo, hi, limbs);
                    if (added % CARRIED == 0) carry_26(x->sums[own], x->offsets[own], first, last);
                }
                if (c + 1 < chunks) continue;
                if (last >= 0) round_26(x->sums[own], x->offsets[own], first, last, found->precision, value);
                put_row(t, at, row, rows[r], j, width, value, found);
            }
        }
    }
}

static int settle_open(const contraction *t, const block *at, int64_t row, tally *found) {
    const int64_t chunks = blocks_of(t->k, TOGETHER), most = SORTED / (int64_t)sizeof(sorted_terms) / chunks;
    const int64_t each = most < 1 ? 1 : most < ROWS ? most : ROWS;
    int64_t rows[ROWS], waiting = 0;
    if (!make_sorted(&wide_sums, (size_t)each, (size_t)t->k)) return 0;
    find_common(t->b + t->b_batch[at->batch], t->b_n + at->n0, at->n, t->b_k, t->k, wide_sums.common);
    for (int64_t i = 0; i < at->m; i++) {
        if (held.opens[i]) rows[waiting++] = i;
        if (waiting < each && i + 1 < at->m) continue;
        settle_rows(t, at, row, rows, waiting, found);
        waiting = 0;
    }
    return 1;
}

#else

/* WIDE columns of some rows are summed side by side, as exact.h sums elements, but in vectors: in one row the bin of a
 * factor is the same for all of them. So that the other factor's bin is too, it is cut into pieces of WINDOW bins, at
 * fixed places: |piece| <= 2^23 and a row's factor is below 2^31, so products are below 2^54. What costs time is how many
 * pieces are not zero. Where there are too many of them, each product goes to its own bin instead, one by one: bins are
 * then 4 bits apart, so that a product of two shifted factors, each below 2^27, is below 2^54 as well. */

#define ROWS 4
#define WINDOW 3   /* bins, of 24 bits: a factor has two pieces at most; of 254 + 24 bits there are WINDOWS */
#define WINDOWS 12
#define PIECES 6   /* of a term, from which on single products are faster if there are at least FEW terms */
#define FEW 48

typedef struct {
    _Alignas(64) int64_t sums[ROWS][BINS * WIDE * 2]; /* all zero while nothing is being summed */
    int32_t m[ROWS][SAFE + 16], bin[ROWS][SAFE + 16]; /* factors of the rows, which share no cache set */
    int32_t (*pieces)[WIDE], *place; /* of all terms, in their order; columns s and s + WIDE / 2 are neighbours */
    int64_t *first, room, terms;     /* `first` piece of each term, and the end */
    int lo, hi, unit; /* the range of bins of the pieces; whether the terms of a row follow each other */
    int single;       /* whether products are added one by one: `pieces` then holds the factors and their bins, in turn */
} wide;
static _Thread_local wide wide_sums;

#define HALF (WIDE / 2 / LANES) /* vectors of 64 bits in which the pieces of a term lie in pairs */
typedef int64_t pair_of_32 __attribute__((vector_size(8 * LANES), aligned(4), may_alias));

/* Room for pieces of one more term; 0 if memory ran out. */
static int make_pieces(wide *x, int64_t count, int64_t terms) {
    if (terms >= x->terms) {
        free(x->first);
        x->first = malloc(8 * (size_t)(terms + 1));
        x->terms = x->first ? terms + 1 : 0;
        if (!x->first) return 0;
    }
    if (count + WINDOWS < x->room) return 1;
    const int64_t wanted = 2 * x->room + WINDOWS + 2 * terms;
    void *pieces = realloc(x->pieces, (size_t)wanted * sizeof *x->pieces);
    x->pieces = pieces ? pieces : x->pieces;
    int32_t *place = realloc(x->place, (size_t)wanted * sizeof *place);
    x->place = place ? place : x->place;
    if (!pieces || !place) return 0;
    x->room = wanted;
    return 1;
}

/* Decodes the factors of up to WIDE columns; 0 if memory ran out. */
static OUTSIDE int decode_columns(const contraction *t, wide *x, const float *b, const int64_t *row_n, int64_t width) {
    x->lo = 2 * BINS;
    x->hi = -1;
    for (int64_t k = 0; k < t->k; k++) {
        float factors[WIDE] = {0};
        if (!make_pieces(x, 2 * k, t->k)) return 0;
        for (int64_t s = 0; s < width; s++) factors[s] = b[row_n[s] + t->b_k[k]];
        for (int s = 0; s < WIDE; s++) {
            int32_t bit;
            const int32_t m = decode(factors[s], &bit);
            x->pieces[2 * k][s] = m * (1 << (bit & 3));
            x->pieces[2 * k + 1][s] = (bit >> 2) * WIDE + s;
            x->lo = bit >> 2 < x->lo ? bit >> 2 : x->lo;
            x->hi = bit >> 2 > x->hi ? bit >> 2 : x->hi;
        }
    }
    return 1;
}

/* Cuts the factors of up to WIDE columns, unless there are too many pieces; 0 if memory ran out. */
static OUTSIDE int cut_columns(const contraction *t, wide *x, const float *b, const int64_t *row_n, int64_t width) {
    int64_t count = 0;
    x->lo = BINS;
    x->hi = -1;
    x->single = 0;
    for (int64_t k = 0; k < t->k; k++) {
        float factors[WIDE] = {0};
        int32_t window[WIDE], low[WIDE], high[WIDE], used = 0;
        if (!make_pieces(x, count, t->k)) return 0;
        x->single = t->k >= FEW && count > PIECES * (k + FEW / 2);
        if (x->single) return decode_columns(t, x, b, row_n, width);
        for (int64_t s = 0; s < width; s++) factors[2 * (s % (WIDE / 2)) + s / (WIDE / 2)] = b[row_n[s] + t->b_k[k]];
        for (int s = 0; s < WIDE; s++) {
            int32_t bit;
            const int32_t m = decode(factors[s], &bit), at = bit / (8 * WINDOW), shift = bit - 8 * WINDOW * at;
            window[s] = at;
            low[s] = (int32_t)((uint32_t)m << (shift + 8)) >> 8; /* signed: the lowest 24 bits of m * 2^shift */
            high[s] = (m - (low[s] >> shift)) >> (24 - shift);
            used |= (low[s] != 0) << at | (high[s] != 0) << (at + 1);
        }
        x->first[k] = count;
        for (int w = 0; used >> w; w++) {
            if (!(used >> w & 1)) continue;
            for (int s = 0; s < WIDE; s++)
                x->pieces[count][s] = window[s] == w ? low[s] : window[s] + 1 == w ? high[s] : 0;
            x->place[count++] = w * WINDOW * WIDE;
            x->lo = w * WINDOW < x->lo ? w * WINDOW : x->lo;
            x->hi = w * WINDOW > x->hi ? w * WINDOW : x->hi;
        }
    }
    x->first[t->k] = count;
    return 1;
}

/* Adds the products of n terms of the rows, and the pieces of the columns. */
static OUTSIDE void add_products(
    int64_t *restrict sums, const int32_t *restrict m, const int32_t *restrict bin, const int32_t (*restrict pieces)[WIDE],
    const int32_t *restrict place, const int64_t *restrict first, int64_t n) {
    for (int64_t k = 0; k < n; k++)
        for (int64_t at = first[k]; at < first[k + 1]; at++) {
            integers column[WIDE / LANES];
#pragma GCC unroll 8
            for (int v = 0; v < HALF; v++) {
                column[v] = *(const pair_of_32 *)(pieces[at] + 2 * LANES * v);
                column[v + HALF] = column[v] >> 32;
            }
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) {
                integers *to = (integers *)(sums + r * (2 * BINS * WIDE) + bin[r * (SAFE + 16) + k] + place[at]);
                const int64_t factor = m[r * (SAFE + 16) + k];
#pragma GCC unroll 8
                for (int v = 0; v < WIDE / LANES; v++) to[v] += MULTIPLY_32(column[v], factor);
            }
        }
}

/* Adds the products of n terms of a row and the columns, one by one. */
static OUTSIDE void add_singly(
    int64_t *restrict sums, const int32_t *restrict m, const int32_t *restrict bin, const int32_t (*restrict factors)[WIDE], int64_t n) {
    for (int64_t k = 0; k < n; k++) {
        int64_t *to = sums + bin[k];
        const int64_t factor = m[k];
#pragma GCC unroll 16
        for (int s = 0; s < WIDE; s++) to[(uint32_t)factors[2 * k + 1][s]] += factor * factors[2 * k][s];
    }
}

/* Decodes terms [k, k + n) of a row into bins of 2^log bits; widens the range of bins that are not zero. */
static OUTSIDE void decode_row(
    const float *restrict a, const int64_t *restrict a_k, int unit, int64_t n, int log, int32_t *restrict m,
    int32_t *restrict bin, int *lo, int *hi) {
    float x[SAFE];
    int32_t least = *lo, most = *hi;
    if (unit) memcpy(x, a + a_k[0], 4 * (size_t)n);
    else
        for (int64_t i = 0; i < n; i++) x[i] = a[a_k[i]];
    for (int64_t i = 0; i < n; i++) {
        int32_t bit;
        const int32_t whole = decode(x[i], &bit), at = bit >> log;
        m[i] = whole * (1 << (bit - (at << log)));
        bin[i] = at * WIDE;
        const int32_t low = whole ? at : 2 * BINS, high = whole ? at : -1;
        least = low < least ? low : least;
        most = high > most ? high : most;
    }
    *lo = least;
    *hi = most;
}

static OUTSIDE void carry_4(int64_t *sums, int lo, int hi) { carry(sums, 0, lo, hi, 4); }

static OUTSIDE void round_4(int64_t *sums, int lo, int hi, int precision, float *to) {
    round_bins(sums, 0, lo, hi, precision, to, 4);
}

/* Exact sums of `count` rows, ROWS at most, and the columns that are cut. */
static void sum_rows(
    const contraction *t, wide *x, const float *const *rows, int64_t count, int precision, float (*result)[WIDE]) {
    int lo = 2 * BINS, hi = -1;
    for (int64_t k = 0; k < t->k; k += SAFE) {
        const int64_t n = t->k - k < SAFE ? t->k - k : SAFE;
        for (int r = 0; r < ROWS; r++)
            decode_row(rows[r], t->a_k + k, x->unit, n, x->single ? 2 : 3, x->m[r], x->bin[r], &lo, &hi);
        if (!x->single) add_products(x->sums[0], x->m[0], x->bin[0], (const void *)x->pieces, x->place, x->first + k, n);
        for (int64_t r = 0; r < count && x->single; r++)
            add_singly(x->sums[r], x->m[r], x->bin[r], (const void *)(x->pieces + 2 * k), n);
        for (int r = 0; r < ROWS && k + n < t->k && hi >= 0 && x->hi >= 0; r++)
            (x->single ? carry_4 : carry_sums)(x->sums[r], lo + x->lo, hi + x->hi);
    }
    for (int r = 0; r < ROWS; r++) {
        memset(result[r], 0, sizeof result[r]);
        if (hi >= 0 && x->hi >= 0) (x->single ? round_4 : round_sums)(x->sums[r], lo + x->lo, hi + x->hi, precision, result[r]);
    }
}

static int settle_open(const contraction *t, const block *at, int64_t row, tally *found) {
    const float *a = t->a + t->a_batch[at->batch], *b = t->b + t->b_batch[at->batch];
    wide_sums.unit = consecutive(t->a_k, t->k);
    for (int64_t j = 0; j < at->n; j += WIDE) {
        const int64_t width = at->n - j < WIDE ? at->n - j : WIDE;
        int64_t rows[ROWS], waiting = 0;
        if (!cut_columns(t, &wide_sums, b, t->b_n + at->n0 + j, width)) return 0;
        for (int64_t i = 0; i <= at->m; i++) {
            if (i < at->m && held.opens[i]) rows[waiting++] = i;
            if (waiting < ROWS && (i < at->m || !waiting)) continue;
            const float *from[ROWS];
            float value[ROWS][WIDE];
            for (int r = 0; r < ROWS; r++) from[r] = a + t->a_m[at->m0 + rows[r < waiting ? r : 0]];
            sum_rows(t, &wide_sums, from, waiting, found->precision, value);
            for (int64_t r = 0; r < waiting; r++) put_row(t, at, row, rows[r], j, width, value[r], found);
            waiting = 0;
        }
    }
    return 1;
}

#endif

/* Exact sums of all undecided elements of a block that has many; 0 if memory ran out before any was settled. */
static int settle_block(const contraction *t, const block *at, int64_t row, int64_t opens, progress *shared) {
    const int64_t started = now();
    tally found = {.precision = (int)shared->precision};
    if (!settle_open(t, at, row, &found)) return 0;
    shared->undecided += opens;
    shared->twice += opens;
    for (int s = 0; s < WIDE; s++) shared->wrong += found.wrong[s];
    shared->nanoseconds += now() - started;
    return 1;
}

/* Writes a row of results to their places. */
static void put_results(const float *high, const int64_t *place, int64_t n, float *to) {
    for (int64_t j = 0; j < n; j += 4)
        if (held.beside[j / 4]) memcpy(to + place[j], high + j, 4 * sizeof *to);
        else
            for (int64_t s = j; s < j + 4 && s < n; s++) to[place[s]] = high[s];
}

/* Ziv's test of a block; with `grid`, where FP64 sums may be exact. Returns how many elements are undecided, in `rows`. */
static int64_t test_block(const contraction *t, const block *at, int64_t row, int precision, int grid, int64_t *rows) {
    const int64_t *place = t->out_n + at->n0;
    const int unit = consecutive(place, at->n);
    int64_t opens = *rows = 0;
    for (int64_t j = 0; !unit && j < at->n; j += 4) held.beside[j / 4] = j + 4 <= at->n && consecutive(place + j, 4);
    for (int64_t i = 0; i < at->m; i++) {
        if (grid && !held.opens[i]) continue;
        const double norm = sqrt(held.squares_a[i]), left = norm * t->coefficient, *c = held.c + i * row;
        float *to = t->out + t->out_batch[at->batch] + t->out_m[at->m0 + i], *high = unit ? to + place[0] : held.high;
        if (grid) { /* half of 2^53: norms are rounded */
            const double size = norm * power_of_two(UNIT - 52 - held.lowest_a[i]);
            held.opens[i] = precision == 32 ? test_with(c, left, held.squares_b, at->n, high, 32, held.lowest_b, size)
                : test_with(c, left, held.squares_b, at->n, high, precision, held.lowest_b, size);
        } else held.opens[i] = test_row(c, left, held.squares_b, at->n, high, precision);
        opens += held.opens[i];
        *rows += held.opens[i] > 0;
        if (!unit) put_results(high, place, at->n, to);
    }
    return opens;
}

/* Whether most of a few undecided elements, one a row, are sums on a grid. */
static int seems_exact(const contraction *t, const block *at, int64_t row, int precision) {
    const float *a = t->a + t->a_batch[at->batch], *b = t->b + t->b_batch[at->batch];
    const terms from = {t->a_k, t->b_k, t->k, 1};
    const int64_t k = logarithm(t->k);
    int64_t looked = 0, found = 0;
    for (int64_t i = 0; i < at->m && looked < TRIED; i++) {
        if (!held.opens[i]) continue;
        const double left = sqrt(held.squares_a[i]) * t->coefficient;
        const int64_t j = next_open(held.c + i * row, left, held.squares_b, 0, at->n, precision);
        const element open = {.a = a + t->a_m[at->m0 + i], .b = b + t->b_n[at->n0 + j]};
        found += on_grid(&from, &open, k);
        looked++;
    }
    return 2 * found > looked;
}

static void finish_block(const contraction *t, const block *at, int64_t row, progress *shared) {
    const float *a = t->a + t->a_batch[at->batch], *b = t->b + t->b_batch[at->batch];
    float *out = t->out + t->out_batch[at->batch];
    for (int64_t j = 0; j < at->n; j++) held.squares_b[j] = sqrt(held.squares_b[j]);
    const int64_t *place = t->out_n + at->n0;
    const int precision = (int)shared->precision, logs = shared->limit > 0;
    int64_t rows, waiting = 0, opens = test_block(t, at, row, precision, 0, &rows);
    if (!logs && opens * MANY > at->m + at->n && seems_exact(t, at, row, precision)) {
        const int64_t started = now(), found = opens;
        find_lowest(a, t->a_m + at->m0, at->m, t->a_k, t->k, held.lowest_a);
        find_lowest(b, t->b_n + at->n0, at->n, t->b_k, t->k, held.lowest_b);
        opens = test_block(t, at, row, precision, 1, &rows);
        shared->undecided += found - opens;
        shared->nanoseconds += now() - started;
    }
    const int dense = opens >= WIDE && opens * DENSE >= rows * at->n && !logs;
    if (!opens || (dense && settle_block(t, at, row, opens, shared))) return;
    const terms from = {t->a_k, t->b_k, t->k, 1};
    element open[OPEN];
    for (int64_t i = 0; i < at->m; i++) {
        const double left = sqrt(held.squares_a[i]) * t->coefficient, *c = held.c + i * row;
        float *to = out + t->out_m[at->m0 + i];
        for (int64_t j = 0; held.opens[i] && (j = next_open(c, left, held.squares_b, j, at->n, precision)) < at->n; j++) {
            if (waiting == OPEN) settle(&from, open, waiting, shared), waiting = 0;
            open[waiting++] =
                (element){a + t->a_m[at->m0 + i], b + t->b_n[at->n0 + j], to + place[j], c[j], left * held.squares_b[j]};
        }
    }
    settle(&from, open, waiting, shared);
}

/* Leaves a block of one part in memory, or adds such blocks up in this thread's room. */
static void move_part(const contraction *t, const block *at, int64_t part, int64_t row, int keep) {
    const int64_t place = part * t->batches + at->batch;
    double *c = t->sums + (place * t->m + at->m0) * t->n + at->n0;
    double *sizes_a = t->sizes + place * (t->m + t->n) + at->m0, *sizes_b = sizes_a - at->m0 + t->m + at->n0;
    if (keep) {
        for (int64_t i = 0; i < at->m; i++) memcpy(c + i * t->n, held.c + i * row, 8 * (size_t)at->n);
        memcpy(sizes_a, held.squares_a, 8 * (size_t)at->m);
        memcpy(sizes_b, held.squares_b, 8 * (size_t)at->n);
        return;
    }
    for (int64_t i = 0; i < at->m; i++)
        for (int64_t j = 0; j < at->n; j++) {
            double *sum = held.c + i * row + j;
            *sum = part ? *sum + c[i * t->n + j] : c[i * t->n + j];
        }
    for (int64_t i = 0; i < at->m; i++) held.squares_a[i] = (part ? held.squares_a[i] : 0) + sizes_a[i];
    for (int64_t j = 0; j < at->n; j++) held.squares_b[j] = (part ? held.squares_b[j] : 0) + sizes_b[j];
}

/* What a call does: adds terms up, and finishes a sum of one part at once; adds up the parts that such calls have left,
 * and finishes; or adds terms up and leaves even a single part, which somebody else finishes. */
enum { ADD, FINISH, LEAVE };

/* Matrix products. Takes tasks until none is left; any number of threads may call it with the same arguments. 0 if
 * memory ran out. */
int contract(const contraction *t, int what, progress *shared) {
    if (!make_room(t->block_m, t->block_n)) return 0;
    const int64_t blocks_m = blocks_of(t->m, t->block_m), blocks_n = blocks_of(t->n, t->block_n);
    const int64_t row = (int64_t)padded((size_t)t->block_n + NR);
    const int64_t parts = what == FINISH ? 1 : t->parts, tasks = t->batches * blocks_m * blocks_n * parts;
    const int64_t step = blocks_of(t->k, t->parts); /* terms of a part */
    for (int64_t task; (task = shared->next++) < tasks;) {
        const int64_t part = task % parts, place = task / parts, inside = place % (blocks_m * blocks_n);
        block at = {.batch = place / (blocks_m * blocks_n), .m0 = inside / blocks_n * t->block_m,
                    .n0 = inside % blocks_n * t->block_n};
        at.m = t->m - at.m0 < t->block_m ? t->m - at.m0 : t->block_m;
        at.n = t->n - at.n0 < t->block_n ? t->n - at.n0 : t->block_n;
        if (what == FINISH) {
            for (int64_t p = 0; p < t->parts; p++) move_part(t, &at, p, row, 0);
            finish_block(t, &at, row, shared);
            continue;
        }
        const int64_t k0 = part * step, k1 = k0 + step < t->k ? k0 + step : t->k;
        accumulate(t, &at, k0, k1, row);
        if (parts == 1 && what == ADD) finish_block(t, &at, row, shared);
        else move_part(t, &at, part, row, 1);
    }
    return 1;
}

/* ---- sums without a matrix product: each output has its own terms ---- */

#define TILE OPEN
#define CHAINS 32
#define CHUNK 512 /* terms added at once; the results are added plainly */

static const float *a_of(const contraction *t, int64_t output) {
    return t->a + t->a_batch[output / t->run_batch] + output % t->run_batch * t->a_step;
}

static const float *b_of(const contraction *t, int64_t output) {
    return t->b ? t->b + t->b_batch[output / t->run_batch] + output % t->run_batch * t->b_step : 0;
}

/* One output over the terms [k0, k1): adds to its sum and its sum of absolute terms. */
static void add_row(const contraction *t, int64_t output, int64_t k0, int64_t k1, double *sum, double *size) {
    const float *a = a_of(t, output), *b = b_of(t, output);
    double total = 0, total_size = 0, sums[CHAINS] = {0}, sizes[CHAINS] = {0};
    int64_t k = k0;
    if (t->run_k == 1) /* scattered terms: without a division for each, and without waiting for the addition before */
        for (; k + CHAINS <= k1; k += CHAINS)
            for (int l = 0; l < CHAINS; l++) {
                const double x = (double)a[t->a_k[k + l]], product = b ? x * (double)b[t->b_k[k + l]] : x;
                sums[l] += product;
                sizes[l] += fabs(product);
            }
    while (k < k1) {
        const int64_t r = k / t->run_k, skip = k % t->run_k;
        const int64_t length = t->run_k - skip < k1 - k ? t->run_k - skip : k1 - k;
        const float *x = a + t->a_k[r] + skip, *y = b ? b + t->b_k[r] + skip : 0;
        int64_t i = 0;
        for (; i + CHAINS <= length; i += CHAINS)
            for (int l = 0; l < CHAINS; l++) {
                const double term = y ? (double)x[i + l] * (double)y[i + l] : (double)x[i + l];
                sums[l] += term;
                sizes[l] += fabs(term);
            }
        for (; i < length; i++) {
            const double term = y ? (double)x[i] * (double)y[i] : (double)x[i];
            total += term;
            total_size += fabs(term);
        }
        k += length;
    }
    for (int half = CHAINS / 2; half; half /= 2)
        for (int l = 0; l < half; l++) {
            sums[l] += sums[l + half];
            sizes[l] += sizes[l + half];
        }
    *sum += total + sums[0];
    *size += total_size + sizes[0];
}

/* `n` outputs of one run over the terms [k0, k1): adds to their sums and sums of absolute terms. */
static void add_columns(
    const contraction *t, int64_t output, int64_t n, int64_t k0, int64_t k1, double *sum, double *size) {
    double sums[TILE] = {0}, sizes[TILE] = {0};
    const float *a = a_of(t, output), *b = b_of(t, output);
    for (int64_t k = k0; k < k1; k++) {
        const int64_t r = k / t->run_k, skip = k % t->run_k;
        const float *x = a + t->a_k[r] + skip, *y = b ? b + t->b_k[r] + skip : 0;
        if (!y)
            for (int64_t j = 0; j < n; j++) {
                sums[j] += (double)x[j];
                sizes[j] += fabs((double)x[j]);
            }
        else if (t->a_step && t->b_step)
            for (int64_t j = 0; j < n; j++) {
                const double term = (double)x[j] * (double)y[j];
                sums[j] += term;
                sizes[j] += fabs(term);
            }
        else
            for (int64_t j = 0; j < n; j++) {
                const double term = (double)x[j * t->a_step] * (double)y[j * t->b_step];
                sums[j] += term;
                sizes[j] += fabs(term);
            }
    }
    for (int64_t j = 0; j < n; j++) {
        sum[j] += sums[j];
        size[j] += sizes[j];
    }
}

/* Term k of n outputs joins the greatest so far; NaN is greater than all, and of equals the first stays. */
static OUTSIDE void join_greatest(
    const float *restrict from, const int64_t *restrict start, int64_t n, int64_t k, float *restrict best, int64_t *restrict at) {
    for (int64_t j = 0; j < n; j++) {
        const float x = from[start[j]];
        const int better = (x > best[j]) | ((x != x) & (best[j] == best[j]));
        best[j] = better ? x : best[j];
        at[j] = better ? k : at[j];
    }
}

/* The greatest of n terms that follow each other, at least SIDE; NaN if one is. */
#define SIDE 16
typedef float side_by_side __attribute__((vector_size(4 * SIDE)));
typedef int32_t sides __attribute__((vector_size(4 * SIDE)));
static OUTSIDE float greatest_of(const float *from, int64_t n) {
    side_by_side best, x;
    sides odd = {0};
    memcpy(&best, from, sizeof best);
    for (int64_t k = 0; k < n; k += SIDE) {
        memcpy(&x, from + (k < n - SIDE ? k : n - SIDE), sizeof x);
        const sides more = x > best;
        odd |= x != x;
        best = (side_by_side)((more & (sides)x) | (~more & (sides)best));
    }
    float found = best[0];
    for (int s = 0; s < SIDE; s++) found = odd[s] || found != found ? NAN : best[s] > found ? best[s] : found;
    return found;
}

/* The greatest term of each output, or which it is. */
int find_greatest(const contraction *t, int place, progress *shared) {
    for (int64_t task; (task = shared->next++) < blocks_of(t->batches, TILE);) {
        const int64_t first = task * TILE, n = t->batches - first < TILE ? t->batches - first : TILE;
        int64_t start[TILE], at[TILE] = {0};
        float best[TILE];
        if (t->run_batch == 1) memcpy(start, t->a_batch + first, 8 * (size_t)n);
        for (int64_t j = 0; t->run_batch > 1 && j < n; j++) start[j] = a_of(t, first + j) - t->a;
        const int in_runs = !place && t->run_k >= SIDE;
        for (int64_t j = 0; j < n; j++) {
            best[j] = t->a[start[j] + t->a_k[0]];
            for (int64_t k = 0; in_runs && k < t->k; k += t->run_k) {
                const float one = greatest_of(t->a + start[j] + t->a_k[k / t->run_k], t->run_k);
                best[j] = one > best[j] || one != one ? one : best[j];
            }
        }
        for (int64_t k = 1; !in_runs && k < t->k; k++)
            join_greatest(t->a + t->a_k[k / t->run_k] + k % t->run_k, start, n, k, best, at);
        if (place) memcpy((int64_t *)(void *)t->out + first, at, 8 * (size_t)n);
        else
            for (int64_t j = 0; j < n; j++) t->out[first + j] = best[j] + 0.0f; /* -0 + 0 = +0 */
    }
    return 1;
}

/* Outputs [first, first + n) over [k0, k1), by the way that reads memory in runs. */
static void add_tile(
    const contraction *t, int64_t first, int64_t n, int64_t k0, int64_t k1, double *sum, double *size) {
    const int by_row = t->run_batch == 1 || t->run_k >= CHAINS;
    for (int64_t j = 0; j < n; j++) {
        sum[j] = size[j] = 0;
        for (int64_t k = k0; by_row && k < k1; k += CHUNK)
            add_row(t, first + j, k, k1 - k < CHUNK ? k1 : k + CHUNK, sum + j, size + j);
    }
    for (int64_t k = k0; !by_row && k < k1; k += CHUNK) {
        const int64_t end = k1 - k < CHUNK ? k1 : k + CHUNK;
        for (int64_t j = 0; j < n;) {
            const int64_t run = t->run_batch - (first + j) % t->run_batch, length = run < n - j ? run : n - j;
            add_columns(t, first + j, length, k, end, sum + j, size + j);
            j += length;
        }
    }
}

static void finish_tile(
    const contraction *t, int64_t first, int64_t n, const double *sum, const double *size, progress *shared) {
    float *out = t->out + first;
    const int precision = (int)shared->precision;
    const int opens = test_row(sum, t->coefficient, size, n, out, precision);
    if (!opens) return;
    const terms from = {t->a_k, t->b_k, t->k / t->run_k, t->run_k};
    element open[TILE];
    int64_t waiting = 0;
    for (int64_t j = 0; j < n; j++) {
        const double e = t->coefficient * size[j];
        if (is_open(sum[j], e, precision))
            open[waiting++] = (element){a_of(t, first + j), b_of(t, first + j), out + j, sum[j], e};
    }
    settle(&from, open, waiting, shared);
}

/* Sums without m and n; otherwise as `contract`. No term passes through more than
 * CHUNK + k / CHUNK + CHAINS + parts roundings. */
int add_up(const contraction *t, int what, progress *shared) {
    const int64_t tiles = blocks_of(t->batches, TILE), parts = what == FINISH ? 1 : t->parts;
    const int64_t step = blocks_of(t->k, t->parts);
    double sum[TILE], size[TILE];
    for (int64_t task; (task = shared->next++) < tiles * parts;) {
        const int64_t part = task % parts, first = task / parts * TILE;
        const int64_t n = t->batches - first < TILE ? t->batches - first : TILE;
        if (what == FINISH) {
            for (int64_t p = 0; p < t->parts; p++)
                for (int64_t j = 0; j < n; j++) {
                    sum[j] = (p ? sum[j] : 0) + t->sums[p * t->batches + first + j];
                    size[j] = (p ? size[j] : 0) + t->sizes[p * t->batches + first + j];
                }
            finish_tile(t, first, n, sum, size, shared);
            continue;
        }
        const int64_t k0 = part * step, k1 = k0 + step < t->k ? k0 + step : t->k;
        const int last = parts == 1 && what == ADD;
        double *sums = last ? sum : t->sums + part * t->batches + first;
        double *sizes = last ? size : t->sizes + part * t->batches + first;
        add_tile(t, first, n, k0, k1 > k0 ? k1 : k0, sums, sizes);
        if (last) finish_tile(t, first, n, sums, sizes, shared);
    }
    return 1;
}
