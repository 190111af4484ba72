/* Chains of elementwise instructions, tile by tile (see chains.py, which writes the code that is run here).
 *
 * A chain is straight-line code over registers. In each tile, elements begin ... begin + n - 1 of the chain's index
 * space, a register is a run of n contiguous elements: scratch memory that stays in the cache, or the tile's part of an
 * operand or of a result, or one element for all (step 0). f32 add, sub, mul, div and sqrt are IEEE's, correctly
 * rounded; nothing is contracted (-ffp-contract=off) and no "fast math" flag may ever be set.
 *
 * Bounds: the kernel trusts its code. chains.py makes it from instructions of a validated program, whose access maps
 * were checked over their whole index space, and checks before each call that every pointer is to a contiguous tensor
 * of the expected dtype and size. A tile never reaches beyond `end`, and scratch holds TILE elements of 8 bytes for
 * each scratch register.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rounding.h"

enum { TILE = 1024, WORDS = 6, REGISTER_WORDS = 3, MAX_REGISTERS = 512, LANES = 64, CACHE = 256 };

/* Operation codes: agreed with chains.py by name, through chain_codes below. */
#define OPERATIONS(X) \
    X(LOAD1) X(LOAD4) X(LOAD8) X(IOTA) X(RANDOM) X(FINALIZE) X(EXP) X(TANH) \
    X(COPY1) X(COPY4) X(COPY8) \
    X(ADD_F32) X(SUB_F32) X(MUL_F32) X(DIV_F32) X(MAX_F32) X(MIN_F32) X(SQRT_F32) X(BF16_F32) X(NEG_F32) X(ABS_F32) \
    X(ADD_I64) X(SUB_I64) X(MUL_I64) X(MAX_I64) X(MIN_I64) X(FLOORDIV_I64) X(MOD_I64) X(NEG_I64) X(ABS_I64) \
    X(LT_F32) X(LE_F32) X(EQ_F32) X(NE_F32) X(LT_I64) X(LE_I64) X(EQ_I64) X(NE_I64) \
    X(EQ_BOOL) X(NE_BOOL) X(AND_BOOL) X(OR_BOOL) X(NOT_BOOL) X(WHERE1) X(WHERE4) X(WHERE8) \
    X(CAST_F32_I64) X(CAST_F32_BOOL) X(CAST_I64_F32) X(CAST_I64_BOOL) X(CAST_BOOL_F32) X(CAST_BOOL_I64)
#define NAME(x) x,
enum { OPERATIONS(NAME) OPERATION_COUNT };
#undef NAME
#define NAME(x) #x " "
const char *chain_codes(void) { return OPERATIONS(NAME); }
int64_t chain_tile(void) { return TILE; }

/* Memory that one operation writes as a float another may read as bits. */
typedef float f32 __attribute__((may_alias));
typedef uint32_t u32 __attribute__((may_alias));
typedef int64_t i64 __attribute__((may_alias));
typedef uint64_t u64 __attribute__((may_alias));
typedef uint8_t u8;

typedef uint32_t (*resolver)(int64_t function, uint32_t bits);
/* The exact result of exp (0) or tanh (1) for an argument's bits; asked where FP64 cannot decide. */

static inline uint32_t bits_of(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
static inline float float_of(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }

/* -- scalar meanings (SPEC 4.4) --------------------------------------------------------------------------------- */

static inline float max_f32(float a, float b) { float m = a > b ? a : b; m = a != a ? a : m; return m + 0.0f; }
static inline float min_f32(float a, float b) { float m = a < b ? a : b; m = a != a ? a : m; return m + 0.0f; }
/* To nearest; what carries out of the fraction goes to the exponent. A NaN stays one: its quiet bit is set. */
static inline uint32_t to_bf16(uint32_t x) {
    const uint32_t rounded = (x + 0x7fffu + (x >> 16 & 1)) & 0xffff0000u;
    return (x & 0x7fffffffu) > 0x7f800000u ? (x | 0x400000u) : rounded;
}
static inline int64_t wrap(uint64_t x) { return (int64_t)x; }
/* By a power of two, as codes are taken out of words, a shift and a mask give both in a tenth of the time. */
static inline int is_power_of_2(int64_t b) { return b > 0 && (b & (b - 1)) == 0; }
static inline int64_t floordiv(int64_t a, int64_t b) {
    if (is_power_of_2(b)) return a >> __builtin_ctzll((uint64_t)b);
    if (b == 0) return 0;
    if (b == -1) return wrap(0 - (uint64_t)a); /* -2^63 / -1 traps */
    int64_t q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}
static inline int64_t floormod(int64_t a, int64_t b) {
    if (is_power_of_2(b)) return a & (b - 1);
    if (b == 0 || b == -1) return 0;
    int64_t r = a % b;
    return r + (r != 0 && (r < 0) != (b < 0) ? b : 0);
}
/* Quotients (or remainders) by one y > 0, where all operands are below 2^52: then FP64 finds them, in vectors. For if
 * x / y < q, which is whole, x / y <= q - 1 / y, and rounding does not reach q since |q| y < 2^53. 0 if others are there. */
static int divide_by_one(const i64 *restrict a, int64_t y, int64_t n, i64 *restrict o, const int rest) {
    if (is_power_of_2(y)) {
        const int shift = __builtin_ctzll((uint64_t)y);
        for (int64_t i = 0; i < n; i++) o[i] = rest ? a[i] & (y - 1) : a[i] >> shift;
        return 1;
    }
    const int64_t most = (int64_t)1 << 52;
    uint64_t wide = (uint64_t)y;
    for (int64_t i = 0; i < n; i++) wide |= (uint64_t)(a[i] < 0 ? ~a[i] : a[i]);
    if (y <= 0 || wide >= (uint64_t)most) return 0;
    for (int64_t i = 0; i < n; i++) {
        const double quotient = (double)a[i] / (double)y;
        const int64_t toward_0 = (int64_t)quotient, q = toward_0 - (quotient < (double)toward_0);
        o[i] = rest ? a[i] - q * y : q;
    }
    return 1;
}
static inline int64_t f32_to_i64(float x) {
    if (x >= 0x1p63f) return INT64_MAX;
    if (x <= -0x1p63f) return INT64_MIN;
    return x == x ? (int64_t)x : 0;
}

/* -- loops: one per combination of runs (v) and single elements (s) ----------------------------------------------- */

#define LOOP for (int64_t i = 0; i < n; i++)
#define UNARY(CODE, T, R, EXPRESSION) \
    case CODE: { const T *restrict a = A; R *restrict o = D; LOOP { T x = a[i]; o[i] = EXPRESSION; } break; }
#define BINARY(CODE, T, R, EXPRESSION) \
    case CODE: { \
        const T *restrict a = A; const T *restrict b = B; R *restrict o = D; \
        if (!sa) { T x = a[0]; LOOP { T y = b[i]; o[i] = EXPRESSION; } } \
        else if (!sb) { T y = b[0]; LOOP { T x = a[i]; o[i] = EXPRESSION; } } \
        else LOOP { T x = a[i], y = b[i]; o[i] = EXPRESSION; } \
        break; }
#define DIVISION(CODE, EXPRESSION, REST) \
    case CODE: \
        if (!sb && divide_by_one(A, *(const i64 *)B, n, D, REST)) break; \
        { const i64 *a = A, *b = B; i64 *o = D; LOOP { int64_t x = a[sa ? i : 0], y = b[sb ? i : 0]; o[i] = EXPRESSION; } } \
        break;
#define SELECT(CODE, T) \
    case CODE: { \
        const uint8_t *restrict a = A; const T *restrict b = B; const T *restrict c = C; T *restrict o = D; \
        if (!sb && !sc) { T y = b[0], z = c[0]; LOOP o[i] = a[i] ? y : z; } \
        else if (!sb) { T y = b[0]; LOOP { T z = c[i]; o[i] = a[i] ? y : z; } } \
        else if (!sc) { T z = c[0]; LOOP { T y = b[i]; o[i] = a[i] ? y : z; } } \
        else LOOP { T y = b[i], z = c[i]; o[i] = a[i] ? y : z; } \
        break; }

/* -- reads through an affine map: parameters are rank, sizes, strides (in elements) --------------------------------- */

/* The offset is unsigned because that of an iota may wrap. */
typedef struct { int64_t rank; uint64_t offset; const int64_t *sizes, *strides; int64_t at[8]; } walk;

static void walk_to(walk *w, const int64_t *parameters, int64_t begin) {
    w->rank = parameters[0];
    w->sizes = parameters + 1;
    w->strides = w->sizes + w->rank;
    w->offset = 0;
    for (int64_t d = w->rank - 1; d >= 0; d--) {
        w->at[d] = begin % w->sizes[d];
        begin /= w->sizes[d];
        w->offset += (uint64_t)w->at[d] * (uint64_t)w->strides[d];
    }
}

/* The rest of the innermost dim, at most n elements; `advance` moves past them. */
static inline int64_t run_length(const walk *w, int64_t n) {
    int64_t rest = w->sizes[w->rank - 1] - w->at[w->rank - 1];
    return rest < n ? rest : n;
}
static inline void advance(walk *w, int64_t run) {
    int64_t d = w->rank - 1;
    w->at[d] += run;
    w->offset += (uint64_t)run * (uint64_t)w->strides[d];
    while (d > 0 && w->at[d] == w->sizes[d]) {
        w->offset -= (uint64_t)w->sizes[d] * (uint64_t)w->strides[d];
        w->at[d] = 0;
        d--;
        w->at[d]++;
        w->offset += (uint64_t)w->strides[d];
    }
}

#define LOADER(NAME, T) \
    static void NAME(T *restrict o, const T *base, const int64_t *parameters, int64_t begin, int64_t n) { \
        walk w; \
        walk_to(&w, parameters, begin); \
        int64_t stride = w.strides[w.rank - 1]; \
        while (n > 0) { \
            int64_t run = run_length(&w, n); \
            const T *restrict a = base + (int64_t)w.offset; \
            if (stride == 1) memcpy(o, a, (size_t)run * sizeof(T)); \
            else if (stride == 0) for (int64_t i = 0; i < run; i++) o[i] = a[0]; \
            else for (int64_t i = 0; i < run; i++) o[i] = a[i * stride]; \
            o += run; \
            n -= run; \
            advance(&w, run); \
        } \
    }
LOADER(load1, u8)
LOADER(load4, u32)
LOADER(load8, u64)

/* i64: start + sum of coordinate times stride, wrapping; unsigned arithmetic is exact modulo 2^64. */
static void iota(i64 *restrict o, const int64_t *parameters, int64_t begin, int64_t n) {
    walk w;
    walk_to(&w, parameters + 1, begin);
    const uint64_t step = (uint64_t)w.strides[w.rank - 1];
    while (n > 0) {
        const int64_t run = run_length(&w, n);
        const uint64_t value = (uint64_t)parameters[0] + w.offset;
        for (int64_t k = 0; k < run; k++) o[k] = wrap(value + (uint64_t)k * step);
        o += run;
        n -= run;
        advance(&w, run);
    }
}

/* -- Philox4x32-10 (SPEC section 7) ---------------------------------------------------------------------------------- */

static void philox(uint32_t c[4][LANES], uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++) {
        for (int j = 0; j < LANES; j++) {
            uint64_t p0 = (uint64_t)c[0][j] * 0xD2511F53u, p1 = (uint64_t)c[2][j] * 0xCD9E8D57u;
            uint32_t c1 = c[1][j], c3 = c[3][j];
            c[0][j] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            c[1][j] = (uint32_t)p1;
            c[2][j] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            c[3][j] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

static void draw(f32 *restrict o, uint64_t seed, uint64_t step, uint32_t stream, int64_t begin, int64_t n) {
    uint32_t c[4][LANES];
    int64_t skip = begin % 4;
    for (uint64_t block = (uint64_t)begin / 4; n > 0; block += LANES, skip = 0) {
        for (int j = 0; j < LANES; j++) {
            uint64_t position = block + (uint64_t)j;
            c[0][j] = (uint32_t)position;
            c[1][j] = (uint32_t)(position >> 32);
            c[2][j] = (uint32_t)step;
            c[3][j] = stream;
        }
        philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
        f32 all[4 * LANES], *restrict to = n < 4 * LANES || skip ? all : o;
        for (int j = 0; j < LANES; j++) { /* 24-bit integers times a power of two: exact */
            to[4 * j] = (f32)(int32_t)(c[0][j] >> 8) * 0x1p-24f;
            to[4 * j + 1] = (f32)(int32_t)(c[1][j] >> 8) * 0x1p-24f;
            to[4 * j + 2] = (f32)(int32_t)(c[2][j] >> 8) * 0x1p-24f;
            to[4 * j + 3] = (f32)(int32_t)(c[3][j] >> 8) * 0x1p-24f;
        }
        int64_t count = n < 4 * LANES - skip ? n : 4 * LANES - skip;
        if (to == all) memcpy(o, all + skip, (size_t)count * sizeof *o);
        o += count;
        n -= count;
    }
}

/* -- exp and tanh: FP64 with a proven bound, then Ziv's test -------------------------------------------------------- */

/* Below, u = 2^-53. x is a f32 or twice one. k = the integer next to x / ln 2, r = x - k ln 2.
 * k LN2_HIGH is exact (8 + 32 bits); where k != 0, x is a multiple of 2^-25 and k LN2_HIGH of 2^-32, so their
 * difference, below 1, is exact too. With |k| <= 151 and |LN2_LOW| < 2^-32 the rest costs r an error below 0.3 u.
 * |r| <= 0.3467. q = sum of r^j / (j + 1)! for j <= 12 leaves out less than 2^-57; rounding errors, from the inner
 * terms outwards (e <= u |q| + |r| (e' + u |q'|) + u |c|): below 1.7 u in q, which is at most 1.19. So r q is
 * e^r - 1 within 1.4 u. */
#define LOG2_E 0x1.71547652b82fep+0
#define LN2_HIGH 0x1.62e42fee00000p-1
#define LN2_LOW 0x1.a39ef35793c76p-33
#define SHIFT 0x1.8p+52
#ifdef __FMA__ /* one rounding less; the bounds below hold with and without */
#define MULTIPLY_ADD(x, y, z) __builtin_fma(x, y, z)
#else
#define MULTIPLY_ADD(x, y, z) ((x) * (y) + (z))
#endif

static inline double power_of_two(double shifted) {
    uint64_t b;
    memcpy(&b, &shifted, 8);
    b = (b + 1023) << 52; /* the low bits of k + SHIFT are those of k */
    double p;
    memcpy(&p, &b, 8);
    return p;
}
static inline double exp_minus_one(double x, double *scale) {
    double shifted = x * LOG2_E + SHIFT, k = shifted - SHIFT;
    double r = (x - k * LN2_HIGH) - k * LN2_LOW;
    double q = 1.0 / 6227020800.0;
    q = MULTIPLY_ADD(q, r, 1.0 / 479001600.0);
    q = MULTIPLY_ADD(q, r, 1.0 / 39916800.0);
    q = MULTIPLY_ADD(q, r, 1.0 / 3628800.0);
    q = MULTIPLY_ADD(q, r, 1.0 / 362880.0);
    q = MULTIPLY_ADD(q, r, 1.0 / 40320.0);
    q = MULTIPLY_ADD(q, r, 1.0 / 5040.0);
    q = MULTIPLY_ADD(q, r, 1.0 / 720.0);
    q = MULTIPLY_ADD(q, r, 1.0 / 120.0);
    q = MULTIPLY_ADD(q, r, 1.0 / 24.0);
    q = MULTIPLY_ADD(q, r, 1.0 / 6.0);
    q = MULTIPLY_ADD(q, r, 0.5);
    q = MULTIPLY_ADD(q, r, 1.0);
    *scale = power_of_two(shifted);
    return r * q;
}
/* Relative error below (1 + 1.4 + 0.4) u / 0.7 = 4 u. Beyond the clamps every result is 0 or infinite in f32; it is
 * made 0 here because rounding to a subnormal or from one to 0 is many times slower. */
static inline double exp_f64(double x) {
    double y = x < -104.0 ? -104.0 : x;
    y = y > 89.0 ? 89.0 : y;
    double scale, e = exp_minus_one(y, &scale);
    return x < -104.0 ? 0.0 : scale * (1.0 + e);
}
/* t = e^2a - 1 = 2^k (r q) + (2^k - 1), tanh a = t / (t + 2). k = 0: t has a relative error below 3 u. Else the
 * errors are at most 1.4 u 2^k in the product, an ulp in the sum, and t > 0.7 2^k - 1 (0.4 for k = 1): below 9 u.
 * So tanh a is within 12 u. Beyond 10 it is 1 in f32. */
static inline double tanh_f64(double x) {
    double a = x < 0 ? -x : x;
    a = a > 10.0 ? 10.0 : a;
    double scale, e = exp_minus_one(2.0 * a, &scale);
    double t = scale * e + (scale - 1.0);
    double y = t / (t + 2.0);
    return x < 0 ? -y : y;
}
/* Wider than either bound by a factor above 2, with the rounding of the two products below. */
#define RELATIVE (17 * 0x1p-52)

typedef struct { uint32_t argument[CACHE], result[CACHE]; uint8_t known[CACHE]; } memory;

static float resolve(resolver exact, int64_t function, float x, memory *kept) {
    uint32_t bits = bits_of(x), slot = (bits * 2654435761u) >> 24;
    if (!kept->known[slot] || kept->argument[slot] != bits) {
        kept->result[slot] = exact(function, bits);
        kept->argument[slot] = bits;
        kept->known[slot] = 1;
    }
    return float_of(kept->result[slot]);
}

/* counts[0]: undecided elements; counts[1]: those of them that FP64-then-round gets wrong. ROUND: FP64 to a result. */
#define TRANSCENDENTAL(NAME, FUNCTION, WHICH, ROUND) \
    static void NAME(f32 *restrict o, const f32 *restrict a, int64_t n, int precision, resolver exact, int64_t *counts) { \
        uint32_t undecided = 0; \
        (void)precision; \
        LOOP { \
            float x = a[i]; \
            double y = FUNCTION((double)x); \
            float low = ROUND(y * (1.0 - RELATIVE)), high = ROUND(y * (1.0 + RELATIVE)); \
            undecided |= bits_of(low) ^ bits_of(high); \
            o[i] = x != x || x == 0 ? (WHICH == 1 ? x : x + 1.0f) : low; \
        } \
        if (!undecided) return; \
        memory kept; \
        memset(kept.known, 0, sizeof kept.known); \
        LOOP { \
            float x = a[i]; \
            double y = FUNCTION((double)x); \
            float low = ROUND(y * (1.0 - RELATIVE)), high = ROUND(y * (1.0 + RELATIVE)); \
            if (low == high || x != x || x == 0) continue; \
            o[i] = resolve(exact, WHICH, x, &kept); \
            counts[0]++; \
            counts[1] += ROUND(y) != o[i]; \
        } \
    }
#define TO_F32(y) ((float)(y))
#define TO_BITS(y) round_bits(y, precision)
TRANSCENDENTAL(exp_f32, exp_f64, 0, TO_F32)
TRANSCENDENTAL(tanh_f32, tanh_f64, 1, TO_F32)
TRANSCENDENTAL(exp_bits, exp_f64, 0, TO_BITS)
TRANSCENDENTAL(tanh_bits, tanh_f64, 1, TO_BITS)

/* -- results that are committed: the one NaN, and whether all are finite --------------------------------------------- */

/* Not 0 if one of n f32 is infinite or NaN; every NaN becomes the one NaN. */
static int64_t finalize(u32 *restrict o, int64_t n) {
    uint32_t bad = 0;
    LOOP bad |= (o[i] & 0x7f800000u) == 0x7f800000u;
    if (bad) LOOP o[i] = (o[i] & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : o[i];
    return bad;
}

/* 1 if no f32 among begin ... end - 1 is infinite or NaN. */
int64_t chain_finite(const u32 *values, int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += TILE) {
        int64_t n = end - at < TILE ? end - at : TILE;
        uint32_t bad = 0;
        LOOP bad |= (values[at + i] & 0x7f800000u) == 0x7f800000u;
        if (bad) return 0;
    }
    return 1;
}

/* -- the machine ------------------------------------------------------------------------------------------------------ */

static void tile(const int64_t *code, char **registers, const int64_t *steps, int64_t begin, int64_t n,
                 resolver exact, int64_t *counts) {
    int64_t operations = code[1];
    const int64_t *op = code + 3 + REGISTER_WORDS * code[0];
    for (int64_t k = 0; k < operations; k++, op += WORDS) {
        void *D = registers[op[1]];
        const void *A = registers[op[2]], *B = registers[op[3]], *C = registers[op[4]];
        int sa = steps[op[2]] != 0, sb = steps[op[3]] != 0, sc = steps[op[4]] != 0;
        const int64_t *parameters = code + op[5];
        switch (op[0]) {
        case LOAD1: load1(D, A, parameters, begin, n); break;
        case LOAD4: load4(D, A, parameters, begin, n); break;
        case LOAD8: load8(D, A, parameters, begin, n); break;
        case IOTA: iota(D, parameters, begin, n); break;
        case RANDOM:
            draw(D, *(const u64 *)A, *(const u64 *)B, (uint32_t)parameters[0], parameters[1] + begin, n);
            break;
        case FINALIZE: counts[parameters[0]] |= finalize(D, n); break;
        case EXP: (parameters[1] == 32 ? exp_f32 : exp_bits)(D, A, n, (int)parameters[1], exact, counts + parameters[0]); break;
        case TANH: (parameters[1] == 32 ? tanh_f32 : tanh_bits)(D, A, n, (int)parameters[1], exact, counts + parameters[0]); break;
        case COPY1: memcpy(D, A, (size_t)n); break;
        case COPY4: memcpy(D, A, (size_t)n * 4); break;
        case COPY8: memcpy(D, A, (size_t)n * 8); break;
        BINARY(ADD_F32, f32, f32, x + y)
        BINARY(SUB_F32, f32, f32, x - y)
        BINARY(MUL_F32, f32, f32, x * y)
        BINARY(DIV_F32, f32, f32, x / y)
        BINARY(MAX_F32, f32, f32, max_f32(x, y))
        BINARY(MIN_F32, f32, f32, min_f32(x, y))
        UNARY(SQRT_F32, f32, f32, __builtin_sqrtf(x))
        UNARY(BF16_F32, u32, u32, to_bf16(x))
        UNARY(NEG_F32, u32, u32, x ^ 0x80000000u)
        UNARY(ABS_F32, u32, u32, x & 0x7fffffffu)
        BINARY(ADD_I64, u64, u64, x + y)
        BINARY(SUB_I64, u64, u64, x - y)
        BINARY(MUL_I64, u64, u64, x * y)
        BINARY(MAX_I64, i64, i64, x > y ? x : y)
        BINARY(MIN_I64, i64, i64, x < y ? x : y)
        DIVISION(FLOORDIV_I64, floordiv(x, y), 0)
        DIVISION(MOD_I64, floormod(x, y), 1)
        UNARY(NEG_I64, u64, u64, 0 - x)
        UNARY(ABS_I64, i64, u64, x < 0 ? 0 - (uint64_t)x : (uint64_t)x)
        BINARY(LT_F32, f32, u8, x < y)
        BINARY(LE_F32, f32, u8, x <= y)
        BINARY(EQ_F32, f32, u8, x == y)
        BINARY(NE_F32, f32, u8, x != y)
        BINARY(LT_I64, i64, u8, x < y)
        BINARY(LE_I64, i64, u8, x <= y)
        BINARY(EQ_I64, i64, u8, x == y)
        BINARY(NE_I64, i64, u8, x != y)
        BINARY(EQ_BOOL, u8, u8, x == y)
        BINARY(NE_BOOL, u8, u8, x != y)
        BINARY(AND_BOOL, u8, u8, x & y)
        BINARY(OR_BOOL, u8, u8, x | y)
        UNARY(NOT_BOOL, u8, u8, x == 0)
        SELECT(WHERE1, u8)
        SELECT(WHERE4, u32)
        SELECT(WHERE8, u64)
        UNARY(CAST_F32_I64, f32, i64, f32_to_i64(x))
        UNARY(CAST_F32_BOOL, f32, u8, x != 0)
        UNARY(CAST_I64_F32, i64, f32, (float)x)
        UNARY(CAST_I64_BOOL, i64, u8, x != 0)
        UNARY(CAST_BOOL_F32, u8, f32, (float)x)
        UNARY(CAST_BOOL_I64, u8, i64, x)
        }
    }
}

/* Elements begin ... end - 1 of a chain; begin is a multiple of TILE.
 *
 * code: [registers, operations, scratch bytes], then for each register [pointer number, or -1 for scratch; offset in
 * bytes; bytes per element, or 0: the register does not move], then for each operation [code, result, operands a, b, c,
 * where its parameters stand in `code`], then the parameters. Returns 0, or 1 where there is no memory. */
int64_t chain_run(const int64_t *code, char *const *pointers, int64_t begin, int64_t end, resolver exact,
                  int64_t *counts) {
    int64_t count = code[0];
    char *registers[MAX_REGISTERS];
    int64_t steps[MAX_REGISTERS];
    if (count > MAX_REGISTERS) return 2;
    char *scratch = aligned_alloc(64, (size_t)code[2] + 64);
    if (scratch == NULL) return 1;
    for (int64_t at = begin; at < end; at += TILE) {
        int64_t n = end - at < TILE ? end - at : TILE;
        for (int64_t r = 0; r < count; r++) {
            const int64_t *word = code + 3 + REGISTER_WORDS * r;
            registers[r] = (word[0] < 0 ? scratch : pointers[word[0]]) + word[1] + (word[0] < 0 ? 0 : at * word[2]);
            steps[r] = word[2];
        }
        tile(code, registers, steps, at, n, exact, counts);
    }
    free(scratch);
    return 0;
}
