// How linear layers split their rows into register tiles, prefetch, and write a tile's results.
#pragma once
#include <type_traits>

#include "panel_lanes.h"

namespace aio {
namespace AIO_ISA {

template <int Count>
using Constant = std::integral_constant<int, Count>;

// Calls tile(count of rows as a Constant, first row, index) for tiles of at most `Most` rows and nearly equal height.
template <int Most, typename Tile>
AIO_INLINE void for_tiles(int rows, const Tile& tile) {
  const int tiles = (rows + Most - 1) / Most;
  for (int t = 0, row = 0; t < tiles; ++t) {
    const int last = int(int64_t(rows) * (t + 1) / tiles);
    switch (last - row) {
      case 1: tile(Constant<1>(), row, t); break;
      case 2: tile(Constant<2>(), row, t); break;
      case 3: if constexpr (Most >= 3) tile(Constant<3>(), row, t); break;
      case 4: if constexpr (Most >= 4) tile(Constant<4>(), row, t); break;
      case 5: if constexpr (Most >= 5) tile(Constant<5>(), row, t); break;
      case 6: if constexpr (Most >= 6) tile(Constant<6>(), row, t); break;
    }
    row = last;
  }
  static_assert(Most >= 2 && Most <= 6, "a case per height");
}

// The prefetches of a tile during its computation: some cache lines per step of its loop.
struct Ahead {
  const uint8_t* at;
  int lines;

  // The share of one tile of several that together fetch `lines` per step from `next` (null: nothing) on. A few rows
  // alone are bound by memory: fetching goes on for as long as they are computed, and never in a burst.
  AIO_MEMBER static Ahead of(const uint8_t* next, int lines, int steps, int tile, int tiles) {
    const int share = (lines + tiles - 1) / tiles, begin = min_int(tile * share, lines);
    return {next + int64_t(begin) * steps * 64, next ? min_int(share, lines - begin) : 0};
  }
  // At most `Most` lines, of which a single tile fetches all.
  template <int Most>
  AIO_MEMBER void step() {
    if (lines == Most) {
      AIO_UNROLL
      for (int i = 0; i < Most; ++i) __builtin_prefetch(at + 64 * i, 0, 2);
      at += 64 * Most;
    } else {
      for (int i = 0; i < lines; ++i, at += 64) __builtin_prefetch(at, 0, 2);
    }
  }
};

// Writes 16 columns of a row: bias added, onto what was there if the caller accumulates, none beyond the last column.
AIO_INLINE void finish(const LinearArgs& a, int row, int column, Floats value) {
  float* y = a.y + row * a.ldy + column;
  if (column + kLanes <= a.n) {
    if (a.bias) value = value + load_floats(a.bias + column);
    store_floats(y, a.accumulate ? load_floats(y) + value : value);
    return;
  }
  float columns[kLanes];
  store_floats(columns, value);
  for (int i = 0; column + i < a.n; ++i) {
    const float v = a.bias ? columns[i] + a.bias[column + i] : columns[i];
    y[i] = a.accumulate ? y[i] + v : v;
  }
}

}  // namespace AIO_ISA
}  // namespace aio
