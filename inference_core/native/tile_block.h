// Products of bfloat16 matrices by blocks of up to 32 x 32 results: two by two tiles, which share what they load.
#pragma once
#include <type_traits>

#include "emulated_tiles.h"

namespace aio {
namespace AIO_ISA {

constexpr int kBlockSide = 2 * kTileSide;

// The tiles of one thread: 0 to 3 are C by row and column, 4 and 5 are A, 6 and 7 are B.
template <typename Tiles>
class TileBlock {
 public:
  AIO_MEMBER ~TileBlock() {
    if (rows_) tiles_.release();
  }

  // Blocks have `rows` rows from now on, 1 to 32. Configuring takes as long as some ten products.
  AIO_MEMBER void shape(int rows) {
    if (rows == rows_) return;
    rows_ = rows;
    const uint8_t upper = uint8_t(min_int(rows, kTileSide)), lower = uint8_t(rows - upper);
    tiles_.configure({upper, upper, lower, lower, upper, lower, kTileSide, kTileSide});
  }

  // C is zero.
  template <int High, int Wide>
  AIO_MEMBER void zero() {
    tiles_.template zero<0>();
    if constexpr (Wide == 2) tiles_.template zero<1>();
    if constexpr (High == 2) tiles_.template zero<2>();
    if constexpr (High == 2 && Wide == 2) tiles_.template zero<3>();
  }

  // C is what lies at `from`, `stride` bytes from row to row.
  template <int High, int Wide>
  AIO_MEMBER void load(const float* from, int64_t stride) {
    const uint8_t* lower = reinterpret_cast<const uint8_t*>(from) + kTileSide * stride;
    tiles_.template load<0>(from, stride);
    if constexpr (Wide == 2) tiles_.template load<1>(from + kTileSide, stride);
    if constexpr (High == 2) tiles_.template load<2>(lower, stride);
    if constexpr (High == 2 && Wide == 2) tiles_.template load<3>(lower + 64, stride);
  }

  template <int High, int Wide>
  AIO_MEMBER void store(float* to, int64_t stride) {
    uint8_t* lower = reinterpret_cast<uint8_t*>(to) + kTileSide * stride;
    tiles_.template store<0>(to, stride);
    if constexpr (Wide == 2) tiles_.template store<1>(to + kTileSide, stride);
    if constexpr (High == 2) tiles_.template store<2>(lower, stride);
    if constexpr (High == 2 && Wide == 2) tiles_.template store<3>(lower + 64, stride);
  }

  // C += A B over `steps` times 32 of the common dimension. A: rows, `a_stride` bytes apart. B: pairs of the common
  // dimension as rows of 16 columns, `b_stride` bytes apart; the next 32 come `b_step` bytes later, the next 16 columns
  // `b_next` bytes. A result's sum runs over the common dimension in order, whatever the block.
  template <int High, int Wide>
  AIO_MEMBER void multiply(const uint16_t* a, int64_t a_stride, const void* b, int64_t b_stride, int64_t b_step,
                           int64_t b_next, int steps) {
    const uint8_t *left = reinterpret_cast<const uint8_t*>(a), *right = static_cast<const uint8_t*>(b);
    for (int step = 0; step < steps; ++step, left += 2 * kTileDepth, right += b_step) {
      tiles_.template load<6>(right, b_stride);
      tiles_.template load<4>(left, a_stride);
      tiles_.template multiply<0, 4, 6>();
      if constexpr (Wide == 2) {
        tiles_.template load<7>(right + b_next, b_stride);
        tiles_.template multiply<1, 4, 7>();
      }
      if constexpr (High == 2) {
        tiles_.template load<5>(left + kTileSide * a_stride, a_stride);
        tiles_.template multiply<2, 5, 6>();
      }
      if constexpr (High == 2 && Wide == 2) tiles_.template multiply<3, 5, 7>();
    }
  }

 private:
  Tiles tiles_;
  int rows_ = 0;
};

// Calls body(first row, rows, integral_constant<High>) for blocks of at most 32 rows from `first` to `last`.
template <typename Body>
AIO_INLINE void for_blocks(int first, int last, const Body& body) {
  for (int row = first; row < last; row += kBlockSide) {
    const int rows = min_int(kBlockSide, last - row);
    if (rows > kTileSide)
      body(row, rows, std::integral_constant<int, 2>());
    else
      body(row, rows, std::integral_constant<int, 1>());
  }
}

}  // namespace AIO_ISA
}  // namespace aio
