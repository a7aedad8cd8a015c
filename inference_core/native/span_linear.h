// Linear layers of prompt rows as INT8 activations times INT8 weights, both with a scale per span of 128 inputs, so that many
// products share the other operations: on AVX-512 32 of them three, where groups of 32 inputs take four for every 8.
// A row's sums run over the spans in order, whatever the tile: the same bits alone and in any batch.
#pragma once
#include "span_panels.h"

namespace aio {
namespace AIO_ISA {

// Calls body with n as a constant of 1 to kSpanHigh.
template <int Most = kSpanHigh, typename Body>
AIO_INLINE void with_height(int n, const Body& body) {
  if constexpr (Most == 1)
    body(Constant<1>());
  else if (n == Most)
    body(Constant<Most>());
  else
    with_height<Most - 1>(n, body);
}

// Starts the totals of a tile with the products of the outliers, which are zero in the spans.
template <int High, int Panels>
AIO_INLINE void start_totals(const LinearArgs& a, int row, int rows, int panel, float* totals) {
  const float* x = a.outlier_x + row * a.ld_outliers;
  for (int p = 0; p < Panels; ++p) {
    const uint16_t* w = a.outlier_panels + int64_t(panel + p) * a.outliers * kLanes;
    for (int r = 0; r < High * kSumRows; ++r) {
      const int from = kSumRows == 1 ? r : min_int(r, rows - 1);
      Floats total = floats(0);
      for (int o = 0; o < a.outliers; ++o)
        add_product(total, floats_from_half(w + o * kLanes), floats(x[from * a.ld_outliers + o]));
      store_total<Panels>(totals, r, p, total);
    }
  }
}

// Rows from `row` on, as many as the tile has or as there are, times the panels at `weights`, as `round_panels` leaves them.
template <int High, int Panels>
static __attribute__((noinline)) void span_tile(const LinearArgs& a, int row, int panel, const uint8_t* weights,
                                                float* totals, Ahead ahead) {
  const int rows = kSumRows == 1 ? High : min_int(High * kSumRows, a.rows - row);
  start_totals<High, Panels>(a, row, rows, panel, totals);
  const QuantizedSpan* x = a.spans + row;
  for (int left = a.k; left > 0; left -= kSpan, x += a.span_stride) {
    for (int i = 0; i < ahead.lines; ++i, ahead.at += 64) __builtin_prefetch(ahead.at, 0, 2);
    SpanSums<High, Panels> sum;
    start_sums<High, Panels>(sum, x);
    add_span<High, Panels>(sum, x, rows, weights, min_int(left, kSpan));
    add_to_totals<High, Panels>(sum, x, rows, reinterpret_cast<const float*>(weights), totals);
    weights += 64 * Panels;
  }
  for (int r = 0; r < rows; ++r)
    for (int p = 0; p < Panels; ++p) finish(a, row + r, (panel + p) * kLanes, load_total<Panels>(totals, r, p));
}

// All rows against some panels; meanwhile those at `next` are fetched.
template <typename Weights, int Panels>
AIO_INLINE void span_panels(const LinearArgs& a, int panel, const uint8_t* next) {
  float* totals = a.scratch;
  uint8_t* weights = reinterpret_cast<uint8_t*>(totals + kSpanHigh * kSumRows * Panels * kLanes);
  round_panels<Weights, Panels>(a, panel, weights);
  const int height = (a.rows + kSumRows - 1) / kSumRows, tiles = (height + kSpanHigh - 1) / kSpanHigh;
  const int lines = int(Panels * a.panel_bytes / 64 / spans_of(a.k));  // per span
  for (int t = 0, at = 0, last; t < tiles; ++t, at = last) {
    last = int(int64_t(height) * (t + 1) / tiles);
    const Ahead ahead = Ahead::of(next, lines, spans_of(a.k), t, tiles);
    with_height(last - at, [&](auto high) AIO_LAMBDA {
      span_tile<high.value, Panels>(a, at * kSumRows, panel, weights, totals, ahead);
    });
  }
}

template <typename Weights>
static void span_linear(const LinearArgs& a, int panel, int last_panel) {
  for (; panel + kSpanPanels <= last_panel; panel += kSpanPanels) {
    const uint8_t* next = a.panels + (panel + kSpanPanels) * a.panel_bytes;
    span_panels<Weights, kSpanPanels>(a, panel, panel + kSpanPanels < last_panel ? next : a.next);
  }
  if constexpr (kSpanPanels > 1)
    for (; panel < last_panel; ++panel) span_panels<Weights, 1>(a, panel, nullptr);
}

}  // namespace AIO_ISA
}  // namespace aio
