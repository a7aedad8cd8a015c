// Kernels on single rows: quantised activations, RMSNorm, SwiGLU, and each of the latter two with the former in one pass.
#pragma once
#include "panel_lanes.h"

namespace aio {
namespace AIO_ISA {

// Quantises `groups` groups of value(i), 16 values from element i; symmetric, ties to even: scale = max|x| / 127.
// In passes over 16 groups: one group after another would wait for its own maximum, its division and its sum.
template <typename Value>
AIO_INLINE void quantize_groups(int groups, const Value& value, QuantizedGroup* out) {
  for (int done = 0; done < groups; done += kLanes, out += kLanes) {
    const int count = min_int(kLanes, groups - done);
    float values[kLanes * kGroup], peaks[kLanes], scales[kLanes], inverses[kLanes], sums[kLanes];
    for (int g = 0; g < count; ++g) {
      const Floats a = value((done + g) * kGroup), b = value((done + g) * kGroup + kLanes);
      store_floats(values + g * kGroup, a);
      store_floats(values + g * kGroup + kLanes, b);
      peaks[g] = maximum_of(maximum(absolute(a), absolute(b)));
    }
    for (int g = 0; g < count; ++g) {
      scales[g] = peaks[g] / 127.0f;
      inverses[g] = peaks[g] > 0 ? 127.0f / peaks[g] : 0.0f;
    }
    for (int g = 0; g < count; ++g) {
      const Floats inverse = floats(inverses[g]);
      const Ints a = to_nearest(load_floats(values + g * kGroup) * inverse);
      const Ints b = to_nearest(load_floats(values + g * kGroup + kLanes) * inverse);
      store_bytes(out[g].q, a);
      store_bytes(out[g].q + kLanes, b);
      sums[g] = sum_of(to_floats(a + b));  // at most 32 * 127: exact
    }
    for (int g = 0; g < count; ++g) {
      out[g].scale = scales[g];
      out[g].offset = scales[g] * sums[g];
      out[g].correction = -128 * int32_t(sums[g]);
      out[g].nibble_correction = -8 * int32_t(sums[g]);
    }
  }
}

static void quantize_rows(const float* x, int64_t ldx, int k, QuantizedGroup* out, int first, int last) {
  const int groups = k / kGroup;
  for (int row = first; row < last; ++row) {
    const float* in = x + row * ldx;
    quantize_groups(groups, [in](int i) AIO_LAMBDA { return load_floats(in + i); }, out + int64_t(row) * groups);
  }
}

// 1 / sqrt(mean(x^2) + eps); two independent sums, to hide latency.
AIO_INLINE float inverse_rms(const float* x, int d, float eps) {
  Floats even = floats(0), odd = floats(0);
  int i = 0;
  for (; i + 2 * kLanes <= d; i += 2 * kLanes) {
    const Floats a = load_floats(x + i), b = load_floats(x + i + kLanes);
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  float total = sum_of(even + odd);
  for (; i < d; ++i) total += x[i] * x[i];
  return 1.0f / sqrtf(total / float(d) + eps);
}

AIO_INLINE Floats normalised(const float* x, const float* w, float inverse) {
  return load_floats(x) * floats(inverse) * load_floats(w);
}

static void rms_norm(const float* x, int64_t ldx, const float* w, float* y, int64_t ldy, int d, float eps, int first,
                     int last) {
  for (int row = first; row < last; ++row) {
    const float* in = x + row * ldx;
    float* out = y + row * ldy;
    const float inverse = inverse_rms(in, d, eps);
    int i = 0;
    for (; i + kLanes <= d; i += kLanes) store_floats(out + i, normalised(in + i, w + i, inverse));
    for (; i < d; ++i) out[i] = in[i] * inverse * w[i];
  }
}

// rms_norm and quantize_rows in one pass, bit for bit; d in whole groups.
static void norm_quantize_rows(const float* x, int64_t ldx, const float* w, int d, float eps, QuantizedGroup* out,
                               int first, int last) {
  const int groups = d / kGroup;
  for (int row = first; row < last; ++row) {
    const float* in = x + row * ldx;
    const float inverse = inverse_rms(in, d, eps);
    quantize_groups(groups, [=](int i) AIO_LAMBDA { return normalised(in + i, w + i, inverse); },
                    out + int64_t(row) * groups);
  }
}

// Every activation is x / (1 + exp(-z)): silu with z = x, gelu's approximation by tanh with z of a cubic
// (Hendrycks and Gimpel 2016), clamped SwiGLU with z = alpha x.
constexpr float kGeluSlope = 1.5957691216057308f, kGeluCubic = 0.044715f * kGeluSlope;  // 2 sqrt(2 / pi)

template <Activation A>
AIO_INLINE Floats steepness(const Floats& x, float alpha) {
  if constexpr (A == kSilu) return x;
  if constexpr (A == kClampedSwiglu) return x * floats(alpha);
  return x * fma(x * x, floats(kGeluCubic), floats(kGeluSlope));
}

AIO_INLINE Floats at_most(const Floats& x, float limit) { return floats(0) - maximum(floats(0) - x, floats(-limit)); }

// activation(gate) * up of 16 columns from `column`; beyond exp(80) it is 0 to any precision that matters.
template <Activation A>
AIO_INLINE Floats gated(const GateUp& x, const float* gate, const float* up) {
  Floats g = load_floats(gate), u = load_floats(up);
  if constexpr (A == kClampedSwiglu) {
    g = at_most(g, x.limit);
    u = at_most(maximum(u, floats(-x.limit)), x.limit) + floats(1.0f);
  }
  const Floats negated = floats(0) - maximum(steepness<A>(g, x.alpha), floats(-80.0f));
  return quotient(g, exponential(negated) + floats(1.0f)) * u;
}

template <Activation A>
AIO_INLINE float gated_one(const GateUp& x, float gate, float up) {
  if constexpr (A == kClampedSwiglu) {
    gate = fminf(gate, x.limit);
    up = fminf(fmaxf(up, -x.limit), x.limit) + 1.0f;
    return gate / (1.0f + expf(-x.alpha * gate)) * up;
  }
  const float z = A == kGelu ? gate * (gate * gate * kGeluCubic + kGeluSlope) : gate;
  return gate / (1.0f + expf(-z)) * up;
}

// Columns [first_column, last_column) of rows [first, last).
template <Activation A>
static void gated_mul(const GateUp& x, float* y, int d, int first, int last, int first_column, int last_column) {
  const int columns = last_column - first_column;
  for (int row = first; row < last; ++row) {
    const float *gate = x.gate + row * x.ld, *up = x.up + row * x.ld;
    float* out = y + int64_t(row) * d + first_column;
    int i = 0;
    for (; i + kLanes <= columns; i += kLanes) store_floats(out + i, gated<A>(x, gate + i, up + i));
    for (; i < columns; ++i) out[i] = gated_one<A>(x, gate[i], up[i]);
  }
}

// gated_mul and quantize_rows in one pass, bit for bit; d in whole groups, of which [first_group, last_group) are done.
template <Activation A>
static void gated_quantize_rows(const GateUp& x, int d, QuantizedGroup* out, int first, int last, int first_group,
                               int last_group) {
  const int groups = d / kGroup;
  for (int row = first; row < last; ++row) {
    const float *gate = x.gate + row * x.ld, *up = x.up + row * x.ld;
    quantize_groups(last_group - first_group, [=](int i) AIO_LAMBDA { return gated<A>(x, gate + i, up + i); },
                    out + int64_t(row) * groups + first_group);
  }
}

// x = cap * tanh(x / cap), by exp(-2 |x| / cap).
static void cap_values(float* x, int64_t count, float cap) {
  const Floats scale = floats(-2.0f / cap);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats value = load_floats(x + i), shrunk = exponential(absolute(value) * scale);
    const Floats size = quotient(floats(cap) - floats(cap) * shrunk, floats(1.0f) + shrunk);
    float sizes[kLanes];
    store_floats(sizes, size);
    for (int j = 0; j < kLanes; ++j) x[i + j] = copysignf(sizes[j], x[i + j]);
  }
  for (; i < count; ++i) x[i] = cap * tanhf(x[i] / cap);
}

}  // namespace AIO_ISA
}  // namespace aio
