// Linear layers on float32 activations with weights of any encoding, which are converted to float32 for the product. A
// tile is a few rows times one or four panels. The sum of a row runs over k in order, for any tile and any split of k:
// the same bits alone and in any batch.
#pragma once
#include "tiles.h"

namespace aio {
namespace AIO_ISA {

#if defined(AIO_AVX512)
constexpr int kFloatRows = 6, kFloatPanels = 4;
#elif defined(AIO_AVX2)
constexpr int kFloatRows = 6, kFloatPanels = 1;
#else
constexpr int kFloatRows = 2, kFloatPanels = 1;
#endif
constexpr int kFloatDepth = 128;    // of k at a time: expanded weights stay in the first-level cache
constexpr int kFloatBatch = 16 * kFloatRows;  // rows that share expanded weights

// A panel's weights from some k on: begin() reads what the next kStep values of k share, at(k) is one of them.
struct Float32Panel {
  static constexpr int kStep = 2, kBytes = 64;  // bytes per k of a panel
  static constexpr bool kExpands = false;         // whether tiles should share the conversion to float32
  const float* w;

  AIO_MEMBER static Float32Panel of(const uint8_t* panel, int k) {
    return {reinterpret_cast<const float*>(panel) + int64_t(k) * kLanes};
  }
  AIO_MEMBER void begin() {}
  AIO_MEMBER Floats at(int k) const { return load_floats(w + k * kLanes); }
  AIO_MEMBER void next() { w += kStep * kLanes; }
};

struct Bfloat16Panel {
  static constexpr int kStep = 2, kBytes = 32;
  static constexpr bool kExpands = false;
  const uint8_t* w;

  AIO_MEMBER static Bfloat16Panel of(const uint8_t* panel, int k) { return {panel + int64_t(k) * kBytes}; }
  AIO_MEMBER void begin() {}
  AIO_MEMBER Floats at(int k) const {
    const Ints pair = load_ints(w);
    Floats out;
    AIO_PARTS(out.part[i] = (FloatPart)(k == 0 ? pair.part[i] << 16 : pair.part[i] & int32_t(0xffff0000u)))
    return out;
  }
  AIO_MEMBER void next() { w += kStep * kBytes; }
};

struct Int4Panel {
  static constexpr int kStep = kGroup, kBytes = 10;
  static constexpr bool kExpands = true;
  const uint8_t* codes;
  Floats scale, minimum;

  AIO_MEMBER static Int4Panel of(const uint8_t* panel, int k) { return {panel + int64_t(k) * kBytes, {}, {}}; }
  AIO_MEMBER void begin() {
    scale = floats_from_half(reinterpret_cast<const uint16_t*>(codes + 256));
    minimum = floats_from_half(reinterpret_cast<const uint16_t*>(codes + 288));
  }
  AIO_MEMBER Floats at(int k) const {
    Ints code = load_ints(codes + k / 8 * 64);
    AIO_PARTS(code.part[i] = (code.part[i] >> (8 * (k % 4) + 4 * (k / 4 % 2))) & 15)
    return fma(to_floats(code), scale, minimum);
  }
  AIO_MEMBER void next() { codes += 320; }
};

// sums[Rows][Panels * 16] += x[rows, depth] times the panels' next `depth` values of k.
template <typename Panel, int Rows, int Panels>
static __attribute__((noinline)) void float_tile(const uint8_t* panels, int64_t panel_bytes, int k, const float* x,
                                                 int64_t ldx, int depth, float* sums, Ahead ahead) {
  Panel w[Panels];
  Floats sum[Rows][Panels];
  AIO_UNROLL
  for (int p = 0; p < Panels; ++p) {
    w[p] = Panel::of(panels + p * panel_bytes, k);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) sum[r][p] = load_floats(sums + (r * Panels + p) * kLanes);
  }
  for (const float* end = x + depth; x < end; x += Panel::kStep) {
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) w[p].begin();
    ahead.step<(Panel::kStep * Panel::kBytes * Panels + 63) / 64>();
    AIO_UNROLL
    for (int i = 0; i < Panel::kStep; ++i) {
      asm volatile("" ::: "memory");  // weights of later k are read again, not kept in registers that sums need
      Floats at[Panels];
      AIO_UNROLL
      for (int p = 0; p < Panels; ++p) at[p] = w[p].at(i);
      AIO_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const Floats v = floats(x[r * ldx + i]);
        AIO_UNROLL
        for (int p = 0; p < Panels; ++p) add_product(sum[r][p], at[p], v);
      }
    }
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) w[p].next();
  }
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r)
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) store_floats(sums + (r * Panels + p) * kLanes, sum[r][p]);
}

// float32 [Panels, depth, 16] of what the panels hold from k on.
template <typename Panel, int Panels>
static __attribute__((noinline)) void expand(const uint8_t* panels, int64_t panel_bytes, int k, int depth, float* out) {
  for (int p = 0; p < Panels; ++p) {
    Panel w = Panel::of(panels + p * panel_bytes, k);
    for (int i = 0; i < depth; i += Panel::kStep, w.next()) {
      w.begin();
      AIO_UNROLL
      for (int j = 0; j < Panel::kStep; ++j, out += kLanes) store_floats(out, w.at(j));
    }
  }
}

// Rows [first, last), at most kFloatBatch, against Panels panels; meanwhile those at `next` are fetched.
template <typename Panel, int Panels>
AIO_INLINE void float_panels(const LinearArgs& a, int first, int last, int panel, const uint8_t* next) {
  alignas(64) float sums[kFloatBatch * Panels * kLanes], expanded[kFloatDepth * Panels * kLanes];
  const int rows = last - first, tiles = (rows + kFloatRows - 1) / kFloatRows;
  const uint8_t* panels = a.panels + panel * a.panel_bytes;
  const bool expands = Panel::kExpands && tiles > 1;
  const int step = expands ? Float32Panel::kStep : Panel::kStep, lines = (step * Panel::kBytes * Panels + 63) / 64;
  for (int i = 0; i < rows * Panels * kLanes; i += kLanes) store_floats(sums + i, floats(0));
  for (int k = 0; k < a.k; k += kFloatDepth) {
    const int depth = min_int(kFloatDepth, a.k - k);
    if (expands) expand<Panel, Panels>(panels, a.panel_bytes, k, depth, expanded);
    for_tiles<kFloatRows>(rows, [&](auto count, int row, int tile) AIO_LAMBDA {
      constexpr int kRows = decltype(count)::value;
      const Ahead ahead = Ahead::of(next ? next + int64_t(k) * Panel::kBytes * Panels : nullptr, lines,
                                    depth / step, tile, tiles);
      const float* x = a.x + (first + row) * a.ldx + k;
      float* sum = sums + row * Panels * kLanes;
      if (expands)
        float_tile<Float32Panel, kRows, Panels>(reinterpret_cast<const uint8_t*>(expanded), int64_t(depth) * 64, 0, x,
                                                a.ldx, depth, sum, ahead);
      else
        float_tile<Panel, kRows, Panels>(panels, a.panel_bytes, k, x, a.ldx, depth, sum, ahead);
    });
  }
  for (int row = 0; row < rows; ++row)
    for (int p = 0; p < Panels; ++p)
      finish(a, first + row, (panel + p) * kLanes, load_floats(sums + (row * Panels + p) * kLanes));
}

template <typename Panel, int Panels>
AIO_INLINE void float_rows(const LinearArgs& a, int panel, const uint8_t* next) {
  for (int row = 0; row < a.rows; row += kFloatBatch, next = nullptr)
    float_panels<Panel, Panels>(a, row, min_int(row + kFloatBatch, a.rows), panel, next);
}

template <typename Panel>
AIO_INLINE void float_linear(const LinearArgs& a, int panel, int last_panel) {
  for (; panel + kFloatPanels <= last_panel; panel += kFloatPanels) {
    const uint8_t* next = a.panels + (panel + kFloatPanels) * a.panel_bytes;
    float_rows<Panel, kFloatPanels>(a, panel, panel + kFloatPanels < last_panel ? next : a.next);
  }
  for (; panel < last_panel; ++panel) float_rows<Panel, 1>(a, panel, nullptr);
}

static void linear_int4_float(const LinearArgs& a, int first, int last) { float_linear<Int4Panel>(a, first, last); }
static void linear_bf16(const LinearArgs& a, int first, int last) { float_linear<Bfloat16Panel>(a, first, last); }
static void linear_f32(const LinearArgs& a, int first, int last) { float_linear<Float32Panel>(a, first, last); }

}  // namespace AIO_ISA
}  // namespace aio
