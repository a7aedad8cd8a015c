#include "thread_pool.h"

#include <chrono>

#include "spin_barrier.h"

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
    if (spins < 1000) pause_core(); else std::this_thread::yield();
  }
}

void ThreadPool::rouse() {
  if (sleeping_.load() == 0) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    rousings_.fetch_add(1);
  }
  wake_.notify_all();
}

bool ThreadPool::wait_for_next(unsigned seen) {
  auto give_up = std::chrono::steady_clock::now() + kSpin;
  while (generation_.load(std::memory_order_acquire) == seen) {
    for (int i = 0; i < 8; ++i) pause_core();
    if (std::chrono::steady_clock::now() < give_up) continue;
    std::unique_lock<std::mutex> lock(mutex_);
    const unsigned roused = rousings_.load();
    sleeping_.fetch_add(1);
    wake_.wait(lock, [&] { return generation_.load() != seen || rousings_.load() != roused; });
    sleeping_.fetch_sub(1);
    give_up = std::chrono::steady_clock::now() + kSpin;
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
