// The tile operations of AMX-BF16 in ordinary vector code, bit for bit: every machine tests what only some can run.
//
// The arithmetic is that of TDPBF16PS in Intel's Software Developer's Manual, volume 2: for a row of A and a column of B the
// products of the pairs' first numbers are summed in one chain of float32 FMAs from zero, those of the second numbers in
// another; the two sums are added, and the result is added to C. All roundings are to nearest even; subnormal inputs count
// as zero and subnormal results become zero.
#pragma once
#include "panel_lanes.h"

namespace aio {
namespace AIO_ISA {

constexpr int kTiles = 8, kTileSide = 16;  // a tile has up to 16 rows of 64 bytes
constexpr int kTileDepth = 32;             // bfloat16 numbers in a row of A

// Subnormals as zero while it lives. Elsewhere than on x86 they are kept: no machine there has tiles to compare with.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  AIO_MEMBER FlushSubnormals() {
    const uint32_t flushing = 0x1f80u | 0x8040u;  // all exceptions masked, to nearest even; flush results and inputs
    asm volatile("stmxcsr %0" : "=m"(before_)::"memory");
    asm volatile("ldmxcsr %0" : : "m"(flushing) : "memory");
  }
  AIO_MEMBER ~FlushSubnormals() { asm volatile("ldmxcsr %0" : : "m"(before_) : "memory"); }

 private:
  uint32_t before_;
#endif
};

AIO_INLINE Floats first_of_pairs(const Ints& pairs) {
  Floats out;
  AIO_PARTS(out.part[i] = (FloatPart)(pairs.part[i] << 16))
  return out;
}

AIO_INLINE Floats second_of_pairs(const Ints& pairs) {
  Floats out;
  AIO_PARTS(out.part[i] = (FloatPart)(pairs.part[i] & int32_t(0xffff0000u)))
  return out;
}

// A function of its own: what it reads and writes is in memory, so no sum is moved to where subnormals count.
static __attribute__((noinline)) void emulated_product(uint32_t (*c)[kTileSide], const uint32_t (*a)[kTileSide],
                                                       const uint32_t (*b)[kTileSide], int rows) {
  const FlushSubnormals flush;
  for (int row = 0; row < rows; ++row) {
    Floats even = floats(0), odd = floats(0);
    for (int k = 0; k < kTileSide; ++k) {
      const Ints pairs = load_ints(b[k]);
      const uint32_t low = a[row][k] << 16, high = a[row][k] & 0xffff0000u;
      float first, second;
      memcpy(&first, &low, 4);
      memcpy(&second, &high, 4);
      even = fma(floats(first), first_of_pairs(pairs), even);
      odd = fma(floats(second), second_of_pairs(pairs), odd);
    }
    float* sums = reinterpret_cast<float*>(c[row]);
    store_floats(sums, load_floats(sums) + (even + odd));
  }
}

// Tiles of 64 bytes a row, by number as in the instructions.
class EmulatedTiles {
 public:
  AIO_MEMBER void configure(const uint8_t (&rows)[kTiles]) {
    memcpy(rows_, rows, kTiles);
    memset(tiles_, 0, sizeof(tiles_));
  }
  AIO_MEMBER void release() {}
  template <int T>
  AIO_MEMBER void zero() { memset(tiles_[T], 0, sizeof(tiles_[T])); }
  template <int T>
  AIO_MEMBER void load(const void* from, int64_t stride) {
    for (int row = 0; row < rows_[T]; ++row) memcpy(tiles_[T][row], static_cast<const uint8_t*>(from) + row * stride, 64);
  }
  // C += A B.
  template <int C, int A, int B>
  AIO_MEMBER void multiply() { emulated_product(tiles_[C], tiles_[A], tiles_[B], rows_[C]); }
  template <int T>
  AIO_MEMBER void store(void* to, int64_t stride) {
    for (int row = 0; row < rows_[T]; ++row) memcpy(static_cast<uint8_t*>(to) + row * stride, tiles_[T][row], 64);
  }

 private:
  uint8_t rows_[kTiles];
  alignas(64) uint32_t tiles_[kTiles][kTileSide][kTileSide];
};

}  // namespace AIO_ISA
}  // namespace aio
