// Rotary embedding with the write to the paged cache, and attention over its blocks.
#pragma once
#include "lanes.h"

namespace aio {
namespace AIO_ISA {

AIO_INLINE void normalise_head(float* head, const float* w, int d, float eps) {
  float total = 0;
  for (int i = 0; i < d; ++i) total += head[i] * head[i];
  const float inverse = 1.0f / sqrtf(total / float(d) + eps);
  for (int i = 0; i < d; ++i) head[i] = head[i] * inverse * w[i];
}

AIO_INLINE void rotate_head(float* head, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

// Within a block and layer: keys of all KV heads as [head, head_dim, block_size] (transposed, so that 16 tokens' scores
// are one vector), then values as [head, block_size, head_dim].
static void rope_and_write(const RopeArgs& a, int first, int last) {
  const int d = a.head_dim, half = d / 2, item = a.bf16 ? 2 : 4;
  const int64_t head_bytes = int64_t(d) * a.block_size * item;
  for (int t = first; t < last; ++t) {
    float* row = a.qkv + t * a.ld;
    const float* cos = a.cos_sin + int64_t(a.positions[t]) * d;
    const float* sin = cos + half;
    for (int h = 0; h < a.heads; ++h) {
      if (a.q_norm) normalise_head(row + h * d, a.q_norm, d, a.eps);
      rotate_head(row + h * d, cos, sin, half);
    }
    const int at = a.positions[t] % a.block_size;
    uint8_t* block = a.arena + a.slots[t] + a.layer_offset;
    for (int h = 0; h < a.kv_heads; ++h) {
      float* k = row + (a.heads + h) * d;
      const float* v = row + (a.heads + a.kv_heads + h) * d;
      if (a.k_norm) normalise_head(k, a.k_norm, d, a.eps);
      rotate_head(k, cos, sin, half);
      uint8_t* keys = block + h * head_bytes;
      uint8_t* values = block + (a.kv_heads + h) * head_bytes + int64_t(at) * d * item;
      if (a.bf16) {
        uint16_t* kd = reinterpret_cast<uint16_t*>(keys) + at;
        uint16_t* vd = reinterpret_cast<uint16_t*>(values);
        for (int i = 0; i < d; ++i) kd[int64_t(i) * a.block_size] = to_bf16(k[i]);
        for (int i = 0; i < d; ++i) vd[i] = to_bf16(v[i]);
      } else {
        float* kd = reinterpret_cast<float*>(keys) + at;
        float* vd = reinterpret_cast<float*>(values);
        for (int i = 0; i < d; ++i) kd[int64_t(i) * a.block_size] = k[i];
        for (int i = 0; i < d; ++i) vd[i] = v[i];
      }
    }
  }
}

// Scratch of one attention unit, all rows (query x head of the group) of its tile.
struct Tile {
  float* keys;    // [head_dim, 16] of the current 16 tokens
  float* values;  // [16, head_dim]
  float* q;       // [rows, head_dim], scaled
  float* acc;     // [rows, head_dim]
  float* p;       // [rows, 16]
  float* peak;    // [rows]
  float* total;   // [rows]
};

// 16 tokens of one KV head: where their keys and values are, converted to float32 or still as the arena holds them.
template <bool Bf16>
struct Tokens {
  const uint8_t* keys;    // [head_dim, stride]
  const uint8_t* values;  // [16, head_dim]
  int stride;

  AIO_MEMBER f16x key(int i) const { return at(keys, int64_t(i) * stride); }
  AIO_MEMBER f16x value(int i, int d, int column) const { return at(values, int64_t(i) * d + column); }
  AIO_MEMBER static f16x at(const uint8_t* p, int64_t index) {
    return Bf16 ? from_bf16(reinterpret_cast<const uint16_t*>(p) + index) : load(reinterpret_cast<const float*>(p) + index);
  }
};

template <int Rows, bool Bf16>
AIO_INLINE void scores(const Tile& t, const Tokens<Bf16>& tokens, int row, int d) {
  f16x even[Rows], odd[Rows];
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) even[r] = odd[r] = splat(0);
  const float* q = t.q + int64_t(row) * d;
  for (int i = 0; i < d; i += 2) {
    const f16x k0 = tokens.key(i), k1 = tokens.key(i + 1);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      even[r] = fma(k0, splat(q[r * d + i]), even[r]);
      odd[r] = fma(k1, splat(q[r * d + i + 1]), odd[r]);
    }
  }
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) store(t.p + (row + r) * kLanes, even[r] + odd[r]);
}

// Two columns of 16 at a time: twice as many independent sums as rows.
template <int Rows, bool Bf16>
AIO_INLINE void accumulate(const Tile& t, const Tokens<Bf16>& tokens, int row, int d, int valid) {
  int c = 0;
  for (; c + 2 * kLanes <= d; c += 2 * kLanes) {
    f16x low[Rows], high[Rows];
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      low[r] = load(t.acc + int64_t(row + r) * d + c);
      high[r] = load(t.acc + int64_t(row + r) * d + c + kLanes);
    }
    for (int i = 0; i < valid; ++i) {
      const f16x v0 = tokens.value(i, d, c), v1 = tokens.value(i, d, c + kLanes);
      AIO_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const f16x p = splat(t.p[(row + r) * kLanes + i]);
        low[r] = fma(v0, p, low[r]);
        high[r] = fma(v1, p, high[r]);
      }
    }
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      store(t.acc + int64_t(row + r) * d + c, low[r]);
      store(t.acc + int64_t(row + r) * d + c + kLanes, high[r]);
    }
  }
  for (; c < d; c += kLanes)
    for (int r = 0; r < Rows; ++r) {
      f16x acc = load(t.acc + int64_t(row + r) * d + c);
      for (int i = 0; i < valid; ++i) acc = fma(tokens.value(i, d, c), splat(t.p[(row + r) * kLanes + i]), acc);
      store(t.acc + int64_t(row + r) * d + c, acc);
    }
}

// Online softmax (Milakov and Gimelshein 2018) of one row over 16 tokens from `base`; keeps tokens in (low, high].
AIO_INLINE void soften(const Tile& t, int row, int d, int base, int low, int high) {
  float* p = t.p + row * kLanes;
  const i16x lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const i16x token = lane + base;
  const f16x s = ((token <= high) & (token > low)) ? load(p) : splat(-INFINITY);
  const float peak = t.peak[row], best = lanes_max(s), next = peak > best ? peak : best;
  if (next == -INFINITY) {
    store(p, splat(0));
    return;
  }
  f16x weight = exp_lanes(s - next);
  weight = s > -INFINITY ? weight : splat(0);
  store(p, weight);
  if (next != peak) {
    const float alpha = peak == -INFINITY ? 0.0f : exp_lanes(splat(peak - next))[0];
    float* acc = t.acc + int64_t(row) * d;
    for (int c = 0; c < d; c += kLanes) store(acc + c, load(acc + c) * alpha);
    t.total[row] *= alpha;
    t.peak[row] = next;
  }
  t.total[row] += lanes_sum(weight);
}

template <bool Bf16>
AIO_INLINE Tokens<Bf16> tokens_of(const AttentionArgs& a, int base, const int64_t* table, int kv_head) {
  const int d = a.head_dim, item = Bf16 ? 2 : 4, at = base % a.block_size;
  const int64_t head_bytes = int64_t(d) * a.block_size * item;
  const uint8_t* block = a.arena + table[base / a.block_size] + a.layer_offset;
  return {block + kv_head * head_bytes + int64_t(at) * item,
          block + (a.kv_heads + kv_head) * head_bytes + int64_t(at) * d * item, a.block_size};
}

// Many rows share the conversion to float32: done once, into the tile's scratch.
template <bool Bf16>
AIO_INLINE Tokens<false> converted(const Tile& t, const Tokens<Bf16>& tokens, int d, int valid) {
  for (int i = 0; i < d; ++i) store(t.keys + i * kLanes, tokens.key(i));
  for (int i = 0; i < valid; ++i)
    for (int c = 0; c < d; c += kLanes) store(t.values + i * d + c, tokens.value(i, d, c));
  return {reinterpret_cast<const uint8_t*>(t.keys), reinterpret_cast<const uint8_t*>(t.values), kLanes};
}

// Calls body<Rows>(row) for rows [first, last) in pieces of eight and a rest.
#define AIO_FOR_ROWS(first, last, CALL)                \
  do {                                                 \
    int row = first;                                   \
    for (; row + 8 <= last; row += 8) CALL(8);         \
    switch (last - row) {                              \
      case 7: CALL(7); break;                          \
      case 6: CALL(6); break;                          \
      case 5: CALL(5); break;                          \
      case 4: CALL(4); break;                          \
      case 3: CALL(3); break;                          \
      case 2: CALL(2); break;                          \
      case 1: CALL(1); break;                          \
    }                                                  \
  } while (0)

template <bool Bf16>
AIO_INLINE void score_rows(const Tile& t, const Tokens<Bf16>& tokens, int first, int last, int d) {
#define AIO_SCORES(Rows) scores<Rows, Bf16>(t, tokens, row, d)
  AIO_FOR_ROWS(first, last, AIO_SCORES);
#undef AIO_SCORES
}

template <bool Bf16>
AIO_INLINE void accumulate_rows(const Tile& t, const Tokens<Bf16>& tokens, int first, int last, int d, int valid) {
#define AIO_ACCUMULATE(Rows) accumulate<Rows, Bf16>(t, tokens, row, d, valid)
  AIO_FOR_ROWS(first, last, AIO_ACCUMULATE);
#undef AIO_ACCUMULATE
}

// Rows of one tile against the 16 tokens from `base`.
template <bool Bf16>
AIO_INLINE void attend_tokens(const AttentionArgs& a, const Tile& t, const Tokens<Bf16>& tokens, int rows, int group,
                              int first_position, int base, int valid) {
  const int d = a.head_dim;
  // Rows of earlier queries see nothing of these tokens: leave them as they are.
  const int skip = base > first_position ? (base - first_position) * group : 0;
  score_rows(t, tokens, skip, rows, d);
  for (int row = skip; row < rows; ++row) {
    const int position = first_position + row / group;
    soften(t, row, d, base, a.window ? position - a.window : -1, position);
  }
  accumulate_rows(t, tokens, skip, rows, d, valid);
}

template <bool Bf16>
AIO_INLINE void attend_unit(const AttentionArgs& a, const AttentionUnit& unit, float* scratch) {
  const int d = a.head_dim, group = a.heads / a.kv_heads, rows = (unit.last - unit.first) * group;
  Tile t;
  t.keys = scratch;
  t.values = t.keys + kLanes * d;
  t.q = t.values + kLanes * d;
  t.acc = t.q + int64_t(rows) * d;
  t.p = t.acc + int64_t(rows) * d;
  t.peak = t.p + rows * kLanes;
  t.total = t.peak + rows;

  const int query_start = a.query_start[unit.sequence];
  const int queries = a.query_start[unit.sequence + 1] - query_start;
  const int offset = a.context_len[unit.sequence] - queries;  // position of the sequence's first query
  for (int r = 0; r < rows; ++r) {
    const float* q = a.q + (query_start + unit.first + r / group) * a.ldq + (unit.kv_head * group + r % group) * d;
    for (int c = 0; c < d; c += kLanes) {
      store(t.q + int64_t(r) * d + c, load(q + c) * a.scale);
      store(t.acc + int64_t(r) * d + c, splat(0));
    }
    t.peak[r] = -INFINITY;
    t.total[r] = 0;
  }

  const int first_position = offset + unit.first, last_position = offset + unit.last - 1;
  const int begin = a.window ? max_int(0, first_position - a.window + 1) / kLanes * kLanes : 0;
  const int64_t* table = a.block_offsets + a.table_start[unit.sequence];
  for (int base = begin; base <= last_position; base += kLanes) {
    const Tokens<Bf16> tokens = tokens_of<Bf16>(a, base, table, unit.kv_head);
    // Values past the context hold whatever was there before: their weight is 0, but 0 * NaN must not happen.
    const int valid = min_int(kLanes, last_position + 1 - base);
    if (rows <= 8)
      attend_tokens(a, t, tokens, rows, group, first_position, base, valid);
    else
      attend_tokens(a, t, converted(t, tokens, d, valid), rows, group, first_position, base, valid);
  }

  for (int r = 0; r < rows; ++r) {
    float* out = a.out + (query_start + unit.first + r / group) * a.ldo + (unit.kv_head * group + r % group) * d;
    const float inverse = 1.0f / t.total[r];
    for (int c = 0; c < d; c += kLanes) store(out + c, load(t.acc + int64_t(r) * d + c) * inverse);
  }
}

static void attend(const AttentionArgs& a, const AttentionUnit& unit, float* scratch) {
  if (a.bf16)
    attend_unit<true>(a, unit, scratch);
  else
    attend_unit<false>(a, unit, scratch);
}

}  // namespace AIO_ISA
}  // namespace aio
