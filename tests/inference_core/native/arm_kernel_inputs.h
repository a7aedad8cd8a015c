// Inputs of kernels and what they compute from them, for arm_kernel_tables.cpp and arm_prompt_kernels.h.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "attention_units.h"
#include "kv_block.h"
#include "kernels.h"

namespace aio {
namespace {

struct Random {
  uint32_t state;
  explicit Random(uint32_t seed) : state(seed * 2654435761u + 1u) {}
  uint32_t next() {
    state ^= state << 13;
    state ^= state >> 17;
    return state ^= state << 5;
  }
  int below(int n) { return int(next() >> 8) % n; }
  float real() { return float(int(next() >> 8) - (1 << 23)) / float(1 << 22); }  // in [-2, 2)
  std::vector<float> reals(size_t count) {
    std::vector<float> out(count);
    for (float& v : out) v = real();
    return out;
  }
};

int failures = 0;

void expect(bool holds, const std::string& table, const std::string& what) {
  if (holds) return;
  std::printf("%s: %s\n", table.c_str(), what.c_str());
  ++failures;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && !std::memcmp(a.data(), b.data(), a.size() * sizeof(T));
}

uint16_t half(float v) {  // of normal numbers that need no rounding
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  return uint16_t((bits >> 16 & 0x8000u) | (((bits >> 23 & 0xffu) - 112u) << 10) | (bits >> 13 & 0x3ffu));
}

struct Packed {
  const char* name;
  Scheme scheme;
  int group_bytes, centre;  // of codes
  bool minima;
};
constexpr Packed kPacked[] = {{"int4", kInt4Int8, 256, 0, true},
                              {"int4 centred", kInt4CentredInt8, 256, 8, false},
                              {"int8", kInt8Int8, 512, 128, false}};

// A layer and its input. `exact`: scales are powers of two and few enough groups that float32 holds every sum.
struct Layer {
  int rows, k, n;
  std::vector<uint8_t> panels;
  std::vector<QuantizedGroup> x;
  std::vector<float> bias, before;
  std::vector<double> wanted;  // [rows, n]
  LinearArgs args;

  Layer(const Packed& kind, int rows, int groups, int n, bool accumulate, bool exact, uint32_t seed)
      : rows(rows), k(groups * kGroup), n(n) {
    Random random(seed);
    const int count = (n + kLanes - 1) / kLanes, head = kind.minima ? 0 : (groups * 32 + 63) / 64 * 64;
    const int step = kind.minima ? 320 : kind.group_bytes;
    const auto scale = [&] { return exact ? 1.0f + float(random.below(2)) : 0.5f + float(random.below(1024)) / 1024.0f; };
    args = {};
    args.panel_bytes = head + groups * step;
    panels.resize(size_t(args.panel_bytes) * size_t(count) + 64);
    for (uint8_t& code : panels) code = uint8_t(random.next() >> 9);
    for (int i = 0; i < rows * groups; ++i) {
      QuantizedGroup group;
      int total = 0;
      for (int8_t& q : group.q) total += q = int8_t(random.below(255) - 127);
      group.scale = scale();
      group.offset = group.scale * float(total);
      group.correction = -128 * total;
      group.nibble_correction = -8 * total;
      x.push_back(group);
    }
    bias.resize(size_t(count) * kLanes);
    for (float& v : bias) v = float(random.below(100));
    before.assign(size_t(rows) * size_t(n + 5), 3.0f);
    wanted.resize(size_t(rows) * size_t(n));
    for (int panel = 0; panel < count; ++panel)
      for (int g = 0; g < groups; ++g)
        for (int c = 0; c < kLanes; ++c) add_group(kind, panel, g, c, groups, head, step, scale(), float(random.below(4)) + 1);
    for (int row = 0; row < rows; ++row)
      for (int c = 0; c < n; ++c) wanted[size_t(row * n + c)] += double(bias[size_t(c)]) + (accumulate ? 3.0 : 0.0);
    args.panels = panels.data();
    args.rows = rows;
    args.k = k;
    args.n = n;
    args.quantized = x.data();
    args.bias = bias.data();
    args.ldy = n + 5;
    args.accumulate = accumulate;
  }

  // Writes the scale and the minimum of a column, and adds its products to what is wanted.
  void add_group(const Packed& kind, int panel, int g, int c, int groups, int head, int step, float scale, float minimum) {
    uint8_t* base = panels.data() + panel * args.panel_bytes;
    const uint8_t* codes = base + head + g * step;
    auto* scales = reinterpret_cast<uint16_t*>(kind.minima ? base + g * step + 256 : base + g * 32);
    scales[c] = half(scale);
    if (kind.minima) scales[kLanes + c] = half(minimum);
    for (int row = 0; row < rows && panel * kLanes + c < n; ++row) {
      const QuantizedGroup& group = x[size_t(row * groups + g)];
      int sum = 0, total = 0;
      for (int i = 0; i < kGroup; ++i) {
        const int code = kind.group_bytes == 512 ? codes[i / 4 * 64 + c * 4 + i % 4]
                                                 : codes[i / 8 * 64 + c * 4 + i % 4] >> (i / 4 % 2 * 4) & 15;
        sum += (code - kind.centre) * group.q[i];
        total += group.q[i];
      }
      double& out = wanted[size_t(row * n + panel * kLanes + c)];
      out += double(scale) * group.scale * sum + (kind.minima ? double(minimum) * group.scale * total : 0.0);
    }
  }

  std::vector<float> by(const KernelTable& table, Scheme scheme) {
    std::vector<float> y = before;
    args.y = y.data();
    linear_kernel(table, scheme)(args, 0, (n + kLanes - 1) / kLanes);
    return y;
  }
};

// Tokens 0 to `tokens` of one sequence in an arena whose unused bytes are NaN.
struct Cache {
  std::vector<uint8_t> arena;
  std::vector<int64_t> blocks, slots;
  std::vector<int32_t> positions;
  RopeArgs rope = {};

  Cache(KVDtype dtype, int tokens, int heads, int kv_heads, int d, int block_size, float* qkv, const float* cos_sin) {
    const int64_t bytes = KVBlock(dtype, d, block_size).head_bytes * kv_heads;
    const int count = (tokens + block_size - 1) / block_size;
    arena.assign(size_t(bytes * count), 0xff);
    for (int i = 0; i < count; ++i) blocks.push_back((count - 1 - i) * bytes);
    for (int t = 0; t < tokens; ++t) {
      positions.push_back(t);
      slots.push_back(blocks[size_t(t / block_size)]);
    }
    rope.qkv = qkv;
    rope.ld = (heads + 2 * kv_heads) * d;
    rope.cos_sin = cos_sin;
    rope.positions = positions.data();
    rope.slots = slots.data();
    rope.arena = arena.data();
    rope.heads = heads;
    rope.kv_heads = kv_heads;
    rope.head_dim = d;
    rope.block_size = block_size;
    rope.dtype = dtype;
    rope.eps = 1e-5f;
  }
};

struct AttentionCase {
  KVDtype dtype;
  int heads, kv_heads, d, context, window;
};

// The answers to the last `queries` of a sequence of which a layer's numbers are given, as prompt or as generated tokens.
std::vector<float> answers(const KernelTable& table, const AttentionCase& of, const Cache& cache, const std::vector<float>& qkv,
                           int queries, bool prompt, int threads) {
  const int ld = (of.heads + 2 * of.kv_heads) * of.d;
  const int32_t start = 0, query_start[] = {0, queries}, length = of.context;
  const std::vector<uint8_t> prompts(size_t(queries), 1);
  std::vector<float> y(size_t(queries * of.heads * of.d));
  AttentionArgs args = {};
  args.q = qkv.data() + (of.context - queries) * ld;
  args.ldq = ld;
  args.out = y.data();
  args.ldo = of.heads * of.d;
  args.arena = cache.arena.data();
  args.block_offsets = cache.blocks.data();
  args.table_start = &start;
  args.query_start = query_start;
  args.context_len = &length;
  args.scale = 0.16f;
  args.window = of.window;
  args.heads = of.heads;
  args.kv_heads = of.kv_heads;
  args.head_dim = of.d;
  args.block_size = cache.rope.block_size;
  args.dtype = of.dtype;
  args.prompt = prompt ? prompts.data() : nullptr;
  AttentionUnits units;
  units.list(args, 1, threads);
  units.lend(args);
  std::vector<float> scratch(size_t(attention_scratch_floats(of.heads / of.kv_heads, of.d)));
  std::atomic<int> next{0};
  units.drain(table, args, next, scratch.data());
  return y;
}

}  // namespace
}  // namespace aio
