// Panels of groups of 32 weights rounded again to INT8 with one scale per span of 128, in the thread's scratch.
//
// A weight scale * code + minimum becomes (code * a + b) >> 8 in 16-bit lanes, where a and b are scale and minimum in
// 256ths of the span's step, b with 128 (the zero of the codes) and a half (to round) on top. Truth lies between 1 and
// 255, and the roundings of a and b move it by at most 8 / 256, so no lane overflows; signs do not matter modulo 2^16.
#pragma once
#include "integer_linear.h"

namespace aio {
namespace AIO_ISA {

constexpr int kSpanGroups = kSpan / kGroup;

AIO_INLINE __m512i both_halves(const Ints& v) {
  const __m512i low = _mm512_and_si512((__m512i)v.part[0], _mm512_set1_epi32(0xffff));
  return _mm512_or_si512(low, _mm512_slli_epi32(low, 16));
}

// How the codes of a group become those of its span.
struct Rounding {
  __m512i a, b;

  AIO_MEMBER __m512i of(__m512i codes) const {
    const __m512i bytes = _mm512_set1_epi32(0x00ff00ff);
    const __m512i even = _mm512_and_si512(codes, bytes), odd = _mm512_and_si512(_mm512_srli_epi32(codes, 8), bytes);
    const __m512i low = _mm512_srli_epi16(_mm512_add_epi16(_mm512_mullo_epi16(even, a), b), 8);
    const __m512i high = _mm512_add_epi16(_mm512_mullo_epi16(odd, a), b);
    return _mm512_or_si512(low, _mm512_andnot_si512(bytes, high));
  }
};

// The step of a span, and from it the rounding of each group: `peak` is the greatest |weight| that the scales allow, or of
// codes of 8 bits the greatest scale, so that a group which has it keeps its codes.
template <typename Weights>
AIO_INLINE Floats span_roundings(Weights w, int groups, Rounding (&roundings)[kSpanGroups]) {
  Floats scale[kSpanGroups], minimum[kSpanGroups], peak = floats(0);
  for (int g = 0; g < groups; ++g, w.next()) {
    scale[g] = w.scale();
    if constexpr (Weights::kMinima) {
      minimum[g] = w.minimum();
      peak = maximum(peak, maximum(absolute(minimum[g]), absolute(fma(scale[g], floats(15.0f), minimum[g]))));
    } else {
      peak = maximum(peak, absolute(scale[g]) * floats(Weights::kCentre == 8 ? 8.0f : 1.0f));
    }
  }
  constexpr float most = Weights::kCentre == 128 ? 1.0f : 127.0f;
  const Floats step = {{peak.part[0] / floats(most).part[0]}};
  Floats inverse = {{floats(most * 256.0f).part[0] / peak.part[0]}};
  inverse.part[0] = peak.part[0] > 0 ? inverse.part[0] : FloatPart{};
  const Ints zero = {{IntPart{} + (128 * 256 + 128)}};
  for (int g = 0; g < groups; ++g) {
    const Ints a = to_nearest(scale[g] * inverse);
    Ints b;
    if constexpr (Weights::kMinima)
      b = to_nearest(minimum[g] * inverse) + zero;
    else
      b = {{zero.part[0] - a.part[0] * Weights::kCentre}};
    roundings[g] = {both_halves(a), both_halves(b)};
  }
  return step;
}

// Per span the codes of four inputs after four, `Panels` vectors each, then the panels' steps in float32.
template <int Panels>
constexpr int64_t unpacked_span_bytes(int groups) { return (int64_t(groups) * 8 + 1) * 64 * Panels; }

template <typename Weights, int Panels>
static __attribute__((noinline)) void round_panels(const LinearArgs& a, int panel, uint8_t* to) {
  for (int p = 0; p < Panels; ++p) {
    Weights w = Weights::of(a, panel + p);
    uint8_t* out = to + 64 * p;
    for (int left = a.k / kGroup; left > 0; left -= kSpanGroups) {
      const int groups = min_int(left, kSpanGroups);
      Rounding roundings[kSpanGroups];
      const Floats step = span_roundings(w, groups, roundings);
      for (int g = 0; g < groups; ++g, w.next()) {
        const Rounding rounding = roundings[g];
        if constexpr (Weights::kNibbles) {
          AIO_UNROLL
          for (int j = 0; j < 4; ++j, out += 128 * Panels) {
            const Ints packed = load_ints(w.codes + 64 * j);
            _mm512_store_si512(out, rounding.of((__m512i)low_nibbles(packed).part[0]));
            _mm512_store_si512(out + 64 * Panels, rounding.of((__m512i)high_nibbles(packed).part[0]));
          }
        } else {
          AIO_UNROLL
          for (int j = 0; j < 8; ++j, out += 64 * Panels)
            _mm512_store_si512(out, rounding.of((__m512i)load_ints(w.codes + 64 * j).part[0]));
        }
      }
      store_floats(reinterpret_cast<float*>(out), step);
      out += 64 * Panels;
    }
  }
}

}  // namespace AIO_ISA
}  // namespace aio
