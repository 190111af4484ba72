#ifndef RECHECK_PROTOCOL_H
#define RECHECK_PROTOCOL_H

#include "native.h"

/* What `recheck` itself has no use for, and only the vectors need. */

/* Logs (section 5.1): a code of a word, and the siblings of a value and of a word of a logged sum, up to the step log. */
uint8_t code_in(const uint8_t word[32], size_t element);
void value_path(const Program *p, Log log, uint32_t value, Digest *path);
void log_path(const Program *p, Log log, uint32_t value, uint64_t chunk, Digest *path);

/* The bytes of a string of hexadecimal digits after 0x, and what stands in bytes. */
Bytes bytes_of(const Json *from);
/* Tensors that are the members of an object. */
Tensors tensors_in(const Json *object);
void put_accumulator(Buffer *out, const Accumulator *held);
/* After the siblings of a position, the root. */
void siblings(const Digest *leaves, size_t count, size_t position, Digest *out);

/* msgpack in its one form (section 9): kind is u for a number, b for bytes, ( for an array. */
typedef struct Packed {
    char kind;
    uint64_t number; /* also the length of bytes and arrays */
    Bytes bytes;
    struct Packed *items;
} Packed;

Packed unpack(Bytes in);

/* A message (section 9): its hash, the seven fields, whose body is that of its kind, and the signature. */
typedef struct {
    Digest hash;
    const Packed *fields;
    Packed signature;
} Message;

Message message_at(Bytes wire);
/* The four fields by which a party acknowledges a move (section 9). */
Packed receipt_at(Bytes in);

/* A post (section 12): its six fields, and the body, which is that of its kind and about the job and game that it names. */
typedef struct {
    Digest content;
    const Packed *envelope, *body;
    Bytes signature;
    uint64_t kind;
} Post;

enum { OFFER = 1, ANSWER, HEAD, LOG_RECEIPT, GAME, MESSAGE, MOVE_RECEIPT, CONCESSION = 12, AUDITORS, KINDS };

Post post_at(Bytes wire, Digest domain);
/* An EIP-712 structure of the first fields of an array; `type` has as many. */
Buffer structure_of(const char *type, size_t fields, const Packed *array);
extern const char JOB_TYPE[], HEAD_TYPE[], RECEIPT_TYPE[], CONCESSION_TYPE[], MESSAGE_TYPE[], STATE_TYPE[];

/* Snapshots (section 10.1), and what a game takes. */
typedef struct {
    uint64_t steps, interval, levels, policy, depth, body, states, count;
} Ground;

enum { SNAPSHOT_BYTES = 144, IN_PLACE = 255 };
/* Whether the bytes are a snapshot of any game at all. */
bool is_snapshot(Bytes in);
/* The offset of the first field for which this game refuses 144 bytes, or IN_PLACE. */
int misplaced(Bytes snapshot, const Ground *ground);

#endif
