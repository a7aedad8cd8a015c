// Draws next tokens from rows of logits: one row's settings, the passes over a row, and the two entry points.
//
// The weights are those of `inference_core/sampling/reference_sampler.py` (integers; see sampling_kernels.h), so that both
// draw the same token from the same row, on every instruction set.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace aio {

constexpr int kSamplingBlock = 256;          // tokens per partial sum of weights
constexpr int kMaxVocabulary = (1 << 19) - 1;  // so that 2^44 for every token does not overflow 63 bits

// The first greatest value of a row; NaN if the row holds one.
struct Best {
  int index;
  float value;
};

struct SamplingKernels {
  const char* name;
  Best (*best_of_row)(const float* row, int n);
  // peaks[i], the greatest of the i-th kSamplingBlock logits.
  void (*block_peaks)(const float* row, int n, float* peaks);
  // The sum of the weights of row[0, n), and blocks[i], the sum over the i-th kSamplingBlock of them.
  int64_t (*sum_weights)(const float* row, int n, float top, double scale, int64_t* blocks);
  // weights[0, n rounded up to 16): of x, then zeros.
  void (*weigh)(const float* x, int n, float top, double scale, int64_t* weights);
  // The sum of those weights that are at least `least` > 0.
  int64_t (*sum_at_least)(const int64_t* weights, int n, int64_t least);
  // Copies the weights in [low, high) to `kept`, which has room for n rounded up to 8 and may be `weights` itself;
  // returns how many.
  int (*keep_between)(const int64_t* weights, int n, int64_t low, int64_t high, int64_t* kept);
  // Writes offset + i for every row[i] >= least, ascending, and returns how many; ids has room for n + 16.
  int (*collect)(const float* row, int n, float least, int32_t offset, int32_t* ids);
};

const SamplingKernels* sampling_portable();
const SamplingKernels* sampling_avx2();
const SamplingKernels* sampling_avx512();
const SamplingKernels* sampling_kernels();  // those of the instruction set in use

// The parameters of one row's draw, as in `SamplingParams` and `SampleSpec`.
struct RowSettings {
  double temperature, top_p, min_p;
  int64_t top_k;
  float repetition_penalty, presence_penalty, frequency_penalty;
  int logprobs;                              // -1 for none
  uint64_t seed;
  int64_t position, min_tokens;
  uint64_t point;                            // 53 random bits, of the seed and the position
  std::vector<std::pair<int, float>> bias;
  std::vector<int> seen;                     // prompt and output, filled for a repetition penalty
  std::vector<int> output;                   // filled for presence or frequency penalties
  std::vector<int> masked;                   // filled below min_tokens

  bool adjusted() const {
    return !bias.empty() || repetition_penalty != 1.0f || !output.empty() || !masked.empty();
  }
  // Makes them the settings of the draw behind `token`.
  void advance(int token);
};

struct Drawn {
  int token = -1;  // -1 where none can be drawn
  double logprob = 0;
  std::vector<std::pair<int, double>> top;  // most likely tokens, best first
};

// drawn[rows]: one token of each row of logits [rows, ld]. The caller holds the runtime's mutex; it needs no Python.
void draw_rows(const float* logits, int64_t ld, int vocab, const std::vector<RowSettings>& settings, Drawn* drawn);
// A token id, (id, logprob, [(id, logprob), ...]), or None where none can be drawn.
PyObject* as_object(const Drawn& drawn, const RowSettings& settings);
bool check_vocabulary(int64_t vocab);  // false with a Python exception set for one that cannot be sampled from

// Settings of one row from a `SampleSpec`; false with a Python exception set if it cannot be read.
bool read_settings(PyObject* spec, int vocab, RowSettings& settings);
// Appends the tokens that end the row of a `SampleSpec`; false with a Python exception set if they cannot be read.
bool read_stops(PyObject* spec, int vocab, std::vector<int>& stops);

// sample_rows(logits, ld, vocab, specs): what `as_object` makes of each row's draw. `logits` is the address of float32
// [len(specs), ld].
PyObject* sample_rows(PyObject*, PyObject* const* values, Py_ssize_t count);
// best_of_rows(logits, ld, vocab, rows): per row the first greatest token id, or -1 where it is not finite.
PyObject* best_of_rows(PyObject*, PyObject* const* values, Py_ssize_t count);

}  // namespace aio
