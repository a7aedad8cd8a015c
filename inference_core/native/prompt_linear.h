// Linear layers of prompt rows: activations and weights in bfloat16, multiplied in tiles and summed in float32.
//
// Weights of 4 and 8 bits are unpacked per pair of panels into the thread's scratch, with their scales, rounded to bfloat16;
// packed bfloat16 panels are tiles already. A row's sums run over k in order: the same bits alone and in any batch.
#pragma once
#include "integer_linear.h"
#include "machine_lanes.h"
#include "tile_block.h"

namespace aio {
namespace AIO_ISA {

typedef uint32_t WordPart __attribute__((vector_size(kWidth), aligned(1), may_alias));

// Pairs of bfloat16, rounded to nearest (ties away from zero); weights are finite.
AIO_INLINE Ints pairs_of(const Floats& first, const Floats& second) {
  Ints out;
  AIO_PARTS({
    const WordPart low = ((WordPart)first.part[i] + 0x8000u) >> 16;
    const WordPart high = ((WordPart)second.part[i] + 0x8000u) & 0xffff0000u;
    out.part[i] = (IntPart)(low | high);
  })
  return out;
}

// A pair of 32-bit lanes' codes of `Bits` at bits `at` and `at + 8`, times scale plus minimum.
template <int Bits>
AIO_INLINE Ints weights_at(const Ints& lanes, int at, const Floats& scale, const Floats& minimum) {
  constexpr uint32_t mask = (1u << Bits) - 1;
  Ints first, second;
  AIO_PARTS({
    first.part[i] = (IntPart)(((WordPart)lanes.part[i] >> at) & mask);
    second.part[i] = (IntPart)(((WordPart)lanes.part[i] >> (at + 8)) & mask);
  })
  return pairs_of(fma(to_floats(first), scale, minimum), fma(to_floats(second), scale, minimum));
}

// One group of one panel as a tile: 16 rows of two k for each of the 16 columns.
template <typename Weights>
AIO_INLINE void unpack_group(const Weights& w, uint8_t* tile) {
  const Floats scale = floats_from_half(w.scales());
  Floats minimum;
  if constexpr (Weights::kMinima)
    minimum = floats_from_half(w.scales() + kLanes);
  else
    minimum = scale * floats(-float(Weights::kCentre));  // a power of two: exact
  if constexpr (Weights::kCentre == 128) {
    for (int j = 0; j < 8; ++j, tile += 128) {
      const Ints lanes = load_ints(w.codes + 64 * j);
      store_ints(tile, weights_at<8>(lanes, 0, scale, minimum));
      store_ints(tile + 64, weights_at<8>(lanes, 16, scale, minimum));
    }
  } else {
    for (int j = 0; j < 4; ++j, tile += 256) {
      const Ints lanes = load_ints(w.codes + 64 * j);
      store_ints(tile, weights_at<4>(lanes, 0, scale, minimum));
      store_ints(tile + 64, weights_at<4>(lanes, 16, scale, minimum));
      store_ints(tile + 128, weights_at<4>(lanes, 4, scale, minimum));
      store_ints(tile + 192, weights_at<4>(lanes, 20, scale, minimum));
    }
  }
}

// Where the tiles of a panel lie, one after another; `unpacked` has room for all of them. The next panel's follow at once,
// packed or unpacked.
template <typename Weights>
struct UnpackedPanel {
  AIO_MEMBER static const uint8_t* tiles(const LinearArgs& a, int panel, uint8_t* unpacked) {
    Weights w = Weights::of(a, panel);
    for (int group = 0; group < a.k / kGroup; ++group, w.next()) unpack_group(w, unpacked + group * kTileBytes);
    return unpacked;
  }
};

struct Bfloat16Tiles {
  AIO_MEMBER static const uint8_t* tiles(const LinearArgs& a, int panel, uint8_t* unpacked) {
    const uint8_t* packed = a.panels + panel * a.panel_bytes;
    if (a.k % kTileDepth == 0) return packed;
    const int64_t bytes = int64_t(a.k) * 2 * kLanes;
    memcpy(unpacked, packed, size_t(bytes));
    memset(unpacked + bytes, 0, size_t(prompt_panel_bytes(a.k) - bytes));
    return unpacked;
  }
};

template <typename Tiles, int High, int Wide>
AIO_INLINE void prompt_block(TileBlock<Tiles>& block, const LinearArgs& a, int row, int rows, int panel,
                             const uint8_t* weights, float* results) {
  constexpr int64_t stride = kBlockSide * 4;
  const int64_t row_bytes = a.ld_rounded * 2, panel_bytes = prompt_panel_bytes(a.k);
  block.template zero<High, Wide>();
  block.template multiply<High, Wide>(a.rounded + row * a.ld_rounded, row_bytes, weights, 64, kTileBytes, panel_bytes,
                                      int(panel_bytes / kTileBytes));
  block.template store<High, Wide>(results, stride);
  for (int r = 0; r < rows; ++r)
    for (int p = 0; p < Wide; ++p)
      finish(a, row + r, (panel + p) * kLanes, load_floats(results + r * kBlockSide + p * kLanes));
}

template <typename Tiles, typename Panel, int Wide>
static __attribute__((noinline)) void prompt_panels(TileBlock<Tiles>& block, const LinearArgs& a, int panel) {
  float* results = a.scratch;
  uint8_t* unpacked = reinterpret_cast<uint8_t*>(results + kBlockSide * kBlockSide);
  const uint8_t* weights = Panel::tiles(a, panel, unpacked);
  if constexpr (Wide == 2) Panel::tiles(a, panel + 1, unpacked + prompt_panel_bytes(a.k));
  for_blocks(0, a.rows, [&](int row, int rows, auto high) {
    block.shape(rows);
    prompt_block<Tiles, decltype(high)::value, Wide>(block, a, row, rows, panel, weights, results);
  });
}

template <typename Tiles, typename Panel>
static void prompt_linear(const LinearArgs& a, int panel, int last_panel) {
  TileBlock<Tiles> block;
  for (; panel + 2 <= last_panel; panel += 2) prompt_panels<Tiles, Panel, 2>(block, a, panel);
  if (panel < last_panel) prompt_panels<Tiles, Panel, 1>(block, a, panel);
}

// bfloat16 of rows [first, last) of x, to nearest even, and zeros up to whole tiles.
static void round_rows(const float* x, int64_t ldx, int k, uint16_t* out, int64_t ldo, int first, int last) {
  for (int row = first; row < last; ++row) {
    const float* in = x + row * ldx;
    uint16_t* to = out + row * ldo;
    int i = 0;
    for (; i + kWide <= k; i += kWide)
      *reinterpret_cast<vu16*>(to + i) = __builtin_convertvector(wide_bf16(wide_load(in + i)) >> 16, vu16);
    if (i < k) {
      float tail[kWide] = {};
      memcpy(tail, in + i, size_t(k - i) * 4);
      const vu16 rounded = __builtin_convertvector(wide_bf16(wide_load(tail)) >> 16, vu16);
      memcpy(to + i, &rounded, size_t(k - i) * 2);
    }
    for (i = k; i % kTileDepth; ++i) to[i] = 0;
  }
}

}  // namespace AIO_ISA
}  // namespace aio
