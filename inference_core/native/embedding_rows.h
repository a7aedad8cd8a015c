// Rows of a token embedding, decoded from the encoding of its file (the formats of `loaders/gguf_format/ggml_blocks.py`).
#pragma once
#include <cstdint>

namespace aio {

enum class Encoding { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ8_0, kQ4_K, kQ6_K };

struct EmbeddingTable {
  Encoding encoding;
  const uint8_t* data;  // [rows, row_bytes]
  int64_t row_bytes;
  int64_t rows;
  int columns;
  bool round_to_bf16;
  float scale;  // of every number, after rounding
};

// Writes row `token` as float32 [columns].
void embedding_row(const EmbeddingTable& table, int64_t token, float* out);

}  // namespace aio
