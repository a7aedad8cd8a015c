#include "thread_pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#define AIO_PAUSE() _mm_pause()
#else
#define AIO_PAUSE() std::this_thread::yield()
#endif

namespace aio {

namespace {
constexpr auto kSpin = std::chrono::microseconds(50);
}

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(const std::function<void(int)>& body) {
  if (workers_.empty()) {
    body(0);
    return;
  }
  body_ = &body;
  unfinished_.store(int(workers_.size()));
  generation_.fetch_add(1);
  if (sleeping_.load() > 0) {
    // Taking the lock orders this against a worker that has checked the generation and is about to sleep.
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  body(0);
  for (int spins = 0; unfinished_.load(std::memory_order_acquire) > 0; ++spins) {
    if (spins < 20000) AIO_PAUSE(); else std::this_thread::yield();
  }
}

bool ThreadPool::wait_for_next(unsigned seen) {
  const auto give_up = std::chrono::steady_clock::now() + kSpin;
  while (generation_.load(std::memory_order_acquire) == seen) {
    for (int i = 0; i < 32; ++i) AIO_PAUSE();
    if (std::chrono::steady_clock::now() < give_up) continue;
    std::unique_lock<std::mutex> lock(mutex_);
    sleeping_.fetch_add(1);
    wake_.wait(lock, [&] { return generation_.load() != seen; });
    sleeping_.fetch_sub(1);
  }
  return !stop_;
}

void ThreadPool::work(int thread) {
  for (unsigned seen = 0; wait_for_next(seen); ++seen) {
    (*body_)(thread);
    unfinished_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace aio
