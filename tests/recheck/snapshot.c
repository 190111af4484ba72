#include "protocol.h"

#include <string.h>

enum { RUN, STEPS, VALUES, CHUNKS, TERMS };
enum { DESCEND = 1, OPEN_STEPS = 3, OPEN_VALUES, OPEN_TENSOR, OPEN_TERMS = 8, PROVE };
/* Fields by their offsets. */
enum { PHASE = 0, LEVEL = 1, HEIGHT = 2, FRESH = 3, DTYPE = 4, SUMMATION = 5, LAST_CHUNK = 6, POSITION = 8, ELEMENT = 16,
       LEAVES = 24, AT_STEP = 32, INSTRUCTION = 40, TERM_LEAVES = 44, NODE = 48, OPENED = 80, LOG = 112 };

typedef struct {
    uint64_t phase, level, height, fresh, dtype, summation, last_chunk, position, element, leaves, step, instruction, terms;
    Wide node, opened, log;
} Snapshot;

static Snapshot snapshot_at(Bytes in) {
    if (in.left != SNAPSHOT_BYTES) refuse("expected a snapshot of %d bytes, got %zu", SNAPSHOT_BYTES, in.left);
    Snapshot s;
    uint64_t *fields[] = {&s.phase, &s.level, &s.height, &s.fresh, &s.dtype, &s.summation, &s.last_chunk, &s.position,
                          &s.element, &s.leaves, &s.step, &s.instruction, &s.terms};
    static const size_t WIDTHS[] = {1, 1, 1, 1, 1, 1, 2, 8, 8, 8, 8, 4, 4};
    for (size_t k = 0; k < 13; k++) *fields[k] = number(&in, WIDTHS[k]);
    s.node = wide_at(cut(&in, 32)), s.opened = wide_at(cut(&in, 32)), s.log = wide_at(cut(&in, 32));
    return s;
}

static int outside_table(const Snapshot *s) {
    if (s->phase < 1 || s->phase > PROVE) return PHASE;
    if (s->level > TERMS) return LEVEL;
    if (s->height > 64) return HEIGHT;
    if (s->fresh > 1) return FRESH;
    return s->element >> 40 ? ELEMENT : IN_PLACE;
}

/* Rules 1 and 2. */
static int outside_level(const Snapshot *s) {
    static const unsigned PHASES[] = {0x00e, 0x016, 0x226, 0x3c6, 0x206};
    bool leaf = s->phase > 2;
    if (!(PHASES[s->level] >> s->phase & 1)) return LEVEL;
    if (s->level > VALUES) return IN_PLACE;
    if (s->dtype) return DTYPE;
    if (s->last_chunk) return LAST_CHUNK;
    if (s->terms) return TERM_LEAVES;
    if (s->summation) return SUMMATION;
    if (s->instruction != (s->level == VALUES && leaf ? s->position : 0)) return INSTRUCTION;
    if (s->element) return ELEMENT;
    return s->level == RUN && s->fresh && compare(s->node, s->opened) ? NODE : IN_PLACE;
}

/* Rule 3. */
static int outside_tensor(const Snapshot *s, const Ground *g) {
    bool selected = s->phase == OPEN_TERMS || s->phase == PROVE || s->level == TERMS;
    unsigned kind = s->summation & 15, logged = s->summation >> 4 & 3, code = (unsigned)s->summation >> 6;
    if (s->level <= VALUES) return IN_PLACE;
    if (s->dtype > BOOL) return DTYPE;
    uint64_t size = SIZE_OF[s->dtype];
    if (s->last_chunk < size || s->last_chunk > CHUNK || s->last_chunk % size) return LAST_CHUNK;
    if (s->terms == 1 || s->terms > 1 << 30) return TERM_LEAVES;
    if (s->terms ? s->phase == PROVE && s->level == CHUNKS : s->phase == OPEN_TERMS || s->level == TERMS) return TERM_LEAVES;
    if (kind > 7 || (kind == 0) != (s->terms == 0) || code > 2) return SUMMATION;
    if ((logged && (!g->policy || s->dtype != F32)) || (code && (!logged || !selected))) return SUMMATION;
    if (s->instruction >= g->body) return INSTRUCTION;
    if (s->leaves < 1 || s->leaves > size << 31) return LEAVES;
    if (!selected) return s->element ? ELEMENT : IN_PLACE;
    if (s->element >= ((s->leaves - 1) * CHUNK + s->last_chunk) / size) return ELEMENT;
    if (s->level == TERMS) return IN_PLACE;
    if (s->element * size / CHUNK != s->position) return ELEMENT;
    return bits_of(s->node) > (int)(8 * size) ? NODE : IN_PLACE;
}

/* Rule 4. */
static int outside_segment(const Snapshot *s, const Ground *g) {
    if (s->level == RUN && s->phase != OPEN_STEPS) return s->step ? AT_STEP : s->leaves != g->count ? LEAVES : IN_PLACE;
    if (s->step < 1 || s->step > g->steps) return AT_STEP;
    uint64_t checkpoint = (s->step - 1) / g->interval, first = checkpoint * g->interval + 1, rest = g->steps - first + 1;
    uint64_t length = rest < g->interval ? rest : g->interval;
    if (checkpoint >= g->count) return AT_STEP;
    if (s->level <= STEPS && s->step != first + (s->phase == OPEN_VALUES ? s->position : 0)) return AT_STEP;
    if (s->level == RUN && s->position != checkpoint) return AT_STEP;
    if (s->level <= VALUES && s->leaves != length) return LEAVES;
    return s->level == RUN && length == 1 ? LEAVES : IN_PLACE;
}

/* Rules 5 and 6. */
static int outside_tree(const Snapshot *s, const Ground *g) {
    uint64_t checkpoints = (g->steps - 1) / g->interval + 1, d = g->depth + 1;
    uint64_t p = s->position, half = (uint64_t)1 << g->depth;
    uint64_t leaves = s->level == TERMS ? s->terms : s->leaves;
    bool leaf = s->phase > 2, values = s->level == VALUES;
    if (!values) d = depth_of(s->level == RUN ? checkpoints : leaves);
    if (leaf ? s->height : s->height < 1 || s->height > d || (d - s->height) % g->levels) return HEIGHT;
    if (s->fresh != (s->height == d) || (s->fresh && s->phase == DESCEND && s->level != RUN)) return FRESH;
    if (d - s->height < 64 && p >> (d - s->height)) return POSITION;
    if (leaf && (values ? p >= half + g->states || (p >= g->body && p < half) : p >= leaves)) return POSITION;
    if (s->phase == OPEN_TENSOR && p >= half) return POSITION;
    bool none = !g->policy || s->level == RUN || (s->level == STEPS && s->leaves == 1);
    return none && !is_zero(s->log) ? LOG : IN_PLACE;
}

bool is_snapshot(Bytes in) {
    if (in.left != SNAPSHOT_BYTES) return false;
    Snapshot s = snapshot_at(in);
    return outside_table(&s) == IN_PLACE;
}

int misplaced(Bytes in, const Ground *g) {
    Snapshot s = snapshot_at(in);
    int found = outside_table(&s);
    if (found == IN_PLACE) found = outside_level(&s);
    if (found == IN_PLACE) found = outside_tensor(&s, g);
    if (found == IN_PLACE) found = outside_segment(&s, g);
    return found == IN_PLACE ? outside_tree(&s, g) : found;
}
