// Linear layers over packed panels; `inference_core/linear/panels.py` writes the layouts.
#pragma once
#include "lanes.h"

namespace aio {
namespace AIO_ISA {

AIO_INLINE void finish(const LinearArgs& a, int row, int column, f16x value) {
  float* y = a.y + row * a.ldy + column;
  if (a.bias) {
    if (column + kLanes <= a.n) {
      value += load(a.bias + column);
    } else {
      for (int i = 0; column + i < a.n; ++i) value[i] += a.bias[column + i];
    }
  }
  if (column + kLanes <= a.n) {
    store(y, a.accumulate ? load(y) + value : value);
  } else {
    for (int i = 0; column + i < a.n; ++i) y[i] = a.accumulate ? y[i] + value[i] : value[i];
  }
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

AIO_INLINE void unpack_int8(const uint8_t* p, i16x w[8]) {
  AIO_UNROLL
  for (int j = 0; j < 8; ++j) w[j] = *reinterpret_cast<const i16x*>(p + 64 * j);
}

constexpr int kInt4Group = 256 + 64;  // nibbles, then 16 scales and 16 minima as float16
constexpr int kInt8Group = 512 + 32;  // bytes with offset 128, then 16 scales as float16

template <int Rows, int Bits>
AIO_INLINE void integer_tile(const LinearArgs& a, int row, int panel) {
  const int groups = a.k / kGroup;
  const uint8_t* p = a.panels + panel * a.panel_bytes;
  const int8_t* x = a.quantized.q + int64_t(row) * a.k;
  const float* scale = a.quantized.scale + int64_t(row) * groups;
  const int32_t* sum = a.quantized.sum + int64_t(row) * groups;
  const float* offset = a.quantized.offset + int64_t(row) * groups;
  f16x y[Rows];
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) y[r] = splat(0);
  for (int g = 0; g < groups; ++g) {
    i16x w[8], dot[Rows];
    if (Bits == 4) unpack_int4(p, w); else unpack_int8(p, w);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) dot[r] = splat_i(Bits == 4 ? 0 : -128 * sum[r * groups + g]);
    AIO_UNROLL
    for (int j = 0; j < 8; ++j)
      AIO_UNROLL
      for (int r = 0; r < Rows; ++r) dot[r] = dot4(dot[r], w[j], x + int64_t(r) * a.k + g * kGroup + 4 * j);
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(p + (Bits == 4 ? 256 : 512));
    const f16x d = from_half(scales);
    if (Bits == 4) {
      const f16x m = from_half(scales + kLanes);
      AIO_UNROLL
      for (int r = 0; r < Rows; ++r) {
        y[r] = fma(to_float(dot[r]), d * scale[r * groups + g], y[r]);
        y[r] = fma(m, splat(offset[r * groups + g]), y[r]);
      }
      p += kInt4Group;
    } else {
      AIO_UNROLL
      for (int r = 0; r < Rows; ++r) y[r] = fma(to_float(dot[r]), d * scale[r * groups + g], y[r]);
      p += kInt8Group;
    }
  }
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) finish(a, row + r, panel * kLanes, y[r]);
}

template <int Bits>
static void linear_integer(const LinearArgs& a, int first_panel, int last_panel) {
  for (int panel = first_panel; panel < last_panel; ++panel) {
    // The next panel is fetched while this one is computed: one row alone is bound by memory.
    const uint8_t* next = a.panels + (panel + 1 < last_panel ? panel + 1 : panel) * a.panel_bytes;
    for (int64_t i = 0; i < a.panel_bytes; i += 64) __builtin_prefetch(next + i, 0, 2);
    int row = 0;
    for (; row + 8 <= a.rows; row += 8) integer_tile<8, Bits>(a, row, panel);
    for (; row + 4 <= a.rows; row += 4) integer_tile<4, Bits>(a, row, panel);
    for (; row < a.rows; ++row) integer_tile<1, Bits>(a, row, panel);
  }
}

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
  for (int r = 0; r < Rows; ++r) finish(a, row + r, panel * kLanes, y[r]);
}

static void linear_int4(const LinearArgs& a, int first, int last) { linear_integer<4>(a, first, last); }
static void linear_int8(const LinearArgs& a, int first, int last) { linear_integer<8>(a, first, last); }

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
  for (int r = 0; r < Rows; ++r) finish(a, row + r, panel * kLanes, even[r] + odd[r]);
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
  for (int r = 0; r < Rows; ++r) finish(a, row + r, panel * kLanes, even[r] + odd[r]);
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
