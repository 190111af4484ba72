#ifndef RECHECK_LOG_H
#define RECHECK_LOG_H

#include "recheck.h"

/* Rounding logs (section 5.1): a step's codes, one byte an element, by body instruction; NULL where it logs nothing. */
bool is_logged(const Instruction *i);
uint8_t code_in(const uint8_t word[32], size_t element);
void log_word(const uint8_t *codes, uint64_t elements, uint64_t chunk, uint8_t word[32]);
Digest word_leaf(const uint8_t word[32]);
/* The step log; with `path`, also the siblings of a word of a logged sum: those of its chunk, then those of its value. */
Digest step_log(const Program *program, uint8_t *const *codes, uint32_t value, uint64_t chunk, Digest *path);

#endif
