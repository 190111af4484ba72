#include "native.h"

#include <inttypes.h>
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

void *take(uint64_t count, uint64_t size) {
    size_t before = block_count ? blocks[block_count - 1].total : 0;
    if (size && count > (MEMORY - before) / size) refuse("expected work that fits into %zu bytes, got more", MEMORY);
    if (block_count == block_room) {
        block_room = block_room ? 2 * block_room : 64;
        blocks = realloc(blocks, block_room * sizeof *blocks);
        if (!blocks) abort();
    }
    void *block = calloc(count ? count : 1, size ? size : 1);
    if (!block) refuse("expected %" PRIu64 " bytes from the system, got none", count * size);
    blocks[block_count].at = block, blocks[block_count++].total = before + (size_t)(count * size);
    return block;
}

size_t mark(void) { return block_count; }

void release(size_t until) {
    while (block_count > until) free(blocks[--block_count].at);
}

Bytes read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) refuse("expected a file that can be read, got none at %s", path);
    Buffer out = buffer("");
    uint8_t part[4096];
    for (size_t size; (size = fread(part, 1, sizeof part, file)) > 0;) put(&out, part, size);
    fclose(file);
    return written(&out);
}

