#include "recheck.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t load(const Value *from, uint64_t at) {
    size_t size = SIZE_OF[from->dtype];
    uint64_t word = 0;
    if (at >= from->elements) abort(); /* a map whose bounds were checked never gets here */
    for (size_t k = size; k-- > 0;) word = word << 8 | from->data[at * size + k];
    return from->dtype == F32 ? canonical((uint32_t)word) : word;
}

static void store(uint8_t dtype, uint8_t *data, uint64_t at, uint64_t word) {
    for (size_t k = 0; k < SIZE_OF[dtype]; k++) data[at * SIZE_OF[dtype] + k] = (uint8_t)(word >> 8 * k);
}

/* Row-major coordinates of a position. */
static void coordinates(const uint64_t *dims, size_t rank, uint64_t position, uint64_t *c) {
    for (size_t d = rank; d-- > 0; position /= dims[d]) c[d] = position % dims[d];
}

/* The affine map modulo 2^64, which is exact where its result is inside a tensor. */
static uint64_t dot(uint64_t from, const int64_t *strides, size_t rank, const uint64_t *c) {
    for (size_t d = 0; d < rank; d++) from += c[d] * (uint64_t)strides[d];
    return from;
}

static uint64_t read(const Instruction *i, size_t k, const Value *operands, const uint64_t *c, uint64_t further) {
    const Operand *operand = &i->operand[k];
    return load(&operands[k], dot((uint64_t)operand->offset + further, operand->stride, (size_t)i->rank + i->reduction, c));
}

bool accumulates(const Instruction *i) { return i->opcode == REDUCE || i->opcode == SCATTER; }

static int accumulator_kind(const Instruction *i, uint8_t source) {
    if (i->opcode == SCATTER) return i->function ? SUM_BF16 : SUM;
    int kinds[] = {source == F32 ? SUM : SUM_I64, source == F32 ? MAX : MAX_I64, source == F32 ? ARGMAX : ARGMAX_I64, SUM_BF16};
    return kinds[i->function];
}

Accumulator accumulate(const Instruction *i, const Value *operands, uint64_t position, uint64_t terms) {
    uint64_t c[2 * MAX_RANK] = {0};
    coordinates(i->dims, i->rank, position, c);
    Accumulator held = start(accumulator_kind(i, operands[0].dtype));
    uint64_t wanted = dot(0, i->match, i->rank, c);
    for (uint64_t term = 0; term < terms; term++) {
        coordinates(i->dims + i->rank, i->reduction, term, c + i->rank);
        bool matches = i->opcode == REDUCE || read(i, 1, operands, c, 0) == wanted;
        size_t count = i->opcode == REDUCE ? i->operands : 1;
        uint64_t factors[2] = {0};
        for (size_t k = 0; matches && k < count; k++) factors[k] = read(i, k, operands, c, 0);
        if (matches) add_term(&held, factors, count, (int64_t)term);
    }
    return held;
}

static uint64_t look_through(const Instruction *i, const Value *operands, const uint64_t *c) {
    uint64_t inside[MAX_RANK];
    for (size_t d = 0; d < i->rank; d++) {
        uint64_t from = c[d] - (uint64_t)i->low[d];
        if (c[d] < (uint64_t)i->low[d] || c[d] >= (uint64_t)i->high[d] || from % i->every[d])
            return i->function ? read(i, 1, operands, c, 0) : i->bits;
        inside[d] = from / i->every[d];
    }
    return read(i, 0, operands, inside, 0);
}

uint64_t element(const Instruction *i, const Value *operands, uint64_t position, uint64_t step, Rounding rounding) {
    uint64_t c[2 * MAX_RANK] = {0}, words[3] = {0};
    uint8_t types[3] = {0};
    coordinates(i->dims, i->rank, position, c);
    if (accumulates(i)) {
        Accumulator held = accumulate(i, operands, position, i->terms);
        return finish(&held, rounding);
    }
    switch (i->opcode) {
    case SOURCE: return i->function == CONST ? i->bits : step - 1;
    case GATHER: {
        uint64_t j = read(i, 1, operands, c, 0);
        if (j >= i->bits) return i->dtype == F32 ? NAN_BITS : 0; /* a negative one is above every bound */
        return read(i, 0, operands, c, j * (uint64_t)i->shift);
    }
    case WINDOW: return look_through(i, operands, c);
    case IOTA: return dot((uint64_t)i->shift, i->match, i->rank, c);
    default: break;
    }
    for (size_t k = 0; k < i->operands; k++) words[k] = read(i, k, operands, c, 0), types[k] = operands[k].dtype;
    if (i->opcode == RANDOM) return random_number(words[0], words[1], i->slot, position);
    if (i->opcode == SHUFFLE) return (uint64_t)shuffle((int64_t)words[0], words[1], words[2], i->bits, i->slot);
    return i->opcode == MAP ? map(i->function, types, i->dtype, words, rounding.precision) : words[0];
}

uint8_t *execute(const Instruction *i, const Value *operands, uint64_t step, Rounding rounding, const uint8_t *codes) {
    uint8_t *result = take(i->elements, SIZE_OF[i->dtype]);
    for (uint64_t at = 0; at < i->elements; at++) {
        rounding.code = codes ? codes[at] : 0;
        store(i->dtype, result, at, element(i, operands, at, step, rounding));
    }
    return result;
}

Bytes named_tensor(const Instruction *i, Bytes data) {
    uint8_t *own = take(data.left, 1);
    for (uint64_t at = 0; at < i->elements; at++) {
        uint64_t word = load(&(Value){i->dtype, i->elements, data.at}, at);
        if (i->dtype == BOOL && word > 1) refuse("expected a bool of 0 or 1, got %d", (int)word);
        store(i->dtype, own, at, word);
    }
    return (Bytes){own, data.left};
}

static Bytes find(const Tensors *tensors, const Instruction *i) {
    for (size_t k = 0; k < tensors->count; k++) {
        if (!same(tensors->names[k], i->name)) continue;
        Bytes data = tensors->data[k];
        if (data.left != i->elements * SIZE_OF[i->dtype]) break;
        return named_tensor(i, data);
    }
    refuse("expected a tensor %.*s of %" PRIu64 " elements, got none", (int)i->name.left, (const char *)i->name.at, i->elements);
}

Digest id_of(const Instruction *i, Bytes data) { return tensor_id(i->dtype, i->rank, i->dims, chunk_root(data)); }

static Digest entries_root(const char *tag, const Instruction *const *entries, const Bytes *data, uint32_t count) {
    size_t before = mark();
    if (!count) return empty();
    Digest *leaves = take(count, sizeof *leaves);
    for (uint32_t k = 0; k < count; k++) leaves[k] = entry_leaf(tag, entries[k]->name, id_of(entries[k], data[k]));
    Digest root = tree(leaves, count);
    release(before);
    return root;
}

/* What a run holds between steps. */
typedef struct {
    const Program *program;
    const Instruction **commits;
    Bytes *state, *data;
    Value *values;
    Digest *ids;
    Job job;
} Run;

void print_digest(const char *before, Digest digest, const char *after) {
    printf("%s", before);
    for (int k = 0; k < 32; k++) printf("%02x", digest.b[k]);
    printf("%s", after);
}

/* How a job rounds an instruction, but for the codes of a log. */
static Rounding rounding_of(const Instruction *i, Job job) {
    int kind = i->opcode == SCATTER ? 2 : i->operands - 1;
    return (Rounding){.precision = job.precision, .tolerance = is_logged(i) ? job.tolerances >> 8 * kind & 255 : 0};
}

/* One step along its log; the state's bytes are replaced in place. Its record. */
static Digest take_step(Run *r, uint64_t step, Log log, Digest log_root) {
    const Program *p = r->program;
    size_t before = mark();
    for (uint32_t at = 0; at < p->body; at++) {
        const Instruction *i = &p->code[at];
        Value operands[3];
        for (size_t k = 0; k < i->operands; k++) operands[k] = r->values[i->operand[k].value];
        bool named = i->opcode == SOURCE && i->function >= STATE;
        const uint8_t *codes = log.codes ? log.codes[at] : NULL;
        const Bytes *from[] = {[STATE] = r->state, [DATA] = r->data, [LATE] = log.late};
        const uint8_t *data = named ? from[i->function][i->slot].at
                                    : execute(i, operands, step, rounding_of(i, r->job), codes);
        r->values[at] = (Value){i->dtype, i->elements, data};
        r->ids[at] = id_of(i, (Bytes){data, i->elements * SIZE_OF[i->dtype]});
    }
    uint8_t **next = take(p->states, sizeof *next);
    for (uint32_t k = 0; k < p->states; k++) /* all are read before one is written: a value may be a state's bytes */
        next[k] = execute(r->commits[k], &r->values[r->commits[k]->operand[0].value], step, (Rounding){0}, NULL);
    uint32_t loss = (uint32_t)load(&r->values[p->body - 1], 0);
    for (uint32_t k = 0; k < p->states; k++) memcpy((void *)(uintptr_t)r->state[k].at, next[k], r->state[k].left);
    Digest state = entries_root("tb.state", r->commits, r->state, p->states);
    Digest body = pad(tree(r->ids, p->body), depth_of(p->body), p->depth);
    Digest values = node(body, pad(state, depth_of(p->states), p->depth)), made = record(step, state, loss, log_root);
    release(before);
    if (r->job.quiet) return made;
    printf("step %" PRIu64 " loss %08x", step, loss);
    print_digest(" state ", state, "");
    print_digest(" values ", values, "");
    print_digest(" record ", made, "\n");
    return made;
}

/* The log root of a segment of so many steps. */
static Digest segment_log(const Program *p, Bytes logs, uint64_t steps) {
    size_t before = mark();
    Digest *leaves = take(steps, sizeof *leaves);
    size_t one = mark(); /* step's log at a time */
    for (uint64_t k = 0; k < steps; k++, release(one)) leaves[k] = step_log(p, read_log(p, &logs));
    Digest root = tree(leaves, steps);
    release(before);
    return root;
}

Digest run(const Program *p, const Tensors *state, const Tensors *data, Job job) {
    uint64_t checkpoints = (job.steps - 1) / job.interval + 1;
    u128 work = 0;
    for (uint32_t at = 0; at < p->body + p->states; at++) work += (u128)p->code[at].elements * p->code[at].terms;
    if (work > job.work / job.steps) refuse("expected at most %" PRIu64 " terms in all, got more", job.work);
    if (p->late.count && !job.logs.at) refuse("expected logs with the late data of each step, got none");
    Run r = {p, take(p->states, sizeof(void *)), take(p->states, sizeof(Bytes)), take(p->data.count, sizeof(Bytes)),
             take(p->body, sizeof(Value)), take(p->body, sizeof(Digest)), job};
    for (uint32_t k = 0; k < p->states; k++) r.commits[k] = &p->code[p->body + k], r.state[k] = find(state, r.commits[k]);
    for (uint32_t k = 0; k < p->data.count; k++) r.data[k] = find(data, p->data.at[k]);
    if (!job.quiet) {
        print_digest("program ", program_root(p), "\n");
        print_digest("state ", entries_root("tb.state", r.commits, r.state, p->states), "\n");
        print_digest("data ", entries_root("tb.data.", p->data.at, r.data, p->data.count), "\n");
    }
    Digest *records = take(checkpoints, sizeof *records), log_root = {{0}};
    for (uint64_t step = 1; step <= job.steps; step++) {
        uint64_t left = job.steps - step + 1, checkpoint = (step - 1) / job.interval;
        if (job.logs.at && (step - 1) % job.interval == 0)
            log_root = segment_log(p, job.logs, left < job.interval ? left : job.interval);
        size_t before = mark();
        records[checkpoint] = take_step(&r, step, job.logs.at ? read_log(p, &job.logs) : (Log){0}, log_root);
        release(before);
    }
    nothing_after(job.logs, "the logs of all steps");
    Digest root = tree(records, checkpoints);
    if (!job.quiet) print_digest("run ", root, "\n");
    return root;
}
