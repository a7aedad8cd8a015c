// Boosted trees, from the arrays that `classifier.encoders.boosted_trees` documents.
#include "trees.h"

#include <limits>

#include "python_data.h"

namespace aio {

// (feature [N], threshold [N], left [N], right [N], value [N], root [T], head [T], number of features, of heads)
// -> capsule. The caller guarantees that every child comes after its parent, and that no node has two.
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
  constexpr int kBits = Trees::kFeatureBits;
  if (features < 0 || features >= 1 << kBits || nodes >= Py_ssize_t(1) << (32 - kBits))
    return PyErr_Format(PyExc_ValueError, "trees of %ld features and %zd nodes are too many", features, nodes);
  auto* made = new Trees{int(features), int(heads), {}, {}, {}, {head.begin(), head.end()}, {}};
  made->depths.assign(size_t(root.size() + Trees::kTogether - 1) / Trees::kTogether, 0);
  std::vector<std::pair<int32_t, int32_t>> level;  // nodes of one tree by level, with their depth
  for (Py_ssize_t tree = 0; tree < root.size(); tree++) {
    const auto base = uint32_t(made->nodes.size());
    made->roots.push_back(base);
    level.assign(1, {root.data()[tree], 0});
    for (size_t i = 0; i < level.size(); i++) {
      const auto [node, depth] = level[i];
      const bool leaf = left.data()[node] == node;
      const uint32_t next = base + uint32_t(leaf ? i : level.size());
      made->nodes.push_back({leaf ? std::numeric_limits<float>::infinity() : threshold.data()[node],
                             next << kBits | uint32_t(leaf ? features : feature.data()[node])});
      made->values.push_back(leaf ? value.data()[node] : 0);
      auto& deepest = made->depths[size_t(tree) / Trees::kTogether];
      deepest = std::max(deepest, depth);
      if (!leaf) level.emplace_back(left.data()[node], depth + 1), level.emplace_back(right.data()[node], depth + 1);
    }
  }
  return capsule(made);
}

}  // namespace aio
