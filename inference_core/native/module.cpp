// Python's door to the kernels: addresses and sizes come in, the work is split over the thread pool. Tensors are never
// touched here; `inference_core/native/cpu.py` checks shapes and keeps buffers alive during a call.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels.h"
#include "thread_pool.h"

namespace aio {
#if !defined(AIO_X86)
const KernelTable* kernels_avx2() { return nullptr; }
const KernelTable* kernels_avx512() { return nullptr; }
#endif

namespace {

std::mutex mutex;  // one call at a time: the pool and the scratch buffers are shared
std::unique_ptr<ThreadPool> pool;
const KernelTable* kernels = nullptr;
std::vector<int8_t> quantized;
std::vector<float> scales;
std::vector<float> offsets;
std::vector<int32_t> sums;
std::vector<std::vector<float>> scratch;
std::vector<AttentionUnit> units;

std::vector<const KernelTable*> available() {
  std::vector<const KernelTable*> tables;
#if defined(AIO_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    tables.push_back(kernels_avx512());
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(kernels_avx2());
#endif
  tables.push_back(kernels_portable());
  return tables;
}

// Splits [0, count) evenly and contiguously; small loops stay on the calling thread.
template <typename Body>
void split(int count, int worth_splitting, const Body& body) {
  if (count < worth_splitting || pool->threads() == 1) {
    body(0, count);
    return;
  }
  const int threads = pool->threads();
  pool->run([&](int t) { body(int(int64_t(count) * t / threads), int(int64_t(count) * (t + 1) / threads)); });
}

struct Arguments {
  PyObject* const* values;
  bool failed = false;

  int64_t integer(int i) {
    const long long v = PyLong_AsLongLong(values[i]);
    if (v == -1 && PyErr_Occurred()) failed = true;
    return v;
  }
  float real(int i) {
    const double v = PyFloat_AsDouble(values[i]);
    if (v == -1.0 && PyErr_Occurred()) failed = true;
    return float(v);
  }
  template <typename T>
  T* address(int i) { return reinterpret_cast<T*>(integer(i)); }
};

bool expect(Py_ssize_t given, Py_ssize_t wanted, const char* name) {
  if (given == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, %zd given", name, wanted, given);
  return false;
}

template <typename Work>
PyObject* without_gil(const Work& work) {
  std::string error;
  Py_BEGIN_ALLOW_THREADS
  try {
    std::lock_guard<std::mutex> lock(mutex);
    work();
  } catch (const std::exception& e) {
    error = e.what();
  }
  Py_END_ALLOW_THREADS
  if (!error.empty()) {
    PyErr_SetString(PyExc_RuntimeError, error.c_str());
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* set_threads(PyObject*, PyObject* arg) {
  const long n = PyLong_AsLong(arg);
  if (n == -1 && PyErr_Occurred()) return nullptr;
  if (n < 1 || n > 1024) {
    PyErr_Format(PyExc_ValueError, "threads must be between 1 and 1024, not %ld", n);
    return nullptr;
  }
  return without_gil([&] {
    if (!pool || pool->threads() != n) pool = std::make_unique<ThreadPool>(int(n));
    scratch.resize(size_t(n));
  });
}

PyObject* instruction_sets(PyObject*, PyObject*) {
  PyObject* names = PyList_New(0);
  for (const KernelTable* table : available()) {
    PyObject* name = PyUnicode_FromString(table->name);
    PyList_Append(names, name);
    Py_DECREF(name);
  }
  return names;
}

PyObject* use_instruction_set(PyObject*, PyObject* arg) {
  const char* wanted = PyUnicode_AsUTF8(arg);
  if (!wanted) return nullptr;
  for (const KernelTable* table : available())
    if (std::string(table->name) == wanted) {
      std::lock_guard<std::mutex> lock(mutex);
      kernels = table;
      Py_RETURN_NONE;
    }
  PyErr_Format(PyExc_ValueError, "this processor has no '%s' kernels", wanted);
  return nullptr;
}

void quantize(const LinearArgs& a, LinearArgs& out) {
  const size_t rows = size_t(a.rows), groups = size_t(a.k / kGroup);
  if (quantized.size() < rows * size_t(a.k)) quantized.resize(rows * size_t(a.k));
  if (scales.size() < rows * groups) scales.resize(rows * groups);
  if (offsets.size() < rows * groups) offsets.resize(rows * groups);
  if (sums.size() < rows * groups) sums.resize(rows * groups);
  out.quantized = {quantized.data(), scales.data(), sums.data(), offsets.data()};
  split(a.rows, 16, [&](int first, int last) {
    kernels->quantize_rows(a.x, a.ldx, a.k, out.quantized, first, last);
  });
}

enum Scheme { kInt4Int8 = 0, kInt8Int8 = 1, kInt4Float = 2, kBf16 = 3, kFloat = 4 };

// linear(scheme, panels, panel_bytes, rows, k, n, x, ldx, bias, y, ldy, accumulate)
PyObject* linear(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 12, "linear")) return nullptr;
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
  if (v.failed) return nullptr;
  if (scheme < kInt4Int8 || scheme > kFloat) {
    PyErr_Format(PyExc_ValueError, "no linear scheme %lld", (long long)scheme);
    return nullptr;
  }
  return without_gil([&] {
    if (scheme <= kInt8Int8) quantize(a, a);
    const auto kernel = scheme == kInt4Int8    ? kernels->linear_int4
                        : scheme == kInt8Int8  ? kernels->linear_int8
                        : scheme == kInt4Float ? kernels->linear_int4_float
                        : scheme == kBf16      ? kernels->linear_bf16
                                               : kernels->linear_f32;
    split((a.n + kLanes - 1) / kLanes, 2, [&](int first, int last) { kernel(a, first, last); });
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
  return without_gil([&] {
    split(rows, 16, [&](int first, int last) { kernels->rms_norm(x, ldx, w, y, ldy, d, eps, first, last); });
  });
}

// silu_mul(gate_up, y, d, rows)
PyObject* silu_mul(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 4, "silu_mul")) return nullptr;
  Arguments v{values};
  const auto gate_up = v.address<const float>(0);
  const auto y = v.address<float>(1);
  const int d = int(v.integer(2)), rows = int(v.integer(3));
  if (v.failed) return nullptr;
  return without_gil([&] {
    split(rows, 8, [&](int first, int last) { kernels->silu_mul(gate_up, y, d, first, last); });
  });
}

// rope_and_write(qkv, ld, cos_sin, positions, slots, arena, layer_offset, q_norm, k_norm, eps, heads, kv_heads,
//                head_dim, block_size, bf16, rows)
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
  a.bf16 = v.integer(14) != 0;
  const int rows = int(v.integer(15));
  if (v.failed) return nullptr;
  return without_gil([&] {
    split(rows, 8, [&](int first, int last) { kernels->rope_and_write(a, first, last); });
  });
}

// attend(q, ldq, out, ldo, arena, block_offsets, table_start, query_start, context_len, sequences, layer_offset, scale,
//        window, heads, kv_heads, head_dim, block_size, bf16)
PyObject* attend(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 18, "attend")) return nullptr;
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
  a.heads = int(v.integer(13));
  a.kv_heads = int(v.integer(14));
  a.head_dim = int(v.integer(15));
  a.block_size = int(v.integer(16));
  a.bf16 = v.integer(17) != 0;
  if (v.failed) return nullptr;
  return without_gil([&] {
    const int tile = query_tile(a.heads / a.kv_heads);
    units.clear();
    for (int s = 0; s < sequences; ++s)
      for (int first = 0, queries = a.query_start[s + 1] - a.query_start[s]; first < queries; first += tile)
        for (int h = 0; h < a.kv_heads; ++h)
          units.push_back({s, first, first + tile < queries ? first + tile : queries, h});
    const size_t floats = size_t(attention_scratch_floats(a.heads / a.kv_heads, a.head_dim));
    for (auto& buffer : scratch)
      if (buffer.size() < floats) buffer.resize(floats);
    // Units differ in length: threads take the next one when they are free.
    std::atomic<size_t> next{0};
    const auto body = [&](int thread) {
      for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < units.size();)
        kernels->attend(a, units[i], scratch[size_t(thread)].data());
    };
    if (units.size() < 2) body(0); else pool->run(body);
  });
}

PyMethodDef methods[] = {
    {"set_threads", set_threads, METH_O, "Set the number of threads, the caller included."},
    {"instruction_sets", instruction_sets, METH_NOARGS, "Names this processor can run, best first."},
    {"use_instruction_set", use_instruction_set, METH_O, "Choose the kernels by name."},
    {"linear", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(linear)), METH_FASTCALL, nullptr},
    {"rms_norm", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(rms_norm)), METH_FASTCALL, nullptr},
    {"silu_mul", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(silu_mul)), METH_FASTCALL, nullptr},
    {"rope_and_write", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(rope_and_write)), METH_FASTCALL,
     nullptr},
    {"attend", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(attend)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_cpu", "Native CPU kernels.", -1, methods, nullptr, nullptr, nullptr,
                          nullptr};

}  // namespace
}  // namespace aio

PyMODINIT_FUNC PyInit__cpu() {
  aio::pool = std::make_unique<aio::ThreadPool>(1);
  aio::scratch.resize(1);
  aio::kernels = aio::available().front();
  return PyModule_Create(&aio::definition);
}
