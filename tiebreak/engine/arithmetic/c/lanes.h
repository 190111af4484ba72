/* Vectors of FP64 and how many rows of a product fit their registers. */
#pragma once

#include <stdint.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 8
#define MR 8
#define SPREAD(x) ((vec)_mm512_set1_pd(x))
#define FMA(a, b, c) ((vec)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#define MULTIPLY_32(a, b) ((integers)_mm512_mul_epi32((__m512i)(a), _mm512_set1_epi64(b)))
#define WHERE(n, x, y) ((integers)_mm512_mask_mov_epi64((__m512i)(y), _mm512_test_epi64_mask((__m512i)(n), (__m512i)(n)), (__m512i)(x)))
#if defined(__AVX512IFMA__) /* c plus the low or high half of a * b, of which 52 bits each count */
#define ADD_LOW(c, a, b) ((integers)_mm512_madd52lo_epu64((__m512i)(c), (__m512i)(a), (__m512i)(b)))
#define ADD_HIGH(c, a, b) ((integers)_mm512_madd52hi_epu64((__m512i)(c), (__m512i)(a), (__m512i)(b)))
#endif
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define LANES 4
#define MR 4
#define SPREAD(x) ((vec)_mm256_set1_pd(x))
#define FMA(a, b, c) ((vec)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#define MULTIPLY_32(a, b) ((integers)_mm256_mul_epi32((__m256i)(a), _mm256_set1_epi64x(b)))
#elif defined(__aarch64__)
#include <arm_neon.h>
#define LANES 2
#define MR 8
#define SPREAD(x) ((vec)vdupq_n_f64(x))
#define FMA(a, b, c) ((vec)vfmaq_f64((float64x2_t)(c), (float64x2_t)(a), (float64x2_t)(b)))
/* By one lane of a: the factors of two rows share a register, or else there are too few for the sums. */
#define FMA_LANE(a, lane, b, c) ((vec)vfmaq_laneq_f64((float64x2_t)(c), (float64x2_t)(b), (float64x2_t)(a), lane))
#define MULTIPLY_32(a, b) (((a) << 32 >> 32) * (b))
#else
#define LANES 2
#define MR 4
#define SPREAD(x) ((vec){(x), (x)})
#define FMA(a, b, c) ((c) + (a) * (b))
#define MULTIPLY_32(a, b) (((a) << 32 >> 32) * (b))
#endif

/* Loaded once into a register: compilers else load it again for each row, and loads become the bound. */
#if defined(__x86_64__) && defined(__GNUC__)
#define KEEP(x) __asm__("" : "+x"(x))
#elif defined(__aarch64__)
#define KEEP(x) __asm__("" : "+w"(x))
#else
#define KEEP(x) (void)0
#endif

typedef double vec __attribute__((vector_size(8 * LANES)));
typedef int64_t integers __attribute__((vector_size(8 * LANES))); /* MULTIPLY_32: of the low 32 bits of each */

#ifndef WHERE /* x where n is not zero, else y */
#define WHERE(n, x, y) ((((n) != 0) & (x)) | (((n) == 0) & (y)))
#endif
