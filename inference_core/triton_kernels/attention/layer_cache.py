"""One layer of the paged cache in the layout of the CUDA kernels: head-major, keys before values.

Blocks are in one flat byte arena at the byte offsets of a batch, and have the size of `KVLayout`. In a block every
layer has its keys [kv_heads, block_size, head_dim], then its values in the same shape, in the cache's dtype. (The CPU
kernels use another layout, see `kv_cache.layout`.) FP8 is E4M3 of the numbers themselves, without scales, and saturates
at 448 on write (SPEC KV-07).
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
# Alignment, in numbers, of blocks and of their matrices, so that rows can be read 16 bytes at a time in any dtype.
ALIGNMENT = 16
LARGEST_E4M3 = 448.0


@dataclass(slots=True, frozen=True)
class LayerCache:
    """`arena` uint8 [bytes].

    Block offsets must be multiples of 16 numbers, as those of `KVLayout` in slabs of whole KiB are. Raises
    MemoryPlanError for a layout that the kernels cannot read.
    """

    arena: torch.Tensor
    layout: KVLayout
    layer: int

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
        """The whole arena in the cache's dtype [bytes // itemsize], without an incomplete last number."""
        return self.arena[: self.arena.numel() // self.itemsize * self.itemsize].view(self.dtype)

    @property
    def head_numbers(self) -> int:
        """Keys (or values) of one head in one block."""
        return self.layout.block_size * self.layout.head_dim

    @property
    def layer_start(self) -> int:
        """Offset of this layer's keys in a block, in numbers."""
        return self.layer * self.layout.layer_bytes // self.itemsize

    @property
    def values_start(self) -> int:
        """Offset of the values from the layer's keys, in numbers."""
        return self.layout.num_kv_heads * self.head_numbers

    def rows(self, block_offsets: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Offset of the key of every KV head of each token in the arena, in numbers: int64 [n, kv_heads].

        `block_offsets` int64 [n]: byte offsets of the tokens' blocks; `tokens` int64 [n]: their indices in the blocks.
        """
        heads = torch.arange(self.layout.num_kv_heads, device=block_offsets.device) * self.head_numbers
        first = block_offsets // self.itemsize + self.layer_start + tokens * self.layout.head_dim
        return first[:, None] + heads
