/* Rows and columns of a product as integers modulo coprime numbers: how they are read, scaled, cut and packed (docs/kernels.md,
 * sections 1 and 2). integers.c has the rest. */
#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "exact.h"
#include "tiles.h"

#define MOST 12  /* moduli */
#define TERMS 64 /* of a tile */

/* How an instruction is computed; integers.py fills it in, and says how each number of a modulus is made. */
typedef struct {
    int64_t count;               /* moduli */
    int64_t tiles, panel;        /* of all terms; of the terms that are multiplied at a time */
    int64_t strips;              /* of 32 rows, in a batch */
    int64_t high, width;         /* rows and columns of a block: multiples of 32 */
    int64_t ties;                /* whether sums of integers that are exact are decided by their residues */
    int64_t stays;               /* whether nothing is left to FP64, however much is undecided: for tests */
    double product, reach, slack; /* P; the most that a norm may be; half a unit for each panel and what rounding adds */
    double loose;                /* what a cut of one part of a norm leaves undecided, as a share of elements */
    uint64_t added, centre;      /* what START adds, and half of what is cut off, in units of 2^-52 */
    uint64_t v1[MOST], v2[MOST]; /* 52 bits each of v / m */
    uint64_t over[2 * MOST], whole[2], weight[MOST]; /* P / m, P: the lowest 44 bits first; v */
    int32_t low[MOST], high_bytes[MOST], first[MOST], minus[MOST], modulus[MOST];
    float inverse[MOST], add[MOST];
    double reciprocal[MOST];
    int8_t *residues;  /* of all rows: [batch][strip][modulus][tile][half] */
    double *row_sizes; /* of all rows: four tables, see `sizes` */
} moduli;

/* Of rows or columns: what they are multiplied by; 1 / that; norms of what rounding to integers cut, and of the integers. */
typedef struct {
    double *scale, *back, *cut, *size;
} sizes;

static sizes sizes_at(double *from, int64_t count, int64_t first) {
    return (sizes){from + first, from + count + first, from + 2 * count + first, from + 3 * count + first};
}

/* Where an operand's rows (or columns) and terms are. */
typedef struct {
    const float *from;
    const int64_t *row, *term;
    int64_t rows, terms;
    int right; /* columns: their tiles lie the other way */
} side;

/* to[o][i] = from[outer[o] + inner[i]], of `wide` inner ones; zeros beyond. */
static inline __attribute__((always_inline)) void fetch(
    float *to, const float *from, const int64_t *outer, int64_t count, int64_t all, const int64_t *inner, int64_t n,
    const int wide) {
    int unit[TERMS / 16]; /* which sixteen inner ones follow each other: orders are random, and rows of an image end */
    for (int i = 0; i < wide / 16; i++) unit[i] = 16 * i + 16 <= n && consecutive(inner + 16 * i, 16);
    for (int64_t o = 0; o < all; o++, to += wide) {
        const float *at = from + (o < count ? outer[o] : 0);
        for (int i = 0; i < wide; i += 16) {
            if (o < count && unit[i / 16]) memcpy(to + i, at + inner[i], 64);
            else for (int s = i; s < i + 16; s++) to[s] = o < count && s < n ? at[inner[s]] : 0.0f;
        }
    }
}

static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

/* Whether 16 rows from `row` on follow each other in memory. */
static int side_by_side(const side *s, int64_t row) { return s->rows - row >= 16 && consecutive(s->row + row, 16); }

/* 16 rows from `row` on and the terms of a tile: 16 rows of 64 terms, or, `across`, 64 terms of 16 rows. */
static void fetch_tile(const side *s, int64_t row, int64_t tile, int across, float *x) {
    const int64_t *own = s->row + row, *term = s->term + tile * TERMS;
    const int64_t rows = row < s->rows ? least(s->rows - row, 16) : 0, terms = least(s->terms - tile * TERMS, TERMS);
    if (!rows) memset(x, 0, 4 * 16 * TERMS);
    else if (across) fetch(x, s->from, term, terms, TERMS, own, rows, 16);
    else fetch(x, s->from, own, rows, 16, term, terms, TERMS);
}

/* y[s * to + i] = x[i * step + s], 16 by 16. */
static void turn(const float *x, int64_t step, float *y, int64_t to) {
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512 v[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) v[i] = _mm512_load_ps(x + i * step);
#pragma GCC unroll 4
    for (int w = 8; w; w /= 2) { /* exchanges squares of w beside the diagonal */
        const __mmask16 odd = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(w));
        const __m512i low = _mm512_mask_add_epi32(lane, odd, lane, _mm512_set1_epi32(16 - w));
        const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(w));
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            if (i & w) continue;
            const __m512 upper = v[i], lower = v[i + w];
            v[i] = _mm512_permutex2var_ps(upper, low, lower);
            v[i + w] = _mm512_permutex2var_ps(upper, high, lower);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) _mm512_store_ps(y + i * to, v[i]);
}

static inline __m512d half_of(const float *x) { return _mm512_cvtps_pd(_mm256_loadu_ps(x)); }

/* Adds the squares of a tile: of 16 rows to as many sums, or, `across`, of the two halves of all rows to eight by turns. */
static inline __attribute__((always_inline)) void add_tile(const float *x, __m512d *sums, const int across) {
    __m512d own[8];
    memcpy(own, sums, sizeof own);
    for (int i = 0; i < 16; i++) {
        if (!across) own[0] = sums[i];
#pragma GCC unroll 8
        for (int v = 0; v < 8; v++) {
            const __m512d y = half_of(x + 64 * i + 8 * v);
            own[across ? v : 0] = _mm512_fmadd_pd(y, y, own[across ? v : 0]);
        }
        if (!across) sums[i] = own[0];
    }
    if (across) memcpy(sums, own, sizeof own);
}

/* Adds the squares of 16 rows from `row` on, tiles [k0, k1). */
static void add_squares(const side *s, int64_t row, int64_t k0, int64_t k1, double *squares) {
    const int across = side_by_side(s, row);
    __m512d sums[16] = {0};
    for (int64_t tile = k0; tile < k1; tile++) {
        _Alignas(64) float x[16 * TERMS];
        fetch_tile(s, row, tile, across, x);
        if (across) add_tile(x, sums, 1);
        else add_tile(x, sums, 0);
    }
    for (int i = 0; across && i < 8; i++)
        _mm512_storeu_pd(squares + i % 2 * 8, _mm512_add_pd(_mm512_loadu_pd(squares + i % 2 * 8), sums[i]));
    for (int r = 0; !across && r < 16; r++) squares[r] += _mm512_reduce_add_pd(sums[r]);
}

/* Scales of rows whose squares are in `size`: the greatest powers of two with which their norms, as integers, stay in
 * reach. Leaves in `size` the norms that they have then, before rounding, and no cut. */
static void set_scales(const moduli *p, int64_t terms, sizes to, int64_t count) {
    const double most = p->reach - sqrt((double)terms) / 2 - 1;
    for (int64_t r = 0; r < count; r++) {
        const double norm = sqrt(to.size[r]) * (1 + 0x1p-20);
        int exponent;
        frexp(most / norm, &exponent);
        const double scale = norm == 0 ? 0 : norm < INFINITY ? power_of_two(exponent - 1) : NAN;
        to.scale[r] = scale;
        to.back[r] = scale != 0 ? 1 / scale : 0; /* zeros stay zeros, and NaN NaN */
        to.size[r] = norm * scale;
        to.cut[r] = 0;
    }
}

/* Four vectors of 16 factors, times powers of two, as integers: their low and high halves in two's complement. Squares of
 * what rounding cut are added to sums. */
static inline __attribute__((always_inline)) void cut_factors(
    const float *x, const int step, const __m512d by[2], __m512i low[4], __m512i high[4], __m512d cut[2]) {
    const __m512d magic = _mm512_set1_pd(0x1.8p52);
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512d a[2] = {half_of(x + i * step), half_of(x + i * step + 8)};
        __m512i whole[2];
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const __m512d y = _mm512_fmadd_pd(a[h], by[h], magic), integer = _mm512_sub_pd(y, magic);
            const __m512d rest = _mm512_fmsub_pd(a[h], by[h], integer);
            cut[h] = _mm512_fmadd_pd(rest, rest, cut[h]);
            whole[h] = _mm512_castpd_si512(y);
        }
        low[i] = _mm512_permutex2var_epi32(whole[0], even, whole[1]);
        high[i] = _mm512_permutex2var_epi32(whole[0], odd, whole[1]);
    }
}

/* The low bytes of four vectors, as bytes 0 to 3 of each lane. */
static inline __attribute__((always_inline)) __m512i low_bytes(const __m512i r[4]) {
    const __m512i from = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    const __m512i r01 = _mm512_mask_shuffle_epi8(r[0], 0x2222222222222222, r[1], from);
    const __m512i r012 = _mm512_mask_shuffle_epi8(r01, 0x4444444444444444, r[2], from);
    return _mm512_mask_shuffle_epi8(r012, 0x8888888888888888, r[3], from);
}

/* The same factors as residues: to[modulus * stride], byte i of a lane from vector i. */
static inline __attribute__((always_inline)) void find_residues(
    const moduli *p, const float *x, const int step, __m512d scale_low, __m512d scale_high, int8_t *to, int64_t stride,
    const int right, __m512d cut[2]) {
    const __m512d by[2] = {scale_low, scale_high};
    __m512i low[4], high[4];
    cut_factors(x, step, by, low, high, cut);
    _mm512_store_si512(to, low_bytes(low)); /* modulo 256 */
    for (int64_t t = 1; t < p->count; t++) {
        const __m512i first = _mm512_set1_epi32(p->first[t]), minus = _mm512_set1_epi32(p->minus[t]);
        const __m512i by_low = _mm512_set1_epi32(p->low[t]), by_high = _mm512_set1_epi32(p->high_bytes[t]);
        const __m512 inverse = _mm512_set1_ps(p->inverse[t]), add = _mm512_set1_ps(p->add[t]);
        __m512i r[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m512i y = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(first, low[i], by_low), high[i], by_high);
            const __m512 quotient = _mm512_fmadd_ps(_mm512_castsi512_ps(y), inverse, add);
            r[i] = _mm512_dpwssd_epi32(y, _mm512_castps_si512(quotient), minus);
        }
        __m512i all = low_bytes(r);
        if (!right) all = _mm512_mask_add_epi8(all, _mm512_movepi8_mask(all), all, _mm512_set1_epi8((char)p->modulus[t]));
        _mm512_store_si512(to + t * stride, all);
    }
}

/* Residues of 32 rows from `row` on, tiles [k0, k1): [modulus][tile][half], of a modulus after `stride` bytes. Squares of
 * what was cut are added to `to`. */
static void pack_pair(
    const moduli *p, const side *s, int64_t row, int64_t k0, int64_t k1, sizes to, int8_t *residues, int64_t stride) {
    _Alignas(64) float read[16 * TERMS], turned[16 * TERMS];
    for (int64_t half = 0; half < 32; half += 16) {
        double *cut = to.cut + half, *scale = to.scale + half;
        const int across = side_by_side(s, row + half);
        const float *x = across == s->right ? read : turned;
        const __m512d by[2] = {_mm512_loadu_pd(scale), _mm512_loadu_pd(scale + 8)};
        __m512d cuts[16][2] = {0};
        for (int64_t k = k0; k < k1; k++) {
            int8_t *tile = residues + ((k - k0) * 2 + half / 16) * TILE;
            fetch_tile(s, row + half, k, across, read);
            for (int i = 0; x == turned && i < TERMS; i += 16)
                if (across) turn(read + 16 * i, 16, turned + i, TERMS);
                else turn(read + i, TERMS, turned + 16 * i, 16);
            for (int r = 0; r < 16; r++) {
                const __m512d own = _mm512_set1_pd(scale[r]);
                if (s->right) find_residues(p, x + 16 * r, 256, by[0], by[1], tile + 64 * r, stride, 1, cuts[0]);
                else find_residues(p, x + TERMS * r, 16, own, own, tile + 64 * r, stride, 0, cuts[r]);
            }
        }
        for (int h = 0; s->right && h < 2; h++)
            _mm512_storeu_pd(cut + 8 * h, _mm512_add_pd(_mm512_loadu_pd(cut + 8 * h), cuts[0][h]));
        for (int r = 0; !s->right && r < 16; r++) cut[r] += _mm512_reduce_add_pd(_mm512_add_pd(cuts[r][0], cuts[r][1]));
    }
}

/* Norms of what was cut, whose squares are in `cut`, and with them those of integers; of columns, their sum. */
static void take_roots(sizes of, int64_t count, int right) {
    for (int64_t r = 0; r < count; r++) {
        of.cut[r] = sqrt(of.cut[r]) * (1 + 0x1p-20);
        of.size[r] += (1 + right) * of.cut[r];
    }
}
