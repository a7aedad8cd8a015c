// Samples rows of logits one at a time, with reusable buffers; one object per thread.
#pragma once
#include <cstdint>
#include <vector>

#include "sampling.h"

namespace aio {

class RowSampler {
 public:
  // One token from logits [vocab]; only buffers are kept between calls.
  Drawn sample(const SamplingKernels& kernels, const float* logits, int vocab, const RowSettings& settings);

 private:
  // A subset of candidates in ascending order: every weight above `least`, and the first `ties` that equal it.
  struct Kept {
    int64_t least, ties, sum;
  };

  const float* adjusted(const float* logits, int vocab, const RowSettings& settings);
  void penalize_repetition(float* row, int vocab, const RowSettings& settings);
  void penalize_output(float* row, int vocab, const RowSettings& settings);

  int draw(const float* row, Best best, const RowSettings& settings);
  int draw_unfiltered(const float* row, float top, double scale, uint64_t point);
  void weigh_nucleus(const float* row, float top, double scale, int64_t mass);
  bool collect(const float* row, float least, int most);
  void weigh_ids(const float* row, float top, double scale);
  int64_t sum_row(const float* row, float top, double scale);
  Kept nucleus(int64_t mass);
  Kept threshold(const int64_t* undecided, int count, int64_t mass, int64_t guess);
  int draw_kept(Kept kept, uint64_t point) const;
  int64_t sum_at_least(int64_t least) const { return kernels_->sum_at_least(weights_.data(), candidates_, least); }
  int id(int candidate) const { return whole_ ? candidate : ids_[size_t(candidate)]; }

  void take_largest(const float* row, int k);
  float floor_of_largest(const float* row, int k);
  void read_logprobs(const float* row, float top, int k, Drawn& drawn);

  const SamplingKernels* kernels_ = nullptr;
  int vocab_ = 0;
  // The candidates: weights_[0, candidates_) of ids_, or of the whole vocabulary.
  int candidates_ = 0;
  bool whole_ = false;
  std::vector<int32_t> ids_;
  std::vector<int64_t> weights_;
  std::vector<float> gathered_;

  std::vector<int64_t> blocks_;
  std::vector<float> peaks_;
  std::vector<int64_t> sample_;
  std::vector<int64_t> undecided_;
  std::vector<float> adjusted_;
  std::vector<uint32_t> marks_;   // a token is marked in the current round if its entry equals round_
  std::vector<int32_t> counts_;
  uint32_t round_ = 0;
};

}  // namespace aio
