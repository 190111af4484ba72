#include "recheck.h"

#include <string.h>

static const uint32_t SIGN = 0x80000000, INFINITE = 0x7f800000;
static const Rounding NEAREST = {.precision = 32}, TO_BF16 = {.precision = 16};

bool is_nan(uint32_t x) { return (x & ~SIGN) > INFINITE; }
bool is_finite(uint32_t x) { return (x & INFINITE) != INFINITE; }
uint32_t canonical(uint32_t x) { return is_nan(x) ? NAN_BITS : x; }

Parts parts_of(uint32_t x) {
    int biased = x >> 23 & 255;
    return (Parts){x >> 31, (x & 0x7fffff) | (biased ? 0x800000 : 0), (biased ? biased : 1) - 150};
}

/* | |x| - (d + u) / 2 | <= 2^-n (u - d), `rest` being |x| - d in units of (u - d) / 2^drop. */
static bool follows(Wide rest, int drop, Rounding rounding) {
    if (!rounding.tolerance || (rounding.code != 1 && rounding.code != 2)) return false;
    Wide twice = shifted(rest, 1), middle = shifted(wide(1), drop);
    Wide distance = compare(twice, middle) < 0 ? minus(middle, twice) : minus(twice, middle);
    return compare(shifted(distance, rounding.tolerance), shifted(wide(1), drop + 1)) <= 0;
}

/* Of magnitude * 2^exponent, and a little more if `sticky`. */
uint32_t round_number(bool minus_sign, Wide magnitude, int exponent, bool sticky, Rounding rounding) {
    uint32_t sign = minus_sign ? SIGN : 0;
    int top = bits_of(magnitude) - 1 + exponent, fraction = rounding.precision - 9;
    if (is_zero(magnitude)) return sign;
    if (top > 127) return sign | INFINITE;
    if (top < -126) top = -126;
    int drop = top - fraction - exponent;
    Wide kept = shifted(magnitude, -drop);
    if (drop > 0) {
        Wide rest = minus(magnitude, shifted(kept, drop)), half = shifted(wide(1), drop - 1);
        int order = compare(rest, half);
        bool up = order > 0 || (order == 0 && (sticky || kept.w[0] & 1));
        if (follows(rest, drop, rounding)) up = rounding.code == 2;
        kept.w[0] += up;
    }
    return sign | (((uint32_t)(top + 126) << 23) + (uint32_t)(kept.w[0] << (23 - fraction)));
}

static uint32_t add(uint32_t x, uint32_t y) {
    if (is_nan(x) || is_nan(y)) return NAN_BITS;
    if (!is_finite(x)) return is_finite(y) || x == y ? x : NAN_BITS;
    if (!is_finite(y)) return y;
    if (!((x | y) & ~SIGN)) return x & y;
    Accumulator sum = start(SUM);
    add_term(&sum, &(uint64_t){x}, 1, 0), add_term(&sum, &(uint64_t){y}, 1, 1);
    return (uint32_t)finish(&sum, NEAREST);
}

static uint32_t multiply(uint32_t x, uint32_t y) {
    uint32_t sign = (x ^ y) & SIGN;
    if (is_nan(x) || is_nan(y)) return NAN_BITS;
    if (!is_finite(x) || !is_finite(y)) return (x & ~SIGN) && (y & ~SIGN) ? sign | INFINITE : NAN_BITS;
    Parts a = parts_of(x), b = parts_of(y);
    return round_number(sign, wide(a.mantissa * b.mantissa), a.exponent + b.exponent, false, NEAREST);
}

static uint32_t divide(uint32_t x, uint32_t y) {
    uint32_t sign = (x ^ y) & SIGN;
    if (is_nan(x) || is_nan(y) || (!is_finite(x) && !is_finite(y))) return NAN_BITS;
    if (!is_finite(y)) return sign;
    if (!is_finite(x)) return sign | INFINITE;
    Parts a = parts_of(x), b = parts_of(y);
    if (!b.mantissa) return a.mantissa ? sign | INFINITE : NAN_BITS;
    u128 scaled = (u128)a.mantissa << 64, q = scaled / b.mantissa;
    return round_number(sign, wide(q), a.exponent - b.exponent - 64, scaled % b.mantissa != 0, NEAREST);
}

static uint32_t square_root(uint32_t x) {
    if (!(x & ~SIGN)) return x;
    if (is_nan(x) || x & SIGN) return NAN_BITS;
    if (!is_finite(x)) return x;
    Parts p = parts_of(x);
    u128 square = (u128)p.mantissa << (64 + (p.exponent & 1)), low = 0;
    for (u128 bit = (u128)1 << 45; bit; bit >>= 1)
        if ((low | bit) * (low | bit) <= square) low |= bit;
    return round_number(false, wide(low), (p.exponent - (p.exponent & 1) - 64) / 2, low * low != square, NEAREST);
}

/* -1, 0, 1, or 2 if a NaN is among them. */
static int order_of(uint8_t type, uint64_t a, uint64_t b) {
    if (type == F32) {
        uint32_t x = (uint32_t)a, y = (uint32_t)b;
        if (is_nan(x) || is_nan(y)) return 2;
        int64_t p = x & ~SIGN, q = y & ~SIGN;
        a = (uint64_t)(x & SIGN ? -p : p), b = (uint64_t)(y & SIGN ? -q : q);
    }
    return (int64_t)a < (int64_t)b ? -1 : (int64_t)a > (int64_t)b;
}

static uint64_t extreme(uint8_t type, uint64_t a, uint64_t b, int wanted) {
    int order = order_of(type, a, b);
    if (order == 2) return NAN_BITS;
    uint64_t result = order == wanted ? a : b;
    return type == F32 && !(result & ~(uint64_t)SIGN) ? 0 : result;
}

static int64_t to_i64(uint32_t x) {
    if (is_nan(x)) return 0;
    Parts p = parts_of(x);
    if (p.exponent > 39) return p.negative ? INT64_MIN : INT64_MAX; /* 2^23 * 2^40 and more */
    uint64_t whole = shifted(wide(p.mantissa), p.exponent).w[0];
    return p.negative ? -(int64_t)whole : (int64_t)whole;
}

static uint64_t cast(uint8_t from, uint8_t to, uint64_t x) {
    if (to == BOOL) return from == F32 ? (x & ~(uint64_t)SIGN) != 0 : x != 0;
    if (to == I64) return from == F32 ? (uint64_t)to_i64((uint32_t)x) : x;
    bool minus_sign = from == I64 && (int64_t)x < 0;
    return round_number(minus_sign, wide(minus_sign ? 0 - x : x), 0, false, NEAREST);
}

/* Floored; y = 0 gives 0, and -2^63 // -1 wraps. */
static uint64_t floored(int64_t x, int64_t y, bool quotient_wanted) {
    if (!y) return 0;
    i128 q = (i128)x / y, r = (i128)x % y;
    if (r && (r < 0) != (y < 0)) q -= 1, r += y;
    return (uint64_t)(quotient_wanted ? q : r);
}

bool map_types(int function, const uint8_t *operands, size_t count, uint8_t result) {
    /* Operands, then the result: f32, i64, bool; all n one type of numbers, all t one type. */
    static const char *const TYPES[32] = {"tt", "nnn", "nnn", "nnn", "fff", "ff", "nn", "nn", "nnn", "nnn", "ff", "ff",
        "ff", "ff", "ff", "ff", "ff", [20] = "nnb", "nnb", "ttb", "ttb", "bbb", "bbb", "bb", "bttt", [30] = "iii", "iii"};
    const char *form = function < 32 ? TYPES[function] : NULL;
    if (function == 28) return count == 1 && operands[0] != result;
    if (!form || strlen(form) != count + 1) return false;
    int common = -1;
    for (size_t k = 0; k <= count; k++) {
        int type = k < count ? operands[k] : result;
        if (form[k] == 't' || form[k] == 'n') {
            if ((common >= 0 && type != common) || (form[k] == 'n' && type == BOOL)) return false;
            common = type;
        } else if ("fib"[type] != form[k]) return false;
    }
    return true;
}

static uint64_t map_f32(int function, uint32_t x, uint32_t y, int precision) {
    switch (function) {
    case 1: return add(x, y);
    case 2: return add(x, y ^ SIGN);
    case 3: return multiply(x, y);
    case 4: return divide(x, y);
    case 5: return square_root(x);
    case 6: return canonical(x ^ SIGN);
    case 7: return canonical(x & ~SIGN);
    case 16:
        if (!is_finite(x)) return canonical(x);
        return round_number(x >> 31, wide(parts_of(x).mantissa), parts_of(x).exponent, false, TO_BF16);
    default: return transcendental(function, x, precision);
    }
}

static uint64_t map_i64(int function, uint64_t x, uint64_t y) {
    switch (function) {
    case 1: return x + y;
    case 2: return x - y;
    case 3: return x * y;
    case 6: return 0 - x;
    case 7: return (int64_t)x < 0 ? 0 - x : x;
    default: return floored((int64_t)x, (int64_t)y, function == 30);
    }
}

uint64_t map(int function, const uint8_t *types, uint8_t result, const uint64_t *words, int precision) {
    uint64_t x = words[0], y = words[1], z = words[2];
    if (types[0] == F32) x = canonical((uint32_t)x);
    if (function == 27 && types[1] == F32) y = canonical((uint32_t)y), z = canonical((uint32_t)z);
    switch (function) {
    case 0: return x;
    case 8: return extreme(types[0], x, y, 1);
    case 9: return extreme(types[0], x, y, -1);
    case 20: return order_of(types[0], x, y) == -1;
    case 21: return order_of(types[0], x, y) <= 0;
    case 22: return order_of(types[0], x, y) == 0;
    case 23: return order_of(types[0], x, y) != 0;
    case 24: return x & y;
    case 25: return x | y;
    case 26: return !x;
    case 27: return x ? y : z;
    case 28: return cast(types[0], result, x);
    default: return types[0] == F32 ? map_f32(function, (uint32_t)x, (uint32_t)y, precision) : map_i64(function, x, y);
    }
}

Accumulator start(int kind) {
    bool wide_value = kind == MAX_I64 || kind == ARGMAX_I64, sum = kind == SUM || kind == SUM_I64 || kind == SUM_BF16;
    return (Accumulator){.kind = kind, .value = sum ? 0 : wide_value ? (uint64_t)1 << 63 : 0xff800000, .index = -1};
}

static void add_product(Accumulator *held, const uint64_t *factors, size_t count) {
    uint32_t x = (uint32_t)factors[0], y = count > 1 ? (uint32_t)factors[1] : 0x3f800000;
    if (held->nan || !is_finite(x) || !is_finite(y)) {
        held->nan = true, held->sum = wide(0);
        return;
    }
    Parts a = parts_of(x), b = parts_of(y);
    add_at(&held->sum, a.mantissa * b.mantissa, a.exponent + b.exponent + UNIT, a.negative != b.negative);
}

void add_term(Accumulator *held, const uint64_t *factors, size_t count, int64_t position) {
    uint8_t type = held->kind == ARGMAX_I64 || held->kind == MAX_I64 ? I64 : F32;
    switch (held->kind) {
    case SUM: case SUM_BF16: add_product(held, factors, count); break;
    case SUM_I64: held->value += factors[0]; break;
    case MAX: case MAX_I64: held->value = extreme(type, held->value, factors[0], 1); break;
    default: {
        bool nan = type == F32 && is_nan((uint32_t)factors[0]) && !is_nan((uint32_t)held->value);
        if (held->index != -1 && !nan && order_of(type, factors[0], held->value) != 1) return;
        held->value = factors[0], held->index = position;
    }
    }
}

uint64_t finish(const Accumulator *held, Rounding rounding) {
    if (held->kind == ARGMAX || held->kind == ARGMAX_I64) return (uint64_t)held->index;
    if (held->kind == MAX && held->value == SIGN) return 0;
    if (held->kind != SUM && held->kind != SUM_BF16) return held->value;
    if (held->nan) return NAN_BITS;
    bool minus_sign = negative(held->sum);
    Wide magnitude = minus_sign ? minus(wide(0), held->sum) : held->sum;
    uint32_t x = round_number(minus_sign, magnitude, -UNIT, false, held->kind == SUM ? rounding : TO_BF16);
    return x & ~SIGN ? x : 0;
}

void philox(const uint32_t counter[4], uint64_t seed, uint32_t out[4]) {
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int round = 0; round < 10; round++, k[0] += 0x9e3779b9, k[1] += 0xbb67ae85) {
        uint64_t p = (uint64_t)0xd2511f53 * c[0], q = (uint64_t)0xcd9e8d57 * c[2];
        uint32_t next[4] = {(uint32_t)(q >> 32) ^ c[1] ^ k[0], (uint32_t)q, (uint32_t)(p >> 32) ^ c[3] ^ k[1], (uint32_t)p};
        for (int i = 0; i < 4; i++) c[i] = next[i];
    }
    for (int i = 0; i < 4; i++) out[i] = c[i];
}

uint32_t random_number(uint64_t seed, uint64_t step, uint32_t stream, uint64_t element) {
    uint32_t counter[4] = {(uint32_t)(element / 4), (uint32_t)(element / 4 >> 32), (uint32_t)step, stream}, words[4];
    philox(counter, seed, words);
    return round_number(false, wide(words[element % 4] >> 8), -24, false, NEAREST);
}

int64_t shuffle(int64_t index, uint64_t seed, uint64_t epoch, uint64_t n, uint32_t stream) {
    if (index < 0 || (uint64_t)index >= n) return -1;
    int bits = n > 1 ? 64 - __builtin_clzll(n - 1) : 0, w = bits > 1 ? (bits + 1) / 2 : 1;
    uint64_t x = (uint64_t)index, mask = ((uint64_t)1 << w) - 1;
    do {
        uint64_t left = x >> w, right = x & mask;
        for (uint32_t q = 0; q < 8; q++) {
            uint32_t counter[4] = {(uint32_t)right, 0x80000000 + q, (uint32_t)epoch, stream}, words[4];
            philox(counter, seed, words);
            uint64_t mixed = (left ^ words[0]) & mask;
            left = right, right = mixed;
        }
        x = left << w | right;
    } while (x >= n);
    return (int64_t)x;
}
