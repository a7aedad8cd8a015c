// Vectors of 16 lanes and the arithmetic that the kernels share, on whatever instruction set the including file is
// compiled for (see kernels_impl.h).
#pragma once
#include "kernels.h"

#include <math.h>
#include <string.h>
#if defined(AIO_AVX512) || defined(AIO_AVX2)
#include <immintrin.h>
#endif

namespace aio {
namespace AIO_ISA {

#define AIO_INLINE static inline __attribute__((always_inline))
#define AIO_LAMBDA __attribute__((always_inline))
#define AIO_MEMBER inline __attribute__((always_inline))
// Short loops over register arrays must disappear, or the arrays live on the stack.
#if defined(AIO_AVX512) || defined(AIO_AVX2)
#define AIO_UNROLL _Pragma("GCC unroll 16")
#else
#define AIO_UNROLL  // a vector of 16 is four or more registers already: unrolled further, compiling takes minutes
#endif

typedef float f16x __attribute__((vector_size(64), aligned(4)));
typedef int32_t i16x __attribute__((vector_size(64), aligned(4)));
typedef uint32_t u16x __attribute__((vector_size(64), aligned(4)));
typedef uint16_t h16x __attribute__((vector_size(32), aligned(2)));
typedef int8_t b16x __attribute__((vector_size(16), aligned(1)));

AIO_INLINE i16x splat_i(int32_t v) { return i16x{} + v; }
// By its bits: 0.0f + v is an addition, since -0.0f would change its sign.
AIO_INLINE f16x splat(float v) {
  int32_t bits;
  memcpy(&bits, &v, 4);
  return (f16x)splat_i(bits);
}
AIO_INLINE f16x load(const float* p) { return *reinterpret_cast<const f16x*>(p); }
AIO_INLINE void store(float* p, f16x v) { *reinterpret_cast<f16x*>(p) = v; }
AIO_INLINE int min_int(int a, int b) { return a < b ? a : b; }
AIO_INLINE int max_int(int a, int b) { return a > b ? a : b; }

AIO_INLINE f16x fma(f16x a, f16x b, f16x c) {
#if defined(AIO_AVX512)
  return (f16x)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
  return a * b + c;
#endif
}

AIO_INLINE f16x to_float(i16x v) { return __builtin_convertvector(v, f16x); }

AIO_INLINE f16x from_bf16(const uint16_t* p) {
  const h16x h = *reinterpret_cast<const h16x*>(p);
  return (f16x)(__builtin_convertvector(h, u16x) << 16);
}

// Round to nearest even, as torch does; NaN stays NaN.
AIO_INLINE uint16_t to_bf16(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

AIO_INLINE f16x from_half(const uint16_t* p) {
#if defined(AIO_AVX512)
  return (f16x)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(AIO_AVX2)
  union { f16x v; __m256 h[2]; } u;
  u.h[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
  u.h[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)));
  return u.v;
#else
  f16x out;
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t h = p[i], sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
    float magnitude;
    if (exponent == 0) {
      magnitude = float(mantissa) * 5.9604644775390625e-8f;  // 2^-24: zero and subnormals
    } else {
      const uint32_t bits = exponent == 31 ? 0x7f800000u | (mantissa << 13) : ((exponent + 112) << 23) | (mantissa << 13);
      memcpy(&magnitude, &bits, 4);
    }
    uint32_t bits;
    memcpy(&bits, &magnitude, 4);
    bits |= sign;
    float value;
    memcpy(&value, &bits, 4);
    out[i] = value;
  }
  return out;
#endif
}

AIO_INLINE float lanes_sum(f16x v) {
#if defined(AIO_AVX512)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float total[kLanes];
  store(total, v);
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) total[i] += total[i + step];
  return total[0];
#endif
}

AIO_INLINE float lanes_max(f16x v) {
#if defined(AIO_AVX512)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float best[kLanes];
  store(best, v);
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) best[i] = best[i] > best[i + step] ? best[i] : best[i + step];
  return best[0];
#endif
}

// exp(x) for x <= 88: range reduction by ln 2 and a degree-6 polynomial; relative error below 2e-7.
AIO_INLINE f16x exp_lanes(f16x x) {
  const f16x low = splat(-87.0f);
  x = x > low ? x : low;
  const f16x magic = splat(12582912.0f);  // 1.5 * 2^23 rounds to an integer
  const f16x n = fma(x, splat(1.44269504088896341f), magic) - magic;
  f16x r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  f16x p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
  const i16x power = (__builtin_convertvector(n, i16x) + 127) << 23;
  return p * (f16x)power;
}

}  // namespace AIO_ISA
}  // namespace aio
