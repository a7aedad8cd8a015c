// One step of a decoder as a single program that every thread runs: threads take units of each phase dynamically, and
// wait at a barrier if a phase needs all results of the previous one.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <numeric>

#include "decoder.h"
#include "runtime.h"
#include "spin_barrier.h"
#include "step_workspace.h"

namespace aio {

bool Projection::any_integer() const {
  return std::any_of(parts.begin(), parts.end(), [](const LinearPart& p) { return takes_integers(p.scheme); });
}

bool Projection::any_float() const {
  return std::any_of(parts.begin(), parts.end(), [](const LinearPart& p) { return !takes_integers(p.scheme); });
}

void Batch::clear() {
  for (auto* v : {&token_ids, &positions, &query_start, &context_len, &sample_rows, &adapters}) v->clear();
  for (Tables& t : tables) {
    t.start.clear();
    t.slots.clear();
    t.block_offsets.clear();
  }
  prompt.clear();
}

namespace {

// Kept between steps; guarded by the runtime's mutex.
Workspace workspace;
PhaseCounters counters;

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Seconds for which a processor has run the calling thread; 0 where the system does not say.
double processor_seconds() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
  timespec t{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0) return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
#endif
  return 0;
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Rows whose inputs of SwiGLU are computed at once: so many stay in the second-level cache.
constexpr int kBlockRows = 256;

// A projection of a layer whose inputs have been multiplied by the adapters' A, if any.
struct Adapted {
  size_t layer = 0;
  AdaptedProjection projection = kQkv;
  bool any = false;
};

class Step {
 public:
  Step(const DecoderWeights& w, const Batch& batch, const LayerRange& range, float* logits, const KernelTable& kernels,
       int threads)
      : w_(w), g_(w.geometry), batch_(batch), range_(range), logits_(logits), kernels_(kernels), threads_(threads),
        barrier_(threads) {
    list_adapters();
    list_runs();
    workspace.reserve(g_, size_t(batch.tokens()), threads_,
                      {any_prompt_ && kernels.has_tiles(), any_prompt_ && kernels.has_spans()});
    size_t phases = 9 + w.head.parts.size();
    for (const LayerWeights& layer : w.layers)
      phases += 22 + layer.experts.router.parts.size() + layer.qkv.parts.size() + layer.output.parts.size() + layer.gate_up.parts.size() + layer.down.parts.size();
    counters.reset(phases);
    list_units();
  }

  void run(int thread) { Thread(*this, thread).run(); }
  const StepTimes& times() const { return times_; }

 private:
  // One thread's part of the step.
  class Thread {
   public:
    Thread(Step& step, int index) : s(step), index_(index), rows_(step.batch_.tokens()) {}

    void run() {
      began_ = now();
      const LayerRange& range = s.range_;
      const size_t layers = s.w_.layers.size();
      if (range.begin == 0)
        embed();
      else
        copy_rows(range.input, workspace.hidden.data());
      for (size_t i = size_t(range.begin); i < size_t(range.end); ++i) {
        const bool end = i + 1 == layers;
        layer(i, end && !range.output, end ? s.w_.head : s.w_.layers[i + 1].qkv);
        if (!rows_) return;
      }
      if (range.output) return copy_rows(workspace.hidden.data(), range.output);
      if (size_t(range.begin) == layers) keep_sampled_rows(s.g_.heads * s.g_.head_dim);
      if (!rows_) return;
      // The head reads few rows of a prompt: too few for tiles.
      const RowRuns all{{0, rows_, false}};
      runs_ = &all;
      norm(s.w_.final_norm, s.w_.head, false);
      linear(s.w_.head, workspace.normed, s.logits_, s.g_.vocab, false, nullptr, nullptr);
      if (s.g_.final_softcap) cap_logits();
      mark(s.times_.head);
    }

   private:
    using Clock = std::chrono::steady_clock;
    static Clock::time_point now() { return Clock::now(); }

    // Run units [0, count) in pieces of `grain`, taken by free threads; the caller waits at the barrier if needed.
    template <typename Body>
    void share(int count, int grain, const Body& body) {
      std::atomic<int>& next = counters[phase_++];
      for (int first; (first = next.fetch_add(grain, std::memory_order_relaxed)) < count;)
        body(first, std::min(first + grain, count));
    }

    template <typename Body>
    void share_rows(const Body& body) {
      share(rows_, std::max(1, ceil_div(rows_, 4 * s.threads_)), body);
      s.barrier_.wait();
    }

    // Calls body(first, last, prompt) for the rows [first, last) of each arithmetic.
    template <typename Body>
    void for_runs(int first, int last, const Body& body) const {
      for (const RowRun& run : *runs_) {
        const int begin = std::max(first, run.first), end = std::min(last, run.last);
        if (begin < end) body(begin, end, run.prompt);
      }
    }

    // bfloat16 of columns [column, column + width) of `x`, which has `k` of them.
    void round(Activations& x, int k, int column, int width, int first, int last) const {
      const int64_t stride = rounded_stride(k);
      s.kernels_.round_rows(x.rows.data() + column, k, width, x.rounded.data() + column, stride, first, last);
    }

    // Rows [first, last) of `x`, `k` numbers each, in the format that `next` multiplies.
    void format(Activations& x, int k, const Projection& next, int first, int last, bool prompt) const {
      if (prompt && s.kernels_.has_tiles())
        round(x, k, 0, k, first, last);
      else if (next.any_integer() && prompt)
        s.kernels_.quantize_spans(x.rows.data(), k, k, x.spans.data(), x.span_stride, first, last);
      else if (next.any_integer())
        s.kernels_.quantize_rows(x.rows.data(), k, k, x.groups.data(), first, last);
    }

    void mark(double& part) {
      if (index_) return;
      const auto at = now();
      part += std::chrono::duration<double>(at - began_).count();
      began_ = at;
    }

    void copy_rows(const float* from, float* to) {
      const int64_t width = s.g_.hidden;
      share_rows([&](int first, int last) {
        memcpy(to + first * width, from + first * width, size_t((last - first) * width) * sizeof(float));
      });
      mark(s.times_.rows);
    }

    void embed() {
      const EmbeddingTable& table = s.w_.embedding;
      share_rows([&](int first, int last) {
        for (int t = first; t < last; ++t)
          embedding_row(table, s.batch_.token_ids[size_t(t)], workspace.hidden.data() + int64_t(t) * table.columns);
      });
      mark(s.times_.embedding);
    }

    void layer(size_t index, bool last, const Projection& following) {
      const Geometry& g = s.g_;
      const LayerWeights& w = s.w_.layers[index];
      const int64_t layer_offset = int64_t(w.in_block) * g.layer_bytes;
      const int qkv_width = (g.heads + 2 * g.kv_heads) * g.head_dim, mixed_width = g.heads * g.head_dim;
      norm(w.attention_norm, w.qkv, adapts(kQkv));
      const Adapted qkv = shrink(index, kQkv, workspace.normed, w.qkv.k);
      linear(w.qkv, workspace.normed, workspace.qkv.data(), qkv_width, false, &w.output, &qkv);
      mark(s.times_.linears);
      rotate_and_write(w, layer_offset, qkv_width);
      attend(layer_offset, w, last ? workspace.last_units : workspace.units);
      if (last) keep_sampled_rows(mixed_width);
      if (!rows_) return;
      convert(workspace.mixed, mixed_width, w.output);
      const Adapted output = shrink(index, kOutput, workspace.mixed, w.output.k);
      const Projection& first = w.has_experts() ? w.experts.router : w.gate_up;
      add(w.output, workspace.mixed, w.attention_post_norm, &first, &output);
      if (w.has_experts()) return mix_experts(w);
      norm(w.mlp_norm, w.gate_up, adapts(kGateUp));
      gate_up(w, shrink(index, kGateUp, workspace.normed, w.gate_up.k));
      const Adapted down = shrink(index, kDown, workspace.activated, w.down.k);
      add(w.down, workspace.activated, w.mlp_post_norm, &following, &down);
    }

    // hidden += the projection of x, normalised first where a norm stands behind it.
    void add(const Projection& p, Activations& x, const float* post_norm, const Projection* next, const Adapted* adapted) {
      const int64_t d = s.g_.hidden;
      float *hidden = workspace.hidden.data(), *y = post_norm ? workspace.normed.rows.data() : hidden;
      linear(p, x, y, d, !post_norm, next, adapted);
      mark(s.times_.linears);
      if (!post_norm) return;
      share_rows([&](int first, int last) {
        s.kernels_.rms_norm(y, d, post_norm, y, d, int(d), s.g_.rms_eps, first, last);
        for (int64_t i = first * d; i < last * d; ++i) hidden[i] += y[i];
      });
      mark(s.times_.rows);
    }

    // hidden += the weighted results of the experts that the router takes for each row.
    void mix_experts(const LayerWeights& w) {
      const Geometry& g = s.g_;
      const Experts& e = w.experts;
      const int slots = rows_ * g.experts_per_token, inner = g.intermediate;
      const Projection &gate_up = e.gate_up.front(), &down = e.down.front();
      ExpertRows& experts = workspace.experts;
      norm_for_experts(w.mlp_norm, gate_up, e.router);
      // Which experts a row takes is decided in exact arithmetic.
      const RowRuns all{{0, rows_, false}}, *own = runs_;
      runs_ = &all;
      linear(e.router, workspace.normed, workspace.routed.data(), g.experts, false, nullptr, nullptr);
      runs_ = own;
      if (index_ == 0) experts.assign(workspace.routed.data(), rows_, g.experts_per_token, g.normalise_experts, e);
      s.barrier_.wait();
      share_slots(slots, [&](int first, int last) { gather_rows(experts, gate_up, first, last); });
      multiply_experts(experts.gate_up, experts.gate_up_units, workspace.expert_in, workspace.gate_up.data(), 2 * inner);
      mark(s.times_.linears);
      share_slots(slots, [&](int first, int last) { activate_slots(down, first, last); });
      mark(s.times_.rows);
      multiply_experts(experts.down, experts.down_units, workspace.expert_activated, workspace.expert_out.data(), g.hidden);
      mark(s.times_.linears);
      share_rows([&](int first, int last) {
        for (int row = first; row < last; ++row)
          for (int k = 0; k < g.experts_per_token; ++k) {
            const int slot = experts.slots_of[size_t(row * g.experts_per_token + k)];
            const float weight = experts.weight[size_t(slot)];
            const float* out = workspace.expert_out.data() + int64_t(slot) * g.hidden;
            float* hidden = workspace.hidden.data() + int64_t(row) * g.hidden;
            for (int i = 0; i < g.hidden; ++i) hidden[i] += weight * out[i];
          }
      });
      mark(s.times_.rows);
    }

    // As `norm`, for the experts and their router.
    void norm_for_experts(const float* weight, const Projection& next, const Projection& router) {
      const int d = s.g_.hidden;
      share_rows([&](int first, int last) {
        float* rows = workspace.normed.rows.data();
        s.kernels_.rms_norm(workspace.hidden.data(), d, weight, rows, d, d, s.g_.rms_eps, first, last);
        for_runs(first, last, [&](int begin, int end, bool prompt) {
          format(workspace.normed, d, next, begin, end, prompt);
          if (router.any_integer() && (prompt || !next.any_integer()))
            s.kernels_.quantize_rows(rows, d, d, workspace.normed.groups.data(), begin, end);
        });
      });
      mark(s.times_.rows);
    }

    template <typename Body>
    void share_slots(int slots, const Body& body) {
      share(slots, std::max(1, ceil_div(slots, 4 * s.threads_)), body);
      s.barrier_.wait();
    }

    bool is_prompt_row(int row) const {
      for (const RowRun& run : *runs_)
        if (row < run.last) return run.prompt;
      return false;
    }

    void gather_rows(const ExpertRows& experts, const Projection& next, int first, int last) const {
      Activations& from = workspace.normed;
      Activations& to = workspace.expert_in;
      const int64_t d = s.g_.hidden, groups = d / kGroup, stride = rounded_stride(int(d));
      for (int64_t slot = first; slot < last; ++slot) {
        const int64_t row = experts.row[size_t(slot)];
        const bool prompt = is_prompt_row(int(row));
        if (prompt && s.kernels_.has_tiles())
          memcpy(to.rounded.data() + slot * stride, from.rounded.data() + row * stride, size_t(stride) * sizeof(uint16_t));
        else if (prompt && next.any_integer())
          for (int64_t span = 0; span < spans_of(int(d)); ++span)
            to.spans.data()[span * to.span_stride + slot] = from.spans.data()[span * from.span_stride + row];
        else if (next.any_integer())
          memcpy(to.groups.data() + slot * groups, from.groups.data() + row * groups, size_t(groups) * sizeof(QuantizedGroup));
        memcpy(to.rows.data() + slot * d, from.rows.data() + row * d, size_t(d) * sizeof(float));
      }
    }

    GateUp gate_up_rows(const float* gate_up) const {
      return GateUp::rows(gate_up, s.g_.intermediate, s.g_.swiglu_alpha, s.g_.swiglu_limit);
    }

    void activate_slots(const Projection& next, int first, int last) const {
      const int width = s.g_.intermediate;
      const GatedKernel multiply = gated_kernel(s.kernels_, s.g_.activation);
      Activations& to = workspace.expert_activated;
      multiply(gate_up_rows(workspace.gate_up.data()), to.rows.data(), width, first, last, 0, width);
      for (int slot = first; slot < last; ++slot)
        format(to, width, next, slot, slot + 1, is_prompt_row(workspace.experts.row[size_t(slot)]));
    }

    // The projections of all experts that are taken, as one list of pairs of panels: y[slots, ldy].
    void multiply_experts(const std::vector<ExpertRows::Task>& tasks, int units, Activations& x, float* y, int64_t ldy) {
      share(units, std::max(1, ceil_div(units, 6 * s.threads_)), [&](int first, int last) {
        for (size_t i = 0; i < tasks.size(); ++i) {
          const ExpertRows::Task& t = tasks[i];
          const int panels = ceil_div(t.part->n, kLanes), own = ceil_div(panels, 2);
          const int begin = std::max(first - t.first_unit, 0), end = std::min(last - t.first_unit, own);
          if (begin >= end) continue;
          const LinearArgs a = arguments(*t.projection, *t.part, x, y + t.column, ldy);
          multiply_slots(a, t, 2 * begin, std::min(2 * end, panels));
        }
      });
      s.barrier_.wait();
    }

    // The slots of one expert, those of each arithmetic together.
    void multiply_slots(const LinearArgs& a, const ExpertRows::Task& t, int first, int last) const {
      for (int begin = t.slots, end; begin < t.last_slot; begin = end) {
        const bool prompt = is_prompt_row(workspace.experts.row[size_t(begin)]);
        for (end = begin + 1; end < t.last_slot; ++end)
          if (is_prompt_row(workspace.experts.row[size_t(end)]) != prompt) break;
        multiply_rows(a, t.part->scheme, {begin, end, prompt}, first, last);
      }
    }

    void cap_logits() {
      constexpr int64_t piece = 4096;
      const int64_t count = int64_t(rows_) * s.g_.vocab;
      share(int((count + piece - 1) / piece), 1, [&](int first, int last) {
        const int64_t begin = first * piece, end = std::min(last * piece, count);
        s.kernels_.cap_values(s.logits_ + begin, end - begin, s.g_.final_softcap);
      });
      s.barrier_.wait();
    }

    // normed = RMSNorm(hidden), or hidden itself without a weight, in the formats that `next` and adapters need.
    void norm(const float* weight, const Projection& next, bool adapted) {
      const int d = s.g_.hidden;
      if (!weight) {
        copy_rows(workspace.hidden.data(), workspace.normed.rows.data());
        return convert(workspace.normed, d, next);
      }
      Activations& out = workspace.normed;
      share_rows([&](int first, int last) {
        const float* hidden = workspace.hidden.data();
        const auto normalise = [&](int begin, int end) {
          s.kernels_.rms_norm(hidden, d, weight, out.rows.data(), d, d, s.g_.rms_eps, begin, end);
        };
        for_runs(first, last, [&](int begin, int end, bool prompt) {
          if (prompt && s.kernels_.has_tiles()) {
            normalise(begin, end);
            return round(out, d, 0, d, begin, end);
          }
          const float* scaled = next.outliers.empty() ? weight : next.quantized_norm;
          if (next.any_integer() && prompt)
            s.kernels_.norm_quantize_spans(hidden, d, scaled, d, s.g_.rms_eps, out.spans.data(), out.span_stride, begin, end);
          else if (next.any_integer())
            s.kernels_.norm_quantize_rows(hidden, d, scaled, d, s.g_.rms_eps, out.groups.data(), begin, end);
          if (next.any_float() || !next.outliers.empty())
            normalise(begin, end);
          else if (adapted)
            adapted_->for_rows(begin, end, normalise);
          gather(out, d, next.outliers, begin, end);
        });
      });
      mark(s.times_.rows);
    }

    // The outliers among the `k` numbers of each row, side by side.
    static void gather(Activations& x, int k, const std::vector<int32_t>& outliers, int first, int last) {
      for (int row = first; row < last; ++row)
        for (size_t i = 0; i < outliers.size(); ++i)
          x.outliers.data()[row * kMostOutliers + int64_t(i)] = x.rows.data()[int64_t(row) * k + outliers[i]];
    }

    bool adapts(AdaptedProjection p) const { return adapted_->touches(p); }

    // The product of a projection's input with the adapters' A, for `expand` to go on with; all threads have met.
    Adapted shrink(size_t layer, AdaptedProjection p, Activations& x, int width) {
      const int tiles = adapted_->tiles[p];
      if (!tiles) return {};
      share(int(adapted_->chunks.size()) * tiles, 1, [&](int unit, int) {
        const AdapterChunk& chunk = adapted_->chunks[size_t(unit / tiles)];
        LowRankRows a = rows_of(chunk);
        a.x = x.rows.data();
        a.ldx = width;
        int tile = unit % tiles;
        for (const LowRank& low : chunk.adapter->layers[layer].parts[p]) {
          if (tile < rank_tiles(low.rank)) {
            s.kernels_.shrink_rows(low, a, tile);
            break;
          }
          tile -= rank_tiles(low.rank);
        }
      });
      s.barrier_.wait();
      return {layer, p, true};
    }

    LowRankRows rows_of(const AdapterChunk& chunk) const {
      LowRankRows a{};
      a.rows = adapted_->rows.data() + chunk.first;
      a.count = chunk.count;
      a.shrunk = workspace.shrunk.data();
      a.ld_shrunk = adapted_->ranks;
      return a;
    }

    // Adds what the adapters give to columns [begin, end) of a projection's outputs y; begin is at a panel.
    void expand(const Adapted& adapted, float* y, int64_t ldy, int begin, int end) const {
      if (!adapted.any) return;
      for (const AdapterChunk& chunk : adapted_->chunks) {
        LowRankRows a = rows_of(chunk);
        a.y = y;
        a.ldy = ldy;
        for (const LowRank& low : chunk.adapter->layers[adapted.layer].parts[adapted.projection]) {
          const int first = std::max(begin, low.column) - low.column, last = std::min(end, low.column + low.n) - low.column;
          if (first < last) s.kernels_.expand_rows(low, a, first / kLanes, ceil_div(last, kLanes));
        }
      }
    }

    // Float32 rows in the format that `next` multiplies.
    void convert(Activations& x, int width, const Projection& next) {
      if (!next.any_integer() && !s.any_prompt_) return;
      share_rows([&](int first, int last) {
        for_runs(first, last, [&](int begin, int end, bool prompt) { format(x, width, next, begin, end, prompt); });
      });
      mark(s.times_.rows);
    }

    LinearArgs arguments(const Projection& p, const LinearPart& part, Activations& x, float* y, int64_t ldy) const {
      LinearArgs a{};
      a.panels = part.panels;
      a.panel_bytes = part.panel_bytes;
      a.rows = rows_;
      a.k = p.k;
      a.n = part.n;
      a.x = x.rows.data();
      a.ldx = p.k;
      a.quantized = x.groups.data();
      a.outliers = part.outliers ? int(p.outliers.size()) : 0;
      a.outlier_x = x.outliers.data();
      a.ld_outliers = kMostOutliers;
      a.outlier_panels = part.outliers;
      a.bias = part.bias;
      a.y = y;
      a.ldy = ldy;
      a.rounded = x.rounded.data();
      a.ld_rounded = rounded_stride(p.k);
      a.spans = x.spans.data();
      a.span_stride = x.span_stride;
      a.scratch = runtime().scratch[size_t(index_)].data();
      return a;
    }

    // Panels [first, last) of a part for all rows, each in its arithmetic; the panels stay in the cache between them.
    void multiply(const LinearArgs& a, Scheme scheme, int first, int last) const {
      for (const RowRun& run : *runs_) multiply_rows(a, scheme, run, first, last);
    }

    void multiply_rows(const LinearArgs& a, Scheme scheme, const RowRun& run, int first, int last) const {
      LinearArgs some = a;
      some.rows = run.last - run.first;
      some.x += run.first * a.ldx;
      some.quantized += int64_t(run.first) * (a.k / kGroup);
      some.outlier_x += run.first * a.ld_outliers;
      some.rounded += run.first * a.ld_rounded;
      some.spans += run.first;
      some.y += run.first * a.ldy;
      (run.prompt ? prompt_kernel : linear_kernel)(s.kernels_, scheme)(some, first, last);
    }

    // Where the bytes of the weights are the cost, each thread reads one run of them, and knows what it reads next.
    bool streams() const { return rows_ <= 4; }
    int stream_begin(int units, int thread) const { return int(int64_t(units) * thread / s.threads_); }

    template <typename Body>
    void share_units(int units, const Body& body) {
      if (streams())
        body(stream_begin(units, index_), stream_begin(units, index_ + 1));
      else
        share(units, most_units(units), body);
    }

    // Of one call of `share_units`'s body.
    int most_units(int units) const {
      if (streams()) return ceil_div(units, s.threads_);
      int grain = ceil_div(units, 6 * s.threads_);
      while (grain > 1 && ceil_div(units, grain) % s.threads_) --grain;  // as many pieces for every thread
      return grain;
    }

    // The first unit of the piece that this thread takes next if the others are as fast; `units` if none is left.
    int next_unit(int units, int first) const {
      return streams() ? units : std::min(first + s.threads_ * most_units(units), units);
    }

    // The first panel that this thread probably reads of a projection, in pairs of panels.
    const uint8_t* first_panel(const Projection* p) const {
      if (!p) return nullptr;
      const LinearPart& part = p->parts.front();
      const int pairs = ceil_div(part.n, 2 * kLanes);
      const int pair = streams() ? stream_begin(pairs, index_) : index_ * most_units(pairs);
      return part.panels + 2 * int64_t(pair) * part.panel_bytes;
    }

    void linear(const Projection& p, Activations& x, float* y, int64_t ldy, bool accumulate, const Projection* next,
                const Adapted* adapted) {
      int column = 0;
      for (const LinearPart& part : p.parts) {
        LinearArgs a = arguments(p, part, x, y + column, ldy);
        a.accumulate = accumulate;
        const uint8_t* behind = first_panel(next);
        const int panels = ceil_div(part.n, kLanes), pairs = ceil_div(panels, 2);
        share_units(pairs, [&](int first, int last) {
          const int following = next_unit(pairs, first);
          a.next = following < pairs ? a.panels + 2 * int64_t(following) * a.panel_bytes : behind;
          multiply(a, part.scheme, 2 * first, std::min(2 * last, panels));
          const int begin = 2 * kLanes * first, end = std::min(2 * kLanes * last, part.n);
          if (adapted && begin < end) expand(*adapted, y, ldy, column + begin, column + end);
        });
        column += part.n;
      }
      s.barrier_.wait();
    }

    // What the units of `gate_up` share. A unit is a group of columns, or a span of them where some rows are quantised so.
    struct GateUpUnits {
      LinearArgs gate, up;
      Scheme gate_scheme, up_scheme;
      int up_panel, up_column;  // of the first one in its part, and where it lies in the projection's outputs
      int width, size, columns;  // of the projection, a unit and a piece
      float* piece;              // this thread's: rows of `columns` of both
      bool integers;             // whether they are quantised afterwards
      const Adapted& adapted;
    };

    // activated = activation(gate) * up, each thread on the columns that it has just computed: they lie in a piece of its
    // own, used again and again, so that they never leave its cache.
    void gate_up(const LayerWeights& w, const Adapted& adapted) {
      const int width = s.g_.intermediate;
      const Projection& p = w.gate_up;
      if (width % kGroup) return unaligned_gate_up(w, adapted);
      const LinearPart &gate = p.parts.front(), &up = p.parts.back();
      const bool fused = p.parts.size() == 1, integers = w.down.any_integer();
      const int size = s.any_prompt_ && s.kernels_.has_spans() && integers ? kSpan : kGroup;
      const int units = ceil_div(width, size), columns = most_units(units) * size;
      float* piece = workspace.gate_up.data() + int64_t(index_) * rows_ * 2 * columns;
      GateUpUnits u{arguments(p, gate, workspace.normed, piece, 2 * columns),
                    arguments(p, up, workspace.normed, piece, 2 * columns),
                    gate.scheme, up.scheme, fused ? width / kLanes : 0, fused ? 0 : width, width, size, columns, piece,
                    integers, adapted};
      const uint8_t* behind = first_panel(&w.down);
      // Adapters know the rows of the whole batch alone.
      const int block = adapted.any ? rows_ : kBlockRows;
      share_units(units, [&](int first, int last) {
        const int following = next_unit(units, first);
        u.up.next = following < units ? gate.panels + int64_t(following) * (size / kLanes) * gate.panel_bytes : behind;
        for (int row = 0; row < rows_; row += block) gate_up_block(u, first, last, row, std::min(row + block, rows_));
      });
      s.barrier_.wait();
    }

    // Units [first_unit, last_unit) of some rows.
    void gate_up_block(GateUpUnits& u, int first_unit, int last_unit, int first_row, int last_row) const {
      const int first = first_unit * u.size, last = std::min(last_unit * u.size, u.width), ld = 2 * u.columns;
      const int panel = first / kLanes, last_panel = last / kLanes;
      // Where the projection's first column and row would lie, were all of them computed here.
      float* own = u.piece - int64_t(first_row) * ld;
      float *gate_y = own - first, *up_y = own + u.columns - (u.width + first);
      u.gate.y = gate_y;
      u.up.y = up_y + u.up_column;
      u.gate.next = u.up.panels + (u.up_panel + panel) * u.up.panel_bytes;
      for_runs(first_row, last_row, [&](int begin, int end, bool prompt) {
        multiply_rows(u.gate, u.gate_scheme, {begin, end, prompt}, panel, last_panel);
      });
      for_runs(first_row, last_row, [&](int begin, int end, bool prompt) {
        multiply_rows(u.up, u.up_scheme, {begin, end, prompt}, u.up_panel + panel, u.up_panel + last_panel);
      });
      expand(u.adapted, gate_y, ld, first, last);
      expand(u.adapted, up_y, ld, u.width + first, u.width + last);
      const GateUp computed{own, own + u.columns, ld, s.g_.swiglu_alpha, s.g_.swiglu_limit};
      Activations& out = workspace.activated;
      const auto activate = [&](int begin, int end) {
        const GatedKernel multiply = gated_kernel(s.kernels_, s.g_.activation);
        multiply(computed, out.rows.data(), u.width, begin, end, first, last);
      };
      for_runs(first_row, last_row, [&](int begin, int end, bool prompt) {
        const bool tiles = prompt && s.kernels_.has_tiles();
        if (tiles || !u.integers) activate(begin, end);
        if (tiles) return round(out, u.width, first, last - first, begin, end);
        if (!u.integers) return;
        if (prompt) {
          const GatedSpanKernel quantise = gated_span_kernel(s.kernels_, s.g_.activation);
          quantise(computed, u.width, out.spans.data(), out.span_stride, begin, end, first_unit, last_unit);
        } else {
          const GatedQuantizeKernel quantise = gated_quantize_kernel(s.kernels_, s.g_.activation);
          quantise(computed, u.width, out.groups.data(), begin, end, first / kGroup, last / kGroup);
        }
        if (adapts(kDown)) adapted_->for_rows(begin, end, activate);
      });
    }

    // The same of a width that is no whole number of groups: its rows are multiplied as floats.
    void unaligned_gate_up(const LayerWeights& w, const Adapted& adapted) {
      const int width = s.g_.intermediate;
      float* y = workspace.gate_up.data();
      linear(w.gate_up, workspace.normed, y, 2 * width, false, &w.down, &adapted);
      share_rows([&](int first, int last) {
        const GatedKernel multiply = gated_kernel(s.kernels_, s.g_.activation);
        multiply(gate_up_rows(y), workspace.activated.rows.data(), width, first, last, 0, width);
        for_runs(first, last, [&](int begin, int end, bool prompt) {
          if (prompt) format(workspace.activated, width, w.down, begin, end, true);
        });
      });
    }

    void rotate_and_write(const LayerWeights& w, int64_t layer_offset, int qkv_width) {
      const Geometry& g = s.g_;
      RopeArgs a{};
      a.qkv = workspace.qkv.data();
      a.ld = qkv_width;
      a.cos_sin = w.cos_sin;
      a.positions = s.batch_.positions.data();
      a.slots = s.batch_.tables[size_t(w.table)].slots.data();
      a.arena = s.w_.arena;
      a.layer_offset = layer_offset;
      a.q_norm = g.norm_whole ? nullptr : w.q_norm;
      a.k_norm = g.norm_whole ? nullptr : w.k_norm;
      a.eps = g.rms_eps;
      a.heads = g.heads;
      a.kv_heads = g.kv_heads;
      a.head_dim = g.head_dim;
      a.block_size = g.block_size;
      a.dtype = g.kv_dtype;
      share_rows([&](int first, int last) {
        if (g.norm_whole) norm_heads(w, qkv_width, first, last);
        s.kernels_.rope_and_write(a, first, last);
      });
      mark(s.times_.rotary);
    }

    // All queries of a token at once, and all its keys (OLMo 2).
    void norm_heads(const LayerWeights& w, int qkv_width, int first, int last) const {
      const int query = s.g_.heads * s.g_.head_dim, key = s.g_.kv_heads * s.g_.head_dim;
      float *q = workspace.qkv.data(), *k = q + query;
      s.kernels_.rms_norm(q, qkv_width, w.q_norm, q, qkv_width, query, s.g_.rms_eps, first, last);
      s.kernels_.rms_norm(k, qkv_width, w.k_norm, k, qkv_width, key, s.g_.rms_eps, first, last);
    }

    void attend(int64_t layer_offset, const LayerWeights& w, AttentionUnits (&lists)[2]) {
      AttentionArgs a = s.attention(layer_offset, w.windowed, size_t(w.table));
      a.sinks = w.sinks;
      AttentionUnits& units = lists[w.windowed];
      units.lend(a);
      float* scratch = runtime().scratch[size_t(index_)].data();
      units.drain(s.kernels_, a, counters[phase_++], scratch);
      s.barrier_.wait();
      mark(s.times_.attention);
    }

    // After the last layer's attention only the rows to be sampled go on, moved to the front.
    void keep_sampled_rows(int mixed_width) {
      const std::vector<int32_t>& sampled = s.batch_.sample_rows;
      if (index_ == 0 && int(sampled.size()) < rows_)
        for (size_t i = 0; i < sampled.size(); ++i) {
          if (size_t(sampled[i]) == i) continue;
          move_row(workspace.hidden.data(), s.g_.hidden, sampled[i], i);
          move_row(workspace.mixed.rows.data(), mixed_width, sampled[i], i);
        }
      rows_ = int(sampled.size());
      runs_ = &workspace.last_runs;
      adapted_ = &workspace.last_adapted;
      s.barrier_.wait();
    }

    static void move_row(float* rows, int width, int32_t from, size_t to) {
      memcpy(rows + int64_t(to) * width, rows + int64_t(from) * width, size_t(width) * sizeof(float));
    }

    Step& s;
    const int index_;
    int rows_;
    size_t phase_ = 0;
    const RowRuns* runs_ = &workspace.runs;
    const AdapterRows* adapted_ = &workspace.adapted;
    Clock::time_point began_;
  };

  AttentionArgs attention(int64_t layer_offset, bool windowed, size_t table) const {
    AttentionArgs a{};
    a.q = workspace.qkv.data();
    a.ldq = int64_t(g_.heads + 2 * g_.kv_heads) * g_.head_dim;
    a.out = workspace.mixed.rows.data();
    a.ldo = int64_t(g_.heads) * g_.head_dim;
    a.arena = w_.arena;
    a.block_offsets = batch_.tables[table].block_offsets.data();
    a.table_start = batch_.tables[table].start.data();
    a.query_start = batch_.query_start.data();
    a.context_len = batch_.context_len.data();
    a.layer_offset = layer_offset;
    a.scale = 1.0f / std::sqrt(float(g_.head_dim));
    a.window = windowed ? g_.window : 0;
    a.softcap = g_.attention_softcap;
    a.heads = g_.heads;
    a.kv_heads = g_.kv_heads;
    a.head_dim = g_.head_dim;
    a.block_size = g_.block_size;
    a.dtype = g_.kv_dtype;
    a.prompt = any_prompt_ && kernels_.attends_prompts(g_.kv_dtype) ? batch_.prompt.data() : nullptr;
    return a;
  }

  // Of all rows, and of those that are left in the last layer once its attention is done.
  void list_runs() {
    workspace.runs.clear();
    workspace.last_runs.clear();
    const auto append = [&](RowRuns& runs, int token) {
      const bool prompt = kernels_.has_prompt_kernels() && batch_.prompt[size_t(token)];
      const int row = runs.empty() ? 0 : runs.back().last;
      if (runs.empty() || runs.back().prompt != prompt) runs.push_back({row, row, prompt});
      ++runs.back().last;
      any_prompt_ |= prompt;
    };
    for (int token = 0; token < batch_.tokens(); ++token) append(workspace.runs, token);
    for (const int32_t token : batch_.sample_rows) append(workspace.last_runs, token);
  }

  // Of all rows, and of those that are left in the last layer once its attention is done.
  void list_adapters() {
    workspace.adapted.list(batch_.adapters, w_.adapters);
    std::vector<int32_t> sampled;
    if (workspace.adapted.any())
      for (const int32_t row : batch_.sample_rows) sampled.push_back(batch_.adapters[size_t(row)]);
    workspace.last_adapted.list(sampled, w_.adapters);
  }

  // The last layer needs the queries of the sampled rows alone. Units name no blocks, so any table will do.
  void list_units() {
    for (const bool windowed : {false, true}) {
      const auto has_it = [&](const LayerWeights& layer) { return layer.windowed == windowed; };
      if (std::none_of(w_.layers.begin(), w_.layers.end(), has_it)) continue;
      workspace.units[windowed].list(attention(0, windowed, 0), batch_.sequences(), threads_);
      workspace.last_units[windowed].list(attention(0, windowed, 0), batch_.sample_rows, threads_);
    }
  }

  const DecoderWeights& w_;
  const Geometry& g_;
  const Batch& batch_;
  const LayerRange range_;
  float* logits_;
  const KernelTable& kernels_;
  const int threads_;
  bool any_prompt_ = false;
  SpinBarrier barrier_;
  StepTimes times_;
};

}  // namespace

StepTimes decode_step(const DecoderWeights& weights, const Batch& batch, const LayerRange& range, float* logits) {
  Runtime& shared = runtime();
  const Geometry& g = weights.geometry;
  const int64_t linear = linear_scratch_floats(std::max({g.hidden, g.intermediate, g.heads * g.head_dim}));
  shared.reserve_scratch(size_t(std::max(attention_scratch_floats(g.heads / g.kv_heads, g.head_dim), linear)));
  const int threads = shared.pool->threads();
  Step step(weights, batch, range, logits, *shared.kernels, threads);
  std::vector<double> lost(size_t(threads), 0.0);
  const auto began = std::chrono::steady_clock::now();
  shared.pool->run([&](int thread) {
    const double before = processor_seconds();
    step.run(thread);
    // A thread computes or spins: for the rest of the time it had no processor.
    if (const double after = processor_seconds()) lost[size_t(thread)] = seconds_since(began) - (after - before);
  });
  shared.observe_step(seconds_since(began), std::accumulate(lost.begin(), lost.end(), 0.0));
  return step.times();
}

}  // namespace aio
