// Rotary embedding of queries and keys, and the write of keys and values to the paged cache.
#pragma once
#include "kv_block.h"
#include "machine_lanes.h"

namespace aio {
namespace AIO_ISA {

AIO_INLINE void normalise_head(float* head, const float* w, int d, float eps) {
  vf squares = wide(0);
  for (int i = 0; i < d; i += kWide) squares = wide_fma(wide_load(head + i), wide_load(head + i), squares);
  const float inverse = 1.0f / sqrtf(wide_sum(squares) / float(d) + eps);
  for (int i = 0; i < d; i += kWide) wide_store(head + i, wide_load(head + i) * inverse * wide_load(w + i));
}

AIO_INLINE void rotate_head(float* head, const float* cos, const float* sin, int half) {
  int i = 0;
  for (; i + kWide <= half; i += kWide) {
    const vf a = wide_load(head + i), b = wide_load(head + i + half), c = wide_load(cos + i), s = wide_load(sin + i);
    wide_store(head + i, wide_fma(a, c, -(b * s)));
    wide_store(head + i + half, wide_fma(b, c, a * s));
  }
  for (; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

// Symmetric INT8 plus 128 of one token's head, one number per lane. The scale is rounded up to bfloat16 first, so that
// the largest number still fits; it costs 2 bytes instead of 4.
struct Quantizer {
  uint16_t scale = 0;
  float inverse = 0;

  AIO_MEMBER void fit(const float* x, int d) {
    vf peak = wide(0);
    for (int i = 0; i < d; i += kWide) {
      const vf v = wide_load(x + i);
      peak = larger(peak, larger(v, -v));
    }
    const float exact = wide_max(peak) / 127.0f;
    uint32_t bits;
    memcpy(&bits, &exact, 4);
    scale = uint16_t((bits + 0xffffu) >> 16);
    bits = uint32_t(scale) << 16;
    float rounded;
    memcpy(&rounded, &bits, 4);
    inverse = rounded > 0 ? 1.0f / rounded : 0.0f;
  }
  AIO_MEMBER vu operator()(vf v) const {
    const vf magic = wide(12582912.0f);  // 1.5 * 2^23: the sum's last bits are the nearest integer
    vi q = (vi)wide_fma(v, wide(inverse), magic) - 0x4b400000;
    q = q > 127 ? vi{} + 127 : q;
    q = q < -127 ? vi{} - 127 : q;
    return (vu)(q + 128);
  }
};

// rows[i][j] <-> rows[j][i] of kWide x kWide lanes: swaps blocks of half, a quarter, … of the side.
template <int Side>
AIO_INLINE void transpose(vu* rows) {
  vi upper{}, lower{};
  AIO_UNROLL_TILE
  for (int j = 0; j < kWide; ++j) {
    upper[j] = j & Side ? j - Side + kWide : j;
    lower[j] = j & Side ? j + kWide : j + Side;
  }
  AIO_UNROLL_TILE
  for (int i = 0; i < kWide; ++i) {
    if (i & Side) continue;
    const vu a = rows[i], b = rows[i + Side];
    rows[i] = __builtin_shuffle(a, b, upper);
    rows[i + Side] = __builtin_shuffle(a, b, lower);
  }
  if constexpr (Side > 1) transpose<Side / 2>(rows);
}

// Numbers of format K: each as the low bits of its lane, or packed as tightly as they lie in memory.
template <KVDtype K>
AIO_INLINE vu encoded(vf v, const Quantizer& quantizer) {
  return K == kKVFloat ? (vu)v : K == kKVBf16 ? wide_bf16(v) >> 16 : quantizer(v);
}
template <KVDtype K>
AIO_INLINE void store_packed(uint8_t* p, vu v) {
  if constexpr (K == kKVFloat) *reinterpret_cast<vu*>(p) = v;
  if constexpr (K == kKVBf16) *reinterpret_cast<vu16*>(p) = __builtin_convertvector(v, vu16);
  if constexpr (K == kKVInt8) *reinterpret_cast<vu8*>(p) = __builtin_convertvector(v, vu8);
}

// Only number `part` of each lane: a neighbouring token's may be written by another thread at the same time.
template <KVDtype K>
AIO_INLINE void store_part(uint8_t* p, int part, vu v) {
  constexpr int bytes = 4 / numbers_per_lane(K);
#if defined(AIO_AVX512)
  const __m512i lanes = _mm512_sll_epi32((__m512i)v, _mm_cvtsi32_si128(8 * bytes * part));
  if (K == kKVBf16)
    _mm512_mask_storeu_epi16(p, 0x55555555u << part, lanes);
  else
    _mm512_mask_storeu_epi8(p, uint64_t(0x1111111111111111u) << part, lanes);
#else
  for (int i = 0; i < kWide; ++i) memcpy(p + i * 4 + part * bytes, reinterpret_cast<const uint32_t*>(&v) + i, bytes);
#endif
}

// The keys of 16 tokens become one cache line per lane of the head; of fewer, single lanes.
template <KVDtype K>
AIO_INLINE void write_keys(const RopeArgs& a, const float* keys, int count, uint8_t* block, int at, int head) {
  constexpr int r = numbers_per_lane(K);
  const int d = a.head_dim;
  const KVBlock layout(K, d, a.block_size);
  uint32_t* out = reinterpret_cast<uint32_t*>(block + layout.keys(head)) + at;
  uint16_t* scales = reinterpret_cast<uint16_t*>(block + layout.scales(head)) + at;
  Quantizer quantizers[kLanes];
  if (K == kKVInt8)
    for (int t = 0; t < count; ++t) {
      quantizers[t].fit(keys + t * a.ld, d);
      scales[t] = quantizers[t].scale;
    }
  constexpr int step = kWide * r;  // dimensions that fill one register per token
  for (int i = 0; i < d; i += step) {
    uint32_t lanes[kLanes][kWide];
    const int dims = min_int(step, d - i);
    for (int t = 0; t < count; ++t)
      for (int c = 0; c < dims; c += kWide)
        store_packed<K>(reinterpret_cast<uint8_t*>(lanes[t]) + c * 4 / r,
                        encoded<K>(wide_load(keys + t * a.ld + i + c), quantizers[t]));
    uint32_t* rows = out + int64_t(i / r) * a.block_size;
    if (count == kLanes && dims == step) {
      for (int t = 0; t < kLanes; t += kWide) {
        vu square[kWide];
        AIO_UNROLL_TILE
        for (int j = 0; j < kWide; ++j) square[j] = wide_load(lanes[t + j]);
        transpose<kWide / 2>(square);
        AIO_UNROLL_TILE
        for (int j = 0; j < kWide; ++j) *reinterpret_cast<vu*>(rows + int64_t(j) * a.block_size + t) = square[j];
      }
    } else {
      for (int j = 0; j < dims / r; ++j)
        for (int t = 0; t < count; ++t) rows[int64_t(j) * a.block_size + t] = lanes[t][j];
    }
  }
}

template <KVDtype K>
AIO_INLINE void write_values(const RopeArgs& a, const float* values, int count, uint8_t* block, int at, int head) {
  constexpr int r = numbers_per_lane(K), bits = 32 / r;
  const int d = a.head_dim;
  const KVBlock layout(K, d, a.block_size);
  uint16_t* scales = reinterpret_cast<uint16_t*>(block + layout.scales(head)) + a.block_size + at;
  Quantizer quantizers[kLanes];
  if (K == kKVInt8)
    for (int t = 0; t < count; ++t) {
      quantizers[t].fit(values + t * a.ld, d);
      scales[t] = quantizers[t].scale;
    }
  for (int t = 0; t < count;) {
    uint8_t* row = block + layout.values(head) + int64_t((at + t) / r) * d * 4;
    const int part = (at + t) % r;
    if (part == 0 && t + r <= count) {
      for (int c = 0; c < d; c += kWide) {
        vu lanes = encoded<K>(wide_load(values + t * a.ld + c), quantizers[t]);
        AIO_UNROLL_TILE
        for (int k = 1; k < r; ++k)
          lanes |= encoded<K>(wide_load(values + (t + k) * a.ld + c), quantizers[t + k]) << (bits * k);
        *reinterpret_cast<vu*>(row + c * 4) = lanes;
      }
      t += r;
    } else {
      for (int c = 0; c < d; c += kWide)
        store_part<K>(row + c * 4, part, encoded<K>(wide_load(values + t * a.ld + c), quantizers[t]));
      ++t;
    }
  }
}

template <KVDtype K>
AIO_INLINE void write_tokens(const RopeArgs& a, int first, int last) {
  for (int t = first, count; t < last; t += count) {
    const int at = a.positions[t] % a.block_size;
    // Tokens of one sequence follow each other; those of 16 slots that share cache lines are written together.
    count = 1;
    while (t + count < last && (at + count) % kLanes && a.slots[t + count] == a.slots[t]) ++count;
    uint8_t* block = a.arena + a.slots[t] + a.layer_offset;
    const float* keys = a.qkv + t * a.ld + a.heads * a.head_dim;
    for (int h = 0; h < a.kv_heads; ++h) {
      write_keys<K>(a, keys + h * a.head_dim, count, block, at, h);
      write_values<K>(a, keys + (a.kv_heads + h) * a.head_dim, count, block, at, h);
    }
  }
}

static void rope_and_write(const RopeArgs& a, int first, int last) {
  const int d = a.head_dim, half = d / 2;
  for (int t = first; t < last; ++t) {
    float* row = a.qkv + t * a.ld;
    const float* cos = a.cos_sin + int64_t(a.positions[t]) * d;
    for (int h = 0; h < a.heads + a.kv_heads; ++h) {
      const float* norm = h < a.heads ? a.q_norm : a.k_norm;
      if (norm) normalise_head(row + h * d, norm, d, a.eps);
      rotate_head(row + h * d, cos, cos + half, half);
    }
  }
  switch (a.dtype) {
    case kKVFloat: return write_tokens<kKVFloat>(a, first, last);
    case kKVBf16: return write_tokens<kKVBf16>(a, first, last);
    case kKVInt8: return write_tokens<kKVInt8>(a, first, last);
  }
}

}  // namespace AIO_ISA
}  // namespace aio
