#include "recheck.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t MEMORY = (size_t)1 << 30;

jmp_buf *on_refusal;
char refusal[256];
static struct {
    void *at;
    size_t total; /* with all before it */
} *blocks;
static size_t block_count, block_room;

_Noreturn void refuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(refusal, sizeof refusal, format, arguments);
    va_end(arguments);
    if (on_refusal) longjmp(*on_refusal, 1);
    fprintf(stderr, "refused: %s\n", refusal);
    release(0);
    exit(2);
}

void *take(size_t count, size_t size) {
    size_t before = block_count ? blocks[block_count - 1].total : 0;
    if (size && count > (MEMORY - before) / size) refuse("expected work that fits into %zu bytes, got more", MEMORY);
    if (block_count == block_room) {
        block_room = block_room ? 2 * block_room : 64;
        blocks = realloc(blocks, block_room * sizeof *blocks);
        if (!blocks) abort();
    }
    void *block = calloc(count ? count : 1, size ? size : 1);
    if (!block) refuse("expected %zu bytes from the system, got none", count * size);
    blocks[block_count].at = block, blocks[block_count++].total = before + count * size;
    return block;
}

size_t mark(void) { return block_count; }

void release(size_t until) {
    while (block_count > until) free(blocks[--block_count].at);
}

uint64_t number(Bytes *in, size_t width) {
    Bytes field = cut(in, width);
    uint64_t value = 0;
    for (size_t k = 0; k < width; k++) value = value << 8 | field.at[k];
    return value;
}

Bytes cut(Bytes *in, size_t size) {
    if (size > in->left) refuse("expected %zu more bytes, got %zu", size, in->left);
    Bytes head = {in->at, size};
    in->at += size;
    in->left -= size;
    return head;
}

void nothing_after(Bytes in, const char *what) {
    if (in.left) refuse("expected nothing after %s, got %zu bytes", what, in.left);
}

bool same(Bytes a, Bytes b) { return a.left == b.left && (!a.left || !memcmp(a.at, b.at, a.left)); }
Bytes text(const char *string) { return (Bytes){(const uint8_t *)string, strlen(string)}; }

Bytes read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) refuse("expected a file that can be read, got none at %s", path);
    Buffer out = buffer("");
    uint8_t part[4096];
    for (size_t size; (size = fread(part, 1, sizeof part, file)) > 0;) put(&out, part, size);
    fclose(file);
    return written(&out);
}

Buffer buffer(const char *start) {
    size_t before = mark();
    Buffer out = {take(256, 1), 0, 256, before};
    put(&out, start, strlen(start));
    return out;
}

void put(Buffer *out, const void *bytes, size_t size) {
    if (size > out->room - out->size) {
        size_t room = 2 * out->room + size;
        uint8_t *larger = take(room, 1);
        memcpy(larger, out->at, out->size);
        out->at = larger, out->room = room;
    }
    if (size) memcpy(out->at + out->size, bytes, size);
    out->size += size;
}

void put_number(Buffer *out, uint64_t value, size_t width) {
    for (size_t k = width; k-- > 0;) put(out, &(uint8_t){k < 8 ? (uint8_t)(value >> 8 * k) : 0}, 1);
}

void put_digest(Buffer *out, Digest digest) { put(out, digest.b, 32); }
Bytes written(const Buffer *out) { return (Bytes){out->at, out->size}; }

unsigned depth_of(uint64_t leaves) {
    unsigned depth = 0;
    while (depth < 64 && (uint64_t)1 << depth < leaves) depth++;
    return depth;
}

Digest empty(void) { return sha256(text("tb.empty")); }

Digest node(Digest left, Digest right) {
    uint8_t preimage[72];
    memcpy(preimage, "tb.node.", 8);
    memcpy(preimage + 8, left.b, 32);
    memcpy(preimage + 40, right.b, 32);
    return sha256((Bytes){preimage, sizeof preimage});
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

Digest tree(const Digest *leaves, size_t count) {
    Digest path[65];
    siblings(leaves, count, 0, path);
    return path[depth_of(count)];
}

Digest pad(Digest root, unsigned depth, unsigned padded) {
    Digest blank = empty();
    for (unsigned level = 0; level < padded; level++) {
        if (level >= depth) root = node(root, blank);
        blank = node(blank, blank);
    }
    return root;
}

Digest chunk_root(Bytes data) {
    size_t before = mark(), count = data.left / CHUNK + (data.left % CHUNK != 0);
    Digest *leaves = take(count, sizeof *leaves);
    for (size_t k = 0; k < count; k++) {
        uint8_t preimage[8 + CHUNK] = "tb.chunk";
        Bytes chunk = cut(&data, data.left < CHUNK ? data.left : CHUNK);
        memcpy(preimage + 8, chunk.at, chunk.left);
        leaves[k] = sha256((Bytes){preimage, 8 + chunk.left});
    }
    Digest root = tree(leaves, count);
    release(before);
    return root;
}

Digest sealed(const Buffer *out) {
    Digest digest = sha256(written(out));
    release(out->before);
    return digest;
}

Digest tensor_id(uint8_t dtype, uint8_t rank, const uint64_t *dims, Digest chunks) {
    Buffer out = buffer("tb.tensr");
    put_number(&out, dtype, 1);
    put_number(&out, rank, 1);
    for (size_t d = 0; d < rank; d++) put_number(&out, dims[d], 8);
    put_digest(&out, chunks);
    return sealed(&out);
}

Digest entry_leaf(const char *tag, Bytes name, Digest tensor) {
    Buffer out = buffer(tag);
    put_number(&out, name.left, 2);
    put(&out, name.at, name.left);
    put_digest(&out, tensor);
    return sealed(&out);
}

Digest record(uint64_t step, Digest state, uint32_t loss, Digest log) {
    Buffer out = buffer("tb.recrd");
    put_number(&out, step, 8);
    put_digest(&out, state);
    put_number(&out, loss, 4);
    put_digest(&out, log);
    return sealed(&out);
}
