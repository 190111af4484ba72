/* Panels of a matrix product: rows and columns as FP64, in the order in which the innermost loop reads them. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "exact.h"
#include "lanes.h"

#define VECTORS 3
#define NR (LANES * VECTORS)

typedef double vec_unaligned __attribute__((vector_size(8 * LANES), aligned(8)));
typedef float half_unaligned __attribute__((vector_size(4 * LANES), aligned(4)));
typedef double quad __attribute__((vector_size(32)));
typedef float quad_of_f32 __attribute__((vector_size(16), aligned(4)));

/* Four terms of four rows, turned: to[k * width + r] = start[r][term + k]. */
static inline __attribute__((always_inline)) void turn(double *to, const float *const *start, int64_t term, const int width) {
    quad x[4];
    for (int r = 0; r < 4; r++) x[r] = __builtin_convertvector(*(const quad_of_f32 *)(start[r] + term), quad);
    const quad a = __builtin_shufflevector(x[0], x[1], 0, 4, 2, 6), b = __builtin_shufflevector(x[0], x[1], 1, 5, 3, 7);
    const quad c = __builtin_shufflevector(x[2], x[3], 0, 4, 2, 6), d = __builtin_shufflevector(x[2], x[3], 1, 5, 3, 7);
    const quad turned[4] = {
        __builtin_shufflevector(a, c, 0, 1, 4, 5), __builtin_shufflevector(b, d, 0, 1, 4, 5),
        __builtin_shufflevector(a, c, 2, 3, 6, 7), __builtin_shufflevector(b, d, 2, 3, 6, 7)};
    for (int i = 0; i < 4; i++) memcpy(to + i * width, &turned[i], sizeof(quad));
}

/* How many times four rows lie side by side. */
static inline int64_t fours(const int64_t *row, int64_t width) {
    int64_t found = 0;
    for (int64_t r = 0; r + 4 <= width; r += 4) found += consecutive(row + r, 4);
    return found;
}

/* `width` rows (offsets `row`, fewer than `width` if `rows` says so: zeros then) times `kc` terms, term by term. */
static inline __attribute__((always_inline)) void pack(
    double *restrict to, const float *restrict from, const int64_t *row, int64_t rows, const int64_t *term, int64_t kc,
    const int width) {
    if (rows == width && consecutive(row, width)) {
        for (int64_t k = 0; k < kc; k++, to += width) {
            const float *at = from + row[0] + term[k];
            for (int r = 0; r < width; r += LANES)
                *(vec *)(to + r) = __builtin_convertvector(*(const half_unaligned *)(at + r), vec);
        }
        return;
    }
    if (rows == width && width % 4 == 0 && 8 * fours(row, width) >= width) { /* rows of an image end in between */
        for (int r = 0; r < width; r += 4, to += 4)
            if (consecutive(row + r, 4))
                for (int64_t k = 0; k < kc; k++) {
                    const quad x = __builtin_convertvector(*(const quad_of_f32 *)(from + row[r] + term[k]), quad);
                    memcpy(to + k * width, &x, sizeof(quad));
                }
            else
                for (int64_t k = 0; k < kc; k++)
                    for (int i = 0; i < 4; i++) to[k * width + i] = from[row[r + i] + term[k]];
        return;
    }
    const float *start[width];
    for (int r = 0; r < width; r++) start[r] = from + row[r < rows ? r : 0];
    for (int64_t k = 0; k < kc;)
        if (width % 4 == 0 && k + 4 <= kc && consecutive(term + k, 4)) { /* rows of an image end, and orders are random */
            for (int r = 0; r < width; r += 4) turn(to + k * width + r, start + r, term[k], width);
            k += 4;
        } else {
            for (int r = 0; r < width; r++) to[k * width + r] = start[r][term[k]];
            k++;
        }
    for (int64_t k = 0; rows < width && k < kc; k++)
        for (int64_t r = rows; r < width; r++) to[k * width + r] = 0.0;
}

/* Adds the squares of a panel's rows. */
static inline __attribute__((always_inline)) void add_squares(
    double *squares, const double *panel, int64_t kc, const int width) {
    vec sums[width / LANES];
    for (int r = 0; r < width / LANES; r++) sums[r] = *(vec *)(squares + r * LANES);
    for (int64_t k = 0; k < kc; k++, panel += width)
        for (int r = 0; r < width / LANES; r++) {
            const vec x = *(const vec *)(panel + r * LANES);
            sums[r] += x * x;
        }
    for (int r = 0; r < width / LANES; r++) *(vec *)(squares + r * LANES) = sums[r];
}

static void multiply(const double *a, const double *b, int64_t kc, double *c, int64_t row, int first) {
    vec sum[MR][VECTORS];
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sum[r][v] = (vec){0};
    for (int r = 0; r < MR; r++) { /* the block lies in an outer cache: its lines come while the terms are added */
        __builtin_prefetch(c + r * row, 1);
        __builtin_prefetch(c + r * row + NR - 1, 1);
    }
    for (int64_t k = 0; k < kc; k++, a += MR, b += NR) {
        vec right[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            right[v] = *(const vec *)(b + v * LANES);
            KEEP(right[v]);
        }
#if defined(FMA_LANE)
#pragma GCC unroll 16
        for (int r = 0; r < MR; r += 2) {
            vec left = *(const vec *)(a + r);
            KEEP(left);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                sum[r][v] = FMA_LANE(left, 0, right[v], sum[r][v]);
                sum[r + 1][v] = FMA_LANE(left, 1, right[v], sum[r + 1][v]);
            }
        }
#else
#pragma GCC unroll 16
        for (int r = 0; r < MR; r++) {
            const vec left = SPREAD(a[r]);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sum[r][v] = FMA(left, right[v], sum[r][v]);
        }
#endif
    }
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            vec_unaligned *at = (vec_unaligned *)(c + r * row + v * LANES);
            *at = first ? sum[r][v] : *at + sum[r][v];
        }
}
