#include "decode_loop.h"

#include <algorithm>

namespace aio {

namespace {

void add(StepTimes& sum, const StepTimes& step) {
  for (double StepTimes::* part : {&StepTimes::embedding, &StepTimes::linears, &StepTimes::attention, &StepTimes::rotary,
                                   &StepTimes::rows, &StepTimes::head})
    sum.*part += step.*part;
}

// Moves the batch on by the tokens that were drawn.
void advance(Batch& batch, DecodingRows& rows, const Drawn* drawn, const Geometry& g) {
  for (size_t row = 0; row < rows.settings.size(); ++row) {
    batch.token_ids[row] = drawn[row].token;
    ++batch.context_len[row];
    const int position = ++batch.positions[row];
    for (int i = 0; i < g.tables; ++i) {
      Batch::Tables& t = batch.tables[size_t(i)];
      t.slots[row] = t.block_offsets[size_t(t.start[row] + position / g.block_size)];
    }
    rows.settings[row].advance(drawn[row].token);
  }
}

bool stops(const DecodingRows& rows, const Drawn* drawn) {
  for (size_t row = 0; row < rows.settings.size(); ++row) {
    const std::vector<int>& stops = rows.stops[row];
    if (std::find(stops.begin(), stops.end(), drawn[row].token) != stops.end()) return true;
  }
  return false;
}

}  // namespace

DecodedSteps decode_steps(const DecoderWeights& weights, Batch& batch, DecodingRows& rows, int most,
                          const std::atomic<int32_t>& interruption, float* logits, std::vector<TokenChannel>& channels) {
  const size_t count = rows.settings.size();
  const int vocab = weights.geometry.vocab;
  const LayerRange all{0, int(weights.layers.size()), nullptr, nullptr};
  DecodedSteps done;
  done.drawn.resize(count * size_t(most));
  try {
    for (;;) {
      add(done.times, decode_step(weights, batch, all, logits));
      Drawn* drawn = done.drawn.data() + size_t(done.steps) * count;
      draw_rows(logits, vocab, vocab, rows.settings, drawn);
      const bool failed = std::any_of(drawn, drawn + count, [](const Drawn& d) { return d.token < 0; });
      if (failed && done.steps) return done;
      ++done.steps;
      if (failed || done.steps == most || interruption.load(std::memory_order_relaxed) != 0 || stops(rows, drawn))
        return done;
      for (TokenChannel& channel : channels) channel.send(drawn, rows.settings);
      advance(batch, rows, drawn, weights.geometry);
    }
  } catch (...) {
    // What has left must not be drawn again.
    if (!done.steps) throw;
    return done;
  }
}

}  // namespace aio
