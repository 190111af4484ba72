/* Holds recheck against tests/vectors: `vectors FOLDER` prints how many cases of each file agree, or the first that does not. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "protocol.h"

static const char *folder;
static const Rounding PLAIN = {.precision = 32};

static Json *file(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.json", folder, name);
    return parse_json(read_file(path));
}

static void expect_same(Bytes found, Bytes expected, const char *what, uint64_t at) {
    if (!same(found, expected)) refuse("%s: expected another result in case %" PRIu64, what, at);
}

static void expect_number(uint64_t found, uint64_t expected, const char *what, uint64_t at) {
    if (found != expected) refuse("%s: expected %" PRIx64 " in case %" PRIu64 ", got %" PRIx64, what, expected, at, found);
}

static void expect_digest(Digest found, const Json *object, const char *key, const char *what, uint64_t at) {
    expect_same((Bytes){found.b, 32}, bytes_of(member(object, key)), what, at);
}

static Digest digest_of(const Json *object, const char *key) {
    Bytes found = bytes_of(member(object, key));
    return digest_at(cut(&found, 32).at);
}

static uint64_t count_of(const Json *object, const char *key) { return number_of(member(object, key)); }
static const Json *items(const Json *object, const char *key) { return member(object, key)->first; }

static Digest domain_in(const Json *at) { return domain_of(count_of(at, "chainId"), bytes_of(member(at, "contract"))); }

static void expect_signer(Digest digest, Bytes signature, Bytes address, const char *what, uint64_t at) {
    Buffer word = buffer("");
    put_word(&word, address);
    expect_same((Bytes){signer_of(digest, signature).b, 32}, written(&word), what, at);
}

static uint64_t scalars(void) {
    const Json *all = file("scalars");
    uint64_t done = 0;
    for (const Json *name = items(all, "names"); name; name = name->next) {
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)name->text.left, (const char *)name->text.at);
        const Json *group = member(all, key);
        Bytes types = bytes_of(member(group, "operandTypes")), cases = bytes_of(member(group, "cases"));
        int function = (int)count_of(group, "function"), precision = (int)count_of(group, "precision");
        uint8_t result = (uint8_t)count_of(group, "resultType");
        if (!map_types(function, types.at, types.left, result)) refuse("expected %s to be allowed, got a refusal", key);
        for (uint64_t k = 0; k < count_of(group, "count"); k++, done++) {
            uint64_t words[3] = {0};
            for (size_t o = 0; o < types.left; o++) words[o] = number(&cases, 8);
            expect_number(map(function, types.at, result, words, precision), number(&cases, 8), key, k);
        }
        nothing_after(cases, key);
    }
    return done;
}

/* The rule that draws a case: tests/vectors/transcendentals.py. */
static uint32_t draw(const Json *group, int function, uint32_t at, int *precision) {
    Buffer out = buffer("");
    put_number(&out, (uint64_t)function, 1), put_number(&out, at, 4);
    Digest h = sha256(written(&out));
    Bytes first = {h.b, 32}, anchors = bytes_of(member(group, "anchors"));
    uint32_t word = (uint32_t)number(&first, 4), sign = word & 0x80000000;
    *precision = 16 + h.b[5] % 17;
    if (h.b[4] % 8 == 0) return word;
    if (function == 11) word &= 0x7fffffff, sign = 0;
    if (h.b[4] % 8 < 5) {
        const Json *low = items(group, "exponents");
        return (word & 0x807fffff) | (uint32_t)(number_of(low) + h.b[6] % number_of(low->next)) << 23;
    }
    cut(&anchors, 4 * ((size_t)(h.b[6] << 8 | h.b[7]) % (anchors.left / 4)));
    uint32_t anchor = (uint32_t)number(&anchors, 4), offset = h.b[4] % 8 > 5 ? h.b[8] % 17 - 8u : 0;
    return sign | ((anchor + offset) & 0x7fffffff);
}

static uint64_t transcendentals(void) {
    const Json *all = file("transcendentals");
    uint64_t done = 0, cases = count_of(all, "cases"), run_length = count_of(all, "run");
    for (const Json *name = items(all, "names"); name; name = name->next) {
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)name->text.left, (const char *)name->text.at);
        const Json *group = member(all, key);
        int function = (int)count_of(group, "function"), precision;
        Bytes digests = bytes_of(member(group, "digests"));
        for (uint32_t first = 0; first < cases; first += (uint32_t)run_length) {
            size_t before = mark();
            Buffer results = buffer("");
            for (uint32_t k = 0; k < run_length; k++, done++) {
                uint32_t x = draw(group, function, first + k, &precision);
                put_number(&results, transcendental(function, x, precision), 4);
            }
            Digest h = sha256(written(&results));
            expect_same((Bytes){h.b, 4}, cut(&digests, 4), key, first);
            release(before);
        }
    }
    return done;
}

static uint64_t hardest(void) {
    const Json *all = file("hardest");
    uint64_t done = 0;
    for (const Json *name = items(all, "names"); name; name = name->next) {
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)name->text.left, (const char *)name->text.at);
        const Json *group = member(all, key);
        Bytes cases = bytes_of(member(group, "cases"));
        int function = (int)count_of(group, "function");
        for (uint64_t k = 0; k < count_of(group, "count"); k++, done++) {
            uint32_t x = (uint32_t)number(&cases, 4);
            int precision = (int)number(&cases, 1);
            expect_number(transcendental(function, x, precision), number(&cases, 4), key, k);
            Wide v = wide_at(cut(&cases, 32));
            if (!encloses(function, x, v, (int16_t)number(&cases, 2))) refuse("%s: expected another enclosure of %08x", key, x);
        }
        nothing_after(cases, key);
    }
    return done;
}

static Accumulator accumulator_at(int kind, Bytes in) {
    Accumulator held = start(kind);
    if (kind == SUM || kind == SUM_BF16) {
        uint64_t flag = number(&in, 1);
        held.nan = flag, held.sum = wide_at(cut(&in, 8 * LIMBS));
        if (flag > 1 || (flag && !is_zero(held.sum))) refuse("expected a flag of 0, or 1 with a sum of 0, got others");
    } else {
        held.value = number(&in, kind == MAX || kind == ARGMAX ? 4 : 8);
        if ((kind == MAX || kind == ARGMAX) && canonical((uint32_t)held.value) != held.value)
            refuse("expected the NaN %08x, got %08x", NAN_BITS, (uint32_t)held.value);
        if (kind == ARGMAX || kind == ARGMAX_I64) held.index = (int64_t)number(&in, 8);
    }
    nothing_after(in, "an accumulator");
    return held;
}

static int kind_named(Bytes name) {
    static const char *const NAMES[] = {"F32_SUM", "I64_SUM", "F32_MAX", "I64_MAX", "F32_ARGMAX", "I64_ARGMAX", "BF16_SUM"};
    for (int kind = 0; kind < 7; kind++)
        if (same(name, text(NAMES[kind]))) return kind;
    refuse("expected a kind of accumulator, got %.*s", (int)name.left, (const char *)name.at);
}

static uint64_t accumulators(void) {
    const Json *all = file("accumulators");
    uint64_t done = 0;
    for (const Json *name = items(all, "kinds"); name; name = name->next) {
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)name->text.left, (const char *)name->text.at);
        const Json *group = member(all, key);
        uint64_t length = count_of(group, "length"), factors = count_of(group, "factors");
        Bytes cases = bytes_of(member(group, "cases"));
        for (uint64_t k = 0; k < count_of(group, "count"); k++, done++) {
            Accumulator held = accumulator_at(kind_named(name->text), cut(&cases, length));
            uint64_t words[2] = {0};
            for (uint64_t f = 0; f < factors; f++) words[f] = number(&cases, 8);
            add_term(&held, words, factors, (int64_t)number(&cases, 8));
            Buffer out = buffer("");
            put_accumulator(&out, &held);
            expect_same(written(&out), cut(&cases, length), key, k);
        }
        nothing_after(cases, key);
    }
    Bytes finished = bytes_of(member(member(all, "finish"), "cases"));
    for (uint64_t k = 0; k < count_of(member(all, "finish"), "count"); k++) {
        Accumulator held = accumulator_at(SUM, cut(&finished, ACCUMULATOR_BYTES));
        for (int precision = 32; precision >= 16; precision--, done++)
            expect_number(finish(&held, (Rounding){.precision = precision}), number(&finished, 4), "finish", k);
    }
    nothing_after(finished, "finish");
    return done;
}

/* Whether reading something is refused, in a work of its own. */
static bool refuses(void (*read)(const void *given), const void *given) {
    jmp_buf place, *outer = on_refusal;
    on_refusal = &place;
    if (setjmp(place)) {
        on_refusal = outer;
        return true;
    }
    read(given);
    on_refusal = outer;
    return false;
}

typedef struct {
    int kind;
    Bytes in;
} Encoded;

static void read_accumulator(const void *given) {
    const Encoded *encoded = given;
    accumulator_at(encoded->kind, encoded->in);
}

static uint64_t refused_accumulators(void) {
    const Json *all = file("accumulators"), *kind = items(all, "refusedKinds");
    uint64_t done = 0;
    for (const Json *at = items(all, "refused"); at; at = at->next, kind = kind->next, done++) {
        Encoded encoded = {kind_named(kind->text), bytes_of(at)};
        if (!refuses(read_accumulator, &encoded)) refuse("expected accumulator %" PRIu64 " to be refused", done);
    }
    return done;
}

static uint64_t rounding(void) {
    const Json *all = file("rounding");
    Bytes cases = bytes_of(member(all, "cases"));
    uint64_t count = count_of(all, "count");
    for (uint64_t k = 0; k < count; k++) {
        Accumulator held = accumulator_at(SUM, cut(&cases, ACCUMULATOR_BYTES));
        uint64_t how = number(&cases, 4);
        Rounding logged = {.precision = how & 255, .tolerance = how >> 8 & 255, .code = how >> 16 & 255};
        expect_number(finish(&held, logged), number(&cases, 4), "rounding", k);
    }
    nothing_after(cases, "rounding");
    return count;
}

static uint64_t instructions(void) {
    uint64_t done = 0;
    for (const Json *at = items(file("instructions"), "cases"); at; at = at->next, done++) {
        Instruction i = decode_instruction(bytes_of(member(at, "instruction")));
        Bytes types = bytes_of(member(at, "operandTypes"));
        Value operands[3];
        size_t k = 0;
        if (types.left != i.operands) refuse("expected %d operands, got %zu", i.operands, types.left);
        for (const Json *operand = items(at, "operands"); operand; operand = operand->next, k++) {
            Bytes data = bytes_of(operand);
            operands[k] = (Value){types.at[k], data.left / SIZE_OF[types.at[k]], data.at};
            check_operand(&i, k, types.at[k], operands[k].elements);
        }
        check_types(&i, types.at);
        uint8_t *result = take(i.elements, SIZE_OF[i.dtype]);
        execute(&i, operands, 3, PLAIN, NULL, 0, i.elements, result);
        expect_same((Bytes){result, i.elements * SIZE_OF[i.dtype]}, bytes_of(member(at, "result")), "instructions", done);
        Buffer leaves = buffer(""), expected = buffer("");
        for (uint64_t terms = 0; accumulates(&i) && terms < i.terms;) {
            terms = i.terms - terms < 4 ? i.terms : terms + 4;
            Accumulator held = accumulate(&i, operands, i.elements - 1, terms);
            put_accumulator(&leaves, &held);
        }
        for (const Json *leaf = items(at, "accumulators"); leaf; leaf = leaf->next)
            put(&expected, bytes_of(leaf).at, bytes_of(leaf).left);
        expect_same(written(&leaves), written(&expected), "accumulators of instructions", done);
    }
    return done;
}

static uint64_t philox_numbers(void) {
    const Json *all = file("philox");
    Bytes blocks = bytes_of(member(all, "blocks")), draws = bytes_of(member(all, "random"));
    Bytes walks = bytes_of(member(all, "shuffle"));
    uint64_t block_count = count_of(all, "blockCount"), random_count = count_of(all, "randomCount");
    for (uint64_t k = 0; k < block_count; k++) {
        uint32_t counter[4], block[4];
        for (int w = 0; w < 4; w++) counter[w] = (uint32_t)number(&blocks, 4);
        uint64_t low = number(&blocks, 4), high = number(&blocks, 4);
        philox(counter, high << 32 | low, block);
        for (int w = 0; w < 4; w++) expect_number(block[w], number(&blocks, 4), "philox", k);
    }
    for (uint64_t k = 0; k < random_count; k++) {
        uint64_t seed = number(&draws, 8), step = number(&draws, 8), stream = number(&draws, 8), at = number(&draws, 8);
        expect_number(random_number(seed, step, (uint32_t)stream, at), number(&draws, 8), "random", k);
    }
    for (uint64_t k = 0; k < count_of(all, "shuffleCount"); k++) {
        uint64_t index = number(&walks, 8), seed = number(&walks, 8), epoch = number(&walks, 8), n = number(&walks, 8);
        uint64_t stream = number(&walks, 8), found = (uint64_t)shuffle((int64_t)index, seed, epoch, n, (uint32_t)stream);
        expect_number(found, number(&walks, 8), "shuffle", k);
    }
    nothing_after(blocks, "blocks"), nothing_after(draws, "random"), nothing_after(walks, "shuffle");
    return block_count + random_count + count_of(all, "shuffleCount");
}

static const Digest *digests(Bytes in, size_t *count) {
    *count = in.left / 32;
    Digest *out = take(*count + 1, sizeof *out);
    for (size_t k = 0; k < *count; k++) out[k] = digest_at(cut(&in, 32).at);
    nothing_after(in, "digests");
    return out;
}

static void one_tree(const Json *at, uint64_t number_of_tree) {
    size_t count, length, position = 0, size = (size_t)1 << count_of(at, "depth");
    const Digest *given = digests(bytes_of(member(at, "leaves")), &count);
    unsigned depth = (unsigned)count_of(at, "depth"), least = depth_of(count);
    Digest *leaves = take(size, sizeof *leaves);
    if (count > size || depth > 16) refuse("expected at most %zu leaves, got %zu", size, count);
    for (size_t k = 0; k < size; k++) leaves[k] = k < count ? given[k] : empty();
    Digest root = tree(leaves, count ? count : 1);
    expect_digest(pad(root, least, depth), at, "root", "tree", number_of_tree);
    expect_digest(pad(root, least, depth + 3), at, "paddedBy3", "pad", number_of_tree);
    for (const Json *proof = items(at, "proofs"); proof; proof = proof->next, position++) {
        const Digest *path = digests(bytes_of(proof), &length);
        Digest mine[65];
        siblings(leaves, size, position, mine);
        expect_same((Bytes){(const uint8_t *)mine, 32 * depth}, bytes_of(proof), "proof", number_of_tree);
        expect_digest(fold(leaves[position], position, path, length), at, "root", "fold", position);
    }
    expect_number(position, size, "proofs", number_of_tree);
}

static uint64_t trees(void) {
    const Json *all = file("trees");
    uint64_t done = 0;
    expect_digest(empty(), all, "empty", "empty", 0);
    for (const Json *at = items(all, "trees"); at; at = at->next) one_tree(at, done++);
    for (const Json *at = items(all, "tensors"); at; at = at->next, done++) {
        uint64_t dims[MAX_RANK] = {0};
        uint8_t rank = 0;
        for (const Json *dim = items(at, "dims"); dim; dim = dim->next) dims[rank++] = number_of(dim);
        Digest chunks = chunk_root(bytes_of(member(at, "data")));
        expect_digest(chunks, at, "chunkRoot", "chunk root", done);
        expect_digest(tensor_id((uint8_t)count_of(at, "dtype"), rank, dims, chunks), at, "id", "tensor", done);
    }
    for (const Json *at = items(all, "entries"); at; at = at->next, done++) {
        Digest tensor = digest_of(at, "tensor");
        expect_digest(entry_leaf("tb.state", member(at, "name")->text, tensor), at, "stateLeaf", "state leaf", done);
        expect_digest(entry_leaf("tb.data.", member(at, "name")->text, tensor), at, "dataLeaf", "data leaf", done);
    }
    for (const Json *at = items(all, "records"); at; at = at->next, done++) {
        Digest made = record(count_of(at, "step"), digest_of(at, "stateRoot"), (uint32_t)count_of(at, "lossBits"), digest_of(at, "logRoot"));
        expect_digest(made, at, "digest", "record", done);
    }
    for (const Json *at = items(all, "instructions"); at; at = at->next, done++)
        expect_digest(instruction_leaf(bytes_of(member(at, "instruction"))), at, "leaf", "instruction leaf", done);
    return done;
}

static uint64_t one_step_log(const Program *p, const Json *step, uint64_t at) {
    Bytes entries = bytes_of(member(step, "entries"));
    Buffer counted = buffer("");
    put_number(&counted, entries.left / 9, 4), put(&counted, entries.at, entries.left);
    Bytes in = written(&counted);
    Log log = read_log(p, &in);
    uint64_t done = 0;
    nothing_after(in, "a log");
    expect_digest(step_log(p, log), step, "stepLog", "step log", at);
    for (const Json *opening = items(step, "openings"); opening; opening = opening->next, done++) {
        uint64_t value = count_of(opening, "value"), chunk = count_of(opening, "chunk");
        uint8_t word[32];
        Digest path[128];
        Bytes expected = bytes_of(member(opening, "siblings"));
        log_word(log.codes[value], p->code[value].elements, chunk, word);
        expect_same((Bytes){word, 32}, bytes_of(member(opening, "word")), "log word", at);
        expect_digest(word_leaf(word), opening, "leaf", "log leaf", at);
        log_path(p, log, (uint32_t)value, chunk, path);
        expect_same((Bytes){(const uint8_t *)path, expected.left}, expected, "log siblings", at);
        Digest folded = fold(word_leaf(word), count_of(opening, "position"), path, expected.left / 32);
        expect_digest(folded, step, "stepLog", "fold of a log word", at);
    }
    return done;
}

static uint64_t logs(void) {
    const Json *all = file("logs"), *proof = items(all, "logProofs");
    Program p = decode_program(bytes_of(member(all, "program")));
    uint64_t done = 0, steps = 0;
    Digest roots[16], path[8];
    expect_number(p.depth, count_of(all, "depth"), "depth of logs", 0);
    for (const Json *step = items(all, "steps"); step; step = step->next) {
        done += one_step_log(&p, step, steps);
        roots[steps++ % 16] = digest_of(step, "stepLog");
    }
    expect_digest(tree(roots, steps), all, "logRoot", "log root", 0);
    for (uint64_t k = 0; k < steps; k++, proof = proof->next) {
        siblings(roots, steps, k, path);
        expect_same((Bytes){(const uint8_t *)path, 32 * depth_of(steps)}, bytes_of(proof), "log proof", k);
    }
    Bytes word = bytes_of(member(all, "word")), codes = bytes_of(member(all, "codes"));
    for (size_t k = 0; k < codes.left; k++) expect_number(code_in(word.at, k), codes.at[k], "code", k);
    return done;
}

/* H(tag, members in order): a name alone is bytes, one of width w a number. */
static Digest hash_of(const char *tag, const Json *object, const char *const *keys, const size_t *widths) {
    Buffer out = buffer(tag);
    for (size_t k = 0; keys[k]; k++) {
        if (widths[k]) put_number(&out, count_of(object, keys[k]), widths[k]);
        else put(&out, bytes_of(member(object, keys[k])).at, bytes_of(member(object, keys[k])).left);
    }
    return sha256(written(&out));
}

static uint64_t seats(void) {
    static const size_t SEAL_BYTES[] = {0, 8, 0, 0}, PLAIN_BYTES[] = {0, 0, 0, 0};
    uint64_t done = 0;
    for (const Json *at = items(file("seats"), "cases"); at; at = at->next, done++) {
        const char *const head[] = {"jobId", "headCount", "runRoot", "salt", NULL}, *const secret[] = {"secret", NULL};
        const char *const root[] = {"jobId", "auditor", "runRoot", "salt", NULL};
        const char *const seed[] = {"jobId", "entropy", "secret", NULL};
        expect_digest(hash_of("tb.hseal", at, head, SEAL_BYTES), at, "headSeal", "head seal", done);
        expect_digest(hash_of("tb.rseal", at, root, PLAIN_BYTES), at, "rootSeal", "root seal", done);
        expect_digest(hash_of("tb.secrt", at, secret, PLAIN_BYTES), at, "nonce", "secret", done);
        expect_digest(hash_of("tb.seed.", at, seed, PLAIN_BYTES), at, "seed", "seed", done);
        uint64_t place = 0, length = count_of(at, "poolLength");
        for (const Json *slot = items(at, "slots"); slot; slot = slot->next, place++) {
            Buffer out = buffer("tb.seat.");
            put_digest(&out, digest_of(at, "seed"));
            put_number(&out, place / 32, 1), put_number(&out, place % 32, 1);
            Digest drawn = sha256(written(&out));
            Wide rest;
            quotient(wide_at((Bytes){drawn.b, 32}), wide(length), &rest);
            expect_number(rest.w[0], number_of(slot), "slot", place);
        }
    }
    return done;
}

static uint64_t snapshots(void) {
    static const char *const NAMES[] = {"phase", "level", "height", "fresh", "dtype", "summation", "lastChunkBytes",
        "position", "element", "leaves", "step", "instruction", "termLeaves"};
    static const size_t WIDTHS[] = {1, 1, 1, 1, 1, 1, 2, 8, 8, 8, 8, 4, 4};
    const Json *all = file("snapshots"), *state = member(all, "signed");
    uint64_t done = 0;
    for (const Json *at = items(all, "cases"); at; at = at->next, done++) {
        Buffer out = buffer("tb.snap.");
        for (size_t k = 0; k < 13; k++) put_number(&out, count_of(at, NAMES[k]), WIDTHS[k]);
        put_digest(&out, digest_of(at, "node")), put_digest(&out, digest_of(at, "opened")), put_digest(&out, digest_of(at, "log"));
        Bytes encoded = written(&out);
        cut(&encoded, 8);
        expect_same(encoded, bytes_of(member(at, "encoded")), "snapshot", done);
        expect_digest(sha256(written(&out)), at, "id", "snapshot's id", done);
    }
    Buffer out = typed(STATE_TYPE);
    put_digest(&out, digest_of(state, "gameId")), put_number(&out, count_of(state, "sequence"), 32);
    put_digest(&out, digest_of(state, "snapshot"));
    expect_digest(to_sign(domain_in(state), &out), state, "digest", "signed state", 0);
    return done;
}

static Ground ground_in(const Json *at) {
    return (Ground){.steps = count_of(at, "steps"), .interval = count_of(at, "checkpointInterval"),
                    .levels = count_of(at, "descentLevels"), .policy = count_of(at, "policy"),
                    .depth = (unsigned)count_of(at, "depth"), .body = count_of(at, "bodyCount"),
                    .states = count_of(at, "stateCount"), .count = count_of(at, "count")};
}

static Bytes encoded_case(const Json *all, uint64_t wanted) {
    const Json *at = items(all, "cases");
    for (uint64_t k = 0; at && k < wanted; k++) at = at->next;
    return at ? bytes_of(member(at, "encoded")) : (Bytes){0};
}

static void expect_place(Bytes snapshot, const Ground *ground, uint64_t expected, uint64_t at) {
    expect_number((uint64_t)misplaced(snapshot, ground), expected, "entered snapshots", at);
}

static uint64_t entered(void) {
    const Json *all = file("snapshots");
    uint64_t done = 0;
    for (const Json *at = items(all, "refused"); at; at = at->next, done++)
        if (is_snapshot(bytes_of(at))) refuse("expected snapshot %" PRIu64 " to be refused", done);
    for (const Json *at = items(all, "entered"); at; at = at->next) {
        Ground ground = ground_in(at);
        for (const Json *state = items(at, "states"); state; state = state->next, done++)
            expect_place(encoded_case(all, number_of(state)), &ground, IN_PLACE, number_of(state));
        for (Bytes changes = bytes_of(member(at, "changes")); changes.left; done++) {
            uint64_t number_of_case = number(&changes, 1), offset = number(&changes, 1), size = number(&changes, 1);
            uint64_t refused_at = number(&changes, 1);
            Bytes value = cut(&changes, 8), given = encoded_case(all, number_of_case);
            uint8_t changed[SNAPSHOT_BYTES];
            if (given.left != SNAPSHOT_BYTES || size > 8 || offset + size > SNAPSHOT_BYTES) refuse("expected it inside");
            memcpy(changed, given.at, SNAPSHOT_BYTES), memcpy(changed + offset, value.at, size);
            expect_place((Bytes){changed, SNAPSHOT_BYTES}, &ground, refused_at, done);
        }
    }
    return done;
}

static void read_program(const void *given) { decode_program(*(const Bytes *)given); }

typedef struct {
    const Json *all;
    Bytes logs;
    Digest *root;
} LateRun;

static void run_late(const void *given) {
    const LateRun *wanted = given;
    const Json *all = wanted->all;
    Program p = decode_program(bytes_of(member(all, "program")));
    Tensors first = tensors_in(member(all, "state")), data = tensors_in(member(all, "data"));
    Job job = {.interval = count_of(all, "checkpointInterval"), .work = 1 << 20, .quiet = true};
    job.precision = (int)count_of(all, "precision");
    for (const Json *at = items(all, "stepLogs"); at; at = at->next) job.steps++;
    read_tolerances(&job, wanted->logs);
    *wanted->root = run(&p, &first, &data, job);
}

/* A proof of a source of late data, of which the snapshot holds the leaf, the defender's id and the step log. */
static const char *winner_of(const Json *proof, unsigned depth) {
    Bytes snapshot = bytes_of(member(proof, "snapshot")), path = bytes_of(member(proof, "siblings"));
    Bytes leaf = {snapshot.at + 40, 4}, own = {snapshot.at + 48, 32}, log = {snapshot.at + 112, 32};
    Digest found = digest_of(proof, "tensorId");
    if (path.left != 32 * depth) return "null";
    Digest folded = fold(found, number(&leaf, 4), (const Digest *)path.at, depth);
    if (!same((Bytes){folded.b, 32}, log)) return "null";
    return same((Bytes){found.b, 32}, own) ? "defender" : "challenger";
}

static uint64_t late_programs(const Json *at) {
    uint64_t done = 0;
    for (; at; at = at->next, done++) {
        Bytes encoded = bytes_of(member(at, "program"));
        bool refused = refuses(read_program, &encoded);
        if (refused != (member(at, "root")->kind != '"')) refuse("expected another answer to program %" PRIu64, done);
        if (refused) continue;
        Program p = decode_program(encoded);
        expect_digest(program_root(&p), at, "root", "program with late data", done);
    }
    return done;
}

/* The step logs, and the places of all late data under them. */
static uint64_t late_openings(const Json *all) {
    uint64_t done = 0, step = 0;
    Program p = decode_program(bytes_of(member(all, "program")));
    Bytes in = bytes_of(member(all, "logs"));
    cut(&in, 4);
    const Json *opening = items(all, "openings");
    for (const Json *at = items(all, "stepLogs"); at; at = at->next) {
        Log log = read_log(&p, &in);
        Digest root = step_log(&p, log), path[64];
        expect_same((Bytes){root.b, 32}, bytes_of(at), "step log with late data", ++step);
        for (; opening && count_of(opening, "step") == step; opening = opening->next, done++) {
            uint32_t value = (uint32_t)count_of(opening, "value");
            value_path(&p, log, value, path);
            expect_digest(value_logs(&p, log)[value], opening, "tensorId", "id of late data", done);
            expect_same((Bytes){(const uint8_t *)path, 32 * p.depth}, bytes_of(member(opening, "siblings")), "siblings", done);
        }
    }
    return done;
}

static uint64_t late(void) {
    const Json *all = file("late"), *game = member(all, "game");
    uint64_t done = late_programs(items(all, "programs")) + late_openings(all);
    Digest root;
    LateRun right = {all, bytes_of(member(all, "logs")), &root};
    run_late(&right);
    expect_digest(root, all, "runRoot", "run with late data", 0);
    for (const Json *at = items(all, "refused"); at; at = at->next, done++) {
        LateRun hostile = {all, bytes_of(member(at, "logs")), &root};
        if (!refuses(run_late, &hostile)) refuse("expected logs %" PRIu64 " to be refused", done);
    }
    Ground ground = ground_in(game);
    for (const Json *at = items(game, "proofs"); at; at = at->next, done++) {
        expect_place(bytes_of(member(at, "snapshot")), &ground, IN_PLACE, done);
        expect_same(text(winner_of(at, ground.depth)), member(at, "winner")->text, "proof of late data", done);
    }
    return done;
}

static uint64_t receipts(void) {
    uint64_t done = 0;
    for (const Json *at = items(file("receipts"), "cases"); at; at = at->next, done++) {
        Buffer out = typed(RECEIPT_TYPE);
        put_digest(&out, digest_of(at, "jobId")), put_number(&out, count_of(at, "headCount"), 32);
        put_digest(&out, digest_of(at, "runRoot"));
        Digest digest = to_sign(domain_in(at), &out);
        expect_digest(digest, at, "digest", "receipt", done);
        expect_signer(digest, bytes_of(member(at, "signature")), bytes_of(member(at, "client")), "receipt", done);
    }
    return done;
}

/* What a body shows is signed by the client or the trainer of the job, or by the sender of the post. */
static void check_signatures(const Post *post, const Packed *job, Digest domain, uint64_t at) {
    const Packed *shown = post->body->items, *signature = shown->items + 3, *signer = job->items + 1;
    Buffer structure = buffer("");
    Message message;
    Packed receipt;
    switch (post->kind) {
    case ANSWER: structure = structure_of(JOB_TYPE, 27, shown), signature = shown + 1; break;
    case HEAD: case GAME: structure = structure_of(HEAD_TYPE, 3, shown); break;
    case LOG_RECEIPT: structure = structure_of(RECEIPT_TYPE, 3, shown), signer = job->items; break;
    case MESSAGE:
        message = message_at(shown->bytes), structure = typed(MESSAGE_TYPE), signer = post->envelope + 5;
        put_digest(&structure, message.hash), signature = &message.signature;
        break;
    case MOVE_RECEIPT:
        receipt = receipt_at(shown->bytes), structure = structure_of(STATE_TYPE, 3, &receipt);
        signature = receipt.items + 3, signer = post->envelope + 5;
        break;
    case CONCESSION: structure = structure_of(CONCESSION_TYPE, 3, shown->items), put_word(&structure, shown->items[1].bytes);
        signature = shown->items + 2;
        break;
    default: return;
    }
    if (!signature->number) return; /* of an answer that declines */
    expect_signer(to_sign(domain, &structure), signature->bytes, signer->bytes, "signature in a post", at);
}

static uint64_t posts(void) {
    static const char *const NAMES[KINDS] = {NULL, "offer", "answer", "head", "log_receipt", "game", "move", "receipt",
        "library", "steps", "replayed", "transaction", "concession", "auditors"};
    const Json *all = file("posts"), *complete = member(all, "complete");
    Digest domain = domain_in(all);
    Bytes hub = bytes_of(member(all, "hub"));
    Buffer received = buffer(""), end = typed("Complete(bytes32 jobId,bytes32 posts,uint64 at)");
    uint64_t done = 0;
    Packed job = {0};
    for (const Json *at = items(all, "cases"); at; at = at->next, done++) {
        Post post = post_at(bytes_of(member(at, "wire")), domain);
        Buffer own = typed("Post(bytes32 content)"), taken = typed("Received(bytes32 content,uint64 place,uint64 at)");
        put_digest(&own, post.content), put_digest(&taken, post.content);
        put_number(&taken, count_of(at, "place"), 32), put_number(&taken, count_of(at, "at"), 32);
        put_digest(&received, keccak256(written(&taken)));
        expect_same(text(NAMES[post.kind]), member(at, "kind")->text, "kind of post", done);
        expect_number(post.envelope[3].number, done, "number of post", done);
        expect_digest(post.content, at, "content", "content of post", done);
        expect_same(post.envelope[5].bytes, bytes_of(member(at, "sender")), "sender of post", done);
        expect_signer(to_sign(domain, &own), post.signature, post.envelope[5].bytes, "post", done);
        expect_signer(to_sign(domain, &taken), bytes_of(member(at, "received")), hub, "received post", done);
        if (post.kind == OFFER) job = post.body->items[0], put(&end, post.envelope[0].bytes.at, 32);
        check_signatures(&post, &job, domain, done);
    }
    expect_digest(keccak256(written(&received)), complete, "posts", "posts of the end", done);
    put_digest(&end, digest_of(complete, "posts")), put_number(&end, count_of(complete, "at"), 32);
    expect_digest(to_sign(domain, &end), complete, "digest", "end", done);
    expect_signer(to_sign(domain, &end), bytes_of(member(complete, "signature")), hub, "end", done);
    return done;
}

static uint64_t blobs(void) {
    enum { PIECE = 1 << 20 };
    uint64_t done = 0;
    for (const Json *at = items(file("posts"), "blobs"); at; at = at->next, done++) {
        uint64_t size = count_of(at, "size"), pieces = size ? (size + PIECE - 1) / PIECE : 1;
        Digest leaves[8];
        const Json *expected = items(at, "pieces");
        for (uint64_t k = 0; k < pieces && k < 8; k++, expected = expected->next) {
            size_t before = mark();
            Buffer out = buffer("tb.piece");
            for (uint64_t b = k * PIECE; b < size && b < (k + 1) * PIECE; b++) put_number(&out, b % 251, 1);
            leaves[k] = sha256(written(&out));
            expect_same((Bytes){leaves[k].b, 32}, bytes_of(expected), "piece", done);
            release(before);
        }
        Buffer out = buffer("tb.blob.");
        put_number(&out, size, 8), put_digest(&out, tree(leaves, pieces));
        expect_digest(sha256(written(&out)), at, "root", "blob", done);
    }
    return done;
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        uint64_t (*check)(void);
    } CHECKS[] = {{"scalars", scalars}, {"transcendentals", transcendentals}, {"hardest", hardest},
        {"accumulators", accumulators}, {"refused accumulators", refused_accumulators}, {"rounding", rounding},
        {"instructions", instructions}, {"philox", philox_numbers}, {"trees", trees}, {"logs", logs}, {"late", late}, {"seats", seats},
        {"snapshots", snapshots}, {"entered snapshots", entered}, {"receipts", receipts}, {"posts", posts}, {"blobs", blobs}};
    if (count != 2) return fputs("vectors FOLDER\n", stderr), 1;
    folder = arguments[1];
    for (size_t k = 0; k < sizeof CHECKS / sizeof *CHECKS; k++) {
        printf("%s: %" PRIu64 "\n", CHECKS[k].name, CHECKS[k].check());
        fflush(stdout);
        release(0);
    }
    return 0;
}
