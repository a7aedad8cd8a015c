// A BERT-like encoder in INT8: token ids to the mean of the last hidden states. Weights have one scale an output channel,
// activations one a token; LayerNorm, softmax and GELU are float32. All instruction sets give the same integers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "int8_tiles.h"
#include "python_data.h"

namespace aio {
namespace {

constexpr int kLanes = 16;  // floats of a vector; the widths of a model are multiples of it
constexpr int kQueries = 8; // queries that attention computes at a time

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

#define AIO_INLINE inline __attribute__((always_inline))

constexpr size_t padded(size_t n, size_t to) { return (n + to - 1) / to * to; }

AIO_INLINE Floats load(const float* from) {
  Floats v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
AIO_INLINE void store(float* to, const Floats& v) { std::memcpy(to, &v, sizeof v); }
AIO_INLINE float sum_of(const Floats& v) {
  float sum = 0;
  for (int i = 0; i < kLanes; i++) sum += v[i];
  return sum;
}
// The largest of `count` numbers, a multiple of 16: sixteen at a time, since compilers keep the order of comparisons.
AIO_INLINE float most_of(const float* row, size_t count) {
  float most[kLanes];
  std::copy_n(row, kLanes, most);
  for (size_t i = kLanes; i < count; i += kLanes)
    for (int k = 0; k < kLanes; k++) most[k] = row[i + k] > most[k] ? row[i + k] : most[k];
  for (int k = 1; k < kLanes; k++) most[0] = most[k] > most[0] ? most[k] : most[0];
  return most[0];
}

// Of single numbers, since compilers vectorise such a loop for each instruction set, but lower comparisons of `Floats`
// before they make the clones.
//
// e^x: 2^n times the polynomial of Cephes for the rest; relative error below 2e-7. Below -80 it stays 2e-35, whose products are not subnormal and so not slow.
AIO_INLINE float exp_of(float x) {
  x = x > -80.0f ? x : -80.0f;
  const float magic = x * 1.44269504f + 12582912.0f;
  int32_t n;
  std::memcpy(&n, &magic, sizeof n);
  const float whole = magic - 12582912.0f;
  const float r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  float p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  n = (n - 0x4B400000 + 127) * (1 << 23);
  float power;
  std::memcpy(&power, &n, sizeof power);
  return p * power;
}

// x P(N(0, 1) <= x), the error function by 7.1.26 of Abramowitz and Stegun: absolute error below 2e-7 |x|.
AIO_INLINE float gelu(float x) {
  const float size = (x < 0 ? -x : x) * 0.70710678f;
  const float t = 1.0f / (size * 0.3275911f + 1.0f);
  float p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float tail = p * t * exp_of(-size * size) * 0.5f;
  return x * (x < 0 ? tail : 1.0f - tail);
}

// int8 [n, k] with one scale a channel, in panels of 64 channels: [panel][k / 4][64][4]. `start` [n]: -128 times the sum
// of a channel's weights, since activations are unsigned, with 128 for 0.
struct Linear {
  int k = 0, n = 0;
  std::vector<int8_t> weights;
  std::vector<int32_t> start;
  std::vector<float> scale, bias;

  size_t steps() const { return padded(k, 4) / 4; }
  const int8_t* panel(int first) const { return &weights[size_t(first) * steps() * 4]; }

  void pack(const float* given, const float* given_bias, int inputs, int outputs) {
    k = inputs, n = outputs;
    const size_t channels = padded(n, kPanel);
    weights.assign(channels * steps() * 4, 0), start.assign(channels, 0);
    scale.assign(channels, 0.0f), bias.assign(channels, 0.0f);
    std::copy_n(given_bias, n, bias.begin());
    for (int channel = 0; channel < n; channel++) {
      const float* row = given + size_t(channel) * k;
      float most = 0;
      for (int i = 0; i < k; i++) most = std::max(most, std::fabs(row[i]));
      if (most == 0) continue;
      scale[channel] = most / 127.0f;
      int8_t* to = &weights[size_t(channel / kPanel * kPanel) * steps() * 4 + channel % kPanel * 4];
      for (int i = 0; i < k; i++) {
        const int8_t value = int8_t(std::lrintf(row[i] * (127.0f / most)));
        to[i / 4 * kPanel * 4 + i % 4] = value;
        start[channel] -= kZero * value;
      }
    }
  }
};

// Tokens as unsigned bytes [rows, stride], one scale a token.
struct Quantised {
  size_t stride = 0;
  std::vector<uint8_t> values;
  std::vector<float> scale;
};

AIO_CLONES void quantise(const float* given, int rows, int width, Quantised& into) {
  into.stride = width;
  into.values.resize(size_t(rows) * width), into.scale.resize(rows);
  std::vector<float> sizes(width);
  for (int t = 0; t < rows; t++) {
    const float* row = given + size_t(t) * width;
    for (int i = 0; i < width; i++) sizes[i] = row[i] < 0 ? -row[i] : row[i];
    const float largest = most_of(sizes.data(), width);
    const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
    into.scale[t] = largest / 127.0f;
    for (int i = 0; i < width; i += kLanes) {
      const Floats magic = load(row + i) * inverse + 12582912.0f;
      Ints n;
      std::memcpy(&n, &magic, sizeof n);
      const Bytes bytes = __builtin_convertvector(n - (0x4B400000 - kZero), Bytes);
      std::memcpy(&into.values[size_t(t) * width + i], &bytes, sizeof bytes);
    }
  }
}

// sums [rows][64] to floats `into` [rows, stride], `width` of them, perhaps through GELU; widths are multiples of 16.
AIO_CLONES void scale_tile(const int32_t* sums, const float* token_scale, const float* scale, const float* bias, int rows,
                           int width, bool through_gelu, float* into, size_t stride) {
  for (int r = 0; r < rows; r++) {
    const int32_t* sum = sums + r * kPanel;
    float* to = into + r * stride;
    for (int c = 0; c < width; c++) to[c] = float(sum[c]) * (scale[c] * token_scale[r]) + bias[c];
    if (through_gelu)
      for (int c = 0; c < width; c++) to[c] = gelu(to[c]);
  }
}

void apply(const Linear& linear, const Quantised& given, int rows, bool through_gelu, const Kernel& kernel, float* into) {
  alignas(64) int32_t sums[kMostRows * kPanel];
  const size_t bytes = linear.steps() * kPanel * 4, tiles = (size_t(rows) + kernel.rows - 1) / kernel.rows;
  for (int first = 0; first < linear.n; first += kPanel)
    for (int t = 0; t < rows; t += kernel.rows) {
      const int count = std::min(kernel.rows, rows - t);
      // The next panel's share, since a model is larger than a core's own cache.
      const int8_t* ahead = linear.panel(first) + bytes;
      if (first + kPanel < linear.n)
        for (size_t i = bytes * (t / kernel.rows) / tiles; i < bytes * (t / kernel.rows + 1) / tiles; i += 64)
          __builtin_prefetch(ahead + i);
      kernel.tile(&given.values[t * given.stride], given.stride, count, linear.panel(first), linear.steps(),
                  &linear.start[first], sums);
      scale_tile(sums, &given.scale[t], &linear.scale[first], &linear.bias[first], count,
                 std::min(kPanel, linear.n - first), through_gelu, into + size_t(t) * linear.n + first, linear.n);
    }
}

struct Norm {
  std::vector<float> weight, bias;
};

// x [rows, width] = LayerNorm(x + added).
AIO_CLONES void normalise(float* x, const float* added, int rows, int width, const Norm& norm, float epsilon) {
  for (int t = 0; t < rows; t++) {
    float* row = x + size_t(t) * width;
    const float* more = added + size_t(t) * width;
    Floats total = load(row) * 0, squares = total;
    for (int i = 0; i < width; i += kLanes) {
      const Floats v = load(row + i) + load(more + i);
      store(row + i, v);
      total += v;
    }
    const float mean = sum_of(total) / float(width);
    for (int i = 0; i < width; i += kLanes) {
      const Floats v = load(row + i) - mean;
      squares += v * v;
    }
    const float unit = 1.0f / std::sqrt(sum_of(squares) / float(width) + epsilon);
    for (int i = 0; i < width; i += kLanes)
      store(row + i, (load(row + i) - mean) * unit * load(&norm.weight[i]) + load(&norm.bias[i]));
  }
}

// Buffers of one head: queries [T8, d], transposed keys [d, T16], values [T, d16] and the weights of 8 queries [8, T16].
struct HeadBuffers {
  std::vector<float> queries, keys, values, weights;
};

// One head of attention: `qkv` [rows, 3 hidden] to its columns of `into` [rows, hidden].
AIO_CLONES void attend(const float* qkv, int rows, int hidden, int head, int width, HeadBuffers& b, float* into) {
  const size_t across = padded(rows, kLanes), wide = padded(width, kLanes);
  b.queries.assign(padded(rows, kQueries) * width, 0.0f), b.keys.assign(width * across, 0.0f);
  b.values.assign(rows * wide, 0.0f), b.weights.assign(kQueries * across, 0.0f);
  const float scale = 1.0f / std::sqrt(float(width));
  for (int t = 0; t < rows; t++) {
    const float* row = qkv + size_t(t) * 3 * hidden + head * width;
    for (int d = 0; d < width; d++) {
      b.queries[size_t(t) * width + d] = row[d] * scale;
      b.keys[d * across + t] = row[hidden + d];
      b.values[t * wide + d] = row[2 * hidden + d];
    }
  }
  for (int t = 0; t < rows; t += kQueries) {
    const float* q = &b.queries[size_t(t) * width];
    for (size_t s = 0; s < across; s += kLanes) {
      Floats sum[kQueries] = {};
      for (int d = 0; d < width; d++) {
        const Floats key = load(&b.keys[d * across + s]);
#pragma GCC unroll 8
        for (int r = 0; r < kQueries; r++) sum[r] += key * q[r * width + d];
      }
      for (int r = 0; r < kQueries; r++) store(&b.weights[r * across + s], sum[r]);
    }
    float inverse[kQueries];
    for (int r = 0; r < kQueries; r++) {
      float* weights = &b.weights[r * across];
      std::fill(weights + rows, weights + across, -1e30f);
      const float largest = most_of(weights, across);
      for (size_t s = 0; s < across; s++) weights[s] = exp_of(weights[s] - largest);
      Floats total = load(weights);
      for (size_t s = kLanes; s < across; s += kLanes) total += load(weights + s);
      inverse[r] = 1.0f / sum_of(total);
    }
    const int count = std::min(kQueries, rows - t);
    for (size_t d = 0; d < wide; d += kLanes) {
      Floats sum[kQueries] = {};
      for (int s = 0; s < rows; s++) {
        const Floats value = load(&b.values[s * wide + d]);
#pragma GCC unroll 8
        for (int r = 0; r < kQueries; r++) sum[r] += value * b.weights[r * across + s];
      }
      const size_t kept = std::min<size_t>(kLanes, width - d);
      for (int r = 0; r < count; r++) {
        const Floats mean = sum[r] * inverse[r];
        std::memcpy(into + size_t(t + r) * hidden + head * width + d, &mean, kept * sizeof(float));
      }
    }
  }
}

struct Layer {
  Linear qkv, out, up, down;
  Norm after_attention, after_ffn;
};

struct Transformer {
  static constexpr const char* kName = "classifier.transformer";
  int hidden = 0, ffn = 0, heads = 0, positions = 0;
  float epsilon = 0;
  std::vector<int8_t> words;  // [V, hidden], one scale a row
  std::vector<float> word_scale, position;
  Norm embedding;
  std::vector<Layer> layers;
  Kernel kernel;

  // The mean of the last states of `count` tokens, all within the vocabulary, at most as many as there are positions.
  void pool(const int32_t* ids, int count, float* into) const {
    std::vector<float> x(size_t(count) * hidden), more(x.size()), qkv(x.size() * 3), inner(size_t(count) * ffn);
    Quantised given;
    HeadBuffers buffers;
    const KernelState state(kernel);
    for (int t = 0; t < count; t++) {
      const int8_t* word = &words[size_t(ids[t]) * hidden];
      for (int i = 0; i < hidden; i++) x[size_t(t) * hidden + i] = float(word[i]) * word_scale[ids[t]];
    }
    normalise(x.data(), position.data(), count, hidden, embedding, epsilon);
    for (const Layer& layer : layers) {
      quantise(x.data(), count, hidden, given);
      apply(layer.qkv, given, count, false, kernel, qkv.data());
      for (int head = 0; head < heads; head++)
        attend(qkv.data(), count, hidden, head, hidden / heads, buffers, more.data());
      quantise(more.data(), count, hidden, given);
      apply(layer.out, given, count, false, kernel, more.data());
      normalise(x.data(), more.data(), count, hidden, layer.after_attention, epsilon);
      quantise(x.data(), count, hidden, given);
      apply(layer.up, given, count, true, kernel, inner.data());
      quantise(inner.data(), count, ffn, given);
      apply(layer.down, given, count, false, kernel, more.data());
      normalise(x.data(), more.data(), count, hidden, layer.after_ffn, epsilon);
    }
    std::fill_n(into, hidden, 0.0f);
    for (int t = 0; t < count; t++)
      for (int i = 0; i < hidden; i++) into[i] += x[size_t(t) * hidden + i];
    for (int i = 0; i < hidden; i++) into[i] /= float(count);
  }
};

// Reads the arrays of a model in their order; `failed` leaves a Python error set.
struct Reader {
  PyObject* arrays;
  Py_ssize_t next = 0;
  bool failed = false;

  void numbers(std::vector<float>& into, Py_ssize_t wanted, const char* name) {
    if (failed) return;
    Array<float> given(PyTuple_GET_ITEM(arrays, next++));
    failed = given.failed || !given.has(wanted, name);
    if (!failed) into.assign(given.begin(), given.end());
  }
  void norm(Norm& into, int width) {
    numbers(into.weight, width, "a norm's weight");
    numbers(into.bias, width, "a norm's bias");
  }
  void linear(Linear& into, int inputs, int outputs) {
    std::vector<float> weight, bias;
    numbers(weight, Py_ssize_t(inputs) * outputs, "a layer's weight");
    numbers(bias, outputs, "a layer's bias");
    if (!failed) into.pack(weight.data(), bias.data(), inputs, outputs);
  }
};

constexpr Py_ssize_t kOfLayer = 12, kBefore = 4;

}  // namespace

// (arrays: tuple of float32, heads, epsilon, most) -> capsule. The arrays: words [V, H], positions [P, H], the weight and
// bias [H] of the norm over their sum; then of every layer the weight [out, in] and bias [out] of queries, keys and values
// together [3H], of their output and the weight and bias of the norm after it, the same of the inner layer [F], the outer
// one and the norm after it. `most`: 0 for plain code, 1 for AVX2 at most, 2 for AVX-512 VNNI, 3 for AMX where there is any.
PyObject* make_transformer(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 4, "make_transformer")) return nullptr;
  const long heads = PyLong_AsLong(values[1]), most = PyLong_AsLong(values[3]);
  const double epsilon = PyFloat_AsDouble(values[2]);
  if (PyErr_Occurred()) return nullptr;
  const Py_ssize_t given = PyTuple_Check(values[0]) ? PyTuple_GET_SIZE(values[0]) : 0;
  if (given <= kBefore || (given - kBefore) % kOfLayer)
    return PyErr_Format(PyExc_ValueError, "%zd arrays are no layers of %zd after %zd", given, kOfLayer, kBefore);
  Reader reader{values[0]};
  auto made = std::make_unique<Transformer>();
  {
    Array<float> words(PyTuple_GET_ITEM(values[0], 0)), positions(PyTuple_GET_ITEM(values[0], 1)),
        norm(PyTuple_GET_ITEM(values[0], 2)), inner(PyTuple_GET_ITEM(values[0], kBefore + 7));
    if (words.failed || positions.failed || norm.failed || inner.failed) return nullptr;
    made->hidden = int(norm.size()), made->ffn = int(inner.size()), made->heads = int(heads), made->epsilon = float(epsilon);
    const int hidden = made->hidden;
    if (hidden <= 0 || hidden % kLanes || made->ffn <= 0 || made->ffn % kLanes || heads <= 0 || hidden % heads ||
        !words.size() || words.size() % hidden || !positions.size() || positions.size() % hidden)
      return PyErr_Format(PyExc_ValueError, "widths of %d and %d with %ld heads; multiples of %d are wanted", hidden,
                          made->ffn, heads, kLanes);
    made->positions = int(positions.size() / hidden);
    made->position.assign(positions.begin(), positions.end());
    const Py_ssize_t rows = words.size() / hidden;
    made->words.resize(words.size()), made->word_scale.resize(rows);
    for (Py_ssize_t row = 0; row < rows; row++) {
      const float* from = words.data() + row * hidden;
      float largest = 0;
      for (int i = 0; i < hidden; i++) largest = std::max(largest, std::fabs(from[i]));
      made->word_scale[row] = largest / 127.0f;
      for (int i = 0; i < hidden && largest > 0; i++)
        made->words[row * hidden + i] = int8_t(std::lrintf(from[i] * (127.0f / largest)));
    }
  }
  reader.next = 2;
  const int hidden = made->hidden;
  reader.norm(made->embedding, hidden);
  made->layers.resize((given - kBefore) / kOfLayer);
  for (Layer& layer : made->layers) {
    reader.linear(layer.qkv, hidden, 3 * hidden);
    reader.linear(layer.out, hidden, hidden);
    reader.norm(layer.after_attention, hidden);
    reader.linear(layer.up, hidden, made->ffn);
    reader.linear(layer.down, made->ffn, hidden);
    reader.norm(layer.after_ffn, hidden);
  }
  if (reader.failed) return nullptr;
  made->kernel = best_kernel(most);
  return capsule(made.release());
}

// (transformer, ids int32 [T], state [H] to write) -> None. Releases the interpreter lock.
PyObject* pool_tokens(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 3, "pool_tokens")) return nullptr;
  const Transformer* transformer = held<Transformer>(values[0]);
  if (!transformer) return nullptr;
  Array<int32_t> ids(values[1]);
  Array<float> state(values[2], true);
  if (ids.failed || state.failed || !state.has(transformer->hidden, "state")) return nullptr;
  const auto words = int32_t(transformer->word_scale.size());
  if (!ids.size() || ids.size() > transformer->positions)
    return PyErr_Format(PyExc_ValueError, "%zd tokens; 1 to %d are wanted", ids.size(), transformer->positions);
  for (const int32_t id : ids)
    if (id < 0 || id >= words) return PyErr_Format(PyExc_ValueError, "token %d of a vocabulary of %d", id, words);
  Py_BEGIN_ALLOW_THREADS;
  transformer->pool(ids.data(), int(ids.size()), state.data());
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

}  // namespace aio
