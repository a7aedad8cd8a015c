// Panels of groups of 32 weights rounded again to INT8 with one scale per span of 128, in the thread's scratch.
//
// A weight scale * code + minimum becomes (code * a + b) >> 8 in 16-bit lanes, where a and b are scale and minimum in
// 256ths of the span's step, b with the zero of the codes and a half (to round) on top. Truth lies between -127 and 127
// steps, and the roundings of a and b move it by at most 8 / 256, so no lane overflows; signs do not matter modulo 2^16.
#pragma once
#include "integer_linear.h"
#include "span_lanes.h"

namespace aio {
namespace AIO_ISA {

typedef uint16_t UnsignedPart __attribute__((vector_size(kWidth), aligned(1), may_alias));

constexpr int kSpanGroups = kSpan / kGroup;

AIO_INLINE Ints both_halves(const Ints& v) {
  Ints out;
  AIO_PARTS(out.part[i] = (v.part[i] & 0xffff) | (v.part[i] << 16))
  return out;
}

// How the codes of a group become those of its span.
struct Rounding {
  Ints a, b;

  AIO_MEMBER Ints of(const Ints& codes) const {
    Ints out;
    AIO_PARTS({
      const UnsignedPart times = (UnsignedPart)a.part[i], plus = (UnsignedPart)b.part[i];
      const UnsignedPart even = (UnsignedPart)(codes.part[i] & 0x00ff00ff), odd = (UnsignedPart)codes.part[i] >> 8;
      const UnsignedPart low = even * times + plus, high = odd * times + plus;
#if defined(AIO_NEON)
      out.part[i] = (IntPart)vsriq_n_u16((uint16x8_t)high, (uint16x8_t)low, 8);
#else
      out.part[i] = (IntPart)(low >> 8) | ((IntPart)high & int32_t(0xff00ff00u));
#endif
    })
    return out;
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
  constexpr int zero = kCodeZero * 256 + 128;
  Floats step, inverse;
  AIO_PARTS({
    step.part[i] = peak.part[i] / most;
    const FloatPart steps = (FloatPart{} + most * 256.0f) / peak.part[i];
    inverse.part[i] = peak.part[i] > 0 ? steps : FloatPart{};
  })
  for (int g = 0; g < groups; ++g) {
    const Ints a = to_nearest(scale[g] * inverse);
    Ints b;
    if constexpr (Weights::kMinima) {
      b = to_nearest(minimum[g] * inverse);
      AIO_PARTS(b.part[i] += zero)
    } else {
      AIO_PARTS(b.part[i] = zero - a.part[i] * Weights::kCentre)
    }
    roundings[g] = {both_halves(a), both_halves(b)};
  }
  return step;
}

// Leaves per span the codes, `store_codes` of eight inputs after eight, then the panels' steps in float32.
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
        AIO_UNROLL
        for (int j = 0; j < 4; ++j, out += 128 * Panels) {
          if constexpr (Weights::kNibbles) {
            const Ints packed = load_ints(w.codes + 64 * j);
            store_codes<Panels>(out, rounding.of(low_nibbles(packed)), rounding.of(high_nibbles(packed)));
          } else {
            const uint8_t* codes = w.codes + 128 * j;
            store_codes<Panels>(out, rounding.of(load_ints(codes)), rounding.of(load_ints(codes + 64)));
          }
        }
      }
      store_floats(reinterpret_cast<float*>(out), step);
      out += 64 * Panels;
    }
  }
}

}  // namespace AIO_ISA
}  // namespace aio
