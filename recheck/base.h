/* Memory, refusals, bytes, hashes and trees (SPEC sections 1 to 3). */
#ifndef RECHECK_BASE_H
#define RECHECK_BASE_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

__extension__ typedef __int128 i128;
__extension__ typedef unsigned __int128 u128;

/* A place in bytes that somebody else made: reading beyond its end is refused. */
typedef struct {
    const uint8_t *at;
    size_t left;
} Bytes;

typedef struct {
    uint8_t *at;
    size_t size, room;
} Buffer;

typedef struct {
    uint8_t b[32];
} Digest;

enum { F32, I64, BOOL };
enum { CHUNK = 512, MAX_RANK = 8 };
static const uint32_t NAN_BITS = 0x7fc00000;
static const size_t SIZE_OF[] = {4, 8, 1};

/* Ends the work in hand: jumps to `on_refusal` if it is set, else leaves the process with status 2. */
_Noreturn void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern jmp_buf *on_refusal;
extern char refusal[256];

/* Zeroed memory until `release` of a mark taken before; all of it together is limited. */
void *take(size_t count, size_t size);
size_t mark(void);
void release(size_t mark);

uint64_t number(Bytes *in, size_t width);
Bytes cut(Bytes *in, size_t size);
void nothing_after(Bytes in, const char *what);
bool same(Bytes a, Bytes b);
Bytes text(const char *string);
Bytes read_file(const char *path);

Buffer buffer(const char *start);
void put(Buffer *out, const void *bytes, size_t size);
void put_number(Buffer *out, uint64_t value, size_t width);
void put_digest(Buffer *out, Digest digest);
Bytes written(const Buffer *out);

Digest sha256(Bytes in);
Digest keccak256(Bytes in);
Digest digest_at(const uint8_t *bytes);
bool equal(Digest a, Digest b);

unsigned depth_of(uint64_t leaves);
Digest empty(void);
Digest node(Digest left, Digest right);
Digest tree(const Digest *leaves, size_t count);
Digest pad(Digest root, unsigned depth, unsigned padded);
void siblings(const Digest *leaves, size_t count, size_t position, Digest *out);
Digest fold(Digest leaf, uint64_t position, const Digest *siblings, size_t count);

Digest chunk_root(Bytes data);
Digest tensor_id(uint8_t dtype, uint8_t rank, const uint64_t *dims, Digest chunks);
Digest entry_leaf(const char *tag, Bytes name, Digest tensor);
Digest record(uint64_t step, Digest state, uint32_t loss, Digest log);

#endif
