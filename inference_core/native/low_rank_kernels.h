// y += scale * B (A x) for the rows of one adapter. First A x, a tile of ranks at a time, 16 inputs at once; then B
// times that, a panel of 16 outputs at a time. The order of each sum does not depend on the number of rows.
#pragma once
#include "panel_lanes.h"

namespace aio {
namespace AIO_ISA {

#if defined(AIO_AVX512)
constexpr int kLowRankRows = 4, kLowRankPanels = 4;
#elif defined(AIO_AVX2)
constexpr int kLowRankRows = 1, kLowRankPanels = 2;
#else
constexpr int kLowRankRows = 1, kLowRankPanels = 1;
#endif

// 16 weights from `index` on, whatever they are stored as.
struct FloatWeights {
  const float* at;
  AIO_MEMBER Floats load(int64_t index) const { return load_floats(at + index); }
};

struct Bfloat16Weights {
  const uint16_t* at;
  AIO_MEMBER Floats load(int64_t index) const {
    Floats out;
    const uint16_t* p = at + index;
#if defined(AIO_AVX512)
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    out.part[0] = (FloatPart)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
#elif defined(AIO_AVX2)
    AIO_PARTS({
      const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * i));
      out.part[i] = (FloatPart)_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16);
    })
#else
    AIO_PARTS({
      const HalfPart bits = *reinterpret_cast<const HalfPart*>(p + i * kPartLanes);
      out.part[i] = (FloatPart)(__builtin_convertvector(bits, IntPart) << 16);
    })
#endif
    return out;
  }
};

// Scaled products of `Rows` rows with `Ranks` rows of A; `weights` begins at the tile.
template <int Rows, int Ranks, typename Weights>
AIO_INLINE void shrink_tile(const LowRank& low, const Weights& weights, const LowRankRows& a, int row, int rank) {
  Floats sum[Rows][Ranks];
  const float* x[Rows];
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) {
    x[r] = a.x + int64_t(a.rows[row + r]) * a.ldx;
    AIO_UNROLL
    for (int j = 0; j < Ranks; ++j) sum[r][j] = floats(0);
  }
  const int whole = low.k / kLanes * kLanes;
  int64_t at = 0;
  for (int k = 0; k < whole; k += kLanes) {
    Floats in[Rows];
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) in[r] = load_floats(x[r] + k);
    AIO_UNROLL
    for (int j = 0; j < Ranks; ++j, at += kLanes) {
      const Floats w = weights.load(at);
      AIO_UNROLL
      for (int r = 0; r < Rows; ++r) add_product(sum[r][j], w, in[r]);
    }
  }
  if (whole < low.k) {
    float rest[kLanes];
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      for (int i = 0; i < kLanes; ++i) rest[i] = whole + i < low.k ? x[r][whole + i] : 0.0f;
      const Floats in = load_floats(rest);
      AIO_UNROLL
      for (int j = 0; j < Ranks; ++j) add_product(sum[r][j], weights.load(at + j * kLanes), in);
    }
  }
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) {
    float* out = a.shrunk + int64_t(a.rows[row + r]) * a.ld_shrunk + low.at + rank;
    AIO_UNROLL
    for (int j = 0; j < Ranks; ++j) out[j] = sum_of(sum[r][j]) * low.scale;
  }
}

template <int Rows, typename Weights>
AIO_INLINE void shrink_ranks(const LowRank& low, const Weights& weights, const LowRankRows& a, int row, int rank) {
  switch (min_int(kRankTile, low.rank - rank)) {
    case 1: shrink_tile<Rows, 1>(low, weights, a, row, rank); break;
    case 2: shrink_tile<Rows, 2>(low, weights, a, row, rank); break;
    case 3: shrink_tile<Rows, 3>(low, weights, a, row, rank); break;
    default: shrink_tile<Rows, 4>(low, weights, a, row, rank); break;
  }
}

template <typename Weights>
static __attribute__((noinline)) void shrink_rows_of(const LowRank& low, Weights weights, const LowRankRows& a, int tile) {
  const int rank = tile * kRankTile;
  weights.at += int64_t(rank) * ((low.k + kLanes - 1) / kLanes * kLanes);
  int row = 0;
  for (; row + kLowRankRows <= a.count; row += kLowRankRows) shrink_ranks<kLowRankRows>(low, weights, a, row, rank);
  for (; row < a.count; ++row) shrink_ranks<1>(low, weights, a, row, rank);
}

static void shrink_rows(const LowRank& low, const LowRankRows& a, int tile) {
  if (low.bfloat16)
    shrink_rows_of(low, Bfloat16Weights{static_cast<const uint16_t*>(low.down)}, a, tile);
  else
    shrink_rows_of(low, FloatWeights{static_cast<const float*>(low.down)}, a, tile);
}

// y += B times the shrunk row, in `Panels` panels of `Rows` rows.
template <int Rows, int Panels, typename Weights>
AIO_INLINE void expand_tile(const LowRank& low, const Weights& weights, const LowRankRows& a, int row, int panel) {
  Floats sum[Rows][Panels];
  const float* in[Rows];
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) {
    in[r] = a.shrunk + int64_t(a.rows[row + r]) * a.ld_shrunk + low.at;
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) sum[r][p] = floats(0);
  }
  const int64_t stride = int64_t(low.rank) * kLanes;
  for (int j = 0; j < low.rank; ++j) {
    Floats w[Panels];
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) w[p] = weights.load((panel + p) * stride + j * kLanes);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const Floats v = floats(in[r][j]);
      AIO_UNROLL
      for (int p = 0; p < Panels; ++p) add_product(sum[r][p], w[p], v);
    }
  }
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r)
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) {
      const int column = (panel + p) * kLanes;
      float* y = a.y + int64_t(a.rows[row + r]) * a.ldy + low.column + column;
      if (column + kLanes <= low.n) {
        store_floats(y, load_floats(y) + sum[r][p]);
      } else {
        float columns[kLanes];
        store_floats(columns, sum[r][p]);
        for (int i = 0; column + i < low.n; ++i) y[i] += columns[i];
      }
    }
}

template <int Panels, typename Weights>
AIO_INLINE void expand_panels(const LowRank& low, const Weights& weights, const LowRankRows& a, int panel) {
  int row = 0;
  for (; row + kLowRankRows <= a.count; row += kLowRankRows)
    expand_tile<kLowRankRows, Panels>(low, weights, a, row, panel);
  for (; row < a.count; ++row) expand_tile<1, Panels>(low, weights, a, row, panel);
}

template <typename Weights>
static __attribute__((noinline)) void expand_rows_of(const LowRank& low, const Weights& weights, const LowRankRows& a,
                                                     int panel, int last_panel) {
  for (; panel + kLowRankPanels <= last_panel; panel += kLowRankPanels)
    expand_panels<kLowRankPanels>(low, weights, a, panel);
  for (; panel < last_panel; ++panel) expand_panels<1>(low, weights, a, panel);
}

static void expand_rows(const LowRank& low, const LowRankRows& a, int first_panel, int last_panel) {
  if (low.bfloat16)
    expand_rows_of(low, Bfloat16Weights{static_cast<const uint16_t*>(low.up)}, a, first_panel, last_panel);
  else
    expand_rows_of(low, FloatWeights{static_cast<const float*>(low.up)}, a, first_panel, last_panel);
}

}  // namespace AIO_ISA
}  // namespace aio
