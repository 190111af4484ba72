/* Sums of products of f32, correctly rounded, by products of bytes modulo coprime numbers (docs/kernels.md has the proof).
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

enum { OUT_OF_MEMORY, DONE, LEFT }; /* LEFT: too much would be undecided, and FP64 is faster */

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    defined(__AVX512IFMA__) && defined(__AVX512VNNI__) && (defined(__AMX_INT8__) || defined(__AMXINT8__))

#include "residues.h"

/* Whether the system lets us use the matrix unit. */
int find_tiles(void) {
    static _Atomic int found = -1;
    if (found < 0) found = ask();
    return found;
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
        take_roots(to, 32, 0);
    }
    return DONE;
}

/* ---- blocks ---- */

typedef struct {
    int8_t *b, *tie; /* residues of a block's columns, terms of a panel; of 32 columns, all terms */
    int32_t *c;      /* of two strips: [modulus][pair of columns][1024] */
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
    const size_t parts[] = {w * count * (size_t)p->panel * TERMS, p->ties ? 32 * count * (size_t)p->tiles * TERMS : 0,
                            2 * 4 * 32 * w * count, 8 * (size_t)p->high * w, 8 * 4 * w, 8 * w, 8 * w, 4 * w, blocks};
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
    const contraction *t;
    const moduli *p;
    progress *shared;
    int64_t batch, m0, m, n0, n, strips, pairs;
    sizes rows, columns;
    int64_t unit;               /* whether outputs of a row follow each other in memory */
    int64_t waiting, all, ties; /* in `open`; undecided but for ties; ties */
    element open[OPEN];
} block;

static int32_t *sums_of(const block *at, int64_t strip) { return held.c + strip % 2 * at->p->count * at->pairs * 1024; }

/* ---- the end of a row ---- */

/* What read_eight takes from a row: P, what rounding adds, and norms, all times 1 / its scale; and its fractions. */
typedef struct {
    __m512d unit, slack, cut, size, least; /* by which factor of columns' norms an error is bounded from below */
    int reports;                           /* near ties, whose errors are not less than those of FP64 would be */
    const uint64_t *fractions;
} line;

static int reports(const block *at) { return at->shared->limit > 0; }

static inline __attribute__((always_inline)) line line_of(const block *at, int64_t row) {
    const moduli *p = at->p;
    const double scale = at->rows.back[row], up = (1 + 0x1p-40) * scale; /* powers of two round nothing */
    return (line){_mm512_set1_pd(p->product * 0x1p-64 * scale), _mm512_set1_pd(p->slack * scale),
                  _mm512_set1_pd(at->rows.cut[row] * up), _mm512_set1_pd(at->rows.size[row] * up),
                  _mm512_set1_pd(at->t->coefficient * at->rows.size[row] * scale), reports(at),
                  held.f + row / 32 * at->pairs * 1024 + row % 32 / 16 * 512 + row % 16 * 16};
}

/* Eight sums and bounds on their errors. */
static inline __attribute__((always_inline)) void read_eight(
    const block *at, const line *l, int64_t j, __m512d *sum, __m512d *error) {
    const __m512i offset = _mm512_set1_epi64((int64_t)(at->p->centre - at->p->added));
    const __m512i fraction = _mm512_load_si512(l->fractions + j / 32 * 1024 + j / 16 % 2 * 256 + j % 16);
    const __m512i z = _mm512_slli_epi64(_mm512_add_epi64(fraction, offset), 12); /* signed */
    const __m512d back = _mm512_load_pd(at->columns.back + j);
    const __m512d crossed = _mm512_fmadd_pd(l->size, _mm512_load_pd(at->columns.cut + j), l->slack);
    *sum = _mm512_mul_pd(_mm512_mul_pd(_mm512_cvtepi64_pd(z), l->unit), back);
    const __m512d size = _mm512_load_pd(at->columns.size + j), found = _mm512_fmadd_pd(l->cut, size, crossed);
    *error = _mm512_mul_pd(l->reports ? _mm512_max_pd(_mm512_mul_pd(l->least, size), found) : found, back); /* found: NaN too */
}

static void read_row(const block *at, int64_t row) {
    const line l = line_of(at, row);
    for (int64_t j = 0; j < 32 * at->pairs; j += 8) {
        __m512d sum, error;
        read_eight(at, &l, j, &sum, &error);
        _mm512_store_pd(held.sum + j, sum);
        _mm512_store_pd(held.error + j, error);
    }
}

/* Ziv's test of a row, rounded to f32: results in `high`; how many are undecided. */
static int64_t test_row_of_f32(const block *at, int64_t row, float *high) {
    const line l = line_of(at, row);
    int64_t open = 0;
    for (int64_t j = 0; j < at->n; j += 8) {
        const __mmask8 some = at->n - j < 8 ? (__mmask8)((1 << (at->n - j)) - 1) : 0xff;
        __m512d sum, error;
        read_eight(at, &l, j, &sum, &error);
        const __m256 up = _mm512_cvtpd_ps(_mm512_add_pd(sum, error)), down = _mm512_cvtpd_ps(_mm512_sub_pd(sum, error));
        _mm256_mask_storeu_ps(high + j, some, _mm256_add_ps(up, _mm256_setzero_ps())); /* -0 + 0 = +0 */
        open += __builtin_popcount(_mm256_mask_cmp_ps_mask(some, up, down, _CMP_NEQ_UQ));
    }
    return open;
}

static void settle_open(block *at) {
    settle(&(terms){at->t->a_k, at->t->b_k, at->t->k, 1}, at->open, at->waiting, at->shared);
    at->waiting = 0;
}

/* Sorts out the undecided elements of a row that was just read and tested: ties, non-finite ones and others. */
static void sort_out(block *at, int64_t row, int settles) {
    const contraction *t = at->t;
    const float *a = t->a + t->a_batch[at->batch] + t->a_m[at->m0 + row], *b = t->b + t->b_batch[at->batch];
    float *to = t->out + t->out_batch[at->batch] + t->out_m[at->m0 + row];
    const int tie = at->p->ties && at->rows.cut[row] == 0 && !reports(at);
    for (int64_t j = 0; j < at->n; j++) {
        const double c = held.sum[j], e = held.error[j];
        if (!is_open(c, e, (int)at->shared->precision)) continue;
        if (e != e) continue; /* a factor is not finite, and the result is NaN */
        if (tie && at->columns.cut[j] == 0) {
            held.tied[row / 32 * at->pairs + j / 32] = 1;
            at->ties++;
        } else {
            at->all++;
            if (!settles) continue;
            if (at->waiting == OPEN) settle_open(at);
            at->open[at->waiting++] = (element){a, b + t->b_n[at->n0 + j], to + t->out_n[at->n0 + j], c, e};
        }
    }
}

/* Reads rows, and writes what is decided or, the second time, settles what is not. */
static void finish_rows(block *at, int64_t from, int64_t end, int settles) {
    const contraction *t = at->t;
    const int64_t *place = t->out_n + at->n0;
    const int direct = at->unit && !settles, precision = (int)at->shared->precision;
    for (int64_t row = from; row < end && row < at->m; row++) {
        float *to = t->out + t->out_batch[at->batch] + t->out_m[at->m0 + row];
        float *high = direct ? to + place[0] : held.high;
        int64_t open = precision == 32 ? test_row_of_f32(at, row, high) : 1;
        if (open) read_row(at, row);
        if (precision < 32) open = test_row(held.sum, 1, held.error, at->n, high, precision);
        for (int64_t j = 0; !settles && !direct && j < at->n; j++) to[place[j]] = high[j];
        if (open) sort_out(at, row, settles);
    }
}

/* ---- products ---- */

/* Adds a strip's sums of all moduli, of vectors [from, to), to its fractions. */
static void fold(const block *at, int64_t strip, int64_t from, int64_t to, int first) {
    const moduli *p = at->p;
    uint64_t *into = held.f + strip * at->pairs * 1024;
    for (int64_t i = 8 * from; i < 8 * to; i += 8) {
        __m512i f = first ? _mm512_setzero_si512() : _mm512_load_si512(into + i), g = _mm512_setzero_si512(), h = g;
        const int32_t *c = sums_of(at, strip) + i;
        for (int64_t t = 0; t < p->count; t++, c += 1024 * at->pairs) {
            const __m512i x = _mm512_cvtepu32_epi64(_mm256_load_si256((const __m256i *)(const void *)c));
            const __m512i v1 = _mm512_set1_epi64((int64_t)p->v1[t]), v2 = _mm512_set1_epi64((int64_t)p->v2[t]);
            f = _mm512_madd52lo_epu64(f, x, v1);
            g = _mm512_madd52hi_epu64(g, x, v2);
            h = _mm512_madd52lo_epu64(h, x, v2); /* one unit is cut off for a panel, not one for each modulus too */
        }
        g = _mm512_add_epi64(g, _mm512_srli_epi64(h, 52));
        _mm512_store_si512(into + i, _mm512_add_epi64(f, g));
    }
}

/* The tiles [k0, k1) of a block, whose columns' residues are at hand. While a strip is multiplied, step by step, the sums of
 * the one before it are folded, and after the last tile the rows of the one before that are finished: the matrix unit is
 * busy meanwhile. */
static void multiply_panel(block *at, int64_t k0, int64_t k1) {
    const moduli *p = at->p;
    const int64_t each = (k1 - k0) * 2 * TILE, steps = p->count * at->pairs, vectors = 128 * at->pairs;
    for (int64_t strip = 0; strip < at->strips + 2; strip++)
        for (int64_t step = 0; step < steps; step++) {
            const int64_t t = step / at->pairs, j = step % at->pairs, behind = strip - 1, last = strip - 2;
            if (strip < at->strips)
                multiply_tiles(strip_at(p, at->batch, at->m0 / 32 + strip) + (t * p->tiles + k0) * 2 * TILE,
                               held.b + (j * p->count + t) * each, k1 - k0, sums_of(at, strip) + step * 1024);
            if (behind >= 0 && behind < at->strips)
                fold(at, behind, vectors * step / steps, vectors * (step + 1) / steps, k0 == 0);
            if (last >= 0 && k1 == p->tiles)
                finish_rows(at, 32 * last + 32 * step / steps, 32 * last + 32 * (step + 1) / steps, 0);
        }
}

/* The mean part of their norms that rounding to integers cuts; of columns, from the squares of what it cut in so many of
 * all tiles. */
static double cut_part(sizes of, int64_t count, double squares) {
    double sum = 0;
    for (int64_t r = 0; r < count; r++) {
        const double cut = squares ? sqrt(of.cut[r] / squares) : of.cut[r];
        sum += of.size[r] > 0 ? cut / of.size[r] : 0;
    }
    return sum / (double)count;
}

#define MUCH 64 /* if more than one element in so many is undecided, settling them takes longer than FP64 */

/* Multiplies a block, and writes what Ziv's test decides; LEFT if too much of it would be undecided. */
static int multiply_block(block *at) {
    const contraction *t = at->t;
    const moduli *p = at->p;
    const side from = columns_of(t, at->batch);
    memset(at->columns.size, 0, 8 * (size_t)p->width);
    for (int64_t k = 0; k < p->tiles; k++) /* lines and pages of a term are near each other */
        for (int64_t n = 0; n < 32 * at->pairs; n += 16) add_squares(&from, at->n0 + n, k, k + 1, at->columns.size + n);
    set_scales(p, t->k, at->columns, 32 * at->pairs);
    memset(held.tied, 0, (size_t)(at->strips * at->pairs));
    for (int64_t k = 0; k < p->tiles; k += p->panel) {
        const int64_t end = least(k + p->panel, p->tiles), each = (end - k) * 2 * TILE;
        for (int64_t tile = k; tile < end; tile++)
            for (int64_t j = 0; j < at->pairs; j++)
                pack_pair(p, &from, at->n0 + 32 * j, tile, tile + 1, sizes_at(held.columns, p->width, 32 * j),
                          held.b + j * p->count * each + (tile - k) * 2 * TILE, each);
        const double part = cut_part(at->rows, at->m, 0) + cut_part(at->columns, at->n, (double)end / (double)p->tiles);
        if (p->loose * part * MUCH > 1 && !p->stays) return LEFT;
        if (end == p->tiles) take_roots(at->columns, 32 * at->pairs, 1);
        multiply_panel(at, k, end);
    }
    return at->all >= WIDE && at->all * MUCH > at->m * at->n && !p->stays ? LEFT : DONE;
}

/* ---- exact ties ---- */

/* Eight sums of integers whose residues are c - START, as FP64 rounded to odd: they may be rounded again. Quotients are
 * estimated in FP64, which holds c v, and are off by one at most. S is kept in two parts of 44 bits, the upper one signed. */
static vec integers_of(const moduli *p, const int32_t *c, int64_t stride) {
    __m512i low = _mm512_setzero_si512(), high = low;
    __m512d wholes = _mm512_set1_pd(0.5); /* within P / 2, or on its edge, which S does not reach */
    for (int64_t t = 0; t < p->count; t++, c += stride) {
        const __m512d m = _mm512_set1_pd(p->modulus[t]), by = _mm512_set1_pd(p->reciprocal[t]);
        const __m512i sum = _mm512_cvtepi32_epi64(_mm256_load_si256((const __m256i *)(const void *)c));
        const __m512d x = _mm512_cvtepi64_pd(_mm512_sub_epi64(sum, _mm512_set1_epi64(START)));
        const __m512d weighed = _mm512_mul_pd(x, _mm512_set1_pd((double)p->weight[t]));
        const __m512d quotient = _mm512_roundscale_pd(_mm512_mul_pd(weighed, by), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
        __m512d part = _mm512_fnmadd_pd(quotient, m, weighed);
        part = _mm512_mask_add_pd(part, _mm512_cmp_pd_mask(part, _mm512_setzero_pd(), _CMP_LT_OQ), part, m);
        part = _mm512_mask_sub_pd(part, _mm512_cmp_pd_mask(part, m, _CMP_GE_OQ), part, m);
        wholes = _mm512_fmadd_pd(part, by, wholes);
        const __m512i small = _mm512_cvtpd_epi64(part);
        low = _mm512_madd52lo_epu64(low, small, _mm512_set1_epi64((int64_t)p->over[2 * t]));
        high = _mm512_madd52lo_epu64(high, small, _mm512_set1_epi64((int64_t)p->over[2 * t + 1]));
    }
    const __m512i times = _mm512_cvttpd_epi64(wholes);
    low = _mm512_sub_epi64(low, _mm512_mullo_epi64(times, _mm512_set1_epi64((int64_t)p->whole[0])));
    high = _mm512_sub_epi64(high, _mm512_mullo_epi64(times, _mm512_set1_epi64((int64_t)p->whole[1])));
    high = _mm512_add_epi64(high, _mm512_srai_epi64(low, 44));
    low = _mm512_and_si512(low, _mm512_set1_epi64((1ll << 44) - 1));
    return add_odd((vec)_mm512_cvtepi64_pd(high) * 0x1p44, (vec)_mm512_cvtepi64_pd(low));
}

/* Decides the undecided sums among eight of a row that was read, in which nothing was cut. */
static void settle_eight(const block *at, int64_t row, int64_t column, const int32_t *c) {
    const contraction *t = at->t;
    const int precision = (int)at->shared->precision;
    vec found;
    int ready = 0;
    for (int64_t x = column; x < column + 8 && x < at->n; x++) {
        if (at->columns.cut[x] != 0 || !is_open(held.sum[x], held.error[x], precision)) continue;
        if (!ready++) found = integers_of(at->p, c, 1024);
        const float value = round_to(found[x - column] * (at->rows.back[row] * at->columns.back[x]), precision) + 0.0f;
        t->out[t->out_batch[at->batch] + t->out_m[at->m0 + row] + t->out_n[at->n0 + x]] = value;
        at->shared->undecided++;
        at->shared->twice++;
        at->shared->wrong += value != round_to(held.sum[x], precision);
    }
}

/* Decides those of one strip and 32 columns. */
static void settle_strip(const block *at, int64_t strip, int64_t j) {
    const moduli *p = at->p;
    const int8_t *a = strip_at(p, at->batch, at->m0 / 32 + strip);
    const int64_t each = p->tiles * 2 * TILE;
    for (int64_t q = 0; q < p->count; q++) multiply_tiles(a + q * each, held.tie + q * each, p->tiles, held.c + q * 1024);
    for (int64_t y = 0; y < 32 && 32 * strip + y < at->m; y++) {
        if (at->rows.cut[32 * strip + y] != 0) continue;
        read_row(at, 32 * strip + y);
        for (int64_t x = 0; x < 32; x += 8)
            settle_eight(at, 32 * strip + y, 32 * j + x, held.c + (y / 16 * 2 + x / 16) * 256 + y % 16 * 16 + x % 16);
    }
}

static void settle_ties(const block *at) {
    const side columns = columns_of(at->t, at->batch);
    double unused[4 * 32] = {0};
    const int64_t started = now();
    for (int64_t j = 0; j < at->pairs; j++) {
        int packed = 0;
        for (int64_t strip = 0; strip < at->strips; strip++) {
            if (!held.tied[strip * at->pairs + j]) continue;
            if (!packed++) {
                sizes own = sizes_at(unused, 32, 0);
                own.scale = at->columns.scale + 32 * j;
                pack_pair(at->p, &columns, at->n0 + 32 * j, 0, at->p->tiles, own, held.tie, at->p->tiles * 2 * TILE);
            }
            settle_strip(at, strip, j);
        }
    }
    at->shared->nanoseconds += now() - started;
}

/* Settles what Ziv's test left. */
static void settle_block(block *at) {
    if (at->ties) settle_ties(at);
    if (!at->all) return;
    finish_rows(at, 0, at->m, 1);
    settle_open(at);
}

/* Products whose rows are packed. Takes blocks until none is left, as `contract` takes tasks. */
int multiply_packed(const contraction *t, const moduli *p, progress *shared) {
    if (!make_room(p)) return OUT_OF_MEMORY;
    const int64_t down = (t->m + p->high - 1) / p->high, across = (t->n + p->width - 1) / p->width;
    int done = DONE;
    begin_tiles();
    for (int64_t task; done == DONE && (task = shared->next++) < t->batches * down * across;) {
        const int64_t batch = task / (down * across), m0 = task / across % down * p->high, n0 = task % across * p->width;
        block at = {.t = t, .p = p, .shared = shared, .batch = batch, .m0 = m0, .n0 = n0};
        at.m = least(t->m - m0, p->high);
        at.n = least(t->n - n0, p->width);
        at.strips = (at.m + 31) / 32;
        at.pairs = (at.n + 31) / 32;
        at.unit = consecutive(t->out_n + n0, at.n);
        at.rows = row_sizes(t, p, batch, m0);
        at.columns = sizes_at(held.columns, p->width, 0);
        done = multiply_block(&at);
        if (done == DONE) settle_block(&at);
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
