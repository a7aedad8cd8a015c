"""How keys and values of one model lie in a block, and blocks in a slab. No torch: sizes only.

A slab of `slab_bytes` is cut into `blocks_per_slab` blocks of one model; block id
`b` is block `b % blocks_per_slab` of slab `b // blocks_per_slab`. Within a block each layer holds its keys as
[kv head, head_dim, block_size] (transposed: the scores of consecutive tokens are one vector), then its
values as [kv head, block_size, head_dim].
"""

from typing import Literal

import msgspec

KVDtype = Literal["float32", "bfloat16"]
KV_ITEMSIZE: dict[str, int] = {"float32": 4, "bfloat16": 2}


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Geometry of one model's blocks. `block_size` is in tokens."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: KVDtype

    @property
    def bytes_per_token(self) -> int:
        """2 x layers x KV heads x head dim x item size (SPEC KV-02)."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * KV_ITEMSIZE[self.dtype]

    @property
    def block_bytes(self) -> int:
        return self.bytes_per_token * self.block_size

    @property
    def layer_bytes(self) -> int:
        return self.block_bytes // self.num_layers

    def blocks_per_slab(self, slab_bytes: int) -> int:
        return slab_bytes // self.block_bytes
