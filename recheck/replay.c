#include "recheck.h"

#include <string.h>

static const Instruction *commit(const Program *p, uint32_t slot) { return &p->code[p->body + slot]; }

Replay *open_replay(const Program *p, int precision, uint32_t tolerances) {
    if (precision < 16 || precision > 32) refuse("expected a precision of 16 to 32, got %d", precision);
    check_tolerances(tolerances);
    Replay *r = take(1, sizeof *r);
    *r = (Replay){.program = p, .precision = precision, .tolerances = tolerances};
    r->values = take(p->body, sizeof *r->values), r->ids = take(p->body, sizeof *r->ids);
    r->tensors[STATE] = take(p->states, sizeof(uint8_t *)), r->tensors[DATA] = take(p->data.count, sizeof(uint8_t *));
    for (uint32_t k = 0; k < p->states; k++) r->tensors[STATE][k] = take(size_of(commit(p, k)), 1);
    for (uint32_t k = 0; k < p->data.count; k++) r->tensors[DATA][k] = take(size_of(p->data.at[k]), 1);
    return r;
}

Digest inputs_root(Replay *r, uint8_t kind) {
    const Program *p = r->program;
    uint32_t count = kind == STATE ? p->states : p->data.count;
    Tree all = {0};
    for (uint32_t k = 0; k < count; k++) {
        const Instruction *i = kind == STATE ? commit(p, k) : p->data.at[k];
        uint8_t *data = r->tensors[kind][k];
        make_canonical(i->dtype, data, i->elements);
        add_leaf(&all, entry_leaf(kind == STATE ? "tb.state" : "tb.data.", i->name, id_of(i, data)));
    }
    return count ? root_of(&all) : empty();
}

void begin_step(Replay *r, uint64_t step, Bytes *log) {
    const Program *p = r->program;
    if (r->step || !step) refuse("expected the step before to have ended, and a number of 1 or more, got another order");
    if (p->late.count && !log) refuse("expected logs with the late data of each step, got none");
    if (r->tolerances && !log) refuse("expected the log of each step of policy logged, got none");
    size_t before = mark();
    r->log = log ? read_log(p, log) : (Log){0};
    r->before = before, r->step = step, r->tensors[LATE] = r->log.late, r->at = 0, r->next = r->done = 0;
}

/* How a job rounds an instruction, but for the codes of a log. */
static Rounding rounding_of(const Replay *r, const Instruction *i) {
    int kind = i->opcode == SCATTER ? 2 : i->operands - 1;
    return (Rounding){.precision = r->precision, .tolerance = is_logged(i) ? r->tolerances >> 8 * kind & 255 : 0};
}

/* Some elements of the instruction that the step has come to, and their hashes. */
static void advance_value(Replay *r, uint64_t elements) {
    const Instruction *i = &r->program->code[r->at];
    bool named = i->opcode == SOURCE && i->function >= STATE;
    if (!r->next) {
        uint8_t *data = named ? r->tensors[i->function][i->slot] : take(size_of(i), 1);
        r->values[r->at] = (Value){i->dtype, i->elements, data}, r->chunks = (Chunks){.held = 0};
    }
    uint8_t *data = (uint8_t *)(uintptr_t)r->values[r->at].data;
    uint64_t to = r->next + elements, size = SIZE_OF[i->dtype];
    Value operands[3];
    for (size_t k = 0; k < i->operands; k++) operands[k] = r->values[i->operand[k].value];
    const uint8_t *codes = r->log.codes ? r->log.codes[r->at] : NULL;
    if (!named) execute(i, operands, r->step, rounding_of(r, i), codes, r->next, to, data);
    add_data(&r->chunks, (Bytes){data + r->next * size, (size_t)(elements * size)});
    r->next = to;
    if (to < i->elements) return;
    r->ids[r->at++] = tensor_id(i->dtype, i->rank, i->dims, end_chunks(&r->chunks));
    r->next = 0;
}

bool advance(Replay *r, uint64_t budget) {
    const Program *p = r->program;
    if (!r->step) refuse("expected a step that has begun, got none");
    for (uint64_t spent = 0; r->at < p->body && spent < budget;) {
        const Instruction *i = &p->code[r->at];
        uint64_t most = (budget - spent - 1) / i->terms + 1, left = i->elements - r->next, count = left < most ? left : most;
        advance_value(r, count);
        spent += count * i->terms, r->done += count * i->terms;
    }
    return r->at == p->body;
}

static const Program *program_of_complete(const Replay *r) {
    if (!r->step || r->at < r->program->body) refuse("expected a complete step, got one that is not");
    return r->program;
}

Digest state_after(const Replay *r) {
    const Program *p = program_of_complete(r);
    Tree all = {0};
    for (uint32_t k = 0; k < p->states; k++)
        add_leaf(&all, entry_leaf("tb.state", commit(p, k)->name, r->ids[commit(p, k)->operand[0].value]));
    return root_of(&all);
}

Digest values_root(const Replay *r) {
    const Program *p = program_of_complete(r);
    Digest body = pad(tree(r->ids, p->body), depth_of(p->body), p->depth);
    return node(body, pad(state_after(r), depth_of(p->states), p->depth));
}

uint32_t loss_of(const Replay *r) { return (uint32_t)load(&r->values[program_of_complete(r)->body - 1], 0); }

void end_step(Replay *r) {
    const Program *p = program_of_complete(r);
    const uint8_t **next = take(p->states, sizeof *next);
    for (uint32_t k = 0; k < p->states; k++) { /* a value may be the bytes of a state that is about to be written */
        uint32_t value = commit(p, k)->operand[0].value;
        size_t size = (size_t)size_of(commit(p, k));
        next[k] = r->values[value].data;
        if (p->code[value].opcode == SOURCE) next[k] = memcpy(take(size, 1), next[k], size);
    }
    for (uint32_t k = 0; k < p->states; k++) memcpy(r->tensors[STATE][k], next[k], (size_t)size_of(commit(p, k)));
    release(r->before);
    r->step = 0;
}
