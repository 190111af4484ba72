/* Rounding FP64 to f32 numbers of b bits, 16 to 32: the twin of tiebreak/engine/arithmetic/plan/options.py (the proof). */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline double from_pattern(uint64_t pattern) {
    double x;
    memcpy(&x, &pattern, 8);
    return x;
}

/* For b below 32. */
static inline float round_bits(double x, int precision) {
    const int drop = 61 - precision;
    uint64_t pattern;
    memcpy(&pattern, &x, 8);
    const uint64_t half = (1ull << (drop - 1)) - 1, kept = (pattern + half + (pattern >> drop & 1)) & ~0ull << drop;
    const double shift = from_pattern((uint64_t)(1023 - 65 - precision) << 52 | 1ull << 51); /* 1.5 * 2^(-65-b) */
    const double small = copysign((x + shift) - shift, x);
    const double rounded = fabs(x) < 0x1p-126 ? small : from_pattern(kept);
    return (float)(x == x ? rounded : x);
}

static inline float round_to(double x, int precision) { return precision == 32 ? (float)x : round_bits(x, precision); }

/* Between the two neighbours around c, which is finite. */
static inline double gap_at(double c, int precision) {
    uint64_t pattern;
    memcpy(&pattern, &c, 8);
    const double power = from_pattern(pattern & 0x7ffull << 52);
    return (power < 0x1p-126 ? 0x1p-126 : power) * from_pattern((uint64_t)(1023 + 9 - precision) << 52);
}
