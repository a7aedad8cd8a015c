// Numbers for checks of a unit's arithmetic at start: of every magnitude, subnormal ones too.
#pragma once
#include <cstdint>

namespace aio {
namespace AIO_ISA {

struct RandomBits {
  uint32_t state = 1;
  uint32_t next() {
    state ^= state << 13;
    state ^= state >> 17;
    return state ^= state << 5;
  }
  // With an exponent around 1, as activations have them, or low enough for subnormal products.
  uint16_t bfloat16(bool ordinary) {
    const uint32_t lowest = ordinary ? 0x3000u : 0x0000u, span = ordinary ? 0x1fffu : 0x2fffu;
    const uint32_t sign = next() & 0x8000u;
    return uint16_t(sign | (lowest + next() % span));
  }
};

}  // namespace AIO_ISA
}  // namespace aio
