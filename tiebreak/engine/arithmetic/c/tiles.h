/* Products of tiles of bytes by a processor's matrix unit (AMX). */
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILE 1024 /* bytes */
#define START (1 << 30) /* what c begins with, so that it is never negative */

static _Alignas(64) int32_t beginning[TILE / 4];

/* Asks the system for tiles, once for the process. */
static int ask(void) {
    for (int i = 0; i < TILE / 4; i++) beginning[i] = START;
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0; /* ARCH_REQ_XCOMP_PERM, XTILEDATA */
}

static void begin_tiles(void) {
    /* Constant: some versions of gcc take eight bytes for all that is read, and leave out stores to the others. */
    static const struct {
        uint8_t palette, start, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shape);
}

static void end_tiles(void) { _tile_release(); }

/* c of 32 rows and 32 columns: (upper, left), (upper, right), (lower, left), (lower, right). */
static void multiply_tiles(const int8_t *a, const int8_t *b, int64_t tiles, int32_t *c) {
    __asm__ volatile("" ::: "memory"); /* gcc is not told that loads of tiles read memory */
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
