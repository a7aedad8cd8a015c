// Threads that run one parallel loop at a time: they spin at most 50 microseconds for the next one, then sleep.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace aio {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Threads in use, and those that there are.
  int threads() const { return threads_; }
  int size() const { return int(workers_.size()) + 1; }

  // From the next loop on, use so many threads, the caller included; the others sleep. Not while a loop runs.
  void use(int threads) { threads_ = threads; }

  // Calls body(thread) once on every thread in use, the caller being thread 0; returns when all have finished.
  void run(const std::function<void(int)>& body);

  // Wakes sleeping workers while the caller prepares work, since waking takes longer than preparing.
  void rouse();

 private:
  // A loop's number and its threads in one word, so that a thread that it leaves out cannot take it for the next one.
  static constexpr int kThreadBits = 16;
  static int threads_of(uint64_t loop) { return int(loop & ((1u << kThreadBits) - 1)); }

  void begin(int threads);
  void work(int thread, uint64_t seen);
  bool wait_for_next(int thread, uint64_t& seen);

  int threads_;
  std::vector<std::thread> workers_;
  const std::function<void(int)>* body_ = nullptr;
  std::atomic<uint64_t> loop_;
  std::atomic<unsigned> rousings_{0};
  std::atomic<int> unfinished_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_, unused_;  // of threads in use, and of the others
};

}  // namespace aio
