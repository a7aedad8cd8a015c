// Low-rank adapters (LoRA, Hu et al. 2021) in a step: which layers they change, and which rows use which.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"

namespace aio {

enum AdaptedProjection { kQkv = 0, kOutput = 1, kGateUp = 2, kDown = 3, kAdaptedProjections = 4 };

// An adapter in its slot. `layers` holds, per block and projection, the linear layers of it that the adapter changes.
struct Adapter {
  struct Layer {
    std::vector<LowRank> parts[kAdaptedProjections];
  };
  std::vector<Layer> layers;
  int tiles[kAdaptedProjections] = {};  // tiles of ranks in a projection of a block, at most
  int ranks = 0;                        // ranks of a projection of a block, at most
};

// Rows of a step with the same adapter, at most kMost of them.
struct AdapterChunk {
  static constexpr int kMost = 32;
  const Adapter* adapter;
  int first, count;  // of AdapterRows::rows
};

// The rows of a step with adapters, grouped by adapter.
class AdapterRows {
 public:
  std::vector<int32_t> rows;
  std::vector<AdapterChunk> chunks;
  int tiles[kAdaptedProjections] = {};
  int ranks = 0;

  // `slots`: of each row the adapter's, -1 for none; shorter lists stand for rows without.
  void list(const std::vector<int32_t>& slots, const std::vector<std::unique_ptr<Adapter>>& adapters) {
    rows.clear();
    chunks.clear();
    std::fill(tiles, tiles + kAdaptedProjections, 0);
    ranks = 0;
    for (size_t slot = 0; slot < adapters.size() && !slots.empty(); ++slot) {
      const int begin = int(rows.size());
      for (size_t row = 0; row < slots.size(); ++row)
        if (slots[row] == int32_t(slot)) rows.push_back(int32_t(row));
      add_chunks(adapters[slot].get(), begin);
    }
  }

  // Calls body(row, row + 1) for each of them in [first, last).
  template <typename Body>
  void for_rows(int first, int last, const Body& body) const {
    for (const int32_t row : rows)
      if (first <= row && row < last) body(row, row + 1);
  }

  bool any() const { return !chunks.empty(); }
  bool touches(AdaptedProjection p) const { return tiles[p] > 0; }

 private:
  void add_chunks(const Adapter* adapter, int begin) {
    const int end = int(rows.size());
    if (begin == end) return;
    for (int first = begin; first < end; first += AdapterChunk::kMost)
      chunks.push_back({adapter, first, std::min(AdapterChunk::kMost, end - first)});
    ranks = std::max(ranks, adapter->ranks);
    for (int p = 0; p < kAdaptedProjections; ++p) tiles[p] = std::max(tiles[p], adapter->tiles[p]);
  }
};

inline int rank_tiles(int rank) { return (rank + kRankTile - 1) / kRankTile; }

}  // namespace aio
