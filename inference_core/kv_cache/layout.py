"""How keys and values of one model lie in a block, and blocks in a slab. No torch: sizes only.

A slab of `slab_bytes` is cut into `blocks_per_slab` blocks of one model; block id
`b` is block `b % blocks_per_slab` of slab `b // blocks_per_slab`. Within a block each layer holds its KV heads one
after another, each as keys [head_dim / r, block_size, r] (so that the scores of consecutive tokens are one vector),
then values [block_size / r, head_dim, r], with r numbers to 32 bits. INT8 numbers are stored plus 128 and followed by
their scales in bfloat16: [block_size] of the keys, then of the values. The CUDA kernels, which alone read FP8, hold a
block of the same size head by head instead (`triton_kernels.attention.layer_cache`).
"""

from typing import Literal

import msgspec

KVDtype = Literal["float32", "float16", "bfloat16", "fp8", "int8"]
CpuKVDtype = Literal["float32", "bfloat16", "int8"]  # what the CPU's kernels read; float16 and fp8 need CUDA
MeasuredKVDtype = Literal[CpuKVDtype, "fp8"]  # what a comparison on the CPU computes with
KV_ITEMSIZE: dict[KVDtype, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "int8": 1}
# Numbers of 8 bits share a bfloat16 scale: one per token and KV head for the key, one for the value.
KV_SCALE_BYTES: dict[KVDtype, int] = {"float32": 0, "float16": 0, "bfloat16": 0, "fp8": 2, "int8": 2}


def kv_bytes_per_token(*, num_layers: int, num_kv_heads: int, head_dim: int, dtype: KVDtype) -> int:
    """2 (keys and values) x layers x KV heads x (head dim x item size + scale) (SPEC KV-02, KV-07)."""
    return 2 * num_layers * num_kv_heads * (head_dim * KV_ITEMSIZE[dtype] + KV_SCALE_BYTES[dtype])


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Geometry of one model's blocks. `block_size` is in tokens.

    A block holds `num_layers` layers: all of the model's, or those of one group. `window`: tokens that layers of window
    groups see, 0 without such groups. `window_groups`: how many of them stand next to the group with full attention; 0
    with a `window`: every layer has it, and they are one group (`kv_cache.window_groups`).
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: KVDtype
    window: int = 0
    window_groups: int = 0

    @property
    def bytes_per_token(self) -> int:
        """See `kv_bytes_per_token`."""
        return kv_bytes_per_token(
            num_layers=self.num_layers, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, dtype=self.dtype
        )

    @property
    def block_bytes(self) -> int:
        return self.bytes_per_token * self.block_size

    @property
    def layer_bytes(self) -> int:
        return self.block_bytes // self.num_layers

    @property
    def head_bytes(self) -> int:
        """Keys and values of one KV head in one layer."""
        return self.layer_bytes // self.num_kv_heads

    @property
    def numbers_per_lane(self) -> int:
        """r of the layout: dimensions of a key, or tokens of a value, that lie in one 32-bit lane."""
        return 4 // KV_ITEMSIZE[self.dtype]

    def blocks_per_slab(self, slab_bytes: int) -> int:
        return slab_bytes // self.block_bytes
