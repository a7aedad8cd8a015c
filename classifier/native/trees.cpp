// Boosted trees over one row of features; `classifier.encoders.boosted_trees` documents the arrays.
#include <vector>

#include "python_data.h"

namespace aio {
namespace {

struct Node {
  int32_t feature;  // -1: a leaf
  float number;     // threshold, or a leaf's value
  int32_t left, right;
};

struct Trees {
  static constexpr const char* kName = "classifier.trees";
  int features, heads;
  std::vector<Node> nodes;
  std::vector<int32_t> roots, head;
};

}  // namespace

// (feature [N], threshold [N], left [N], right [N], value [N], root [T], head [T], number of features, of heads)
// -> capsule. The caller guarantees that every child comes after its parent.
PyObject* make_trees(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 9, "make_trees")) return nullptr;
  Array<int32_t> feature(values[0]), left(values[2]), right(values[3]), root(values[5]), head(values[6]);
  Array<float> threshold(values[1]), value(values[4]);
  if (feature.failed || left.failed || right.failed || root.failed || head.failed || threshold.failed || value.failed)
    return nullptr;
  const Py_ssize_t nodes = feature.size();
  if (!threshold.has(nodes, "threshold") || !left.has(nodes, "left") || !right.has(nodes, "right") ||
      !value.has(nodes, "value") || !head.has(root.size(), "head"))
    return nullptr;
  const long features = PyLong_AsLong(values[7]), heads = PyLong_AsLong(values[8]);
  if (PyErr_Occurred()) return nullptr;
  auto* made = new Trees{int(features), int(heads), {}, {root.begin(), root.end()}, {head.begin(), head.end()}};
  for (Py_ssize_t i = 0; i < nodes; i++) {
    const bool leaf = left.data()[i] == i;
    made->nodes.push_back({leaf ? -1 : feature.data()[i], leaf ? value.data()[i] : threshold.data()[i], left.data()[i],
                           right.data()[i]});
  }
  return capsule(made);
}

// (trees, features, logits [h] to add to) -> None.
PyObject* add_trees(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 3, "add_trees")) return nullptr;
  const Trees* trees = held<Trees>(values[0]);
  if (!trees) return nullptr;
  Array<float> features(values[1]), logits(values[2], true);
  if (features.failed || logits.failed) return nullptr;
  if (!features.has(trees->features, "features") || !logits.has(trees->heads, "logits")) return nullptr;
  const float* x = features.data();
  const Node* nodes = trees->nodes.data();
  for (size_t t = 0; t < trees->roots.size(); t++) {
    const Node* node = nodes + trees->roots[t];
    // A feature that is no number goes right, as in the reference.
    while (node->feature >= 0) node = nodes + (x[node->feature] <= node->number ? node->left : node->right);
    logits.data()[trees->head[t]] += node->number;
  }
  Py_RETURN_NONE;
}

}  // namespace aio
