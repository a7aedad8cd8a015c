// Threads that run one parallel loop at a time: they spin at most 50 microseconds for the next one, then sleep.
#pragma once
#include <atomic>
#include <condition_variable>
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

  int threads() const { return int(workers_.size()) + 1; }

  // Calls body(thread) once on every thread, the caller being thread 0; returns when all have finished.
  void run(const std::function<void(int)>& body);

  // Wakes sleeping workers while the caller prepares work, since waking takes longer than preparing.
  void rouse();

 private:
  void work(int thread);
  bool wait_for_next(unsigned seen);

  std::vector<std::thread> workers_;
  const std::function<void(int)>* body_ = nullptr;
  std::atomic<unsigned> generation_{0};
  std::atomic<unsigned> rousings_{0};
  std::atomic<int> unfinished_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace aio
