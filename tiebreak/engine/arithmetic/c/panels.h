/* Panels of a matrix product: rows and columns as FP64, in the order in which the innermost loop reads them. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "exact.h"
#include "lanes.h"

#define KC 192 /* terms of a panel, at most */
#define VECTORS 3
#define NR (LANES * VECTORS)

typedef double vec_unaligned __attribute__((vector_size(8 * LANES), aligned(8)));
typedef float half_unaligned __attribute__((vector_size(4 * LANES), aligned(4)));
typedef double quad __attribute__((vector_size(32)));
typedef float quad_of_f32 __attribute__((vector_size(16), aligned(4)));

/* One term of four rows that lie side by side. */
static inline void copy(double *to, const float *from) {
    const quad x = __builtin_convertvector(*(const quad_of_f32 *)from, quad);
    memcpy(to, &x, sizeof(quad));
}

/* Four terms of four rows, turned: to[k * width + r] = start[r][term + k]. */
static inline __attribute__((always_inline)) void turn(double *to, const float *const *start, int64_t term, int64_t width) {
    quad x[4];
    for (int r = 0; r < 4; r++) x[r] = __builtin_convertvector(*(const quad_of_f32 *)(start[r] + term), quad);
    const quad a = __builtin_shufflevector(x[0], x[1], 0, 4, 2, 6), b = __builtin_shufflevector(x[0], x[1], 1, 5, 3, 7);
    const quad c = __builtin_shufflevector(x[2], x[3], 0, 4, 2, 6), d = __builtin_shufflevector(x[2], x[3], 1, 5, 3, 7);
    const quad turned[4] = {
        __builtin_shufflevector(a, c, 0, 1, 4, 5), __builtin_shufflevector(b, d, 0, 1, 4, 5),
        __builtin_shufflevector(a, c, 2, 3, 6, 7), __builtin_shufflevector(b, d, 2, 3, 6, 7)};
    for (int i = 0; i < 4; i++) memcpy(to + i * width, &turned[i], sizeof(quad));
}

/* Whether four terms follow each other in memory: 1, or -1 if backwards, as those of a flipped filter do; else 0. */
static inline signed char direction(const int64_t *term) {
    const int64_t step = term[1] - term[0];
    return term[2] - term[1] == step && term[3] - term[2] == step && (step == 1 || step == -1) ? (signed char)step : 0;
}

/* `width` rows (offsets `row`) times `kc` terms, term by term. If there are fewer `rows`, some of them stand for the others:
 * nobody reads what they yield. `next`: the rows of the next panel, or null. */
static inline __attribute__((always_inline)) void fill(
    double *restrict to, const float *restrict from, const int64_t *row, int64_t rows, const int64_t *term, int64_t kc,
    const int64_t *next, const int width) {
    if (rows == width && consecutive(row, width)) {
        for (int64_t k = 0; k < kc; k++, to += width) {
            const float *at = from + row[0] + term[k];
            if (next) __builtin_prefetch(from + next[0] + term[k], 0, 2), __builtin_prefetch(from + next[width - 1] + term[k], 0, 2);
            for (int r = 0; r < width; r += LANES)
                *(vec *)(to + r) = __builtin_convertvector(*(const half_unaligned *)(at + r), vec);
        }
        return;
    }
    const float *start[width];
    int beside[width / 4 + 1], all = width % 4 == 0; /* whether four rows lie side by side, as those of an image do until it ends */
    for (int r = 0; r < width; r++) start[r] = from + row[r < rows ? r : r % 4 < rows ? r % 4 : 0];
    for (int r = 0; r + 4 <= width; r += 4)
        all &= beside[r / 4] = start[r + 1] == start[r] + 1 && start[r + 2] == start[r] + 2 && start[r + 3] == start[r] + 3;
    for (int64_t k = 0; all && k < kc; k++)
#pragma GCC unroll 8
        for (int r = 0; r < width; r += 4) copy(to + k * width + r, start[r] + term[k]);
    signed char steps[KC];
    for (int64_t k = 0; !all && k < kc; k += steps[k] ? 4 : 1) steps[k] = k + 4 <= kc ? direction(term + k) : 0;
    for (int64_t begin = 0, k = 0; !all && begin < kc; begin = k) { /* all of a line of memory before others take its place */
        for (int r = 0; r < width; r++)
            if (begin + 16 < kc) __builtin_prefetch(start[r] + term[begin + 16]);
            else if (next) __builtin_prefetch(from + next[r] + term[0]);
        for (int r = 0; r < width; r += 4)
            for (k = begin; k < kc && k < begin + 16; k += steps[k] ? 4 : 1) {
                const int64_t step = steps[k], first = step < 0 ? k + 3 : k; /* of the terms, in memory */
                double *at = to + k * width + r;
                if (r + 4 > width)
                    for (int64_t s = r; s < width; s++)
                        for (int64_t i = 0; i < (step ? 4 : 1); i++) at[i * width + s - r] = start[s][term[k + i]];
                else if (step && !beside[r / 4]) turn(to + first * width + r, start + r, term[first], step * width);
                else if (step)
                    for (int i = 0; i < 4; i++) copy(at + i * width, start[r] + term[k + i]);
                else if (beside[r / 4]) copy(at, start[r] + term[k]);
                else
                    for (int s = 0; s < 4; s++) at[s] = start[r + s][term[k]];
            }
    }
}

/* Adds the squares of a panel's rows, in several sums each: none waits for the one before it. */
static inline __attribute__((always_inline)) void add_squares(
    double *squares, const double *panel, int64_t kc, const int width) {
    vec sums[4][width / LANES];
    int64_t k = 0;
    memset(sums, 0, sizeof sums);
    for (; k + 4 <= kc; k += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
#pragma GCC unroll 4
            for (int r = 0; r < width / LANES; r++, panel += LANES)
                sums[i][r] = FMA(*(const vec *)panel, *(const vec *)panel, sums[i][r]);
    for (; k < kc; k++)
        for (int r = 0; r < width / LANES; r++, panel += LANES)
            sums[0][r] = FMA(*(const vec *)panel, *(const vec *)panel, sums[0][r]);
    for (int r = 0; r < width / LANES; r++)
        *(vec *)(squares + r * LANES) += (sums[0][r] + sums[1][r]) + (sums[2][r] + sums[3][r]);
}

/* A panel of up to `width` rows, MR or a multiple of LANES, and their squares. */
static OUTSIDE void pack(
    double *restrict to, double *restrict squares, const float *restrict from, const int64_t *row, int64_t rows,
    const int64_t *term, int64_t kc, const int64_t *next, int width) {
#define PACK(w) fill(to, from, row, rows, term, kc, next, w), add_squares(squares, to, kc, w)
    if (width == NR) PACK(NR);
    else if (width == MR) PACK(MR);
    else if (width == 2 * LANES) PACK(2 * LANES);
    else PACK(LANES);
}

/* Adds the product of two panels to `rows` rows of `vectors` vectors of C, or begins them. */
static inline __attribute__((always_inline)) void multiply_tile(
    const double *a, const double *b, int64_t kc, double *c, int64_t row, int first, const int rows, const int vectors) {
    vec sum[MR][VECTORS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sum[r][v] = (vec){0};
    for (int r = 0; r < rows; r++) { /* the block lies in an outer cache: its lines come while the terms are added */
        __builtin_prefetch(c + r * row, 1);
        __builtin_prefetch(c + r * row + vectors * LANES - 1, 1);
    }
    for (int64_t k = 0; k < kc; k++, a += MR, b += vectors * LANES) {
        vec right[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            right[v] = *(const vec *)(b + v * LANES);
            KEEP(right[v]);
        }
#if defined(FMA_LANE)
#pragma GCC unroll 16
        for (int r = 0; r < rows; r += 2) {
            vec left = *(const vec *)(a + r);
            KEEP(left);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                sum[r][v] = FMA_LANE(left, 0, right[v], sum[r][v]);
                sum[r + 1][v] = FMA_LANE(left, 1, right[v], sum[r + 1][v]);
            }
        }
#else
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const vec left = SPREAD(a[r]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[r][v] = FMA(left, right[v], sum[r][v]);
        }
#endif
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            vec_unaligned *at = (vec_unaligned *)(c + r * row + v * LANES);
            *at = first ? sum[r][v] : *at + sum[r][v];
        }
}

/* A tile of up to MR rows and VECTORS vectors: what is left at the edges of a block, and small products, need not fill it. */
static OUTSIDE void multiply(
    const double *a, const double *b, int64_t kc, double *c, int64_t row, int first, int64_t rows, int vectors) {
#define EDGE(r, v) case (r) * 4 + (v): multiply_tile(a, b, kc, c, row, first, r, v); break;
#define EDGES(r) EDGE(r, 1) EDGE(r, 2) EDGE(r, 3)
    switch ((rows + 1) / 2 * 8 + vectors) {
        EDGES(2)
        EDGES(4)
#if MR == 8
        EDGES(6)
        EDGES(8)
#endif
    }
}
