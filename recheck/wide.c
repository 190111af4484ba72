#include "recheck.h"

#include <string.h>

Wide wide(u128 value) { return (Wide){{(uint64_t)value, (uint64_t)(value >> 64)}}; }

Wide plus(Wide a, Wide b) {
    u128 carry = 0;
    for (int k = 0; k < LIMBS; k++, carry >>= 64) a.w[k] = (uint64_t)(carry += (u128)a.w[k] + b.w[k]);
    return a;
}

Wide minus(Wide a, Wide b) {
    u128 carry = 1;
    for (int k = 0; k < LIMBS; k++, carry >>= 64) a.w[k] = (uint64_t)(carry += (u128)a.w[k] + ~b.w[k]);
    return a;
}

/* Without a sign; to the right if `left` is negative. */
Wide shifted(Wide a, int left) {
    Wide out = {{0}};
    int limbs = left >= 0 ? left / 64 : -((63 - left) / 64), bits = left - 64 * limbs;
    for (int k = limbs > 0 ? limbs : 0; k < LIMBS && k - limbs <= LIMBS; k++) {
        int from = k - limbs;
        if (from < LIMBS) out.w[k] = a.w[from] << bits;
        if (bits && from > 0) out.w[k] |= a.w[from - 1] >> (64 - bits);
    }
    return out;
}

void add_at(Wide *sum, uint64_t product, int place, bool minus_sign) {
    int bits = place % 64;
    uint64_t part = product << bits, rest = bits ? product >> (64 - bits) : 0;
    for (int k = place / 64; k < LIMBS && (part || rest); k++) {
        uint64_t old = sum->w[k], made = minus_sign ? old - part : old + part;
        bool carry = minus_sign ? old < part : made < part;
        sum->w[k] = made, part = rest + carry, rest = 0;
    }
}

static int limbs_of(Wide a) { return (bits_of(a) + 63) / 64; }

/* floor(a * b / 2^right) modulo 2^768, of numbers without a sign. */
Wide scaled(Wide a, Wide b, int right) {
    uint64_t full[2 * LIMBS + 1] = {0};
    int limbs = limbs_of(b), first = right / 64, bits = right % 64;
    for (int i = 0; i < LIMBS; i++) {
        if (!a.w[i]) continue;
        u128 carry = 0;
        for (int j = 0; j < limbs; j++, carry >>= 64)
            full[i + j] = (uint64_t)(carry += (u128)a.w[i] * b.w[j] + full[i + j]);
        full[i + limbs] = (uint64_t)carry;
    }
    Wide out;
    for (int k = 0; k < LIMBS; k++) {
        out.w[k] = full[first + k] >> bits;
        if (bits) out.w[k] |= full[first + k + 1] << (64 - bits);
    }
    return out;
}

Wide over(Wide a, uint32_t b) {
    uint64_t rest = 0;
    for (int k = limbs_of(a); k-- > 0;) { /* 32 bits at a time */
        uint64_t high = rest << 32 | a.w[k] >> 32, low = high % b << 32 | (a.w[k] & UINT32_MAX);
        a.w[k] = high / b << 32 | low / b, rest = low % b;
    }
    return a;
}

Wide quotient(Wide a, Wide b, Wide *rest) {
    Wide result = {{0}};
    for (int bit = bits_of(a) - bits_of(b); bit >= 0; bit--) {
        Wide part = shifted(b, bit);
        if (compare(a, part) < 0) continue;
        a = minus(a, part);
        result.w[bit / 64] |= (uint64_t)1 << bit % 64;
    }
    if (rest) *rest = a;
    return result;
}

bool is_zero(Wide a) { return bits_of(a) == 0; }
bool negative(Wide a) { return a.w[LIMBS - 1] >> 63; }

int compare(Wide a, Wide b) {
    for (int k = LIMBS; k-- > 0;)
        if (a.w[k] != b.w[k]) return a.w[k] < b.w[k] ? -1 : 1;
    return 0;
}

int bits_of(Wide a) {
    for (int k = LIMBS; k-- > 0;)
        if (a.w[k]) return 64 * (k + 1) - __builtin_clzll(a.w[k]);
    return 0;
}

Wide wide_at(Bytes in) {
    Wide out = {{0}};
    if (in.left > 8 * LIMBS) refuse("expected at most %d bytes of an integer, got %zu", 8 * LIMBS, in.left);
    for (size_t k = 0; k < in.left; k++) out.w[k / 8] |= (uint64_t)in.at[in.left - 1 - k] << 8 * (k % 8);
    return out;
}

void put_wide(Buffer *out, Wide value, size_t bytes) {
    for (size_t k = bytes; k-- > 0;) put_number(out, value.w[k / 8] >> 8 * (k % 8) & 255, 1);
}
