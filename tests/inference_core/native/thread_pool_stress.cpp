// The thread pool and the spin barrier on their own, for ThreadSanitizer (`make sanitize-threads`): plain, unguarded data
// is written by every thread and read by the others, so that a missing happens-before is a reported race.
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "../../../inference_core/native/spin_barrier.h"
#include "../../../inference_core/native/thread_pool.h"

namespace {

// Each round every thread writes its cell and then, behind the barrier, reads its neighbour's.
bool exchange(int threads, int rounds) {
  aio::ThreadPool pool(threads);
  std::vector<int> cells(size_t(threads), -1), wrong(size_t(threads), 0);
  for (int round = 0; round < rounds; ++round) {
    aio::SpinBarrier barrier(threads);
    pool.run([&](int t) {
      for (int phase = 0; phase < 3; ++phase) {
        cells[size_t(t)] = 3 * round + phase;
        barrier.wait();
        wrong[size_t(t)] += cells[size_t((t + 1) % threads)] != 3 * round + phase;
        barrier.wait();
      }
    });
    // Long enough for workers to fall asleep now and then: waking is where a pool loses work.
    if (round % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (round % 32 == 0) pool.rouse();
    for (int t = 0; t < threads; ++t)
      if (wrong[size_t(t)] || cells[size_t(t)] != 3 * round + 2) return false;
  }
  return true;
}

// The pool uses fewer threads and more again, with pauses long enough for those left out to fall asleep: every loop runs
// once on each thread in use, and on no other.
bool use_in_turns(int threads, int rounds) {
  aio::ThreadPool pool(threads);
  std::vector<int> runs(size_t(threads), 0), expected(size_t(threads), 0);
  for (int round = 0; round < rounds; ++round) {
    const int used = 1 + round * 7 / 3 % threads;
    pool.use(used);
    for (int loop = 0; loop < 4; ++loop) pool.run([&](int t) { ++runs[size_t(t)]; });
    for (int t = 0; t < used; ++t) expected[size_t(t)] += 4;
    if (round % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (round % 32 == 0) pool.rouse();
  }
  return runs == expected;
}

}  // namespace

int main() {
  for (int threads : {1, 2, 3, 5})
    if (!exchange(threads, 400)) {
      std::fprintf(stderr, "a thread of %d saw what its neighbour had not written\n", threads);
      return 1;
    }
  for (int threads : {1, 2, 3, 5})
    if (!use_in_turns(threads, 400)) {
      std::fprintf(stderr, "a loop on some of %d threads ran elsewhere, or not once on each\n", threads);
      return 1;
    }
  for (int i = 0; i < 100; ++i) aio::ThreadPool made_and_dropped(3);
  std::puts("no thread read what was not written");
}
