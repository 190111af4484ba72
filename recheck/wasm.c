/* recheck as a WebAssembly module: its exports, for a host such as a web page, and what the other files need of a machine.

The module imports one function, `recheck.refuse(text, size)`, which gets a sentence and must throw. It reaches nothing but
its memory. Addresses and sizes are i32 without a sign (in JavaScript, of a result x: x >>> 0), numbers of 64 bits i64
(BigInt).

Memory is a stack. `allocate` gives zeroed bytes, in which a host puts what it hands over, and which stay until `release`
of a mark taken before, as does all that other exports make: hashes under way, programs, replays. After a refusal the host
releases a mark of before the call that was refused, and may go on; what stood below that mark is whole, but for a tree, a
hash or a replay that was the refused call's own. As memory may grow in each call, a host fetches its buffer anew after it.

A digest that a call returns is the address of 32 bytes in one place, which the next call may overwrite. */
#include "recheck.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define EXPORT(name) __attribute__((export_name(#name))) host_##name

__attribute__((import_module("recheck"), import_name("refuse"))) _Noreturn void imported_refuse(const char *text, size_t size);
extern uint8_t __heap_base, __stack_high;

enum { PAGE = 1 << 16, ALIGNMENT = 16, PAGES_AT_ONCE = 64 };
static uint64_t most = (uint64_t)1 << 30;
static uint8_t *top = &__heap_base, *fresh = &__heap_base; /* the end of what was given; beyond `fresh` all is zero */
static Digest answer;

_Noreturn void refuse(const char *format, ...) {
    static char message[256];
    va_list arguments;
    va_start(arguments, format);
    size_t size = (size_t)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    /* The host's throw does not unwind the stack in memory: the next call begins at its upper end again. */
    __asm__ volatile(".globaltype __stack_pointer, i32\nlocal.get %0\nglobal.set __stack_pointer" ::"r"(&__stack_high) : "memory");
    imported_refuse(message, size < sizeof message ? size : sizeof message - 1);
}

static void grow_to(uint64_t end) {
    uint64_t held = (uint64_t)__builtin_wasm_memory_size(0) * PAGE, pages = (end - held + PAGE - 1) / PAGE;
    if (end <= held) return;
    if (pages < PAGES_AT_ONCE && held + (uint64_t)PAGES_AT_ONCE * PAGE <= most) pages = PAGES_AT_ONCE;
    if (__builtin_wasm_memory_grow(0, (size_t)pages) == SIZE_MAX)
        refuse("expected %llu bytes from the host, got none", (unsigned long long)end);
}

void *take(uint64_t count, uint64_t size) {
    uint64_t used = (size_t)top + ALIGNMENT, room = most > used ? most - used : 0;
    if (size && count > room / size) refuse("expected work that fits into %llu bytes, got more", (unsigned long long)most);
    uint8_t *out = top, *end = out + (size_t)(count * size / ALIGNMENT + 1) * ALIGNMENT;
    grow_to((size_t)end);
    if (out < fresh) memset(out, 0, (size_t)((end < fresh ? end : fresh) - out));
    top = end, fresh = fresh < end ? end : fresh;
    return out;
}

size_t mark(void) { return (size_t)top; }

void release(size_t until) {
    if (until < (size_t)&__heap_base || until > mark()) refuse("expected a mark that is still below, got another");
    top = (uint8_t *)until;
}

/* MEMORY */

/* The most memory that the module takes in all; at first 2^30 bytes, at most 2^32 - 2^16. */
void EXPORT(limit)(uint64_t bytes) {
    if (bytes > ((uint64_t)1 << 32) - PAGE) refuse("expected a limit of at most 2^32 - 2^16 bytes, got more");
    most = bytes;
}

uint8_t *EXPORT(allocate)(uint64_t size) { return take(size, 1); }
size_t EXPORT(mark)(void) { return mark(); }
void EXPORT(release)(size_t until) { release(until); }

/* HASHES AND TREES (SPEC sections 1 to 3). `begin` returns the address of what a later call adds to. */

static const Digest *answered(Digest digest) { return answer = digest, &answer; }

/* Digests, names and other bytes are given by their address, arrays of digests one behind the other. */
Sha256 *EXPORT(sha256_begin)(void) {
    Sha256 *out = take(1, sizeof *out);
    *out = begin_sha256();
    return out;
}

void EXPORT(sha256_add)(Sha256 *to, const uint8_t *at, size_t size) { add_bytes(to, (Bytes){at, size}); }
const Digest *EXPORT(sha256_end)(const Sha256 *of) { return answered(end_sha256(*of)); }

Tree *EXPORT(tree_begin)(void) { return take(1, sizeof(Tree)); }
void EXPORT(tree_add)(Tree *to, const Digest *leaf) { add_leaf(to, *leaf); }
const Digest *EXPORT(tree_root)(const Tree *of) { return answered(root_of(of)); }

const Digest *EXPORT(empty)(void) { return answered(empty()); }
const Digest *EXPORT(node)(const Digest *left, const Digest *right) { return answered(node(*left, *right)); }

const Digest *EXPORT(pad)(const Digest *root, uint32_t depth, uint32_t padded) {
    if (padded > 64) refuse("expected a depth of at most 64, got %u", (unsigned)padded);
    return answered(pad(*root, depth, padded));
}

/* The root to which a leaf and its siblings lead. */
const Digest *EXPORT(fold)(const Digest *leaf, uint64_t position, const Digest *siblings, size_t count) {
    return answered(fold(*leaf, position, siblings, count));
}

/* A tensor whose bytes come in pieces: its id. */
typedef struct {
    uint8_t dtype, rank;
    uint64_t dims[MAX_RANK], left;
    Chunks chunks;
} Tensor;

/* dims: numbers of 64 bits, little-endian, one behind the other. */
Tensor *EXPORT(tensor_begin)(uint32_t dtype, uint32_t rank, const uint64_t *dims) {
    if (dtype > BOOL || rank > MAX_RANK) refuse("expected dtype and rank in their ranges, got others");
    Tensor *out = take(1, sizeof *out);
    out->dtype = (uint8_t)dtype, out->rank = (uint8_t)rank;
    out->left = SIZE_OF[dtype] * product_of(dims, rank, (uint64_t)1 << 40);
    memcpy(out->dims, dims, rank * sizeof *dims);
    return out;
}

/* Whole elements, which are made canonical in their place. */
void EXPORT(tensor_add)(Tensor *to, uint8_t *at, size_t size) {
    if (size > to->left || size % SIZE_OF[to->dtype]) refuse("expected whole elements of the tensor's shape, got others");
    make_canonical(to->dtype, at, size / SIZE_OF[to->dtype]);
    add_data(&to->chunks, (Bytes){at, size});
    to->left -= size;
}

const Digest *EXPORT(tensor_id)(Tensor *of) {
    if (of->left) refuse("expected %llu more bytes of a tensor, got none", (unsigned long long)of->left);
    return answered(tensor_id(of->dtype, of->rank, of->dims, end_chunks(&of->chunks)));
}

/* The leaf of a tensor of the state (kind 2) or of the data (kind 3). */
const Digest *EXPORT(entry)(uint32_t kind, const uint8_t *name, size_t size, const Digest *tensor) {
    if (kind != STATE && kind != DATA) refuse("expected the state or the data, got kind %u", (unsigned)kind);
    if (!size || size > 255) refuse("expected a name of 1 to 255 bytes, got %zu", size);
    return answered(entry_leaf(kind == STATE ? "tb.state" : "tb.data.", (Bytes){name, size}, *tensor));
}

const Digest *EXPORT(record)(uint64_t step, const Digest *state, uint32_t loss, const Digest *log) {
    return answered(record(step, *state, loss, *log));
}

/* SIGNATURES (section 8) */

const Digest *EXPORT(keccak256)(const uint8_t *at, size_t size) { return answered(keccak256((Bytes){at, size})); }

/* contract: 20 bytes. */
const Digest *EXPORT(domain)(uint64_t chain, const uint8_t *contract) {
    size_t before = mark();
    answer = domain_of(chain, (Bytes){contract, 20});
    release(before);
    return &answer;
}

/* What is signed of a structure, whose bytes are the hash of its type and a word for each field. */
const Digest *EXPORT(to_sign)(const Digest *domain, const uint8_t *structure, size_t size) {
    size_t before = mark();
    Buffer out = buffer("");
    put(&out, structure, size);
    answer = to_sign(*domain, &out);
    release(before);
    return &answer;
}

/* The address, 20 bytes, whose key signed a digest; signature: 65 bytes. */
const uint8_t *EXPORT(signer)(const Digest *digest, const uint8_t *signature) {
    size_t before = mark();
    answer = signer_of(*digest, (Bytes){signature, 65});
    release(before);
    return answer.b + 12;
}

/* The address of a secret of 32 bytes, and its signature. For a key that is made for one statement: others may measure time. */
const uint8_t *EXPORT(address)(const uint8_t *secret) {
    size_t before = mark();
    answer = address((Bytes){secret, 32});
    release(before);
    return answer.b + 12;
}

const uint8_t *EXPORT(sign)(const Digest *digest, const uint8_t *secret) {
    static uint8_t signature[65];
    size_t before = mark();
    sign(*digest, (Bytes){secret, 32}, signature);
    release(before);
    return signature;
}

/* PROGRAMS (section 4) */

/* The bytes of the program must stay. */
const Program *EXPORT(program)(const uint8_t *at, size_t size) {
    Program *out = take(1, sizeof *out);
    *out = decode_program((Bytes){at, size});
    return out;
}

const Digest *EXPORT(instruction_leaf)(const uint8_t *at, size_t size) {
    return answered(instruction_leaf((Bytes){at, size}));
}

const Digest *EXPORT(program_root)(const Program *p) { return answered(program_root(p)); }

/* The terms of a step, which `advance` counts; 2^64 - 1 if there are more. */
uint64_t EXPORT(work)(const Program *p) {
    u128 all = 0;
    for (uint32_t k = 0; k < p->body; k++) all += (u128)p->code[k].elements * p->code[k].terms;
    return all >> 64 ? UINT64_MAX : (uint64_t)all;
}

/* How many slots of the state (kind 2), the data (3) or the late data (4) there are; kind 0: how many body instructions. */
uint32_t EXPORT(count)(const Program *p, uint32_t kind) {
    return kind == STATE ? p->states : kind == DATA ? p->data.count : kind == LATE ? p->late.count : p->body;
}

/* The number of the instruction that names a slot: the commit, or the source. Commits are numbered behind the body. */
uint32_t EXPORT(slot)(const Program *p, uint32_t kind, uint32_t k) {
    if (kind < STATE || kind > LATE || k >= host_count(p, kind)) refuse("expected a slot of the program, got another");
    return kind == STATE ? p->body + k : (uint32_t)((kind == DATA ? p->data : p->late).at[k] - p->code);
}

/* An instruction: opcode, function, dtype, rank, reduction rank, number of operands, their values, address and length of the
   name, all of 32 bits; then of 64 bits the number of elements, terms of each, and the dims: rank, then reduction rank. */
typedef struct {
    uint32_t fields[6], operands[3], name, length, none;
    uint64_t elements, terms, dims[2 * MAX_RANK];
} Description;

const Description *EXPORT(describe)(const Program *p, uint32_t number) {
    static Description out;
    if (number >= p->body + p->states) refuse("expected an instruction of the program, got number %u", (unsigned)number);
    const Instruction *i = &p->code[number];
    out = (Description){{i->opcode, i->function, i->dtype, i->rank, i->reduction, i->operands}, .name = (uint32_t)i->name.at,
                        .length = i->name.left, .elements = i->elements, .terms = i->terms};
    for (size_t k = 0; k < i->operands; k++) out.operands[k] = i->operand[k].value;
    memcpy(out.dims, i->dims, sizeof out.dims);
    return &out;
}

/* The root of the log of a step (section 5.1): its bytes in a plain log file, without the file's tolerances. */
const Digest *EXPORT(step_log)(const Program *p, const uint8_t *at, size_t size) {
    size_t before = mark();
    Bytes in = {at, size};
    Log log = read_log(p, &in);
    nothing_after(in, "the log of a step");
    answer = step_log(p, log);
    release(before);
    return &answer;
}

/* The size of the first step's log in a plain log file, from behind its tolerances on. */
size_t EXPORT(log_size)(const Program *p, const uint8_t *at, size_t size) {
    size_t before = mark();
    Bytes in = {at, size};
    read_log(p, &in);
    release(before);
    return size - in.left;
}

/* REPLAYS (sections 3 to 7): open, fill in the tensors, then each step: begin, advance until it is complete, look, end. */

Replay *EXPORT(replay)(const Program *p, uint32_t precision, uint32_t tolerances) {
    return open_replay(p, precision > 32 ? 0 : (int)precision, tolerances);
}

/* Where the bytes of a tensor of the state or the data are: to fill in before the first step, and to read between steps. */
uint8_t *EXPORT(tensor)(const Replay *r, uint32_t kind, uint32_t slot) {
    host_slot(r->program, kind, slot);
    if (kind == LATE && !r->step) refuse("expected late data within a step, got none");
    return r->tensors[kind][slot];
}

/* The root of the state (kind 2) or of the data (3) as filled in. Numbers that have no canonical form are given theirs. */
const Digest *EXPORT(inputs)(Replay *r, uint32_t kind) {
    if (kind != STATE && kind != DATA) refuse("expected the state or the data, got kind %u", (unsigned)kind);
    return answered(inputs_root(r, (uint8_t)kind));
}

/* log: the step's, as for `step_log`; address 0 under policy `exact`. What was allocated since stays until `end`. */
void EXPORT(begin)(Replay *r, uint64_t step, const uint8_t *log, size_t size) {
    Bytes in = {log, size};
    begin_step(r, step, log ? &in : NULL);
    nothing_after(in, "the log of a step");
}

/* Computes about `budget` terms; 1 if the step is complete. An element is never cut. */
uint32_t EXPORT(advance)(Replay *r, uint64_t budget) { return advance(r, budget >> 62 ? (uint64_t)1 << 62 : budget); }
/* The terms of the step that have been computed, and the instruction it has come to. */
uint64_t EXPORT(done)(const Replay *r) { return r->done; }
uint32_t EXPORT(at)(const Replay *r) { return r->at; }

/* Of a complete step. */
uint32_t EXPORT(loss)(const Replay *r) { return loss_of(r); }
const Digest *EXPORT(state)(const Replay *r) { return answered(state_after(r)); }
const Digest *EXPORT(values)(const Replay *r) { return answered(values_root(r)); }
/* Of a step that is complete or not: the tensor ids of the values computed so far, and the bits of an element. */
const Digest *EXPORT(ids)(const Replay *r) { return r->ids; }

uint64_t EXPORT(element)(const Replay *r, uint32_t value, uint64_t position) {
    if (!r->step || value >= r->at || position >= r->values[value].elements)
        refuse("expected an element of a value that was computed, got another");
    return load(&r->values[value], position);
}

/* The step's results become the state; its values and what was allocated since `begin` go. */
void EXPORT(end)(Replay *r) { end_step(r); }

/* SINGLE INSTRUCTIONS: all elements of the result of one, at an address, from its operands' tensors. */

typedef struct {
    uint32_t dtype, data;
    uint64_t elements;
} Given;

/* How it rounds: precision, and for a logged sum a tolerance with a code for each element (address 0: none). */
const uint8_t *EXPORT(compute)(const uint8_t *encoding, size_t size, const Given *given, uint32_t count, uint64_t step,
                               uint32_t precision, uint32_t tolerance, const uint8_t *codes) {
    Instruction i = decode_instruction((Bytes){encoding, size});
    Value operands[3];
    uint8_t types[3] = {0};
    if (i.opcode == COMMIT || (i.opcode == SOURCE && i.function >= STATE)) refuse("expected an instruction that computes");
    if (count != i.operands) refuse("expected %d operands, got %u", i.operands, (unsigned)count);
    if (precision < 16 || precision > 32) refuse("expected a precision of 16 to 32, got %u", (unsigned)precision);
    for (size_t k = 0; k < i.operands; k++) {
        if (given[k].dtype > BOOL) refuse("expected the dtype of an operand, got %u", (unsigned)given[k].dtype);
        types[k] = (uint8_t)given[k].dtype;
        operands[k] = (Value){types[k], given[k].elements, (const uint8_t *)(uintptr_t)given[k].data};
        check_operand(&i, k, types[k], given[k].elements);
    }
    check_types(&i, types);
    check_tolerances(tolerance);
    uint8_t *result = take(i.elements, SIZE_OF[i.dtype]);
    Rounding rounding = {.precision = (int)precision, .tolerance = is_logged(&i) ? (int)tolerance : 0};
    execute(&i, operands, step, rounding, codes, 0, i.elements, result);
    return result;
}
