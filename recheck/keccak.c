#include "recheck.h"

#include <string.h>

/* Keccak-256 as Ethereum has it: the permutation of FIPS 202 at a rate of 136 bytes, padded from 0x01 instead of 0x06. */

enum { RATE = 136 };

static uint64_t turn(uint64_t x, int n) { return n ? x << n | x >> (64 - n) : x; }

static void permute(uint64_t a[25]) {
    uint8_t bits = 1; /* of the shift register that makes the rounds' constants */
    for (int round = 0; round < 24; round++) {
        uint64_t sums[5], b[25] = {a[0]};
        for (int x = 0; x < 5; x++) sums[x] = a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20];
        for (int k = 0; k < 25; k++) a[k] ^= sums[(k + 4) % 5] ^ turn(sums[(k + 1) % 5], 1);
        b[0] = a[0];
        for (int k = 0, x = 1, y = 0; k < 24; k++) {
            int row = (2 * x + 3 * y) % 5;
            b[y + 5 * row] = turn(a[x + 5 * y], (k + 1) * (k + 2) / 2 % 64);
            x = y, y = row;
        }
        for (int k = 0; k < 25; k++) a[k] = b[k] ^ (~b[k / 5 * 5 + (k + 1) % 5] & b[k / 5 * 5 + (k + 2) % 5]);
        for (int k = 1; k <= 64; k *= 2) {
            a[0] ^= (uint64_t)(bits & 1) << (k - 1);
            bits = (uint8_t)(bits << 1 ^ (bits >> 7) * 0x71);
        }
    }
}

Digest keccak256(Bytes in) {
    uint64_t a[25] = {0};
    Digest digest;
    for (bool last = false; !last;) {
        uint8_t block[RATE] = {0};
        Bytes part = cut(&in, in.left < RATE ? in.left : RATE);
        if (part.left) memcpy(block, part.at, part.left);
        last = part.left < RATE;
        if (last) block[part.left] ^= 0x01, block[RATE - 1] ^= 0x80;
        for (int k = 0; k < RATE; k++) a[k / 8] ^= (uint64_t)block[k] << 8 * (k % 8);
        permute(a);
    }
    for (int k = 0; k < 32; k++) digest.b[k] = (uint8_t)(a[k / 8] >> 8 * (k % 8));
    return digest;
}
