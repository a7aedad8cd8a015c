// Linear layers over packed panels; `inference_core/linear/panels.py` writes the layouts.
#pragma once
#include "panel_lanes.h"

namespace aio {
namespace AIO_ISA {

AIO_INLINE Floats columns(f16x v) {
  float c[kLanes];
  store(c, v);
  return load_floats(c);
}

// One panel of a group: 32 weights of 16 columns as eight vectors of unsigned bytes.
AIO_INLINE void unpack_int4(const uint8_t* p, i16x w[8]) {
  AIO_UNROLL
  for (int j = 0; j < 4; ++j) {
    const i16x packed = *reinterpret_cast<const i16x*>(p + 64 * j);
    w[2 * j] = packed & 0x0f0f0f0f;
    w[2 * j + 1] = (packed >> 4) & 0x0f0f0f0f;
  }
}

constexpr int kInt4Group = 256 + 64;  // nibbles, then 16 scales and 16 minima as float16

// Packed 4-bit weights against float32 activations: y = sum over groups of d * (codes . x) + m * sum(x).
template <int Rows>
AIO_INLINE void int4_float_tile(const LinearArgs& a, int row, int panel) {
  const uint8_t* p = a.panels + panel * a.panel_bytes;
  const float* x = a.x + row * a.ldx;
  f16x y[Rows];
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) y[r] = splat(0);
  for (int g = 0; g < a.k / kGroup; ++g, p += kInt4Group) {
    i16x w[8];
    f16x dot[Rows];
    float total[Rows];
    unpack_int4(p, w);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) dot[r] = splat(total[r] = 0);
    for (int i = 0; i < kGroup; ++i) {
      const f16x code = to_float((w[i / 4] >> (8 * (i % 4))) & 255);
      AIO_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const float v = x[r * a.ldx + g * kGroup + i];
        dot[r] = fma(code, splat(v), dot[r]);
        total[r] += v;
      }
    }
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(p + 256);
    const f16x d = from_half(scales), m = from_half(scales + kLanes);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) y[r] = fma(m, splat(total[r]), fma(dot[r], d, y[r]));
  }
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) finish(a, row + r, panel * kLanes, columns(y[r]));
}

template <int Rows>
AIO_INLINE void bf16_tile(const LinearArgs& a, int row, int panel) {
  const u16x* w = reinterpret_cast<const u16x*>(a.panels + panel * a.panel_bytes);
  const float* x = a.x + row * a.ldx;
  f16x even[Rows], odd[Rows];
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) even[r] = odd[r] = splat(0);
  for (int k = 0; k < a.k; k += 2) {
    const u16x pair = *w++;
    const f16x w0 = (f16x)(pair << 16), w1 = (f16x)(pair & 0xffff0000u);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      even[r] = fma(w0, splat(x[r * a.ldx + k]), even[r]);
      odd[r] = fma(w1, splat(x[r * a.ldx + k + 1]), odd[r]);
    }
  }
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) finish(a, row + r, panel * kLanes, columns(even[r] + odd[r]));
}

template <int Rows>
AIO_INLINE void f32_tile(const LinearArgs& a, int row, int panel) {
  const float* w = reinterpret_cast<const float*>(a.panels + panel * a.panel_bytes);
  const float* x = a.x + row * a.ldx;
  f16x even[Rows], odd[Rows];
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) even[r] = odd[r] = splat(0);
  for (int k = 0; k < a.k; k += 2, w += 2 * kLanes) {
    const f16x w0 = load(w), w1 = load(w + kLanes);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      even[r] = fma(w0, splat(x[r * a.ldx + k]), even[r]);
      odd[r] = fma(w1, splat(x[r * a.ldx + k + 1]), odd[r]);
    }
  }
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) finish(a, row + r, panel * kLanes, columns(even[r] + odd[r]));
}

static void linear_int4_float(const LinearArgs& a, int first_panel, int last_panel) {
  for (int panel = first_panel; panel < last_panel; ++panel) {
    int row = 0;
    for (; row + 4 <= a.rows; row += 4) int4_float_tile<4>(a, row, panel);
    for (; row < a.rows; ++row) int4_float_tile<1>(a, row, panel);
  }
}

static void linear_bf16(const LinearArgs& a, int first_panel, int last_panel) {
  for (int panel = first_panel; panel < last_panel; ++panel) {
    int row = 0;
    for (; row + 8 <= a.rows; row += 8) bf16_tile<8>(a, row, panel);
    for (; row + 4 <= a.rows; row += 4) bf16_tile<4>(a, row, panel);
    for (; row < a.rows; ++row) bf16_tile<1>(a, row, panel);
  }
}

static void linear_f32(const LinearArgs& a, int first_panel, int last_panel) {
  for (int panel = first_panel; panel < last_panel; ++panel) {
    int row = 0;
    for (; row + 8 <= a.rows; row += 8) f32_tile<8>(a, row, panel);
    for (; row + 4 <= a.rows; row += 4) f32_tile<4>(a, row, panel);
    for (; row < a.rows; ++row) f32_tile<1>(a, row, panel);
  }
}

}  // namespace AIO_ISA
}  // namespace aio
