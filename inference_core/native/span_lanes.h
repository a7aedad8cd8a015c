// What differs between machines in products of spans: how the codes of a panel lie, and the sums of a register tile.
//
// With VNNI a sum is a row's 16 columns, and a product takes four inputs of each; codes are stored plus 128, which the row's
// correction takes off. With I8MM (matrix_products.h) a sum is two rows by two columns, and a product takes eight inputs of
// each; codes are signed. A tile has `High` times kSumRows rows; its float32 totals lie in memory and are touched once per span.
#pragma once
#include "tiles.h"
#if defined(AIO_I8MM)
#include "matrix_products.h"
#else
#include "code_sums.h"
#endif

namespace aio {
namespace AIO_ISA {

#if defined(AIO_AVX512)
// By measurement: as many sums as fit in registers with two vectors of weights and one of activations.
constexpr int kSumRows = 1, kSpanHigh = 10, kSpanPanels = 2;
constexpr int kPanelSums = 1;
constexpr int kCodeZero = 128;
typedef __m512i SpanSum;
#elif defined(AIO_I8MM)
constexpr int kSumRows = 2, kSpanHigh = kMatrixRows / 2, kSpanPanels = 1;
constexpr int kPanelSums = kColumnPairs;
constexpr int kCodeZero = 0;
typedef int32x4_t SpanSum;
#endif
template <int High, int Panels>
using SpanSums = SpanSum[High][Panels * kPanelSums];

// Eight inputs of a panel, four in each lane of `first` and the next four in `second`, to where products read them; they take
// 128 bytes of each panel.
template <int Panels>
AIO_INLINE void store_codes(uint8_t* to, const Ints& first, const Ints& second) {
#if defined(AIO_AVX512)
  _mm512_store_si512(to, (__m512i)first.part[0]);
  _mm512_store_si512(to + 64 * Panels, (__m512i)second.part[0]);
#else
  static_assert(Panels == 1, "pairs of columns lie side by side");
  AIO_PARTS(store_column_pairs(to + 32 * i, (uint32x4_t)first.part[i], (uint32x4_t)second.part[i]))
#endif
}

template <int Panels>
AIO_INLINE Floats load_total(const float* totals, int row, int panel) {
#if defined(AIO_AVX512)
  return load_floats(totals + (row * Panels + panel) * kLanes);
#else
  Floats out;
  const float* pairs = totals + row / 2 * 2 * kLanes + row % 2 * 2;
  AIO_PARTS(out.part[i] = (FloatPart)vcombine_f32(vld1_f32(pairs + 8 * i), vld1_f32(pairs + 8 * i + 4)))
  return out;
#endif
}

template <int Panels>
AIO_INLINE void store_total(float* totals, int row, int panel, const Floats& v) {
#if defined(AIO_AVX512)
  store_floats(totals + (row * Panels + panel) * kLanes, v);
#else
  float* pairs = totals + row / 2 * 2 * kLanes + row % 2 * 2;
  AIO_PARTS({
    vst1_f32(pairs + 8 * i, vget_low_f32((float32x4_t)v.part[i]));
    vst1_f32(pairs + 8 * i + 4, vget_high_f32((float32x4_t)v.part[i]));
  })
#endif
}

#if defined(AIO_AVX512)

// sum += the products of four bytes per lane; in assembly, since GCC copies and spills sums of the intrinsic.
AIO_INLINE void add_products(__m512i& sum, __m512i w, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}

template <int High, int Panels>
AIO_INLINE void start_sums(SpanSums<High, Panels>& sum, const QuantizedSpan* x) {
  AIO_UNROLL
  for (int r = 0; r < High; ++r)
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) sum[r][p] = _mm512_set1_epi32(x[r].correction);
}

// Adds the products of a span's first `inputs`, and leaves their weights behind.
template <int High, int Panels>
AIO_INLINE void add_span(SpanSums<High, Panels>& sum, const QuantizedSpan* x, int, const uint8_t*& weights, int inputs) {
  const int quads = inputs / 4;
  const int8_t* q = x->q;
  for (int j = 0; j < quads; j += 2)
    AIO_UNROLL
    for (int half = 0; half < 2; ++half, q += 4, weights += 64 * Panels) {
      __m512i w[Panels];
      AIO_UNROLL
      for (int p = 0; p < Panels; ++p) w[p] = _mm512_load_si512(weights + 64 * p);
      AIO_UNROLL
      for (int r = 0; r < High; ++r) {
        const __m512i f = four(q + r * int(sizeof(QuantizedSpan))).x;
        AIO_UNROLL
        for (int p = 0; p < Panels; ++p) add_products(sum[r][p], w[p], f);
      }
    }
}

// Adds the span's sums, times the weights' step and the row's scale, to the totals.
template <int High, int Panels>
AIO_INLINE void add_to_totals(const SpanSums<High, Panels>& sum, const QuantizedSpan* x, int, const float* steps,
                              float* totals) {
  Floats step[Panels];
  AIO_UNROLL
  for (int p = 0; p < Panels; ++p) step[p] = load_floats(steps + p * kLanes);
  AIO_UNROLL
  for (int r = 0; r < High; ++r) {
    const Floats scale = floats(x[r].scale);
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) {
      const Floats total = load_total<Panels>(totals, r, p);
      store_total<Panels>(totals, r, p, fma(to_floats({{(IntPart)sum[r][p]}}) * step[p], scale, total));
    }
  }
}

#else

template <int High, int Panels>
AIO_INLINE void start_sums(SpanSums<High, Panels>& sum, const QuantizedSpan*) {
  AIO_UNROLL
  for (int p = 0; p < High; ++p)
    AIO_UNROLL
    for (int c = 0; c < kColumnPairs; ++c) sum[p][c] = vdupq_n_s32(0);
}

template <int High, int Panels>
AIO_INLINE void add_span(SpanSums<High, Panels>& sum, const QuantizedSpan* x, int rows, const uint8_t*& weights,
                         int inputs) {
  add_matrix_products<SignedBytes>(sum, x->q, sizeof(QuantizedSpan), rows, weights, 16 * kColumnPairs, inputs);
  weights += inputs * kLanes;
}

template <int High, int Panels>
AIO_INLINE void add_to_totals(const SpanSums<High, Panels>& sum, const QuantizedSpan* x, int rows, const float* steps,
                              float* totals) {
  float32x4_t scale[High];
  AIO_UNROLL
  for (int p = 0; p < High; ++p)
    scale[p] = vcombine_f32(vdup_n_f32(x[2 * p].scale), vdup_n_f32(x[min_int(2 * p + 1, rows - 1)].scale));
  AIO_UNROLL
  for (int c = 0; c < kColumnPairs; ++c) {
    const float32x2_t pair = vld1_f32(steps + 2 * c);
    const float32x4_t step = vcombine_f32(pair, pair);
    AIO_UNROLL
    for (int p = 0; p < High; ++p) {
      float* total = totals + (p * kColumnPairs + c) * 4;
      vst1q_f32(total, vfmaq_f32(vld1q_f32(total), vmulq_f32(vcvtq_f32_s32(sum[p][c]), step), scale[p]));
    }
  }
}

#endif

}  // namespace AIO_ISA
}  // namespace aio
