// The kernels for ARM processors with I8MM and BF16: those for I8MM, with attention of prompts in products of bfloat16
// matrices; setup.py gives this file its own compiler flags.
#define AIO_NEON 1
#define AIO_DOTPROD 1
#define AIO_I8MM 1
#define AIO_BF16 1
#define AIO_ISA isa_bfmmla
#define AIO_NAME "i8mm-bf16"
// The kernels of generated rows are those for I8MM.
#pragma GCC diagnostic ignored "-Wunused-function"
#include "matrix_attention.h"
#include "random_bits.h"

namespace aio {
namespace isa_bfmmla {

static float of_bits(uint32_t bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

static float without_subnormals(float v) { return fabsf(v) < 0x1p-126f ? copysignf(0.0f, v) : v; }

// a + b rounded to odd: cut off, with the last bit set if anything was lost. Subnormal results become zero.
static float odd_sum(float a, float b) {
  const double first = a, second = b, sum = first + second, rest = sum - first;
  const double error = (first - (sum - rest)) + (second - rest);
  const float near = float(sum);
  const double lost = (sum - double(near)) + error;
  uint32_t bits;
  memcpy(&bits, &near, 4);
  if (lost != 0) {
    if ((lost < 0) == (near > 0)) --bits;  // rounded away from zero
    bits |= 1;
  }
  return without_subnormals(of_bits(bits));
}

// What BFMMLA is defined to do without FEAT_EBF16's other mode (Arm's Architecture Reference Manual, BFMatMulAdd).
static __attribute__((noinline)) void emulated_pairs(float* sum, const uint16_t* rows, const uint16_t* columns) {
  for (int r = 0; r < 2; ++r)
    for (int c = 0; c < 2; ++c)
      for (int k = 0; k < 4; k += 2) {
        const auto product = [&](int i) {  // of 16 bits: exact
          const float x = without_subnormals(of_bits(uint32_t(rows[4 * r + i]) << 16));
          return without_subnormals(x * without_subnormals(of_bits(uint32_t(columns[4 * c + i]) << 16)));
        };
        sum[2 * r + c] = odd_sum(without_subnormals(sum[2 * r + c]), odd_sum(product(k), product(k + 1)));
      }
}

// Whether the unit multiplies as it is defined to, on numbers of every magnitude. Infinities and NaN, whose bits may
// differ, are left out.
static bool products_are_as_defined() {
  RandomBits random;
  alignas(16) uint16_t rows[8], columns[8];
  alignas(16) float real[4], emulated[4];
  for (int round = 0; round < 4096; ++round) {
    const auto number = [&] { return random.bfloat16(round % 2); };
    for (uint16_t& v : rows) v = number();
    for (uint16_t& v : columns) v = number();
    for (float& v : real) v = of_bits(uint32_t(number()) << 16 | (random.next() & 0xffffu));
    memcpy(emulated, real, sizeof(real));
    float32x4_t sum = vld1q_f32(real);
    Bfloat16Pairs::add(sum, vreinterpretq_u8_u16(vld1q_u16(rows)), vreinterpretq_u8_u16(vld1q_u16(columns)));
    vst1q_f32(real, sum);
    emulated_pairs(emulated, rows, columns);
    if (memcmp(real, emulated, sizeof(real))) return false;
  }
  return true;
}

}  // namespace isa_bfmmla

const KernelTable* kernels_bfmmla() {
  static const bool sound = isa_bfmmla::products_are_as_defined();
  if (!sound) return nullptr;
  static const KernelTable made = [] {
    KernelTable table = *kernels_i8mm();
    table.name = AIO_NAME;
    table.attend_prompt = isa_bfmmla::attend_prompt_unit<isa_bfmmla::MatrixProducts, kKVBf16>;
    return table;
  }();
  return &made;
}

}  // namespace aio
