/* Runs recheck on mutated bytes for some seconds: `fuzz SECONDS SEED PROGRAM STATE DATA POSTS SNAPSHOTS LATE`. Built
   with sanitizers, it ends at the first access outside an object and at the first undefined operation. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "protocol.h"

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

enum { PROGRAM, INITIAL, EXAMPLES, LOGS, POSTED, PLACES, LATE_RUN, TARGETS };

static const Json *drawn(const Json *all, const char *key) {
    const Json *first = member(all, key)->first, *at = first;
    for (uint64_t k = draw(number_of(member(all, "count"))); k; k--) at = at->next ? at->next : first;
    return at;
}

/* A plain log file of two steps: the first and the last element of each logged sum. */
static Bytes two_logs(const Program *p) {
    Buffer all = buffer(""), one = buffer("");
    uint64_t count = 0;
    for (uint32_t at = 0; at < p->body; at++) {
        if (!is_logged(&p->code[at])) continue;
        uint64_t elements = p->code[at].elements, last = elements > 1;
        put_number(&one, at, 4), put_number(&one, 0, 4), put_number(&one, 1, 1);
        if (last) put_number(&one, at, 4), put_number(&one, elements - 1, 4), put_number(&one, 2, 1);
        count += 1 + last;
    }
    put_number(&all, 0x400202, 4);
    for (int step = 0; step < 2; step++) put_number(&all, count, 4), put(&all, one.at, one.size);
    return written(&all);
}

static void run_two_steps(const Bytes *files, int which) {
    Program program = decode_program(which == PROGRAM ? mutated(files[0]) : files[0]);
    program_root(&program);
    Tensors initial = tensors_of(which == INITIAL ? mutated(files[1]) : files[1]);
    Tensors data = tensors_of(which == EXAMPLES ? mutated(files[2]) : files[2]);
    Job job = {.steps = 2, .interval = 2, .work = 1 << 16, .precision = 32, .quiet = true};
    if (which == LOGS) read_tolerances(&job, mutated(two_logs(&program)));
    run(&program, &initial, &data, job);
}

/* The run of the vectors of late data, with another program or other logs. */
static void run_late(const Json *late) {
    Bytes program = bytes_of(member(late, "program")), logs = bytes_of(member(late, "logs"));
    if (draw(2)) program = mutated(program);
    else logs = mutated(logs);
    Program p = decode_program(program);
    Tensors initial = tensors_in(member(late, "state")), data = tensors_in(member(late, "data"));
    Job job = {.steps = 3, .interval = 2, .work = 1 << 16, .precision = 32, .quiet = true};
    read_tolerances(&job, logs);
    run(&p, &initial, &data, job);
}

/* A post, and for some of those that are taken a key that could have signed its content. */
static void read_post(const Json *posts) {
    Post post = post_at(mutated(bytes_of(member(drawn(posts, "cases"), "wire"))), domain_of(draw(9), (Bytes){0}));
    if (!draw(64)) signer_of(post.content, post.signature);
}

static void read_snapshot(const Json *snapshots) {
    Ground ground = {.steps = 1 + draw(9), .interval = 1 + draw(3), .levels = 1 + draw(5), .policy = draw(2),
                     .depth = (unsigned)draw(21), .body = 1 + draw(99), .states = 1 + draw(9), .count = 1 + draw(3)};
    Bytes in = mutated(bytes_of(member(drawn(snapshots, "cases"), "encoded")));
    if (misplaced(in, &ground) != IN_PLACE) refuse("expected a snapshot of that game, got another");
}

/* Whether mutated bytes were taken for what they should be; all memory is freed. */
static bool try(int which, const Bytes *files, const Json *posts, const Json *snapshots, const Json *late) {
    jmp_buf refused;
    size_t before = mark();
    on_refusal = &refused;
    if (setjmp(refused)) {
        on_refusal = NULL;
        release(before);
        return false;
    }
    if (which == POSTED) read_post(posts);
    else if (which == PLACES) read_snapshot(snapshots);
    else if (which == LATE_RUN) run_late(late);
    else run_two_steps(files, which);
    on_refusal = NULL;
    release(before);
    return true;
}

int main(int count, char **arguments) {
    if (count != 9) return fputs("fuzz SECONDS SEED PROGRAM STATE DATA POSTS SNAPSHOTS LATE\n", stderr), 1;
    Bytes files[6];
    for (int k = 0; k < 6; k++) files[k] = read_file(arguments[3 + k]);
    const Json *posts = parse_json(files[3]), *snapshots = parse_json(files[4]), *late = parse_json(files[5]);
    time_t end = time(NULL) + atoi(arguments[1]);
    state = strtoull(arguments[2], NULL, 10);
    static const int SHARES[] = {PROGRAM, PROGRAM, PROGRAM, PROGRAM, INITIAL, EXAMPLES, LOGS, POSTED, POSTED, PLACES, LATE_RUN};
    static const char *const NAMES[] = {"programs", "states", "data", "logs", "posts", "snapshots", "late data"};
    uint64_t tried[TARGETS] = {0}, taken[TARGETS] = {0};
    for (bool each = false; time(NULL) < end || (!each && time(NULL) < end + 100);) { /* until each kind had both ends */
        int which = SHARES[draw(11)];
        tried[which]++, taken[which] += try(which, files, posts, snapshots, late);
        each = true;
        for (int k = 0; k < TARGETS; k++) each &= taken[k] > 0 && taken[k] < tried[k];
    }
    for (int k = 0; k < TARGETS; k++) printf("%s: %" PRIu64 " tried, %" PRIu64 " taken\n", NAMES[k], tried[k], taken[k]);
    release(0);
    return 0;
}
