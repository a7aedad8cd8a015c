// The machine's peaks: products in registers, reading memory, barriers. Python measures the times.
#include "machine_peaks.h"

#include "python_args.h"
#include "runtime.h"
#include "spin_barrier.h"

namespace aio {

// multiply(integers, rounds) -> multiply-adds done by the calling thread
PyObject* multiply(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 2, "multiply")) return nullptr;
  Arguments v{values};
  const bool integers = v.integer(0) != 0;
  const int64_t rounds = v.integer(1);
  if (v.failed) return nullptr;
  int64_t done = 0;
  PyObject* none = without_gil([&] {
    std::lock_guard<std::mutex> lock(runtime().mutex);
    const KernelTable& kernels = *runtime().kernels;
    done = integers ? kernels.multiply_integers(rounds) : kernels.multiply_floats(rounds);
  });
  if (!none) return nullptr;
  Py_DECREF(none);
  return PyLong_FromLongLong(done);
}

// read_memory(address, bytes): every thread reads its even part
PyObject* read_memory(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 2, "read_memory")) return nullptr;
  Arguments v{values};
  const auto p = v.address<const uint8_t>(0);
  const int64_t bytes = v.integer(1);
  if (v.failed) return nullptr;
  return without_gil([&] {
    std::lock_guard<std::mutex> lock(runtime().mutex);
    ThreadPool& pool = *runtime().pool;
    const int64_t each = bytes / pool.threads() / 256 * 256;
    pool.run([&](int thread) { runtime().kernels->read_memory(p + thread * each, each); });
  });
}

// meet(rounds): all threads wait at one barrier, `rounds` times
PyObject* meet(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 1, "meet")) return nullptr;
  Arguments v{values};
  const int64_t rounds = v.integer(0);
  if (v.failed) return nullptr;
  return without_gil([&] {
    std::lock_guard<std::mutex> lock(runtime().mutex);
    ThreadPool& pool = *runtime().pool;
    SpinBarrier barrier(pool.threads());
    pool.run([&](int) {
      for (int64_t round = 0; round < rounds; ++round) barrier.wait();
    });
  });
}

}  // namespace aio
