// The CPU kernels' interface: plain structs and one table of functions per instruction set.
// Every kernel works on a range of independent units, so that a thread pool may split them; the arithmetic of
// one output row never depends on how many rows or units there are (batch invariance).
#pragma once
#include <atomic>
#include <cstdint>

namespace aio {

constexpr int kLanes = 16;  // columns per weight panel, tokens per score vector
constexpr int kGroup = 32;  // weights (and activations) that share a scale
constexpr int kMostOutliers = 8;  // inputs of a projection that share none

// Attention takes a softmax step per chunk and restarts at every partition, both counted from the sequence's first
// token, so that results depend neither on how a prompt was split nor on the threads.
constexpr int kChunk = 64;
constexpr int kPartition = 256;

enum KVDtype { kKVFloat = 0, kKVBf16 = 1, kKVInt8 = 2 };

// A group of activations quantised to INT8: x ~ scale * q, with everything that a product needs.
struct QuantizedGroup {
  int8_t q[kGroup];
  float scale;
  float offset;               // scale * sum of q: what a group's minimum is multiplied by
  int32_t correction;         // -128 * sum of q: what codes of 8 bits, whose zero is 128, add too much
  int32_t nibble_correction;  // -8 * sum of q: the same of 4 bits, whose zero is 8
};
static_assert(sizeof(QuantizedGroup) == 48, "inference_core/native/cpu.py describes the same bytes");

// A span of activations quantised to INT8, with the same correction; prompt rows have them where the kernels have spans.
constexpr int kSpan = 128;
struct QuantizedSpan {
  int8_t q[kSpan];
  float scale;
  int32_t correction;
};
static_assert(sizeof(QuantizedSpan) == 136, "inference_core/native/cpu.py describes the same bytes");

// The last span of `k` inputs may be shorter.
static inline int spans_of(int k) { return (k + kSpan - 1) / kSpan; }

// Rows from span to span: an odd number, so that those of a row lie in different sets of the caches.
static inline int64_t odd_rows(int rows) { return rows | 1; }

struct LinearArgs {
  const uint8_t* panels;  // packed weights, one panel per 16 output columns
  int64_t panel_bytes;
  int rows, k, n;
  const float* x;         // [rows, ldx], dense schemes
  int64_t ldx;
  const QuantizedGroup* quantized;  // [rows, k / 32], integer schemes
  // Of integer schemes: inputs that are zero in `quantized` and multiplied in float32.
  int outliers;
  const float* outlier_x;  // [rows, ld_outliers]
  int64_t ld_outliers;
  const uint16_t* outlier_panels;  // their weights as float16 [panels, outliers, 16]
  const float* bias;      // [n] or null
  float* y;               // [rows, ldy]
  int64_t ldy;
  bool accumulate;        // y += instead of y =
  const uint8_t* next;    // weights that the same thread reads afterwards, or null: fetched meanwhile
  float* scratch;         // the thread's working memory of linear_scratch_floats(k), at a cache line
  // Of prompt kernels in tiles: the activations as bfloat16, zeros from k to a multiple of 32.
  const uint16_t* rounded;  // [rows, ld_rounded]
  int64_t ld_rounded;
  // Of prompt kernels in spans: span after span, so that rows lie side by side; outliers are zero in them, too.
  const QuantizedSpan* spans;  // [spans, span_stride]
  int64_t span_stride;
};

// A tile of weights: 32 inputs in pairs times 16 columns. A panel unpacked to tiles is as long as all its inputs take.
constexpr int kTileBytes = 1024;
static inline int64_t prompt_panel_bytes(int k) { return (int64_t(k) + 31) / 32 * kTileBytes; }

// Floats of scratch of a linear kernel: a block of results and two panels unpacked, to bfloat16 at most (of which spans
// take little more than half).
static inline int64_t linear_scratch_floats(int k) { return 1024 + 2 * prompt_panel_bytes(k) / 4; }

// Numbers from row to row of bfloat16 activations: an odd number of cache lines, so that the rows of a tile lie in
// different sets of the first-level cache whatever k is (rows 12,288 bytes apart all share one).
static inline int64_t rounded_stride(int k) { return ((int64_t(k) + 31) / 32 | 1) * 32; }

// What multiplies `up` of a gated unit: silu(gate); gelu's approximation by tanh; or, with both clamped,
// gate * sigmoid(alpha * gate), which multiplies up + 1 (gpt-oss).
enum Activation { kSilu = 0, kGelu = 1, kClampedSwiglu = 2 };

// The inputs of a gated unit: rows of `ld` numbers, of the columns from the first that is computed. `alpha`, `limit`: of
// clamped SwiGLU.
struct GateUp {
  const float* gate;
  const float* up;
  int64_t ld;
  float alpha = 0, limit = 0;

  // Of rows of both, one behind the other, `d` numbers each.
  static GateUp rows(const float* gate_up, int d, float alpha = 0, float limit = 0) {
    return {gate_up, gate_up + d, 2 * int64_t(d), alpha, limit};
  }
};

struct RopeArgs {
  float* qkv;             // [rows, ld]: query heads, key heads, value heads; queries are rotated in place
  int64_t ld;
  const float* cos_sin;   // [max_position, head_dim]: cosines, then sines
  const int32_t* positions;
  const int64_t* slots;   // byte offset of each token's block in the arena
  uint8_t* arena;
  int64_t layer_offset;
  const float* q_norm;    // [head_dim] or null
  const float* k_norm;
  float eps;
  int heads, kv_heads, head_dim, block_size;
  KVDtype dtype;
};

struct AttentionArgs {
  const float* q;         // [tokens, ldq]
  int64_t ldq;
  float* out;             // [tokens, ldo]
  int64_t ldo;
  const uint8_t* arena;
  const int64_t* block_offsets;  // bytes, all sequences' tables one after another
  const int32_t* table_start;    // [sequences], first entry of each table
  const int32_t* query_start;    // [sequences + 1]
  const int32_t* context_len;    // [sequences], tokens up to and including this step's last
  int64_t layer_offset;
  float scale;
  int window;             // 0 for full attention
  float softcap;          // of the scores, c in c tanh(x / c); 0 for none
  const float* sinks;     // [heads], a score of each head that takes weight and gives no value; null for none
  int heads, kv_heads, head_dim, block_size;
  KVDtype dtype;
  float* partials;                 // of the split tiles, see AttentionUnits
  std::atomic<int>* unfinished;    // units left of each split tile
  const uint8_t* prompt;           // [tokens], whether each is computed by `attend_prompt`; null: none is
};

// One unit of attention work: queries [first, last) of a sequence against partitions [begin, end) of one KV head.
// The units of a tile that is split over several leave partial results, and the last one to finish merges them.
struct AttentionUnit {
  int sequence, first, last, kv_head;
  int begin, end;
  bool prompt;       // computed by `attend_prompt`
  int split;         // index of the tile's counter, or -1: this unit is the whole tile
  int units;         // of the split tile
  int64_t partial;   // floats from AttentionArgs::partials to the tile's first partial result
};

// What one linear layer gains from an adapter: y += scale * B (A x); see `lora/packing.py` for the layouts.
constexpr int kRankTile = 4;
struct LowRank {
  const void* down;  // A in tiles of kRankTile ranks
  const void* up;    // B in panels of 16 outputs
  bool bfloat16;     // else float32
  int k, n, rank;
  int column;        // its first output among those of the projection
  int at;            // its first rank among those of the projection
  float scale;
};

// Rows of one adapter. The product with A waits in `shrunk` for the one with B.
struct LowRankRows {
  const int32_t* rows;
  int count;
  const float* x;    // [all rows, ldx]
  int64_t ldx;
  float* shrunk;     // [all rows, ld_shrunk]
  int64_t ld_shrunk;
  float* y;          // [all rows, ldy], the projection's
  int64_t ldy;
};

enum Scheme { kInt4Int8 = 0, kInt4CentredInt8 = 1, kInt8Int8 = 2, kInt4Float = 3, kBf16 = 4, kFloat = 5 };
inline bool takes_integers(Scheme scheme) { return scheme <= kInt8Int8; }

using LinearKernel = void (*)(const LinearArgs&, int first_panel, int last_panel);

using GatedKernel = void (*)(const GateUp& x, float* y, int d, int first, int last, int first_column, int last_column);
using GatedQuantizeKernel = void (*)(const GateUp& x, int d, QuantizedGroup* out, int first, int last, int first_group,
                                     int last_group);
using GatedSpanKernel = void (*)(const GateUp& x, int d, QuantizedSpan* out, int64_t stride, int first, int last,
                                 int first_span, int last_span);

using AttendKernel = void (*)(const AttentionArgs&, const AttentionUnit&, const AttentionUnit* next, float* scratch);

struct KernelTable {
  const char* name;
  const char* vectors;  // the instruction set of everything but the prompt kernels
  void (*quantize_rows)(const float* x, int64_t ldx, int k, QuantizedGroup* out, int first, int last);
  LinearKernel linear_int4;
  LinearKernel linear_int4_centred;
  LinearKernel linear_int4_float;
  LinearKernel linear_int8;
  LinearKernel linear_bf16;
  LinearKernel linear_f32;
  void (*rms_norm)(const float* x, int64_t ldx, const float* w, float* y, int64_t ldy, int d, float eps, int first,
                   int last);
  GatedKernel silu_mul;
  // rms_norm or silu_mul, then quantize_rows, in one pass.
  void (*norm_quantize_rows)(const float* x, int64_t ldx, const float* w, int d, float eps, QuantizedGroup* out,
                             int first, int last);
  GatedQuantizeKernel silu_quantize_rows;
  // The same two with the other activations.
  GatedKernel gelu_mul;
  GatedQuantizeKernel gelu_quantize_rows;
  GatedKernel clamped_mul;
  GatedQuantizeKernel clamped_quantize_rows;
  void (*cap_values)(float* x, int64_t count, float cap);
  // A x times the scale, of one tile of ranks; then y += B times that, in panels [first, last) of the layer's outputs.
  void (*shrink_rows)(const LowRank&, const LowRankRows&, int tile);
  void (*expand_rows)(const LowRank&, const LowRankRows&, int first_panel, int last_panel);
  void (*rope_and_write)(const RopeArgs&, int first, int last);
  // `next`, or null: the unit that this thread takes afterwards, so that its first blocks can be fetched ahead.
  AttendKernel attend;
  // The machine's peaks: multiply-adds in registers (returns how many), and reading memory.
  int64_t (*multiply_integers)(int64_t rounds);
  int64_t (*multiply_floats)(int64_t rounds);
  void (*read_memory)(const uint8_t* p, int64_t bytes);
  // Prompt kernels. Null where prompt rows are computed as all others.
  LinearKernel prompt_int4;
  LinearKernel prompt_int4_centred;
  LinearKernel prompt_int8;
  LinearKernel prompt_bf16;
  AttendKernel attend_prompt;
  // What they multiply: bfloat16 in tiles, or
  void (*round_rows)(const float* x, int64_t ldx, int k, uint16_t* out, int64_t ldo, int first, int last);
  // INT8 in spans, `stride` rows apart: of x, of its RMSNorm, and of SwiGLU's columns of some spans.
  void (*quantize_spans)(const float* x, int64_t ldx, int k, QuantizedSpan* out, int64_t stride, int first, int last);
  void (*norm_quantize_spans)(const float* x, int64_t ldx, const float* w, int d, float eps, QuantizedSpan* out,
                              int64_t stride, int first, int last);
  GatedSpanKernel silu_quantize_spans;
  GatedSpanKernel gelu_quantize_spans;
  GatedSpanKernel clamped_quantize_spans;

  bool has_tiles() const { return round_rows != nullptr; }
  bool has_spans() const { return quantize_spans != nullptr; }
  bool has_prompt_kernels() const { return has_tiles() || has_spans(); }
  // Whether prompt queries have attention of their own in such a cache. Of INT8 that for all queries is faster than pairs of
  // bfloat16.
  bool attends_prompts(KVDtype dtype) const {
    return attend_prompt && (dtype == kKVBf16 || (dtype == kKVInt8 && has_tiles()));
  }
};

inline LinearKernel linear_kernel(const KernelTable& table, Scheme scheme) {
  switch (scheme) {
    case kInt4Int8: return table.linear_int4;
    case kInt4CentredInt8: return table.linear_int4_centred;
    case kInt8Int8: return table.linear_int8;
    case kInt4Float: return table.linear_int4_float;
    case kBf16: return table.linear_bf16;
    default: return table.linear_f32;
  }
}

inline GatedKernel gated_kernel(const KernelTable& table, Activation activation) {
  switch (activation) {
    case kGelu: return table.gelu_mul;
    case kClampedSwiglu: return table.clamped_mul;
    default: return table.silu_mul;
  }
}

inline GatedQuantizeKernel gated_quantize_kernel(const KernelTable& table, Activation activation) {
  switch (activation) {
    case kGelu: return table.gelu_quantize_rows;
    case kClampedSwiglu: return table.clamped_quantize_rows;
    default: return table.silu_quantize_rows;
  }
}

inline GatedSpanKernel gated_span_kernel(const KernelTable& table, Activation activation) {
  switch (activation) {
    case kGelu: return table.gelu_quantize_spans;
    case kClampedSwiglu: return table.clamped_quantize_spans;
    default: return table.silu_quantize_spans;
  }
}

// The kernel of prompt rows; weights in float32 have none of their own, and spans are of integers alone.
inline LinearKernel prompt_kernel(const KernelTable& table, Scheme scheme) {
  if (table.has_spans() && !takes_integers(scheme)) return linear_kernel(table, scheme);
  switch (scheme) {
    case kInt4Int8: case kInt4Float: return table.prompt_int4;
    case kInt4CentredInt8: return table.prompt_int4_centred;
    case kInt8Int8: return table.prompt_int8;
    case kBf16: return table.prompt_bf16;
    default: return table.linear_f32;
  }
}

const KernelTable* kernels_portable();
const KernelTable* kernels_avx2();
const KernelTable* kernels_avx512();
const KernelTable* kernels_bf16();  // those for AVX-512 with attention of prompts in dot products of bfloat16
const KernelTable* kernels_amx();   // those for AVX-512 with prompt kernels in tiles
const KernelTable* kernels_neon();
const KernelTable* kernels_dotprod();
const KernelTable* kernels_i8mm();
const KernelTable* kernels_bfmmla();  // those for I8MM with attention of prompts in products of bfloat16 matrices

// The same kernels with prompt kernels whose tiles are emulated.
const KernelTable* kernels_portable_emulated();
const KernelTable* kernels_avx2_emulated();
const KernelTable* kernels_avx512_emulated();
const KernelTable* kernels_neon_emulated();
const KernelTable* kernels_dotprod_emulated();
const KernelTable* kernels_i8mm_emulated();

}  // namespace aio
