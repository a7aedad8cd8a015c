// The complexity model's linear logits; `classifier.complexity.model` defines the tables and how n-grams are hashed.
#include <algorithm>
#include <array>
#include <bitset>
#include <cmath>
#include <vector>

#include "python_data.h"

namespace aio {
namespace {

constexpr int kBits = 16, kCuts = 3;
constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u, kFirst = 0xC2B2AE3D27D4EB4Fu, kSecond = 0x165667B19E3779F9u;
constexpr float kMost = 4.0f;

using Logits = std::array<float, kCuts>;
using Table = std::vector<Logits>;

struct Complexity {
  static constexpr const char* kName = "classifier.complexity";
  Table trigrams, words, embedding, surface;
  std::vector<float> centre, scale;
  Logits bias;
};

// Distinct rows in ascending order, which is the order in which the reference adds them.
struct Rows {
  std::bitset<1 << kBits> seen;
  std::vector<uint16_t> found;

  void add(uint64_t key) {
    const auto row = uint16_t((key * kMultiplier) >> (64 - kBits));
    if (!seen[row]) {
      seen[row] = true;
      found.push_back(row);
    }
  }
  void add_to(Logits& logits, const Table& table) {
    if (found.empty()) return;
    Logits sum{};
    std::sort(found.begin(), found.end());
    for (const uint16_t row : found)
      for (int k = 0; k < kCuts; k++) sum[k] += table[row][k];
    const float root = std::sqrt(float(found.size()));
    for (int k = 0; k < kCuts; k++) logits[k] += sum[k] / root;
  }
};

uint32_t crc32(const char* text, Py_ssize_t size) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < 256; i++) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; bit++) value = value & 1 ? 0xEDB88320u ^ (value >> 1) : value >> 1;
      made[i] = value;
    }
    return made;
  }();
  uint32_t value = ~0u;
  for (Py_ssize_t i = 0; i < size; i++) value = table[(value ^ uint8_t(text[i])) & 255] ^ (value >> 8);
  return ~value;
}

void add_trigrams(Rows& rows, PyObject* lowered) {
  const Py_ssize_t size = PyUnicode_GET_LENGTH(lowered);
  const int kind = PyUnicode_KIND(lowered);
  const void* text = PyUnicode_DATA(lowered);
  // A space stands at both ends; half a pair of surrogates counts as a question mark.
  const auto at = [&](Py_ssize_t i) -> uint64_t {
    if (i < 0 || i >= size) return ' ';
    const Py_UCS4 code = PyUnicode_READ(kind, text, i);
    return code >= 0xD800 && code < 0xE000 ? '?' : code;
  };
  uint64_t before = at(-1), here = at(0);
  for (Py_ssize_t i = 1; i <= size; i++) {
    const uint64_t next = at(i);
    rows.add(before * kFirst + here * kSecond + next);
    before = here, here = next;
  }
}

bool add_words(Rows& rows, PyObject* tokens) {
  uint64_t before = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tokens); i++) {
    Py_ssize_t size;
    const char* text = PyUnicode_AsUTF8AndSize(PyList_GET_ITEM(tokens, i), &size);
    if (!text) return false;
    const uint64_t word = crc32(text, size);
    rows.add(word);
    if (i > 0) rows.add(before * kFirst + word * kSecond);
    before = word;
  }
  return true;
}

Table rows_of(const Array<float>& values) {
  Table table(size_t(values.size() / kCuts));
  for (size_t i = 0; i < table.size(); i++)
    for (int k = 0; k < kCuts; k++) table[i][k] = values.data()[i * kCuts + k];
  return table;
}

}  // namespace

// (trigrams [rows, 3], words [rows, 3], embedding [d, 3], surface [f, 3], centre [f], scale [f], bias [3]) -> capsule.
PyObject* make_complexity(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 7, "make_complexity")) return nullptr;
  Array<float> trigrams(values[0]), words(values[1]), embedding(values[2]), surface(values[3]), centre(values[4]),
      scale(values[5]), bias(values[6]);
  if (trigrams.failed || words.failed || embedding.failed || surface.failed || centre.failed || scale.failed ||
      bias.failed)
    return nullptr;
  const Py_ssize_t rows = Py_ssize_t(kCuts) << kBits;
  if (!trigrams.has(rows, "trigrams") || !words.has(rows, "words") || !bias.has(kCuts, "bias") ||
      !surface.has(kCuts * centre.size(), "surface") || !scale.has(centre.size(), "scale"))
    return nullptr;
  auto* made = new Complexity{rows_of(trigrams), rows_of(words), rows_of(embedding), rows_of(surface),
                              {centre.begin(), centre.end()}, {scale.begin(), scale.end()}, {}};
  std::copy(bias.begin(), bias.end(), made->bias.begin());
  return capsule(made);
}

// (complexity, lower-case turn, list of words, features [f], embedding [d], logits [3] to write) -> None.
PyObject* complexity_logits(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 6, "complexity_logits")) return nullptr;
  const Complexity* model = held<Complexity>(values[0]);
  if (!model) return nullptr;
  if (!PyUnicode_Check(values[1]) || !PyList_Check(values[2]))
    return PyErr_Format(PyExc_TypeError, "complexity_logits takes a turn and a list of its words");
  Array<float> features(values[3]), embedding(values[4]), written(values[5], true);
  if (features.failed || embedding.failed || written.failed) return nullptr;
  if (!features.has(Py_ssize_t(model->surface.size()), "features") ||
      !embedding.has(Py_ssize_t(model->embedding.size()), "embedding") || !written.has(kCuts, "logits"))
    return nullptr;
  Logits logits = model->bias;
  for (size_t i = 0; i < model->surface.size(); i++) {
    float value = (features.data()[i] - model->centre[i]) / model->scale[i];
    value = value > kMost ? kMost : value < -kMost ? -kMost : value;
    for (int k = 0; k < kCuts; k++) logits[k] += value * model->surface[i][k];
  }
  for (size_t i = 0; i < model->embedding.size(); i++)
    for (int k = 0; k < kCuts; k++) logits[k] += embedding.data()[i] * model->embedding[i][k];
  Rows trigrams, words;
  add_trigrams(trigrams, values[1]);
  if (!add_words(words, values[2])) return nullptr;
  trigrams.add_to(logits, model->trigrams);
  words.add_to(logits, model->words);
  std::copy(logits.begin(), logits.end(), written.data());
  Py_RETURN_NONE;
}

}  // namespace aio
