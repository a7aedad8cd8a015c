#include "embedding_rows.h"

#include <cstring>

namespace aio {
namespace {

float half_to_float(const uint8_t* p) {
  uint16_t h;
  memcpy(&h, p, 2);
  const uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023u;
  float value;
  if (exponent == 0) {
    value = float(mantissa) * 5.9604644775390625e-8f;  // 2^-24: zero and subnormals
    return sign ? -value : value;
  }
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u | (mantissa << 13)
                                               : ((exponent + 112) << 23) | (mantissa << 13));
  memcpy(&value, &bits, 4);
  return value;
}

float bf16_to_float(const uint8_t* p) {
  uint16_t h;
  memcpy(&h, p, 2);
  const uint32_t bits = uint32_t(h) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

float round_to_bf16(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  if ((u & 0x7fffffffu) <= 0x7f800000u) u = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  memcpy(&v, &u, 4);
  return v;
}

// Each decoder reads one block and writes its elements; products and sums as `ggml_blocks` takes them.
void q4_0(const uint8_t* block, float* out) {
  const float d = half_to_float(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * (float(block[2 + i] & 15) - 8.0f);
    out[16 + i] = d * (float(block[2 + i] >> 4) - 8.0f);
  }
}

void q4_1(const uint8_t* block, float* out) {
  const float d = half_to_float(block), m = half_to_float(block + 2);
  for (int i = 0; i < 16; ++i) {
    const float low = d * float(block[4 + i] & 15), high = d * float(block[4 + i] >> 4);
    out[i] = low + m;
    out[16 + i] = high + m;
  }
}

void q8_0(const uint8_t* block, float* out) {
  const float d = half_to_float(block);
  for (int i = 0; i < 32; ++i) out[i] = d * float(int8_t(block[2 + i]));
}

void q4_k(const uint8_t* block, float* out) {
  const float d = half_to_float(block), dmin = half_to_float(block + 2);
  const uint8_t* packed = block + 4;
  const uint8_t* codes = block + 16;
  for (int g = 0; g < 8; ++g) {
    const int i = g & 3;
    const int scale = g < 4 ? packed[i] & 63 : (packed[8 + i] & 15) | ((packed[i] >> 6) << 4);
    const int minimum = g < 4 ? packed[4 + i] & 63 : (packed[8 + i] >> 4) | ((packed[4 + i] >> 6) << 4);
    const float step = d * float(scale), offset = dmin * float(minimum);
    const uint8_t* bytes = codes + 32 * (g / 2);
    for (int j = 0; j < 32; ++j) {
      const float scaled = step * float(g & 1 ? bytes[j] >> 4 : bytes[j] & 15);
      out[32 * g + j] = scaled - offset;
    }
  }
}

void q6_k(const uint8_t* block, float* out) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192);
  const float d = half_to_float(block + 208);
  for (int half = 0; half < 2; ++half, low += 64, high += 32)
    for (int j = 0; j < 128; ++j) {
      const int nibble = j < 64 ? low[j] & 15 : low[j - 64] >> 4;
      const int code = (nibble | (((high[j % 32] >> (2 * (j / 32))) & 3) << 4)) - 32;
      const int element = 128 * half + j;
      out[element] = (d * float(scales[element / 16])) * float(code);
    }
}

void blocks(const uint8_t* row, int columns, int elements, int bytes, void (*decode)(const uint8_t*, float*),
            float* out) {
  for (int i = 0; i < columns; i += elements, row += bytes) decode(row, out + i);
}

}  // namespace

void embedding_row(const EmbeddingTable& table, int64_t token, float* out) {
  const uint8_t* row = table.data + token * table.row_bytes;
  const int n = table.columns;
  switch (table.encoding) {
    case Encoding::kF32: memcpy(out, row, size_t(n) * 4); break;
    case Encoding::kF16: for (int i = 0; i < n; ++i) out[i] = half_to_float(row + 2 * i); break;
    case Encoding::kBF16: for (int i = 0; i < n; ++i) out[i] = bf16_to_float(row + 2 * i); break;
    case Encoding::kQ4_0: blocks(row, n, 32, 18, q4_0, out); break;
    case Encoding::kQ4_1: blocks(row, n, 32, 20, q4_1, out); break;
    case Encoding::kQ8_0: blocks(row, n, 32, 34, q8_0, out); break;
    case Encoding::kQ4_K: blocks(row, n, 256, 144, q4_k, out); break;
    case Encoding::kQ6_K: blocks(row, n, 256, 210, q6_k, out); break;
  }
  if (table.round_to_bf16)
    for (int i = 0; i < n; ++i) out[i] = round_to_bf16(out[i]);
  if (table.scale != 1.0f)
    for (int i = 0; i < n; ++i) out[i] *= table.scale;
}

}  // namespace aio
