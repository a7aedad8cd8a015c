// Scores and weighted sums of INT8 keys and values in integers: exact, so equal in every tile and instruction set.
//
// Queries and weights are rounded to 16-bit integers (|x| <= 127 * 256), finer than the cache's 8 bits; their products
// with the cache's bytes are summed in 32 bits and scaled to float32 once per chunk.
#pragma once
#include "attention_tile.h"

namespace aio {
namespace AIO_ISA {

constexpr float kWhole = 127.0f * 256.0f;
#if defined(AIO_AVX512) || defined(AIO_DOTPROD)
constexpr bool kSplitsBytes = true;  // the dot products take bytes: high and low ones are summed apart
#else
constexpr bool kSplitsBytes = false;
#endif
constexpr int kInt8Rows = kWide == 16 ? 3 : 2;

// Four whole numbers as they are multiplied by the four bytes of a lane.
struct Quad {
  int32_t first, second;
};

// Numbers x[4] of 16 bits: their high and low bytes, or, without dot products, in the pairs that are multiplied together.
AIO_INLINE Quad quad_of(const int32_t* x) {
  Quad quad;
#if defined(AIO_AVX512) || defined(AIO_DOTPROD)
  int8_t high[4], low[4];
  for (int i = 0; i < 4; ++i) {
    high[i] = int8_t((x[i] + 128) >> 8);
    low[i] = int8_t(x[i] - high[i] * 256);
  }
  memcpy(&quad.first, high, 4);
  memcpy(&quad.second, low, 4);
#else
  const int16_t even[2] = {int16_t(x[0]), int16_t(x[2])}, odd[2] = {int16_t(x[1]), int16_t(x[3])};
  memcpy(&quad.first, even, 4);
  memcpy(&quad.second, odd, 4);
#endif
  return quad;
}

// Adds the four bytes of each lane, as stored (plus 128), times a quad. With dot products the high and the low bytes' products
// are summed apart; elsewhere `high` holds the whole sum. (Two vectors, no struct: an array of structs would live in memory.)
AIO_INLINE void add_products(vi& high, vi& low, vu bytes, const Quad& x) {
#if defined(AIO_AVX512)
  high = (vi)_mm512_dpbusd_epi32((__m512i)high, (__m512i)bytes, _mm512_set1_epi32(x.first));
  low = (vi)_mm512_dpbusd_epi32((__m512i)low, (__m512i)bytes, _mm512_set1_epi32(x.second));
#elif defined(AIO_AVX2)
  const __m256i even = _mm256_and_si256((__m256i)bytes, _mm256_set1_epi16(255));
  const __m256i odd = _mm256_srli_epi16((__m256i)bytes, 8);
  const __m256i sum = _mm256_add_epi32((__m256i)high, _mm256_madd_epi16(even, _mm256_set1_epi32(x.first)));
  high = (vi)_mm256_add_epi32(sum, _mm256_madd_epi16(odd, _mm256_set1_epi32(x.second)));
#elif defined(AIO_DOTPROD)
  const uint8x16_t codes = octet_codes((uint8x16_t)bytes);
  high = (vi)dot((int32x4_t)high, codes, vreinterpretq_s8_s32(vdupq_n_s32(x.first)));
  low = (vi)dot((int32x4_t)low, codes, vreinterpretq_s8_s32(vdupq_n_s32(x.second)));
#else
  const vi b = (vi)bytes;
  high += (b & 255) * int32_t(int16_t(x.first)) + ((b >> 16) & 255) * (x.first >> 16);
  high += ((b >> 8) & 255) * int32_t(int16_t(x.second)) + (vi)((vu)b >> 24) * (x.second >> 16);
#endif
}
AIO_INLINE vi total(vi high, vi low) { return kSplitsBytes ? (high << 8) + low : high; }

// x[count] (a multiple of 4, count / kWide vectors) as whole numbers; returns what one of them is worth. `correction`
// becomes kOctetZero times their sum, by which the bytes that are multiplied make every product's sum too large.
AIO_INLINE float to_quads(const float* x, int count, Quad* quads, int32_t* correction) {
  vf peak = wide(0);
  for (int i = 0; i < count; i += kWide) peak = larger(peak, larger(wide_load(x + i), -wide_load(x + i)));
  const float largest = wide_max(peak), inverse = largest > 0 ? kWhole / largest : 0.0f;
  vi all{};
  for (int i = 0; i < count; i += kWide) {
    // Nearest even, by the last bits of the sum with 1.5 * 2^23.
    const vi whole = (vi)wide_fma(wide_load(x + i), wide(inverse), wide(12582912.0f)) - 0x4b400000;
    all += whole;
#if defined(AIO_AVX512)
    const vi high = (whole + 128) >> 8, low = whole - (high << 8);
    const __m128i firsts = _mm512_cvtepi32_epi8((__m512i)high), seconds = _mm512_cvtepi32_epi8((__m512i)low);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(quads + i / 4), _mm_unpacklo_epi32(firsts, seconds));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(quads + i / 4 + 2), _mm_unpackhi_epi32(firsts, seconds));
#else
    int32_t numbers[kWide];
    memcpy(numbers, &whole, sizeof(numbers));
    for (int j = 0; j < kWide; j += 4) quads[(i + j) / 4] = quad_of(numbers + j);
#endif
  }
#if defined(AIO_AVX512)
  *correction = 128 * _mm512_reduce_add_epi32((__m512i)all);
#else
  int32_t sum = 0;
  for (int i = 0; i < kWide; ++i) sum += all[i];
  *correction = kOctetZero * sum;
#endif
  return largest / kWhole;
}

// Scales of 16 tokens from bfloat16, kWide at a time.
AIO_INLINE vf scales_at(const uint16_t* p) {
  return (vf)(__builtin_convertvector(*reinterpret_cast<const vu16*>(p), vu) << 16);
}

AIO_INLINE void fetch_scales_ahead(const Chunk& c) {
  for (int g = 0; g < kGroups; ++g) {
    __builtin_prefetch(c.key_scales[g]);
    __builtin_prefetch(c.value_scales[g]);
  }
}

template <int R, int N>
AIO_TILE void score_quads(const Rows& rows, int row, const Chunk& c, int v, const Chunk* ahead) {
  const int quads = rows.d / 4;
  vi high[R][N], low[R][N];
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r)
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) high[r][n] = low[r][n] = vi{};
  const uint8_t* at[N];
  AIO_UNROLL_TILE
  for (int n = 0; n < N; ++n) at[n] = c.keys[(v + n) / kVectorsPerGroup] + (v + n) % kVectorsPerGroup * kWide * 4;
  const Quad* q = rows.quads + int64_t(row) * quads;
  for (int i = 0; i < quads; ++i) {
    if (ahead) fetch_ahead(*ahead, i);
    vu bytes[N];
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) bytes[n] = wide_load(reinterpret_cast<const uint32_t*>(at[n] + i * c.key_stride));
    AIO_UNROLL_TILE
    for (int r = 0; r < R; ++r)
      AIO_UNROLL_TILE
      for (int n = 0; n < N; ++n) add_products(high[r][n], low[r][n], bytes[n], q[r * quads + i]);
  }
  AIO_UNROLL_TILE
  for (int n = 0; n < N; ++n) {
    const int vector = v + n;
    const vf scale = scales_at(c.key_scales[vector / kVectorsPerGroup] + vector % kVectorsPerGroup * kWide);
    AIO_UNROLL_TILE
    for (int r = 0; r < R; ++r) {
      const vf score = __builtin_convertvector(total(high[r][n], low[r][n]) - rows.q_correction[row + r], vf);
      wide_store(rows.p + (row + r) * kChunk + vector * kWide, score * wide(rows.q_unit[row + r]) * scale);
    }
  }
}

template <int R>
AIO_INLINE void score_rows_int8(const Rows& rows, int row, const Chunk& c, int tokens, const Chunk* ahead) {
  for (int v = 0; v < tokens / kWide; v += kTileVectors)
    with_constant<kTileVectors>(min_int(kTileVectors, tokens / kWide - v), [&](auto n) AIO_LAMBDA {
      score_quads<R, n.value>(rows, row, c, v, v == 0 ? ahead : nullptr);
    });
}

// Weights times the values' scales, as whole numbers of the row's largest. Tokens past `tokens` weigh nothing, whatever
// their slots hold.
AIO_INLINE void weigh_int8(const Rows& rows, int row, const Chunk& c, int tokens) {
  alignas(64) float weighted[kChunk];
  const float* p = rows.p + row * kChunk;
  for (int v = 0; v < kChunkVectors; ++v) {
    vf product = wide(0);
    if (v * kWide < tokens) {
      const vf weight = wide_load(p + v * kWide);
      const vf scale = scales_at(c.value_scales[v / kVectorsPerGroup] + v % kVectorsPerGroup * kWide);
      product = weight > wide(0) ? weight * scale : wide(0);
    }
    wide_store(weighted + v * kWide, product);
  }
  rows.p_unit[row] = to_quads(weighted, kChunk, rows.p_quads + row * (kChunk / 4), rows.p_correction + row);
}

template <int R, int N>
AIO_TILE void mix_quads(const Rows& rows, int row, const Chunk& c, int tokens, int column) {
  vi high[R][N], low[R][N];
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r)
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) high[r][n] = low[r][n] = vi{};
  const Quad* p = rows.p_quads + row * (kChunk / 4);
  for (int t = 0; t < tokens; t += 4) {
    const uint8_t* at = c.values[t / kLanes] + t % kLanes / 4 * c.value_stride + int64_t(column) * 4;
    vu bytes[N];
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) bytes[n] = wide_load(reinterpret_cast<const uint32_t*>(at) + n * kWide);
    AIO_UNROLL_TILE
    for (int r = 0; r < R; ++r)
      AIO_UNROLL_TILE
      for (int n = 0; n < N; ++n) add_products(high[r][n], low[r][n], bytes[n], p[r * (kChunk / 4) + t / 4]);
  }
  AIO_UNROLL_TILE
  for (int r = 0; r < R; ++r) {
    float* acc = rows.acc + int64_t(row + r) * rows.d + column;
    AIO_UNROLL_TILE
    for (int n = 0; n < N; ++n) {
      const vf added = __builtin_convertvector(total(high[r][n], low[r][n]) - rows.p_correction[row + r], vf);
      const vf kept = wide_load(acc + n * kWide) * wide(rows.rescale[row + r]);
      wide_store(acc + n * kWide, wide_fma(added, wide(rows.p_unit[row + r]), kept));
    }
  }
}

template <int R>
AIO_INLINE void mix_rows_int8(const Rows& rows, int row, const Chunk& c, int tokens) {
  for (int column = 0; column < rows.d; column += kTileVectors * kWide)
    with_constant<kTileVectors>(min_int(kTileVectors, (rows.d - column) / kWide), [&](auto n) AIO_LAMBDA {
      mix_quads<R, n.value>(rows, row, c, tokens, column);
    });
}

}  // namespace AIO_ISA
}  // namespace aio
