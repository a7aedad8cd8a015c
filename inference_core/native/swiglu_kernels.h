// SwiGLU on some columns of many rows: what one thread has just computed of gate and up, while it is in its cache.
#pragma once
#include "row_kernels.h"

namespace aio {
namespace AIO_ISA {

AIO_INLINE f16x silu_times(f16x gate, f16x up) {
  f16x negated = -gate;
  negated = negated < 80.0f ? negated : splat(80.0f);
  return gate / (exp_lanes(negated) + 1.0f) * up;
}

// Groups of 32 columns [first, last) of silu(gate) * up, quantised; gate_up is [rows, 2 width].
static void swiglu_quantize(const float* gate_up, int width, int rows, QuantizedGroup* out, int first, int last) {
  const int groups = width / kGroup;
  for (int row = 0; row < rows; ++row) {
    const float* gate = gate_up + int64_t(row) * 2 * width;
    const float* up = gate + width;
    for (int g = first; g < last; ++g) {
      const int c = g * kGroup;
      const f16x a = silu_times(load(gate + c), load(up + c));
      const f16x b = silu_times(load(gate + c + kLanes), load(up + c + kLanes));
      quantize_group(a, b, out[int64_t(row) * groups + g]);
    }
  }
}

// Columns [first, last), multiples of 16, of silu(gate) * up as float32 [rows, width].
static void swiglu(const float* gate_up, int width, int rows, float* y, int first, int last) {
  for (int row = 0; row < rows; ++row) {
    const float* gate = gate_up + int64_t(row) * 2 * width;
    for (int c = first; c < last; c += kLanes)
      store(y + int64_t(row) * width + c, silu_times(load(gate + c), load(gate + width + c)));
  }
}

}  // namespace AIO_ISA
}  // namespace aio
