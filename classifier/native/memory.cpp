// The neighbourhood of one prompt: `Memory.look_up_one` over int8 vectors, a quarter of the memory to read.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__)
#define AIO_AVX2
#include <immintrin.h>
#endif

#include "python_data.h"

namespace aio {
namespace {

struct Memory {
  static constexpr const char* kName = "classifier.memory";
  int rows, dim, heads, neighbours, few;
  float sharpness, prior_weight;
  std::vector<int8_t> vectors;    // [rows, dim]
  std::vector<float> scale;       // [rows]
  std::vector<float> evidence;    // [rows, 2 heads]
  std::vector<float> prior;       // [heads]
  std::vector<double> distances;  // [rows] ascending
};

float dot(const int8_t* stored, const float* query, int dim) {
  float sum = 0;
  for (int k = 0; k < dim; k++) sum += float(stored[k]) * query[k];
  return sum;
}

#ifdef AIO_AVX2
#define AIO_INLINE_AVX2 __attribute__((target("avx2,fma"), always_inline)) inline

AIO_INLINE_AVX2 __m256 eight(const int8_t* stored) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(stored))));
}

AIO_INLINE_AVX2 float total(__m256 v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}

// Four rows at a time, because one row alone would wait for its own sums.
__attribute__((target("avx2,fma"))) void dots_avx2(const int8_t* vectors, const float* query, int rows, int dim,
                                                   float* out) {
  const int whole = dim / 8 * 8;
  for (int row = 0; row + 4 <= rows; row += 4) {
    const int8_t* at = vectors + size_t(row) * dim;
    __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a;
    for (int k = 0; k < whole; k += 8) {
      const __m256 q = _mm256_loadu_ps(query + k);
      a = _mm256_fmadd_ps(eight(at + k), q, a);
      b = _mm256_fmadd_ps(eight(at + dim + k), q, b);
      c = _mm256_fmadd_ps(eight(at + 2 * dim + k), q, c);
      d = _mm256_fmadd_ps(eight(at + 3 * dim + k), q, d);
    }
    out[row] = total(a), out[row + 1] = total(b), out[row + 2] = total(c), out[row + 3] = total(d);
    for (int j = 0; whole < dim && j < 4; j++)
      out[row + j] += dot(at + j * dim + whole, query + whole, dim - whole);
  }
  for (int row = rows / 4 * 4; row < rows; row++) out[row] = dot(vectors + size_t(row) * dim, query, dim);
}
#endif

void cosines(const Memory& memory, const float* query, float* out) {
  const int rows = memory.rows, dim = memory.dim;
#ifdef AIO_AVX2
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2)
    dots_avx2(memory.vectors.data(), query, rows, dim, out);
  else
#endif
    for (int row = 0; row < rows; row++) out[row] = dot(&memory.vectors[size_t(row) * dim], query, dim);
  for (int row = 0; row < rows; row++) out[row] *= memory.scale[row];
}

// The `count` most similar rows, the `first` of them in order; of equals the earlier row.
std::vector<std::pair<float, int>> nearest(const std::vector<float>& cosine, size_t count, size_t first) {
  // As many rows as there are groups with a best one that is no less than `floor` are themselves no less: few others are.
  const size_t rows = cosine.size(), groups = 2 * count;
  float floor = -std::numeric_limits<float>::infinity();
  if (rows >= groups && count) {
    std::vector<float> best(cosine.begin(), cosine.begin() + groups);
    for (size_t begin = groups; begin < rows; begin += groups)
      for (size_t i = 0, n = std::min(groups, rows - begin); i < n; i++)
        best[i] = cosine[begin + i] > best[i] ? cosine[begin + i] : best[i];
    std::nth_element(best.begin(), best.begin() + count - 1, best.end(), std::greater<float>());
    floor = best[count - 1];
  }
  std::vector<std::pair<float, int>> found;
  found.reserve(2 * groups);
  for (size_t row = 0; row < rows; row++)
    if (cosine[row] >= floor) found.emplace_back(-cosine[row], int(row));
  if (found.size() > count) {
    if (count) std::nth_element(found.begin(), found.begin() + count - 1, found.end());
    found.resize(count);
  }
  std::partial_sort(found.begin(), found.begin() + std::min(first, found.size()), found.end());
  return found;
}

}  // namespace

// (vectors int8 [m, d], scale [m], evidence [m, 2h], prior [h], distances [m], neighbours, novelty neighbours,
//  sharpness, prior weight) -> capsule.
PyObject* make_memory(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 9, "make_memory")) return nullptr;
  Array<int8_t> vectors(values[0]);
  Array<float> scale(values[1]), evidence(values[2]), prior(values[3]), distances(values[4]);
  if (vectors.failed || scale.failed || evidence.failed || prior.failed || distances.failed) return nullptr;
  const Py_ssize_t rows = scale.size(), heads = prior.size();
  if (!evidence.has(2 * rows * heads, "evidence") || !distances.has(rows, "distances")) return nullptr;
  if (!vectors.has(rows ? vectors.size() / rows * rows : 0, "vectors")) return nullptr;
  const long neighbours = PyLong_AsLong(values[5]), few = PyLong_AsLong(values[6]);
  const double sharpness = PyFloat_AsDouble(values[7]), prior_weight = PyFloat_AsDouble(values[8]);
  if (PyErr_Occurred()) return nullptr;
  const long kept = std::min<long>(neighbours, rows);
  return capsule(new Memory{int(rows), rows ? int(vectors.size() / rows) : 0, int(heads), int(kept),
                            int(std::min(few, kept)), float(sharpness), float(prior_weight),
                            {vectors.begin(), vectors.end()}, {scale.begin(), scale.end()},
                            {evidence.begin(), evidence.end()}, {prior.begin(), prior.end()},
                            {distances.begin(), distances.end()}});
}

// (memory, embedding [d], own row or -1, which is left out, logits [h] to write) -> distance, novelty.
PyObject* look_up(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 4, "look_up")) return nullptr;
  const Memory* memory = held<Memory>(values[0]);
  if (!memory) return nullptr;
  Array<float> query(values[1]), logits(values[3], true);
  if (query.failed || logits.failed || !logits.has(memory->heads, "logits")) return nullptr;
  if (memory->rows && !query.has(memory->dim, "embedding")) return nullptr;
  const long own = PyLong_AsLong(values[2]);
  if (PyErr_Occurred()) return nullptr;
  const int heads = memory->heads;
  std::vector<float> cosine(memory->rows), sums(size_t(heads) * 2);
  cosines(*memory, query.data(), cosine.data());
  if (own >= 0 && own < memory->rows) cosine[own] = -1.0f;
  double closest = 0;
  int rank = 0;
  for (auto [negative, row] : nearest(cosine, memory->neighbours, memory->few)) {
    if (rank++ < memory->few) closest -= negative;
    const float weight = std::exp(memory->sharpness * (-negative - 1.0f));
    const float* evidence = &memory->evidence[size_t(row) * heads * 2];
    for (int h = 0; h < 2 * heads; h++) sums[h] += weight * evidence[h];
  }
  for (int h = 0; h < heads; h++) {
    const float rate = (sums[h] + memory->prior[h]) / (sums[heads + h] + memory->prior_weight);
    const float kept = std::min(std::max(rate, 1e-4f), 1.0f - 1e-4f);
    logits.data()[h] = std::log(kept / (1.0f - kept));
  }
  const double distance = memory->few ? double(float(1.0 - closest / memory->few)) : 0.0;
  const auto& all = memory->distances;
  const auto closer = std::lower_bound(all.begin(), all.end(), distance) - all.begin();
  return Py_BuildValue("dd", distance, double(closer) / std::max(memory->rows, 1));
}

}  // namespace aio
