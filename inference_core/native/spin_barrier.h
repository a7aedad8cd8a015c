// A barrier for threads that synchronise hundreds of times per step, microseconds apart.
#pragma once
#include <atomic>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aio {

inline void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

class SpinBarrier {
 public:
  explicit SpinBarrier(int threads) : threads_(threads) {}

  void wait() {
    if (threads_ == 1) return;
    const unsigned seen = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(seen + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; generation_.load(std::memory_order_acquire) == seen; ++spins) {
      // A pause takes up to 140 cycles, so spin first without it; then yield, so that a preempted thread can run.
      if (spins < kEager) continue;
      if (spins < kPatient) pause_core(); else std::this_thread::yield();
    }
  }

 private:
  static constexpr int kEager = 200, kPatient = kEager + 1000;  // together about 50 microseconds

  const int threads_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> generation_{0};
};

}  // namespace aio
