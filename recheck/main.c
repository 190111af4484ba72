/* recheck: programs and runs of the specification again, by integers, without the code that made them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "native.h"

static uint64_t argument(const char *from, uint64_t least, uint64_t most) {
    uint64_t value = number_of(&(Json){.text = text(from)});
    if (value < least || value > most) refuse("expected a number of %" PRIu64 " to %" PRIu64 ", got %s", least, most, from);
    return value;
}

/* Prints a program's root, or why it is refused. */
static void check(const char *path) {
    jmp_buf place;
    on_refusal = &place;
    if (setjmp(place)) {
        printf("refused: %s\n", refusal);
    } else {
        Program program = decode_program(read_file(path));
        print_digest("", program_root(&program), "\n");
    }
    on_refusal = NULL;
    release(0);
}

int main(int count, char **arguments) {
    if (count >= 3 && !strcmp(arguments[1], "check")) {
        for (int k = 2; k < count; k++) check(arguments[k]);
    } else if (count >= 6 && count <= 9 && !strcmp(arguments[1], "run")) {
        Job job = {.steps = argument(arguments[5], 1, (uint64_t)1 << 32), .work = (uint64_t)1 << 40, .precision = 32};
        job.interval = count > 6 ? argument(arguments[6], 1, job.steps) : job.steps;
        if (count > 7) job.precision = (int)argument(arguments[7], 16, 32);
        if (count > 8) read_tolerances(&job, read_file(arguments[8]));
        Program program = decode_program(read_file(arguments[2]));
        Tensors state = tensors_of(read_file(arguments[3])), data = tensors_of(read_file(arguments[4]));
        run(&program, &state, &data, job);
        release(0);
    } else {
        fputs("recheck run PROGRAM STATE DATA STEPS [INTERVAL [PRECISION [LOGS]]]: the roots of a run\n"
              "recheck check PROGRAM...: each program's root, or why it is refused\n", stderr);
        return 1;
    }
    return fflush(stdout) ? 1 : 0;
}
