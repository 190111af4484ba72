#include "protocol.h"

#include <string.h>

bool is_logged(const Instruction *i) { return i->function == 0 && i->dtype == F32 && accumulates(i); }

uint8_t code_in(const uint8_t word[32], size_t element) {
    uint8_t code = word[element / 4] >> 2 * (element % 4) & 3;
    return code == 3 ? 0 : code;
}

void log_word(const uint8_t *codes, uint64_t elements, uint64_t chunk, uint8_t word[32]) {
    memset(word, 0, 32);
    for (uint64_t at = 128 * chunk; at < elements && at < 128 * (chunk + 1); at++)
        word[at % 128 / 4] |= (uint8_t)((codes[at] & 3) << 2 * (at % 4));
}

Digest word_leaf(const uint8_t word[32]) {
    uint8_t preimage[40] = "tb.lgwrd", zero[32] = {0};
    memcpy(preimage + 8, word, 32);
    return memcmp(word, zero, 32) ? sha256((Bytes){preimage, sizeof preimage}) : empty();
}

Digest step_log(const Program *p, uint8_t *const *codes, uint32_t value, uint64_t chunk, Digest *path) {
    size_t before = mark();
    Digest *leaves = take(p->body, sizeof *leaves), above[65];
    unsigned depth = 0;
    for (uint32_t at = 0; at < p->body; at++) {
        const Instruction *i = &p->code[at];
        uint64_t chunks = (i->elements + 127) / 128;
        leaves[at] = empty();
        if (!is_logged(i)) continue;
        size_t words = mark();
        Digest *nodes = take(chunks, sizeof *nodes), beside[65];
        for (uint64_t k = 0; k < chunks; k++) {
            uint8_t word[32] = {0};
            if (codes[at]) log_word(codes[at], i->elements, k, word);
            nodes[k] = word_leaf(word);
        }
        siblings(nodes, chunks, at == value ? chunk : 0, beside);
        leaves[at] = beside[depth_of(chunks)];
        if (path && at == value) memcpy(path, beside, (depth = depth_of(chunks)) * sizeof *path);
        release(words);
    }
    siblings(leaves, p->body, value, above);
    Digest root = pad(above[depth_of(p->body)], depth_of(p->body), p->depth), blank = empty();
    for (unsigned level = 0; path && level < p->depth; level++, blank = node(blank, blank))
        path[depth + level] = level < depth_of(p->body) ? above[level] : blank;
    release(before);
    return root;
}
