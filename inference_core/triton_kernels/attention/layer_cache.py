"""One layer of the paged cache as the CUDA kernels hold it: head-major, keys before values.

Blocks lie in one flat byte arena at the byte offsets that a batch names, and a block's size is that of `KVLayout`.
Within a block every layer holds its keys [kv_heads, block_size, head_dim], then its values in the same shape, in the
cache's dtype. (The CPU's kernels read another interior, see `kv_layout`.) FP8 is E4M3 with one static scale for a
layer's keys and one for its values (SPEC KV-07).
"""

from dataclasses import dataclass

import torch

from inference_core.errors import MemoryPlanError
from inference_core.kv_cache.layout import KV_ITEMSIZE, KVDtype, KVLayout

CACHE_DTYPES: dict[KVDtype, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}
# Numbers of a block's matrix and of its offset, so that every row can be read 16 bytes at a time in any dtype.
ALIGNMENT = 16
LARGEST_E4M3 = 448.0


@dataclass(slots=True, frozen=True)
class LayerCache:
    """`arena` uint8 [bytes]. A cached FP8 number times its scale is the key or value; other dtypes need scales of 1.

    Block offsets must be multiples of 16 numbers; those of `KVLayout` in slabs of whole KiB are. Raises
    MemoryPlanError for a layout that the kernels cannot read.
    """

    arena: torch.Tensor
    layout: KVLayout
    layer: int
    key_scale: float = 1.0
    value_scale: float = 1.0

    def __post_init__(self) -> None:
        layout = self.layout
        if layout.dtype not in CACHE_DTYPES:
            raise MemoryPlanError(
                f"the CUDA kernels cannot read a KV cache of {layout.dtype}; choose one of {', '.join(CACHE_DTYPES)}"
            )
        if layout.head_dim % 8 or (layout.block_size * layout.head_dim) % ALIGNMENT:
            raise MemoryPlanError(
                f"the CUDA kernels need a head_dim in multiples of 8 and blocks in multiples of {ALIGNMENT} numbers "
                f"per head, not head_dim {layout.head_dim} and block_size {layout.block_size}"
            )

    @property
    def dtype(self) -> torch.dtype:
        return CACHE_DTYPES[self.layout.dtype]

    @property
    def itemsize(self) -> int:
        return KV_ITEMSIZE[self.layout.dtype]

    @property
    def numbers(self) -> torch.Tensor:
        """The whole arena in the cache's dtype [bytes // itemsize]; a tail that makes no number is left out."""
        return self.arena[: self.arena.numel() // self.itemsize * self.itemsize].view(self.dtype)

    @property
    def head_numbers(self) -> int:
        """Keys (or values) of one head in one block."""
        return self.layout.block_size * self.layout.head_dim

    @property
    def layer_start(self) -> int:
        """Where this layer's keys begin in a block, in numbers."""
        return self.layer * self.layout.layer_bytes // self.itemsize

    @property
    def values_start(self) -> int:
        """Where values begin behind the layer's keys, in numbers."""
        return self.layout.num_kv_heads * self.head_numbers

    def rows(self, block_offsets: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Where the key of every KV head of a token begins, in numbers: int64 [n, kv_heads].

        `block_offsets` int64 [n]: bytes of the token's block; `tokens` int64 [n]: its place in that block.
        """
        heads = torch.arange(self.layout.num_kv_heads, device=block_offsets.device) * self.head_numbers
        first = block_offsets // self.itemsize + self.layer_start + tokens * self.layout.head_dim
        return first[:, None] + heads
