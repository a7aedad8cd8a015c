// Boosted trees over one row of features; `classifier.encoders.boosted_trees` documents the arrays.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aio {

struct Trees {
  static constexpr const char* kName = "classifier.trees";
  static constexpr int kFeatureBits = 8, kTogether = 8;
  // The right child is the one after the left. A leaf leads to itself, by a feature of 0 beyond the given ones.
  struct Node {
    float threshold;
    uint32_t next;  // the left child, then the feature in the last bits
  };
  int features, heads;
  std::vector<Node> nodes;
  std::vector<float> values;        // of leaves
  std::vector<uint32_t> roots;
  std::vector<int32_t> head, depths;  // of each tree; of each `kTogether` trees, the depth of the deepest

  // Adds the trees' values for the features `given` to `logits` [heads].
  void add_to(float* logits, const float* given) const {
    float x[1 << kFeatureBits];
    *std::copy_n(given, features, x) = 0;
    // Several trees go down together and none stops early: no branch to mispredict, and no tree waits for another's node.
    std::size_t tree = 0;
    for (; tree + kTogether <= roots.size(); tree += kTogether) {
      uint32_t at[kTogether];
      for (int t = 0; t < kTogether; t++) at[t] = roots[tree + t];
      for (int32_t level = depths[tree / kTogether]; level; level--)
#pragma GCC unroll 8
        for (int t = 0; t < kTogether; t++) at[t] = below(nodes[at[t]], x);
      for (int t = 0; t < kTogether; t++) logits[head[tree + t]] += values[at[t]];
    }
    for (; tree < roots.size(); tree++) {
      uint32_t at = roots[tree];
      for (int32_t level = depths[tree / kTogether]; level; level--) at = below(nodes[at], x);
      logits[head[tree]] += values[at];
    }
  }

 private:
  static uint32_t below(Node node, const float* x) {
    // A feature that is no number goes right, as in the reference.
    return (node.next >> kFeatureBits) + !(x[node.next & ((1 << kFeatureBits) - 1)] <= node.threshold);
  }
};

}  // namespace aio
