// Splits the attention of a batch into units of similar length for a thread pool. The division into units never changes
// a result.
#pragma once
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "aligned_buffer.h"
#include "kernels.h"

namespace aio {

// Queries of one unit: enough to share converted keys and values, few enough to balance threads and to stay in cache.
inline int query_tile(int group) { return group >= 96 ? 1 : 96 / group; }

// Floats of scratch that one thread needs for any unit.
inline int64_t attention_scratch_floats(int group, int head_dim) {
  const int64_t rows = int64_t(query_tile(group)) * group, d = head_dim;
  return rows * (4 * d + 2 * kChunk + kLanes + 16) + 2 * kChunk * d + 2048;
}

// Partial result of one partition of a tile: accumulators [rows, head_dim], peaks [rows], totals [rows].
inline int64_t partial_floats(int rows, int head_dim) { return int64_t(rows) * (head_dim + 2); }

// Queries [first, last) of a sequence, counted from its first query of this step; of one arithmetic.
struct QueryRange {
  int sequence, first, last;
  bool prompt;
};

// The units of one batch, shared by all layers of a step. Reused between steps, so that it rarely allocates.
class AttentionUnits {
 public:
  // All queries of the batch. Of `args` only the shape and the batch's tables are read.
  void list(const AttentionArgs& args, int sequences, int threads);
  // Only the given tokens of it, ascending.
  void list(const AttentionArgs& args, const std::vector<int32_t>& tokens, int threads);

  size_t size() const { return units_.size(); }

  // Points `args` to this list's room for partial results.
  void lend(AttentionArgs& args) {
    args.partials = partials_.data();
    args.unfinished = unfinished_.get();
  }

  // Computes units until none is left; called by every thread with the same `next`, which starts at 0.
  void drain(const KernelTable& kernels, const AttentionArgs& args, std::atomic<int>& next, float* scratch) const {
    const auto take = [&] {
      const size_t i = size_t(next.fetch_add(1, std::memory_order_relaxed));
      return i < units_.size() ? &units_[i] : nullptr;
    };
    for (const AttentionUnit *unit = take(), *following; unit; unit = following) {
      following = take();
      (unit->prompt ? kernels.attend_prompt : kernels.attend)(args, *unit, following, scratch);
    }
  }

 private:
  static bool is_prompt(const AttentionArgs& a, int sequence, int query) {
    return a.prompt && a.prompt[a.query_start[sequence] + query];
  }
  void cut(const AttentionArgs& args, int threads);
  void add_tile(AttentionUnit tile, int64_t most, int rows, int head_dim);

  std::vector<QueryRange> tiles_;
  std::vector<AttentionUnit> units_;
  AlignedBuffer<float> partials_;
  std::unique_ptr<std::atomic<int>[]> unfinished_;
  int counters_ = 0, splits_ = 0;
  int64_t partial_floats_ = 0;
};

inline void AttentionUnits::list(const AttentionArgs& a, int sequences, int threads) {
  const int most = query_tile(a.heads / a.kv_heads);
  tiles_.clear();
  for (int s = 0; s < sequences; ++s)
    for (int first = 0, queries = a.query_start[s + 1] - a.query_start[s], last; first < queries; first = last) {
      const bool prompt = is_prompt(a, s, first);
      for (last = first + 1; last < std::min(first + most, queries) && is_prompt(a, s, last) == prompt;) ++last;
      tiles_.push_back({s, first, last, prompt});
    }
  cut(a, threads);
}

inline void AttentionUnits::list(const AttentionArgs& a, const std::vector<int32_t>& tokens, int threads) {
  const int most = query_tile(a.heads / a.kv_heads);
  tiles_.clear();
  int s = 0;
  for (const int32_t token : tokens) {
    while (token >= a.query_start[s + 1]) ++s;
    const int query = token - a.query_start[s];
    QueryRange* last = tiles_.empty() ? nullptr : &tiles_.back();
    const bool prompt = is_prompt(a, s, query);
    if (last && last->sequence == s && last->last == query && query - last->first < most && last->prompt == prompt)
      ++last->last;
    else
      tiles_.push_back({s, query, query + 1, prompt});
  }
  cut(a, threads);
}

inline void AttentionUnits::cut(const AttentionArgs& a, int threads) {
  units_.clear();
  splits_ = 0;
  partial_floats_ = 0;
  const auto offset = [&](int s) { return a.context_len[s] - (a.query_start[s + 1] - a.query_start[s]); };
  const auto cost = [&](const AttentionUnit& unit) {  // in tokens times queries
    const int end = std::min(unit.end * kPartition, offset(unit.sequence) + unit.last);
    return int64_t(end - unit.begin * kPartition) * (unit.last - unit.first);
  };
  const auto whole = [&](const QueryRange& tile) {
    const int first = offset(tile.sequence) + tile.first, last = offset(tile.sequence) + tile.last - 1;
    const int oldest = a.window ? std::max(0, first - a.window + 1) : 0;
    return AttentionUnit{tile.sequence, tile.first, tile.last, 0, oldest / kPartition, last / kPartition + 1,
                         tile.prompt, -1, 1, 0};
  };
  int64_t total = 0;
  for (const QueryRange& tile : tiles_) total += cost(whole(tile)) * a.kv_heads;
  // A tile may take a quarter of a thread's share before it is worth splitting.
  const int64_t most = threads > 1 ? total / (4 * threads) : total;
  for (const QueryRange& tile : tiles_) {
    AttentionUnit unit = whole(tile);
    const int rows = (tile.last - tile.first) * (a.heads / a.kv_heads);
    for (unit.kv_head = 0; unit.kv_head < a.kv_heads; ++unit.kv_head) add_tile(unit, most, rows, a.head_dim);
  }
  // Longest first, so that no thread starts a long unit when the others are done. Equal ones stay in order:
  // neighbouring heads of a sequence lie next to each other in memory.
  std::stable_sort(units_.begin(), units_.end(),
                   [&](const AttentionUnit& x, const AttentionUnit& y) { return cost(x) > cost(y); });
  partials_.reserve(size_t(partial_floats_));
  if (counters_ < splits_) {
    unfinished_ = std::make_unique<std::atomic<int>[]>(size_t(splits_));
    counters_ = splits_;
  }
  for (const AttentionUnit& unit : units_)
    if (unit.split >= 0) unfinished_[size_t(unit.split)].store(unit.units, std::memory_order_relaxed);
}

inline void AttentionUnits::add_tile(AttentionUnit tile, int64_t most, int rows, int head_dim) {
  const int partitions = tile.end - tile.begin, queries = tile.last - tile.first;
  const int each = int(std::min<int64_t>(partitions, std::max<int64_t>(1, most / (int64_t(kPartition) * queries))));
  if (each == partitions) {
    units_.push_back(tile);
    return;
  }
  tile.split = splits_++;
  tile.units = (partitions + each - 1) / each;
  tile.partial = partial_floats_ - tile.begin * partial_floats(rows, head_dim);
  partial_floats_ += partitions * partial_floats(rows, head_dim);
  for (int begin = tile.begin; begin < tile.end; begin += each) {
    AttentionUnit unit = tile;
    unit.begin = begin;
    unit.end = std::min(begin + each, tile.end);
    units_.push_back(unit);
  }
}

}  // namespace aio
