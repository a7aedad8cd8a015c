// The kernels for processors with AMX-BF16 and AVX-512: those for AVX-512, with prompt kernels in tiles. setup.py gives this
// file the flags of AVX-512; the tile instructions are in inline assembly.
#define AIO_AVX512 1
#define AIO_ISA isa_amx
#define AIO_NAME "amx"
// The kernels of generated rows are those for AVX-512.
#pragma GCC diagnostic ignored "-Wunused-function"
#include "amx_tiles.h"
#include "prompt_kernels.h"
#include "random_bits.h"

namespace aio {
namespace isa_amx {

template <typename Tiles>
static void one_block(int rows, const uint16_t* a, const uint32_t* b, float* c) {
  TileBlock<Tiles> block;
  block.shape(rows);
  const auto run = [&](auto high) {
    constexpr int kHigh = decltype(high)::value;
    block.template load<kHigh, 2>(c, kBlockSide * 4);
    block.template multiply<kHigh, 2>(a, 3 * 64, b, 64, kTileBytes, 3 * kTileBytes, 3);
    block.template store<kHigh, 2>(c, kBlockSide * 4);
  };
  if (rows > kTileSide)
    run(std::integral_constant<int, 2>());
  else
    run(std::integral_constant<int, 1>());
}

// Whether the unit multiplies as its emulation does, on numbers of every magnitude. Infinities and NaN, whose bits may
// differ, are left out.
static bool tiles_are_as_emulated() {
  RandomBits random;
  alignas(64) static uint16_t a[kBlockSide * 3 * kTileDepth];
  alignas(64) static uint32_t b[2 * 3 * kTileBytes / 4];
  alignas(64) static float real[kBlockSide * kBlockSide], emulated[kBlockSide * kBlockSide];
  for (int round = 0; round < 64; ++round) {
    const auto number = [&] { return random.bfloat16(round % 2); };
    for (uint16_t& v : a) v = number();
    for (uint32_t& v : b) v = uint32_t(number()) << 16 | number();
    for (float& v : real) {
      const uint32_t bits = uint32_t(number()) << 16 | (random.next() & 0xffffu);
      memcpy(&v, &bits, 4);
    }
    memcpy(emulated, real, sizeof(real));
    const int rows = 1 + int(random.next() % kBlockSide);
    one_block<AmxTiles>(rows, a, b, real);
    one_block<EmulatedTiles>(rows, a, b, emulated);
    if (memcmp(real, emulated, sizeof(real))) return false;
  }
  return true;
}

}  // namespace isa_amx

const KernelTable* kernels_amx() {
  static const bool sound = isa_amx::tiles_are_as_emulated();
  if (!sound) return nullptr;
  static const KernelTable made = isa_amx::with_tiles<isa_amx::AmxTiles>(*kernels_avx512(), AIO_NAME);
  return &made;
}

}  // namespace aio
