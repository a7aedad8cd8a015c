// Scores and weighted sums of float32 and bfloat16 keys and values. Every sum runs in a fixed order over the head's
// dimensions or over the tokens, in any tile.
#pragma once
#include "attention_tile.h"

namespace aio {
namespace AIO_ISA {

template <KVDtype K>
AIO_INLINE vf number(vu lanes, int i) {
  return K == kKVFloat ? (vf)lanes : i == 0 ? low_half(lanes) : high_half(lanes);
}

// Scores of R rows and N vectors of tokens whose keys begin `at`.
template <int R, int N, KVDtype K, bool Ahead>
AIO_TILE void score_tile(const uint8_t* const* at, int64_t stride, const float* q, int d, float* p, const Chunk* ahead) {
  constexpr int r32 = numbers_per_lane(K);
  vf acc[R][N];
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r)
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) acc[r][n] = wide(0);
  for (int i = 0; i < d / r32; ++i) {
    if (Ahead) fetch_ahead(*ahead, i);
    vu lanes[N];
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) lanes[n] = wide_load(reinterpret_cast<const uint32_t*>(at[n] + i * stride));
    AIO_UNROLL_TILE
    for (int k = 0; k < r32; ++k) {
      vf key[N];
      AIO_UNROLL_TILE
      for (int n = 0; n < N; ++n) key[n] = number<K>(lanes[n], k);
      AIO_UNROLL_TILE
      for (int r = 0; r < R; ++r) {
        const vf query = wide(q[r * d + i * r32 + k]);
        AIO_UNROLL_TILE
        for (int n = 0; n < N; ++n) acc[r][n] = wide_fma(key[n], query, acc[r][n]);
      }
    }
  }
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r)
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) wide_store(p + r * kChunk + n * kWide, acc[r][n]);
}

// acc = acc * rescale + weights x values for R rows and N vectors of columns from `column`.
template <int R, int N, KVDtype K>
AIO_TILE void mix_tile(const Chunk& c, int tokens, const float* p, const float* rescale, float* acc, int d, int column) {
  constexpr int r32 = numbers_per_lane(K);
  vf sum[R][N];
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r)
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) sum[r][n] = wide_load(acc + r * d + column + n * kWide) * wide(rescale[r]);
  for (int g = 0; g * kLanes < tokens; ++g) {
    const uint8_t* row = c.values[g] + int64_t(column) * 4;
    const float* weights = p + g * kLanes;
    const int count = min_int(kLanes, tokens - g * kLanes);
    for (int t = 0; t < count; t += r32, row += c.value_stride) {
      vu lanes[N];
      AIO_UNROLL_TILE
      for (int n = 0; n < N; ++n) lanes[n] = wide_load(reinterpret_cast<const uint32_t*>(row) + n * kWide);
      AIO_UNROLL_TILE
      for (int k = 0; k < r32; ++k) {
        if (k && t + k >= count) break;  // the lane's other half is past the context: its weight is 0, but it may be NaN
        vf value[N];
        AIO_UNROLL_TILE
        for (int n = 0; n < N; ++n) value[n] = number<K>(lanes[n], k);
        AIO_UNROLL_TILE
        for (int r = 0; r < R; ++r) {
          const vf weight = wide(weights[r * kChunk + t + k]);
          AIO_UNROLL_TILE
          for (int n = 0; n < N; ++n) sum[r][n] = wide_fma(value[n], weight, sum[r][n]);
        }
      }
    }
  }
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r)
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) wide_store(acc + r * d + column + n * kWide, sum[r][n]);
}

// Scores of rows [row, row + R) for the chunk's first `tokens` (a multiple of 16).
template <int R, KVDtype K, bool Ahead>
AIO_INLINE void score_rows(const Rows& rows, int row, const Chunk& c, int tokens, const Chunk* ahead) {
  for (int v = 0; v < tokens / kWide; v += kTileVectors)
    with_constant<kTileVectors>(min_int(kTileVectors, tokens / kWide - v), [&](auto n) AIO_LAMBDA {
      const uint8_t* at[n.value];
      for (int i = 0; i < n.value; ++i)
        at[i] = c.keys[(v + i) / kVectorsPerGroup] + (v + i) % kVectorsPerGroup * kWide * 4;
      float* p = rows.p + row * kChunk + v * kWide;
      const float* q = rows.q + int64_t(row) * rows.d;
      if (Ahead && v == 0)
        score_tile<R, n.value, K, true>(at, c.key_stride, q, rows.d, p, ahead);
      else
        score_tile<R, n.value, K, false>(at, c.key_stride, q, rows.d, p, ahead);
    });
}

template <int R, KVDtype K>
AIO_INLINE void mix_rows(const Rows& rows, int row, const Chunk& c, int tokens) {
  for (int column = 0; column < rows.d; column += kTileVectors * kWide)
    with_constant<kTileVectors>(min_int(kTileVectors, (rows.d - column) / kWide), [&](auto n) AIO_LAMBDA {
      mix_tile<R, n.value, K>(c, tokens, rows.p + row * kChunk, rows.rescale + row,
                              rows.acc + int64_t(row) * rows.d, rows.d, column);
    });
}

// Many rows share the conversion to float32: done once, into scratch, while the next chunk is fetched.
template <KVDtype K>
AIO_INLINE Chunk converted(const Rows& rows, const Chunk& c, int tokens, const Chunk& ahead) {
  constexpr int r32 = numbers_per_lane(K);
  const int d = rows.d;
  for (int i = 0; i < c.lane_rows; ++i) {
    fetch_ahead(ahead, i);
    for (int v = 0; v * kWide < tokens; ++v) {
      const uint8_t* at = c.keys[v / kVectorsPerGroup] + v % kVectorsPerGroup * kWide * 4 + i * c.key_stride;
      const vu lanes = wide_load(reinterpret_cast<const uint32_t*>(at));
      for (int k = 0; k < r32; ++k) wide_store(rows.keys + (i * r32 + k) * kChunk + v * kWide, number<K>(lanes, k));
    }
  }
  for (int t = 0; t < tokens; t += r32) {
    const uint8_t* at = c.values[t / kLanes] + t % kLanes / r32 * c.value_stride;
    for (int column = 0; column < d; column += kWide) {
      const vu lanes = wide_load(reinterpret_cast<const uint32_t*>(at) + column);
      for (int k = 0; k < r32; ++k) wide_store(rows.values + (t + k) * d + column, number<K>(lanes, k));
    }
  }
  Chunk out;
  out.key_stride = kChunk * 4;
  out.value_stride = int64_t(d) * 4;
  out.lane_rows = d;
  for (int g = 0; g < kGroups; ++g) {
    out.keys[g] = reinterpret_cast<const uint8_t*>(rows.keys + g * kLanes);
    out.values[g] = reinterpret_cast<const uint8_t*>(rows.values + int64_t(g) * kLanes * d);
  }
  return out;
}

}  // namespace AIO_ISA
}  // namespace aio
