// A decoder's weights and one ragged batch, as the native step reads them: addresses of memory that Python keeps alive.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "embedding_rows.h"
#include "kernels.h"
#include "low_rank.h"

namespace aio {

// Some neighbouring outputs of a projection, packed alike. `outliers`: the weights of the projection's outliers, see
// `LinearArgs`; null for parts that multiply floats, and where there are none.
struct LinearPart {
  Scheme scheme;
  const uint8_t* panels;
  int64_t panel_bytes;
  int n;
  const float* bias;
  const uint16_t* outliers;
};

// `outliers`: inputs that integer parts multiply in float32, as `loading/outliers.py` chooses them; `quantized_norm` is the
// norm's weight in front of the projection, with zeros for them.
struct Projection {
  int k = 0, n = 0;
  std::vector<LinearPart> parts;
  std::vector<int32_t> outliers;
  const float* quantized_norm = nullptr;

  bool any_integer() const;
  bool any_float() const;
};

// A mixture of experts (Shazeer et al. 2017): `router` gives a number per expert; each has its own projections.
struct Experts {
  Projection router;
  std::vector<Projection> gate_up, down;
};

// Norms that an architecture lacks are null. `attention_post_norm` and `mlp_post_norm` stand behind a sublayer, before its
// result is added. `sinks` float32 [heads], or null: see `AttentionArgs`. `cos_sin` float32 [max_position, head_dim] is the
// layer's rotary table. `table` is the block table of the layer's group, and `in_block` its place among the layers that a
// block holds (`inference_core/kv_cache/layout.py`).
struct LayerWeights {
  const float* attention_norm;
  const float* q_norm;
  const float* k_norm;
  const float* mlp_norm;
  const float* attention_post_norm;
  const float* mlp_post_norm;
  const float* sinks;
  const float* cos_sin;
  bool windowed;
  int table, in_block;
  Projection qkv, output, gate_up, down;
  Experts experts;  // in place of `gate_up` and `down`, where there are any

  bool has_experts() const { return !experts.down.empty(); }
};

struct Geometry {
  int hidden, intermediate, heads, kv_heads, head_dim, vocab, window, block_size;
  float rms_eps;
  bool norm_whole;  // q and k are normalised over all heads
  Activation activation;
  float swiglu_alpha, swiglu_limit;
  float attention_softcap, final_softcap;
  int experts, experts_per_token;
  bool normalise_experts;  // the weights of those that are taken add up to 1
  KVDtype kv_dtype;
  int64_t layer_bytes, block_bytes, slab_bytes, blocks_per_slab, arena_bytes;
  int tables;               // block tables of a sequence
  bool first_has_window;    // blocks behind the window may be missing in table 0, too
  int max_position;
};

struct DecoderWeights {
  Geometry geometry;
  EmbeddingTable embedding;
  std::vector<LayerWeights> layers;
  const float* final_norm;
  Projection head;
  uint8_t* arena;
  std::vector<std::unique_ptr<Adapter>> adapters;  // by slot; null where a slot is free
};

// T tokens of S sequences; see `attention.AttentionBatch`. `sample_rows` are the tokens whose logits are wanted.
// `adapters` names each token's slot, -1 for none; it is empty for a decoder that never had an adapter. `prompt`: whether
// each token is computed in prompt arithmetic, where the kernels have one.
struct Batch {
  // The block tables of one group of layers.
  struct Tables {
    std::vector<int32_t> start;
    std::vector<int64_t> slots, block_offsets;
  };
  std::vector<int32_t> token_ids, positions, query_start, context_len, sample_rows, adapters;
  std::vector<Tables> tables;
  std::vector<uint8_t> prompt;

  int tokens() const { return int(token_ids.size()); }
  int sequences() const { return int(context_len.size()); }
  void clear();
};

// Seconds that the calling thread spent in each part of a step, waiting for the other threads included.
struct StepTimes {
  double embedding = 0, linears = 0, attention = 0, rotary = 0, rows = 0, head = 0;
};

// The part of a step that is computed: layers [begin, end) of a batch whose hidden states float32 [T, hidden] come from
// `input` (unused for begin = 0: the embedding gives them) and go to `output`; without an output on to the head.
struct LayerRange {
  int begin = 0, end = 0;
  const float* input = nullptr;
  float* output = nullptr;
};

// Computes the batch and writes logits float32 [sample_rows, vocab]. The caller holds the runtime's mutex.
// A row's result depends on its own sequence alone, whatever the batch and the number of threads.
StepTimes decode_step(const DecoderWeights& weights, const Batch& batch, const LayerRange& range, float* logits);

}  // namespace aio
