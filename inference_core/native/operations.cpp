// The single kernels that Python calls in tests and on the per-operator path: arguments are addresses and sizes, the work
// is split over the thread pool. `inference_core/native/cpu.py` checks shapes and keeps buffers alive.
#include "operations.h"

#include <algorithm>
#include <atomic>

#include "attention_units.h"
#include "python_args.h"
#include "runtime.h"

namespace aio {
namespace {

std::vector<QuantizedGroup> quantized;
std::vector<float> without_outliers, outliers_of_rows;
AttentionUnits units;
AlignedBuffer<uint16_t> rounded;
AlignedBuffer<QuantizedSpan> spans;

// One operation at a time.
template <typename Work>
PyObject* operate(const Work& work) {
  return without_gil([&] {
    Runtime& shared = runtime();
    std::lock_guard<std::mutex> lock(shared.mutex);
    work(*shared.kernels, *shared.pool);
  });
}

// Splits [0, count) evenly and contiguously; small loops stay on the calling thread.
template <typename Body>
void split(ThreadPool& pool, int count, int worth_splitting, const Body& body) {
  const int threads = pool.threads();
  if (count < worth_splitting || threads == 1) {
    body(0, count);
    return;
  }
  pool.run([&](int t) { body(int(int64_t(count) * t / threads), int(int64_t(count) * (t + 1) / threads)); });
}

void quantize_input(const KernelTable& kernels, ThreadPool& pool, LinearArgs& a) {
  const size_t groups = size_t(a.rows) * size_t(a.k / kGroup);
  if (quantized.size() < groups) quantized.resize(groups);
  split(pool, a.rows, 16, [&](int first, int last) {
    kernels.quantize_rows(a.x, a.ldx, a.k, quantized.data(), first, last);
  });
  a.quantized = quantized.data();
}

// Takes the outliers out of the input: what is left is in `a.x` then, and they are side by side.
void part_outliers(LinearArgs& a, const int32_t* channels) {
  without_outliers.resize(size_t(a.rows) * size_t(a.k));
  outliers_of_rows.resize(size_t(a.rows) * size_t(a.outliers));
  for (int row = 0; row < a.rows; ++row) {
    float* rest = without_outliers.data() + int64_t(row) * a.k;
    std::copy_n(a.x + row * a.ldx, a.k, rest);
    for (int i = 0; i < a.outliers; ++i) {
      outliers_of_rows[size_t(row) * size_t(a.outliers) + size_t(i)] = a.x[row * a.ldx + channels[i]];
      rest[channels[i]] = 0;
    }
  }
  a.x = without_outliers.data();
  a.ldx = a.k;
  a.outlier_x = outliers_of_rows.data();
  a.ld_outliers = a.outliers;
}

// False, with a ValueError, if the chosen kernels have no prompt arithmetic.
bool expect_prompt_kernels() {
  if (runtime().kernels->has_prompt_kernels()) return true;
  PyErr_SetString(PyExc_ValueError, "the chosen kernels have no prompt arithmetic");
  return false;
}

// Splits panels over the threads, each with its scratch.
void multiply_panels(ThreadPool& pool, const LinearArgs& a, LinearKernel kernel) {
  runtime().reserve_scratch(size_t(linear_scratch_floats(a.k)));
  const int panels = (a.n + kLanes - 1) / kLanes, threads = panels > 1 ? pool.threads() : 1;
  const auto multiply = [&](int thread) {
    LinearArgs own = a;
    own.scratch = runtime().scratch[size_t(thread)].data();
    const auto begin = [&](int t) { return int(int64_t(panels) * t / threads); };
    kernel(own, begin(thread), begin(thread + 1));
  };
  if (threads == 1) return multiply(0);
  pool.run(multiply);
}

void multiply_prompt(const KernelTable& kernels, ThreadPool& pool, LinearArgs& a, Scheme scheme) {
  if (kernels.has_spans()) {
    a.span_stride = odd_rows(a.rows);
    spans.reserve(size_t(a.span_stride) * size_t(spans_of(a.k)));
    kernels.quantize_spans(a.x, a.ldx, a.k, spans.data(), a.span_stride, 0, a.rows);
    a.spans = spans.data();
    return multiply_panels(pool, a, prompt_kernel(kernels, scheme));
  }
  a.ld_rounded = rounded_stride(a.k);
  rounded.reserve(size_t(a.rows) * size_t(a.ld_rounded));
  kernels.round_rows(a.x, a.ldx, a.k, rounded.data(), a.ld_rounded, 0, a.rows);
  a.rounded = rounded.data();
  multiply_panels(pool, a, prompt_kernel(kernels, scheme));
}

}  // namespace

// linear(scheme, panels, panel_bytes, rows, k, n, x, ldx, bias, y, ldy, accumulate, prompt, outliers, their number and
//        panels)
PyObject* linear(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 16, "linear")) return nullptr;
  Arguments v{values};
  const int64_t scheme = v.integer(0);
  LinearArgs a{};
  a.panels = v.address<const uint8_t>(1);
  a.panel_bytes = v.integer(2);
  a.rows = int(v.integer(3));
  a.k = int(v.integer(4));
  a.n = int(v.integer(5));
  a.x = v.address<const float>(6);
  a.ldx = v.integer(7);
  a.bias = v.address<const float>(8);
  a.y = v.address<float>(9);
  a.ldy = v.integer(10);
  a.accumulate = v.integer(11) != 0;
  const bool prompt = v.integer(12) != 0;
  const auto outliers = v.address<const int32_t>(13);
  a.outliers = int(v.integer(14));
  a.outlier_panels = v.address<const uint16_t>(15);
  if (v.failed) return nullptr;
  if (scheme < kInt4Int8 || scheme > kFloat) {
    PyErr_Format(PyExc_ValueError, "no linear scheme %lld", (long long)scheme);
    return nullptr;
  }
  if (prompt && !expect_prompt_kernels()) return nullptr;
  return operate([&](const KernelTable& kernels, ThreadPool& pool) {
    const bool tiles = prompt && kernels.has_tiles();
    if (a.outliers && !tiles && takes_integers(Scheme(scheme))) part_outliers(a, outliers);
    if (prompt) return multiply_prompt(kernels, pool, a, Scheme(scheme));
    if (takes_integers(Scheme(scheme))) {
      quantize_input(kernels, pool, a);
    }
    multiply_panels(pool, a, linear_kernel(kernels, Scheme(scheme)));
  });
}

// rms_norm(x, ldx, w, y, ldy, d, eps, rows)
PyObject* rms_norm(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 8, "rms_norm")) return nullptr;
  Arguments v{values};
  const auto x = v.address<const float>(0), w = v.address<const float>(2);
  const auto y = v.address<float>(3);
  const int64_t ldx = v.integer(1), ldy = v.integer(4);
  const int d = int(v.integer(5)), rows = int(v.integer(7));
  const float eps = v.real(6);
  if (v.failed) return nullptr;
  return operate([&](const KernelTable& kernels, ThreadPool& pool) {
    split(pool, rows, 16, [&](int first, int last) { kernels.rms_norm(x, ldx, w, y, ldy, d, eps, first, last); });
  });
}

// gated_mul(gate_up, y, d, rows, activation, alpha, limit)
PyObject* gated_mul(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 7, "gated_mul")) return nullptr;
  Arguments v{values};
  const auto gate_up = v.address<const float>(0);
  const auto y = v.address<float>(1);
  const int d = int(v.integer(2)), rows = int(v.integer(3));
  const Activation activation = Activation(v.integer(4));
  const float alpha = v.real(5), limit = v.real(6);
  if (v.failed) return nullptr;
  return operate([&](const KernelTable& kernels, ThreadPool& pool) {
    const GatedKernel multiply = gated_kernel(kernels, activation);
    const GateUp x = GateUp::rows(gate_up, d, alpha, limit);
    split(pool, rows, 8, [&](int first, int last) { multiply(x, y, d, first, last, 0, d); });
  });
}

// cap_values(x, count, cap)
PyObject* cap_values(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 3, "cap_values")) return nullptr;
  Arguments v{values};
  const auto x = v.address<float>(0);
  const int64_t numbers = v.integer(1);
  const float cap = v.real(2);
  if (v.failed) return nullptr;
  return operate([&](const KernelTable& kernels, ThreadPool&) { kernels.cap_values(x, numbers, cap); });
}

// quantize(x, ldx, k, rows, out)
PyObject* quantize(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 5, "quantize")) return nullptr;
  Arguments v{values};
  const auto x = v.address<const float>(0);
  const int64_t ldx = v.integer(1);
  const int k = int(v.integer(2)), rows = int(v.integer(3));
  const auto out = v.address<QuantizedGroup>(4);
  if (v.failed) return nullptr;
  return operate([&](const KernelTable& kernels, ThreadPool& pool) {
    split(pool, rows, 16, [&](int first, int last) { kernels.quantize_rows(x, ldx, k, out, first, last); });
  });
}

// norm_quantize(x, ldx, w, d, eps, rows, out)
PyObject* norm_quantize(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 7, "norm_quantize")) return nullptr;
  Arguments v{values};
  const auto x = v.address<const float>(0), w = v.address<const float>(2);
  const int64_t ldx = v.integer(1);
  const int d = int(v.integer(3)), rows = int(v.integer(5));
  const float eps = v.real(4);
  const auto out = v.address<QuantizedGroup>(6);
  if (v.failed) return nullptr;
  return operate([&](const KernelTable& kernels, ThreadPool& pool) {
    split(pool, rows, 16, [&](int first, int last) { kernels.norm_quantize_rows(x, ldx, w, d, eps, out, first, last); });
  });
}

// silu_quantize(gate_up, d, rows, out)
PyObject* silu_quantize(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 4, "silu_quantize")) return nullptr;
  Arguments v{values};
  const auto gate_up = v.address<const float>(0);
  const int d = int(v.integer(1)), rows = int(v.integer(2));
  const auto out = v.address<QuantizedGroup>(3);
  if (v.failed) return nullptr;
  return operate([&](const KernelTable& kernels, ThreadPool& pool) {
    split(pool, rows, 8, [&](int first, int last) {
      kernels.silu_quantize_rows(GateUp::rows(gate_up, d), d, out, first, last, 0, d / kGroup);
    });
  });
}

// rope_and_write(qkv, ld, cos_sin, positions, slots, arena, layer_offset, q_norm, k_norm, eps, heads, kv_heads,
//                head_dim, block_size, dtype, rows)
PyObject* rope_and_write(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 16, "rope_and_write")) return nullptr;
  Arguments v{values};
  RopeArgs a{};
  a.qkv = v.address<float>(0);
  a.ld = v.integer(1);
  a.cos_sin = v.address<const float>(2);
  a.positions = v.address<const int32_t>(3);
  a.slots = v.address<const int64_t>(4);
  a.arena = v.address<uint8_t>(5);
  a.layer_offset = v.integer(6);
  a.q_norm = v.address<const float>(7);
  a.k_norm = v.address<const float>(8);
  a.eps = v.real(9);
  a.heads = int(v.integer(10));
  a.kv_heads = int(v.integer(11));
  a.head_dim = int(v.integer(12));
  a.block_size = int(v.integer(13));
  a.dtype = KVDtype(v.integer(14));
  const int rows = int(v.integer(15));
  if (v.failed) return nullptr;
  return operate([&](const KernelTable& kernels, ThreadPool& pool) {
    split(pool, rows, 8, [&](int first, int last) { kernels.rope_and_write(a, first, last); });
  });
}

// attend(q, ldq, out, ldo, arena, block_offsets, table_start, query_start, context_len, sequences, layer_offset, scale,
//        window, softcap, heads, kv_heads, head_dim, block_size, dtype, prompt, sinks); prompt: uint8 [tokens], or 0 for none;
//        sinks: float32 [heads], or 0
PyObject* attend(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 21, "attend")) return nullptr;
  Arguments v{values};
  AttentionArgs a{};
  a.q = v.address<const float>(0);
  a.ldq = v.integer(1);
  a.out = v.address<float>(2);
  a.ldo = v.integer(3);
  a.arena = v.address<const uint8_t>(4);
  a.block_offsets = v.address<const int64_t>(5);
  a.table_start = v.address<const int32_t>(6);
  a.query_start = v.address<const int32_t>(7);
  a.context_len = v.address<const int32_t>(8);
  const int sequences = int(v.integer(9));
  a.layer_offset = v.integer(10);
  a.scale = v.real(11);
  a.window = int(v.integer(12));
  a.softcap = v.real(13);
  a.heads = int(v.integer(14));
  a.kv_heads = int(v.integer(15));
  a.head_dim = int(v.integer(16));
  a.block_size = int(v.integer(17));
  a.dtype = KVDtype(v.integer(18));
  a.prompt = v.address<const uint8_t>(19);
  a.sinks = v.address<const float>(20);
  if (v.failed) return nullptr;
  if (a.prompt && !expect_prompt_kernels()) return nullptr;
  return operate([&](const KernelTable& kernels, ThreadPool& pool) {
    if (!kernels.attends_prompts(a.dtype)) a.prompt = nullptr;
    units.list(a, sequences, pool.threads());
    units.lend(a);
    runtime().reserve_scratch(size_t(attention_scratch_floats(a.heads / a.kv_heads, a.head_dim)));
    // Units differ in length: threads take the next one when they are free.
    std::atomic<int> next{0};
    const auto body = [&](int thread) { units.drain(kernels, a, next, runtime().scratch[size_t(thread)].data()); };
    if (units.size() < 2) body(0); else pool.run(body);
  });
}

}  // namespace aio
