// Several decode steps in a row: what each draws, the next one computes.
#pragma once
#include <atomic>
#include <vector>

#include "decoder.h"
#include "sampling.h"
#include "token_channel.h"

namespace aio {

// The draws of each row of a batch: `settings` of the first one, and the tokens that end the row.
struct DecodingRows {
  std::vector<RowSettings> settings;
  std::vector<std::vector<int>> stops;
};

// Of the steps that were taken, one after the other: drawn[step * rows + row].
struct DecodedSteps {
  std::vector<Drawn> drawn;
  StepTimes times;
  int steps = 0;
};

// Takes up to `most` steps of a batch with one generated token per sequence, which samples; its tables hold the positions of
// all of them. It ends after the step in which a row stops, and after the one in which `interruption` is set to another
// value than 0. Where a step fails, or a row of it has no token to draw, the steps before that count, so that the next call
// meets it at once; in the first step the token is -1. Tokens of each step that another one follows leave by `channels`.
// `logits` float32 [rows, vocab] is working memory. The caller holds the runtime's mutex.
DecodedSteps decode_steps(const DecoderWeights& weights, Batch& batch, DecodingRows& rows, int most,
                          const std::atomic<int32_t>& interruption, float* logits, std::vector<TokenChannel>& channels);

}  // namespace aio
