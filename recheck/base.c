#include "recheck.h"

#include <inttypes.h>
#include <string.h>

uint64_t number(Bytes *in, size_t width) {
    Bytes field = cut(in, width);
    uint64_t value = 0;
    for (size_t k = 0; k < width; k++) value = value << 8 | field.at[k];
    return value;
}

Bytes cut(Bytes *in, uint64_t size) {
    if (size > in->left) refuse("expected %" PRIu64 " more bytes, got %zu", size, in->left);
    Bytes head = {in->at, (size_t)size};
    in->at += size;
    in->left -= head.left;
    return head;
}

void nothing_after(Bytes in, const char *what) {
    if (in.left) refuse("expected nothing after %s, got %zu bytes", what, in.left);
}

bool same(Bytes a, Bytes b) { return a.left == b.left && (!a.left || !memcmp(a.at, b.at, a.left)); }
Bytes text(const char *string) { return (Bytes){(const uint8_t *)string, strlen(string)}; }

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

void add_leaf(Tree *to, Digest leaf) {
    unsigned height = 0;
    for (; to->count >> height & 1; height++) leaf = node(to->full[height], leaf);
    to->full[height] = leaf, to->count++;
}

Digest root_of(const Tree *of) {
    if (!of->count) refuse("expected a tree of one leaf or more, got none");
    unsigned depth = depth_of(of->count), height = 0;
    Digest blank = empty(), last = blank; /* of a height: the subtree that begins behind all full ones */
    for (; height < depth; height++, blank = node(blank, blank))
        last = of->count >> height & 1 ? node(of->full[height], last) : node(last, blank);
    return of->count >> depth ? of->full[depth] : last;
}

Digest tree(const Digest *leaves, size_t count) {
    Tree all = {0};
    for (size_t k = 0; k < count; k++) add_leaf(&all, leaves[k]);
    return root_of(&all);
}

Digest pad(Digest root, unsigned depth, unsigned padded) {
    Digest blank = empty();
    for (unsigned level = 0; level < padded; level++) {
        if (level >= depth) root = node(root, blank);
        blank = node(blank, blank);
    }
    return root;
}

Digest fold(Digest leaf, uint64_t position, const Digest *path, size_t count) {
    for (size_t k = 0; k < count; k++, position >>= 1)
        leaf = position & 1 ? node(path[k], leaf) : node(leaf, path[k]);
    return leaf;
}

static void end_chunk(Chunks *of) {
    Sha256 hash = begin_sha256();
    add_bytes(&hash, text("tb.chunk")), add_bytes(&hash, (Bytes){of->chunk, of->held});
    add_leaf(&of->tree, end_sha256(hash));
    of->held = 0;
}

void add_data(Chunks *to, Bytes data) {
    while (data.left) {
        size_t room = CHUNK - to->held;
        Bytes part = cut(&data, data.left < room ? data.left : room);
        memcpy(to->chunk + to->held, part.at, part.left);
        to->held += part.left;
        if (to->held == CHUNK) end_chunk(to);
    }
}

Digest end_chunks(Chunks *of) {
    if (of->held) end_chunk(of);
    return root_of(&of->tree);
}

Digest chunk_root(Bytes data) {
    Chunks chunks = {.held = 0};
    add_data(&chunks, data);
    return end_chunks(&chunks);
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

Digest digest_at(const uint8_t *bytes) {
    Digest digest;
    memcpy(digest.b, bytes, 32);
    return digest;
}
