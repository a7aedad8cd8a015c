"""One layer of the paged cache in the layout of the CUDA kernels: head-major, keys before values.

Blocks are in one flat byte arena at the byte offsets of a batch, and have the size of `KVLayout`. In a block every
layer has its keys [kv_heads, block_size, head_dim], then its values in the same shape, in the cache's dtype. (The CPU
kernels use another layout, see `kv_cache.layout`.) FP8 is E4M3 times a power of two, the smallest with which the
largest number of a token's key or value in a head is at most 448: numbers of any size lose the same share (SPEC KV-07).
These scales follow the values: a word of 32 bits for each head and token [kv_heads, block_size], with the scale of the
key as bfloat16 in its lower half and that of the value in the upper one. They depend on their own token alone, so what
is cached does not depend on the batch.
"""

from dataclasses import dataclass

import torch

from inference_core.errors import MemoryPlanError
from inference_core.kv_cache.layout import KV_ITEMSIZE, KV_SCALE_BYTES, KVDtype, KVLayout

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
    """The keys and values of one layer in the arena.

    Block offsets must be multiples of 16 numbers, as those of `KVLayout` in slabs of whole KiB are. Raises
    MemoryPlanError for a layout that the kernels cannot read.
    """

    arena: torch.Tensor
    """uint8 [bytes]."""
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
        if layout.layer_bytes % ALIGNMENT:
            raise MemoryPlanError(
                f"the CUDA kernels need layers of blocks in multiples of {ALIGNMENT} bytes, not {layout.layer_bytes}; "
                "choose a block_size in multiples of 8"
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

    @property
    def has_scales(self) -> bool:
        """Whether numbers are stored as multiples of a scale."""
        return KV_SCALE_BYTES[self.layout.dtype] > 0

    @property
    def scales(self) -> torch.Tensor:
        """The whole arena as words [bytes // 4] int32, without an incomplete last one."""
        return self.arena[: self.arena.numel() // 4 * 4].view(torch.int32)

    @property
    def scales_start(self) -> int:
        """Offset of this layer's scales in a block, in words."""
        return (self.layer * self.layout.layer_bytes + 2 * self.values_start * self.itemsize) // 4

    def scale_rows(self, block_offsets: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Place of the scales of every KV head of each token in `scales`: int64 [n, kv_heads]. See `rows`."""
        heads = torch.arange(self.layout.num_kv_heads, device=block_offsets.device) * self.layout.block_size
        return (block_offsets // 4 + self.scales_start + tokens)[:, None] + heads

    def rows(self, block_offsets: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Offset of the key of every KV head of each token in the arena, in numbers: int64 [n, kv_heads].

        `block_offsets` int64 [n]: byte offsets of the tokens' blocks; `tokens` int64 [n]: their indices in the blocks.
        """
        heads = torch.arange(self.layout.num_kv_heads, device=block_offsets.device) * self.head_numbers
        first = block_offsets // self.itemsize + self.layer_start + tokens * self.layout.head_dim
        return first[:, None] + heads
