/* Runs recheck on mutated bytes for some seconds: `fuzz SECONDS SEED PROGRAM STATE DATA`. Built with sanitizers, it ends at
   the first access outside an object and at the first undefined operation. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "recheck.h"

static uint64_t state;

static uint64_t draw(uint64_t below) {
    state += 0x9e3779b97f4a7c15; /* splitmix64 */
    uint64_t z = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (z ^ z >> 31) % below;
}

static size_t place(Bytes in, size_t size) {
    size_t most = in.left - size + 1;
    return draw(2) ? draw(most) : draw(most < 512 ? most : 512); /* headers are at the beginning */
}

/* One to three changes: a byte, a bit, a wide number of note, a piece moved, an end cut off. A copy without slack. */
static Bytes mutated(Bytes in) {
    static const uint64_t NUMBERS[] = {0, 1, UINT64_MAX, (uint64_t)1 << 63, INT64_MAX, (uint64_t)1 << 40, 513};
    uint8_t *bytes = take(in.left, 1);
    memcpy(bytes, in.at, in.left);
    Bytes out = {bytes, in.left};
    for (uint64_t changes = 1 + draw(3); changes && out.left >= 16; changes--) {
        size_t at = place(out, 8), from = place(out, 8);
        uint64_t value = NUMBERS[draw(7)] + draw(3) - 1;
        switch (draw(6)) {
        case 0: bytes[at] = (uint8_t)draw(256); break;
        case 1: bytes[at] ^= (uint8_t)(1 << draw(8)); break;
        case 2: bytes[at] = (uint8_t)draw(12); break;
        case 3:
            for (int k = 0; k < 8; k++) bytes[at + k] = (uint8_t)(value >> (56 - 8 * k));
            break;
        case 4: memmove(bytes + at, bytes + from, 8); break;
        default: out.left -= draw(10) ? 0 : draw(out.left / 2);
        }
    }
    uint8_t *exact = take(out.left, 1);
    memcpy(exact, bytes, out.left);
    return (Bytes){exact, out.left};
}

/* Whether the bytes ran for two steps; all of it is freed. */
static bool try(const Bytes *files, uint64_t which) {
    jmp_buf refused;
    size_t before = mark();
    on_refusal = &refused;
    if (setjmp(refused)) {
        on_refusal = NULL;
        release(before);
        return false;
    }
    Program program = decode_program(which == 0 ? mutated(files[0]) : files[0]);
    program_root(&program);
    Tensors initial = tensors_of(which == 1 ? mutated(files[1]) : files[1]);
    Tensors data = tensors_of(which == 2 ? mutated(files[2]) : files[2]);
    run(&program, &initial, &data, (Job){.steps = 2, .interval = 1, .work = 1 << 16, .precision = 32, .quiet = true});
    on_refusal = NULL;
    release(before);
    return true;
}

int main(int count, char **arguments) {
    if (count != 6) return fputs("fuzz SECONDS SEED PROGRAM STATE DATA\n", stderr), 1;
    Bytes files[3];
    for (int k = 0; k < 3; k++) files[k] = read_file(arguments[3 + k]);
    time_t end = time(NULL) + atoi(arguments[1]);
    state = strtoull(arguments[2], NULL, 10);
    uint64_t tried = 0, ran = 0;
    for (; time(NULL) < end; tried++) ran += try(files, draw(8) < 6 ? 0 : 1 + draw(2));
    printf("%" PRIu64 " tried, %" PRIu64 " ran\n", tried, ran);
    release(0);
    return tried && ran ? 0 : 1;
}
