// Products of INT8 tokens and weights, by the best instructions that the processor has; all give the same integers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aio {

constexpr int kPanel = 64;     // output channels that a kernel computes at a time
constexpr int kMostRows = 16;  // tokens that it computes at a time at most
constexpr int kZero = 128;     // what stands for 0 in an unsigned activation

// One tile: sums [rows][64] of unsigned activations by a panel's weights, beginning with `start` [64].
using Tile = void (*)(const uint8_t* given, size_t stride, int rows, const int8_t* panel, size_t steps,
                      const int32_t* start, int32_t* sums);

// `rows`: of a whole tile. A thread calls `begin` before its tiles and `end` after them, where there are such.
struct Kernel {
  Tile tile = nullptr;
  int rows = 0;
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

struct KernelState {
  const Kernel& kernel;
  explicit KernelState(const Kernel& kernel) : kernel(kernel) {
    if (kernel.begin) kernel.begin();
  }
  ~KernelState() {
    if (kernel.end) kernel.end();
  }
};

// The best of the first `most` + 1: plain, AVX2, AVX-512 VNNI, AMX.
Kernel best_kernel(long most);

}  // namespace aio
