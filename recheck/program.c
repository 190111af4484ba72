#include "recheck.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t MOST_ELEMENTS = (uint64_t)1 << 40, MOST_TERMS = (uint64_t)1 << 32, MOST = (uint64_t)1 << 17;

uint64_t product_of(const uint64_t *dims, size_t rank, uint64_t most) {
    uint64_t product = 1;
    for (size_t d = 0; d < rank; d++) {
        if (!dims[d] || dims[d] > most / product) refuse("expected dims of 1 or more and at most %llu elements",
                                                         (unsigned long long)most);
        product *= dims[d];
    }
    return product;
}

static uint64_t read_dims(Bytes *in, uint64_t *dims, size_t rank, uint64_t most) {
    for (size_t d = 0; d < rank; d++) dims[d] = number(in, 8);
    return product_of(dims, rank, most);
}

/* u32 slot, u16 length, name. */
static void read_slot(Instruction *i, Bytes *in) {
    i->slot = (uint32_t)number(in, 4);
    i->name = cut(in, number(in, 2));
    if (!i->name.left || i->name.left > 255) refuse("expected a name of 1 to 255 bytes, got %zu", i->name.left);
    for (size_t k = 0; k < i->name.left; k++)
        if (i->name.at[k] < 0x21 || i->name.at[k] > 0x7e) refuse("expected names of printable ASCII, got %02x",
                                                                 i->name.at[k]);
}

static void read_window(Instruction *i, Bytes *in) {
    for (size_t d = 0; d < i->rank; d++) {
        i->low[d] = (int64_t)number(in, 8), i->high[d] = (int64_t)number(in, 8), i->every[d] = number(in, 8);
        if (i->low[d] < 0 || i->low[d] >= i->high[d] || (uint64_t)i->high[d] > i->dims[d])
            refuse("expected a box inside dim %zu, got another", d);
        if (i->every[d] < 1 || i->every[d] > MOST_TERMS) refuse("expected a step of 1 to 2^32 in dim %zu", d);
    }
    if (i->function == 0) i->bits = number(in, 8);
}

static void read_parameters(Instruction *i, Bytes *in) {
    switch (i->opcode) {
    case SOURCE:
        if (i->function == CONST) i->bits = number(in, 8);
        else if (i->function != STEP) read_slot(i, in);
        break;
    case COMMIT: read_slot(i, in); break;
    case GATHER:
        i->shift = (int64_t)number(in, 8), i->bits = number(in, 8);
        if (i->bits < 1 || i->bits > MOST_ELEMENTS) refuse("expected a bound of 1 to 2^40, got another");
        break;
    case IOTA: i->shift = (int64_t)number(in, 8); /* fall through */
    case SCATTER:
        for (size_t d = 0; d < i->rank; d++) i->match[d] = (int64_t)number(in, 8);
        break;
    case WINDOW: read_window(i, in); break;
    case SHUFFLE:
        i->bits = number(in, 8);
        if (i->bits < 1 || i->bits > MOST_ELEMENTS) refuse("expected n of 1 to 2^40, got another"); /* fall through */
    case RANDOM: i->slot = (uint32_t)number(in, 4); break;
    default: break;
    }
}

/* A pattern of a word that a tensor of that dtype can hold. */
static bool is_word(uint8_t dtype, uint64_t bits) {
    return dtype == I64 || (dtype == BOOL ? bits <= 1 : bits >> 32 == 0 && canonical((uint32_t)bits) == bits);
}

/* Opcode, function, dtype and number of operands by table 4.3. */
static bool fits_table(const Instruction *i) {
    uint8_t f = i->function, n = i->operands;
    bool scalar = i->rank == 0;
    switch (i->opcode) {
    case SOURCE:
        return n == 0 && ((f >= STATE && f <= LATE) || (scalar && f == STEP && i->dtype == I64) ||
                          (scalar && f == CONST && is_word(i->dtype, i->bits)));
    case MAP: return n >= 1;
    case REDUCE: return f <= 3 && (n == 1 || (n == 2 && (f == 0 || f == 3)));
    case GATHER: return f == 0 && n == 2;
    case SCATTER: return f <= 1 && n == 2 && i->dtype == F32;
    case WINDOW: return f <= 1 && n == f + 1 && (f == 1 || is_word(i->dtype, i->bits));
    case IOTA: return f == 0 && n == 0 && i->dtype == I64;
    case RANDOM: return f == 0 && n == 2 && i->dtype == F32;
    case SHUFFLE: return f == 0 && n == 3 && i->dtype == I64;
    case COMMIT: return f == 0 && n == 1;
    default: return false;
    }
}

static void check_scatter(const Instruction *i) {
    int64_t expected = 1;
    bool matched = false;
    for (size_t d = i->rank; d-- > 0;) {
        if (!i->match[d]) continue;
        if (i->operand[0].stride[d] || i->operand[1].stride[d]) refuse("expected stride 0 along matched dim %zu", d);
        if (i->match[d] != expected) refuse("expected a row-major match stride in dim %zu", d);
        expected *= (int64_t)i->dims[d], matched = true;
    }
    if (!matched) refuse("expected a matched dim, got none");
}

static void check_commit(const Instruction *i) {
    int64_t stride = 1;
    bool whole = i->operand[0].offset == 0;
    for (size_t d = i->rank; d-- > 0; stride *= (int64_t)i->dims[d]) whole &= i->operand[0].stride[d] == stride;
    if (!whole) refuse("expected a commit of a whole value, got another");
}

Instruction decode_instruction(Bytes in) {
    Instruction i = {.encoding = in};
    if (in.left > 4096) refuse("expected an instruction of at most 4096 bytes, got %zu", in.left);
    uint8_t *fields[] = {&i.opcode, &i.function, &i.dtype, &i.rank, &i.reduction, &i.operands};
    for (size_t k = 0; k < 6; k++) *fields[k] = (uint8_t)number(&in, 1);
    if (i.dtype > BOOL || i.rank > MAX_RANK || i.reduction > MAX_RANK || i.operands > 3)
        refuse("expected dtype, ranks and operands in their ranges, got others");
    if (i.reduction && i.opcode != REDUCE && i.opcode != SCATTER) refuse("expected no reduction dims, got some");
    i.elements = read_dims(&in, i.dims, i.rank, MOST_ELEMENTS);
    i.terms = read_dims(&in, i.dims + i.rank, i.reduction, MOST_TERMS);
    for (size_t k = 0; k < i.operands; k++) {
        Operand *operand = &i.operand[k];
        operand->value = (uint32_t)number(&in, 4), operand->offset = (int64_t)number(&in, 8);
        for (size_t d = 0; d < (size_t)i.rank + i.reduction; d++) operand->stride[d] = (int64_t)number(&in, 8);
    }
    Bytes parameters = cut(&in, number(&in, 2));
    nothing_after(in, "an instruction");
    read_parameters(&i, &parameters);
    nothing_after(parameters, "the parameters");
    if (!fits_table(&i)) refuse("expected an instruction of the table, got opcode %d, function %d", i.opcode, i.function);
    if (i.opcode == SCATTER) check_scatter(&i);
    if (i.opcode == COMMIT) check_commit(&i);
    size_t first = i.opcode == RANDOM ? 0 : 1, fixed = i.opcode == RANDOM || i.opcode == SHUFFLE ? 2 : 0;
    for (size_t k = first; k < fixed; k++) /* random's seed and step, shuffle's seed */
        for (size_t d = 0; d < i.rank; d++)
            if (i.operand[k].stride[d]) refuse("expected strides of 0 of operand %zu, got another", k);
    return i;
}

void check_types(const Instruction *i, const uint8_t *t) {
    bool alike = true, fits;
    for (size_t k = 0; k < i->operands; k++) alike &= t[k] == t[0];
    switch (i->opcode) {
    case MAP: fits = map_types(i->function, t, i->operands, i->dtype); break;
    case REDUCE:
        if (i->function == 2) fits = i->dtype == I64 && t[0] != BOOL;
        else fits = alike && t[0] == i->dtype && (t[0] == F32 || (t[0] == I64 && i->operands == 1 && i->function < 2));
        break;
    case GATHER: fits = t[0] == i->dtype && t[1] == I64; break;
    case SCATTER: fits = t[0] == F32 && t[1] == I64; break;
    case RANDOM: case SHUFFLE: fits = alike && t[0] == I64; break;
    default: fits = alike && (!i->operands || t[0] == i->dtype);
    }
    if (!fits) refuse("expected operand dtypes of the table, got others for opcode %d, function %d", i->opcode, i->function);
}

void check_operand(const Instruction *i, size_t k, uint8_t dtype, uint64_t elements) {
    const Operand *operand = &i->operand[k];
    bool boxed = i->opcode == WINDOW && k == 0, table = i->opcode == GATHER && k == 0;
    i128 low = operand->offset, high = low;
    for (size_t d = 0; d < (size_t)i->rank + i->reduction; d++) {
        uint64_t count = boxed ? ((uint64_t)(i->high[d] - i->low[d]) - 1) / i->every[d] : i->dims[d] - 1;
        i128 reach = (i128)operand->stride[d] * (i128)count;
        *(reach < 0 ? &low : &high) += reach;
    }
    i128 reach = table ? (i128)i->shift * (i128)(i->bits - 1) : 0;
    *(reach < 0 ? &low : &high) += reach;
    if (low < 0 || high >= (i128)elements)
        refuse("expected operand %zu of dtype %d to be read inside its tensor, got an access beyond it", k, dtype);
}

static bool same_shape(const Instruction *i, const Instruction *j) {
    return i->rank == j->rank && !memcmp(i->dims, j->dims, i->rank * sizeof *i->dims);
}

static void check_body(const Program *p, uint32_t at, bool *state_sourced) {
    const Instruction *i = &p->code[at];
    uint8_t types[3] = {0};
    if ((i->opcode == COMMIT) != (at >= p->body)) refuse("expected commits after the body, got opcode %d", i->opcode);
    for (size_t k = 0; k < i->operands; k++) {
        if (i->operand[k].value >= (at < p->body ? at : p->body)) refuse("expected operands of before %u", at);
        const Instruction *from = &p->code[i->operand[k].value];
        types[k] = from->dtype;
        check_operand(i, k, from->dtype, from->elements);
        if (i->opcode != COMMIT) continue;
        if (!same_shape(from, i)) refuse("expected commit %u of its value's shape", at - p->body);
    }
    check_types(i, types);
    if (i->opcode != SOURCE || i->function != STATE) return;
    if (i->slot >= p->states || state_sourced[i->slot]) refuse("expected each state slot once, got %u", i->slot);
    state_sourced[i->slot] = true;
    const Instruction *to = &p->code[p->body + i->slot];
    if (!same(i->name, to->name) || i->dtype != to->dtype || !same_shape(i, to))
        refuse("expected state slot %u with the name, dtype and shape of its commit", i->slot);
}

static bool ascending(Bytes a, Bytes b) {
    for (size_t k = 0; k < a.left && k < b.left; k++)
        if (a.at[k] != b.at[k]) return a.at[k] < b.at[k];
    return a.left < b.left;
}

static Slots slots_of(const Program *p, uint8_t function) {
    Slots found = {0, take(p->body, sizeof *found.at)};
    for (uint32_t at = 0; at < p->body; at++) {
        const Instruction *i = &p->code[at];
        if (i->opcode != SOURCE || i->function != function) continue;
        if (i->slot >= p->body || found.at[i->slot]) refuse("expected each slot of data once, got %u", i->slot);
        found.at[i->slot] = i, found.count++;
    }
    for (uint32_t k = 0; k < found.count; k++) {
        if (!found.at[k]) refuse("expected a source of data slot %u, got none", k);
        bool in_order = !k || ascending(found.at[k - 1]->name, found.at[k]->name);
        if (!in_order) refuse("expected names of data in order, got others at slot %u", k);
    }
    return found;
}

static void check_names(Program *p) {
    for (uint32_t k = 0; k < p->states; k++) {
        const Instruction *i = &p->code[p->body + k];
        if (i->slot != k || (k && !ascending(i[-1].name, i->name))) refuse("expected commits in order, got slot %u", i->slot);
    }
    p->data = slots_of(p, DATA), p->late = slots_of(p, LATE);
    for (uint32_t k = 0, l = 0; k < p->data.count && l < p->late.count;) { /* both are in order */
        Bytes name = p->data.at[k]->name, late = p->late.at[l]->name;
        if (same(name, late)) refuse("expected other names of late data than of data, got one of both at slot %u", l);
        *(ascending(name, late) ? &k : &l) += 1;
    }
}

static int by_stream(const void *a, const void *b) {
    const uint32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void check_streams(const Program *p) {
    uint32_t *streams = take(p->body, sizeof *streams), count = 0;
    for (uint32_t at = 0; at < p->body; at++)
        if (p->code[at].opcode == RANDOM || p->code[at].opcode == SHUFFLE) streams[count++] = p->code[at].slot;
    qsort(streams, count, sizeof *streams, by_stream);
    for (uint32_t k = 1; k < count; k++)
        if (streams[k - 1] == streams[k]) refuse("expected streams that differ, got %u twice", streams[k]);
}

Program decode_program(Bytes in) {
    Program p = {0};
    if (!same(cut(&in, 8), text("TBPROG01"))) refuse("expected a program file, got another");
    p.body = (uint32_t)number(&in, 4), p.states = (uint32_t)number(&in, 4);
    if (!p.body || !p.states || p.body > MOST || p.states > MOST) refuse("expected 1 to 2^17 instructions and commits");
    if (in.left / 12 < p.body + p.states) refuse("expected %u instructions, got fewer bytes", p.body + p.states);
    p.code = take(p.body + p.states, sizeof *p.code);
    for (uint32_t at = 0; at < p.body + p.states; at++) p.code[at] = decode_instruction(cut(&in, number(&in, 4)));
    nothing_after(in, "a program");
    const Instruction *loss = &p.code[p.body - 1];
    if (loss->dtype != F32 || loss->rank) refuse("expected an f32 of rank 0 as the loss, got another");
    bool *sourced = take(p.states, sizeof *sourced);
    for (uint32_t at = 0; at < p.body + p.states; at++) check_body(&p, at, sourced);
    check_names(&p);
    check_streams(&p);
    unsigned body = depth_of(p.body), states = depth_of(p.states);
    p.depth = body > states ? body : states;
    return p;
}

Digest instruction_leaf(Bytes encoding) {
    Buffer out = buffer("tb.instr");
    put(&out, encoding.at, encoding.left);
    return sealed(&out);
}

Digest program_root(const Program *p) {
    size_t before = mark();
    Digest *leaves = take(p->body + p->states, sizeof *leaves);
    for (uint32_t at = 0; at < p->body + p->states; at++) leaves[at] = instruction_leaf(p->code[at].encoding);
    Digest left = pad(tree(leaves, p->body), depth_of(p->body), p->depth);
    Digest right = pad(tree(leaves + p->body, p->states), depth_of(p->states), p->depth);
    release(before);
    return node(left, right);
}
