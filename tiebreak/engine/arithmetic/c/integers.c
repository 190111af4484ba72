/* Sums of products of f32, correctly rounded, by products of bytes modulo coprime numbers (docs/integers.md has the proof).
 *
 * Rows and columns are scaled by powers of two and rounded to integers a~ and b~, so small that their sum of products S is
 * determined by what it is modulo P, the product of the moduli. For each modulus the residues of a~, 0 ... m - 1, and of b~,
 * -m/2 ... m/2, are multiplied as bytes, and c, the sum of their products, is congruent to S. S / P is the fraction of
 * the sum of c v / m over all moduli, v = (P / m)^-1 modulo m. It is kept in units of 2^-52, and Ziv's test decides.
 *
 * A block of residues is a tile: 16 rows, or 16 columns, times 64 terms, whose order within a tile is the same for both.
 * A tile of rows has a row's 64 bytes side by side; one of columns the same four bytes of 16 columns.
 */
#define _GNU_SOURCE /* syscall */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "contraction.h"
#include "exact.h"

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
    uint64_t over[2 * MOST], whole[2], weight[MOST]; /* P / m, P: low halves first; v */
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

enum { OUT_OF_MEMORY, DONE, LEFT }; /* LEFT: too much would be undecided, and FP64 is faster */

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    defined(__AVX512IFMA__) && defined(__AVX512VNNI__)

#include "tiles.h"

static sizes sizes_at(double *from, int64_t count, int64_t first) {
    return (sizes){from + first, from + count + first, from + 2 * count + first, from + 3 * count + first};
}

/* How tiles are multiplied: 2 by the matrix unit, 1 by vectors; 0 if the processor or the system does not let us. */
int find_tiles(void) {
    static _Atomic int found = -1;
    if (found < 0) found = ask() ? FOUND : 0;
    return found;
}

/* ---- residues ---- */

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
    if (n == wide && count == all && !consecutive(inner, n) && consecutive(outer, count)) {
        for (int64_t o = 0; o < count; o += 16) /* outer ones follow each other: lines are read once */
            for (int64_t i = 0; i < wide; i++) {
                float line[16];
                memcpy(line, from + outer[o] + inner[i], sizeof line);
                for (int s = 0; s < 16; s++) to[(o + s) * wide + i] = line[s];
            }
        return;
    }
    const int unit = n == wide && consecutive(inner, n);
    for (int64_t o = 0; o < all; o++, to += wide) {
        const float *at = from + (o < count ? outer[o] : 0);
        if (o < count && unit) {
            memcpy(to, at + inner[0], 4 * (size_t)wide);
            continue;
        }
        for (int64_t i = 0; i < wide; i++) to[i] = o < count && i < n ? at[inner[i]] : 0.0f;
    }
}

static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

/* 16 rows from `row` on and the terms of a tile: rows of 64, or of columns, 64 terms of 16. */
static void fetch_tile(const side *s, int64_t row, int64_t tile, float *x) {
    const int64_t *own = s->row + row, *term = s->term + tile * TERMS;
    const int64_t rows = row < s->rows ? least(s->rows - row, 16) : 0, terms = least(s->terms - tile * TERMS, TERMS);
    if (!rows) memset(x, 0, 4 * 16 * TERMS);
    else if (s->right) fetch(x, s->from, term, terms, TERMS, own, rows, 16);
    else fetch(x, s->from, own, rows, 16, term, terms, TERMS);
}

static inline __m512d half_of(const float *x) { return _mm512_cvtps_pd(_mm256_loadu_ps(x)); }

/* Adds the squares of 16 rows from `row` on, tiles [k0, k1). */
static void add_squares(const side *s, int64_t row, int64_t k0, int64_t k1, double *squares) {
    __m512d sums[16] = {0};
    for (int64_t tile = k0; tile < k1; tile++) {
        float x[16 * TERMS];
        fetch_tile(s, row, tile, x);
        for (int i = 0; i < 16 * TERMS; i += 8) {
            const int at = s->right ? i / 8 % 2 : i / TERMS;
            const __m512d y = half_of(x + i);
            sums[at] = _mm512_fmadd_pd(y, y, sums[at]);
        }
    }
    for (int h = 0; s->right && h < 2; h++)
        _mm512_storeu_pd(squares + 8 * h, _mm512_add_pd(_mm512_loadu_pd(squares + 8 * h), sums[h]));
    for (int r = 0; !s->right && r < 16; r++) squares[r] += _mm512_reduce_add_pd(sums[r]);
}

/* Scales of rows whose squares are in `size`: the greatest powers of two with which their norms, as integers, stay in
 * reach. Clears sizes. */
static void set_scales(const moduli *p, int64_t terms, sizes to, int64_t count) {
    const double most = p->reach - sqrt((double)terms) / 2 - 1;
    for (int64_t r = 0; r < count; r++) {
        const double norm = sqrt(to.size[r]) * (1 + 0x1p-20);
        int exponent;
        frexp(most / norm, &exponent);
        const double scale = norm == 0 ? 0 : norm < INFINITY ? power_of_two(exponent - 1) : NAN;
        to.scale[r] = scale;
        to.back[r] = scale != 0 ? 1 / scale : 0; /* zeros stay zeros, and NaN NaN */
        to.size[r] = to.cut[r] = 0;
    }
}

/* Four vectors of 16 factors, times powers of two, as integers: their low and high halves in two's complement. Their
 * squares, and those of what rounding cut, are added to sums. */
static inline __attribute__((always_inline)) void cut_factors(
    const float *x, const int step, const __m512d by[2], __m512i low[4], __m512i high[4], __m512d size[2], __m512d cut[2]) {
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
            size[h] = _mm512_fmadd_pd(integer, integer, size[h]);
            cut[h] = _mm512_fmadd_pd(rest, rest, cut[h]);
            whole[h] = _mm512_castpd_si512(y);
        }
        low[i] = _mm512_permutex2var_epi32(whole[0], even, whole[1]);
        high[i] = _mm512_permutex2var_epi32(whole[0], odd, whole[1]);
    }
}

/* The same factors as residues: to[modulus * stride], byte i of a lane from vector i. */
static inline __attribute__((always_inline)) void find_residues(
    const moduli *p, const float *x, const int step, __m512d scale_low, __m512d scale_high, int8_t *to, int64_t stride,
    const int right, __m512d size[2], __m512d cut[2]) {
    const __m512d by[2] = {scale_low, scale_high};
    __m512i low[4], high[4];
    cut_factors(x, step, by, low, high, size, cut);
    const __m512i byte = _mm512_set1_epi32(0xff), third = _mm512_set1_epi32(0xff0000), lower = _mm512_set1_epi32(0xffff);
    for (int64_t t = 0; t < p->count; t++) {
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
        const __m512i r01 = _mm512_ternarylogic_epi32(byte, r[0], _mm512_slli_epi32(r[1], 8), 0xca); /* byte ? r0 : r1 */
        const __m512i r23 = _mm512_ternarylogic_epi32(third, _mm512_slli_epi32(r[2], 16), _mm512_slli_epi32(r[3], 24), 0xca);
        __m512i all = _mm512_ternarylogic_epi32(lower, r01, r23, 0xca);
        if (!right) all = _mm512_mask_add_epi8(all, _mm512_movepi8_mask(all), all, _mm512_set1_epi8((char)p->modulus[t]));
        _mm512_store_si512(to + t * stride, all);
    }
}

/* Residues of 32 rows from `row` on, tiles [k0, k1): [modulus][tile][half], of a modulus after `stride` bytes. Squares of
 * norms are added to `to`. */
static void pack_pair(
    const moduli *p, const side *s, int64_t row, int64_t k0, int64_t k1, sizes to, int8_t *residues, int64_t stride) {
    float x[16 * TERMS];
    for (int64_t half = 0; half < 32; half += 16) {
        double *size = to.size + half, *cut = to.cut + half, *scale = to.scale + half;
        for (int64_t k = k0; k < k1; k++) {
            int8_t *tile = residues + ((k - k0) * 2 + half / 16) * TILE;
            fetch_tile(s, row + half, k, x);
            if (s->right) {
                __m512d sums[2] = {_mm512_loadu_pd(size), _mm512_loadu_pd(size + 8)};
                __m512d cuts[2] = {_mm512_loadu_pd(cut), _mm512_loadu_pd(cut + 8)};
                const __m512d by[2] = {_mm512_loadu_pd(scale), _mm512_loadu_pd(scale + 8)};
                for (int l = 0; l < 16; l++)
                    find_residues(p, x + 16 * l, 256, by[0], by[1], tile + 64 * l, stride, 1, sums, cuts);
                _mm512_storeu_pd(size, sums[0]), _mm512_storeu_pd(size + 8, sums[1]);
                _mm512_storeu_pd(cut, cuts[0]), _mm512_storeu_pd(cut + 8, cuts[1]);
                continue;
            }
            for (int r = 0; r < 16; r++) {
                __m512d sums[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()}, cuts[2] = {sums[0], sums[0]};
                const __m512d by = _mm512_set1_pd(scale[r]);
                find_residues(p, x + TERMS * r, 16, by, by, tile + 64 * r, stride, 0, sums, cuts);
                size[r] += _mm512_reduce_add_pd(_mm512_add_pd(sums[0], sums[1]));
                cut[r] += _mm512_reduce_add_pd(_mm512_add_pd(cuts[0], cuts[1]));
            }
        }
    }
}

static void take_roots(sizes of, int64_t count) {
    for (int64_t r = 0; r < count; r++) {
        of.size[r] = sqrt(of.size[r]) * (1 + 0x1p-20);
        of.cut[r] = sqrt(of.cut[r]) * (1 + 0x1p-20);
    }
}

static side rows_of(const contraction *t, int64_t batch) {
    return (side){t->a + t->a_batch[batch], t->a_m, t->a_k, t->m, t->k, 0};
}
static side columns_of(const contraction *t, int64_t batch) {
    return (side){t->b + t->b_batch[batch], t->b_n, t->b_k, t->n, t->k, 1};
}
static sizes row_sizes(const contraction *t, const moduli *p, int64_t batch, int64_t row) {
    return sizes_at(p->row_sizes, t->batches * p->strips * 32, batch * p->strips * 32 + row);
}
static int8_t *strip_at(const moduli *p, int64_t batch, int64_t strip) {
    return p->residues + (batch * p->strips + strip) * p->count * p->tiles * 2 * TILE;
}

/* Residues of all rows. Takes strips until none is left, as `contract` takes tasks. */
int pack_rows(const contraction *t, const moduli *p, progress *shared) {
    for (int64_t task; (task = shared->next++) < t->batches * p->strips;) {
        const int64_t batch = task / p->strips, strip = task % p->strips;
        const side rows = rows_of(t, batch);
        const sizes to = row_sizes(t, p, batch, 32 * strip);
        memset(to.size, 0, 8 * 32);
        for (int half = 0; half < 32; half += 16) add_squares(&rows, 32 * strip + half, 0, p->tiles, to.size + half);
        set_scales(p, t->k, to, 32);
        pack_pair(p, &rows, 32 * strip, 0, p->tiles, to, strip_at(p, batch, strip), p->tiles * 2 * TILE);
        take_roots(to, 32);
    }
    return DONE;
}

/* ---- blocks ---- */

typedef struct {
    int8_t *b, *tie; /* residues of a block's columns, terms of a panel; of 32 columns, all terms */
    int32_t *c;      /* of a strip: [modulus][pair of columns][1024] */
    uint64_t *f;     /* fractions, [strip][pair][1024] */
    double *columns; /* four tables, see `sizes` */
    double *sum, *error;
    float *high;
    uint8_t *tied;   /* [strip][pair]: has exact sums that are undecided */
    size_t bytes;
    void *memory;
} room;

static _Thread_local room held;

/* This thread's memory for blocks; 0 if there is none. Kept for the next call. */
static int make_room(const moduli *p) {
    const size_t w = (size_t)p->width, count = (size_t)p->count, blocks = (size_t)p->high / 32 * (w / 32);
    const size_t parts[] = {w * count * (size_t)p->panel * TERMS, 32 * count * (size_t)p->tiles * TERMS,
                            4 * 32 * w * count, 8 * (size_t)p->high * w, 8 * 4 * w, 8 * w, 8 * w, 4 * w, blocks};
    size_t bytes = 0, at[9];
    for (int i = 0; i < 9; i++) at[i] = bytes, bytes += (parts[i] + 63) & ~(size_t)63;
    if (bytes > held.bytes) {
        free(held.memory);
        held.memory = aligned_alloc(64, bytes);
        held.bytes = held.memory ? bytes : 0;
        if (!held.memory) return 0;
    }
    char *m = held.memory;
    held.b = (int8_t *)m + at[0], held.tie = (int8_t *)m + at[1], held.tied = (uint8_t *)m + at[8];
    held.c = (int32_t *)(void *)(m + at[2]), held.f = (uint64_t *)(void *)(m + at[3]);
    held.columns = (double *)(void *)(m + at[4]), held.sum = (double *)(void *)(m + at[5]);
    held.error = (double *)(void *)(m + at[6]), held.high = (float *)(void *)(m + at[7]);
    return 1;
}

/* A block of one batch: outputs [m0, m0 + m) x [n0, n0 + n); m0 and n0 are multiples of 32. */
typedef struct {
    int64_t batch, m0, m, n0, n, strips, pairs;
} block;

/* Adds a strip's sums of all moduli to its fractions. */
static void fold(const moduli *p, int64_t pairs, int first, uint64_t *to) {
    for (int64_t i = 0; i < 1024 * pairs; i += 8) {
        __m512i f = first ? _mm512_setzero_si512() : _mm512_load_si512(to + i), g = _mm512_setzero_si512(), h = g;
        const int32_t *c = held.c + i;
        for (int64_t t = 0; t < p->count; t++, c += 1024 * pairs) {
            const __m512i x = _mm512_cvtepu32_epi64(_mm256_load_si256((const __m256i *)(const void *)c));
            const __m512i v1 = _mm512_set1_epi64((int64_t)p->v1[t]), v2 = _mm512_set1_epi64((int64_t)p->v2[t]);
            f = _mm512_madd52lo_epu64(f, x, v1);
            g = _mm512_madd52hi_epu64(g, x, v2);
            h = _mm512_madd52lo_epu64(h, x, v2); /* one unit is cut off for a panel, not one for each modulus too */
        }
        g = _mm512_add_epi64(g, _mm512_srli_epi64(h, 52));
        _mm512_store_si512(to + i, _mm512_add_epi64(f, g));
    }
}

/* The tiles [k0, k1) of a block, whose columns' residues are at hand. */
static void multiply_panel(const moduli *p, const block *at, int64_t k0, int64_t k1) {
    const int64_t each = (k1 - k0) * 2 * TILE;
    for (int64_t strip = 0; strip < at->strips; strip++) {
        const int8_t *a = strip_at(p, at->batch, at->m0 / 32 + strip) + k0 * 2 * TILE;
        for (int64_t t = 0; t < p->count; t++)
            for (int64_t j = 0; j < at->pairs; j++)
                multiply_tiles(a + t * p->tiles * 2 * TILE, held.b + (j * p->count + t) * each, k1 - k0,
                               held.c + (t * at->pairs + j) * 1024);
        fold(p, at->pairs, k0 == 0, held.f + strip * at->pairs * 1024);
    }
}

/* The mean part of their norms that rounding to integers cut; of columns these are squares still. */
static double cut_part(sizes of, int64_t count, int squares) {
    double sum = 0;
    for (int64_t r = 0; r < count; r++) {
        const double part = of.size[r] > 0 ? of.cut[r] / of.size[r] : 0;
        sum += squares ? sqrt(part) : part;
    }
    return sum / (double)count;
}

#define MUCH 64 /* if more than one element in so many is undecided, settling them takes longer than FP64 */

/* Fractions of a block; LEFT if too much of it would be undecided. */
static int accumulate(const contraction *t, const moduli *p, const block *at) {
    const side from = columns_of(t, at->batch);
    const sizes rows = row_sizes(t, p, at->batch, at->m0), columns = sizes_at(held.columns, p->width, 0);
    memset(columns.size, 0, 8 * (size_t)p->width);
    for (int64_t k = 0; k < p->tiles; k++) /* lines and pages of a term are near each other */
        for (int64_t n = 0; n < 32 * at->pairs; n += 16) add_squares(&from, at->n0 + n, k, k + 1, columns.size + n);
    set_scales(p, t->k, columns, 32 * at->pairs);
    for (int64_t k = 0; k < p->tiles; k += p->panel) {
        const int64_t end = least(k + p->panel, p->tiles), each = (end - k) * 2 * TILE;
        for (int64_t tile = k; tile < end; tile++)
            for (int64_t j = 0; j < at->pairs; j++)
                pack_pair(p, &from, at->n0 + 32 * j, tile, tile + 1, sizes_at(held.columns, p->width, 32 * j),
                          held.b + j * p->count * each + (tile - k) * 2 * TILE, each);
        if (p->loose * (cut_part(rows, at->m, 0) + cut_part(columns, at->n, 1)) * MUCH > 1 && !p->stays) return LEFT;
        multiply_panel(p, at, k, end);
    }
    take_roots(columns, 32 * at->pairs);
    return DONE;
}

/* Sums and bounds on their errors of row `y` of a strip, as FP64. */
static void read_row(const moduli *p, const block *at, sizes rows, sizes columns, int64_t strip, int64_t y) {
    const __m512d unit = _mm512_set1_pd(p->product * 0x1p-64), slack = _mm512_set1_pd(p->slack), up = _mm512_set1_pd(1 + 0x1p-40);
    const __m512i offset = _mm512_set1_epi64((int64_t)(p->centre - p->added));
    const int64_t row = 32 * strip + y;
    const __m512d cut = _mm512_mul_pd(_mm512_set1_pd(rows.cut[row]), up), size = _mm512_mul_pd(_mm512_set1_pd(rows.size[row]), up);
    for (int64_t j = 0; j < 32 * at->pairs; j += 8) {
        const uint64_t *from = held.f + (strip * at->pairs + j / 32) * 1024 + (y / 16 * 2 + j / 16 % 2) * 256 + y % 16 * 16 + j % 16;
        const __m512i fraction = _mm512_slli_epi64(_mm512_add_epi64(_mm512_load_si512(from), offset), 12); /* signed */
        const __m512d other = _mm512_load_pd(columns.cut + j), with = _mm512_load_pd(columns.size + j);
        const __m512d crossed = _mm512_fmadd_pd(cut, _mm512_add_pd(with, other), slack);
        const __m512d back = _mm512_mul_pd(_mm512_set1_pd(rows.back[row]), _mm512_load_pd(columns.back + j));
        _mm512_store_pd(held.sum + j, _mm512_mul_pd(_mm512_mul_pd(_mm512_cvtepi64_pd(fraction), unit), back));
        _mm512_store_pd(held.error + j, _mm512_mul_pd(_mm512_fmadd_pd(size, other, crossed), back));
    }
}

static inline __attribute__((always_inline)) int64_t test_sums(int64_t n, const int precision) {
    int64_t open = 0;
    for (int64_t j = 0; j < n; j++) {
        const float up = round_to(held.sum[j] + held.error[j], precision), down = round_to(held.sum[j] - held.error[j], precision);
        held.high[j] = up + 0.0f;
        open += !(up == down);
    }
    return open;
}

/* ---- exact ties ---- */

/* The sum of integers whose residues are c - START, as FP64 rounded to odd: it may be rounded again. Quotients are
 * estimated in FP64, which holds c v, and are off by one at most. */
static double integer_of(const moduli *p, const int32_t *c, int64_t stride) {
    const __int128 whole = (__int128)((unsigned __int128)p->whole[1] << 64 | p->whole[0]);
    __int128 sum = 0;
    double wholes = 0;
    for (int64_t t = 0; t < p->count; t++) {
        const double m = p->modulus[t], x = ((double)c[t * stride] - START) * (double)p->weight[t];
        double part = x - floor(x * p->reciprocal[t]) * m;
        part += part < 0 ? m : part >= m ? -m : 0;
        wholes += part * p->reciprocal[t];
        sum += (__int128)((unsigned __int128)p->over[2 * t + 1] << 64 | p->over[2 * t]) * (int64_t)part;
    }
    sum -= whole * (int64_t)(wholes + 0.5); /* within P / 2, or on its edge, which S does not reach */
    const int negative = sum < 0;
    const unsigned __int128 size = (unsigned __int128)(negative ? -sum : sum);
    const uint64_t high = (uint64_t)(size >> 53);
    const int drop = high ? 64 - __builtin_clzll(high) : 0;
    const uint64_t kept = (uint64_t)(size >> drop) | (size != size >> drop << drop);
    const double found = (double)kept * power_of_two(drop);
    return negative ? -found : found;
}

/* Decides the undecided sums of one strip and 32 columns in which nothing was cut. */
static void settle_strip(const contraction *t, const moduli *p, const block *at, int64_t strip, int64_t j, progress *shared) {
    const int8_t *a = strip_at(p, at->batch, at->m0 / 32 + strip);
    const sizes rows = row_sizes(t, p, at->batch, at->m0), columns = sizes_at(held.columns, p->width, 0);
    const int precision = (int)shared->precision;
    const int64_t each = p->tiles * 2 * TILE;
    for (int64_t q = 0; q < p->count; q++) multiply_tiles(a + q * each, held.tie + q * each, p->tiles, held.c + q * 1024);
    for (int64_t y = 0; y < 32 && 32 * strip + y < at->m; y++) {
        const int64_t row = 32 * strip + y;
        if (rows.cut[row] != 0) continue;
        read_row(p, at, rows, columns, strip, y);
        for (int64_t x = 32 * j; x < 32 * j + 32 && x < at->n; x++) {
            if (columns.cut[x] != 0 || !is_open(held.sum[x], held.error[x], precision)) continue;
            const int32_t *c = held.c + (y / 16 * 2 + x / 16 % 2) * 256 + y % 16 * 16 + x % 16;
            const float value = round_to(integer_of(p, c, 1024) * (rows.back[row] * columns.back[x]), precision) + 0.0f;
            t->out[t->out_batch[at->batch] + t->out_m[at->m0 + row] + t->out_n[at->n0 + x]] = value;
            shared->undecided++;
            shared->twice++;
            shared->wrong += value != round_to(held.sum[x], precision);
        }
    }
}

static void settle_ties(const contraction *t, const moduli *p, const block *at, progress *shared) {
    const side columns = columns_of(t, at->batch);
    double unused[4 * 32] = {0};
    const int64_t started = now();
    for (int64_t j = 0; j < at->pairs; j++) {
        int packed = 0;
        for (int64_t strip = 0; strip < at->strips; strip++) {
            if (!held.tied[strip * at->pairs + j]) continue;
            if (!packed++) {
                sizes own = sizes_at(unused, 32, 0);
                own.scale = sizes_at(held.columns, p->width, 32 * j).scale;
                pack_pair(p, &columns, at->n0 + 32 * j, 0, p->tiles, own, held.tie, p->tiles * 2 * TILE);
            }
            settle_strip(t, p, at, strip, j, shared);
        }
    }
    shared->nanoseconds += now() - started;
}

/* ---- the end of a block ---- */

typedef struct {
    element open[OPEN];
    int64_t waiting, all, tied; /* in `open`; undecided but for ties; ties */
} undecided;

/* Sorts out the undecided elements of a row that was just read and tested: ties, non-finite ones and others. */
static void sort_out(const contraction *t, const moduli *p, const block *at, int64_t row, int tie, undecided *found, int settles,
                     progress *shared) {
    const float *a = t->a + t->a_batch[at->batch] + t->a_m[at->m0 + row], *b = t->b + t->b_batch[at->batch];
    float *to = t->out + t->out_batch[at->batch] + t->out_m[at->m0 + row];
    const double *cut = sizes_at(held.columns, p->width, 0).cut;
    for (int64_t j = 0; j < at->n; j++) {
        float *place = to + t->out_n[at->n0 + j];
        const double c = held.sum[j], e = held.error[j];
        if (!is_open(c, e, (int)shared->precision)) continue;
        if (e != e) continue; /* a factor is not finite, and the result is NaN */
        if (tie && cut[j] == 0) {
            held.tied[row / 32 * at->pairs + j / 32] = 1;
            found->tied++;
        } else {
            found->all++;
            if (!settles) continue;
            if (found->waiting == OPEN) settle(&(terms){t->a_k, t->b_k, t->k, 1}, found->open, OPEN, shared), found->waiting = 0;
            found->open[found->waiting++] = (element){a, b + t->b_n[at->n0 + j], place, c, e};
        }
    }
}

/* Reads all rows of a block, and writes what is decided or, the second time, settles what is not. */
static int64_t pass(const contraction *t, const moduli *p, const block *at, undecided *found, int settles, progress *shared) {
    float *out = t->out + t->out_batch[at->batch];
    const sizes rows = row_sizes(t, p, at->batch, at->m0), columns = sizes_at(held.columns, p->width, 0);
    const int unit = consecutive(t->out_n + at->n0, at->n), precision = (int)shared->precision;
    int64_t opens = 0;
    for (int64_t row = 0; row < at->m; row++) {
        float *to = out + t->out_m[at->m0 + row];
        read_row(p, at, rows, columns, row / 32, row % 32);
        const int64_t open = precision == 32 ? test_sums(at->n, 32) : test_sums(at->n, precision);
        if (!settles && unit) memcpy(to + t->out_n[at->n0], held.high, 4 * (size_t)at->n);
        for (int64_t j = 0; !settles && !unit && j < at->n; j++) to[t->out_n[at->n0 + j]] = held.high[j];
        if (open) sort_out(t, p, at, row, p->ties && rows.cut[row] == 0, found, settles, shared);
        opens += open;
    }
    return opens;
}

/* Ziv's test of a block, and what becomes of what it leaves; LEFT if that is much. */
static int finish_block(const contraction *t, const moduli *p, const block *at, progress *shared) {
    undecided found = {.all = 0};
    memset(held.tied, 0, (size_t)(at->strips * at->pairs));
    if (!pass(t, p, at, &found, 0, shared)) return DONE;
    if (found.all >= WIDE && found.all * MUCH > at->m * at->n && !p->stays) return LEFT;
    if (found.tied) settle_ties(t, p, at, shared);
    if (!found.all) return DONE;
    pass(t, p, at, &found, 1, shared);
    settle(&(terms){t->a_k, t->b_k, t->k, 1}, found.open, found.waiting, shared);
    return DONE;
}

/* Products whose rows are packed. Takes blocks until none is left, as `contract` takes tasks. */
int multiply_packed(const contraction *t, const moduli *p, progress *shared) {
    if (!make_room(p)) return OUT_OF_MEMORY;
    const int64_t down = (t->m + p->high - 1) / p->high, across = (t->n + p->width - 1) / p->width;
    int done = DONE;
    begin_tiles();
    for (int64_t task; done == DONE && (task = shared->next++) < t->batches * down * across;) {
        block at = {.batch = task / (down * across), .m0 = task / across % down * p->high, .n0 = task % across * p->width};
        at.m = least(t->m - at.m0, p->high);
        at.n = least(t->n - at.n0, p->width);
        at.strips = (at.m + 31) / 32;
        at.pairs = (at.n + 31) / 32;
        done = accumulate(t, p, &at);
        if (done == DONE) done = finish_block(t, p, &at, shared);
    }
    end_tiles();
    if (done == LEFT) shared->next = INT64_MAX / 2; /* the others need not go on */
    return done;
}

#else

int find_tiles(void) { return 0; }
int pack_rows(void) { return LEFT; }
int multiply_packed(void) { return LEFT; }

#endif
