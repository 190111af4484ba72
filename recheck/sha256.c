/* SHA-256 (FIPS 180-4). */
#include "recheck.h"

#include <string.h>

static const uint32_t START[] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};
static const uint32_t CONSTANTS[] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
    0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
    0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2,
};

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
        uint32_t t = v[7] + one + choice + CONSTANTS[i] + w[i];
        uint32_t most = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        uint32_t u = (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) + most;
        for (int k = 7; k > 0; k--) v[k] = v[k - 1];
        v[4] += t;
        v[0] = t + u;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

Sha256 begin_sha256(void) {
    Sha256 out = {.size = 0};
    memcpy(out.h, START, sizeof out.h);
    return out;
}

void add_bytes(Sha256 *to, Bytes in) {
    while (in.left) {
        size_t held = to->size % 64, room = 64 - held;
        Bytes part = cut(&in, in.left < room ? in.left : room);
        if (part.left < 64) memcpy(to->block + held, part.at, part.left);
        if (held + part.left == 64) compress(to->h, part.left == 64 ? part.at : to->block);
        to->size += part.left;
    }
}

Digest end_sha256(Sha256 of) {
    uint64_t bits = 8 * of.size;
    uint8_t end[72] = {0x80}; /* to a length of 56 modulo 64, then the number of bits */
    size_t zeros = (119 - of.size % 64) % 64;
    for (size_t k = 0; k < 8; k++) end[1 + zeros + k] = (uint8_t)(bits >> (56 - 8 * k));
    add_bytes(&of, (Bytes){end, 9 + zeros});
    Digest digest;
    for (size_t k = 0; k < 32; k++) digest.b[k] = (uint8_t)(of.h[k / 4] >> (24 - 8 * (k % 4)));
    return digest;
}

Digest sha256(Bytes in) {
    Sha256 all = begin_sha256();
    add_bytes(&all, in);
    return end_sha256(all);
}
