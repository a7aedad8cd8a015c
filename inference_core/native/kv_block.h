// Where keys and values lie in a block of the paged cache (`inference_core/kv_cache/layout.py` has the sizes).
//
// A layer of a block holds its KV heads one after another, each as
//   keys    [head_dim / r, block_size, r]
//   values  [block_size / r, head_dim, r]
// with r numbers to 32 bits: 1 float32, 2 bfloat16, 4 INT8. So one lane of a register is one token's r next dimensions
// (keys) or one dimension of r next tokens (values), and every format is read in the same steps of 16 lanes.
// INT8 numbers are stored plus 128 and are followed by the scales, bfloat16 [block_size] of the keys and of the values.
#pragma once
#include "kernels.h"

namespace aio {

constexpr int numbers_per_lane(KVDtype dtype) { return dtype == kKVFloat ? 1 : dtype == kKVBf16 ? 2 : 4; }

struct KVBlock {
  int64_t matrix_bytes;  // of the keys or the values of one head
  int64_t head_bytes;

  KVBlock(KVDtype dtype, int head_dim, int block_size)
      : matrix_bytes(int64_t(head_dim) * block_size * 4 / numbers_per_lane(dtype)),
        head_bytes(2 * matrix_bytes + (dtype == kKVInt8 ? 4 * int64_t(block_size) : 0)) {}

  int64_t keys(int head) const { return head * head_bytes; }
  int64_t values(int head) const { return head * head_bytes + matrix_bytes; }
  int64_t scales(int head) const { return head * head_bytes + 2 * matrix_bytes; }
};

}  // namespace aio
