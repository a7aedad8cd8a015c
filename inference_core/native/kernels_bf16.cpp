// The kernels for processors with AVX512-BF16: those for AVX-512, with attention of prompts in dot products of bfloat16.
// setup.py gives this file the flags of AVX-512; the other instructions are in inline assembly.
#define AIO_AVX512 1
#define AIO_BF16 1
#define AIO_ISA isa_bf16
#define AIO_NAME "avx512-bf16"
// The kernels of generated rows are those for AVX-512.
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dot_products.h"
#include "random_bits.h"

namespace aio {
namespace isa_bf16 {

// What VDPBF16PS is defined to do (Intel's Software Developer's Manual, volume 2); `c` has one vector.
static __attribute__((noinline)) void emulated_pairs(float* c, const uint32_t* a, const uint32_t* b) {
  const FlushSubnormals flush;
  const Ints left = load_ints(a), right = load_ints(b);
  store_floats(c, fma(second_of_pairs(left), second_of_pairs(right), load_floats(c)));
  store_floats(c, fma(first_of_pairs(left), first_of_pairs(right), load_floats(c)));
}

// Whether the unit multiplies as it is defined to, on numbers of every magnitude. Infinities and NaN, whose bits may
// differ, are left out.
static bool dots_are_as_defined() {
  RandomBits random;
  alignas(64) uint32_t a[kWide], b[kWide];
  alignas(64) float real[kWide], emulated[kWide];
  for (int round = 0; round < 4096; ++round) {
    const auto number = [&] { return random.bfloat16(round % 2); };
    for (int i = 0; i < kWide; ++i) {
      a[i] = uint32_t(number()) << 16 | number();
      b[i] = uint32_t(number()) << 16 | number();
      const uint32_t bits = uint32_t(number()) << 16 | (random.next() & 0xffffu);
      memcpy(&real[i], &bits, 4);
    }
    memcpy(emulated, real, sizeof(real));
    vf sum = wide_load(real);
    add_pairs(sum, wide_load(a), wide_load(b));
    wide_store(real, sum);
    emulated_pairs(emulated, a, b);
    if (memcmp(real, emulated, sizeof(real))) return false;
  }
  return true;
}

}  // namespace isa_bf16

const KernelTable* kernels_bf16() {
  static const bool sound = isa_bf16::dots_are_as_defined();
  if (!sound) return nullptr;
  static const KernelTable made = [] {
    KernelTable table = *kernels_avx512();
    table.name = AIO_NAME;
    table.attend_prompt = isa_bf16::attend_prompt_unit<isa_bf16::DotProducts, kKVBf16>;
    return table;
  }();
  return &made;
}

}  // namespace aio
