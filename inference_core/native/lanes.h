// What all kernels share, on whatever instruction set the including file is compiled for (see kernels_impl.h).
#pragma once
#include "kernels.h"

#include <math.h>
#include <string.h>
#if defined(AIO_AVX512) || defined(AIO_AVX2)
#include <immintrin.h>
#elif defined(AIO_NEON)
#include <arm_neon.h>
#endif

namespace aio {
namespace AIO_ISA {

#define AIO_INLINE static inline __attribute__((always_inline))
#define AIO_LAMBDA __attribute__((always_inline))
#define AIO_MEMBER inline __attribute__((always_inline))
// Short loops over register arrays must disappear, or the arrays live on the stack.
#if defined(AIO_AVX512) || defined(AIO_AVX2) || defined(AIO_NEON)
#define AIO_UNROLL _Pragma("GCC unroll 16")
#else
#define AIO_UNROLL  // a vector of 16 is four or more registers already: unrolled further, compiling takes minutes
#endif

AIO_INLINE int min_int(int a, int b) { return a < b ? a : b; }
AIO_INLINE int max_int(int a, int b) { return a > b ? a : b; }

// What is added to codes of 8 bits before they are multiplied, so that they are not negative.
#if defined(AIO_DOTPROD) && !defined(AIO_I8MM)
constexpr int kOctetZero = 0;
#else
constexpr int kOctetZero = 128;
#endif

#if defined(AIO_DOTPROD)
// Adds the products of four bytes to each lane: codes of 0 to 127, or `octet_codes`, times four numbers.
AIO_INLINE int32x4_t dot(int32x4_t sum, uint8x16_t codes, int8x16_t x) {
#if defined(AIO_I8MM)
  return vusdotq_s32(sum, codes, x);
#else
  return vdotq_s32(sum, vreinterpretq_s8_u8(codes), x);
#endif
}
AIO_INLINE uint8x16_t octet_codes(uint8x16_t stored) { return veorq_u8(stored, vdupq_n_u8(128 - kOctetZero)); }
#endif

}  // namespace AIO_ISA
}  // namespace aio
