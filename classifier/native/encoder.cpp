// One turn through the static encoder: words and pairs to rows of its table, their weighted sum, its length.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "turn.h"

namespace aio {
namespace {

constexpr int kCounted = 1024;

// Pairs by open addressing: most pairs of a turn are unknown, and a miss costs one look.
struct PairTable {
  struct Entry {
    uint64_t key = 0;  // 0 is a free place: keys are stored plus 1
    int32_t row = 0;
  };
  std::vector<Entry> entries;
  uint64_t mask = 0;

  void fill(const int32_t* pairs, size_t count, int32_t first_row) {
    size_t places = 16;
    while (places < 2 * count + 1) places *= 2;
    entries.assign(places, {}), mask = places - 1;
    for (size_t i = 0; i < count; i++) {
      uint64_t place = at(key(pairs[2 * i], pairs[2 * i + 1]));
      while (entries[place].key) place = (place + 1) & mask;
      entries[place] = {key(pairs[2 * i], pairs[2 * i + 1]), first_row + int32_t(i)};
    }
  }
  static uint64_t key(uint32_t first, uint32_t second) { return ((uint64_t(first) << 32) | second) + 1; }
  uint64_t at(uint64_t key) const { return ((key * 0x9e3779b97f4a7c15u) >> 20) & mask; }
  void prefetch(uint64_t key) const { __builtin_prefetch(&entries[at(key)]); }
  int32_t find(uint64_t key) const {
    for (uint64_t place = at(key); entries[place].key; place = (place + 1) & mask)
      if (entries[place].key == key) return entries[place].row;
    return -1;
  }
};

}  // namespace

struct Encoder {
  static constexpr const char* kName = "classifier.encoder";
  WordTable index;  // the rows of words
  PairTable pairs;
  int rows, dim, stride;
  // A row of the table in memory: int8 [dim], padded, then its scale and its idf, adjacent for the cache.
  std::vector<unsigned char> table;
  float sublinear[kCounted];

  int padded() const { return (dim + 3) / 4 * 4; }
  const int8_t* values(int row) const { return reinterpret_cast<const int8_t*>(&table[size_t(row) * stride]); }
  // Asks for a row, which is longer than a line of the cache.
  void prefetch(int row) const {
    for (int at = 0; at < stride; at += 64) __builtin_prefetch(&table[size_t(row) * stride + at]);
    __builtin_prefetch(numbers(row) + 1);
  }
  const float* numbers(int row) const {
    return reinterpret_cast<const float*>(&table[size_t(row) * stride + padded()]);
  }
};

namespace {

AIO_CLONES void add_row(const int8_t* values, float weight, int dim, float* sum) {
  for (int k = 0; k < dim; k++) sum[k] += weight * float(values[k]);
}

// The rows of the table that the words name, ascending, with repetitions.
std::vector<int32_t> find_rows(const Encoder& encoder, const Words& words) {
  const size_t count = words.size();
  std::vector<int32_t> ids(count), rows;
  rows.reserve(count * 2);
  for (const Word& word : words) encoder.index.prefetch(word.hash);
  for (size_t i = 0; i < count; i++) {
    ids[i] = encoder.index.find(words[i].hash, -1);
    if (ids[i] < 0) continue;
    rows.push_back(ids[i]);
    encoder.prefetch(ids[i]);
    if (i && ids[i - 1] >= 0) encoder.pairs.prefetch(PairTable::key(ids[i - 1], ids[i]));
  }
  for (size_t i = 1; i < count; i++) {
    if (ids[i - 1] < 0 || ids[i] < 0) continue;
    const int32_t row = encoder.pairs.find(PairTable::key(ids[i - 1], ids[i]));
    if (row < 0) continue;
    rows.push_back(row);
    encoder.prefetch(row);
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace

const Encoder* encoder_in(PyObject* capsule) { return held<Encoder>(capsule); }
int dimension(const Encoder& encoder) { return encoder.dim; }

void embed(const Encoder& encoder, const Words& words, float* sum) {
  const std::vector<int32_t> rows = find_rows(encoder, words);
  std::fill_n(sum, encoder.dim, 0.0f);
  float squares = 0;
  for (size_t i = 0, next; i < rows.size(); i = next) {
    for (next = i + 1; next < rows.size() && rows[next] == rows[i]; next++) {
    }
    const float* numbers = encoder.numbers(rows[i]);
    const float weight = encoder.sublinear[std::min<size_t>(next - i, kCounted - 1)] * numbers[1];
    squares += weight * weight;
    add_row(encoder.values(rows[i]), weight * numbers[0], encoder.dim, sum);
  }
  const float unit = squares > 0 ? 1.0f / std::sqrt(squares) : 0.0f;
  float length = 0;
  for (int k = 0; k < encoder.dim; k++) {
    sum[k] *= unit;
    length += sum[k] * sum[k];
  }
  length = std::sqrt(length);
  for (int k = 0; k < encoder.dim; k++) sum[k] = length > 1e-6f ? sum[k] / length : 0.0f;
}

// (index dict, pairs int32 [P, 2], idf [R], table int8 [R, d], scale [R]) -> capsule.
PyObject* make_encoder(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 5, "make_encoder")) return nullptr;
  if (!PyDict_Check(values[0])) return PyErr_Format(PyExc_TypeError, "the index is no dict");
  Array<int32_t> pairs(values[1]);
  Array<float> idf(values[2]), scale(values[4]);
  Array<int8_t> table(values[3]);
  if (pairs.failed || idf.failed || scale.failed || table.failed) return nullptr;
  const Py_ssize_t rows = idf.size(), words = PyDict_GET_SIZE(values[0]);
  const Py_ssize_t dim = rows ? table.size() / rows : 0;
  if (!scale.has(rows, "scale") || !table.has(rows * dim, "table") || !pairs.has(2 * (rows - words), "pairs"))
    return nullptr;
  auto made = std::make_unique<Encoder>();
  if (!made->index.fill(values[0])) return nullptr;
  made->rows = int(rows), made->dim = int(dim);
  made->stride = made->padded() + 4 * 2;
  made->table.resize(size_t(rows) * made->stride);
  for (Py_ssize_t row = 0; row < rows; row++) {
    unsigned char* place = &made->table[size_t(row) * made->stride];
    std::memcpy(place, table.data() + row * dim, dim);
    auto* numbers = reinterpret_cast<float*>(place + made->padded());
    numbers[0] = scale.data()[row], numbers[1] = idf.data()[row];
  }
  for (int n = 0; n < kCounted; n++) made->sublinear[n] = 1.0f + float(std::log(double(std::max(n, 1))));
  made->pairs.fill(pairs.data(), size_t(pairs.size()) / 2, int32_t(words));
  return capsule(made.release());
}

// (encoder, table int8 [R, d], scale [R], both to write) -> None: what `make_encoder` was given, which Python need not
// keep a second time.
PyObject* read_encoder(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 3, "read_encoder")) return nullptr;
  const Encoder* encoder = held<Encoder>(values[0]);
  if (!encoder) return nullptr;
  Array<int8_t> table(values[1], true);
  Array<float> scale(values[2], true);
  if (table.failed || scale.failed) return nullptr;
  const Py_ssize_t rows = encoder->rows, dim = encoder->dim;
  if (!table.has(rows * dim, "table") || !scale.has(rows, "scale")) return nullptr;
  for (int row = 0; row < rows; row++) {
    std::memcpy(table.data() + row * dim, encoder->values(row), dim);
    scale.data()[row] = encoder->numbers(row)[0];
  }
  Py_RETURN_NONE;
}

// (encoder, tokens, embedding [d] to write) -> None.
PyObject* encode(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 3, "encode")) return nullptr;
  const Encoder* encoder = held<Encoder>(values[0]);
  if (!encoder) return nullptr;
  Array<float> embedding(values[2], true);
  if (embedding.failed || !embedding.has(encoder->dim, "embedding")) return nullptr;
  Words words;
  if (!words_of(values[1], words)) return nullptr;
  embed(*encoder, words, embedding.data());
  Py_RETURN_NONE;
}

}  // namespace aio
