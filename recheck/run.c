#include "native.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void read_tolerances(Job *job, Bytes file) {
    job->tolerances = (uint32_t)number(&file, 4), job->logs = file;
    check_tolerances(job->tolerances);
}

void print_digest(const char *before, Digest digest, const char *after) {
    printf("%s", before);
    for (int k = 0; k < 32; k++) printf("%02x", digest.b[k]);
    printf("%s", after);
}

static void fill(uint8_t *to, const Instruction *i, const Tensors *tensors) {
    for (size_t k = 0; k < tensors->count; k++) {
        if (!same(tensors->names[k], i->name) || tensors->data[k].left != size_of(i)) continue;
        memcpy(to, tensors->data[k].at, tensors->data[k].left);
        return;
    }
    refuse("expected a tensor %.*s of %" PRIu64 " elements, got none", (int)i->name.left, (const char *)i->name.at, i->elements);
}

/* The log root of a segment of so many steps. */
static Digest segment_log(const Program *p, Bytes logs, uint64_t steps) {
    size_t before = mark();
    Tree all = {0};
    for (; steps; steps--, release(before)) add_leaf(&all, step_log(p, read_log(p, &logs)));
    return root_of(&all);
}

/* The record of the step that the replay has completed. */
static Digest record_of(const Replay *r, Digest log_root, bool quiet) {
    Digest state = state_after(r), made = record(r->step, state, loss_of(r), log_root);
    if (quiet) return made;
    printf("step %" PRIu64 " loss %08x", r->step, loss_of(r));
    print_digest(" state ", state, ""), print_digest(" values ", values_root(r), ""), print_digest(" record ", made, "\n");
    return made;
}

Digest run(const Program *p, const Tensors *state, const Tensors *data, Job job) {
    u128 work = 0;
    for (uint32_t at = 0; at < p->body; at++) work += (u128)p->code[at].elements * p->code[at].terms;
    if (work > job.work / job.steps) refuse("expected at most %" PRIu64 " terms in all, got more", job.work);
    Replay *r = open_replay(p, job.precision, job.tolerances);
    for (uint32_t k = 0; k < p->states; k++) fill(r->tensors[STATE][k], &p->code[p->body + k], state);
    for (uint32_t k = 0; k < p->data.count; k++) fill(r->tensors[DATA][k], p->data.at[k], data);
    Digest first = inputs_root(r, STATE), inputs = inputs_root(r, DATA), log_root = {{0}}, last;
    if (!job.quiet)
        print_digest("program ", program_root(p), "\n"), print_digest("state ", first, "\n"), print_digest("data ", inputs, "\n");
    Tree records = {0};
    for (uint64_t step = 1; step <= job.steps; step++) {
        uint64_t left = job.steps - step + 1;
        if (job.logs.at && (step - 1) % job.interval == 0)
            log_root = segment_log(p, job.logs, left < job.interval ? left : job.interval);
        begin_step(r, step, job.logs.at ? &job.logs : NULL);
        advance(r, (uint64_t)1 << 62);
        last = record_of(r, log_root, job.quiet);
        if (left == 1 || step % job.interval == 0) add_leaf(&records, last);
        end_step(r);
    }
    nothing_after(job.logs, "the logs of all steps");
    Digest root = root_of(&records);
    if (!job.quiet) print_digest("run ", root, "\n");
    return root;
}
