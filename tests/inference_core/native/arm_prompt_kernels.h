// Kernels of prompts against what they are defined to compute: linear layers and quantised rows bit by bit, attention within
// the bound of its roundings. No row may depend on its batch.
#pragma once
#include "arm_kernel_inputs.h"

namespace aio {
namespace {

float real(uint16_t half) {  // of normal numbers and zero
  const uint32_t bits = half & 0x7fffu ? (half & 0x8000u) << 16 | ((half & 0x7fffu) + (112u << 10)) << 13 : 0;
  float v;
  std::memcpy(&v, &bits, 4);
  return v;
}

// What `quantize_spans` is defined to compute: symmetric, ties to even.
QuantizedSpan quantised(const float* x, int count) {
  QuantizedSpan span = {};
  float most = 0;
  for (int i = 0; i < count; ++i) most = std::max(most, std::fabs(x[i]));
  int total = 0;
  for (int i = 0; i < count; ++i)
    total += span.q[i] = int8_t(std::nearbyint(x[i] * (most > 0 ? 127.0f / most : 0.0f)));
  span.scale = most / 127.0f;
  span.correction = -128 * total;
  return span;
}

// A layer's input as INT8 in spans, and what is multiplied apart from it.
struct SpanInput {
  int rows, k;
  int64_t stride;
  std::vector<QuantizedSpan> spans;
  std::vector<float> outlier_x;
  std::vector<uint16_t> outlier_panels;

  SpanInput(const Layer& layer, int outliers, Random& random) : rows(layer.rows), k(layer.k), stride(odd_rows(layer.rows)) {
    spans.resize(size_t(spans_of(k) * stride));
    for (int row = 0; row < rows; ++row) {
      const std::vector<float> x = random.reals(size_t(k));
      for (int s = 0; s < spans_of(k); ++s)
        spans[size_t(s * stride + row)] = quantised(x.data() + s * kSpan, std::min(kSpan, k - s * kSpan));
    }
    outlier_x = random.reals(size_t(rows * outliers));
    for (int i = 0; i < (layer.n + kLanes - 1) / kLanes * outliers * kLanes; ++i)
      outlier_panels.push_back(half(1.0f + float(random.below(64)) / 64.0f));
  }
};

// Turns signs of scales and minima, and makes the first column zero.
void sign_scales(const Packed& kind, Layer& layer, int groups, Random& random) {
  for (int64_t panel = 0; panel * kLanes < layer.n; ++panel)
    for (int g = 0; g < groups; ++g) {
      uint8_t* at = layer.panels.data() + panel * layer.args.panel_bytes + (kind.minima ? g * 320 + 256 : g * 32);
      for (int c = 0; c < (kind.minima ? 2 : 1) * kLanes; ++c) {
        if (c % kLanes == 0 && panel == 0) std::memset(at + 2 * c, 0, 2);
        if (kind.centre != 128 && random.below(2)) at[2 * c + 1] ^= 0x80;  // codes of -128 have no opposite
      }
    }
}

// Column `c` of a panel in one span: its codes, rounded again to INT8, and what one of them is worth.
struct SpanColumn {
  int codes[kSpan];
  float step;

  SpanColumn(const Packed& kind, const Layer& layer, int panel, int c, int s) {
    const uint8_t* base = layer.panels.data() + panel * layer.args.panel_bytes;
    const int groups = layer.k / kGroup, first = s * kSpan / kGroup, last = std::min(groups, first + kSpan / kGroup);
    const int head = kind.minima ? 0 : (groups * 32 + 63) / 64 * 64, bytes = kind.minima ? 320 : kind.group_bytes;
    const auto scales = [&](int g) {
      return reinterpret_cast<const uint16_t*>(kind.minima ? base + g * bytes + 256 : base + g * 32) + c;
    };
    float peak = 0;
    for (int g = first; g < last; ++g) {
      const float scale = real(*scales(g));
      if (kind.minima) {
        const float minimum = real(scales(g)[kLanes]);
        peak = std::max({peak, std::fabs(minimum), std::fabs(std::fma(scale, 15.0f, minimum))});
      } else {
        peak = std::max(peak, std::fabs(scale) * (kind.centre == 8 ? 8.0f : 1.0f));
      }
    }
    const float most = kind.centre == 128 ? 1.0f : 127.0f, inverse = peak > 0 ? most * 256.0f / peak : 0.0f;
    step = peak / most;
    for (int g = first; g < last; ++g) {
      const int a = int(std::nearbyint(real(*scales(g)) * inverse));
      const int b = kind.minima ? int(std::nearbyint(real(scales(g)[kLanes]) * inverse)) : -kind.centre * a;
      const uint8_t* packed = base + head + g * bytes;
      for (int i = 0; i < kGroup; ++i) {
        const int code = kind.group_bytes == 512 ? packed[i / 4 * 64 + c * 4 + i % 4]
                                                 : packed[i / 8 * 64 + c * 4 + i % 4] >> (i / 4 % 2 * 4) & 15;
        codes[(g - first) * kGroup + i] = ((code * a + b + 128 * 256 + 128) >> 8) - 128;
      }
    }
  }
};

// Integer sums of each span, times the weights' step; then added times the activations' scale, behind the outliers.
std::vector<float> span_sums(const Packed& kind, const Layer& layer, const SpanInput& input, int outliers) {
  std::vector<float> y = layer.before;
  for (int c = 0; c < layer.n; ++c) {
    const int panel = c / kLanes;
    std::vector<SpanColumn> columns;
    for (int s = 0; s < spans_of(layer.k); ++s) columns.emplace_back(kind, layer, panel, c % kLanes, s);
    for (int row = 0; row < layer.rows; ++row) {
      float total = 0;
      for (int o = 0; o < outliers; ++o)
        total = std::fma(real(input.outlier_panels[size_t((panel * outliers + o) * kLanes + c % kLanes)]),
                         input.outlier_x[size_t(row * outliers + o)], total);
      for (int s = 0; s < spans_of(layer.k); ++s) {
        const QuantizedSpan& x = input.spans[size_t(s * input.stride + row)];
        int sum = 0;
        for (int i = 0; i < std::min(kSpan, layer.k - s * kSpan); ++i) sum += columns[size_t(s)].codes[i] * x.q[i];
        total = std::fma(float(sum) * columns[size_t(s)].step, x.scale, total);
      }
      total += layer.bias[size_t(c)];
      float& out = y[size_t(row * (layer.n + 5) + c)];
      out = layer.args.accumulate ? out + total : total;
    }
  }
  return y;
}

int span_linears(const KernelTable& table) {
  uint32_t seed = 1;
  for (const Packed& kind : kPacked)
    for (int rows : {1, 2, 5, 6, 7, 12, 31})
      for (int n : {1, 16, 47, 64}) {
        const int groups = 1 + int(seed % 11), outliers = int(seed % 3);
        Random random(seed);
        Layer layer(kind, rows, groups, n, seed % 2 != 0, false, seed);
        ++seed;
        sign_scales(kind, layer, groups, random);
        SpanInput input(layer, outliers, random);
        std::vector<float> scratch(size_t(linear_scratch_floats(layer.k)) + 16);
        LinearArgs args = layer.args;
        args.quantized = nullptr;
        args.span_stride = input.stride;
        args.outliers = args.ld_outliers = outliers;
        args.outlier_panels = input.outlier_panels.data();
        args.scratch = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) & ~uintptr_t(63));
        const auto product = [&](int first, int count) {
          std::vector<float> y(layer.before.begin() + first * (n + 5), layer.before.begin() + (first + count) * (n + 5));
          args.rows = count;
          args.spans = input.spans.data() + first;
          args.outlier_x = input.outlier_x.data() + first * outliers;
          args.y = y.data();
          prompt_kernel(table, kind.scheme)(args, 0, (n + kLanes - 1) / kLanes);
          return y;
        };
        const std::string name = std::string(kind.name) + " in spans " + std::to_string(rows) + "x" + std::to_string(layer.k) +
                                 "x" + std::to_string(n);
        const std::vector<float> together = product(0, rows);
        expect(same_bits(together, span_sums(kind, layer, input, outliers)), table.name,
               name + " is not what it is defined to be");
        for (const auto& [first, count] : {std::pair<int, int>{0, 1}, {rows - 1, 1}, {rows / 2, rows - rows / 2}})
          expect(same_bits(product(first, count), std::vector<float>(together.begin() + first * (n + 5),
                                                                     together.begin() + (first + count) * (n + 5))),
                 table.name, name + " depends on the batch");
      }
  return int(seed) - 1;
}

int span_rows(const KernelTable& table) {
  Random random(13);
  int count = 0;
  for (int d : {32, 96, 128, 160, 480, 1536}) {
    const int rows = 3, spans = spans_of(d);
    std::vector<float> x = random.reals(size_t(rows * 2 * d)), weight = random.reals(size_t(d)), y(size_t(rows * d));
    for (int i = 0; i < kGroup; ++i) x[size_t(d + i)] = 0;
    const std::string size = " " + std::to_string(d);
    const auto expect_spans = [&](const float* values, int64_t ld, const std::vector<QuantizedSpan>& got, const char* name) {
      bool same = true;
      for (int row = 0; row < rows; ++row)
        for (int s = 0; s < spans; ++s) {
          const int length = std::min(kSpan, d - s * kSpan);
          const QuantizedSpan wanted = quantised(values + row * ld + s * kSpan, length), &mine = got[size_t(s * rows + row)];
          same &= !std::memcmp(wanted.q, mine.q, size_t(length)) && wanted.scale == mine.scale;
          same &= wanted.correction == mine.correction;
        }
      expect(same, table.name, name + size + " is not what it is defined to be");
      ++count;
    };
    std::vector<QuantizedSpan> got(size_t(spans * rows));
    table.quantize_spans(x.data(), 2 * d, d, got.data(), rows, 0, rows);
    expect_spans(x.data(), 2 * d, got, "quantize_spans");
    table.rms_norm(x.data(), 2 * d, weight.data(), y.data(), d, d, 1e-5f, 0, rows);
    table.norm_quantize_spans(x.data(), 2 * d, weight.data(), d, 1e-5f, got.data(), rows, 0, rows);
    expect_spans(y.data(), d, got, "norm_quantize_spans");
    const GateUp gate_up = GateUp::rows(x.data(), d, 1.7f, 1.5f);
    for (const Activation activation : {kSilu, kGelu, kClampedSwiglu}) {
      gated_kernel(table, activation)(gate_up, y.data(), d, 0, rows, 0, d);
      gated_span_kernel(table, activation)(gate_up, d, got.data(), rows, 0, rows, 0, spans);
      expect_spans(y.data(), d, got, "gated spans");
    }
  }
  return count;
}

float most_of_heads(const std::vector<float>& qkv, int ld, int first, int heads, int d) {  // the longest vector
  double most = 0;
  for (size_t row = 0; row * size_t(ld) < qkv.size(); ++row)
    for (int h = first; h < first + heads; ++h) {
      double square = 0;
      for (int i = 0; i < d; ++i) square += std::pow(double(qkv[row * size_t(ld) + size_t(h * d + i)]), 2);
      most = std::max(most, std::sqrt(square));
    }
  return float(most);
}

// Near float32 over the same cache: a query off by 2^-9 of itself moves a score by at most e = 2^-9 |q| |k| scale, so a weight
// by a factor of at most exp(2 e) after normalisation; rounding the weight itself adds 2^-9. Independent roundings add up to
// far less.
int prompt_attentions(const KernelTable& table) {
  const struct { int heads, kv_heads, d; } shapes[] = {{6, 2, 80}, {1, 1, 16}, {5, 1, 64}, {8, 1, 128}, {3, 1, 96}};
  int count = 0;
  for (const auto& shape : shapes)
    for (int window : {0, 20, 300})
      for (const auto& [context, queries] :
           {std::pair<int, int>{1, 1}, {3, 3}, {17, 17}, {64, 64}, {65, 7}, {300, 41}, {613, 50}}) {
        Random random{uint32_t(context + shape.d)};
        const AttentionCase of{kKVBf16, shape.heads, shape.kv_heads, shape.d, context, window};
        const int ld = (of.heads + 2 * of.kv_heads) * of.d, width = of.heads * of.d;
        std::vector<float> qkv = random.reals(size_t(context * ld)), turns(size_t(context * of.d));
        for (size_t i = 0; i < turns.size(); ++i) turns[i] = i % size_t(of.d) < size_t(of.d) / 2 ? 1.0f : 0.0f;
        Cache cache(of.dtype, context, of.heads, of.kv_heads, of.d, 16, qkv.data(), turns.data());
        table.rope_and_write(cache.rope, 0, context);
        const std::vector<float> got = answers(table, of, cache, qkv, queries, true, 1);
        const std::vector<float> wanted = answers(*kernels_portable(), of, cache, qkv, queries, false, 1);
        const float q = most_of_heads(qkv, ld, 0, of.heads, of.d), k = most_of_heads(qkv, ld, of.heads, of.kv_heads, of.d);
        const float bound = 2.0f * 1.02f * (std::exp(2.0f * 1.02f * q * k * 0.16f / 512.0f) - 1.0f + 1.02f / 256.0f);
        double apart = 0, square = 0;
        bool near = true;
        for (size_t i = 0; i < got.size(); ++i) {
          near &= std::fabs(got[i] - wanted[i]) <= bound;
          apart += std::pow(double(got[i]) - wanted[i], 2);
          square += std::pow(double(wanted[i]), 2);
        }
        const std::string name = "prompt attention " + std::to_string(of.heads) + "/" + std::to_string(of.kv_heads) + "x" +
                                 std::to_string(of.d) + " " + std::to_string(context) + "/" + std::to_string(queries) +
                                 ", window " + std::to_string(window);
        const double error = std::sqrt(apart / square);
        expect(near && error < 0.01, table.name, name + " is far from float32: " + std::to_string(error));
        expect(same_bits(got, answers(table, of, cache, qkv, queries, true, 5)), table.name,
               name + " depends on the threads");
        for (int fewer : {1, (queries + 1) / 2})
          expect(same_bits(answers(table, of, cache, qkv, fewer, true, 1),
                           std::vector<float>(got.end() - fewer * width, got.end())),
                 table.name, name + " depends on the batch");
        ++count;
      }
  return count;
}

}  // namespace
}  // namespace aio
