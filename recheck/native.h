/* recheck as a process: files, JSON, whole runs that are printed, and refusals that end it. */
#ifndef RECHECK_NATIVE_H
#define RECHECK_NATIVE_H

#include <setjmp.h>

#include "recheck.h"

/* Where `refuse` jumps; if it is NULL, the process ends with status 2. */
extern jmp_buf *on_refusal;
extern char refusal[256];
Bytes read_file(const char *path);

/* Tensors by name, as in a safetensors file. */
typedef struct {
    size_t count;
    Bytes *names, *data;
} Tensors;

Tensors tensors_of(Bytes safetensors);
typedef struct {
    uint64_t steps, interval, work;
    int precision;
    uint32_t tolerances; /* of policy `logged`, and the logs of its steps */
    Bytes logs;
    bool quiet;
} Job;
/* Makes a job one of policy `logged`, along a plain log file. */
void read_tolerances(Job *job, Bytes file);
/* Runs a job, printing each step's record; the run root. */
Digest run(const Program *program, const Tensors *state, const Tensors *data, Job job);
void print_digest(const char *before, Digest digest, const char *after);

/* JSON as far as test vectors and safetensors headers need it: strings have no escapes. */

typedef struct Json {
    char kind; /* {, [, ", or 0 for a number or word */
    Bytes key, text;
    struct Json *first, *next;
} Json;

Json *parse_json(Bytes in);
const Json *member(const Json *object, const char *key);
uint64_t number_of(const Json *value);

#endif
