// Shared by all native calls of the process: the thread pool, the chosen kernels, and the lock around their use.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "kernels.h"
#include "thread_pool.h"

namespace aio {

struct Runtime {
  std::mutex mutex;  // one call at a time: the pool and the scratch buffers are shared
  std::unique_ptr<ThreadPool> pool = std::make_unique<ThreadPool>(1);
  const KernelTable* kernels = nullptr;
  std::vector<std::vector<float>> scratch = std::vector<std::vector<float>>(1);  // of attention, one per thread

  void set_threads(int threads);
  void reserve_scratch(size_t floats);
  void rouse();  // the threads, for a call that is being prepared; takes no lock if another call is running
};

Runtime& runtime();
std::vector<const KernelTable*> available_kernels();  // kernels that this processor can run, fastest first

}  // namespace aio
