// The tile operations of AMX-BF16 themselves, with the interface of EmulatedTiles.
//
// In inline assembly throughout: GCC's intrinsics do not say that `ldtilecfg` and `tileloadd` read memory, and GCC 12 drops
// stores before them. The operands here do.
#pragma once
#include "emulated_tiles.h"

namespace aio {
namespace AIO_ISA {

class AmxTiles {
 public:
  AIO_MEMBER void configure(const uint8_t (&rows)[kTiles]) {
    Configuration wanted{};
    wanted.palette = 1;
    for (int t = 0; t < kTiles; ++t) {
      wanted.rows[t] = rows[t];
      wanted.row_bytes[t] = rows[t] ? 64 : 0;
    }
    asm volatile("ldtilecfg %0" : : "m"(wanted));
  }
  AIO_MEMBER void release() { asm volatile("tilerelease"); }
  template <int T>
  AIO_MEMBER void zero() { asm volatile("tilezero %%tmm%c0" : : "i"(T)); }
  template <int T>
  AIO_MEMBER void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  AIO_MEMBER void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
  template <int T>
  AIO_MEMBER void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
  }

 private:
  struct alignas(64) Configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
};

}  // namespace AIO_ISA
}  // namespace aio
