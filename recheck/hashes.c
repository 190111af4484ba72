/* SHA-256 (FIPS 180-4) and Keccak-256 (as Ethereum has it: the padding of before FIPS 202). */
#include "base.h"

#include <string.h>

/* The first 32 bits of the fraction of a root of a prime, by integers: floor(prime^(1/degree) * 2^32) mod 2^32. */
static uint32_t root_fraction(uint64_t prime, int degree) {
    uint64_t low = 0, high = (uint64_t)1 << 37;
    while (high - low > 1) {
        u128 middle = (low + high) / 2, power = middle * middle;
        bool over = degree == 2 ? power > (u128)prime << 64 : power > ((u128)prime << 96) / middle;
        if (over) high = (uint64_t)middle;
        else low = (uint64_t)middle;
    }
    return (uint32_t)low;
}

static uint32_t constants[64], start[8];

static void make_constants(void) {
    for (uint64_t prime = 2, count = 0; count < 64; prime++) {
        bool composite = false;
        for (uint64_t k = 2; k * k <= prime; k++) composite |= prime % k == 0;
        if (composite) continue;
        if (count < 8) start[count] = root_fraction(prime, 2);
        constants[count++] = root_fraction(prime, 3);
    }
}

static uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void compress(uint32_t h[8], const uint8_t block[64]) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++) {
        const uint8_t *p = block + 4 * i;
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t one = turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25), choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t t = v[7] + one + choice + constants[i] + w[i];
        uint32_t most = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        uint32_t u = (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) + most;
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t;
        v[0] = t + u;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

Digest sha256(Bytes in) {
    uint32_t h[8];
    uint64_t bits = 8 * (uint64_t)in.left;
    uint8_t last[128] = {0};
    if (!constants[0]) make_constants();
    memcpy(h, start, sizeof h);
    while (in.left >= 64) compress(h, cut(&in, 64).at);
    size_t rest = in.left, size = rest < 56 ? 64 : 128;
    if (rest) memcpy(last, in.at, rest);
    last[rest] = 0x80;
    for (size_t k = 0; k < 8; k++) last[size - 1 - k] = (uint8_t)(bits >> 8 * k);
    for (size_t k = 0; k < size; k += 64) compress(h, last + k);
    Digest digest;
    for (size_t k = 0; k < 32; k++) digest.b[k] = (uint8_t)(h[k / 4] >> (24 - 8 * (k % 4)));
    return digest;
}

/* Bits of the round constants, from the linear feedback register of the Keccak reference (section 1.2). */
static bool feedback(uint8_t *state) {
    bool bit = *state & 1;
    *state = (uint8_t)(*state << 1 ^ (*state & 0x80 ? 0x71 : 0));
    return bit;
}

static uint64_t spin(uint64_t x, unsigned n) { return n % 64 ? x << n % 64 | x >> (64 - n % 64) : x; }

static void permute(uint64_t a[25]) {
    uint8_t state = 1;
    for (int round = 0; round < 24; round++) {
        uint64_t column[5], moved[25];
        for (int x = 0; x < 5; x++) column[x] = a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20];
        for (int i = 0; i < 25; i++) a[i] ^= column[(i + 4) % 5] ^ spin(column[(i + 1) % 5], 1);
        moved[0] = a[0];
        for (unsigned x = 1, y = 0, t = 0; t < 24; t++) {
            unsigned next = (2 * x + 3 * y) % 5;
            moved[y + 5 * next] = spin(a[x + 5 * y], (t + 1) * (t + 2) / 2);
            x = y, y = next;
        }
        for (int i = 0; i < 25; i++)
            a[i] = moved[i] ^ (~moved[i / 5 * 5 + (i + 1) % 5] & moved[i / 5 * 5 + (i + 2) % 5]);
        for (int j = 0; j < 7; j++)
            if (feedback(&state)) a[0] ^= (uint64_t)1 << ((1 << j) - 1);
    }
}

Digest keccak256(Bytes in) {
    enum { RATE = 136 };
    uint64_t a[25] = {0};
    for (bool last = false; !last;) {
        uint8_t block[RATE] = {0};
        last = in.left < RATE;
        Bytes part = cut(&in, last ? in.left : RATE);
        if (part.left) memcpy(block, part.at, part.left);
        if (last) block[part.left] ^= 1, block[RATE - 1] ^= 0x80;
        for (size_t k = 0; k < RATE; k++) a[k / 8] ^= (uint64_t)block[k] << 8 * (k % 8);
        permute(a);
    }
    Digest digest;
    for (size_t k = 0; k < 32; k++) digest.b[k] = (uint8_t)(a[k / 8] >> 8 * (k % 8));
    return digest;
}
