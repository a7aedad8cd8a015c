// Attention of prompt queries: scores and weighted sums in bfloat16, the softmax between them in float32 as for all other
// queries (attention_kernels.h). Queries and weights are rounded to bfloat16; the INT8 codes of the cache fit it exactly,
// and their scales are applied to scores and weights in float32. A row's arithmetic depends on its position alone.
// `Products` multiplies: in tiles (below), in dot products of pairs (dot_products.h) or in products of two rows by two columns
// (matrix_attention.h); it also says how a chunk's keys and values lie for that.
#pragma once
#include "attention_kernels.h"
#include "tile_block.h"

namespace aio {
namespace AIO_ISA {

// The rows of a unit as they are multiplied; all in the unit's scratch.
struct TileRows {
  int width;          // head_dim up to a multiple of 32; zeros behind it
  uint16_t* queries;  // [count, width]
  uint16_t* weights;  // [count, kChunk]
  uint32_t* keys;     // [width / 2, kChunk] pairs of dimensions
  uint32_t* values;   // [kChunk / 2, head_dim] pairs of tokens
};

AIO_INLINE void store_rounded(uint16_t* to, vf v) {
#if defined(AIO_BF16) && defined(AIO_NEON)
  vst1_u16(to, vreinterpret_u16_bf16(vcvt_bf16_f32((float32x4_t)v)));
#elif defined(AIO_BF16)
  __m256i rounded;  // to nearest even as below, but that subnormal numbers become zero: products take them for it anyway
  asm("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(v));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded);
#else
  *reinterpret_cast<vu16*>(to) = __builtin_convertvector(wide_bf16(v) >> 16, vu16);
#endif
}

AIO_INLINE TileRows tile_rows_of(const Rows& rows) {
  TileRows tiles;
  tiles.width = (rows.d + kTileDepth - 1) / kTileDepth * kTileDepth;
  tiles.queries = reinterpret_cast<uint16_t*>(rows.quads);
  tiles.weights = reinterpret_cast<uint16_t*>(rows.p_quads);
  tiles.keys = reinterpret_cast<uint32_t*>(rows.keys);
  tiles.values = reinterpret_cast<uint32_t*>(rows.values);
  for (int row = 0; row < rows.count; ++row) {
    uint16_t* to = tiles.queries + int64_t(row) * tiles.width;
    for (int i = 0; i < rows.d; i += kWide) store_rounded(to + i, wide_load(rows.q + int64_t(row) * rows.d + i));
    for (int i = rows.d; i < tiles.width; ++i) to[i] = 0;
  }
  return tiles;
}

// Codes in bytes `at` and `at + 1` of each lane, which are stored plus 128, as pairs of bfloat16.
AIO_INLINE vu code_pairs(vu lanes, int at) {
  const vi first = (vi)((lanes >> (8 * at)) & 255u) - 128, second = (vi)((lanes >> (8 * at + 8)) & 255u) - 128;
  const vu low = (vu)__builtin_convertvector(first, vf) >> 16, high = (vu)__builtin_convertvector(second, vf);
  return low | (high & 0xffff0000u);  // integers of 8 bits: their float32 ends in zeros
}

// Lanes of the cache as rows of pairs: INT8 lanes hold two pairs, for this row and the next.
template <KVDtype K>
AIO_INLINE void store_pairs(uint32_t* to, int64_t next_row, vu lanes) {
  if constexpr (K == kKVInt8) {
    *reinterpret_cast<vu*>(to) = code_pairs(lanes, 0);
    *reinterpret_cast<vu*>(to + next_row) = code_pairs(lanes, 2);
  } else {
    *reinterpret_cast<vu*>(to) = lanes;
  }
}

// A chunk's keys and values as tiles. Values of tokens from `tokens` on are zero: their slots may hold anything, and a
// weight of zero times NaN is NaN. Scores of such tokens are never looked at.
template <KVDtype K>
AIO_INLINE void tile_chunk(const Rows& rows, const TileRows& tiles, const Chunk& c, int tokens, const Chunk& ahead) {
  constexpr int pairs = numbers_per_lane(K) / 2;
  const int d = rows.d;
  for (int i = 0; i < c.lane_rows; ++i) {
    fetch_ahead(ahead, i);
    for (int v = 0; v < kChunkVectors; ++v) {
      const uint8_t* at = c.keys[v / kVectorsPerGroup] + v % kVectorsPerGroup * kWide * 4 + i * c.key_stride;
      store_pairs<K>(tiles.keys + int64_t(i) * pairs * kChunk + v * kWide, kChunk,
                     wide_load(reinterpret_cast<const uint32_t*>(at)));
    }
  }
  memset(tiles.keys + int64_t(d / 2) * kChunk, 0, size_t(tiles.width - d) / 2 * kChunk * 4);
  for (int t = 0; t < tokens; t += 2 * pairs) {
    const uint8_t* at = c.values[t / kLanes] + t % kLanes / (2 * pairs) * c.value_stride;
    uint32_t* to = tiles.values + int64_t(t / 2) * d;
    for (int column = 0; column < d; column += kWide)
      store_pairs<K>(to + column, d, wide_load(reinterpret_cast<const uint32_t*>(at) + column));
  }
  if (tokens % 2)
    for (int column = 0; column < d; ++column) tiles.values[int64_t(tokens / 2) * d + column] &= 0xffffu;
  const int whole = (tokens + 1) / 2;
  memset(tiles.values + int64_t(whole) * d, 0, size_t(kChunk / 2 - whole) * size_t(d) * 4);
}

template <KVDtype K>
AIO_INLINE void scale_scores(const Rows& rows, int first, const Chunk& c) {
  if (K != kKVInt8) return;
  for (int v = 0; v < kChunkVectors; ++v) {
    const vf scale = scales_at(c.key_scales[v / kVectorsPerGroup] + v % kVectorsPerGroup * kWide);
    for (int row = first; row < rows.count; ++row) {
      float* p = rows.p + row * kChunk + v * kWide;
      wide_store(p, wide_load(p) * scale);
    }
  }
}

// The weights in bfloat16, those of INT8 values with the scales.
template <KVDtype K>
AIO_INLINE void round_weights(const Rows& rows, const TileRows& tiles, int first, const Chunk& c) {
  for (int row = first; row < rows.count; ++row) {
    const float* p = rows.p + row * kChunk;
    for (int v = 0; v < kChunkVectors; ++v) {
      vf weight = wide_load(p + v * kWide);
      if constexpr (K == kKVInt8) {
        const vf scale = scales_at(c.value_scales[v / kVectorsPerGroup] + v % kVectorsPerGroup * kWide);
        weight = weight > wide(0) ? weight * scale : wide(0);  // scales of unused slots may be anything
      }
      store_rounded(tiles.weights + row * kChunk + v * kWide, weight);
    }
  }
}

// How many of the chunk's tokens a row sees.
AIO_INLINE int visible_tokens(const Rows& rows, int row, int base) {
  return min_int(kChunk, rows.position(row) - base + 1);
}

// The sums so far, by the chunk's new peaks.
AIO_INLINE void rescale_sums(const Rows& rows, int first) {
  for (int row = first; row < rows.count; ++row) {
    float* acc = rows.acc + int64_t(row) * rows.d;
    for (int i = 0; i < rows.d; i += kWide) wide_store(acc + i, wide_load(acc + i) * wide(rows.rescale[row]));
  }
}

template <typename Tiles, int High, int Wide>
AIO_INLINE void score_block(TileBlock<Tiles>& block, const Rows& rows, const TileRows& tiles, int row, int token) {
  block.template zero<High, Wide>();
  block.template multiply<High, Wide>(tiles.queries + int64_t(row) * tiles.width, tiles.width * 2, tiles.keys + token,
                                      kChunk * 4, kTileSide * kChunk * 4, 64, tiles.width / kTileDepth);
  block.template store<High, Wide>(rows.p + row * kChunk + token, kChunk * 4);
}

template <typename Tiles, int High, int Wide>
AIO_INLINE void mix_block(TileBlock<Tiles>& block, const Rows& rows, const TileRows& tiles, int row, int column) {
  const int64_t stride = int64_t(rows.d) * 4;
  float* acc = rows.acc + int64_t(row) * rows.d + column;
  block.template load<High, Wide>(acc, stride);
  block.template multiply<High, Wide>(tiles.weights + row * kChunk, kChunk * 2, tiles.values + column, stride,
                                      kTileSide * stride, 64, kChunk / kTileDepth);
  block.template store<High, Wide>(acc, stride);
}

template <typename Tiles>
class TileProducts {
 public:
  template <KVDtype K>
  AIO_MEMBER static void load_chunk(const Rows& rows, const TileRows& tiles, const Chunk& c, int tokens,
                                    const Chunk& ahead) {
    tile_chunk<K>(rows, tiles, c, tokens, ahead);
  }

  // Scores of rows from `first` on and the chunk at `base`.
  AIO_MEMBER void score(const Rows& rows, const TileRows& tiles, int first, int) {
    for_blocks(first, rows.count, [&](int row, int count, auto high) {
      block_.shape(count);
      for (int token = 0; token < kChunk; token += kBlockSide)
        score_block<Tiles, decltype(high)::value, 2>(block_, rows, tiles, row, token);
    });
  }

  // Adds the chunk's values by the weights.
  AIO_MEMBER void mix(const Rows& rows, const TileRows& tiles, int first, int) {
    rescale_sums(rows, first);
    for_blocks(first, rows.count, [&](int row, int count, auto high) {
      block_.shape(count);
      int column = 0;
      for (; column + kBlockSide <= rows.d; column += kBlockSide)
        mix_block<Tiles, decltype(high)::value, 2>(block_, rows, tiles, row, column);
      if (column < rows.d) mix_block<Tiles, decltype(high)::value, 1>(block_, rows, tiles, row, column);
    });
  }

 private:
  TileBlock<Tiles> block_;
};

template <typename Products, KVDtype K>
static __attribute__((noinline)) void attend_prompt_unit(const AttentionArgs& a, const AttentionUnit& unit,
                                                         const AttentionUnit* next, float* scratch) {
  const Rows rows = rows_of(a, unit, scratch);
  const TileRows tiles = tile_rows_of(rows);
  Products products;
  for_chunks<K>(a, unit, next, rows, [&](const Chunk& c, int base, int context, const Chunk& ahead) {
    Products::template load_chunk<K>(rows, tiles, c, min_int(kChunk, context - base), ahead);
    // Rows of earlier queries see nothing of these tokens: leave them as they are.
    const int skip = base > rows.first_position ? (base - rows.first_position) * rows.group : 0;
    products.score(rows, tiles, skip, base);
    scale_scores<K>(rows, skip, c);
    soften_rows(a, rows, skip, base);
    round_weights<K>(rows, tiles, skip, c);
    products.mix(rows, tiles, skip, base);
  });
}

template <typename Products>
static void attend_prompt(const AttentionArgs& a, const AttentionUnit& unit, const AttentionUnit* next, float* scratch) {
  if (a.dtype == kKVInt8)
    attend_prompt_unit<Products, kKVInt8>(a, unit, next, scratch);
  else
    attend_prompt_unit<Products, kKVBf16>(a, unit, next, scratch);
}

}  // namespace AIO_ISA
}  // namespace aio
