/* What moves elements without computing: gathers and windows.
 *
 * SAFETY: the caller has checked that every place lies inside the operand and the result. Indices come from data that nobody
 * has checked: those outside the bound are answered by the fill, as SPEC 4.3 says. */
#define _POSIX_C_SOURCE 199309L /* clock_gettime, in exact.h */
#include <stdint.h>
#include <string.h>

#include "contraction.h"
#include "exact.h"

typedef uint16_t u16 __attribute__((may_alias));
typedef uint32_t u32 __attribute__((may_alias, aligned(2)));
typedef uint64_t u64 __attribute__((may_alias, aligned(4))); /* also two f32 side by side */

static inline int is_inside(int64_t j, int64_t bound) { return (uint64_t)j < (uint64_t)bound; }

/* One row, from these places on. */
#define MOVE(NAME, T) \
    static void NAME(const move *t, int64_t out, int64_t from, int64_t index) { \
        const int64_t last = t->rank - 1, n = t->sizes[last], step = t->from_steps[last], out_step = t->out_steps[last]; \
        T *restrict to = (T *)t->out + out; \
        const T *restrict all = (const T *)t->from; \
        const int64_t index_step = t->index ? t->index_steps[last] : 0; \
        if (index_step) { \
            for (int64_t i = 0; i < n; i++) { \
                const int64_t j = t->index[index + i * index_step]; \
                to[i * out_step] = is_inside(j, t->bound) ? all[from + i * step + j * t->stride] : (T)t->fill; \
            } \
            return; \
        } \
        if (t->index && !is_inside(t->index[index], t->bound)) { \
            for (int64_t i = 0; i < n; i++) to[i * out_step] = (T)t->fill; \
            return; \
        } \
        all += from + (t->index ? t->index[index] * t->stride : 0); \
        if (step == 1 && out_step == 1) memcpy(to, all, (size_t)n * sizeof(T)); \
        else for (int64_t i = 0; i < n; i++) to[i * out_step] = all[i * step]; \
    }
MOVE(move_1, uint8_t)
MOVE(move_2, u16)
MOVE(move_4, u32)
MOVE(move_8, u64)

/* Takes tasks until none is left; any number of threads may call it with the same arguments. */
int move_all(const move *t, progress *shared) {
    for (int64_t task; (task = shared->next++) * t->block < t->rows;) {
        int64_t at[MAX_RANK], out = t->out_first, from = t->from_first, index = t->index_first, row = task * t->block;
        const int64_t end = row + t->block < t->rows ? row + t->block : t->rows;
        for (int64_t d = t->rank - 2, rest = row; d >= 0; d--) {
            at[d] = rest % t->sizes[d];
            rest /= t->sizes[d];
            out += at[d] * t->out_steps[d];
            from += at[d] * t->from_steps[d];
            index += at[d] * t->index_steps[d];
        }
        for (; row < end; row++) {
            switch (t->size) {
            case 1: move_1(t, out, from, index); break;
            case 2: move_2(t, out, from, index); break;
            case 4: move_4(t, out, from, index); break;
            case 8: move_8(t, out, from, index); break;
            }
            for (int64_t d = t->rank - 2; d >= 0; d--) {
                const int64_t back = at[d] + 1 == t->sizes[d] ? at[d] : -1;
                at[d] -= back;
                out -= back * t->out_steps[d];
                from -= back * t->from_steps[d];
                index -= back * t->index_steps[d];
                if (back < 0) break;
            }
        }
    }
    return 1;
}
