// Products of packed weight codes and INT8 activations, summed over a group for the 16 columns of a panel.
#pragma once
#include "panel_lanes.h"

namespace aio {
namespace AIO_ISA {

AIO_INLINE Ints low_nibbles(const Ints& v) {
  Ints out;
  AIO_PARTS(out.part[i] = v.part[i] & 0x0f0f0f0f)
  return out;
}

AIO_INLINE Ints high_nibbles(const Ints& v) {
  Ints out;
  AIO_PARTS(out.part[i] = (v.part[i] >> 4) & 0x0f0f0f0f)
  return out;
}

// Four activations of one row, as products with all columns need them.
#if defined(AIO_AVX512)
struct Four { __m512i x; };
AIO_INLINE Four four(const int8_t* x) {
  int32_t v;
  memcpy(&v, x, 4);
  return {_mm512_set1_epi32(v)};
}
#elif defined(AIO_AVX2)
struct Four { __m256i x; };
AIO_INLINE Four four(const int8_t* x) {
  int32_t v;
  memcpy(&v, x, 4);
  return {_mm256_set1_epi32(v)};
}
#elif defined(AIO_DOTPROD)
struct Four { int8x16_t x; };
AIO_INLINE Four four(const int8_t* x) {
  int32_t v;
  memcpy(&v, x, 4);
  return {vreinterpretq_s8_s32(vdupq_n_s32(v))};
}
#else
struct Four { ShortPart even, odd; };
AIO_INLINE Four four(const int8_t* x) {
  const IntPart zero = {};
  return {(ShortPart)(zero + int32_t(uint32_t(uint16_t(x[0])) | uint32_t(uint16_t(x[2])) << 16)),
          (ShortPart)(zero + int32_t(uint32_t(uint16_t(x[1])) | uint32_t(uint16_t(x[3])) << 16))};
}
#endif

// Sums over a group of 32 of code * activation for 16 columns. Nibbles takes codes of 0 to 15: without dot products of
// four bytes it sums in 16 bits, since 32 * 15 * 127 / 2 lanes = 30,480 fit. Octets takes codes of 0 to 255.
#if defined(AIO_AVX512)
struct Nibbles {
  typedef Ints Codes;
  __m512i sum;

  AIO_MEMBER static Codes codes(const Ints& v) { return v; }
  AIO_MEMBER void clear() { asm("vpxord %0, %0, %0" : "=v"(sum)); }
  AIO_MEMBER void start(int32_t v) { sum = _mm512_set1_epi32(v); }
  AIO_MEMBER void add(const Codes& w, const Four& f) { sum = _mm512_dpbusd_epi32(sum, (__m512i)w.part[0], f.x); }
  AIO_MEMBER Ints total() const { return {{(IntPart)sum}}; }
  AIO_MEMBER __m512i& part(int) { return sum; }
};
typedef Nibbles Octets;
typedef Nibbles CentredNibbles;
#elif defined(AIO_DOTPROD)
struct Nibbles {
  typedef Ints Codes;
  Ints sum;

  AIO_MEMBER IntPart& part(int i) { return sum.part[i]; }
  AIO_MEMBER void clear() { start(0); }
  AIO_MEMBER void start(int32_t v) { AIO_PARTS(sum.part[i] = IntPart{} + v) }
  AIO_MEMBER void add(const Codes& w, const Four& f) {
    AIO_PARTS(sum.part[i] = (IntPart)dot((int32x4_t)sum.part[i], (uint8x16_t)w.part[i], f.x))
  }
  AIO_MEMBER Ints total() const { return sum; }
};
typedef Nibbles CentredNibbles;

struct Octets : Nibbles {
  AIO_MEMBER static Codes codes(const Ints& v) {
    Codes out;
    AIO_PARTS(out.part[i] = (IntPart)octet_codes((uint8x16_t)v.part[i]))
    return out;
  }
  // `v` corrects codes whose zero is 128.
  AIO_MEMBER void start(int32_t v) { Nibbles::start(kOctetZero ? v : 0); }
};
#else
struct Nibbles {
  typedef Ints Codes;
  Shorts sum;

  AIO_MEMBER ShortPart& part(int i) { return sum.part[i]; }
  AIO_MEMBER void clear() { AIO_PARTS(sum.part[i] = ShortPart{}); }
  AIO_MEMBER void add(const Codes& w, const Four& f) {
#if defined(AIO_AVX2)
    AIO_PARTS(sum.part[i] += (ShortPart)_mm256_maddubs_epi16((__m256i)w.part[i], f.x))
#else
    AIO_PARTS(sum.part[i] += (ShortPart)(w.part[i] & 0x00ff00ff) * f.even +
                             (ShortPart)((w.part[i] >> 8) & 0x00ff00ff) * f.odd);
#endif
  }
  AIO_MEMBER Ints total() const {
    Ints out;
#if defined(AIO_AVX2)
    AIO_PARTS(out.part[i] = (IntPart)_mm256_madd_epi16((__m256i)sum.part[i], _mm256_set1_epi16(1)))
#else
    AIO_PARTS(out.part[i] = (((IntPart)sum.part[i] << 16) >> 16) + ((IntPart)sum.part[i] >> 16))
#endif
    return out;
  }
};

// The same from a start other than zero.
struct CentredNibbles {
  typedef Ints Codes;
  Nibbles codes_sum;
  int32_t begin;

  AIO_MEMBER void start(int32_t v) {
    codes_sum.clear();
    begin = v;
  }
  AIO_MEMBER void add(const Codes& w, const Four& f) { codes_sum.add(w, f); }
  AIO_MEMBER Ints total() const {
    Ints out = codes_sum.total();
    AIO_PARTS(out.part[i] += begin)
    return out;
  }
};

struct Octets {
  struct Codes { Ints low, high; };
  Nibbles low, high;
  int32_t begin;

  AIO_MEMBER static Codes codes(const Ints& v) { return {low_nibbles(v), high_nibbles(v)}; }
  AIO_MEMBER void start(int32_t v) {
    low.clear();
    high.clear();
    begin = v;
  }
  AIO_MEMBER void add(const Codes& w, const Four& f) {
    low.add(w.low, f);
    high.add(w.high, f);
  }
  AIO_MEMBER Ints total() const {
    const Ints a = low.total(), b = high.total();
    Ints out;
    AIO_PARTS(out.part[i] = a.part[i] + (b.part[i] << 4) + begin)
    return out;
  }
};
#endif

}  // namespace AIO_ISA
}  // namespace aio
