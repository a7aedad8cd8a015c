// The 16 columns of a weight panel as a few registers of the machine's width, with the operations of linear layers.
// Vectors wider than the machine's are kept in memory; an array of native ones stays in registers.
#pragma once
#include "lanes.h"

namespace aio {
namespace AIO_ISA {

#if defined(AIO_AVX512)
constexpr int kWidth = 64;
#elif defined(AIO_AVX2)
constexpr int kWidth = 32;
#else
constexpr int kWidth = 16;
#endif
constexpr int kParts = 64 / kWidth, kPartLanes = kLanes / kParts;

typedef float FloatPart __attribute__((vector_size(kWidth), aligned(4), may_alias));
typedef int32_t IntPart __attribute__((vector_size(kWidth), aligned(1), may_alias));
typedef int16_t ShortPart __attribute__((vector_size(kWidth), aligned(1), may_alias));
typedef uint16_t HalfPart __attribute__((vector_size(kWidth / 2), aligned(2), may_alias));

struct Floats { FloatPart part[kParts]; };
struct Ints { IntPart part[kParts]; };
struct Shorts { ShortPart part[kParts]; };

// The statement for every part i, written out: loops over registers that are left to the optimiser may stay loops.
#define AIO_PART(INDEX, ...)   \
  {                            \
    constexpr int i = INDEX;   \
    __VA_ARGS__;               \
  }
#if defined(AIO_AVX512)
#define AIO_PARTS(...) AIO_PART(0, __VA_ARGS__)
#elif defined(AIO_AVX2)
#define AIO_PARTS(...) AIO_PART(0, __VA_ARGS__) AIO_PART(1, __VA_ARGS__)
#else
#define AIO_PARTS(...) \
  AIO_PART(0, __VA_ARGS__) AIO_PART(1, __VA_ARGS__) AIO_PART(2, __VA_ARGS__) AIO_PART(3, __VA_ARGS__)
#endif

AIO_INLINE Floats floats(float v) {
  int32_t bits;
  memcpy(&bits, &v, 4);  // by its bits: 0.0f + v is an addition, since -0.0f would change its sign
  Floats out;
  AIO_PARTS(out.part[i] = (FloatPart)(IntPart{} + bits))
  return out;
}

AIO_INLINE Floats load_floats(const float* p) {
  Floats out;
  AIO_PARTS(out.part[i] = *reinterpret_cast<const FloatPart*>(p + i * kPartLanes))
  return out;
}

AIO_INLINE void store_floats(float* p, const Floats& v) {
  AIO_PARTS(*reinterpret_cast<FloatPart*>(p + i * kPartLanes) = v.part[i])
}

AIO_INLINE Floats operator+(const Floats& a, const Floats& b) {
  Floats out;
  AIO_PARTS(out.part[i] = a.part[i] + b.part[i])
  return out;
}

AIO_INLINE Floats operator-(const Floats& a, const Floats& b) {
  Floats out;
  AIO_PARTS(out.part[i] = a.part[i] - b.part[i])
  return out;
}

AIO_INLINE Floats operator*(const Floats& a, const Floats& b) {
  Floats out;
  AIO_PARTS(out.part[i] = a.part[i] * b.part[i])
  return out;
}

// a * b + c, rounded once if the machine can: a named function, so that all tiles compile to the same operation.
AIO_INLINE Floats fma(const Floats& a, const Floats& b, const Floats& c) {
  Floats out;
#if defined(AIO_AVX512)
  out.part[0] = (FloatPart)_mm512_fmadd_ps((__m512)a.part[0], (__m512)b.part[0], (__m512)c.part[0]);
#elif defined(AIO_AVX2)
  AIO_PARTS(out.part[i] = (FloatPart)_mm256_fmadd_ps((__m256)a.part[i], (__m256)b.part[i], (__m256)c.part[i]))
#elif defined(AIO_NEON)
  AIO_PARTS(out.part[i] = (FloatPart)vfmaq_f32((float32x4_t)c.part[i], (float32x4_t)a.part[i], (float32x4_t)b.part[i]))
#else
  AIO_PARTS(out.part[i] = a.part[i] * b.part[i] + c.part[i])
#endif
  return out;
}

// sum += a * b.
AIO_INLINE void add_product(Floats& sum, const Floats& a, const Floats& b) {
#if defined(AIO_AVX512)
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum.part[0]) : "v"(a.part[0]), "v"(b.part[0]));
#else
  sum = fma(a, b, sum);
#endif
}

AIO_INLINE Floats to_floats(const Ints& v) {
  Floats out;
  AIO_PARTS(out.part[i] = __builtin_convertvector(v.part[i], FloatPart))
  return out;
}

AIO_INLINE Floats floats_from_half(const uint16_t* p) {
  Floats out;
#if defined(AIO_AVX512)
  out.part[0] = (FloatPart)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(AIO_AVX2)
  AIO_PARTS(out.part[i] = (FloatPart)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * i))))
#elif defined(AIO_NEON)
  AIO_PARTS(out.part[i] = (FloatPart)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))))
#else
  // The exponent and mantissa at float32's place, then the difference of the biases as a product: exact, subnormals
  // included; weights have no infinities.
  AIO_PARTS({
    const HalfPart half = *reinterpret_cast<const HalfPart*>(p + i * kPartLanes);
    const IntPart wide = __builtin_convertvector(half, IntPart);
    const FloatPart magnitude = (FloatPart)((wide & 0x7fff) << 13) * 5.192296858534828e33f;  // 2^112
    out.part[i] = (FloatPart)((IntPart)magnitude | ((wide & 0x8000) << 16));
  });
#endif
  return out;
}

AIO_INLINE Floats absolute(const Floats& v) {
  Floats out;
  AIO_PARTS(out.part[i] = (FloatPart)((IntPart)v.part[i] & 0x7fffffff))
  return out;
}

AIO_INLINE Floats maximum(const Floats& a, const Floats& b) {
  Floats out;
#if defined(AIO_AVX512)
  out.part[0] = (FloatPart)_mm512_max_ps((__m512)a.part[0], (__m512)b.part[0]);
#elif defined(AIO_AVX2)
  AIO_PARTS(out.part[i] = (FloatPart)_mm256_max_ps((__m256)a.part[i], (__m256)b.part[i]))
#else
  AIO_PARTS(out.part[i] = a.part[i] > b.part[i] ? a.part[i] : b.part[i])
#endif
  return out;
}

// a / b for b >= 1, to two units in the last place: a true division takes the time of twenty products.
AIO_INLINE Floats quotient(const Floats& a, const Floats& b) {
  Floats out;
#if defined(AIO_AVX512)
  const __m512 guess = _mm512_rcp14_ps((__m512)b.part[0]);
  const __m512 refined = _mm512_mul_ps(guess, _mm512_fnmadd_ps((__m512)b.part[0], guess, _mm512_set1_ps(2)));
  out.part[0] = (FloatPart)_mm512_mul_ps((__m512)a.part[0], refined);
#else
  AIO_PARTS(out.part[i] = a.part[i] / b.part[i])
#endif
  return out;
}

#if defined(AIO_AVX512) || defined(AIO_AVX2)
AIO_INLINE __m256 lower(const Floats& v) {
#if defined(AIO_AVX512)
  return _mm512_castps512_ps256((__m512)v.part[0]);
#else
  return (__m256)v.part[0];
#endif
}
AIO_INLINE __m256 upper(const Floats& v) {
#if defined(AIO_AVX512)
  return _mm512_extractf32x8_ps((__m512)v.part[0], 1);
#else
  return (__m256)v.part[1];
#endif
}
#else
// The lanes folded in halves by `pair`.
template <typename Pair>
AIO_INLINE float fold(const Floats& v, const Pair& pair) {
  float lanes[kLanes];
  store_floats(lanes, v);
  for (int step = kLanes / 2; step; step /= 2)
    for (int i = 0; i < step; ++i) lanes[i] = pair(lanes[i], lanes[i + step]);
  return lanes[0];
}
#endif

AIO_INLINE float sum_of(const Floats& v) {
#if defined(AIO_AVX512) || defined(AIO_AVX2)
  const __m256 eight = _mm256_add_ps(lower(v), upper(v));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#else
  return fold(v, [](float a, float b) { return a + b; });
#endif
}

AIO_INLINE float maximum_of(const Floats& v) {
#if defined(AIO_AVX512) || defined(AIO_AVX2)
  const __m256 eight = _mm256_max_ps(lower(v), upper(v));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
#else
  return fold(v, [](float a, float b) { return a > b ? a : b; });
#endif
}

// Nearest integers, ties to even, of |v| < 2^22.
AIO_INLINE Ints to_nearest(const Floats& v) {
  Ints out;
#if defined(AIO_AVX512)
  out.part[0] = (IntPart)_mm512_cvtps_epi32((__m512)v.part[0]);
#elif defined(AIO_AVX2)
  AIO_PARTS(out.part[i] = (IntPart)_mm256_cvtps_epi32((__m256)v.part[i]))
#elif defined(AIO_NEON)
  AIO_PARTS(out.part[i] = (IntPart)vcvtnq_s32_f32((float32x4_t)v.part[i]))
#else
  AIO_PARTS(out.part[i] = (IntPart)(v.part[i] + 12582912.0f) - 0x4b400000)  // 1.5 * 2^23: its last place is 1
#endif
  return out;
}

AIO_INLINE Ints operator+(const Ints& a, const Ints& b) {
  Ints out;
  AIO_PARTS(out.part[i] = a.part[i] + b.part[i])
  return out;
}

// 16 integers of -128 to 127.
AIO_INLINE void store_bytes(int8_t* p, const Ints& v) {
#if defined(AIO_AVX512)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8((__m512i)v.part[0]));
#elif defined(AIO_AVX2)
  const __m256i pairs = _mm256_packs_epi32((__m256i)v.part[0], (__m256i)v.part[1]);
  const __m256i shorts = _mm256_permute4x64_epi64(pairs, 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
#elif defined(AIO_NEON)
  int16x4_t shorts[kParts];
  AIO_PARTS(shorts[i] = vmovn_s32((int32x4_t)v.part[i]))
  vst1_s8(p, vmovn_s16(vcombine_s16(shorts[0], shorts[1])));
  vst1_s8(p + 8, vmovn_s16(vcombine_s16(shorts[2], shorts[3])));
#else
  AIO_PARTS(for (int j = 0; j < kPartLanes; ++j) p[i * kPartLanes + j] = int8_t(v.part[i][j]))
#endif
}

// exp(x) for x <= 88: range reduction by ln 2 and a degree-6 polynomial; relative error below 2e-7.
AIO_INLINE Floats exponential(Floats x) {
  x = maximum(x, floats(-87.0f));
  const Floats magic = floats(12582912.0f);  // 1.5 * 2^23 rounds to an integer
  const Floats n = fma(x, floats(1.44269504088896341f), magic) - magic;
  Floats r = fma(n, floats(-0.693359375f), x);
  r = fma(n, floats(2.12194440e-4f), r);
  Floats p = fma(floats(1.9875691500e-4f), r, floats(1.3981999507e-3f));
  p = fma(p, r, floats(8.3334519073e-3f));
  p = fma(p, r, floats(4.1665795894e-2f));
  p = fma(p, r, floats(1.6666665459e-1f));
  p = fma(p, r, floats(5.0000001201e-1f));
  p = fma(p, r * r, r) + floats(1.0f);
  const Ints whole = to_nearest(n);
  Floats out;
  AIO_PARTS(out.part[i] = p.part[i] * (FloatPart)((whole.part[i] + 127) << 23))
  return out;
}

AIO_INLINE Ints load_ints(const void* p) {
  Ints out;
  AIO_PARTS(out.part[i] = *reinterpret_cast<const IntPart*>(static_cast<const uint8_t*>(p) + i * kWidth))
  return out;
}

AIO_INLINE void store_ints(void* p, const Ints& v) {
  AIO_PARTS(*reinterpret_cast<IntPart*>(static_cast<uint8_t*>(p) + i * kWidth) = v.part[i])
}

}  // namespace AIO_ISA
}  // namespace aio
