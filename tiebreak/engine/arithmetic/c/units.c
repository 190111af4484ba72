/* Units of a step, one after the other, on one thread.
 *
 * SAFETY: `run_units` checks what a table says against the memory that it is given. The plans are those of the other
 * kernels, made from instructions of a validated program. */
#define _POSIX_C_SOURCE 199309L /* clock_gettime, in exact.h */
#include <stdint.h>
#include <string.h>

#include "contraction.h"
#include "exact.h"

/* Agreed with units.py by position. */
enum { CHAIN, MATRIX, SUMS, GREATEST, SCATTER, MOVE_ALL, KINDS };
enum { KIND, PLAN, TOTAL, NUMBER, COUNTER, TOUCHES, ENTRY_WORDS };
/* NUMBER: of a sum the bits of its result, of a chain its elements, of an extreme whether its place is wanted. */
static const int64_t LEAST[KINDS] = {[MATRIX] = 3, [SUMS] = 2, [GREATEST] = 2, [SCATTER] = 3, [MOVE_ALL] = 2};
enum { SLOT, FIRST, END, TOUCH_WORDS };
#define MOST 512 /* touches of a unit */

typedef uint32_t (*resolver)(int64_t function, uint32_t bits);

typedef struct {
    int (*contract)(const contraction *, int, progress *);
    int (*add_up)(const contraction *, int, progress *);
    int (*find_greatest)(const contraction *, int, progress *);
    int64_t (*chain_run)(const int64_t *, char *const *, int64_t, int64_t, resolver, int64_t *);
    int (*scatter_sum)(const scatter *, progress *);
    int (*move_all)(const move *, progress *);
    resolver exact;
    /* For each unit ENTRY_WORDS words, then TOUCH_WORDS for each piece of memory that it touches: number in `memory`, first
     * byte and end. */
    const int64_t *table;
    const void *const *plans;
    char *const *memory;
    const int64_t *bytes; /* of each piece */
    int64_t *counters;    /* of chains */
    int64_t *totals;      /* undecided, twice, wrong and nanoseconds of each kind of sums */
    int64_t words, plan_count, memory_count, byte_count, counter_count, total_count;
} unit_table;

enum { DONE, NO_MEMORY, NOT_A_TABLE };

static int run_unit(const unit_table *u, const int64_t *unit, char *const *pieces) {
    const void *plan = u->plans[unit[PLAN]];
    if (unit[KIND] == CHAIN)
        return u->chain_run(plan, pieces, 0, unit[NUMBER], u->exact, u->counters + unit[COUNTER]) == 0;
    const int64_t last = unit[TOUCHES] - 1;
    progress own = {.precision = unit[NUMBER], .result = (const float *)(const void *)pieces[last]};
    int done = 0;
    if (unit[KIND] == SCATTER) {
        scatter t = *(const scatter *)plan;
        t.source = (const float *)(const void *)pieces[0];
        t.index = (const int64_t *)(const void *)pieces[1];
        t.out = (float *)(void *)pieces[2];
        memset(t.out, 0, (size_t)(unit + ENTRY_WORDS + 2 * TOUCH_WORDS)[END]);
        done = u->scatter_sum(&t, &own);
    } else if (unit[KIND] == MOVE_ALL) {
        move t = *(const move *)plan;
        t.from = pieces[0];
        t.index = last > 1 ? (const int64_t *)(const void *)pieces[1] : 0;
        t.out = pieces[last];
        done = u->move_all(&t, &own);
    } else {
        contraction t = *(const contraction *)plan;
        t.a = (const float *)(const void *)pieces[0];
        t.b = last > 1 ? (const float *)(const void *)pieces[1] : 0;
        t.out = (float *)(void *)pieces[last];
        if (unit[KIND] == GREATEST) done = u->find_greatest(&t, (int)unit[NUMBER], &own);
        else done = (unit[KIND] == MATRIX ? u->contract : u->add_up)(&t, 0, &own);
    }
    int64_t *totals = u->totals + 4 * unit[TOTAL];
    totals[0] += own.undecided;
    totals[1] += own.twice;
    totals[2] += own.wrong;
    totals[3] += own.nanoseconds;
    return done;
}

static int is_number(int64_t number, int64_t count) { return number >= 0 && number < count; }

/* The words of the unit at a place of the table; 0 unless all that it says lies inside. */
static int64_t words_of(const unit_table *u, int64_t at) {
    const int64_t *unit = u->table + at, *touch = unit + ENTRY_WORDS, left = u->words - at - ENTRY_WORDS;
    if (left < 0 || !is_number(unit[KIND], KINDS) || !is_number(unit[PLAN], u->plan_count)) return 0;
    if (!is_number(unit[TOTAL], u->total_count) || !is_number(unit[COUNTER], u->counter_count)) return 0;
    if (unit[TOUCHES] < LEAST[unit[KIND]] || unit[TOUCHES] > (unit[KIND] == CHAIN ? MOST : 3)) return 0;
    if (TOUCH_WORDS * unit[TOUCHES] > left) return 0;
    for (int64_t k = 0; k < unit[TOUCHES]; k++, touch += TOUCH_WORDS) {
        if (!is_number(touch[SLOT], u->memory_count) || touch[FIRST] < 0 || touch[END] > u->bytes[touch[SLOT]]) return 0;
        if (!u->memory[touch[SLOT]] && touch[END]) return 0;
    }
    return ENTRY_WORDS + TOUCH_WORDS * unit[TOUCHES];
}

/* Executes all units of a table: DONE, or what kept it from that. */
int64_t run_units(const unit_table *u) {
    if (u->memory_count != u->byte_count) return NOT_A_TABLE;
    for (int64_t at = 0, words; at < u->words; at += words)
        if (!(words = words_of(u, at))) return NOT_A_TABLE;
    memset(u->counters, 0, 8 * (size_t)u->counter_count);
    memset(u->totals, 0, 32 * (size_t)u->total_count);
    for (int64_t at = 0; at < u->words; at += words_of(u, at)) {
        const int64_t *unit = u->table + at, *touch = unit + ENTRY_WORDS;
        char *pieces[MOST];
        for (int64_t k = 0; k < unit[TOUCHES]; k++) pieces[k] = u->memory[touch[TOUCH_WORDS * k + SLOT]];
        if (!run_unit(u, unit, pieces)) return NO_MEMORY;
    }
    return DONE;
}
