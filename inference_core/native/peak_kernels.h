// Peak throughput of the instruction set with everything in registers, to which kernels are compared.
#pragma once
#include "code_sums.h"

namespace aio {
namespace AIO_ISA {

// Makes the compiler treat the register as changed; otherwise it computes a product once for all rounds and sums.
#if defined(__aarch64__)
#define AIO_OPAQUE(REGISTER) asm volatile("" : "+w"(REGISTER))
#elif defined(AIO_AVX512)
#define AIO_OPAQUE(REGISTER) asm volatile("" : "+v"(REGISTER))
#elif defined(__x86_64__)
#define AIO_OPAQUE(REGISTER) asm volatile("" : "+x"(REGISTER))
#else
#define AIO_OPAQUE(REGISTER) asm volatile("" : "+m"(REGISTER))
#endif

constexpr int kPeakSums = 12 / kParts;  // independent sums: enough to hide the latency of each, few enough to fit

// `rounds` times a product into every sum; returns the number of multiply-adds.
static int64_t multiply_integers(int64_t rounds) {
  const int8_t x[4] = {1, -1, 2, -2};
  Ints codes;
  AIO_PARTS(codes.part[i] = IntPart{} + 0x01020304)
  Nibbles sums[kPeakSums];
  AIO_UNROLL
  for (int s = 0; s < kPeakSums; ++s) {
    sums[s].clear();
    AIO_PARTS(AIO_OPAQUE(sums[s].part(i)))
  }
  const Four f = four(x);
  for (int64_t round = 0; round < rounds; ++round) {
    AIO_UNROLL
    for (int s = 0; s < kPeakSums; ++s) {
      AIO_PARTS(AIO_OPAQUE(codes.part[i]))
      sums[s].add(codes, f);
      AIO_PARTS(AIO_OPAQUE(sums[s].part(i)))
    }
  }
  AIO_UNROLL
  for (int s = 0; s < kPeakSums; ++s) {
    Ints total = sums[s].total();
    AIO_PARTS(AIO_OPAQUE(total.part[i]))
  }
  return rounds * kPeakSums * 4 * kLanes;
}

static int64_t multiply_floats(int64_t rounds) {
  Floats a = floats(1.0f), sums[kPeakSums];
  const Floats b = floats(0.5f);
  AIO_UNROLL
  for (int s = 0; s < kPeakSums; ++s) {
    sums[s] = floats(0);
    AIO_PARTS(AIO_OPAQUE(sums[s].part[i]))
  }
  for (int64_t round = 0; round < rounds; ++round) {
    AIO_UNROLL
    for (int s = 0; s < kPeakSums; ++s) {
      AIO_PARTS(AIO_OPAQUE(a.part[i]))
      add_product(sums[s], a, b);
    }
  }
  AIO_UNROLL
  for (int s = 0; s < kPeakSums; ++s) {
    AIO_PARTS(AIO_OPAQUE(sums[s].part[i]))
  }
  return rounds * kPeakSums * kLanes;
}

// Reads whole runs of 256 bytes, once, in order.
static void read_memory(const uint8_t* p, int64_t bytes) {
  Ints sums[4];
  AIO_UNROLL
  for (int s = 0; s < 4; ++s) sums[s] = load_ints(p);
  for (int64_t at = 0; at + 256 <= bytes; at += 256) {
    AIO_UNROLL
    for (int s = 0; s < 4; ++s) sums[s] = sums[s] + load_ints(p + at + 64 * s);
  }
  AIO_UNROLL
  for (int s = 0; s < 4; ++s) {
    AIO_PARTS(AIO_OPAQUE(sums[s].part[i]))
  }
}

}  // namespace AIO_ISA
}  // namespace aio
