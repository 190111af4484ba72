#include "protocol.h"

#include <string.h>

uint8_t code_in(const uint8_t word[32], size_t element) {
    uint8_t code = word[element / 4] >> 2 * (element % 4) & 3;
    return code == 3 ? 0 : code;
}

void siblings(const Digest *leaves, size_t count, size_t position, Digest *out) {
    if (!count) refuse("expected a tree of one leaf or more, got none");
    size_t before = mark();
    Digest *nodes = take(count, sizeof *nodes), blank = empty();
    memcpy(nodes, leaves, count * sizeof *nodes);
    for (unsigned depth = depth_of(count); depth-- > 0; position /= 2, count = (count + 1) / 2) {
        *out++ = (position ^ 1) < count ? nodes[position ^ 1] : blank;
        for (size_t k = 0; k < count; k += 2) nodes[k / 2] = node(nodes[k], k + 1 < count ? nodes[k + 1] : blank);
        blank = node(blank, blank); /* beyond `count` are the roots of empty subtrees */
    }
    *out = nodes[0]; /* after the siblings, the root */
    release(before);
}

void value_path(const Program *p, Log log, uint32_t value, Digest *path) {
    size_t before = mark();
    Digest beside[65], blank = empty();
    siblings(value_logs(p, log), p->body, value, beside);
    for (unsigned level = 0; level < p->depth; level++, blank = node(blank, blank))
        path[level] = level < depth_of(p->body) ? beside[level] : blank;
    release(before);
}

void log_path(const Program *p, Log log, uint32_t value, uint64_t chunk, Digest *path) {
    size_t before = mark();
    const Instruction *i = &p->code[value];
    uint64_t chunks = (i->elements + 127) / 128;
    Digest beside[65];
    siblings(word_leaves(i, log.codes[value]), chunks, chunk, beside);
    memcpy(path, beside, depth_of(chunks) * sizeof *path);
    value_path(p, log, value, path + depth_of(chunks));
    release(before);
}

Tensors tensors_in(const Json *object) {
    Tensors out = {0};
    for (const Json *at = object->first; at; at = at->next) out.count++;
    out.names = take(out.count, sizeof *out.names), out.data = take(out.count, sizeof *out.data);
    size_t k = 0;
    for (const Json *at = object->first; at; at = at->next, k++) out.names[k] = at->key, out.data[k] = bytes_of(at);
    return out;
}

void put_accumulator(Buffer *out, const Accumulator *held) {
    switch (held->kind) {
    case SUM: case SUM_BF16: put_number(out, held->nan, 1), put_wide(out, held->sum, 8 * LIMBS); break;
    case MAX: case ARGMAX: put_number(out, held->value, 4); break;
    default: put_number(out, held->value, 8);
    }
    if (held->kind == ARGMAX || held->kind == ARGMAX_I64) put_number(out, (uint64_t)held->index, 8);
}

static uint8_t nibble(uint8_t c) {
    if (c >= '0' && c <= '9') return (uint8_t)(c - '0');
    if (c >= 'a' && c <= 'f') return (uint8_t)(c - 'a' + 10);
    refuse("expected lower-case hexadecimal, got byte %02x", c);
}

Bytes bytes_of(const Json *from) {
    Bytes in = from->text;
    if (from->kind != '"' || in.left % 2 || !same(cut(&in, 2), text("0x"))) refuse("expected 0x and pairs of digits");
    uint8_t *out = take(in.left / 2, 1);
    for (size_t k = 0; k < in.left / 2; k++) out[k] = (uint8_t)(nibble(in.at[2 * k]) << 4 | nibble(in.at[2 * k + 1]));
    return (Bytes){out, in.left / 2};
}
