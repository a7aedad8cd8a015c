// Shared by all native calls of the process: the thread pool, the chosen kernels, and the lock around their use.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "aligned_buffer.h"
#include "kernels.h"
#include "thread_pool.h"

namespace aio {

struct Runtime {
  std::mutex mutex;  // one call at a time: the pool and the scratch buffers are shared
  std::unique_ptr<ThreadPool> pool = std::make_unique<ThreadPool>(1);
  const KernelTable* kernels = nullptr;
  std::vector<AlignedBuffer<float>> scratch = std::vector<AlignedBuffer<float>>(1);  // of one kernel at a time, per thread

  void set_threads(int threads);
  void reserve_scratch(size_t floats);
  void rouse();  // the threads, for a call that is being prepared; takes no lock if another call is running
};

Runtime& runtime();

// Kernels that this processor can run, fastest first. The first call asks the system for what they need.
const std::vector<const KernelTable*>& available_kernels();
// The fastest kernels with emulated tiles for prompts: slow, for tests on any processor.
const KernelTable* emulated_kernels();

}  // namespace aio
