// The kernels themselves, written once on 16-lane vectors and compiled once per instruction set.
// The including file defines AIO_ISA (a namespace, so that no inline function is shared between
// translation units of different instruction sets) and may define AIO_AVX512 or AIO_AVX2.
#include "kernels.h"

#include <math.h>
#include <string.h>
#if defined(AIO_AVX512) || defined(AIO_AVX2)
#include <immintrin.h>
#endif

namespace aio {
namespace AIO_ISA {

#define AIO_INLINE static inline __attribute__((always_inline))
#define AIO_MEMBER inline __attribute__((always_inline))
// Short loops over register arrays must disappear, or the arrays live on the stack.
#define AIO_UNROLL _Pragma("GCC unroll 16")

typedef float f16x __attribute__((vector_size(64), aligned(4)));
typedef int32_t i16x __attribute__((vector_size(64), aligned(4)));
typedef uint32_t u16x __attribute__((vector_size(64), aligned(4)));
typedef uint16_t h16x __attribute__((vector_size(32), aligned(2)));
typedef int8_t b16x __attribute__((vector_size(16), aligned(1)));

AIO_INLINE f16x splat(float v) { return f16x{} + v; }
AIO_INLINE i16x splat_i(int32_t v) { return i16x{} + v; }
AIO_INLINE f16x load(const float* p) { return *reinterpret_cast<const f16x*>(p); }
AIO_INLINE void store(float* p, f16x v) { *reinterpret_cast<f16x*>(p) = v; }
AIO_INLINE int min_int(int a, int b) { return a < b ? a : b; }
AIO_INLINE int max_int(int a, int b) { return a > b ? a : b; }

AIO_INLINE f16x fma(f16x a, f16x b, f16x c) {
#if defined(AIO_AVX512)
  return (f16x)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
  return a * b + c;
#endif
}

AIO_INLINE f16x to_float(i16x v) { return __builtin_convertvector(v, f16x); }

AIO_INLINE f16x from_bf16(const uint16_t* p) {
  const h16x h = *reinterpret_cast<const h16x*>(p);
  return (f16x)(__builtin_convertvector(h, u16x) << 16);
}

// Round to nearest even, as torch does; NaN stays NaN.
AIO_INLINE uint16_t to_bf16(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

AIO_INLINE f16x from_half(const uint16_t* p) {
#if defined(AIO_AVX512)
  return (f16x)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(AIO_AVX2)
  union { f16x v; __m256 h[2]; } u;
  u.h[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
  u.h[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)));
  return u.v;
#else
  f16x out;
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t h = p[i], sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
    float magnitude;
    if (exponent == 0) {
      magnitude = float(mantissa) * 5.9604644775390625e-8f;  // 2^-24: zero and subnormals
    } else {
      const uint32_t bits = exponent == 31 ? 0x7f800000u | (mantissa << 13) : ((exponent + 112) << 23) | (mantissa << 13);
      memcpy(&magnitude, &bits, 4);
    }
    uint32_t bits;
    memcpy(&bits, &magnitude, 4);
    bits |= sign;
    float value;
    memcpy(&value, &bits, 4);
    out[i] = value;
  }
  return out;
#endif
}

AIO_INLINE float lanes_sum(f16x v) {
#if defined(AIO_AVX512)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float total[kLanes];
  store(total, v);
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) total[i] += total[i + step];
  return total[0];
#endif
}

AIO_INLINE float lanes_max(f16x v) {
#if defined(AIO_AVX512)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float best[kLanes];
  store(best, v);
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) best[i] = best[i] > best[i + step] ? best[i] : best[i + step];
  return best[0];
#endif
}

// exp(x) for x <= 88: range reduction by ln 2 and a degree-6 polynomial; relative error below 2e-7.
AIO_INLINE f16x exp_lanes(f16x x) {
  const f16x low = splat(-87.0f);
  x = x > low ? x : low;
  const f16x magic = splat(12582912.0f);  // 1.5 * 2^23 rounds to an integer
  const f16x n = fma(x, splat(1.44269504088896341f), magic) - magic;
  f16x r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  f16x p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
  const i16x power = (__builtin_convertvector(n, i16x) + 127) << 23;
  return p * (f16x)power;
}

// acc[n] += sum over 4 bytes of w[4n + b] (unsigned) * x[b] (signed), for 16 columns n.
AIO_INLINE i16x dot4(i16x acc, i16x w, const int8_t* x) {
  int32_t four;
  memcpy(&four, x, 4);
#if defined(AIO_AVX512)
  return (i16x)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(four));
#elif defined(AIO_AVX2)
  union { i16x v; __m256i h[2]; } a, b;
  a.v = acc;
  b.v = w;
  // Pairs are summed in 16 bits: 2 * 255 * 127 would saturate, so split the unsigned byte into two halves.
  const __m256i xs = _mm256_set1_epi32(four), ones = _mm256_set1_epi16(1), nibble = _mm256_set1_epi8(15);
  for (int i = 0; i < 2; ++i) {
    const __m256i low = _mm256_and_si256(b.h[i], nibble);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(b.h[i], 4), nibble);
    const __m256i low_sum = _mm256_madd_epi16(_mm256_maddubs_epi16(low, xs), ones);
    const __m256i high_sum = _mm256_madd_epi16(_mm256_maddubs_epi16(high, xs), ones);
    a.h[i] = _mm256_add_epi32(a.h[i], _mm256_add_epi32(low_sum, _mm256_slli_epi32(high_sum, 4)));
  }
  return a.v;
#else
  for (int b = 0; b < 4; ++b) acc += ((w >> (8 * b)) & 255) * int32_t(x[b]);
  return acc;
#endif
}

// --- activations -------------------------------------------------------------------------------------------------

static void quantize_rows(const float* x, int64_t ldx, int k, const QuantizedRows& out, int first, int last) {
  const int groups = k / kGroup;
  for (int row = first; row < last; ++row) {
    for (int g = 0; g < groups; ++g) {
      const float* p = x + row * ldx + int64_t(g) * kGroup;
      const f16x a = load(p), b = load(p + kLanes);
      const f16x abs_a = a > -a ? a : -a, abs_b = b > -b ? b : -b;
      const float peak = lanes_max(abs_a > abs_b ? abs_a : abs_b);
      const float scale = peak / 127.0f, inverse = peak > 0 ? 127.0f / peak : 0.0f;
      const f16x magic = splat(12582912.0f);
      const i16x qa = __builtin_convertvector(fma(a, splat(inverse), magic) - magic, i16x);
      const i16x qb = __builtin_convertvector(fma(b, splat(inverse), magic) - magic, i16x);
      int8_t* q = out.q + int64_t(row) * k + int64_t(g) * kGroup;
      *reinterpret_cast<b16x*>(q) = __builtin_convertvector(qa, b16x);
      *reinterpret_cast<b16x*>(q + kLanes) = __builtin_convertvector(qb, b16x);
      const int32_t sum = int32_t(lanes_sum(to_float(qa + qb)));  // at most 32 * 127: exact in float32
      out.scale[int64_t(row) * groups + g] = scale;
      out.sum[int64_t(row) * groups + g] = sum;
      out.offset[int64_t(row) * groups + g] = scale * float(sum);
    }
  }
}

static void rms_norm(const float* x, int64_t ldx, const float* w, float* y, int64_t ldy, int d, float eps, int first,
                     int last) {
  for (int row = first; row < last; ++row) {
    const float* in = x + row * ldx;
    float* out = y + row * ldy;
    f16x squares = splat(0);
    int i = 0;
    for (; i + kLanes <= d; i += kLanes) squares = fma(load(in + i), load(in + i), squares);
    float total = lanes_sum(squares);
    for (; i < d; ++i) total += in[i] * in[i];
    const float inverse = 1.0f / sqrtf(total / float(d) + eps);
    for (i = 0; i + kLanes <= d; i += kLanes) store(out + i, load(in + i) * inverse * load(w + i));
    for (; i < d; ++i) out[i] = in[i] * inverse * w[i];
  }
}

static void silu_mul(const float* gate_up, float* y, int d, int first, int last) {
  for (int row = first; row < last; ++row) {
    const float* gate = gate_up + int64_t(row) * 2 * d;
    const float* up = gate + d;
    float* out = y + int64_t(row) * d;
    int i = 0;
    for (; i + kLanes <= d; i += kLanes) {
      f16x g = load(gate + i), negated = -g;
      negated = negated < 80.0f ? negated : splat(80.0f);
      store(out + i, g / (exp_lanes(negated) + 1.0f) * load(up + i));
    }
    for (; i < d; ++i) out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
  }
}

// --- linear layers -----------------------------------------------------------------------------------------------

AIO_INLINE void finish(const LinearArgs& a, int row, int column, f16x value) {
  float* y = a.y + row * a.ldy + column;
  if (a.bias) {
    if (column + kLanes <= a.n) {
      value += load(a.bias + column);
    } else {
      for (int i = 0; column + i < a.n; ++i) value[i] += a.bias[column + i];
    }
  }
  if (column + kLanes <= a.n) {
    store(y, a.accumulate ? load(y) + value : value);
  } else {
    for (int i = 0; column + i < a.n; ++i) y[i] = a.accumulate ? y[i] + value[i] : value[i];
  }
}

// One panel of a group: 32 weights of 16 columns as eight vectors of unsigned bytes.
AIO_INLINE void unpack_int4(const uint8_t* p, i16x w[8]) {
  AIO_UNROLL
  for (int j = 0; j < 4; ++j) {
    const i16x packed = *reinterpret_cast<const i16x*>(p + 64 * j);
    w[2 * j] = packed & 0x0f0f0f0f;
    w[2 * j + 1] = (packed >> 4) & 0x0f0f0f0f;
  }
}

AIO_INLINE void unpack_int8(const uint8_t* p, i16x w[8]) {
  AIO_UNROLL
  for (int j = 0; j < 8; ++j) w[j] = *reinterpret_cast<const i16x*>(p + 64 * j);
}

constexpr int kInt4Group = 256 + 64;  // nibbles, then 16 scales and 16 minima as float16
constexpr int kInt8Group = 512 + 32;  // bytes with offset 128, then 16 scales as float16

template <int Rows, int Bits>
AIO_INLINE void integer_tile(const LinearArgs& a, int row, int panel) {
  const int groups = a.k / kGroup;
  const uint8_t* p = a.panels + panel * a.panel_bytes;
  const int8_t* x = a.quantized.q + int64_t(row) * a.k;
  const float* scale = a.quantized.scale + int64_t(row) * groups;
  const int32_t* sum = a.quantized.sum + int64_t(row) * groups;
  const float* offset = a.quantized.offset + int64_t(row) * groups;
  f16x y[Rows];
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) y[r] = splat(0);
  for (int g = 0; g < groups; ++g) {
    i16x w[8], dot[Rows];
    if (Bits == 4) unpack_int4(p, w); else unpack_int8(p, w);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) dot[r] = splat_i(Bits == 4 ? 0 : -128 * sum[r * groups + g]);
    AIO_UNROLL
    for (int j = 0; j < 8; ++j)
      AIO_UNROLL
      for (int r = 0; r < Rows; ++r) dot[r] = dot4(dot[r], w[j], x + int64_t(r) * a.k + g * kGroup + 4 * j);
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(p + (Bits == 4 ? 256 : 512));
    const f16x d = from_half(scales);
    if (Bits == 4) {
      const f16x m = from_half(scales + kLanes);
      AIO_UNROLL
      for (int r = 0; r < Rows; ++r) {
        y[r] = fma(to_float(dot[r]), d * scale[r * groups + g], y[r]);
        y[r] = fma(m, splat(offset[r * groups + g]), y[r]);
      }
      p += kInt4Group;
    } else {
      AIO_UNROLL
      for (int r = 0; r < Rows; ++r) y[r] = fma(to_float(dot[r]), d * scale[r * groups + g], y[r]);
      p += kInt8Group;
    }
  }
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) finish(a, row + r, panel * kLanes, y[r]);
}

template <int Bits>
static void linear_integer(const LinearArgs& a, int first_panel, int last_panel) {
  for (int panel = first_panel; panel < last_panel; ++panel) {
    // The next panel is fetched while this one is computed: one row alone is bound by memory.
    const uint8_t* next = a.panels + (panel + 1 < last_panel ? panel + 1 : panel) * a.panel_bytes;
    for (int64_t i = 0; i < a.panel_bytes; i += 64) __builtin_prefetch(next + i, 0, 2);
    int row = 0;
    for (; row + 8 <= a.rows; row += 8) integer_tile<8, Bits>(a, row, panel);
    for (; row + 4 <= a.rows; row += 4) integer_tile<4, Bits>(a, row, panel);
    for (; row < a.rows; ++row) integer_tile<1, Bits>(a, row, panel);
  }
}

// Packed 4-bit weights against float32 activations: y = sum over groups of d * (codes . x) + m * sum(x).
template <int Rows>
AIO_INLINE void int4_float_tile(const LinearArgs& a, int row, int panel) {
  const uint8_t* p = a.panels + panel * a.panel_bytes;
  const float* x = a.x + row * a.ldx;
  f16x y[Rows];
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) y[r] = splat(0);
  for (int g = 0; g < a.k / kGroup; ++g, p += kInt4Group) {
    i16x w[8];
    f16x dot[Rows];
    float total[Rows];
    unpack_int4(p, w);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) dot[r] = splat(total[r] = 0);
    for (int i = 0; i < kGroup; ++i) {
      const f16x code = to_float((w[i / 4] >> (8 * (i % 4))) & 255);
      AIO_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const float v = x[r * a.ldx + g * kGroup + i];
        dot[r] = fma(code, splat(v), dot[r]);
        total[r] += v;
      }
    }
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(p + 256);
    const f16x d = from_half(scales), m = from_half(scales + kLanes);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) y[r] = fma(m, splat(total[r]), fma(dot[r], d, y[r]));
  }
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) finish(a, row + r, panel * kLanes, y[r]);
}

static void linear_int4(const LinearArgs& a, int first, int last) { linear_integer<4>(a, first, last); }
static void linear_int8(const LinearArgs& a, int first, int last) { linear_integer<8>(a, first, last); }

template <int Rows>
AIO_INLINE void bf16_tile(const LinearArgs& a, int row, int panel) {
  const u16x* w = reinterpret_cast<const u16x*>(a.panels + panel * a.panel_bytes);
  const float* x = a.x + row * a.ldx;
  f16x even[Rows], odd[Rows];
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) even[r] = odd[r] = splat(0);
  for (int k = 0; k < a.k; k += 2) {
    const u16x pair = *w++;
    const f16x w0 = (f16x)(pair << 16), w1 = (f16x)(pair & 0xffff0000u);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      even[r] = fma(w0, splat(x[r * a.ldx + k]), even[r]);
      odd[r] = fma(w1, splat(x[r * a.ldx + k + 1]), odd[r]);
    }
  }
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) finish(a, row + r, panel * kLanes, even[r] + odd[r]);
}

template <int Rows>
AIO_INLINE void f32_tile(const LinearArgs& a, int row, int panel) {
  const float* w = reinterpret_cast<const float*>(a.panels + panel * a.panel_bytes);
  const float* x = a.x + row * a.ldx;
  f16x even[Rows], odd[Rows];
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) even[r] = odd[r] = splat(0);
  for (int k = 0; k < a.k; k += 2, w += 2 * kLanes) {
    const f16x w0 = load(w), w1 = load(w + kLanes);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      even[r] = fma(w0, splat(x[r * a.ldx + k]), even[r]);
      odd[r] = fma(w1, splat(x[r * a.ldx + k + 1]), odd[r]);
    }
  }
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) finish(a, row + r, panel * kLanes, even[r] + odd[r]);
}

static void linear_int4_float(const LinearArgs& a, int first_panel, int last_panel) {
  for (int panel = first_panel; panel < last_panel; ++panel) {
    int row = 0;
    for (; row + 4 <= a.rows; row += 4) int4_float_tile<4>(a, row, panel);
    for (; row < a.rows; ++row) int4_float_tile<1>(a, row, panel);
  }
}

static void linear_bf16(const LinearArgs& a, int first_panel, int last_panel) {
  for (int panel = first_panel; panel < last_panel; ++panel) {
    int row = 0;
    for (; row + 8 <= a.rows; row += 8) bf16_tile<8>(a, row, panel);
    for (; row + 4 <= a.rows; row += 4) bf16_tile<4>(a, row, panel);
    for (; row < a.rows; ++row) bf16_tile<1>(a, row, panel);
  }
}

static void linear_f32(const LinearArgs& a, int first_panel, int last_panel) {
  for (int panel = first_panel; panel < last_panel; ++panel) {
    int row = 0;
    for (; row + 8 <= a.rows; row += 8) f32_tile<8>(a, row, panel);
    for (; row + 4 <= a.rows; row += 4) f32_tile<4>(a, row, panel);
    for (; row < a.rows; ++row) f32_tile<1>(a, row, panel);
  }
}

// --- attention ---------------------------------------------------------------------------------------------------

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

static const KernelTable table = {AIO_NAME,    quantize_rows, linear_int4, linear_int4_float,
                                  linear_int8, linear_bf16,   linear_f32,  rms_norm,
                                  silu_mul,    rope_and_write, attend};

}  // namespace AIO_ISA
}  // namespace aio
