#include "protocol.h"

#include <string.h>

const char JOB_TYPE[] =
    "Job(address client,address trainer,bytes32 programRoot,uint32 bodyCount,uint32 stateCount,uint32 dataCount,"
    "bytes32 initialStateRoot,bytes32 dataRoot,uint64 steps,uint64 checkpointInterval,uint8 policy,uint8 precision,"
    "uint32 tolerances,uint256 reward,uint256 trainerStake,uint256 challengerStake,uint64 challengeWindow,uint64 clock,"
    "uint64 replayTime,uint64 talkTime,uint64 auditTime,uint64 deadline,uint8 seats,uint256 seatFee,"
    "uint256 seatBond,uint8 descentLevels,uint256 nonce)";
const char HEAD_TYPE[] = "Head(bytes32 jobId,uint64 count,bytes32 runRoot)";
const char RECEIPT_TYPE[] = "Receipt(bytes32 jobId,uint64 count,bytes32 runRoot)";
const char CONCESSION_TYPE[] = "Concession(bytes32 jobId,uint64 count,bytes32 runRoot,address prover)";
const char MESSAGE_TYPE[] = "Message(bytes32 messageHash)";
const char STATE_TYPE[] = "State(bytes32 gameId,uint32 sequence,bytes32 snapshot)";

enum { MOST_BODY = 1 << 18 };

/* Forms of what was unpacked: u a number; bytes as in BYTES; (...) an array of these in order; one of LISTS, then the form of
   its items; . anything; J a job, H a signed head or a receipt, C a concession, W a witness, M a move, T a transaction. */
static const struct {
    char form;
    size_t least, most;
} BYTES[] = {{'a', 20, 20}, {'d', 32, 32}, {'s', 65, 65}, {'k', 0, 97}, {'c', 0, 512}, {'i', 0, 4096}, {'b', 0, MOST_BODY}},
  LISTS[] = {{'+', 0, 32}, {'*', 0, 64}, {'#', 0, 7000}, {'~', 0, MOST_BODY}};

/* By kind of move (section 9). */
static const char *const MOVES[] = {NULL, "(+d)", "(du*dd)", "(+d*ddud)", "(dud+d*dd*d)", "(i*d+d)", "(cd*d)", "(ucd)",
    "(uuu+dk*d)", "(ik*d+(uu*ud*d)+(uuc*d)Wd)", "()"};
/* By kind of post, and by number of the transaction (section 12). */
static const char *const POSTS[KINDS] = {NULL, "(J)", "(Jb)", "(H#d)", "(H)", "(Hu)", "(b)", "(b)", "(uu~(bud))", "(u~uuuu)",
    "(udu)", "(T)", "(C)", "(+a)"};
static const char *const TRANSACTIONS[] = {"(Ji)", "(d)", "(d)", "(H)", "(HH)", "(u(Hd*d)(Hd*d))", "(H)", "(d)", "(d)", "(d)",
    "(d)", "(du)", "(dud)", "(Ji)", "(dud)", "(Hi)", "(duadi)", "(d)", "(Huu)", "(duM)", "(duii)", "((duii)M*i)", "((dudsds))",
    "(d)", "(d)", "(a)", "(C)", "(Hudud*d)"};

static Packed unpack_one(Bytes *in, int depth) {
    static const struct {
        uint8_t first, width;
        char kind;
        uint64_t least;
    } FORMS[] = {{0xc4, 1, 'b', 0}, {0xc5, 2, 'b', 1 << 8}, {0xc6, 4, 'b', 1 << 16}, {0xcc, 1, 'u', 1 << 7},
        {0xcd, 2, 'u', 1 << 8}, {0xce, 4, 'u', 1 << 16}, {0xcf, 8, 'u', (uint64_t)1 << 32}, {0xdc, 2, '(', 1 << 4}, {0xdd, 4, '(', 1 << 16}};
    uint8_t first = (uint8_t)number(in, 1);
    Packed out = {.kind = first < 0x80 ? 'u' : first >> 4 == 9 ? '(' : 0, .number = first < 0x80 ? first : first & 15};
    if (depth > 16) refuse("expected arrays in at most 16 others, got more");
    for (size_t k = 0; k < sizeof FORMS / sizeof *FORMS; k++) {
        if (first != FORMS[k].first) continue;
        out.kind = FORMS[k].kind, out.number = number(in, FORMS[k].width);
        if (out.number < FORMS[k].least) refuse("expected the shortest form of a length or number, got a longer one");
    }
    if (!out.kind) refuse("expected a number, bytes or an array, got byte %02x", first);
    if (out.kind == 'b') out.bytes = cut(in, out.number);
    if (out.kind != '(') return out;
    if (out.number > in->left) refuse("expected %zu items, got fewer bytes", (size_t)out.number);
    out.items = take(out.number, sizeof *out.items);
    for (size_t k = 0; k < out.number; k++) out.items[k] = unpack_one(in, depth + 1);
    return out;
}

Packed unpack(Bytes in) {
    Packed out = unpack_one(&in, 0);
    nothing_after(in, "what was packed");
    return out;
}

static const char *form_after(const char *form) {
    if (strchr("+*#~", *form)) return form_after(form + 1);
    if (*form++ != '(') return form;
    while (*form != ')') form = form_after(form);
    return form + 1;
}

static void check(const Packed *p, const char *form);

/* Kind or number, then what the table has for it. */
static void check_numbered(const Packed *p, const char *const *table, uint64_t least, uint64_t end) {
    check(p, "(u.)");
    uint64_t number = p->items[0].number;
    if (number < least || number >= end) refuse("expected a kind of %d to %d, got another", (int)least, (int)end - 1);
    check(&p->items[1], table[number]);
}

static void check_items(const Packed *p, const char *form) {
    uint64_t least = 0, most = 0, k = 0;
    for (size_t at = 0; at < sizeof LISTS / sizeof *LISTS; at++)
        if (LISTS[at].form == *form) most = LISTS[at].most;
    if (p->kind != '(') refuse("expected an array, got a number or bytes");
    if (*form == '(') {
        for (form++; *form != ')' && k < p->number; form = form_after(form)) check(&p->items[k++], form);
        for (least = most = k; *form != ')'; form = form_after(form)) least = ++most;
    }
    if (p->number < least || p->number > most)
        refuse("expected an array of %d to %d items, got another", (int)least, (int)most);
    for (; k < p->number; k++) check(&p->items[k], form + 1);
}

/* Refuses what has not that form. */
static void check(const Packed *p, const char *form) {
    switch (*form) {
    case '.': return;
    case 'u':
        if (p->kind != 'u') refuse("expected a number, got bytes or an array");
        return;
    case 'J': check_items(p, "(aaduuudduuuuuddduuuuuuuddud)"); return;
    case 'H': check_items(p, "(duds)"); return;
    case 'C': check_items(p, "((dud)as)"); return;
    case 'W': check_items(p, p->number == 7 ? "(udud*dd*d)" : p->number == 2 ? "(d*d)" : "()"); return;
    case 'M': check_numbered(p, MOVES, 1, sizeof MOVES / sizeof *MOVES); return;
    case 'T': check_numbered(p, TRANSACTIONS, 0, sizeof TRANSACTIONS / sizeof *TRANSACTIONS); return;
    default: break;
    }
    for (size_t k = 0; k < sizeof BYTES / sizeof *BYTES; k++) {
        if (BYTES[k].form != *form) continue;
        if (p->kind != 'b' || p->number < BYTES[k].least || p->number > BYTES[k].most)
            refuse("expected %zu to %zu bytes, got others", BYTES[k].least, BYTES[k].most);
        return;
    }
    check_items(p, form);
}

Buffer structure_of(const char *type, size_t fields, const Packed *array) {
    Buffer out = typed(type);
    for (size_t k = 0; k < fields; k++) {
        const Packed *field = &array->items[k];
        if (field->kind == 'u') put_number(&out, field->number, 32);
        else put_word(&out, field->bytes);
    }
    return out;
}

static Digest tagged(const char *tag, Bytes encoding) {
    Buffer out = buffer(tag);
    put(&out, encoding.at, encoding.left);
    return sha256(written(&out));
}

Message message_at(Bytes wire) {
    if (wire.left > 1 << 17) refuse("expected a message of at most 2^17 bytes, got %zu", wire.left);
    Packed outer = unpack(wire), inner;
    check(&outer, "(bs)");
    inner = unpack(outer.items[0].bytes);
    check(&inner, "(uddudu.)");
    Packed move = {.kind = '(', .number = 2, .items = inner.items + 5};
    check(&move, "M");
    if (inner.items[0].number != 1) refuse("expected version 1, got another");
    if (!inner.items[3].number && !same(inner.items[2].bytes, inner.items[4].bytes))
        refuse("expected the first message to answer its game's id, got another");
    return (Message){tagged("tb.messg", outer.items[0].bytes), inner.items, outer.items[1]};
}

Packed receipt_at(Bytes in) {
    Packed out = unpack(in);
    check(&out, "H");
    return out;
}

/* The game that is about a head, by its challenger and a nonce (section 1). */
static Digest game_of(const Packed *head, const Packed *nonce, Bytes challenger, Digest domain) {
    Buffer out = buffer("tb.game."), structure = structure_of(HEAD_TYPE, 3, head);
    put(&out, head->items[0].bytes.at, 32), put_digest(&out, to_sign(domain, &structure));
    put(&out, challenger.at, 20), put_number(&out, nonce->number, 8);
    return sha256(written(&out));
}

/* The body must be about the job and the game of the envelope. */
static void check_subject(const Post *post, Digest domain) {
    const Packed *first = post->body->items, *envelope = post->envelope;
    Bytes job = envelope[0].bytes, game = job;
    Digest made;
    switch (post->kind) {
    case OFFER: case ANSWER: {
        Buffer structure = structure_of(JOB_TYPE, 27, first);
        made = keccak256(written(&structure)), job = (Bytes){made.b, 32};
        break;
    }
    case HEAD: case LOG_RECEIPT: case GAME: job = first->items[0].bytes; break;
    case MESSAGE: job = message_at(first->bytes).fields[1].bytes, game = message_at(first->bytes).fields[2].bytes; break;
    case CONCESSION: job = first->items[0].items[0].bytes; break;
    default: break;
    }
    if (post->kind == GAME) made = game_of(first, first + 1, envelope[5].bytes, domain), game = (Bytes){made.b, 32};
    if (post->kind == MOVE_RECEIPT) game = receipt_at(first->bytes).items[0].bytes;
    if ((post->kind == MESSAGE || post->kind == MOVE_RECEIPT) && same(game, job))
        refuse("expected the id of a game, got that of its job twice");
    if (!same(job, envelope[0].bytes) || !same(game, envelope[1].bytes))
        refuse("expected a body about the job and game of its envelope, got another");
}

Post post_at(Bytes wire, Digest domain) {
    Packed outer = unpack(wire), inner, *body = take(1, sizeof *body);
    check(&outer, "(bs)");
    inner = unpack(outer.items[0].bytes);
    check(&inner, "(dduuba)");
    Post post = {tagged("tb.post.", outer.items[0].bytes), inner.items, body, outer.items[1].bytes, inner.items[2].number};
    if (post.kind < OFFER || post.kind >= KINDS) refuse("expected a kind of 1 to 13, got another");
    *body = unpack(inner.items[4].bytes);
    check(body, POSTS[post.kind]);
    check_subject(&post, domain);
    return post;
}
