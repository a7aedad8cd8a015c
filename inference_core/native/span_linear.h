// Linear layers of prompt rows on processors with VNNI: INT8 activations times INT8 weights, both with a scale per span of
// 128 inputs. Of a span 32 products share three operations, where groups of 32 take four for every 8.
// A row's sums run over the spans in order, whatever the tile: the same bits alone and in any batch.
#pragma once
#include "span_panels.h"

namespace aio {
namespace AIO_ISA {

// By measurement: as many sums as fit in registers with two vectors of weights and one of activations. Their float32
// totals are in memory, and are touched once in 32 products.
constexpr int kSpanRows = 10, kSpanPanels = 2;

// sum += the products of four bytes per lane; in assembly, since GCC copies and spills sums of the intrinsic.
AIO_INLINE void add_products(__m512i& sum, __m512i w, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}

// Calls body with n as a constant of 1 to kSpanRows.
template <int Most = kSpanRows, typename Body>
AIO_INLINE void with_rows(int n, const Body& body) {
  if constexpr (Most == 1)
    body(Constant<1>());
  else if (n == Most)
    body(Constant<Most>());
  else
    with_rows<Most - 1>(n, body);
}

// Starts the totals [Rows, Panels, 16] of a tile with the products of the outliers, which are zero in the spans.
template <int Rows, int Panels>
AIO_INLINE void start_totals(const LinearArgs& a, int row, int panel, float* totals) {
  const float* x = a.outlier_x + row * a.ld_outliers;
  for (int p = 0; p < Panels; ++p) {
    const uint16_t* w = a.outlier_panels + int64_t(panel + p) * a.outliers * kLanes;
    for (int r = 0; r < Rows; ++r) {
      Floats total = floats(0);
      for (int o = 0; o < a.outliers; ++o) add_product(total, floats_from_half(w + o * kLanes), floats(x[r * a.ld_outliers + o]));
      store_floats(totals + (r * Panels + p) * kLanes, total);
    }
  }
}

// Rows [row, row + Rows) times the panels at `weights`, as `round_panels` leaves them.
template <int Rows, int Panels>
static __attribute__((noinline)) void span_tile(const LinearArgs& a, int row, int panel, const uint8_t* weights,
                                                float* totals, Ahead ahead) {
  start_totals<Rows, Panels>(a, row, panel, totals);
  const QuantizedSpan* x = a.spans + row;
  for (int left = a.k; left > 0; left -= kSpan, x += a.span_stride) {
    for (int i = 0; i < ahead.lines; ++i, ahead.at += 64) __builtin_prefetch(ahead.at, 0, 2);
    __m512i sum[Rows][Panels];
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r)
      AIO_UNROLL
      for (int p = 0; p < Panels; ++p) sum[r][p] = _mm512_set1_epi32(x[r].correction);
    const int quads = min_int(left, kSpan) / 4;
    const int8_t* q = x->q;
    for (int j = 0; j < quads; j += 2)
      AIO_UNROLL
      for (int half = 0; half < 2; ++half, q += 4, weights += 64 * Panels) {
        __m512i w[Panels];
        AIO_UNROLL
        for (int p = 0; p < Panels; ++p) w[p] = _mm512_load_si512(weights + 64 * p);
        AIO_UNROLL
        for (int r = 0; r < Rows; ++r) {
          const __m512i f = four(q + r * int(sizeof(QuantizedSpan))).x;
          AIO_UNROLL
          for (int p = 0; p < Panels; ++p) add_products(sum[r][p], w[p], f);
        }
      }
    Floats step[Panels];
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) step[p] = load_floats(reinterpret_cast<const float*>(weights) + p * kLanes);
    weights += 64 * Panels;
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const Floats scale = floats(x[r].scale);
      AIO_UNROLL
      for (int p = 0; p < Panels; ++p) {
        float* total = totals + (r * Panels + p) * kLanes;
        store_floats(total, fma(to_floats({{(IntPart)sum[r][p]}}) * step[p], scale, load_floats(total)));
      }
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int p = 0; p < Panels; ++p)
      finish(a, row + r, (panel + p) * kLanes, load_floats(totals + (r * Panels + p) * kLanes));
}

// All rows against some panels; meanwhile those at `next` are fetched.
template <typename Weights, int Panels>
AIO_INLINE void span_panels(const LinearArgs& a, int panel, const uint8_t* next) {
  float* totals = a.scratch;
  uint8_t* weights = reinterpret_cast<uint8_t*>(totals + kSpanRows * Panels * kLanes);
  round_panels<Weights, Panels>(a, panel, weights);
  const int tiles = (a.rows + kSpanRows - 1) / kSpanRows;
  const int lines = int(Panels * a.panel_bytes / 64 / spans_of(a.k));  // per span
  for (int t = 0, row = 0, last; t < tiles; ++t, row = last) {
    last = int(int64_t(a.rows) * (t + 1) / tiles);
    const Ahead ahead = Ahead::of(next, lines, spans_of(a.k), t, tiles);
    with_rows(last - row, [&](auto rows) AIO_LAMBDA { span_tile<rows.value, Panels>(a, row, panel, weights, totals, ahead); });
  }
}

template <typename Weights>
static void span_linear(const LinearArgs& a, int panel, int last_panel) {
  for (; panel + kSpanPanels <= last_panel; panel += kSpanPanels) {
    const uint8_t* next = a.panels + (panel + kSpanPanels) * a.panel_bytes;
    span_panels<Weights, kSpanPanels>(a, panel, panel + kSpanPanels < last_panel ? next : a.next);
  }
  for (; panel < last_panel; ++panel) span_panels<Weights, 1>(a, panel, nullptr);
}

}  // namespace AIO_ISA
}  // namespace aio
