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
    for (int k = 0; k < LIMBS; k++) {
        int bit = 64 * k - left, limb = bit >= 0 ? bit / 64 : -((63 - bit) / 64), low = bit - 64 * limb;
        if (limb >= 0 && limb < LIMBS) out.w[k] = a.w[limb] >> low;
        if (low && limb + 1 >= 0 && limb + 1 < LIMBS) out.w[k] |= a.w[limb + 1] << (64 - low);
    }
    return out;
}

/* floor(a * b / 2^right) modulo 2^768, of numbers without a sign. */
Wide times(Wide a, Wide b, int right) {
    uint64_t full[2 * LIMBS] = {0};
    for (int i = 0; i < LIMBS; i++) {
        if (!a.w[i]) continue;
        u128 carry = 0;
        for (int j = 0; j < LIMBS; j++, carry >>= 64)
            full[i + j] = (uint64_t)(carry += (u128)a.w[i] * b.w[j] + full[i + j]);
        full[i + LIMBS] = (uint64_t)carry;
    }
    Wide low, high;
    memcpy(low.w, full, sizeof low.w);
    memcpy(high.w, full + LIMBS, sizeof high.w);
    return plus(shifted(low, -right), shifted(high, 64 * LIMBS - right));
}

Wide over(Wide a, uint64_t b) {
    u128 rest = 0;
    for (int k = LIMBS; k-- > 0; rest %= b) {
        rest = rest << 64 | a.w[k];
        a.w[k] = (uint64_t)(rest / b);
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
