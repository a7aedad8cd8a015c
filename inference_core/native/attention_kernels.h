// Attention of one unit over the blocks of the paged cache.
//
// The context is cut into partitions of 256 tokens and those into chunks of 64, both from the sequence's first token. A
// chunk is one step of the online softmax (Milakov and Gimelshein 2018); partitions are independent and merged in order
// (flash-decoding, Dao et al. 2023). A row's arithmetic depends only on its position: not on its tile, on other rows, on
// how a prompt was split into steps, nor on how threads share the partitions.
#pragma once
#include "attention_float.h"
#include "attention_int8.h"

namespace aio {
namespace AIO_ISA {

constexpr int kDirectRows = 2 * kTileRows;  // up to here, converting in registers beats converting once into scratch

// One step of the online softmax for R rows that see every token of the chunk; side by side, since each is a chain.
template <int R>
AIO_INLINE void soften_whole(const Rows& rows, int row) {
  vf best[R];
  float next[R], alpha[R];
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r) {
    const float* p = rows.p + (row + r) * kChunk;
    best[r] = wide_load(p);
    AIO_UNROLL_TILE
    for (int v = 1; v < kChunkVectors; ++v) best[r] = larger(best[r], wide_load(p + v * kWide));
  }
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r) {
    const float peak = rows.peak[row + r], here = wide_max(best[r]);
    next[r] = peak > here ? peak : here;
    alpha[r] = exp2_wide(wide(peak - next[r]))[0];
  }
  vf sum[R];
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r) sum[r] = wide(0);
  for (int v = 0; v < kChunkVectors; ++v)
    AIO_UNROLL_TILE
    for (int r = 0; r < R; ++r) {
      float* p = rows.p + (row + r) * kChunk + v * kWide;
      const vf weight = exp2_wide(wide_load(p) - wide(next[r]));
      wide_store(p, weight);
      sum[r] = sum[r] + weight;
    }
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r) {
    float* total = rows.total + (row + r) * kWide;
    wide_store(total, wide_fma(wide_load(total), wide(alpha[r]), sum[r]));
    rows.peak[row + r] = next[r];
    rows.rescale[row + r] = alpha[r];
  }
}

// The same for one row that sees the chunk's tokens in (low, high] only; the others' weights are 0.
AIO_INLINE void soften_part(const Rows& rows, int row, int low, int high) {
  float* p = rows.p + row * kChunk;
  const int vectors = min_int(kChunkVectors, high / kWide + 1);
  vf best = wide(-INFINITY);
  for (int v = 0; v < vectors; ++v) {
    const vi token = lane_numbers() + v * kWide;
    const vf s = ((token <= high) & (token > low)) ? wide_load(p + v * kWide) : wide(-INFINITY);
    wide_store(p + v * kWide, s);
    best = larger(best, s);
  }
  const float peak = rows.peak[row], here = wide_max(best), next = peak > here ? peak : here;
  if (next == -INFINITY) {
    for (int v = 0; v < kChunkVectors; ++v) wide_store(p + v * kWide, wide(0));
    rows.rescale[row] = 1;
    return;
  }
  const float alpha = exp2_wide(wide(peak - next))[0];
  vf sum = wide(0);
  for (int v = 0; v < vectors; ++v) {
    const vf s = wide_load(p + v * kWide);
    const vf weight = s > wide(-INFINITY) ? exp2_wide(s - wide(next)) : wide(0);
    wide_store(p + v * kWide, weight);
    sum = sum + weight;
  }
  for (int v = vectors; v < kChunkVectors; ++v) wide_store(p + v * kWide, wide(0));
  float* total = rows.total + row * kWide;
  wide_store(total, wide_fma(wide_load(total), wide(alpha), sum));
  rows.peak[row] = next;
  rows.rescale[row] = alpha;
}

// Scores s, which are logits times log2(e), become those of cap * tanh(logit / cap), with tanh by 2^(-2 |x| log2(e)).
// Scores of slots that hold no token may be anything; they are masked afterwards.
AIO_INLINE void cap_scores(const Rows& rows, int first, float softcap) {
  constexpr float log2e = 1.44269504088896341f;
  const vf cap = wide(softcap * log2e), scale = wide(-2.0f / softcap);
  for (int row = first; row < rows.count; ++row)
    for (int v = 0; v < kChunkVectors; ++v) {
      float* p = rows.p + row * kChunk + v * kWide;
      const vf s = wide_load(p), shrunk = exp2_wide(larger(s, -s) * scale);
      const vf size = cap * (wide(1.0f) - shrunk) / (wide(1.0f) + shrunk);
      wide_store(p, s < wide(0) ? -size : size);
    }
}

constexpr int kSoftRows = 3;  // side by side

AIO_INLINE void soften_rows(const AttentionArgs& a, const Rows& rows, int first, int base) {
  if (a.softcap) cap_scores(rows, first, a.softcap);
  const auto high = [&](int row) { return rows.position(row) - base; };
  const auto low = [&](int row) { return a.window ? high(row) - a.window : -1; };
  for (int row = first; row < rows.count;) {
    const int r = min_int(kSoftRows, rows.count - row);
    // Positions rise from row to row: the first sees the fewest late tokens, the last the fewest early ones.
    if (high(row) >= kChunk - 1 && low(row + r - 1) < 0) {
      with_constant<kSoftRows>(r, [&](auto n) AIO_LAMBDA { soften_whole<n.value>(rows, row); });
      row += r;
    } else {
      soften_part(rows, row, low(row), high(row));
      ++row;
    }
  }
}

// Calls body(row, Const<R>) for rows [first, last) in register tiles.
template <int Most, typename Body>
AIO_INLINE void for_tiles(int first, int last, const Body& body) {
  for (int row = first; row < last; row += Most)
    with_constant<Most>(min_int(Most, last - row), [&](auto r) AIO_LAMBDA { body(row, r); });
}

// All rows against the chunk from `base`: a tile only up to its last row's position.
template <KVDtype K, bool Ahead>
AIO_INLINE void attend_chunk(const AttentionArgs& a, const Rows& rows, const Chunk& c, int base, const Chunk* ahead) {
  // Rows of earlier queries see nothing of these tokens: leave them as they are.
  const int skip = base > rows.first_position ? (base - rows.first_position) * rows.group : 0;
  const auto visible = [&](int row, int r) { return min_int(kChunk, rows.position(row + r - 1) - base + 1); };
  constexpr bool int8 = K == kKVInt8;
  constexpr int most = int8 ? kInt8Rows : kTileRows;
  if (int8) fetch_scales_ahead(*ahead);
  for_tiles<most>(skip, rows.count, [&](int row, auto r) AIO_LAMBDA {
    const int tokens = (visible(row, r.value) + kLanes - 1) / kLanes * kLanes;
    if constexpr (int8)
      score_rows_int8<r.value>(rows, row, c, tokens, row == skip ? ahead : nullptr);
    else
      score_rows<r.value, K, Ahead>(rows, row, c, tokens, ahead);
  });
  soften_rows(a, rows, skip, base);
  if (int8)
    for (int row = skip; row < rows.count; ++row) weigh_int8(rows, row, c, visible(row, 1));
  for_tiles<most>(skip, rows.count, [&](int row, auto r) AIO_LAMBDA {
    if constexpr (int8)
      mix_rows_int8<r.value>(rows, row, c, visible(row, r.value));
    else
      mix_rows<r.value, K>(rows, row, c, visible(row, r.value));
  });
}

// Merge another partition into acc, peak and total, in this order.
AIO_INLINE void merge_row(float* acc, float* peak, float* total, const float* other, float other_peak, float other_total,
                          int d) {
  if (other_peak == -INFINITY) return;
  const float next = *peak > other_peak ? *peak : other_peak;
  const float mine = exp2_wide(wide(*peak - next))[0], theirs = exp2_wide(wide(other_peak - next))[0];
  for (int c = 0; c < d; c += kWide) {
    const vf kept = wide_load(acc + c) * mine;
    wide_store(acc + c, wide_fma(wide_load(other + c), wide(theirs), kept));
  }
  *total = wide_fma(wide(other_total), wide(theirs), wide(*total * mine))[0];
  *peak = next;
}

// The score of a head's sink joins the sum of weights last, by the row's peak: no chunk and no partition knows of it.
AIO_INLINE void write_row(const AttentionArgs& a, const AttentionUnit& unit, int row, const float* acc, float peak,
                          float total) {
  const int group = a.heads / a.kv_heads, d = a.head_dim;
  const int token = a.query_start[unit.sequence] + unit.first + row / group;
  const int head = unit.kv_head * group + row % group;
  float* out = a.out + token * a.ldo + head * d;
  if (a.sinks) total += exp2f(a.sinks[head] * 1.44269504088896341f - peak);  // infinite: all weight is the sink's
  const float inverse = 1.0f / total;
  for (int c = 0; c < d; c += kWide) wide_store(out + c, wide_load(acc + c) * inverse);
}

AIO_INLINE int oldest_token(const AttentionArgs& a, int position) {
  return a.window ? max_int(0, position - a.window + 1) : 0;
}

// The result of one partition lies as accumulators [rows, d], peaks [rows], totals [rows].
AIO_INLINE void merge_partials(const AttentionArgs& a, const AttentionUnit& unit, const Rows& rows, int context) {
  const int d = rows.d, count = rows.count;
  const int begin = oldest_token(a, rows.first_position) / kPartition, end = (context - 1) / kPartition + 1;
  const int64_t each = int64_t(count) * (d + 2);
  float* first = a.partials + unit.partial + begin * each;
  for (int row = 0; row < count; ++row) {
    float *acc = first + int64_t(row) * d, *peak = first + int64_t(count) * d + row, *total = peak + count;
    for (int part = begin + 1; part < end; ++part) {
      const float* other = a.partials + unit.partial + part * each;
      const float* ends = other + int64_t(count) * d + row;
      merge_row(acc, peak, total, other + int64_t(row) * d, ends[0], ends[count], d);
    }
    write_row(a, unit, row, acc, *peak, *total);
  }
}

AIO_INLINE Rows rows_of(const AttentionArgs& a, const AttentionUnit& unit, float* scratch) {
  Rows rows;
  rows.group = a.heads / a.kv_heads;
  rows.d = a.head_dim;
  rows.count = (unit.last - unit.first) * rows.group;
  const int64_t count = rows.count, d = rows.d;
  const int query_start = a.query_start[unit.sequence];
  const int queries = a.query_start[unit.sequence + 1] - query_start;
  rows.first_position = a.context_len[unit.sequence] - queries + unit.first;
  float* free = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t(63));
  const auto take = [&](int64_t floats) {
    float* taken = free;
    free += (floats + 15) / 16 * 16;
    return taken;
  };
  rows.keys = take(kChunk * d);
  rows.values = take(kChunk * d);
  rows.q = take(count * d);
  rows.p = take(count * kChunk);
  rows.acc = take(count * d);
  rows.total = take(count * kWide);
  rows.peak = take(count);
  rows.rescale = take(count);
  rows.merged = take(count * d);
  rows.merged_peak = take(count);
  rows.merged_total = take(count);
  rows.quads = reinterpret_cast<Quad*>(take(count * (d + 16) / 2));  // room for bfloat16 in whole tiles of 32, too
  rows.p_quads = reinterpret_cast<Quad*>(take(count * kChunk / 2));
  rows.q_unit = take(count);
  rows.p_unit = take(count);
  rows.q_correction = reinterpret_cast<int32_t*>(take(count));
  rows.p_correction = reinterpret_cast<int32_t*>(take(count));
  const float scale = a.scale * 1.44269504088896341f;  // e^x = 2^(x log2 e)
  for (int row = 0; row < rows.count; ++row) {
    const float* q = a.q + (query_start + unit.first + row / rows.group) * a.ldq +
                     (unit.kv_head * rows.group + row % rows.group) * d;
    for (int c = 0; c < d; c += kWide) wide_store(rows.q + row * d + c, wide_load(q + c) * scale);
    if (a.dtype == kKVInt8 && !unit.prompt)
      rows.q_unit[row] = to_quads(rows.q + row * d, a.head_dim, rows.quads + row * (d / 4), rows.q_correction + row);
  }
  return rows;
}

AIO_INLINE void begin_partition(const Rows& rows) {
  for (int64_t i = 0; i < int64_t(rows.count) * rows.d; i += kWide) wide_store(rows.acc + i, wide(0));
  for (int row = 0; row < rows.count; ++row) {
    rows.peak[row] = -INFINITY;
    wide_store(rows.total + row * kWide, wide(0));
  }
}

AIO_INLINE void end_partition(const AttentionArgs& a, const AttentionUnit& unit, const Rows& rows, int part) {
  const int d = rows.d, count = rows.count;
  float *acc = rows.merged, *peak = rows.merged_peak, *total = rows.merged_total;
  if (unit.split >= 0) {
    acc = a.partials + unit.partial + part * (int64_t(count) * (d + 2));
    peak = acc + int64_t(count) * d;
    total = peak + count;
  }
  const bool copy = unit.split >= 0 || part == unit.begin;
  for (int row = 0; row < count; ++row) {
    const float* own = rows.acc + int64_t(row) * d;
    const float own_total = wide_sum(wide_load(rows.total + row * kWide));
    float* kept = acc + int64_t(row) * d;
    if (!copy) {
      merge_row(kept, peak + row, total + row, own, rows.peak[row], own_total, d);
      continue;
    }
    for (int c = 0; c < d; c += kWide) wide_store(kept + c, wide_load(own + c));
    peak[row] = rows.peak[row];
    total[row] = own_total;
  }
}

// First token of a unit, down to a whole chunk.
AIO_INLINE int first_token(const AttentionArgs& a, const AttentionUnit& unit, int first_position) {
  return max_int(unit.begin * kPartition, oldest_token(a, first_position) / kChunk * kChunk);
}

template <KVDtype K>
AIO_INLINE Chunk first_chunk(const AttentionArgs& a, const AttentionUnit& unit) {
  const int queries = a.query_start[unit.sequence + 1] - a.query_start[unit.sequence];
  const int offset = a.context_len[unit.sequence] - queries;
  return chunk_of<K>(a, a.block_offsets + a.table_start[unit.sequence], unit.kv_head,
                     first_token(a, unit, offset + unit.first), offset + unit.last);
}

// Calls attend_one(chunk, base, context, chunk to fetch ahead) for every chunk of a unit, and merges its partitions.
template <KVDtype K, typename AttendOne>
AIO_INLINE void for_chunks(const AttentionArgs& a, const AttentionUnit& unit, const AttentionUnit* next, const Rows& rows,
                           const AttendOne& attend_one) {
  const int64_t* table = a.block_offsets + a.table_start[unit.sequence];
  const int context = rows.first_position + unit.last - unit.first;  // of the last query
  const int end = min_int(unit.end * kPartition, context);
  int base = first_token(a, unit, rows.first_position);
  Chunk chunk = chunk_of<K>(a, table, unit.kv_head, base, context);
  for (; base < end; base += kChunk) {
    if (base % kPartition == 0 || base == first_token(a, unit, rows.first_position)) begin_partition(rows);
    Chunk ahead = chunk;
    if (base + kChunk < end)
      ahead = chunk_of<K>(a, table, unit.kv_head, base + kChunk, context);
    else if (next)
      ahead = first_chunk<K>(a, *next);
    attend_one(chunk, base, context, ahead);
    if ((base + kChunk) % kPartition == 0 || base + kChunk >= end) end_partition(a, unit, rows, base / kPartition);
    chunk = ahead;
  }
  if (unit.split < 0) {
    for (int row = 0; row < rows.count; ++row)
      write_row(a, unit, row, rows.merged + int64_t(row) * rows.d, rows.merged_peak[row], rows.merged_total[row]);
  } else if (a.unfinished[unit.split].fetch_sub(1, std::memory_order_acq_rel) == 1) {
    // Ready for the next layer, which begins after a barrier.
    a.unfinished[unit.split].store(unit.units, std::memory_order_relaxed);
    merge_partials(a, unit, rows, context);
  }
}

template <KVDtype K>
AIO_INLINE void attend_unit(const AttentionArgs& a, const AttentionUnit& unit, const AttentionUnit* next, float* scratch) {
  const Rows rows = rows_of(a, unit, scratch);
  const bool direct = K == kKVInt8 || rows.count <= kDirectRows;
  for_chunks<K>(a, unit, next, rows, [&](const Chunk& chunk, int base, int context, const Chunk& ahead) AIO_LAMBDA {
    if (direct) {
      attend_chunk<K, true>(a, rows, chunk, base, &ahead);
    } else if constexpr (K != kKVInt8) {
      const int tokens = min_int(kChunk, (context - base + kLanes - 1) / kLanes * kLanes);
      attend_chunk<kKVFloat, false>(a, rows, converted<K>(rows, chunk, tokens, ahead), base, &ahead);
    }
  });
}

static void attend(const AttentionArgs& a, const AttentionUnit& unit, const AttentionUnit* next, float* scratch) {
  switch (a.dtype) {
    case kKVFloat: return attend_unit<kKVFloat>(a, unit, next, scratch);
    case kKVBf16: return attend_unit<kKVBf16>(a, unit, next, scratch);
    case kKVInt8: return attend_unit<kKVInt8>(a, unit, next, scratch);
  }
}

}  // namespace AIO_ISA
}  // namespace aio
