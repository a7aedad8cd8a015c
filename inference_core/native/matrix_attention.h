// Attention's products of bfloat16 in two rows by two columns (BFMMLA), in register tiles of six rows by 16 tokens or columns.
#pragma once
#include "matrix_products.h"
#include "prompt_attention.h"

namespace aio {
namespace AIO_ISA {

// A chunk's keys as pairs of tokens, four dimensions after four, and its values as pairs of columns, four tokens after four.
// Values of tokens from `tokens` on are zero: their slots may hold anything, and a weight of zero times NaN is NaN.
AIO_INLINE void pair_chunk(const Rows& rows, const TileRows& tiles, const Chunk& c, int tokens, const Chunk& ahead) {
  const auto lanes = [](const uint8_t* at) AIO_LAMBDA { return wide_load(reinterpret_cast<const uint32_t*>(at)); };
  const int64_t d = rows.d;
  for (int i = 0; i < c.lane_rows; i += 2) {
    fetch_ahead(ahead, i);
    fetch_ahead(ahead, i + 1);
    for (int v = 0; v < kChunkVectors; ++v) {
      const uint8_t* at = c.keys[v / kVectorsPerGroup] + v % kVectorsPerGroup * kWide * 4 + i * c.key_stride;
      store_column_pairs(tiles.keys + i * kChunk + v * 2 * kWide, (uint32x4_t)lanes(at), (uint32x4_t)lanes(at + c.key_stride));
    }
  }
  const auto of_tokens = [tokens](int t) { return t + 1 < tokens ? ~0u : t < tokens ? 0xffffu : 0u; };
  for (int t = 0; t < tokens; t += 4) {
    const uint8_t* at = c.values[t / kLanes] + t % kLanes / 2 * c.value_stride;
    const uint32_t first = of_tokens(t), second = of_tokens(t + 2);
    for (int64_t column = 0; column < d; column += kWide, at += kWide * 4)
      store_column_pairs(tiles.values + t / 2 * d + column * 2, (uint32x4_t)(lanes(at) & first),
                         (uint32x4_t)(lanes(at + c.value_stride) & second));
  }
  const int quads = (tokens + 3) / 4;
  memset(tiles.values + quads * 2 * d, 0, size_t(kChunk / 4 - quads) * size_t(2 * d) * 4);
}

// The sums of a tile's rows, `stride` numbers apart. Pairs hold `count` rows, of which the last may be there twice.
template <int Pairs>
AIO_INLINE void store_sums(float* to, int64_t stride, int count, const float32x4_t (&sum)[Pairs][kColumnPairs]) {
  AIO_UNROLL
  for (int p = 0; p < Pairs; ++p) {
    float *upper = to + 2 * p * stride, *lower = to + min_int(2 * p + 1, count - 1) * stride;
    AIO_UNROLL
    for (int c = 0; c < kColumnPairs; c += 2) {
      vst1q_f32(upper + 2 * c, first_halves(sum[p][c], sum[p][c + 1]));
      vst1q_f32(lower + 2 * c, second_halves(sum[p][c], sum[p][c + 1]));
    }
  }
}

template <int Pairs>
AIO_TILE void score_matrix(const Rows& rows, const TileRows& tiles, int row, int count, int token) {
  float32x4_t sum[Pairs][kColumnPairs];
  AIO_UNROLL
  for (int p = 0; p < Pairs; ++p)
    AIO_UNROLL
    for (int c = 0; c < kColumnPairs; ++c) sum[p][c] = vdupq_n_f32(0);
  const uint16_t* queries = tiles.queries + int64_t(row) * tiles.width;
  const uint8_t* keys = reinterpret_cast<const uint8_t*>(tiles.keys) + token * kColumnStep;
  add_matrix_products<Bfloat16Pairs>(sum, queries, 2 * tiles.width, count, keys, kChunk * kColumnStep, 2 * rows.d);
  store_sums<Pairs>(rows.p + row * kChunk + token, kChunk, count, sum);
}

template <int Pairs>
AIO_TILE void mix_matrix(const Rows& rows, const TileRows& tiles, int row, int count, int column, int tokens) {
  float32x4_t sum[Pairs][kColumnPairs];
  float* acc = rows.acc + int64_t(row) * rows.d + column;
  AIO_UNROLL
  for (int p = 0; p < Pairs; ++p) {
    const int last = min_int(2 * p + 1, count - 1);
    const float *upper = acc + 2 * p * rows.d, *lower = acc + last * rows.d;
    const float32x4_t up = vdupq_n_f32(rows.rescale[row + 2 * p]), low = vdupq_n_f32(rows.rescale[row + last]);
    AIO_UNROLL
    for (int c = 0; c < kColumnPairs; c += 2) {
      const float32x4_t first = vmulq_f32(vld1q_f32(upper + 2 * c), up), second = vmulq_f32(vld1q_f32(lower + 2 * c), low);
      sum[p][c] = first_halves(first, second);
      sum[p][c + 1] = second_halves(first, second);
    }
  }
  const uint8_t* values = reinterpret_cast<const uint8_t*>(tiles.values) + column * kColumnStep;
  add_matrix_products<Bfloat16Pairs>(sum, tiles.weights + row * kChunk, 2 * kChunk, count, values, rows.d * kColumnStep,
                                     (tokens + 7) / 8 * 16);
  store_sums<Pairs>(acc, rows.d, count, sum);
}

// Tiles stop at what their last row sees, rounded up to whole steps: scores behind it are not looked at, and weights behind
// it are zero.
struct MatrixProducts {
  template <KVDtype K>
  AIO_MEMBER static void load_chunk(const Rows& rows, const TileRows& tiles, const Chunk& c, int tokens,
                                    const Chunk& ahead) {
    static_assert(K == kKVBf16, "other caches have no numbers of 16 bits");
    pair_chunk(rows, tiles, c, tokens, ahead);
  }

  AIO_MEMBER void score(const Rows& rows, const TileRows& tiles, int first, int base) const {
    for_tiles<kMatrixRows>(first, rows.count, [&](int row, auto r) AIO_LAMBDA {
      const int tokens = visible_tokens(rows, row + r.value - 1, base);
      for (int token = 0; token < tokens; token += kLanes) score_matrix<(r.value + 1) / 2>(rows, tiles, row, r.value, token);
    });
  }
  AIO_MEMBER void mix(const Rows& rows, const TileRows& tiles, int first, int base) const {
    for_tiles<kMatrixRows>(first, rows.count, [&](int row, auto r) AIO_LAMBDA {
      const int tokens = visible_tokens(rows, row + r.value - 1, base);
      for (int column = 0; column < rows.d; column += kLanes)
        mix_matrix<(r.value + 1) / 2>(rows, tiles, row, r.value, column, tokens);
    });
  }
};

}  // namespace AIO_ISA
}  // namespace aio
