// Passes over one row of logits, written once and compiled per instruction set (see sampling.h for their meaning).
//
// A weight is round(2^44 * exp((logit - top) / temperature)) as an integer, so that sums of weights are exact in any
// order: every instruction set, thread count and block size gives the sums that NumPy gives. The exponential itself is
// a fixed sequence of IEEE 754 operations without fused multiply-adds (the compiler must not contract them), which
// `inference_core/sampling/reference_sampler.py` repeats: 2^(y/16) = 2^q * 2^(j/16) * 2^(f/16) with 16 q + j = n = round(y),
// f = y - n exactly, and a Taylor polynomial of degree 5 for |f| <= 1/2 (relative error below 1.5e-13).
//
// Vectors are as wide as the registers: compilers lower wider integer vectors badly.
#pragma once
#include <float.h>
#include <stdint.h>
#include <string.h>
#if defined(AIO_AVX512) || defined(AIO_AVX2)
#include <immintrin.h>
#endif

#include "sampling.h"

namespace aio {
namespace AIO_ISA {

#define AIO_INLINE static inline __attribute__((always_inline))

#if defined(AIO_AVX512)
#define AIO_WIDTH 64
#elif defined(AIO_AVX2)
#define AIO_WIDTH 32
#else
#define AIO_WIDTH 16
#endif
constexpr int kFloats = AIO_WIDTH / 4, kDoubles = AIO_WIDTH / 8;

typedef float FloatLanes __attribute__((vector_size(AIO_WIDTH), aligned(4)));
typedef int32_t IntLanes __attribute__((vector_size(AIO_WIDTH), aligned(4)));
typedef float HalfLanes __attribute__((vector_size(AIO_WIDTH / 2), aligned(4)));
typedef double DoubleLanes __attribute__((vector_size(AIO_WIDTH), aligned(8)));
typedef int64_t LongLanes __attribute__((vector_size(AIO_WIDTH), aligned(8)));
static const float kLowest = -__builtin_inff();

AIO_INLINE int min_int(int a, int b) { return a < b ? a : b; }
AIO_INLINE FloatLanes splat(float v) { return FloatLanes{} + v; }
AIO_INLINE DoubleLanes splat(double v) { return DoubleLanes{} + v; }
AIO_INLINE FloatLanes load(const float* p) { return *reinterpret_cast<const FloatLanes*>(p); }
AIO_INLINE LongLanes load(const int64_t* p) { return *reinterpret_cast<const LongLanes*>(p); }

// A full vector at p if `count` values are left there, else a copy of them followed by -inf.
struct Tail {
  float lanes[kFloats];

  __attribute__((always_inline)) const float* padded(const float* p, int count) {
    if (__builtin_expect(count >= kFloats, 1)) return p;
    for (int i = 0; i < kFloats; ++i) lanes[i] = i < count ? p[i] : kLowest;
    return lanes;
  }
};
AIO_INLINE FloatLanes load_up_to(const float* p, int count) {
  Tail tail;
  return load(tail.padded(p, count));
}

AIO_INLINE DoubleLanes widened(const float* p) {
#if defined(AIO_AVX512)
  return (DoubleLanes)_mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif defined(AIO_AVX2)
  return (DoubleLanes)_mm256_cvtps_pd(_mm_loadu_ps(p));
#else
  return __builtin_convertvector(*reinterpret_cast<const HalfLanes*>(p), DoubleLanes);
#endif
}

// Of equal values and of NaN, b.
AIO_INLINE FloatLanes greater(FloatLanes a, FloatLanes b) {
#if defined(AIO_AVX512)
  return (FloatLanes)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(AIO_AVX2)
  return (FloatLanes)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
AIO_INLINE DoubleLanes greater(DoubleLanes a, DoubleLanes b) {
#if defined(AIO_AVX512)
  return (DoubleLanes)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif defined(AIO_AVX2)
  return (DoubleLanes)_mm256_max_pd((__m256d)a, (__m256d)b);
#else
  return a > b ? a : b;
#endif
}

// Bit i is set where lane i is at least `least`.
AIO_INLINE uint32_t lanes_at_least(FloatLanes v, FloatLanes least) {
#if defined(AIO_AVX512)
  return _mm512_cmp_ps_mask((__m512)v, (__m512)least, _CMP_GE_OQ);
#elif defined(AIO_AVX2)
  return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps((__m256)v, (__m256)least, _CMP_GE_OQ)));
#else
  uint32_t mask = 0;
  for (int i = 0; i < kFloats; ++i) mask |= uint32_t(v[i] >= least[i]) << i;
  return mask;
#endif
}

AIO_INLINE float peak_of(FloatLanes v) {
  float peak = v[0];
  for (int i = 1; i < kFloats; ++i) peak = v[i] > peak ? v[i] : peak;
  return peak;
}

AIO_INLINE int64_t sum_of(LongLanes v) {
  int64_t sum = 0;
  for (int i = 0; i < kDoubles; ++i) sum += v[i];
  return sum;
}

// -- weights -------------------------------------------------------------------------------------------

// 2^(j/16) scaled by 2^44, less j in the bits where adding n << 48 puts it: entry + (n << 48) is 2^(44 + n/16).
// Built by the compiler: nothing of this file may run before the processor is known to have its instructions.
struct Powers {
  uint64_t entry[16] = {};
  constexpr Powers() {
    constexpr uint64_t bits[16] = {
        0x3ff0000000000000, 0x3ff0b5586cf9890f, 0x3ff172b83c7d517b, 0x3ff2387a6e756238,
        0x3ff306fe0a31b715, 0x3ff3dea64c123422, 0x3ff4bfdad5362a27, 0x3ff5ab07dd485429,
        0x3ff6a09e667f3bcd, 0x3ff7a11473eb0187, 0x3ff8ace5422aa0db, 0x3ff9c49182a3f090,
        0x3ffae89f995ad3ad, 0x3ffc199bdd85529c, 0x3ffd5818dcfba487, 0x3ffea4afa2a490da};
    for (uint64_t j = 0; j < 16; ++j) entry[j] = bits[j] + (uint64_t(44) << 52) - (j << 48);
  }
};
static constexpr Powers powers;

AIO_INLINE LongLanes look_up(LongLanes index) {
#if defined(AIO_AVX512)
  return (LongLanes)_mm512_permutex2var_epi64(_mm512_loadu_si512(powers.entry), (__m512i)index,
                                              _mm512_loadu_si512(powers.entry + 8));  // by the low four bits
#elif defined(AIO_AVX2)
  const __m256i low = _mm256_and_si256((__m256i)index, _mm256_set1_epi64x(15));
  return (LongLanes)_mm256_i64gather_epi64(reinterpret_cast<const long long*>(powers.entry), low, 8);
#else
  LongLanes out;
  for (int i = 0; i < kDoubles; ++i) out[i] = int64_t(powers.entry[index[i] & 15]);
  return out;
#endif
}

constexpr int64_t kOneBits = 0x4330000000000000;  // of 2^52, whose unit in the last place is one

// The weights, plus kOneBits. `scale` is 16 / (ln 2 * temperature).
AIO_INLINE LongLanes raised_weights(const float* logits, DoubleLanes top, DoubleLanes scale) {
  const DoubleLanes y = greater((widened(logits) - top) * scale, splat(-960.0));
  const DoubleLanes shifted = y + 6755399441055744.0;  // 1.5 * 2^52: rounds to an integer, which the low bits hold
  const LongLanes n = (LongLanes)shifted;
  const DoubleLanes f = y - (shifted - 6755399441055744.0);
  DoubleLanes p = f * 1.2715871950558131e-09 + 1.467610032291943e-07;
  p = p * f + 1.3550807779497457e-05;
  p = p * f + 0.0009383847928089872;
  p = p * f + 0.04332169878499658;
  p = p * f + 1.0;
  return (LongLanes)((DoubleLanes)(look_up(n) + (n << 48)) * p + 4503599627370496.0);
}

// -- the passes ----------------------------------------------------------------------------------------

static Best best_of_row(const float* row, int n) {
  constexpr int kStretch = 1024;
  Best best = {0, kLowest};
  bool ordered = true;
  for (int first = 0; first < n; first += kStretch) {
    const int last = min_int(first + kStretch, n);
    FloatLanes peaks[4] = {splat(kLowest), splat(kLowest), splat(kLowest), splat(kLowest)};
    IntLanes unordered = {};
    int i = first;
    for (; i + 4 * kFloats <= last; i += 4 * kFloats)
      for (int j = 0; j < 4; ++j) {
        const FloatLanes x = load(row + i + j * kFloats);
        unordered |= (IntLanes)(x != x);
        peaks[j] = greater(x, peaks[j]);
      }
    for (; i < last; i += kFloats) {
      const FloatLanes x = load_up_to(row + i, last - i);
      unordered |= (IntLanes)(x != x);
      peaks[0] = greater(x, peaks[0]);
    }
    const float peak = peak_of(greater(greater(peaks[0], peaks[1]), greater(peaks[2], peaks[3])));
    for (int j = 0; j < kFloats; ++j) ordered &= !unordered[j];
    if (peak > best.value) best = {first, peak};
  }
  if (!ordered) return {0, __builtin_nanf("")};
  while (row[best.index] != best.value) ++best.index;
  return best;
}

static void block_peaks(const float* row, int n, float* peaks) {
  for (int first = 0; first < n; first += kSamplingBlock) {
    const int last = min_int(first + kSamplingBlock, n);
    FloatLanes peak = splat(kLowest);
    for (int i = first; i < last; i += kFloats) peak = greater(load_up_to(row + i, last - i), peak);
    peaks[first / kSamplingBlock] = peak_of(peak);
  }
}

static int64_t sum_weights(const float* row, int n, float top, double scale, int64_t* blocks) {
  // What lies below weighs nothing. Every float below the rounded cutoff is also below the exact one.
  const double exact = double(top) - 16.0 * 46.0 / scale;
  const FloatLanes cutoff = splat(exact < -double(FLT_MAX) ? kLowest : float(exact));
  const DoubleLanes tops = splat(double(top)), scales = splat(scale);
  int64_t total = 0;
  Tail tail;
  for (int first = 0; first < n; first += kSamplingBlock) {
    const int last = min_int(first + kSamplingBlock, n);
    LongLanes low = {}, high = {};
    uint64_t raised = 0;
    for (int i = first; i < last; i += kFloats) {
      const float* logits = tail.padded(row + i, last - i);
      if (!lanes_at_least(load(logits), cutoff)) continue;
      low += raised_weights(logits, tops, scales);
      high += raised_weights(logits + kDoubles, tops, scales);
      raised += uint64_t(kFloats) * uint64_t(kOneBits);
    }
    blocks[first / kSamplingBlock] = int64_t(uint64_t(sum_of(low + high)) - raised);  // modulo 2^64
    total += blocks[first / kSamplingBlock];
  }
  return total;
}

static void weigh(const float* row, int n, float top, double scale, int64_t* weights) {
  const DoubleLanes tops = splat(double(top)), scales = splat(scale);
  Tail tail;
  for (int i = 0; i < n; i += kFloats) {
    const float* logits = tail.padded(row + i, n - i);
    *reinterpret_cast<LongLanes*>(weights + i) = raised_weights(logits, tops, scales) - kOneBits;
    *reinterpret_cast<LongLanes*>(weights + i + kDoubles) = raised_weights(logits + kDoubles, tops, scales) - kOneBits;
  }
}

static int64_t sum_at_least(const int64_t* weights, int n, int64_t least) {
  const LongLanes bound = LongLanes{} + least;
  LongLanes sums[2] = {};
  int i = 0;
  for (; i + 2 * kDoubles <= n; i += 2 * kDoubles)
    for (int j = 0; j < 2; ++j) {
      const LongLanes x = load(weights + i + j * kDoubles);
      sums[j] += x & (LongLanes)(x >= bound);
    }
  int64_t total = sum_of(sums[0] + sums[1]);
  for (; i < n; ++i) total += weights[i] >= least ? weights[i] : 0;
  return total;
}

static int keep_between(const int64_t* weights, int n, int64_t low, int64_t high, int64_t* kept) {
  int count = 0, i = 0;
#if defined(AIO_AVX512)
  const __m512i from = _mm512_set1_epi64(low), to = _mm512_set1_epi64(high);
  for (; i + 8 <= n; i += 8) {
    const __m512i x = _mm512_loadu_si512(weights + i);
    const __mmask8 mask = _mm512_cmpge_epi64_mask(x, from) & _mm512_cmplt_epi64_mask(x, to);
    _mm512_storeu_si512(kept + count, _mm512_maskz_compress_epi64(mask, x));
    count += __builtin_popcount(mask);
  }
#endif
  for (; i < n; ++i) {
    kept[count] = weights[i];
    count += weights[i] >= low && weights[i] < high;
  }
  return count;
}

static int collect(const float* row, int n, float least, int32_t offset, int32_t* ids) {
  const FloatLanes bound = splat(least);
#if defined(AIO_AVX512)
  const __m512i ascending = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
  int count = 0;
  for (int i = 0; i < n; i += kFloats) {
    uint32_t mask = lanes_at_least(load_up_to(row + i, n - i), bound);
    if (n - i < kFloats) mask &= (1u << (n - i)) - 1;
#if defined(AIO_AVX512)
    const __m512i places = _mm512_add_epi32(_mm512_set1_epi32(offset + i), ascending);
    _mm512_storeu_si512(ids + count, _mm512_maskz_compress_epi32(__mmask16(mask), places));
    count += __builtin_popcount(mask);
#else
    for (; mask; mask &= mask - 1) ids[count++] = offset + i + __builtin_ctz(mask);
#endif
  }
  return count;
}

static const SamplingKernels sampling_table = {AIO_NAME, best_of_row,  block_peaks,  sum_weights,
                                               weigh,    sum_at_least, keep_between, collect};

}  // namespace AIO_ISA
}  // namespace aio
