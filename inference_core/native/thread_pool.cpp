#include "thread_pool.h"

#include <chrono>

#include "spin_barrier.h"

namespace aio {

namespace {
constexpr auto kSpin = std::chrono::microseconds(50);
}

ThreadPool::ThreadPool(int threads) : threads_(threads), loop_(uint64_t(threads)) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i, threads] { work(i, uint64_t(threads)); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  begin(size());
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(const std::function<void(int)>& body) {
  if (threads_ == 1) {
    body(0);
    return;
  }
  body_ = &body;
  unfinished_.store(threads_ - 1);
  begin(threads_);
  body(0);
  for (int spins = 0; unfinished_.load(std::memory_order_acquire) > 0; ++spins) {
    if (spins < 1000) pause_core(); else std::this_thread::yield();
  }
}

void ThreadPool::begin(int threads) {
  const uint64_t last = loop_.load();
  const bool more = threads > threads_of(last);
  loop_.store((((last >> kThreadBits) + 1) << kThreadBits) | uint64_t(threads));
  if (sleeping_.load() == 0 && !more) return;
  // Taking the lock orders this against a worker that has checked the loop and is about to sleep.
  { std::lock_guard<std::mutex> lock(mutex_); }
  wake_.notify_all();
  if (more) unused_.notify_all();
}

void ThreadPool::rouse() {
  if (threads_ == 1 || sleeping_.load() == 0) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    rousings_.fetch_add(1);
  }
  wake_.notify_all();
}

// Sets `seen` to the next loop that `thread` takes part in; false when the pool ends.
bool ThreadPool::wait_for_next(int thread, uint64_t& seen) {
  const auto is_in_use = [&] { return threads_of(loop_.load(std::memory_order_relaxed)) > thread; };
  const auto has_begun = [&] {
    const uint64_t loop = loop_.load();
    return loop != seen && threads_of(loop) > thread;
  };
  auto give_up = std::chrono::steady_clock::now() + kSpin;
  while (!has_begun()) {
    for (int i = 0; i < 8; ++i) pause_core();
    if (std::chrono::steady_clock::now() < give_up) continue;
    std::unique_lock<std::mutex> lock(mutex_);
    if (!is_in_use()) {
      unused_.wait(lock, has_begun);
      break;
    }
    const unsigned roused = rousings_.load();
    sleeping_.fetch_add(1);
    wake_.wait(lock, [&] { return has_begun() || !is_in_use() || rousings_.load() != roused; });
    sleeping_.fetch_sub(1);
    give_up = std::chrono::steady_clock::now() + kSpin;
  }
  seen = loop_.load();
  return !stop_;
}

void ThreadPool::work(int thread, uint64_t seen) {
  while (wait_for_next(thread, seen)) {
    (*body_)(thread);
    unfinished_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace aio
