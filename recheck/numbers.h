/* Integers of 768 bits, and every number of SPEC sections 4.4 to 7 by integers alone. */
#ifndef RECHECK_NUMBERS_H
#define RECHECK_NUMBERS_H

#include "base.h"

enum { LIMBS = 12, ACCUMULATOR_BYTES = 97, UNIT = 298 };

/* Two's complement, modulo 2^768; least limb first. */
typedef struct {
    uint64_t w[LIMBS];
} Wide;

Wide wide(u128 value);
Wide plus(Wide a, Wide b);
Wide minus(Wide a, Wide b);
Wide shifted(Wide a, int left);
Wide times(Wide a, Wide b, int right);
Wide over(Wide a, uint64_t b);
Wide quotient(Wide a, Wide b, Wide *rest);
bool is_zero(Wide a);
bool negative(Wide a);
int compare(Wide a, Wide b);
int bits_of(Wide a);
Wide wide_at(Bytes big_endian);
void put_wide(Buffer *out, Wide value, size_t bytes);

/* How a result is rounded: to `precision` bits, and under policy `logged` along a code within a tolerance. */
typedef struct {
    int precision, tolerance, code;
} Rounding;

typedef struct {
    bool negative;
    uint64_t mantissa;
    int exponent;
} Parts;

bool is_nan(uint32_t x);
bool is_finite(uint32_t x);
uint32_t canonical(uint32_t x);
Parts parts_of(uint32_t x);
uint32_t round_number(bool negative, Wide magnitude, int exponent, bool sticky, Rounding rounding);
uint32_t transcendental(int function, uint32_t x, int precision);
/* Whether the enclosure of f(x) that was computed meets [v, v + 1) * 2^e. */
bool encloses(int function, uint32_t x, Wide v, int e);

/* Words: an f32's pattern, an i64 or a bool. */
uint64_t map(int function, const uint8_t *types, uint8_t result, const uint64_t *words, int precision);
bool map_types(int function, const uint8_t *types, size_t count, uint8_t result);
bool greater(uint8_t type, uint64_t a, uint64_t b);

enum { SUM, SUM_I64, MAX, MAX_I64, ARGMAX, ARGMAX_I64, SUM_BF16 };

typedef struct {
    int kind;
    bool nan;
    Wide sum;
    uint64_t value;
    int64_t index;
} Accumulator;

Accumulator start(int kind);
void add_term(Accumulator *held, const uint64_t *factors, size_t count, int64_t position);
uint64_t finish(const Accumulator *held, Rounding rounding);
void put_accumulator(Buffer *out, const Accumulator *held);
Accumulator accumulator_at(int kind, Bytes in);

void philox(const uint32_t counter[4], uint64_t seed, uint32_t out[4]);
uint32_t random_number(uint64_t seed, uint64_t step, uint32_t stream, uint64_t element);
int64_t shuffle(int64_t index, uint64_t seed, uint64_t epoch, uint64_t n, uint32_t stream);

#endif
