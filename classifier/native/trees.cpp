// Boosted trees, from the arrays that `classifier.encoders.boosted_trees` documents.
#include "trees.h"

#include "python_data.h"

namespace aio {

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

}  // namespace aio
