// Shared by all native calls of the process: the thread pool, the chosen kernels, and the lock around their use.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "aligned_buffer.h"
#include "kernels.h"
#include "thread_choice.h"
#include "thread_pool.h"

namespace aio {

struct Runtime {
  std::mutex mutex;  // one call at a time: the pool and the scratch buffers are shared
  std::unique_ptr<ThreadPool> pool = std::make_unique<ThreadPool>(1);
  ThreadChoice choice{1};  // of the pool's threads
  bool adapts = false;
  std::atomic<int> threads_in_use{1};  // readable without the lock
  const KernelTable* kernels = nullptr;
  std::vector<AlignedBuffer<float>> scratch = std::vector<AlignedBuffer<float>>(1);  // of one kernel at a time, per thread

  // The caller's thread included. `adapting`: steps may use fewer of them, as `ThreadChoice` says.
  void set_threads(int threads, bool adapting);
  void observe_step(double seconds, double lost);  // see `ThreadChoice::observe`
  void use_threads(int threads);  // of those that there are
  void reserve_scratch(size_t floats);
  void rouse();  // the threads, for a call that is being prepared; takes no lock if another call is running
};

Runtime& runtime();

// Kernels that this processor can run, fastest first. The first call asks the system for what they need.
const std::vector<const KernelTable*>& available_kernels();
// The fastest kernels with emulated tiles for prompts: slow, for tests on any processor.
const KernelTable* emulated_kernels();

}  // namespace aio
