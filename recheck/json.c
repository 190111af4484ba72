#include "native.h"

static void skip_space(Bytes *in) {
    while (in->left && (*in->at == ' ' || *in->at == '\n' || *in->at == '\r' || *in->at == '\t')) cut(in, 1);
}

static uint8_t peek(Bytes *in) {
    skip_space(in);
    if (!in->left) refuse("expected more of a JSON document, got its end");
    return *in->at;
}

static void expect(Bytes *in, uint8_t wanted) {
    uint8_t found = peek(in);
    if (found != wanted) refuse("expected %c in a JSON document, got byte %02x", wanted, found);
    cut(in, 1);
}

static Bytes string(Bytes *in) {
    expect(in, '"');
    Bytes out = {in->at, 0};
    for (uint8_t c; (c = (uint8_t)number(in, 1)) != '"'; out.left++)
        if (c == '\\' || c < 0x20) refuse("expected a string without escapes, got byte %02x", c);
    return out;
}

static Json *value(Bytes *in, int depth);

static void members(Json *out, Bytes *in, int depth) {
    uint8_t end = out->kind == '{' ? '}' : ']';
    cut(in, 1);
    for (Json **place = &out->first; peek(in) != end; place = &(*place)->next) {
        Bytes key = {0};
        if (place != &out->first) expect(in, ',');
        if (end == '}') key = string(in), expect(in, ':');
        *place = value(in, depth + 1);
        (*place)->key = key;
    }
    cut(in, 1);
}

static Json *value(Bytes *in, int depth) {
    Json *out = take(1, sizeof *out);
    uint8_t c = peek(in);
    if (depth > 16) refuse("expected JSON of at most 16 levels, got more");
    if (c == '{' || c == '[') {
        out->kind = (char)c;
        members(out, in, depth);
    } else if (c == '"') {
        out->kind = '"';
        out->text = string(in);
    } else {
        out->text = (Bytes){in->at, 0};
        while (in->left && ((*in->at >= '0' && *in->at <= '9') || (*in->at >= 'a' && *in->at <= 'z') || *in->at == '-'))
            cut(in, 1), out->text.left++;
        if (!out->text.left) refuse("expected a JSON value, got byte %02x", c);
    }
    return out;
}

Json *parse_json(Bytes in) {
    Json *out = value(&in, 0);
    skip_space(&in);
    nothing_after(in, "a JSON document");
    return out;
}

const Json *member(const Json *object, const char *key) {
    for (const Json *at = object->kind == '{' ? object->first : NULL; at; at = at->next)
        if (same(at->key, text(key))) return at;
    refuse("expected a member %s of a JSON object, got none", key);
}

uint64_t number_of(const Json *from) {
    uint64_t out = 0;
    bool fits = from->text.left > 0;
    for (size_t k = 0; k < from->text.left; k++) {
        uint8_t digit = (uint8_t)(from->text.at[k] - '0');
        fits &= digit <= 9 && out <= (UINT64_MAX - digit) / 10;
        out = 10 * out + digit;
    }
    if (!fits) refuse("expected a number below 2^64, got %.*s", (int)from->text.left, (const char *)from->text.at);
    return out;
}

Tensors tensors_of(Bytes in) {
    Tensors out = {0};
    uint64_t header = 0;
    Bytes length = cut(&in, 8);
    for (size_t k = 8; k-- > 0;) header = header << 8 | length.at[k];
    Json *names = parse_json(cut(&in, header > in.left ? in.left + 1 : (size_t)header));
    size_t room = 0;
    if (names->kind != '{') refuse("expected a JSON object as the header, got another value");
    for (const Json *at = names->first; at; at = at->next) room++;
    out.names = take(room, sizeof *out.names), out.data = take(room, sizeof *out.data);
    for (const Json *at = names->first; at; at = at->next) {
        if (same(at->key, text("__metadata__"))) continue;
        const Json *offsets = member(at, "data_offsets");
        if (offsets->kind != '[' || !offsets->first || !offsets->first->next) refuse("expected two offsets, got fewer");
        uint64_t begin = number_of(offsets->first), end = number_of(offsets->first->next);
        if (begin > end || end > in.left) refuse("expected offsets inside the file, got others");
        out.names[out.count] = at->key;
        out.data[out.count++] = (Bytes){in.at + begin, (size_t)(end - begin)};
    }
    return out;
}
