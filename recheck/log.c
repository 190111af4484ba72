#include "recheck.h"

#include <string.h>

bool is_logged(const Instruction *i) { return i->function == 0 && i->dtype == F32 && accumulates(i); }

void log_word(const uint8_t *codes, uint64_t elements, uint64_t chunk, uint8_t word[32]) {
    memset(word, 0, 32);
    for (uint64_t at = 128 * chunk; codes && at < elements && at < 128 * (chunk + 1); at++)
        word[at % 128 / 4] |= (uint8_t)((codes[at] & 3) << 2 * (at % 4));
}

Digest word_leaf(const uint8_t word[32]) {
    uint8_t preimage[40] = "tb.lgwrd", zero[32] = {0};
    memcpy(preimage + 8, word, 32);
    return memcmp(word, zero, 32) ? sha256((Bytes){preimage, sizeof preimage}) : empty();
}

Digest *word_leaves(const Instruction *i, const uint8_t *codes) {
    uint64_t chunks = (i->elements + 127) / 128;
    Digest *leaves = take(chunks, sizeof *leaves);
    for (uint64_t k = 0; k < chunks; k++) {
        uint8_t word[32];
        log_word(codes, i->elements, k, word);
        leaves[k] = word_leaf(word);
    }
    return leaves;
}

Digest *value_logs(const Program *p, Log log) {
    Digest *roots = take(p->body, sizeof *roots);
    for (uint32_t at = 0; at < p->body; at++) {
        size_t before = mark();
        const Instruction *i = &p->code[at];
        roots[at] = is_logged(i) ? tree(word_leaves(i, log.codes[at]), (size_t)((i->elements + 127) / 128)) : empty();
        release(before);
    }
    for (uint32_t k = 0; k < p->late.count; k++) roots[p->late.at[k] - p->code] = id_of(p->late.at[k], log.late[k]);
    return roots;
}

Digest step_log(const Program *p, Log log) {
    size_t before = mark();
    Digest root = pad(tree(value_logs(p, log), p->body), depth_of(p->body), p->depth);
    release(before);
    return root;
}

void check_tolerances(uint32_t tolerances) {
    for (int k = 0; k < 4; k++) {
        uint32_t n = tolerances >> 8 * k & 255;
        if (n == 1 || n > (k < 3 ? 64 : 0)) refuse("expected tolerances of 0 or 2 to 64, got %u", n);
    }
}

Log read_log(const Program *p, Bytes *in) {
    Log log = {take(p->body, sizeof *log.codes), take(p->late.count, sizeof *log.late)};
    uint64_t next = 0, count = number(in, 4);
    for (; count; count--) {
        uint64_t place = number(in, 8), value = place >> 32, at = place & UINT32_MAX, code = number(in, 1);
        bool fits = value < p->body && is_logged(&p->code[value]) && at < p->code[value].elements;
        if (!fits || place < next || (code != 1 && code != 2)) refuse("expected codes of 1 or 2 of logged sums in order");
        if (!log.codes[value]) log.codes[value] = take(p->code[value].elements, 1);
        log.codes[value][at] = (uint8_t)code, next = place + 1;
    }
    for (uint32_t k = 0; k < p->late.count; k++) {
        const Instruction *i = p->late.at[k];
        Bytes data = cut(in, size_of(i));
        log.late[k] = take(data.left, 1);
        memcpy(log.late[k], data.at, data.left);
        make_canonical(i->dtype, log.late[k], i->elements);
    }
    return log;
}
