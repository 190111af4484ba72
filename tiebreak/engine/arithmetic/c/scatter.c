/* `scatter_sum` on CPUs, correctly rounded: the twin of tiebreak/engine/arithmetic/plain/scatter.py.
 *
 * A task is one keyed coordinate and some row elements. The sources of each key are first chained together; then each
 * output of a key is a sum over its chain, tested and settled like any other (exact.h).
 *
 * SAFETY: the caller has checked that every sum of table entries lies inside the operand and the result. Indices come
 * from data that nobody has checked: those outside the box are left out, as SPEC 4.3 says.
 */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "contraction.h"
#include "exact.h"

/* Sources chained by key: `first` by key, -1 for none; `next` by source; the keys that occur. */
typedef struct {
    int64_t *first, *next, *keys, *chain;
    int64_t count;
} chains;

static void link_sources(const scatter *t, int64_t group, chains *c) {
    const int64_t *index = t->index + t->index_group[group];
    c->count = 0;
    for (int64_t s = t->sources - 1; s >= 0; s--) {
        const int64_t key = index[t->index_place[s]];
        if (key < 0 || key >= t->box) continue;
        if (c->first[key] < 0) c->keys[c->count++] = key;
        c->next[s] = c->first[key];
        c->first[key] = s;
    }
}

/* Sums and sums of absolute terms of up to OPEN row elements over a chain of places. */
static void add_chain(
    const float *from, const int64_t *row, int64_t n, int unit, const int64_t *chain, int64_t length, double *restrict sum,
    double *restrict size) {
    for (int64_t j = 0; j < n; j++) sum[j] = size[j] = 0;
    for (int64_t s = 0; s < length; s++) {
        const float *x = from + chain[s];
        if (unit)
            for (int64_t j = 0; j < n; j++) {
                sum[j] += (double)x[row[0] + j];
                size[j] += fabs((double)x[row[0] + j]);
            }
        else
            for (int64_t j = 0; j < n; j++) {
                sum[j] += (double)x[row[j]];
                size[j] += fabs((double)x[row[j]]);
            }
    }
}

/* The outputs of one key, row elements [w0, w1). */
static void add_key(
    const scatter *t, int64_t group, int64_t key, int64_t w0, int64_t w1, const int64_t *chain, int64_t length,
    progress *shared) {
    const float *from = t->source + t->source_group[group];
    float *out = t->out + t->out_group[group] + t->out_match[key];
    /* As `ziv.coefficient`. */
    const double coefficient = t->coefficient > 0 ? t->coefficient : (double)(length + 3) * 0x1.0001p-53;
    const int precision = (int)shared->precision;
    if (length == 1) { /* nearly always, where windows do not overlap: exact, and NaN unless it is finite */
        for (int64_t w = w0; w < w1; w++) {
            const double x = (double)from[chain[0] + t->source_row[w]];
            out[t->out_row[w]] = round_to(x, precision) + (float)(x - x);
        }
        return;
    }
    const terms places = {chain, 0, length, 1};
    double sum[OPEN], size[OPEN];
    float high[OPEN];
    element open[OPEN];
    for (int64_t w = w0; w < w1; w += OPEN) {
        const int64_t n = w1 - w < OPEN ? w1 - w : OPEN, *row = t->source_row + w;
        int64_t waiting = 0;
        add_chain(from, row, n, consecutive(row, n), chain, length, sum, size);
        const int opens = test_row(sum, coefficient, size, n, high, precision);
        for (int64_t j = 0; j < n; j++) out[t->out_row[w + j]] = high[j];
        for (int64_t j = 0; opens && j < n; j++)
            if (is_open(sum[j], coefficient * size[j], precision))
                open[waiting++] = (element){from + row[j], 0, out + t->out_row[w + j], sum[j], coefficient * size[j]};
        settle(&places, open, waiting, shared);
    }
}

/* Takes tasks until none is left; any number of threads may call it with the same arguments. 0 if memory ran out. */
int scatter_sum(const scatter *t, progress *shared) {
    chains c = {.first = malloc(8 * (size_t)t->box), .next = malloc(24 * (size_t)t->sources)};
    if (!c.first || !c.next) {
        free(c.first);
        free(c.next);
        return 0;
    }
    c.keys = c.next + t->sources;
    c.chain = c.keys + t->sources;
    for (int64_t key = 0; key < t->box; key++) c.first[key] = -1;
    const int64_t blocks = (t->rows + t->block - 1) / t->block;
    for (int64_t task; (task = shared->next++) < t->groups * blocks;) {
        const int64_t group = task / blocks, w0 = task % blocks * t->block;
        link_sources(t, group, &c);
        for (int64_t k = 0; k < c.count; k++) {
            int64_t length = 0;
            for (int64_t s = c.first[c.keys[k]]; s >= 0; s = c.next[s]) c.chain[length++] = t->source_place[s];
            add_key(t, group, c.keys[k], w0, w0 + t->block < t->rows ? w0 + t->block : t->rows, c.chain, length, shared);
            c.first[c.keys[k]] = -1;
        }
    }
    free(c.first);
    free(c.next);
    return 1;
}
