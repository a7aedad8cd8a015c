// Kernels on single rows: quantised activations, RMSNorm, SwiGLU.
#pragma once
#include "lanes.h"

namespace aio {
namespace AIO_ISA {

// Symmetric, ties to even: scale = max|x| / 127.
AIO_INLINE void quantize_group(const f16x& a, const f16x& b, QuantizedGroup& out) {
  const f16x abs_a = a > -a ? a : -a, abs_b = b > -b ? b : -b;
  const float peak = lanes_max(abs_a > abs_b ? abs_a : abs_b);
  const float inverse = peak > 0 ? 127.0f / peak : 0.0f;
  const f16x magic = splat(12582912.0f);
  const i16x qa = __builtin_convertvector(fma(a, splat(inverse), magic) - magic, i16x);
  const i16x qb = __builtin_convertvector(fma(b, splat(inverse), magic) - magic, i16x);
  *reinterpret_cast<b16x*>(out.q) = __builtin_convertvector(qa, b16x);
  *reinterpret_cast<b16x*>(out.q + kLanes) = __builtin_convertvector(qb, b16x);
  const float sum = lanes_sum(to_float(qa + qb));  // at most 32 * 127: exact
  out.scale = peak / 127.0f;
  out.offset = out.scale * sum;
  out.correction = -128 * int32_t(sum);
}

static void quantize_rows(const float* x, int64_t ldx, int k, QuantizedGroup* out, int first, int last) {
  const int groups = k / kGroup;
  for (int row = first; row < last; ++row)
    for (int g = 0; g < groups; ++g) {
      const float* p = x + row * ldx + int64_t(g) * kGroup;
      quantize_group(load(p), load(p + kLanes), out[int64_t(row) * groups + g]);
    }
}

static void rms_norm(const float* x, int64_t ldx, const float* w, float* y, int64_t ldy, int d, float eps, int first,
                     int last) {
  for (int row = first; row < last; ++row) {
    const float* in = x + row * ldx;
    float* out = y + row * ldy;
    f16x squares = splat(0);
    int i = 0;
    for (; i + kLanes <= d; i += kLanes) squares = fma(load(in + i), load(in + i), squares);
    float total = lanes_sum(squares);
    for (; i < d; ++i) total += in[i] * in[i];
    const float inverse = 1.0f / sqrtf(total / float(d) + eps);
    for (i = 0; i + kLanes <= d; i += kLanes) store(out + i, load(in + i) * inverse * load(w + i));
    for (; i < d; ++i) out[i] = in[i] * inverse * w[i];
  }
}

static void silu_mul(const float* gate_up, float* y, int d, int first, int last) {
  for (int row = first; row < last; ++row) {
    const float* gate = gate_up + int64_t(row) * 2 * d;
    const float* up = gate + d;
    float* out = y + int64_t(row) * d;
    int i = 0;
    for (; i + kLanes <= d; i += kLanes) {
      f16x g = load(gate + i), negated = -g;
      negated = negated < 80.0f ? negated : splat(80.0f);
      store(out + i, g / (exp_lanes(negated) + 1.0f) * load(up + i));
    }
    for (; i < d; ++i) out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
  }
}

}  // namespace AIO_ISA
}  // namespace aio
