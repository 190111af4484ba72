/* Units of a step, one after the other. One thread leads; others help with what takes long.
 *
 * SAFETY: `run_units` checks what a table says against the memory that it is given. The plans are those of the other
 * kernels, made from instructions of a validated program. */
#define _POSIX_C_SOURCE 199309L /* clock_gettime, in exact.h */
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "contraction.h"
#include "exact.h"

/* Agreed with units.py by position. */
enum { CHAIN, MATRIX, SUMS, GREATEST, SCATTER, MOVE_ALL, KINDS };
enum { KIND, PLAN, TOTAL, NUMBER, COUNTER, SHARED, TOUCHES, ENTRY_WORDS };
/* NUMBER: of a sum the bits of its result, of a chain its elements, of an extreme whether its place is wanted.
 * SHARED: whether helpers take part. */
static const int64_t LEAST[KINDS] = {[MATRIX] = 3, [SUMS] = 2, [GREATEST] = 2, [SCATTER] = 3, [MOVE_ALL] = 2};
enum { SLOT, FIRST, END, TOUCH_WORDS };
#define MOST 512 /* touches of a unit */

typedef uint32_t (*resolver)(int64_t function, uint32_t bits);

/* All zero before a run. Nobody waits for a helper that has not come: the leader opens a unit, works on it, closes it and
 * waits for those who are at work. A helper says that it is, and then looks whether the unit is still open. */
typedef struct {
    _Atomic int64_t open; /* place in the table, plus one; 0: none */
    _Atomic int64_t active, done, failed;
    progress unit; /* of the unit that is being computed */
} crew;

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
    int64_t *counters;    /* of chains: of the leader, then of each helper */
    int64_t *totals;      /* undecided, twice, wrong and nanoseconds of each kind of sums */
    crew *together;
    int64_t words, plan_count, memory_count, byte_count, workers, total_count, crew_words;
    int64_t counter_count; /* of each worker */
} unit_table;

enum { DONE, NO_MEMORY, NOT_A_TABLE };

#define STEP 32768 /* elements of a chain that a worker takes at a time: whole tiles */

/* Takes tasks of a unit until none is left; 0 if memory ran out. */
static int work_on(const unit_table *u, const int64_t *unit, int64_t worker) {
    const void *plan = u->plans[unit[PLAN]];
    const int64_t last = unit[TOUCHES] - 1, *touch = unit + ENTRY_WORDS;
    progress *shared = &u->together->unit;
    char *pieces[MOST];
    for (int64_t k = 0; k <= last; k++) pieces[k] = u->memory[touch[TOUCH_WORDS * k + SLOT]];
    if (unit[KIND] == CHAIN) {
        const int64_t all = unit[NUMBER], step = unit[SHARED] ? STEP : all;
        int64_t *counters = u->counters + worker * u->counter_count + unit[COUNTER];
        for (int64_t begin; (begin = shared->next++ * step) < all;)
            if (u->chain_run(plan, pieces, begin, all - begin < step ? all : begin + step, u->exact, counters)) return 0;
        return 1;
    }
    if (unit[KIND] == SCATTER) {
        scatter t = *(const scatter *)plan;
        t.source = (const float *)(const void *)pieces[0];
        t.index = (const int64_t *)(const void *)pieces[1];
        t.out = (float *)(void *)pieces[2];
        return u->scatter_sum(&t, shared);
    }
    if (unit[KIND] == MOVE_ALL) {
        move t = *(const move *)plan;
        t.from = pieces[0];
        t.index = last > 1 ? (const int64_t *)(const void *)pieces[1] : 0;
        t.out = pieces[last];
        return u->move_all(&t, shared);
    }
    contraction t = *(const contraction *)plan;
    t.a = (const float *)(const void *)pieces[0];
    t.b = last > 1 ? (const float *)(const void *)pieces[1] : 0;
    t.out = (float *)(void *)pieces[last];
    if (unit[KIND] == GREATEST) return u->find_greatest(&t, (int)unit[NUMBER], shared);
    return (unit[KIND] == MATRIX ? u->contract : u->add_up)(&t, 0, shared);
}

static void wait_a_little(void) {
    for (int k = 0; k < 64; k++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
    sched_yield();
}

/* Leads one unit, and counts. */
static int run_unit(const unit_table *u, int64_t at) {
    const int64_t *unit = u->table + at, *result = unit + ENTRY_WORDS + TOUCH_WORDS * (unit[TOUCHES] - 1);
    crew *all = u->together;
    memset((void *)&all->unit, 0, sizeof all->unit);
    all->unit.precision = unit[NUMBER];
    if (unit[TOUCHES]) all->unit.result = (const float *)(const void *)u->memory[result[SLOT]];
    if (unit[KIND] == SCATTER) memset(u->memory[result[SLOT]], 0, (size_t)result[END]);
    const int shared = unit[SHARED] && u->workers > 1;
    if (shared) all->open = at + 1;
    const int done = work_on(u, unit, 0);
    all->open = 0;
    while (all->active) wait_a_little();
    int64_t *totals = u->totals + 4 * unit[TOTAL];
    totals[0] += all->unit.undecided;
    totals[1] += all->unit.twice;
    totals[2] += all->unit.wrong;
    totals[3] += all->unit.nanoseconds / (shared ? u->workers : 1);
    return done && !all->failed;
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
    int64_t found = u->memory_count != u->byte_count || u->workers < 1 || u->crew_words * 8 < (int64_t)sizeof(crew);
    if (found) return NOT_A_TABLE;
    for (int64_t at = 0, words; at < u->words && !found; at += words)
        if (!(words = words_of(u, at))) found = NOT_A_TABLE;
    memset(u->counters, 0, 8 * (size_t)(u->workers * u->counter_count));
    memset(u->totals, 0, 32 * (size_t)u->total_count);
    for (int64_t at = 0; at < u->words && !found; at += words_of(u, at))
        if (!run_unit(u, at)) found = NO_MEMORY;
    u->together->done = 1;
    return found;
}

#define SPINS 256 /* some 0.5 ms, after which a helper sleeps: a leader alone at work should not cost several cores */
#define SLEEPS 10000

/* Helps whoever runs the table until that is done, or nothing has come for a second or more. */
void help_units(const unit_table *u, int64_t worker) {
    const struct timespec short_while = {.tv_nsec = 100000};
    crew *all = u->together;
    if (worker < 1 || worker >= u->workers) return;
    for (int64_t last = 0, waited = 0; !all->done && waited < SPINS + SLEEPS;) {
        const int64_t at = all->open;
        if (!at || at == last) {
            if (waited++ < SPINS) wait_a_little();
            else nanosleep(&short_while, 0);
            continue;
        }
        all->active++;
        if (all->open == at) {
            if (!work_on(u, u->table + at - 1, worker)) all->failed = 1;
            last = at;
            waited = 0;
        }
        all->active--;
    }
}
