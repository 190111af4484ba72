/* Programs (SPEC section 4): decoding, every rule that is checked before one runs, and execution (sections 4 to 7). */
#ifndef RECHECK_PROGRAM_H
#define RECHECK_PROGRAM_H

#include "numbers.h"

enum { SOURCE = 1, MAP, REDUCE, GATHER, SCATTER, WINDOW, IOTA, RANDOM, SHUFFLE, COMMIT };
enum { CONST, STEP, STATE, DATA };

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

typedef struct {
    uint32_t body, states, datas;
    unsigned depth; /* D of section 4 */
    Instruction *code;
    uint32_t *data_source; /* by data slot, the instruction that names it */
} Program;

/* A tensor that a program can read: elements little-endian, as committed. */
typedef struct {
    uint8_t dtype;
    uint64_t elements;
    const uint8_t *data;
} Value;

Instruction decode_instruction(Bytes in);
/* The checks of an operand of that dtype and size; those of the function and of all parameters are in decoding. */
void check_operand(const Instruction *i, size_t k, uint8_t dtype, uint64_t elements);
void check_types(const Instruction *i, const uint8_t *types);
Program decode_program(Bytes in);
Digest instruction_leaf(Bytes encoding);
Digest program_root(const Program *program);

/* Rounding logs (section 5.1): a step's codes, one byte an element, by body instruction; NULL where it logs nothing. */
bool is_logged(const Instruction *i);
uint8_t code_in(const uint8_t word[32], size_t element);
void log_word(const uint8_t *codes, uint64_t elements, uint64_t chunk, uint8_t word[32]);
Digest word_leaf(const uint8_t word[32]);
/* The step log; with `path`, also the siblings of a word of a logged sum: those of its chunk, then those of its value. */
Digest step_log(const Program *program, uint8_t *const *codes, uint32_t value, uint64_t chunk, Digest *path);

int accumulator_kind(const Instruction *i, uint8_t source_dtype);
bool accumulates(const Instruction *i);
/* One element of the result, at a row-major position; `leaves`, if there is one, gets the accumulators on the way. */
uint64_t element(const Instruction *i, const Value *operands, uint64_t position, uint64_t step, Rounding rounding,
                 Buffer *leaves);
uint8_t *execute(const Instruction *i, const Value *operands, uint64_t step, Rounding rounding);

/* Tensors by name, as in a safetensors file. */
typedef struct {
    size_t count;
    Bytes *names, *data;
} Tensors;

Tensors tensors_of(Bytes safetensors);
typedef struct {
    uint64_t steps, interval, work;
    int precision;
    bool quiet;
} Job;
/* Runs a job of policy `exact`, printing each step's record; the run root. */
Digest run(const Program *program, const Tensors *state, const Tensors *data, Job job);
void print_digest(const char *before, Digest digest, const char *after);

#endif
