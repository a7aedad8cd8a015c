// The complexity model; `classifier.complexity.model` defines the tables, how n-grams are hashed, and the classes.
#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <vector>

#include "trees.h"
#include "turn.h"

namespace aio {
namespace {

constexpr int kBits = 16, kCuts = 3;
constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u, kFirst = 0xC2B2AE3D27D4EB4Fu, kSecond = 0x165667B19E3779F9u;
constexpr float kMost = 4.0f;
constexpr double kLeast = 0.002, kMostLogit = 30.0;

using Logits = std::array<float, kCuts>;
using Table = std::vector<Logits>;

}  // namespace

struct Complexity {
  static constexpr const char* kName = "classifier.complexity";
  Table trigrams, words, embedding, surface;
  std::vector<float> centre, scale;
  Logits bias, tree_bias;
};

namespace {

// Distinct rows of a table in ascending order, which is the order in which the reference adds them.
struct Rows {
  const Table& table;
  std::array<uint64_t, (1 << kBits) / 64> seen{};
  std::array<uint64_t, (1 << kBits) / 64 / 64> touched{};  // which of `seen` are not 0

  void add(uint64_t key) {
    const uint64_t row = (key * kMultiplier) >> (64 - kBits), word = row / 64;
    seen[word] |= uint64_t(1) << row % 64;
    touched[word / 64] |= uint64_t(1) << word % 64;
    __builtin_prefetch(&table[row]);
  }
  void add_to(Logits& logits) const {
    Logits sum{};
    int found = 0;
    for (size_t i = 0; i < touched.size(); i++)
      for (uint64_t words = touched[i]; words; words &= words - 1) {
        const size_t word = i * 64 + size_t(__builtin_ctzll(words));
        for (uint64_t bits = seen[word]; bits; bits &= bits - 1, found++) {
          const Logits& row = table[word * 64 + size_t(__builtin_ctzll(bits))];
          for (int k = 0; k < kCuts; k++) sum[k] += row[k];
        }
      }
    if (!found) return;
    const float root = std::sqrt(float(found));
    for (int k = 0; k < kCuts; k++) logits[k] += sum[k] / root;
  }
};

// `at(i)` is a character of the lower-case text of so many; a space stands at both ends.
template <typename At>
void add_trigrams(Rows& rows, Py_ssize_t size, At at) {
  uint64_t before = ' ', here = size ? at(0) : ' ';
  for (Py_ssize_t i = 1; i <= size; i++) {
    const uint64_t next = i < size ? at(i) : ' ';
    rows.add(before * kFirst + here * kSecond + next);
    before = here, here = next;
  }
}

void add_words(Rows& rows, const Words& words) {
  for (size_t i = 0; i < words.size(); i++) {
    rows.add(words[i].crc);
    if (i > 0) rows.add(words[i - 1].crc * kFirst + words[i].crc * kSecond);
  }
}

Table rows_of(const Array<float>& values) {
  Table table(size_t(values.size() / kCuts));
  for (size_t i = 0; i < table.size(); i++)
    for (int k = 0; k < kCuts; k++) table[i][k] = values.data()[i * kCuts + k];
  return table;
}

// The logits before the trees.
Logits linear_logits(const Complexity& model, const float* features, const float* embedding, const Rows& trigrams,
                     const Rows& words) {
  Logits logits = model.bias;
  for (size_t i = 0; i < model.surface.size(); i++) {
    float value = (features[i] - model.centre[i]) / model.scale[i];
    value = value > kMost ? kMost : value < -kMost ? -kMost : value;
    for (int k = 0; k < kCuts; k++) logits[k] += value * model.surface[i][k];
  }
  for (size_t i = 0; i < model.embedding.size(); i++)
    for (int k = 0; k < kCuts; k++) logits[k] += embedding[i] * model.embedding[i][k];
  trigrams.add_to(logits);
  words.add_to(logits);
  return logits;
}

// P of each class from the logits of P(class <= k); a running maximum orders cuts that cross.
std::array<double, kCuts + 1> classes_of(const Logits& logits) {
  std::array<double, kCuts + 1> found;
  double below = 0, total = 0;
  for (int k = 0; k < kCuts; k++) {
    const double logit = std::min(std::max(double(logits[k]), -kMostLogit), kMostLogit);
    const double cumulative = std::max(below, 1.0 / (1.0 + std::exp(-logit)));
    found[k] = cumulative - below;
    below = cumulative;
  }
  found[kCuts] = 1.0 - below;
  for (double& p : found) total += p = std::max(p, kLeast);
  for (double& p : found) p /= total;
  return found;
}

PyObject* list_of(const std::array<double, kCuts + 1>& values) {
  PyObject* list = PyList_New(Py_ssize_t(values.size()));
  for (size_t i = 0; list && i < values.size(); i++) {
    PyObject* value = PyFloat_FromDouble(values[i]);
    if (value) PyList_SET_ITEM(list, Py_ssize_t(i), value);
    else Py_CLEAR(list);
  }
  return list;
}

}  // namespace

// (trigrams [rows, 3], words [rows, 3], embedding [d, 3], surface [f, 3], centre [f], scale [f], bias [3], tree bias [3])
// -> capsule.
PyObject* make_complexity(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 8, "make_complexity")) return nullptr;
  Array<float> trigrams(values[0]), words(values[1]), embedding(values[2]), surface(values[3]), centre(values[4]),
      scale(values[5]), bias(values[6]), tree_bias(values[7]);
  if (trigrams.failed || words.failed || embedding.failed || surface.failed || centre.failed || scale.failed ||
      bias.failed || tree_bias.failed)
    return nullptr;
  const Py_ssize_t rows = Py_ssize_t(kCuts) << kBits;
  if (!trigrams.has(rows, "trigrams") || !words.has(rows, "words") || !bias.has(kCuts, "bias") ||
      !tree_bias.has(kCuts, "tree bias") || !surface.has(kCuts * centre.size(), "surface") || !scale.has(centre.size(), "scale"))
    return nullptr;
  auto* made = new Complexity{rows_of(trigrams), rows_of(words), rows_of(embedding), rows_of(surface),
                              {centre.begin(), centre.end()}, {scale.begin(), scale.end()}, {}, {}};
  std::copy(bias.begin(), bias.end(), made->bias.begin());
  std::copy(tree_bias.begin(), tree_bias.end(), made->tree_bias.begin());
  return capsule(made);
}

namespace {

template <typename At>
PyObject* probabilities(const Complexity& model, const Trees& trees, Py_ssize_t size, At at, const Words& tokens,
                        const float* features, const float* embedding) {
  Rows trigrams{model.trigrams}, words{model.words};
  add_trigrams(trigrams, size, at);
  add_words(words, tokens);
  const Logits linear = linear_logits(model, features, embedding, trigrams, words);
  float inputs[1 << Trees::kFeatureBits];
  std::copy(linear.begin(), linear.end(), std::copy_n(features, model.surface.size(), inputs));
  Logits logits;
  for (int k = 0; k < kCuts; k++) logits[k] = linear[k] + model.tree_bias[k];
  trees.add_to(logits.data(), inputs);
  for (float& logit : logits) logit /= 2;
  return list_of(classes_of(logits));
}

}  // namespace

const Complexity* complexity_in(PyObject* capsule) { return held<Complexity>(capsule); }

bool fits(const Complexity& model, const Trees& trees, Py_ssize_t features, Py_ssize_t embedding) {
  const auto surface = Py_ssize_t(model.surface.size()), dim = Py_ssize_t(model.embedding.size());
  for (const auto& [name, given, wanted] : {std::tuple{"features", features, surface}, {"embedding", embedding, dim},
                                            {"features", features, Py_ssize_t(trees.features - kCuts)}})
    if (given != wanted)
      return PyErr_Format(PyExc_ValueError, "%s has %zd numbers; %zd are wanted", name, given, wanted), false;
  if (trees.heads != kCuts) return PyErr_Format(PyExc_ValueError, "trees of %d heads", trees.heads), false;
  return true;
}

PyObject* probabilities(const Complexity& model, const Trees& trees, std::string_view lower, const Words& words,
                        const float* features, const float* embedding) {
  const auto at = [&](Py_ssize_t i) { return uint64_t(lower[size_t(i)]); };
  return probabilities(model, trees, Py_ssize_t(lower.size()), at, words, features, embedding);
}

// (complexity, trees, lower-case turn, sequence of words, features [f], embedding [d]) -> P of the four classes, as a
// list.
PyObject* class_probabilities(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 6, "class_probabilities")) return nullptr;
  const Complexity* model = held<Complexity>(values[0]);
  const Trees* trees = model ? held<Trees>(values[1]) : nullptr;
  if (!trees) return nullptr;
  if (!PyUnicode_Check(values[2])) return PyErr_Format(PyExc_TypeError, "class_probabilities takes a turn's text");
  Array<float> features(values[4]), embedding(values[5]);
  if (features.failed || embedding.failed || !fits(*model, *trees, features.size(), embedding.size())) return nullptr;
  Words words;
  if (!words_of(values[3], words)) return nullptr;
  const int kind = PyUnicode_KIND(values[2]);
  const void* text = PyUnicode_DATA(values[2]);
  const auto at = [&](Py_ssize_t i) -> uint64_t {
    const Py_UCS4 code = PyUnicode_READ(kind, text, i);
    return code >= 0xD800 && code < 0xE000 ? '?' : code;  // half a pair of surrogates
  };
  const Py_ssize_t size = PyUnicode_GET_LENGTH(values[2]);
  return probabilities(*model, *trees, size, at, words, features.data(), embedding.data());
}

}  // namespace aio
