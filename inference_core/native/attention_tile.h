// The rows of one attention unit, and where 64 tokens' keys and values are.
#pragma once
#include "kv_block.h"
#include "machine_lanes.h"

namespace aio {
namespace AIO_ISA {

// Register tiles are functions of their own: many callers, one copy of each.
#define AIO_TILE static __attribute__((noinline))

constexpr int kGroups = kChunk / kLanes;                   // of 16 tokens; one group never crosses a block
constexpr int kTileRows = kWide == 16 ? 6 : 4;             // x kTileVectors accumulators stay in registers
constexpr int kTileVectors = kWide == 16 ? 4 : 2;
constexpr int kVectorsPerGroup = kLanes / kWide;
constexpr int kChunkVectors = kChunk / kWide;

// Calls body with n as a compile-time constant in [1, Most].
template <int N>
struct Const {
  static constexpr int value = N;
};
template <int Most, typename Body>
AIO_INLINE void with_constant(int n, const Body& body) {
  static_assert(Most <= 6, "add a case");
  switch (n) {
    case 1: body(Const<1>()); break;
    case 2: if constexpr (Most >= 2) body(Const<2>()); break;
    case 3: if constexpr (Most >= 3) body(Const<3>()); break;
    case 4: if constexpr (Most >= 4) body(Const<4>()); break;
    case 5: if constexpr (Most >= 5) body(Const<5>()); break;
    case 6: if constexpr (Most >= 6) body(Const<6>()); break;
  }
}

struct Quad;  // see attention_int8.h

// State of every row (query x head of the group) of a unit, in its thread's scratch.
struct Rows {
  int count, group, d;
  int first_position;  // of the first query
  float* q;            // [count, d], scaled so that weights are powers of two
  float* p;            // [count, kChunk], scores, then weights
  float* acc;          // [count, d], of the current partition
  float* peak;         // [count], largest score so far
  float* rescale;      // [count], of acc, by this chunk's new peak
  float* total;        // [count, kWide], sums of weights, lane by lane
  float* merged;       // [count, d], of the partitions so far
  float* merged_peak;
  float* merged_total;
  float* keys;         // [d, kChunk], converted keys
  float* values;       // [kChunk, d]
  // INT8 only: queries and weights as whole numbers, what one is worth, and 128 times their sum.
  Quad* quads;         // [count, d / 4]
  Quad* p_quads;       // [count, kChunk / 4]
  float *q_unit, *p_unit;               // [count]
  int32_t *q_correction, *p_correction;  // [count]

  AIO_MEMBER int position(int row) const { return first_position + row / group; }
};

// 64 tokens of one KV head from a multiple of 64, by groups of 16. Groups past the context point to its last one.
struct Chunk {
  const uint8_t* keys[kGroups];    // lane of the group's first token in the first row of the keys
  const uint8_t* values[kGroups];  // row of the group's first tokens
  const uint16_t* key_scales[kGroups];  // INT8 only
  const uint16_t* value_scales[kGroups];
  int64_t key_stride, value_stride;  // bytes from row to row
  int lane_rows;                   // rows of keys; as many values' rows of 64 bytes make one group
};

template <KVDtype K>
AIO_INLINE Chunk chunk_of(const AttentionArgs& a, const int64_t* table, int kv_head, int base, int context) {
  const KVBlock layout(K, a.head_dim, a.block_size);
  constexpr int r = numbers_per_lane(K);
  Chunk c;
  c.key_stride = int64_t(a.block_size) * 4;
  c.value_stride = int64_t(a.head_dim) * 4;
  c.lane_rows = a.head_dim / r;
  for (int g = 0; g < kGroups; ++g) {
    const int token = min_int(base + g * kLanes, (context - 1) / kLanes * kLanes), at = token % a.block_size;
    const uint8_t* block = a.arena + table[token / a.block_size] + a.layer_offset;
    c.keys[g] = block + layout.keys(kv_head) + int64_t(at) * 4;
    c.values[g] = block + layout.values(kv_head) + at / r * c.value_stride;
    c.key_scales[g] = reinterpret_cast<const uint16_t*>(block + layout.scales(kv_head)) + at;
    c.value_scales[g] = c.key_scales[g] + a.block_size;
  }
  return c;
}

// One cache line of every matrix of a chunk that comes later.
AIO_INLINE void fetch_ahead(const Chunk& c, int row) {
  AIO_UNROLL_TILE
  for (int g = 0; g < kGroups; ++g) {
    __builtin_prefetch(c.keys[g] + row * c.key_stride);
    __builtin_prefetch(c.values[g] + row * int64_t(64));
  }
}

}  // namespace AIO_ISA
}  // namespace aio
