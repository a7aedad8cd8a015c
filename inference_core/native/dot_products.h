// Attention's products in pairs of bfloat16 (VDPBF16PS), in register tiles of six rows by 64 tokens or columns.
#pragma once
#include "prompt_attention.h"

namespace aio {
namespace AIO_ISA {

// sum += the products of the lanes' pairs; the second numbers' first, each a fused addition, subnormals as zero.
AIO_INLINE void add_pairs(vf& sum, vu a, vu b) { asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); }

AIO_INLINE vu pair_everywhere(const uint16_t* pair) {
  int32_t bits;
  memcpy(&bits, pair, 4);
  return (vu)_mm512_set1_epi32(bits);
}

// sum[r][n] += rows of pairs at `a`, `a_stride` numbers apart, times columns of pairs at `b`, `b_stride` lanes apart.
template <int R, int N>
AIO_INLINE void add_pair_products(vf (&sum)[R][N], const uint16_t* a, int64_t a_stride, const uint32_t* b, int64_t b_stride,
                                  int pairs) {
  for (int i = 0; i < pairs; ++i, a += 2, b += b_stride) {
    vu right[N];
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) right[n] = wide_load(b + n * kWide);
    AIO_UNROLL_TILE
    for (int r = 0; r < R; ++r) {
      const vu left = pair_everywhere(a + r * a_stride);
      AIO_UNROLL_TILE
      for (int n = 0; n < N; ++n) add_pairs(sum[r][n], right[n], left);
    }
  }
}

template <int R, int N>
AIO_TILE void score_pairs(const Rows& rows, const TileRows& tiles, int row, int token) {
  vf sum[R][N];
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r)
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) sum[r][n] = wide(0);
  add_pair_products<R, N>(sum, tiles.queries + int64_t(row) * tiles.width, tiles.width, tiles.keys + token, kChunk,
                          rows.d / 2);
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r)
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) wide_store(rows.p + (row + r) * kChunk + token + n * kWide, sum[r][n]);
}

template <int R, int N>
AIO_TILE void mix_pairs(const Rows& rows, const TileRows& tiles, int row, int column, int pairs) {
  vf sum[R][N];
  float* acc = rows.acc + int64_t(row) * rows.d + column;
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r)
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) sum[r][n] = wide_load(acc + r * rows.d + n * kWide) * wide(rows.rescale[row + r]);
  add_pair_products<R, N>(sum, tiles.weights + row * kChunk, kChunk, tiles.values + column, rows.d, pairs);
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r)
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) wide_store(acc + r * rows.d + n * kWide, sum[r][n]);
}

// Tiles stop at what their last row sees: scores behind it are not looked at, and weights behind it are zero.
struct DotProducts {
  static constexpr int kSide = kTileVectors * kWide;

  template <KVDtype K>
  AIO_MEMBER static void load_chunk(const Rows& rows, const TileRows& tiles, const Chunk& c, int tokens,
                                    const Chunk& ahead) {
    tile_chunk<K>(rows, tiles, c, tokens, ahead);
  }
  AIO_MEMBER void score(const Rows& rows, const TileRows& tiles, int first, int base) const {
    for_tiles<kTileRows>(first, rows.count, [&](int row, auto r) AIO_LAMBDA {
      const int vectors = (visible_tokens(rows, row + r.value - 1, base) + kWide - 1) / kWide;
      for (int v = 0; v < vectors; v += kTileVectors)
        with_constant<kTileVectors>(min_int(kTileVectors, vectors - v), [&](auto n) AIO_LAMBDA {
          score_pairs<r.value, n.value>(rows, tiles, row, v * kWide);
        });
    });
  }
  AIO_MEMBER void mix(const Rows& rows, const TileRows& tiles, int first, int base) const {
    for_tiles<kTileRows>(first, rows.count, [&](int row, auto r) AIO_LAMBDA {
      const int pairs = (visible_tokens(rows, row + r.value - 1, base) + 1) / 2;
      for (int column = 0; column < rows.d; column += kSide)
        with_constant<kTileVectors>(min_int(kTileVectors, (rows.d - column) / kWide), [&](auto n) AIO_LAMBDA {
          mix_pairs<r.value, n.value>(rows, tiles, row, column, pairs);
        });
    });
  }
};

}  // namespace AIO_ISA
}  // namespace aio
