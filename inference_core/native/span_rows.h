// Activations of prompt rows as INT8 with a scale per span of 128: of rows as they are, behind RMSNorm, and of SwiGLU.
#pragma once
#include "row_kernels.h"

namespace aio {
namespace AIO_ISA {

// Quantises one span of `Vectors` times 16 values; symmetric, ties to even: scale = max|x| / 127.
template <int Vectors, typename Value>
AIO_INLINE void quantize_span(const Value& value, QuantizedSpan& out) {
  Floats v[Vectors], peak = floats(0);
  AIO_UNROLL
  for (int i = 0; i < Vectors; ++i) {
    v[i] = value(i * kLanes);
    peak = maximum(peak, absolute(v[i]));
  }
  const float most = maximum_of(peak);
  const Floats inverse = floats(most > 0 ? 127.0f / most : 0.0f);
  Ints sum{};
  AIO_UNROLL
  for (int i = 0; i < Vectors; ++i) {
    const Ints q = to_nearest(v[i] * inverse);
    store_bytes(out.q + i * kLanes, q);
    sum = sum + q;
  }
  out.scale = most / 127.0f;
  out.correction = -128 * int32_t(sum_of(to_floats(sum)));  // at most 128 * 127: exact
}

// Spans [first, last) of a row of `k` values; `out` is the row's first span, and the next ones lie `stride` apart.
template <typename Value>
AIO_INLINE void quantize_row(int k, const Value& value, QuantizedSpan* out, int64_t stride, int first, int last) {
  for (int s = first; s < last; ++s) {
    const auto of_span = [&](int i) AIO_LAMBDA { return value(s * kSpan + i); };
    QuantizedSpan& to = out[s * stride];
    switch (min_int(kSpan, k - s * kSpan) / kGroup) {
      case 1: quantize_span<2>(of_span, to); break;
      case 2: quantize_span<4>(of_span, to); break;
      case 3: quantize_span<6>(of_span, to); break;
      default: quantize_span<8>(of_span, to); break;
    }
  }
}

static void quantize_spans(const float* x, int64_t ldx, int k, QuantizedSpan* out, int64_t stride, int first, int last) {
  for (int row = first; row < last; ++row) {
    const float* in = x + row * ldx;
    quantize_row(k, [in](int i) AIO_LAMBDA { return load_floats(in + i); }, out + row, stride, 0, spans_of(k));
  }
}

static void norm_quantize_spans(const float* x, int64_t ldx, const float* w, int d, float eps, QuantizedSpan* out,
                                int64_t stride, int first, int last) {
  for (int row = first; row < last; ++row) {
    const float* in = x + row * ldx;
    const float inverse = inverse_rms(in, d, eps);
    quantize_row(d, [=](int i) AIO_LAMBDA { return normalised(in + i, w + i, inverse); }, out + row, stride, 0, spans_of(d));
  }
}

// Spans [first_span, last_span), whose inputs begin at x.gate and x.up.
template <Activation A>
static void gated_quantize_spans(const GateUp& x, int d, QuantizedSpan* out, int64_t stride, int first, int last,
                                 int first_span, int last_span) {
  const int column = first_span * kSpan;
  for (int row = first; row < last; ++row) {
    const float *gate = x.gate + row * x.ld - column, *up = x.up + row * x.ld - column;
    quantize_row(d, [=](int i) AIO_LAMBDA { return gated<A>(x, gate + i, up + i); }, out + row, stride, first_span, last_span);
  }
}

}  // namespace AIO_ISA
}  // namespace aio
