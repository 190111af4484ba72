#include "recheck.h"

#include <stdlib.h>
#include <string.h>

static uint32_t little(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

uint64_t load(const Value *from, uint64_t at) {
    const uint8_t *p = from->data + at * SIZE_OF[from->dtype];
    if (at >= from->elements) abort(); /* a map whose bounds were checked never gets here */
    if (from->dtype == BOOL) return *p;
    return from->dtype == F32 ? canonical(little(p)) : little(p) | (uint64_t)little(p + 4) << 32;
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

/* To the next coordinates of the reduction, in row-major order. */
static void advance_by_one(const Instruction *i, uint64_t *c) {
    for (size_t d = i->rank + i->reduction; d-- > i->rank && ++c[d] == i->dims[d];) c[d] = 0;
}

Accumulator accumulate(const Instruction *i, const Value *operands, uint64_t position, uint64_t terms) {
    uint64_t c[2 * MAX_RANK] = {0};
    coordinates(i->dims, i->rank, position, c);
    Accumulator held = start(accumulator_kind(i, operands[0].dtype));
    uint64_t wanted = dot(0, i->match, i->rank, c);
    for (uint64_t term = 0; term < terms; term++, advance_by_one(i, c)) {
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

void execute(const Instruction *i, const Value *operands, uint64_t step, Rounding rounding, const uint8_t *codes,
             uint64_t from, uint64_t to, uint8_t *result) {
    for (uint64_t at = from; at < to; at++) {
        rounding.code = codes ? codes[at] : 0;
        store(i->dtype, result, at, element(i, operands, at, step, rounding));
    }
}

void make_canonical(uint8_t dtype, uint8_t *data, uint64_t elements) {
    Value all = {dtype, elements, data};
    for (uint64_t at = 0; dtype != I64 && at < elements; at++) {
        uint64_t word = load(&all, at);
        if (dtype == BOOL && word > 1) refuse("expected a bool of 0 or 1, got %d", (int)word);
        store(dtype, data, at, word);
    }
}

uint64_t size_of(const Instruction *i) { return i->elements * SIZE_OF[i->dtype]; }

Digest id_of(const Instruction *i, const uint8_t *data) {
    return tensor_id(i->dtype, i->rank, i->dims, chunk_root((Bytes){data, (size_t)size_of(i)}));
}
