#include "row_sampler.h"

#include <float.h>
#include <math.h>

#include <algorithm>
#include <functional>

namespace aio {

namespace {

constexpr double kStepsPerNat = 23.083120654223414;  // 16 / ln 2
constexpr int64_t kAll = INT64_MAX;                  // ties
constexpr int64_t kOne = int64_t(1) << 44;           // the weight of the best token
// A nucleus rarely reaches below 2^-10 of the best token, hardly ever below 2^-17.
constexpr int kNearOctaves[] = {10, 17};

double scale_of(double temperature) { return std::min(kStepsPerNat / temperature, DBL_MAX); }

// A logit such that all lower ones weigh less than 2^octave.
float cut_below(float top, double scale, int octave) {
  const double exact = double(top) - (16.0 * (44 - octave) + 1.0) / scale;
  return nextafterf(float(std::max(exact, -double(FLT_MAX))), -INFINITY);
}

int octave_of(int64_t weight) { return 63 - __builtin_clzll(uint64_t(weight)); }

int64_t share(uint64_t point, int64_t total) {
  return int64_t((static_cast<unsigned __int128>(point) * static_cast<unsigned __int128>(total)) >> 53);
}

template <typename T>
void room_for(std::vector<T>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
}

}  // namespace

Drawn RowSampler::sample(const SamplingKernels& kernels, const float* logits, int vocab, const RowSettings& settings) {
  kernels_ = &kernels;
  vocab_ = vocab;
  Drawn drawn;
  const Best raw = kernels.best_of_row(logits, vocab);
  if (!isfinite(raw.value)) return drawn;
  const float* row = logits;
  Best best = raw;
  if (settings.adjusted()) {
    row = adjusted(logits, vocab, settings);
    best = kernels.best_of_row(row, vocab);
    if (!isfinite(best.value)) return drawn;
  }
  drawn.token = settings.temperature > 0 ? draw(row, best, settings) : best.index;
  if (settings.logprobs >= 0) read_logprobs(logits, raw.value, settings.logprobs, drawn);
  return drawn;
}

// -- what changes the logits -----------------------------------------------------------------------

const float* RowSampler::adjusted(const float* logits, int vocab, const RowSettings& settings) {
  adjusted_.assign(logits, logits + vocab);
  float* row = adjusted_.data();
  for (const auto& [token, value] : settings.bias) row[token] += value;
  if (settings.repetition_penalty != 1.0f) penalize_repetition(row, vocab, settings);
  if (!settings.output.empty()) penalize_output(row, vocab, settings);
  for (const int token : settings.masked) row[token] = -INFINITY;
  return row;
}

void RowSampler::penalize_repetition(float* row, int vocab, const RowSettings& settings) {
  room_for(marks_, size_t(vocab));
  if (++round_ == 0) {
    std::fill(marks_.begin(), marks_.end(), 0);
    round_ = 1;
  }
  const float penalty = settings.repetition_penalty;
  for (const int token : settings.seen) {
    if (marks_[size_t(token)] == round_) continue;
    marks_[size_t(token)] = round_;
    row[token] = row[token] < 0 ? row[token] * penalty : row[token] / penalty;
  }
}

void RowSampler::penalize_output(float* row, int vocab, const RowSettings& settings) {
  room_for(counts_, size_t(vocab));
  for (const int token : settings.output) ++counts_[size_t(token)];
  for (const int token : settings.output) {
    int32_t& count = counts_[size_t(token)];
    if (count == 0) continue;
    const float repeated = settings.frequency_penalty * float(count);
    row[token] -= settings.presence_penalty + repeated;
    count = 0;
  }
}

// -- drawing -----------------------------------------------------------------------------------------

int RowSampler::draw(const float* row, Best best, const RowSettings& settings) {
  const double scale = scale_of(settings.temperature);
  const float top = best.value;
  const bool top_k = settings.top_k > 0 && settings.top_k < vocab_;
  const bool top_p = settings.top_p < 1, min_p = settings.min_p > 0;
  if (!top_k && !top_p && !min_p) return draw_unfiltered(row, top, scale, settings.point);

  const int64_t least = min_p ? std::max<int64_t>(1, int64_t(ceil(std::min(settings.min_p, 1.0) * double(kOne)))) : 1;
  int64_t mass = 0;
  const auto part = [&](int64_t total) {
    return std::clamp<int64_t>(int64_t(ceil(settings.top_p * double(total))), 1, total);
  };
  if (top_k) {
    take_largest(row, int(settings.top_k));
    weigh_ids(row, top, scale);
    if (top_p) mass = part(sum_at_least(1));
  } else if (top_p) {
    mass = part(sum_row(row, top, scale));
    weigh_nucleus(row, top, scale, mass);
  } else {
    collect(row, cut_below(top, scale, octave_of(least)), vocab_);
    weigh_ids(row, top, scale);
  }
  Kept kept = mass ? nucleus(mass) : Kept{least, kAll, sum_at_least(least)};
  // The greater of two thresholds holds; if it is min-p's, every tie of it stays.
  if (mass && least > kept.least) kept = {least, kAll, sum_at_least(least)};
  return draw_kept(kept, settings.point);
}

int RowSampler::draw_unfiltered(const float* row, float top, double scale, uint64_t point) {
  int64_t left = share(point, sum_row(row, top, scale));
  int block = 0;
  while (left >= blocks_[size_t(block)]) left -= blocks_[size_t(block++)];
  const int first = block * kSamplingBlock, size = std::min(kSamplingBlock, vocab_ - first);
  room_for(weights_, size_t(kSamplingBlock));
  kernels_->weigh(row + first, size, top, scale, weights_.data());
  int i = 0;
  while (left >= weights_[size_t(i)]) left -= weights_[size_t(i++)];
  return first + i;
}

int64_t RowSampler::sum_row(const float* row, float top, double scale) {
  room_for(blocks_, size_t(vocab_ / kSamplingBlock + 1));
  return kernels_->sum_weights(row, vocab_, top, scale, blocks_.data());
}

// Makes the tokens near the best one candidates, as many as hold the nucleus of `mass`.
void RowSampler::weigh_nucleus(const float* row, float top, double scale, int64_t mass) {
  for (const int octaves : kNearOctaves) {
    if (!collect(row, cut_below(top, scale, 44 - octaves), vocab_ / 4)) break;
    weigh_ids(row, top, scale);
    if (sum_at_least(kOne >> octaves) >= mass) return;
  }
  room_for(weights_, size_t(vocab_) + 16);
  kernels_->weigh(row, vocab_, top, scale, weights_.data());
  candidates_ = vocab_;
  whole_ = true;
}

// Makes the ids of all logits from `least` on the candidates; false if there are more than `most`.
bool RowSampler::collect(const float* row, float least, int most) {
  constexpr int kStretch = 4096;
  room_for(ids_, size_t(vocab_) + 16);
  candidates_ = 0;
  for (int first = 0; first < vocab_ && candidates_ <= most; first += kStretch)
    candidates_ += kernels_->collect(row + first, std::min(kStretch, vocab_ - first), least, first,
                                     ids_.data() + candidates_);
  return candidates_ <= most;
}

void RowSampler::weigh_ids(const float* row, float top, double scale) {
  const size_t count = size_t(candidates_);
  room_for(gathered_, count);
  room_for(weights_, count + 16);
  for (size_t i = 0; i < count; ++i) gathered_[i] = row[ids_[i]];
  kernels_->weigh(gathered_.data(), candidates_, top, scale, weights_.data());
  whole_ = false;
}

// The fewest best candidates that weigh at least `mass` (Holtzman et al. 2020).
RowSampler::Kept RowSampler::nucleus(int64_t mass) {
  constexpr int kMany = 4096, kStride = 16;
  int64_t guess = 0;
  if (candidates_ > kMany) {
    sample_.clear();
    for (int i = 0; i < candidates_; i += kStride) sample_.push_back(weights_[size_t(i)]);
    const int size = int(sample_.size());
    const double part = double(mass) / double(sum_at_least(1));
    const int64_t sum = kernels_->sum_at_least(sample_.data(), size, 1);
    guess = threshold(sample_.data(), size, std::clamp<int64_t>(int64_t(part * double(sum)), 1, sum), 0).least;
  }
  return threshold(weights_.data(), candidates_, mass, guess);
}

// The greatest weight such that all weights from it on sum to `mass` or more, and how many of its ties that takes: by
// bisection on exact sums, around a guess first (0 for none), then of the octave, then within the octave.
RowSampler::Kept RowSampler::threshold(const int64_t* undecided, int count, int64_t mass, int64_t guess) {
  int64_t low = 1, high = 2 * kOne;  // what is at least `low` reaches `mass`, what is at least `high` does not
  int64_t above = 0;                 // the sum of the weights that are no longer among the undecided
  room_for(undecided_, size_t(count) + 8);
  for (int step = 1; high - low > 1; ++step) {
    const int octaves = octave_of(high) - octave_of(low);
    int64_t middle = octaves > 1 ? int64_t(1) << (octave_of(low) + octaves / 2) : low + (high - low) / 2;
    if (guess > 3 && step <= 2) middle = step == 1 ? guess - guess / 4 : guess + guess / 4;
    if (middle <= low || middle >= high) continue;
    const int64_t sum = above + kernels_->sum_at_least(undecided, count, middle);
    (sum >= mass ? low : high) = middle;
    if (step % 2 == 0 && count > 16) {
      above += kernels_->sum_at_least(undecided, count, high);
      count = kernels_->keep_between(undecided, count, low, high, undecided_.data());
      undecided = undecided_.data();
    }
  }
  const int64_t reached = above + kernels_->sum_at_least(undecided, count, low);
  above += kernels_->sum_at_least(undecided, count, high);
  const int64_t ties = (mass - above + low - 1) / low;
  const int64_t sum = above + ties * low;
  return {low, sum == reached ? kAll : ties, sum};
}

int RowSampler::draw_kept(Kept kept, uint64_t point) const {
  int64_t left = share(point, kept.sum);
  for (int first = 0;; first += kSamplingBlock) {
    const int size = std::min(kSamplingBlock, candidates_ - first);
    const int64_t* weights = weights_.data() + first;
    int64_t sum = kernels_->sum_at_least(weights, size, kept.least), ties = 0;
    if (kept.ties != kAll) {
      const int64_t above = kernels_->sum_at_least(weights, size, kept.least + 1);
      ties = std::min((sum - above) / kept.least, kept.ties);
      sum = above + ties * kept.least;
    }
    if (left >= sum) {
      left -= sum;
      kept.ties -= ties;
      continue;
    }
    for (int i = 0;; ++i) {
      if (weights[i] < kept.least || (weights[i] == kept.least && kept.ties-- <= 0)) continue;
      if (left < weights[i]) return id(first + i);
      left -= weights[i];
    }
  }
}

// -- the largest logits ------------------------------------------------------------------------------

// Makes the k greatest logits' ids, ascending, the candidates; of equal ones the first.
void RowSampler::take_largest(const float* row, int k) {
  const auto before = [row](int32_t a, int32_t b) { return row[a] > row[b] || (row[a] == row[b] && a < b); };
  const int chunk = std::max(kSamplingBlock, k);
  room_for(ids_, size_t(std::max(vocab_, k + chunk + kSamplingBlock) + 16));
  int count = 0;
  float least = floor_of_largest(row, k);
  for (int first = 0; first < vocab_; first += kSamplingBlock) {
    const int size = std::min(kSamplingBlock, vocab_ - first);
    count += kernels_->collect(row + first, size, least, first, ids_.data() + count);
    if (count < k + chunk) continue;
    std::nth_element(ids_.begin(), ids_.begin() + k - 1, ids_.begin() + count, before);
    count = k;
    // Of the logits that equal the least one kept the first are already here.
    least = nextafterf(row[ids_[size_t(k - 1)]], INFINITY);
  }
  if (count > k) std::nth_element(ids_.begin(), ids_.begin() + k - 1, ids_.begin() + count, before);
  candidates_ = std::min(count, k);
  std::sort(ids_.begin(), ids_.begin() + candidates_);
}

// A value that at least k logits reach: the k-th greatest peak of a block.
float RowSampler::floor_of_largest(const float* row, int k) {
  const int blocks = (vocab_ + kSamplingBlock - 1) / kSamplingBlock;
  if (k > blocks) return -INFINITY;
  room_for(peaks_, size_t(blocks));
  kernels_->block_peaks(row, vocab_, peaks_.data());
  std::nth_element(peaks_.begin(), peaks_.begin() + k - 1, peaks_.begin() + blocks, std::greater<float>());
  return peaks_[size_t(k - 1)];
}

// Log-softmax of the raw row: of the drawn token and of the k most likely ones.
void RowSampler::read_logprobs(const float* row, float top, int k, Drawn& drawn) {
  const int64_t total = sum_row(row, top, kStepsPerNat);
  const double log_total = log(double(total) / double(kOne));
  const auto logprob = [&](int token) { return double(row[token]) - double(top) - log_total; };
  drawn.logprob = logprob(drawn.token);
  if (k == 0) return;
  take_largest(row, std::min(k, vocab_));
  std::stable_sort(ids_.begin(), ids_.begin() + candidates_, [row](int32_t a, int32_t b) { return row[a] > row[b]; });
  drawn.top.reserve(size_t(candidates_));
  for (int i = 0; i < candidates_; ++i) drawn.top.emplace_back(ids_[size_t(i)], logprob(ids_[size_t(i)]));
}

}  // namespace aio
