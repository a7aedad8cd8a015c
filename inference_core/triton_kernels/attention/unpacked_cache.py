"""Copies the contexts of a step from an FP8 cache to one in the activations' dtype, for attention of long prompts.

Attention converts what it reads again for every block of queries. From some tens of queries per context on, converting
each number once costs less. The copy is exact in bfloat16 and float32: E4M3 times a power of two.
"""

import torch
import triton
import triton.language as tl

from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.triton_kernels.attention.attention_tiles import padded
from inference_core.triton_kernels.attention.layer_cache import ALIGNMENT, LayerCache

_DTYPES: dict[torch.dtype, KVDtype] = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


@triton.jit(do_not_specialize=["num_sequences", "first_head"])
def unpack_cache_kernel(
    cache,
    scales,
    unpacked,
    block_offsets,
    table_start,
    first_block,
    num_sequences,
    first_head,
    layer_start,
    values_start,
    scales_start,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_PAD: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """Programs: blocks of all contexts x HEADS of the KV heads, from `first_head` on."""
    index = tl.program_id(0)
    if index >= tl.load(first_block + num_sequences):
        return
    # The last sequence that starts at or before this block; those without blocks start where the next one does.
    sequence = 0
    high = num_sequences
    while high - sequence > 1:
        middle = (sequence + high) // 2
        begins = tl.load(first_block + middle) <= index
        sequence = tl.where(begins, middle, sequence)
        high = tl.where(begins, high, middle)
    place = tl.load(table_start + sequence) + index - tl.load(first_block + sequence)
    offset = tl.load(block_offsets + place)
    head = tl.program_id(1)
    token = tl.arange(0, BLOCK_PAD)
    dims = tl.arange(0, HEAD_PAD)
    at = token[:, None] * HEAD_DIM + dims[None, :]
    inside = (token < BLOCK_SIZE)[:, None] & (dims < HEAD_DIM)[None, :]
    word = offset // 4 + scales_start + (first_head + head) * BLOCK_SIZE + token
    both = tl.load(scales + word, mask=token < BLOCK_SIZE, other=0)
    source = cache + offset // ALIGN * ALIGN + layer_start + (first_head + head) * (BLOCK_SIZE * HEAD_DIM)
    target = unpacked + (tl.cast(index, tl.int64) * (2 * HEADS) + head) * (BLOCK_SIZE * HEAD_DIM)
    key = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    key *= (both << 16).to(tl.float32, bitcast=True)[:, None]
    tl.store(target + at, key.to(unpacked.dtype.element_ty), mask=inside)
    value = tl.load(source + values_start + at, mask=inside, other=0.0).to(tl.float32)
    value *= ((both >> 16) << 16).to(tl.float32, bitcast=True)[:, None]
    tl.store(target + HEADS * BLOCK_SIZE * HEAD_DIM + at, value.to(unpacked.dtype.element_ty), mask=inside)


def first_blocks(context_len: torch.Tensor, block_size: int) -> torch.Tensor:
    """int32 [S + 1]: the first block of each context of `context_len` int32 [S] among those of all, and the end."""
    blocks = torch.zeros(len(context_len) + 1, dtype=torch.int32, device=context_len.device)
    torch.cumsum((context_len + (block_size - 1)) // block_size, 0, dtype=torch.int32, out=blocks[1:])
    return blocks


def unpacked_cache(memory: torch.Tensor, layout: KVLayout, heads: int, dtype: torch.dtype) -> LayerCache:
    """A cache of one layer and `heads` of the KV heads in `dtype`, over `memory` uint8."""
    one = KVLayout(
        num_layers=1, num_kv_heads=heads, head_dim=layout.head_dim, block_size=layout.block_size, dtype=_DTYPES[dtype]
    )
    return LayerCache(memory, one, 0)


def unpack_cache(
    cache: LayerCache,
    unpacked: LayerCache,
    first_head: int,
    block_offsets: torch.Tensor,
    table_start: torch.Tensor,
    first_block: torch.Tensor,
    blocks: int,
) -> None:
    """Write the KV heads from `first_head` on of all contexts to `unpacked`, one block after another.

    `first_block` int32 [S + 1]: as of `first_blocks`; `blocks`: at least its last. The other tensors are as in
    `AttentionBatch`.
    """
    layout, heads = cache.layout, unpacked.layout.num_kv_heads
    unpack_cache_kernel[(blocks, heads)](
        cache.numbers,
        cache.scales,
        unpacked.numbers,
        block_offsets,
        table_start,
        first_block,
        len(first_block) - 1,
        first_head,
        cache.layer_start,
        cache.values_start,
        cache.scales_start,
        HEADS=heads,
        HEAD_DIM=layout.head_dim,
        HEAD_PAD=padded(layout.head_dim),
        BLOCK_SIZE=layout.block_size,
        BLOCK_PAD=padded(layout.block_size),
        ALIGN=ALIGNMENT,
        num_warps=4,
    )
