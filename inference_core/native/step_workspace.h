// Working memory of a step: activations, units of attention, and the progress of each phase.
#pragma once
#include <atomic>
#include <vector>

#include "aligned_buffer.h"
#include "attention_units.h"
#include "decoder.h"
#include "expert_rows.h"

namespace aio {

// The formats that prompt rows are multiplied in; neither without prompt rows.
struct PromptFormats {
  bool tiles, spans;
};

// The input of a projection: float32 rows, and the same quantised where some part multiplies integers; for prompt arithmetic
// rounded to bfloat16 or quantised in spans.
struct Activations {
  AlignedBuffer<float> rows;
  AlignedBuffer<QuantizedGroup> groups;
  AlignedBuffer<uint16_t> rounded;
  AlignedBuffer<QuantizedSpan> spans;
  int64_t span_stride = 0;  // rows from span to span
  AlignedBuffer<float> outliers;  // of the projection that reads the rows next

  void reserve(size_t tokens, size_t width, PromptFormats prompt) {
    span_stride = odd_rows(int(tokens));
    if (prompt.spans) spans.reserve(size_t(span_stride) * size_t(spans_of(int(width))));
    if (prompt.tiles) rounded.reserve(tokens * size_t(rounded_stride(int(width))));
    rows.reserve(tokens * width);
    outliers.reserve(tokens * kMostOutliers);
    groups.reserve(tokens * ((width + kGroup - 1) / kGroup));
  }
};

// Neighbouring rows of a batch that are computed in the same arithmetic.
struct RowRun {
  int first, last;
  bool prompt;
};
using RowRuns = std::vector<RowRun>;

// Working memory of a step.
struct Workspace {
  AlignedBuffer<float> hidden, qkv, gate_up;
  Activations normed, mixed, activated;
  AttentionUnits units[2], last_units[2];  // of layers with full attention, and of those with a window
  AdapterRows adapted, last_adapted;
  AlignedBuffer<float> shrunk;
  RowRuns runs, last_runs;
  // Of a mixture of experts: the router's numbers, then a row per token and expert that it takes.
  AlignedBuffer<float> routed, expert_out;
  Activations expert_in, expert_activated;
  ExpertRows experts;

  void reserve(const Geometry& g, size_t tokens, int threads, PromptFormats prompt) {
    hidden.reserve(tokens * size_t(g.hidden));
    qkv.reserve(tokens * size_t((g.heads + 2 * g.kv_heads) * g.head_dim));
    // A piece per thread, each in whole groups or spans.
    gate_up.reserve(tokens * size_t(2 * (g.intermediate + threads * (prompt.spans ? kSpan : kGroup))));
    normed.reserve(tokens, size_t(g.hidden), prompt);
    mixed.reserve(tokens, size_t(g.heads * g.head_dim), prompt);
    activated.reserve(tokens, size_t(g.intermediate), prompt);
    shrunk.reserve(tokens * size_t(adapted.ranks));
    if (const size_t slots = tokens * size_t(g.experts_per_token)) {
      routed.reserve(tokens * size_t(g.experts));
      expert_in.reserve(slots, size_t(g.hidden), prompt);
      expert_activated.reserve(slots, size_t(g.intermediate), prompt);
      expert_out.reserve(slots * size_t(g.hidden));
      gate_up.reserve(slots * size_t(2 * g.intermediate));
    }
  }
};

// The next unit of every phase of a step; phases are numbered in order of execution.
class PhaseCounters {
 public:
  void reset(size_t phases) {
    if (counters_.size() < phases) counters_ = std::vector<Counter>(phases);
    for (auto& counter : counters_) counter.next.store(0, std::memory_order_relaxed);
  }
  std::atomic<int>& operator[](size_t phase) { return counters_[phase].next; }

 private:
  struct alignas(64) Counter {
    std::atomic<int> next{0};
  };
  std::vector<Counter> counters_;
};

}  // namespace aio
