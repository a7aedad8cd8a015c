// Compares the kernel tables of an ARM processor: with the portable one, whose sums are rounded twice where theirs are
// fused, and with each other bit by bit; kernels of prompts with what they are defined to compute. `test_arm_kernels.py`
// compiles it and runs it on emulated processors.
#include "arm_prompt_kernels.h"
#include "runtime.h"

namespace aio {
namespace {

// What a table computed from the same inputs as every other one.
struct Result {
  std::string name;
  float bound;  // of the difference from the portable table, relative to the largest number; 0 for the same bits
  std::vector<float> values;
};
using Results = std::vector<Result>;

template <typename T>
std::vector<float> bytes_of(const std::vector<T>& v) {
  const auto* p = reinterpret_cast<const uint8_t*>(v.data());
  return std::vector<float>(p, p + v.size() * sizeof(T));
}

// -- linear layers ---------------------------------------------------------------------------------------------------

void integer_linears(const KernelTable& table, Results& out) {
  uint32_t seed = 1;
  for (const Packed& kind : kPacked)
    for (int rows : {1, 2, 3, 4, 5, 9})
      for (int n : {1, 16, 47, 64})
        for (bool exact : {true, false}) {
          const int groups = 1 + int(seed % 7);
          Layer layer(kind, rows, groups, n, seed % 2 != 0, exact, seed);
          ++seed;
          const std::string name = std::string(kind.name) + " " + std::to_string(rows) + "x" + std::to_string(groups * kGroup) +
                                   "x" + std::to_string(n) + (exact ? ", exact" : "");
          out.push_back({name, exact ? 0.0f : 1e-5f, layer.by(table, kind.scheme)});
          bool right = true;
          for (int row = 0; row < rows; ++row)
            for (int c = 0; c < n + 5; ++c)
              right &= out.back().values[size_t(row * (n + 5) + c)] == (c < n ? layer.wanted[size_t(row * n + c)] : 3.0);
          expect(right || !exact, table.name, name + " is not the sum of its products");
          // The last row alone.
          Layer alone = layer;
          alone.x.erase(alone.x.begin(), alone.x.end() - groups);
          alone.rows = alone.args.rows = 1;
          alone.before.resize(size_t(n + 5));
          alone.args.quantized = alone.x.data();
          const std::vector<float> last(out.back().values.end() - (n + 5), out.back().values.end());
          expect(same_bits(alone.by(table, kind.scheme), last), table.name, name + " depends on the batch");
        }
}

void float_linears(const KernelTable& table, Results& out) {
  Random random(7);
  const struct { const char* name; Scheme scheme; int bytes; } kinds[] = {
      {"int4 float", kInt4Float, 10}, {"bfloat16", kBf16, 32}, {"float32", kFloat, 64}};
  for (const auto& kind : kinds)
    for (int rows : {1, 2, 5, 33})
      for (int n : {16, 50}) {
        const int k = 160, count = (n + kLanes - 1) / kLanes;
        LinearArgs args = {};
        args.panel_bytes = int64_t(k) * kind.bytes;
        std::vector<uint8_t> panels(size_t(args.panel_bytes * count));
        for (uint8_t& byte : panels) byte = uint8_t(random.next() >> 9);
        for (int i = 0; i < count * k; ++i) {
          const float weight = random.real();
          uint32_t bits;
          std::memcpy(&bits, &weight, 4);
          for (int c = 0; c < kLanes && kind.scheme != kInt4Float; ++c) {
            const uint32_t turned = bits ^ uint32_t(c) << 20;
            if (kind.scheme == kFloat) std::memcpy(&panels[size_t((i * kLanes + c) * 4)], &turned, 4);
            const uint16_t upper = uint16_t(turned >> 16);
            if (kind.scheme == kBf16) std::memcpy(&panels[size_t((i * kLanes + c) * 2)], &upper, 2);
          }
          if (kind.scheme == kInt4Float && i % kGroup == 0)
            for (int c = 0; c < 2 * kLanes; ++c) {
              const uint16_t scale = half(1.0f + float(random.below(64)) / 64.0f);
              std::memcpy(&panels[size_t(i / kGroup * 320 + 256 + c * 2)], &scale, 2);
            }
        }
        const std::vector<float> x = random.reals(size_t(rows * k));
        std::vector<float> y(size_t(rows * (n + 3)), 3.0f);
        args.panels = panels.data();
        args.rows = rows;
        args.k = k;
        args.n = n;
        args.x = x.data();
        args.ldx = k;
        args.y = y.data();
        args.ldy = n + 3;
        linear_kernel(table, kind.scheme)(args, 0, count);
        out.push_back({std::string(kind.name) + " " + std::to_string(rows) + "x" + std::to_string(n), 1e-5f, y});
        std::vector<float> alone(size_t(n + 3), 3.0f);
        args.rows = 1;
        args.x = x.data() + (rows - 1) * k;
        args.y = alone.data();
        linear_kernel(table, kind.scheme)(args, 0, count);
        expect(same_bits(alone, std::vector<float>(y.end() - (n + 3), y.end())), table.name,
               out.back().name + " depends on the batch");
      }
}

// -- rows and adapters -----------------------------------------------------------------------------------------------

void row_kernels(const KernelTable& table, Results& out) {
  Random random(11);
  for (int d : {32, 96, 480, 544, 1536}) {
    const int rows = 3, groups = d / kGroup;
    std::vector<float> x = random.reals(size_t(rows * 2 * d)), weight = random.reals(size_t(d));
    for (int i = 0; i < d; ++i) x[size_t(i)] *= 1e-3f;
    for (int i = 0; i < kGroup; ++i) x[size_t(d + i)] = 0;
    const std::string size = " " + std::to_string(d);
    std::vector<QuantizedGroup> quantized(size_t(rows * groups)), apart = quantized;
    table.quantize_rows(x.data(), d, d, quantized.data(), 0, rows);
    out.push_back({"quantize_rows" + size, 0.0f, bytes_of(quantized)});
    std::vector<float> y(size_t(rows * d));
    table.rms_norm(x.data(), d, weight.data(), y.data(), d, d, 1e-5f, 0, rows);
    out.push_back({"rms_norm" + size, 1e-6f, y});
    table.norm_quantize_rows(x.data(), d, weight.data(), d, 1e-5f, quantized.data(), 0, rows);
    table.quantize_rows(y.data(), d, d, apart.data(), 0, rows);
    expect(same_bits(quantized, apart), table.name, "norm_quantize_rows" + size + " is not rms_norm, then quantize_rows");
    table.silu_mul(GateUp::rows(x.data(), d), y.data(), d, 0, rows, 0, d);
    out.push_back({"silu_mul" + size, 1e-6f, y});
    table.silu_quantize_rows(GateUp::rows(x.data(), d), d, quantized.data(), 0, rows, 0, groups);
    table.quantize_rows(y.data(), d, d, apart.data(), 0, rows);
    expect(same_bits(quantized, apart), table.name, "silu_quantize_rows" + size + " is not silu_mul, then quantize_rows");
  }
  for (bool narrow : {false, true})
    for (int rank : {3, 8}) {
      const int k = 70, n = 50, panels = (n + kLanes - 1) / kLanes, padded = (k + kLanes - 1) / kLanes * kLanes;
      std::vector<float> down = random.reals(size_t(rank * padded)), up = random.reals(size_t(rank * panels * kLanes));
      std::vector<uint16_t> packed[2];
      for (int side = 0; side < 2; ++side)
        for (const float v : side ? up : down) packed[side].push_back(half(v) & 0x3fff);
      const std::vector<float> x = random.reals(size_t(5 * k));
      std::vector<float> shrunk(size_t(5 * rank)), y(size_t(5 * n), 1.0f);
      const int32_t rows[] = {4, 0, 2};
      const LowRank low = {narrow ? static_cast<const void*>(packed[0].data()) : down.data(),
                           narrow ? static_cast<const void*>(packed[1].data()) : up.data(), narrow, k, n, rank, 0, 0, 0.5f};
      const LowRankRows at = {rows, 3, x.data(), k, shrunk.data(), rank, y.data(), n};
      for (int tile = 0; tile * kRankTile < rank; ++tile) table.shrink_rows(low, at, tile);
      table.expand_rows(low, at, 0, panels);
      out.push_back({"low rank " + std::to_string(rank) + (narrow ? ", bfloat16" : ""), 1e-5f, y});
    }
}

// -- the cache and attention -----------------------------------------------------------------------------------------

constexpr const char* kFormats[] = {"float32", "bfloat16", "int8"};

// Whole numbers up to 127, turned by nothing: exact in every format, so written alike by all tables.
void written_caches(const KernelTable& table, Results& out) {
  for (int dtype = 0; dtype < 3; ++dtype)
    for (int tokens : {1, 15, 16, 45}) {
      Random random{uint32_t(tokens)};
      const int heads = 3, kv_heads = 2, d = 48, block_size = 16;
      std::vector<float> qkv(size_t(tokens * (heads + 2 * kv_heads) * d)), turns(size_t(tokens * d));
      for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = i % size_t(d) ? float(random.below(255) - 127) : 127.0f;
      for (size_t i = 0; i < turns.size(); ++i) turns[i] = i % size_t(d) < size_t(d) / 2 ? 1.0f : 0.0f;
      Cache cache(KVDtype(dtype), tokens, heads, kv_heads, d, block_size, qkv.data(), turns.data());
      table.rope_and_write(cache.rope, 0, tokens / 2);
      table.rope_and_write(cache.rope, tokens / 2, tokens);
      out.push_back({std::string("cache ") + kFormats[dtype] + " " + std::to_string(tokens), 0.0f, bytes_of(cache.arena)});
    }
  Random random(3);
  const int tokens = 9, d = 48;
  std::vector<float> qkv = random.reals(size_t(tokens * 7 * d)), turns = random.reals(size_t(tokens * d)), norm = random.reals(48);
  Cache cache(kKVFloat, tokens, 3, 2, d, 16, qkv.data(), turns.data());
  cache.rope.q_norm = cache.rope.k_norm = norm.data();
  table.rope_and_write(cache.rope, 0, tokens);
  out.push_back({"rope", 1e-5f, qkv});
}

void attentions(const KernelTable& table, Results& out) {
  for (int dtype = 0; dtype < 3; ++dtype)
    for (int window : {0, 50})
      for (const auto& [context, queries] : {std::pair<int, int>{1, 1}, {40, 40}, {130, 70}, {300, 1}, {613, 3}}) {
        Random random{uint32_t(context + dtype)};
        const AttentionCase of{KVDtype(dtype), 6, 2, 80, context, window};
        std::vector<float> qkv = random.reals(size_t(context * 10 * of.d)), turns = random.reals(size_t(context * of.d));
        Cache cache(of.dtype, context, of.heads, of.kv_heads, of.d, 32, qkv.data(), turns.data());
        kernels_portable()->rope_and_write(cache.rope, 0, context);  // the same input for all tables
        out.push_back({std::string("attention ") + kFormats[dtype] + " " + std::to_string(context) + "/" + std::to_string(queries) +
                           (window ? ", window" : ""), 1e-4f, answers(table, of, cache, qkv, queries, false, 4)});
      }
}

// --------------------------------------------------------------------------------------------------------------------

Results results_of(const KernelTable& table) {
  Results out;
  integer_linears(table, out);
  float_linears(table, out);
  row_kernels(table, out);
  written_caches(table, out);
  attentions(table, out);
  std::vector<uint8_t> memory(1000);
  table.read_memory(memory.data(), 768);
  expect(table.multiply_integers(2) > 0 && table.multiply_floats(2) > 0, table.name, "multiplies nothing");
  return out;
}

void compare(const KernelTable& table, const Results& got, const Results& portable, const Results* fused) {
  for (size_t i = 0; i < got.size(); ++i) {
    const Result &mine = got[i], &other = portable[i];
    float largest = 0, difference = 0;
    for (size_t j = 0; j < mine.values.size(); ++j) {
      largest = std::max(largest, std::fabs(other.values[j]));
      const float apart = std::fabs(mine.values[j] - other.values[j]);
      if (!(apart <= difference)) difference = apart;  // NaN too
    }
    expect(other.bound ? difference <= other.bound * largest : same_bits(mine.values, other.values), table.name,
           mine.name + " differs from the portable kernels by " + std::to_string(difference / largest));
    if (fused) expect(same_bits(mine.values, (*fused)[i].values), table.name, mine.name + " has other bits than neon");
  }
}

}  // namespace
}  // namespace aio

int main() {
  using namespace aio;
  const auto& tables = available_kernels();
  for (const KernelTable* table : tables) std::printf("%s ", table->name);
  std::printf("\n");
  const Results portable = results_of(*kernels_portable()), neon = results_of(*kernels_neon());
  for (const KernelTable* table : tables)
    if (table != kernels_portable()) compare(*table, results_of(*table), portable, table == kernels_neon() ? nullptr : &neon);
  expect(std::string(emulated_kernels()->vectors) == tables.front()->vectors, "emulated tiles",
         "other vectors than the fastest");
  for (const KernelTable* table : tables) {
    expect(!table->attends_prompts(kKVInt8), table->name, "attends to prompts in INT8");
    if (table->attends_prompts(kKVBf16)) {
      std::printf("%s: %d attentions of prompts\n", table->name, prompt_attentions(*table));
      KernelTable same = *kernels_i8mm();
      same.name = table->name;
      same.attend_prompt = table->attend_prompt;
      expect(!std::memcmp(&same, table, sizeof(same)), table->name, "has other kernels than i8mm");
    } else if (table->has_spans()) {
      std::printf("%s: %d products and %d rows in spans\n", table->name, span_linears(*table), span_rows(*table));
    }
  }
  std::printf("%zu results, %d failures\n", portable.size(), failures);
  return failures != 0;
}
