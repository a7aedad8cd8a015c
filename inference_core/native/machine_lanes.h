// Vectors exactly as wide as this instruction set's registers, for kernels that keep tiles in registers: wider vectors
// would be spilled to the stack at every operation.
#pragma once
#include "lanes.h"

namespace aio {
namespace AIO_ISA {

#if defined(AIO_AVX512)
constexpr int kWide = 16;
#elif defined(AIO_AVX2)
constexpr int kWide = 8;
#else
constexpr int kWide = 4;
#endif

// A tile of these always fits the registers, if its loops disappear.
#define AIO_UNROLL_TILE _Pragma("GCC unroll 16")

typedef float vf __attribute__((vector_size(4 * kWide), aligned(4)));
typedef int32_t vi __attribute__((vector_size(4 * kWide), aligned(4)));
typedef uint32_t vu __attribute__((vector_size(4 * kWide), aligned(4)));

typedef uint16_t vu16 __attribute__((vector_size(2 * kWide), aligned(2)));
typedef uint8_t vu8 __attribute__((vector_size(kWide), aligned(1)));

// Written out, since `vf{} + v` is an addition before the broadcast.
AIO_INLINE vf wide(float v) {
#if defined(AIO_AVX512)
  return (vf)_mm512_set1_ps(v);
#elif defined(AIO_AVX2)
  return (vf)_mm256_set1_ps(v);
#else
  return vf{v, v, v, v};
#endif
}
AIO_INLINE vf wide_load(const float* p) { return *reinterpret_cast<const vf*>(p); }
AIO_INLINE vu wide_load(const uint32_t* p) { return *reinterpret_cast<const vu*>(p); }
AIO_INLINE void wide_store(float* p, vf v) { *reinterpret_cast<vf*>(p) = v; }

AIO_INLINE vf larger(vf a, vf b) {
#if defined(AIO_AVX512)
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(AIO_AVX2)
  return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

// One rounding. The portable build has no such instruction; there it is a product and a sum, always both.
AIO_INLINE vf wide_fma(vf a, vf b, vf c) {
#if defined(AIO_AVX512)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(AIO_AVX2)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(AIO_NEON)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// The two bfloat16 numbers of each 32-bit lane.
AIO_INLINE vf low_half(vu v) { return (vf)(v << 16); }
AIO_INLINE vf high_half(vu v) { return (vf)(v & 0xffff0000u); }

// Rounded to nearest even as torch does, in the upper half of each lane; NaN stays NaN.
AIO_INLINE vu wide_bf16(vf v) {
  const vu u = (vu)v, rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  return (u & 0x7fffffffu) > 0x7f800000u ? vu{} + 0x7fc00000u : rounded;
}

AIO_INLINE float wide_max(vf v) {
#if defined(AIO_AVX512)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float best[kWide];
  wide_store(best, v);
  for (int step = kWide / 2; step; step /= 2)
    for (int i = 0; i < step; ++i) best[i] = best[i] > best[i + step] ? best[i] : best[i + step];
  return best[0];
#endif
}

AIO_INLINE float wide_sum(vf v) {
#if defined(AIO_AVX512)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float total[kWide];
  wide_store(total, v);
  for (int step = kWide / 2; step; step /= 2)
    for (int i = 0; i < step; ++i) total[i] += total[i + step];
  return total[0];
#endif
}

AIO_INLINE vi lane_numbers() {
  vi v{};
  AIO_UNROLL_TILE
  for (int i = 0; i < kWide; ++i) v[i] = i;
  return v;
}

// 2^x for x <= 0, at least 2^-100 (so that products with it stay normal numbers); relative error below 3e-7, and
// exactly 1 for 0. The polynomial interpolates (2^r - 1) / r at the Chebyshev nodes of [-1/2, 1/2].
AIO_INLINE vf exp2_wide(vf x) {
  x = larger(x, wide(-100.0f));
  const vf magic = wide(12582912.0f);  // 1.5 * 2^23: the sum's last bits are the nearest integer
  const vf shifted = x + magic;
  const vf r = x - (shifted - magic);
  vf p = wide(1.3381302e-3f);
  p = wide_fma(p, r, wide(9.666368e-3f));
  p = wide_fma(p, r, wide(5.550381e-2f));
  p = wide_fma(p, r, wide(2.402235e-1f));
  p = wide_fma(p, r, wide(6.931472e-1f));
  p = wide_fma(p, r, wide(1.0f));
  return (vf)((vi)p + ((vi)shifted << 23));
}

}  // namespace AIO_ISA
}  // namespace aio
