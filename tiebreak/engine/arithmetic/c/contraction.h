/* Sums by tables of places, as sums.c and scatter.c compute them. */
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
