// Boosted trees over one row of features; `classifier.encoders.boosted_trees` documents the arrays.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aio {

struct Trees {
  static constexpr const char* kName = "classifier.trees";
  struct Node {
    int32_t feature;  // -1: a leaf
    float number;     // threshold, or a leaf's value
    int32_t left, right;
  };
  int features, heads;
  std::vector<Node> nodes;
  std::vector<int32_t> roots, head;

  // Adds the trees' values for the features `x` to `logits` [heads].
  void add_to(float* logits, const float* x) const {
    for (std::size_t t = 0; t < roots.size(); t++) {
      const Node* node = &nodes[roots[t]];
      // A feature that is no number goes right, as in the reference.
      while (node->feature >= 0) node = &nodes[x[node->feature] <= node->number ? node->left : node->right];
      logits[head[t]] += node->number;
    }
  }
};

}  // namespace aio
