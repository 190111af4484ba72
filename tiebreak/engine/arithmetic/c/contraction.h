/* Instructions as kernels compute them: plans of sums.c, scatter.c and moves.c. */
#pragma once

#include <stdint.h>

/* One instruction. An output is (batch, m, n); without m and n, a batch of sums. The terms may be cut into `parts`:
 * each leaves its FP64 sums in memory, (part, batch, m, n), and a call to FINISH adds them. */
typedef struct {
    int64_t batches, m, n, k;
    int64_t block_m, block_n, parts;
    int64_t kc, group; /* terms of a panel, at most KC; panels whose results are added before they join the others */
    /* Without m and n the tables hold only the first of each run: of terms that follow each other in both operands, and
     * of outputs from one to the next of which the operands move by these steps, 0 or 1. Output o is at out[o]. */
    int64_t run_k, run_batch, a_step, b_step;
    const int64_t *a_batch, *a_m, *a_k;
    const int64_t *b_batch, *b_n, *b_k;
    const int64_t *out_batch, *out_m, *out_n;
    const float *a, *b; /* b: null for a plain sum */
    float *out;
    double *sums, *sizes; /* of parts: C, and squared norms (part, batch, m + n) or sums of absolute terms */
    double coefficient;   /* of the error bound */
} contraction;

/* A scatter sum. */
typedef struct {
    int64_t groups, sources, rows, box; /* keyed coordinates; sources of each; row elements; outputs that a key addresses */
    int64_t block;                      /* row elements of a task */
    const int64_t *source_group, *source_place, *source_row;
    const int64_t *index_group, *index_place;
    const int64_t *out_group, *out_match, *out_row;
    const float *source;
    const int64_t *index;
    float *out; /* zeros where no source goes */
    double coefficient; /* of the error of several terms; 0: the proven one */
} scatter;

#define MAX_RANK 8

/* out[c] = from[c], for all coordinates c of a box; with an index, from[c] + index[c] * stride: where the index is not
 * in 0 ... bound - 1, `fill`. Strides are in elements. */
typedef struct {
    int64_t size, rank, rows, block; /* bytes of an element; rows of the last dim; how many of them are a task */
    int64_t sizes[MAX_RANK], out_steps[MAX_RANK], from_steps[MAX_RANK], index_steps[MAX_RANK];
    int64_t out_first, from_first, index_first;
    int64_t bound, stride;
    uint64_t fill;
    const int64_t *index; /* null: none */
    const char *from;
    char *out;
} move;
