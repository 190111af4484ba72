/* The instructions of AMX that integers.c uses, as Intel's manual defines them, for machines without: zeros and no sums where
 * a thread has no tiles, and nothing where a tile has another shape than 16 rows of 64 bytes. */
#include <stdint.h>
#include <string.h>

static _Thread_local int8_t tiles[8][16][64];
static _Thread_local int tiled;
static int asked;

#define syscall(number, what, feature) (asked = (what) == 0x1023 && (feature) == 18, !asked)
#define _tile_loadconfig(shape) load_config(shape)
#define _tile_release() (tiled = 0)
#define _tile_loadd(tile, from, stride) load_tile(tile, (const char *)(from), stride)
#define _tile_stored(tile, to, stride) store_tile(tile, (char *)(to), stride)
#define _tile_dpbusd(to, a, b) add_products(to, a, b)

static inline void load_config(const void *from) {
    uint8_t shape[64];
    memcpy(shape, from, sizeof shape);
    tiled = asked && shape[0] == 1 && shape[1] == 0;
    for (int i = 0; i < 8; i++) tiled &= shape[16 + 2 * i] == 64 && shape[17 + 2 * i] == 0 && shape[48 + i] == 16;
    memset(tiles, 0, sizeof tiles);
}

static inline void load_tile(int tile, const char *from, int64_t stride) {
    for (int r = 0; tiled && r < 16; r++) memcpy(tiles[tile][r], from + r * stride, 64);
}

static inline void store_tile(int tile, char *to, int64_t stride) {
    for (int r = 0; tiled && r < 16; r++) memcpy(to + r * stride, tiles[tile][r], 64);
}

static inline void add_products(int to, int a, int b) {
    for (int m = 0; tiled && m < 16; m++)
        for (int n = 0; n < 16; n++) {
            int32_t sum;
            memcpy(&sum, tiles[to][m] + 4 * n, 4);
            for (int k = 0; k < 16; k++)
                for (int i = 0; i < 4; i++) sum += (int32_t)(uint8_t)tiles[a][m][4 * k + i] * tiles[b][k][4 * n + i];
            memcpy(tiles[to][m] + 4 * n, &sum, 4);
        }
}
