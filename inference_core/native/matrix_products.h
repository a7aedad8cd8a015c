// Products of two rows by two columns, eight bytes of each at a time (SMMLA, BFMMLA). A sum is a vector of four: the first
// row's with both columns, then the second row's.
//
// Columns lie in pairs: eight bytes of a column, then the same eight of the next one. Rows are paired as they are read. A
// tile is up to six rows by 16 columns: its 24 sums leave eight registers for what is multiplied.
#pragma once
#include "panel_lanes.h"

namespace aio {
namespace AIO_ISA {

constexpr int kMatrixRows = 6;             // of the largest tile
constexpr int kColumnPairs = kLanes / 2;   // of any tile
constexpr int kColumnStep = 8;             // bytes of a column that a product takes

AIO_INLINE uint8x16_t first_halves(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}
AIO_INLINE uint8x16_t second_halves(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}
AIO_INLINE float32x4_t first_halves(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_u8(first_halves(vreinterpretq_u8_f32(a), vreinterpretq_u8_f32(b)));
}
AIO_INLINE float32x4_t second_halves(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_u8(second_halves(vreinterpretq_u8_f32(a), vreinterpretq_u8_f32(b)));
}

// Two pairs of columns, of which `first` has four bytes each and `second` the next four.
AIO_INLINE void store_column_pairs(void* to, uint32x4_t first, uint32x4_t second) {
  uint32_t* pairs = static_cast<uint32_t*>(to);
  vst1q_u32(pairs, vzip1q_u32(first, second));
  vst1q_u32(pairs + 4, vzip2q_u32(first, second));
}

// sum += the first `bytes` (a multiple of 16) of all rows times those of all columns. Rows lie `row_stride` bytes apart; from
// `count` on the last one is repeated, and its further sums are not used. The next eight bytes of all columns follow `step`
// bytes later.
template <typename Product, int Pairs>
AIO_INLINE void add_matrix_products(typename Product::Sum (&sum)[Pairs][kColumnPairs], const void* rows, int64_t row_stride,
                                    int count, const uint8_t* columns, int64_t step, int bytes) {
  const uint8_t* row[2 * Pairs];
  AIO_UNROLL
  for (int r = 0; r < 2 * Pairs; ++r) row[r] = static_cast<const uint8_t*>(rows) + min_int(r, count - 1) * row_stride;
  for (int64_t at = 0; at < bytes; at += 2 * kColumnStep) {
    uint8x16_t left[2][Pairs];
    AIO_UNROLL
    for (int p = 0; p < Pairs; ++p) {
      const uint8x16_t upper = vld1q_u8(row[2 * p] + at), lower = vld1q_u8(row[2 * p + 1] + at);
      left[0][p] = first_halves(upper, lower);
      left[1][p] = second_halves(upper, lower);
    }
    AIO_UNROLL
    for (int half = 0; half < 2; ++half, columns += step)
      AIO_UNROLL
      for (int c = 0; c < kColumnPairs; ++c) {
        const uint8x16_t right = vld1q_u8(columns + 16 * c);
        AIO_UNROLL
        for (int p = 0; p < Pairs; ++p) Product::add(sum[p][c], left[half][p], right);
        asm volatile("" ::: "memory");  // later loads stay behind: all at once would take the registers of the sums
      }
  }
}

// Both in assembly, since GCC copies sums of the intrinsics.
struct SignedBytes {
  typedef int32x4_t Sum;
  AIO_MEMBER static void add(Sum& sum, uint8x16_t rows, uint8x16_t columns) {
    asm("smmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(rows), "w"(columns));
  }
};

#if defined(AIO_BF16)
// Each of two pairs of products is added up, then added to the sum; every addition is rounded to odd.
struct Bfloat16Pairs {
  typedef float32x4_t Sum;
  AIO_MEMBER static void add(Sum& sum, uint8x16_t rows, uint8x16_t columns) {
    asm("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(rows), "w"(columns));
  }
};
#endif

}  // namespace AIO_ISA
}  // namespace aio
