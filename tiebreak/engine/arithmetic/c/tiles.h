/* Products of tiles of bytes: by a processor's matrix unit (AMX), or the same by vectors. */
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define TILE 1024 /* bytes */
#define START (1 << 30) /* what c begins with, so that it is never negative */

#if defined(__AMX_INT8__)
#include <sys/syscall.h>

enum { FOUND = 2 };
static _Alignas(64) int32_t beginning[TILE / 4];

/* Asks the system for tiles, once for the process. */
static int ask(void) {
    for (int i = 0; i < TILE / 4; i++) beginning[i] = START;
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0; /* ARCH_REQ_XCOMP_PERM, XTILEDATA */
}

static void begin_tiles(void) {
    struct {
        uint8_t palette, start, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = 16;
    _tile_loadconfig(&shape);
}

static void end_tiles(void) { _tile_release(); }

/* c of 32 rows and 32 columns: (upper, left), (upper, right), (lower, left), (lower, right). */
static void multiply_tiles(const int8_t *a, const int8_t *b, int64_t tiles, int32_t *c) {
    _tile_loadd(0, beginning, 64);
    _tile_loadd(1, beginning, 64);
    _tile_loadd(2, beginning, 64);
    _tile_loadd(3, beginning, 64);
    for (int64_t k = 0; k < tiles; k++, a += 2 * TILE, b += 2 * TILE) {
        _tile_loadd(6, b, 64);
        _tile_loadd(4, a, 64);
        _tile_dpbusd(0, 4, 6);
        _tile_loadd(7, b + TILE, 64);
        _tile_dpbusd(1, 4, 7);
        _tile_loadd(5, a + TILE, 64);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_stored(0, c, 64);
    _tile_stored(1, c + 256, 64);
    _tile_stored(2, c + 512, 64);
    _tile_stored(3, c + 768, 64);
}

#else /* the same by vectors */

enum { FOUND = 1 };
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

#endif
