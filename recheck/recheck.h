/* recheck: programs and runs of the specification (docs/SPEC.md) again, by integers alone. */
#ifndef RECHECK_H
#define RECHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Memory, refusals, bytes, hashes and trees (SPEC sections 1 to 3). */

__extension__ typedef __int128 i128;
__extension__ typedef unsigned __int128 u128;

/* A place in bytes that somebody else made: reading beyond its end is refused. */
typedef struct {
    const uint8_t *at;
    size_t left;
} Bytes;

typedef struct {
    uint8_t *at;
    size_t size, room, before; /* the mark before it was made */
} Buffer;

typedef struct {
    uint8_t b[32];
} Digest;

enum { F32, I64, BOOL };
enum { CHUNK = 512, MAX_RANK = 8 };
static const uint32_t NAN_BITS = 0x7fc00000;
static const size_t SIZE_OF[] = {4, 8, 1};

/* Ends the work in hand (native.c and wasm.c say how). */
_Noreturn void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Zeroed memory until `release` of a mark taken before; all of it together is limited (native.c, wasm.c). */
void *take(uint64_t count, uint64_t size);
size_t mark(void);
void release(size_t mark);

uint64_t number(Bytes *in, size_t width);
Bytes cut(Bytes *in, uint64_t size);
void nothing_after(Bytes in, const char *what);
bool same(Bytes a, Bytes b);
Bytes text(const char *string);
Digest digest_at(const uint8_t *bytes);

Buffer buffer(const char *start);
void put(Buffer *out, const void *bytes, size_t size);
void put_number(Buffer *out, uint64_t value, size_t width);
void put_digest(Buffer *out, Digest digest);
Bytes written(const Buffer *out);
/* The hash of what was written, whose memory goes back. */
Digest sealed(const Buffer *out);

/* SHA-256 of bytes that come in pieces. */
typedef struct {
    uint32_t h[8];
    uint64_t size;
    uint8_t block[64];
} Sha256;

Sha256 begin_sha256(void);
void add_bytes(Sha256 *to, Bytes in);
Digest end_sha256(Sha256 of);
Digest sha256(Bytes in);

unsigned depth_of(uint64_t leaves);
Digest empty(void);
Digest node(Digest left, Digest right);
Digest pad(Digest root, unsigned depth, unsigned padded);
/* The root that a leaf and its siblings lead to (section 2). */
Digest fold(Digest leaf, uint64_t position, const Digest *siblings, size_t count);

/* A tree that grows leaf by leaf: the roots of its full subtrees by height, one for each bit of the count. */
typedef struct {
    uint64_t count;
    Digest full[64];
} Tree;

void add_leaf(Tree *to, Digest leaf);
Digest root_of(const Tree *tree);
Digest tree(const Digest *leaves, size_t count);

/* The tree over the chunks of a tensor whose data come in pieces. */
typedef struct {
    Tree tree;
    size_t held;
    uint8_t chunk[CHUNK];
} Chunks;

void add_data(Chunks *to, Bytes data);
Digest end_chunks(Chunks *of);
Digest chunk_root(Bytes data);
Digest tensor_id(uint8_t dtype, uint8_t rank, const uint64_t *dims, Digest chunks);
Digest entry_leaf(const char *tag, Bytes name, Digest tensor);
Digest record(uint64_t step, Digest state, uint32_t loss, Digest log);

/* Integers of 768 bits, and every number of SPEC sections 4.4 to 7 by integers alone. */

enum { LIMBS = 12, ACCUMULATOR_BYTES = 97, UNIT = 298 };

/* Two's complement, modulo 2^768; least limb first. */
typedef struct {
    uint64_t w[LIMBS];
} Wide;

Wide wide(u128 value);
Wide plus(Wide a, Wide b);
Wide minus(Wide a, Wide b);
Wide shifted(Wide a, int left);
Wide scaled(Wide a, Wide b, int right);
Wide over(Wide a, uint32_t b);
Wide quotient(Wide a, Wide b, Wide *rest);
bool is_zero(Wide a);
bool negative(Wide a);
int compare(Wide a, Wide b);
int bits_of(Wide a);
/* Adds product * 2^place, or subtracts it; the product is below 2^64 and `place` not negative. */
void add_at(Wide *sum, uint64_t product, int place, bool minus_sign);
Wide wide_at(Bytes big_endian);
void put_wide(Buffer *out, Wide value, size_t bytes);

/* How a result is rounded: to `precision` bits, and under policy `logged` along a code within a tolerance. */
typedef struct {
    int precision, tolerance, code;
} Rounding;

typedef struct {
    bool negative;
    uint64_t mantissa;
    int exponent;
} Parts;

bool is_nan(uint32_t x);
bool is_finite(uint32_t x);
uint32_t canonical(uint32_t x);
Parts parts_of(uint32_t x);
uint32_t round_number(bool negative, Wide magnitude, int exponent, bool sticky, Rounding rounding);
uint32_t transcendental(int function, uint32_t x, int precision);
/* Whether the enclosure of f(x) that was computed meets [v, v + 1) * 2^e. */
bool encloses(int function, uint32_t x, Wide v, int e);

/* Words: an f32's pattern, an i64 or a bool. */
uint64_t map(int function, const uint8_t *types, uint8_t result, const uint64_t *words, int precision);
bool map_types(int function, const uint8_t *types, size_t count, uint8_t result);

enum { SUM, SUM_I64, MAX, MAX_I64, ARGMAX, ARGMAX_I64, SUM_BF16 };

typedef struct {
    int kind;
    bool nan;
    Wide sum;
    uint64_t value;
    int64_t index;
} Accumulator;

Accumulator start(int kind);
void add_term(Accumulator *held, const uint64_t *factors, size_t count, int64_t position);
uint64_t finish(const Accumulator *held, Rounding rounding);

void philox(const uint32_t counter[4], uint64_t seed, uint32_t out[4]);
uint32_t random_number(uint64_t seed, uint64_t step, uint32_t stream, uint64_t element);
int64_t shuffle(int64_t index, uint64_t seed, uint64_t epoch, uint64_t n, uint32_t stream);

/* Programs (SPEC section 4): decoding, every rule that is checked before one runs, and execution (sections 4 to 7). */

enum { SOURCE = 1, MAP, REDUCE, GATHER, SCATTER, WINDOW, IOTA, RANDOM, SHUFFLE, COMMIT };
enum { CONST, STEP, STATE, DATA, LATE };

typedef struct {
    uint32_t value;
    int64_t offset, stride[2 * MAX_RANK];
} Operand;

typedef struct {
    uint8_t opcode, function, dtype, rank, reduction, operands;
    uint64_t dims[2 * MAX_RANK]; /* output dims, then reduction dims */
    uint64_t elements, terms;    /* their products */
    Operand operand[3];
    Bytes encoding, name;
    uint32_t slot;                                /* or the stream of random numbers */
    uint64_t bits;                                /* a constant, a fill, gather's bound or shuffle's n */
    int64_t shift;                                /* gather's index stride, iota's offset */
    int64_t match[MAX_RANK];                      /* scatter's match strides, iota's strides */
    int64_t low[MAX_RANK], high[MAX_RANK];        /* window's box */
    uint64_t every[MAX_RANK];                     /* and its steps */
} Instruction;

/* The sources of data or of late data, by slot. */
typedef struct {
    uint32_t count;
    const Instruction **at;
} Slots;

typedef struct {
    uint32_t body, states;
    unsigned depth; /* D of section 4 */
    Instruction *code;
    Slots data, late;
} Program;

/* A tensor that a program can read: elements little-endian, as committed. */
typedef struct {
    uint8_t dtype;
    uint64_t elements;
    const uint8_t *data;
} Value;

/* The number of elements of dims of 1 or more; refuses more than `most`. */
uint64_t product_of(const uint64_t *dims, size_t rank, uint64_t most);
Instruction decode_instruction(Bytes in);
/* The checks of an operand of that dtype and size; those of the function and of all parameters are in decoding. */
void check_operand(const Instruction *i, size_t k, uint8_t dtype, uint64_t elements);
void check_types(const Instruction *i, const uint8_t *types);
Program decode_program(Bytes in);
Digest instruction_leaf(Bytes encoding);
Digest program_root(const Program *program);

bool accumulates(const Instruction *i);
bool is_logged(const Instruction *i);
/* Of one element, by its row-major position: the accumulator after some of its terms, and the result. */
Accumulator accumulate(const Instruction *i, const Value *operands, uint64_t position, uint64_t terms);
uint64_t element(const Instruction *i, const Value *operands, uint64_t position, uint64_t step, Rounding rounding);
/* Elements `from` to `to` of a result; `codes`, if there are any, are those of the step's log, one byte an element. */
void execute(const Instruction *i, const Value *operands, uint64_t step, Rounding rounding, const uint8_t *codes,
             uint64_t from, uint64_t to, uint8_t *result);
uint64_t load(const Value *from, uint64_t at);

/* Makes every NaN the one NaN; refuses a bool that is neither 0 nor 1. */
void make_canonical(uint8_t dtype, uint8_t *data, uint64_t elements);
uint64_t size_of(const Instruction *i);
Digest id_of(const Instruction *i, const uint8_t *data);

/* The log of a step (sections 5.1 and 5.2): the codes by body instruction, NULL where it logs nothing; late data by slot. */
typedef struct {
    uint8_t **codes, **late;
} Log;

void log_word(const uint8_t *codes, uint64_t elements, uint64_t chunk, uint8_t word[32]);
Digest word_leaf(const uint8_t word[32]);
/* The leaves of the log words of one logged sum; the leaves of the log tree; and its root, the step log. */
Digest *word_leaves(const Instruction *i, const uint8_t *codes);
Digest *value_logs(const Program *p, Log log);
Digest step_log(const Program *p, Log log);
/* The log of the next step of a plain log file (section 5.1). */
Log read_log(const Program *p, Bytes *in);

/* Refuses tolerances that no job can have (section 5.1). */
void check_tolerances(uint32_t tolerances);

/* A run, replayed step by step (sections 3 to 5). Between `begin_step` and `end_step` it holds all values of a step. */
typedef struct {
    const Program *program;
    int precision;
    uint32_t tolerances;
    uint8_t **tensors[LATE + 1]; /* of the state, the data and the late data, by slot */
    Value *values;
    Digest *ids;
    uint64_t step, next, done; /* the step, 0 between steps; the element and the number of terms it has come to */
    uint32_t at;               /* the instruction it has come to */
    size_t before;             /* the mark before the step's memory */
    Log log;
    Chunks chunks;
} Replay;

/* Its tensors of state and data are zeros, which whoever opened it fills in. */
Replay *open_replay(const Program *program, int precision, uint32_t tolerances);
/* The root of the state or of the data as filled in (kind STATE or DATA), made canonical. */
Digest inputs_root(Replay *r, uint8_t kind);
/* `log`: the step's, at the beginning of a plain log file, and left behind it; NULL under policy `exact`. */
void begin_step(Replay *r, uint64_t step, Bytes *log);
/* Computes about `budget` terms, at most 2^62; whether the step is complete. */
bool advance(Replay *r, uint64_t budget);
/* Of a complete step. */
Digest state_after(const Replay *r);
Digest values_root(const Replay *r);
uint32_t loss_of(const Replay *r);
/* Makes the state that of a complete step, whose values go. */
void end_step(Replay *r);

/* Signatures (section 8). An EIP-712 structure is its type's hash, then one word of 32 bytes for each field. */
Digest keccak256(Bytes in);
Buffer typed(const char *type);
/* A field of at most 32 bytes: an address or a number stands at the end of its word. */
void put_word(Buffer *out, Bytes field);
Digest domain_of(uint64_t chain, Bytes contract);
/* What is signed of a structure in a domain. */
Digest to_sign(Digest domain, const Buffer *structure);
/* The address that signed, as a word. */
Digest signer_of(Digest signed_digest, Bytes signature);
/* The address, as a word, of a secret of 32 bytes, and its signature. */
Digest address(Bytes secret);
void sign(Digest digest, Bytes secret, uint8_t out[65]);

#endif
