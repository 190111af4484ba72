/* SHA-256 over chunk trees (SPEC sections 1 to 3): the compiled twin of tiebreak.protocol.commitments.records and tiebreak.protocol.commitments.trees.

   Several chunks, and several inner nodes, are hashed at once on each core, because one stream of SHA instructions
   waits for its own results half of the time. A digest is 32 bytes, big-endian words. Data is read as it lies in
   memory, which must be little-endian. */

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensor data is little-endian"
#endif

#define CHUNK 512
#define DIGEST 32
#define SPAN_HEIGHT 8
#define SPAN (1 << SPAN_HEIGHT)

static const uint8_t CHUNK_TAG[8] = {'t', 'b', '.', 'c', 'h', 'u', 'n', 'k'};
static const uint8_t NODE_TAG[8] = {'t', 'b', '.', 'n', 'o', 'd', 'e', '.'};

static const uint32_t K[64] __attribute__((aligned(64))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
#define INITIAL 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 64")

/* ---- One block of 64 bytes in each of `n` streams. V is 16 bytes of message, State a running digest. ---- */

#if !defined(PORTABLE) && defined(__SHA__) && defined(__SSE4_1__)

#include <immintrin.h>
#ifndef STREAMS
#define STREAMS 2
#endif
typedef __m128i V;
typedef struct { __m128i abef, cdgh; } State;

INLINE V load(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE V joined(uint64_t low, uint64_t high) { return _mm_set_epi64x((long long)high, (long long)low); }
INLINE V none(void) { return _mm_setzero_si128(); }
INLINE V nan_of(V seen, V v) { /* ones in `seen` where a float of v is a NaN */
    return _mm_or_si128(seen, _mm_castps_si128(_mm_cmpunord_ps(_mm_castsi128_ps(v), _mm_castsi128_ps(v))));
}
INLINE int any(V seen) { return !_mm_testz_si128(seen, seen); }

INLINE State initial(void) {
    State s = {_mm_set_epi32(0x6a09e667, (int)0xbb67ae85, 0x510e527f, (int)0x9b05688c),
               _mm_set_epi32(0x3c6ef372, (int)0xa54ff53a, 0x1f83d9ab, 0x5be0cd19)};
    return s;
}

INLINE void compress(int n, State *s, V (*m)[4]) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
    State before[STREAMS];
    UNROLL for (int j = 0; j < n; j++) {
        before[j] = s[j];
        UNROLL for (int i = 0; i < 4; i++) m[j][i] = _mm_shuffle_epi8(m[j][i], swap);
    }
    UNROLL for (int i = 0; i < 16; i++) {
        UNROLL for (int j = 0; j < n; j++) {
            V *w = m[j];
            if (i >= 4) {
                __m128i mixed = _mm_add_epi32(_mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]),
                                              _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
                w[i & 3] = _mm_sha256msg2_epu32(mixed, w[(i + 3) & 3]);
            }
            __m128i t = _mm_add_epi32(w[i & 3], _mm_load_si128((const __m128i *)(K + 4 * i)));
            s[j].cdgh = _mm_sha256rnds2_epu32(s[j].cdgh, s[j].abef, t);
            s[j].abef = _mm_sha256rnds2_epu32(s[j].abef, s[j].cdgh, _mm_shuffle_epi32(t, 0x0e));
        }
    }
    UNROLL for (int j = 0; j < n; j++) {
        s[j].abef = _mm_add_epi32(s[j].abef, before[j].abef);
        s[j].cdgh = _mm_add_epi32(s[j].cdgh, before[j].cdgh);
    }
}

INLINE void store(State s, uint8_t *out) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
    __m128i feba = _mm_shuffle_epi32(s.abef, 0x1b), dchg = _mm_shuffle_epi32(s.cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(_mm_blend_epi16(feba, dchg, 0xf0), swap));
    _mm_storeu_si128((__m128i *)(out + 16), _mm_shuffle_epi8(_mm_alignr_epi8(dchg, feba, 8), swap));
}

static const char NAME[] = "x86 SHA";

#elif !defined(PORTABLE) && defined(__aarch64__) && (defined(__ARM_FEATURE_SHA2) || defined(__ARM_FEATURE_CRYPTO))

#include <arm_neon.h>
#ifndef STREAMS
#define STREAMS 2
#endif
typedef uint32x4_t V;
typedef struct { uint32x4_t abcd, efgh; } State;

INLINE V load(const uint8_t *p) { return vreinterpretq_u32_u8(vld1q_u8(p)); }
INLINE V joined(uint64_t low, uint64_t high) {
    return vreinterpretq_u32_u64(vcombine_u64(vcreate_u64(low), vcreate_u64(high)));
}
INLINE V none(void) { return vdupq_n_u32(0); }
INLINE V nan_of(V seen, V v) {
    return vorrq_u32(seen, vcgtq_u32(vandq_u32(v, vdupq_n_u32(0x7fffffff)), vdupq_n_u32(0x7f800000)));
}
INLINE int any(V seen) { return vmaxvq_u32(seen) != 0; }

INLINE State initial(void) {
    static const uint32_t words[8] = {INITIAL};
    State s = {vld1q_u32(words), vld1q_u32(words + 4)};
    return s;
}

INLINE void compress(int n, State *s, V (*m)[4]) {
    State before[STREAMS];
    UNROLL for (int j = 0; j < n; j++) {
        before[j] = s[j];
        UNROLL for (int i = 0; i < 4; i++) m[j][i] = vreinterpretq_u32_u8(vrev32q_u8(vreinterpretq_u8_u32(m[j][i])));
    }
    UNROLL for (int i = 0; i < 16; i++) {
        UNROLL for (int j = 0; j < n; j++) {
            V *w = m[j];
            if (i >= 4)
                w[i & 3] = vsha256su1q_u32(vsha256su0q_u32(w[i & 3], w[(i + 1) & 3]), w[(i + 2) & 3], w[(i + 3) & 3]);
            uint32x4_t t = vaddq_u32(w[i & 3], vld1q_u32(K + 4 * i)), abcd = s[j].abcd;
            s[j].abcd = vsha256hq_u32(abcd, s[j].efgh, t);
            s[j].efgh = vsha256h2q_u32(s[j].efgh, abcd, t);
        }
    }
    UNROLL for (int j = 0; j < n; j++) {
        s[j].abcd = vaddq_u32(s[j].abcd, before[j].abcd);
        s[j].efgh = vaddq_u32(s[j].efgh, before[j].efgh);
    }
}

INLINE void store(State s, uint8_t *out) {
    vst1q_u8(out, vrev32q_u8(vreinterpretq_u8_u32(s.abcd)));
    vst1q_u8(out + 16, vrev32q_u8(vreinterpretq_u8_u32(s.efgh)));
}

static const char NAME[] = "ARMv8 SHA";

#else

#define STREAMS 1
typedef struct { uint32_t w[4]; } V;
typedef struct { uint32_t h[8]; } State;

INLINE V load(const uint8_t *p) {
    V v;
    memcpy(v.w, p, 16);
    return v;
}
INLINE V joined(uint64_t low, uint64_t high) {
    V v = {{(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)}};
    return v;
}
INLINE V none(void) { return joined(0, 0); }
INLINE V nan_of(V seen, V v) {
    for (int i = 0; i < 4; i++) seen.w[i] |= (v.w[i] & 0x7fffffff) > 0x7f800000;
    return seen;
}
INLINE int any(V seen) { return (seen.w[0] | seen.w[1] | seen.w[2] | seen.w[3]) != 0; }
INLINE uint32_t swapped(uint32_t x) { return x >> 24 | (x >> 8 & 0xff00) | (x << 8 & 0xff0000) | x << 24; }
INLINE uint32_t right(uint32_t x, int by) { return x >> by | x << (32 - by); }

INLINE State initial(void) {
    State s = {{INITIAL}};
    return s;
}

INLINE void compress(int n, State *s, V (*m)[4]) {
    (void)n; /* one */
    uint32_t w[16], a = s->h[0], b = s->h[1], c = s->h[2], d = s->h[3];
    uint32_t e = s->h[4], f = s->h[5], g = s->h[6], h = s->h[7];
    for (int i = 0; i < 16; i++) w[i] = swapped(m[0][i / 4].w[i % 4]);
    UNROLL for (int i = 0; i < 64; i++) {
        if (i >= 16) {
            uint32_t x = w[(i + 1) & 15], y = w[(i + 14) & 15];
            w[i & 15] += (right(x, 7) ^ right(x, 18) ^ x >> 3) + w[(i + 9) & 15] + (right(y, 17) ^ right(y, 19) ^ y >> 10);
        }
        uint32_t t = h + (right(e, 6) ^ right(e, 11) ^ right(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i & 15];
        uint32_t u = (right(a, 2) ^ right(a, 13) ^ right(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t, d = c, c = b, b = a, a = t + u;
    }
    const uint32_t after[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++) s->h[i] += after[i];
}

INLINE void store(State s, uint8_t *out) {
    for (int i = 0; i < 8; i++) {
        uint32_t x = swapped(s.h[i]);
        memcpy(out + 4 * i, &x, 4);
    }
}

static const char NAME[] = "portable C";

#endif

INLINE uint64_t eight(const uint8_t *p) {
    uint64_t x;
    memcpy(&x, p, 8);
    return x;
}

/* The second half of a last block that holds 8 bytes: one bit set, zeros, the message's length in bits. */
INLINE void last_block(V *m, const uint8_t *rest, unsigned bits) {
    m[0] = joined(eight(rest), 0x80);
    m[1] = m[2] = none();
    m[3] = joined(0, (uint64_t)(bits & 0xff) << 56 | (uint64_t)(bits >> 8 & 0xff) << 48);
}

/* ---- Chunks ---- */

/* `n` whole chunks, one after the other; whether one of their floats is a NaN. */
INLINE int whole_chunks(int n, const uint8_t *data, uint8_t *out) {
    State s[STREAMS];
    V m[STREAMS][4], seen = none();
    const uint64_t tag = eight(CHUNK_TAG);
    UNROLL for (int j = 0; j < n; j++) {
        const uint8_t *p = data + j * CHUNK;
        s[j] = initial();
        m[j][0] = joined(tag, eight(p));
        seen = nan_of(seen, joined(0, eight(p)));
        UNROLL for (int i = 1; i < 4; i++) seen = nan_of(seen, m[j][i] = load(p + 16 * i - 8));
    }
    compress(n, s, m);
    for (int block = 1; block < CHUNK / 64; block++) {
        UNROLL for (int j = 0; j < n; j++) {
            const uint8_t *p = data + j * CHUNK + 64 * block - 8;
            UNROLL for (int i = 0; i < 4; i++) seen = nan_of(seen, m[j][i] = load(p + 16 * i));
        }
        compress(n, s, m);
    }
    UNROLL for (int j = 0; j < n; j++) {
        const uint8_t *rest = data + j * CHUNK + CHUNK - 8;
        seen = nan_of(seen, joined(0, eight(rest)));
        last_block(m[j], rest, 8 * (CHUNK + 8));
    }
    compress(n, s, m);
    UNROLL for (int j = 0; j < n; j++) store(s[j], out + j * DIGEST);
    return any(seen);
}

/* A chunk of 1 to 512 bytes by way of a copy, in which every NaN becomes the one NaN if that is asked for. */
static void copied_chunk(const uint8_t *data, int64_t bytes, int floats, uint8_t *out) {
    uint8_t message[CHUNK + 128] = {0};
    memcpy(message, CHUNK_TAG, 8);
    memcpy(message + 8, data, (size_t)bytes);
    for (int64_t at = 0; floats && at + 4 <= bytes; at += 4) {
        uint32_t x;
        memcpy(&x, message + 8 + at, 4);
        if ((x & 0x7fffffff) > 0x7f800000) x = 0x7fc00000;
        memcpy(message + 8 + at, &x, 4);
    }
    const int64_t length = bytes + 8, end = (length + 9 + 63) / 64 * 64;
    message[length] = 0x80;
    message[end - 2] = (uint8_t)(length * 8 >> 8);
    message[end - 1] = (uint8_t)(length * 8);
    State s[STREAMS] = {initial()};
    for (int64_t at = 0; at < end; at += 64) {
        V m[STREAMS][4];
        for (int i = 0; i < 4; i++) m[0][i] = load(message + at + 16 * i);
        compress(1, s, m);
    }
    store(s[0], out);
}

INLINE void some_chunks(int n, const uint8_t *data, int floats, uint8_t *out) {
    if (whole_chunks(n, data, out) && floats)
        for (int j = 0; j < n; j++) copied_chunk(data + j * CHUNK, CHUNK, floats, out + j * DIGEST);
}

/* Digests of all chunks of `bytes` >= 1 bytes. */
static void leaves(const uint8_t *data, int64_t bytes, int floats, uint8_t *out) {
    const int64_t whole = bytes / CHUNK;
    int64_t k = 0;
    for (; k + STREAMS <= whole; k += STREAMS) some_chunks(STREAMS, data + k * CHUNK, floats, out + k * DIGEST);
    for (; k < whole; k++) some_chunks(1, data + k * CHUNK, floats, out + k * DIGEST);
    if (bytes > whole * CHUNK) copied_chunk(data + k * CHUNK, bytes - k * CHUNK, floats, out + k * DIGEST);
}

/* ---- Inner nodes ---- */

/* `n` parents of 2n digests; `out` may be `below`. */
INLINE void some_parents(int n, const uint8_t *below, uint8_t *out) {
    State s[STREAMS];
    V m[STREAMS][4];
    UNROLL for (int j = 0; j < n; j++) {
        const uint8_t *p = below + 2 * j * DIGEST;
        s[j] = initial();
        m[j][0] = joined(eight(NODE_TAG), eight(p));
        UNROLL for (int i = 1; i < 4; i++) m[j][i] = load(p + 16 * i - 8);
    }
    compress(n, s, m);
    UNROLL for (int j = 0; j < n; j++) last_block(m[j], below + 2 * j * DIGEST + 2 * DIGEST - 8, 8 * (2 * DIGEST + 8));
    compress(n, s, m);
    UNROLL for (int j = 0; j < n; j++) store(s[j], out + j * DIGEST);
}

static void pairs(const uint8_t *below, int64_t count, uint8_t *out) {
    int64_t k = 0;
    for (; k + STREAMS <= count; k += STREAMS) some_parents(STREAMS, below + 2 * k * DIGEST, out + k * DIGEST);
    for (; k < count; k++) some_parents(1, below + 2 * k * DIGEST, out + k * DIGEST);
}

/* The level above `count` digests, (count + 1) / 2 of them; `empty` is what an odd last one is paired with. `out` may
   be `below`. */
void parents(const uint8_t *below, int64_t count, const uint8_t *empty, uint8_t *out) {
    uint8_t last[2 * DIGEST];
    if (count % 2) {
        memcpy(last, below + (count - 1) * DIGEST, DIGEST);
        memcpy(last + DIGEST, empty, DIGEST);
    }
    pairs(below, count / 2, out);
    if (count % 2) pairs(last, 1, out + count / 2 * DIGEST);
}

/* ---- Records: short messages of one length ---- */

/* `n` records of `width` bytes, 1 to 111 (two blocks with tag, padding and length), one after the other, each after the 8 bytes of the tag. */
INLINE void some_records(int n, const uint8_t *tag, const uint8_t *data, int64_t width, uint8_t *out) {
    uint8_t message[STREAMS][128] = {{0}};
    State s[STREAMS];
    const int64_t length = width + 8, end = length + 9 <= 64 ? 64 : 128;
    UNROLL for (int j = 0; j < n; j++) {
        s[j] = initial();
        memcpy(message[j], tag, 8);
        memcpy(message[j] + 8, data + j * width, (size_t)width);
        message[j][length] = 0x80;
        message[j][end - 2] = (uint8_t)(length * 8 >> 8);
        message[j][end - 1] = (uint8_t)(length * 8);
    }
    for (int64_t at = 0; at < end; at += 64) {
        V m[STREAMS][4];
        UNROLL for (int j = 0; j < n; j++) {
            UNROLL for (int i = 0; i < 4; i++) m[j][i] = load(message[j] + at + 16 * i);
        }
        compress(n, s, m);
    }
    UNROLL for (int j = 0; j < n; j++) store(s[j], out + j * DIGEST);
}

/* Digests of `count` records. */
void records(const uint8_t *tag, const uint8_t *data, int64_t count, int64_t width, uint8_t *out) {
    int64_t k = 0;
    for (; k + STREAMS <= count; k += STREAMS) some_records(STREAMS, tag, data + k * width, width, out + k * DIGEST);
    for (; k < count; k++) some_records(1, tag, data + k * width, width, out + k * DIGEST);
}

/* ---- Work that threads share ---- */

typedef struct {
    const uint8_t *data;
    int64_t bytes;  /* 1 ... SPAN * CHUNK */
    int64_t floats; /* whether every NaN of the data counts as the one NaN */
    int64_t height; /* of the node wanted; -1: the digests of all chunks */
    uint8_t *out;
} Piece;

/* Takes pieces from number *next on until there are none. `empties` holds the empty root of every height up to 63. */
void hash_pieces(const Piece *pieces, int64_t count, const uint8_t *empties, _Atomic int64_t *next) {
    uint8_t level[SPAN * DIGEST];
    for (;;) {
        const int64_t taken = atomic_fetch_add(next, 1);
        if (taken >= count) return;
        const Piece p = pieces[taken];
        if (p.height < 0) {
            leaves(p.data, p.bytes, (int)p.floats, p.out);
            continue;
        }
        leaves(p.data, p.bytes, (int)p.floats, level);
        int64_t nodes = (p.bytes + CHUNK - 1) / CHUNK;
        for (int64_t h = 0; h < p.height; h++, nodes = (nodes + 1) / 2) parents(level, nodes, empties + h * DIGEST, level);
        memcpy(p.out, level, DIGEST);
    }
}

const char *implementation(void) { return NAME; }
int64_t span(void) { return SPAN; }
