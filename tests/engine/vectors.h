/* tiles.h without AMX: the same products of tiles of bytes by vectors, for tests. */
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define TILE 1024
#define START (1 << 30)

static int ask(void) { return 1; }
static void begin_tiles(void) {}
static void end_tiles(void) {}

static void multiply_tiles(const int8_t *a, const int8_t *b, int64_t tiles, int32_t *c) {
    for (int64_t r0 = 0; r0 < 32; r0 += 8) { /* eight rows and all columns in registers */
        const int8_t *row = a + r0 / 16 * TILE + r0 % 16 * 64;
        __m512i sum[8][2];
#pragma GCC unroll 8
        for (int r = 0; r < 8; r++) sum[r][0] = sum[r][1] = _mm512_set1_epi32(START);
        for (int64_t at = 0; at < 16 * tiles; at++) {
            const int8_t *right = b + at / 16 * 2 * TILE + at % 16 * 64, *left = row + at / 16 * 2 * TILE + at % 16 * 4;
            const __m512i b0 = _mm512_load_si512(right), b1 = _mm512_load_si512(right + TILE);
#pragma GCC unroll 8
            for (int r = 0; r < 8; r++) {
                int32_t four;
                memcpy(&four, left + 64 * r, 4);
                const __m512i x = _mm512_set1_epi32(four);
                sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], x, b0);
                sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], x, b1);
            }
        }
        int32_t *to = c + r0 / 16 * 512 + r0 % 16 * 16;
        for (int r = 0; r < 8; r++) {
            _mm512_store_si512(to + 16 * r, sum[r][0]);
            _mm512_store_si512(to + 256 + 16 * r, sum[r][1]);
        }
    }
}
