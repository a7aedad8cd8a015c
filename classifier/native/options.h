// Features of a question's options and stem; `classifier.features.surface_features` defines each.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aio {

constexpr int kOptionFeatures = 25;

struct Options {
  static constexpr const char* kName = "classifier.options";
  unsigned char word_of[256], kind_of[256];
  std::vector<uint64_t> negations;  // ascending
};

// Writes the features of a turn in UTF-8 to `out` [kOptionFeatures].
void put_option_features(const Options& options, const unsigned char* text, std::size_t size, float* out);

}  // namespace aio
