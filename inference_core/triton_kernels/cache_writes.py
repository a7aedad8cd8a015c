"""Writes to the paged cache: rotated keys and values of a step, copies of blocks, and unpacked copies of contexts.

`rope_and_write` normalises and rotates queries and keys after the projections, and writes keys and values, in one
pass over the projections' output (SPEC AT-05): a program takes one token's KV head with the query heads that share
it. Rotates half-split pairs (Su et al. 2021); the norm is Qwen3's RMSNorm over each head.

`unpack_cache` copies the contexts of a step from an FP8 cache to one in the activations' dtype, for attention of long
prompts. Attention converts what it reads again for every block of queries. From some tens of queries per context on,
converting each number once costs less. The copy is exact in bfloat16 and float32: E4M3 times a power of two.

`copy_blocks` copies whole KV blocks inside the arena, all pairs in one launch (SPEC KV-04).
"""

import torch
import triton
import triton.language as tl

from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.triton_kernels.layer_cache import ALIGNMENT, LARGEST_E4M3, LayerCache
from inference_core.triton_kernels.tiles import padded


@triton.jit
def _rotate(first, second, cos, sin):
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _scale_exponent(first, second):
    """The biased exponent of the smallest power of two that brings both halves of a row into E4M3: up to 448, which is
    1.75 times a power of two, so a mantissa above 1.75 takes the next one."""
    highest = tl.maximum(tl.max(tl.abs(first), 0), tl.max(tl.abs(second), 0))
    return tl.maximum(((highest.to(tl.int32, bitcast=True) + 0x1FFFFF) >> 23) - 8, 1)


@triton.jit
def _divisor(exponent):
    """1 over the power of two with this biased exponent: products with it are exact."""
    return ((254 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _encode(x, largest, FP8: tl.constexpr, DTYPE: tl.constexpr):
    """Convert x to the cache's dtype. FP8 saturates: E4M3 has no infinity, so larger numbers would become NaN."""
    if FP8:
        x = tl.minimum(tl.maximum(x, -largest), largest)
    return x.to(DTYPE)


@triton.jit
def rope_and_write_kernel(
    qkv,
    cos_sin,
    positions,
    slots,
    cache,
    scales,
    q_norm,
    k_norm,
    qkv_stride,
    layer_start,
    values_start,
    scales_start,
    eps,
    largest,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ITEM_SIZE: tl.constexpr,
    ALIGN: tl.constexpr,
    FP8: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
):
    """Programs: tokens x KV heads."""
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    position = tl.load(positions + token)
    dims = tl.arange(0, HALF_PAD)
    inside = dims < HALF
    angle = position.to(tl.int64) * HEAD_DIM
    cos = tl.load(cos_sin + angle + dims, mask=inside, other=0.0)
    sin = tl.load(cos_sin + angle + HALF + dims, mask=inside, other=0.0)
    row = qkv + token * qkv_stride

    group = tl.arange(0, GROUP_PAD)
    query_at = row + (kv_head * GROUP + group)[:, None] * HEAD_DIM + dims[None, :]
    here = (group < GROUP)[:, None] & inside[None, :]
    first = tl.load(query_at, mask=here, other=0.0).to(tl.float32)
    second = tl.load(query_at + HALF, mask=here, other=0.0).to(tl.float32)
    if Q_NORM:
        mean = (tl.sum(first * first, 1) + tl.sum(second * second, 1)) / HEAD_DIM
        inverse = 1.0 / tl.sqrt(mean + eps)
        first = first * inverse[:, None] * tl.load(q_norm + dims, mask=inside, other=0.0).to(tl.float32)[None, :]
        second = (
            second * inverse[:, None] * tl.load(q_norm + HALF + dims, mask=inside, other=0.0).to(tl.float32)[None, :]
        )
    first, second = _rotate(first, second, cos[None, :], sin[None, :])
    tl.store(query_at, first.to(qkv.dtype.element_ty), mask=here)
    tl.store(query_at + HALF, second.to(qkv.dtype.element_ty), mask=here)

    key_at = row + (KV_HEADS * GROUP + kv_head) * HEAD_DIM + dims
    first = tl.load(key_at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(key_at + HALF, mask=inside, other=0.0).to(tl.float32)
    if K_NORM:
        inverse = 1.0 / tl.sqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / HEAD_DIM + eps)
        first = first * inverse * tl.load(k_norm + dims, mask=inside, other=0.0).to(tl.float32)
        second = second * inverse * tl.load(k_norm + HALF + dims, mask=inside, other=0.0).to(tl.float32)
    first, second = _rotate(first, second, cos, sin)
    number = cache.dtype.element_ty
    block = slot // (ITEM_SIZE * ALIGN) * ALIGN  # tells the compiler that it is a multiple
    begin = block + layer_start + kv_head * (BLOCK_SIZE * HEAD_DIM) + (position % BLOCK_SIZE) * HEAD_DIM
    cached = cache + begin + dims
    if FP8:
        key_exponent = _scale_exponent(first, second)
        first, second = first * _divisor(key_exponent), second * _divisor(key_exponent)
    tl.store(cached, _encode(first, largest, FP8, number), mask=inside)
    tl.store(cached + HALF, _encode(second, largest, FP8, number), mask=inside)

    value_at = key_at + KV_HEADS * HEAD_DIM
    first = tl.load(value_at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(value_at + HALF, mask=inside, other=0.0).to(tl.float32)
    cached += values_start
    if FP8:
        exponent = _scale_exponent(first, second)
        first, second = first * _divisor(exponent), second * _divisor(exponent)
        # bfloat16 has float32's exponent, 7 bits further down.
        word = slot // 4 + scales_start + kv_head * BLOCK_SIZE + position % BLOCK_SIZE
        tl.store(scales + word, (exponent << 23) | (key_exponent << 7))
    tl.store(cached, _encode(first, largest, FP8, number), mask=inside)
    tl.store(cached + HALF, _encode(second, largest, FP8, number), mask=inside)


def rope_and_write(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: LayerCache,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> None:
    """Rotate the queries of `qkv` in place; write its keys, rotated, and values to the cache (the keys in `qkv` stay).

    `qkv` [T, (heads + 2 kv_heads) * head_dim] float32, float16 or bfloat16 with contiguous rows. `cos_sin` float32
    [positions, head_dim]: cosines, then sines. `positions` and `slots` are as in `AttentionBatch`; rows with a negative
    slot are ignored. `q_norm` and `k_norm` [head_dim]: weights of the norm, None for none.
    """
    layout = cache.layout
    kv_heads, head_dim = layout.num_kv_heads, layout.head_dim
    group = qkv.shape[1] // head_dim // kv_heads - 2
    if not qkv.shape[0]:
        return
    half_pad, group_pad = padded(head_dim // 2), padded(group)
    rope_and_write_kernel[(qkv.shape[0], kv_heads)](
        qkv,
        cos_sin,
        positions,
        slots,
        cache.numbers,
        cache.scales,
        cos_sin if q_norm is None else q_norm,
        cos_sin if k_norm is None else k_norm,
        qkv.stride(0),
        cache.layer_start,
        cache.values_start,
        cache.scales_start,
        eps,
        LARGEST_E4M3,
        KV_HEADS=kv_heads,
        GROUP=group,
        GROUP_PAD=group_pad,
        HEAD_DIM=head_dim,
        HALF=head_dim // 2,
        HALF_PAD=half_pad,
        BLOCK_SIZE=layout.block_size,
        ITEM_SIZE=cache.itemsize,
        ALIGN=ALIGNMENT,
        FP8=layout.dtype == "fp8",
        Q_NORM=q_norm is not None,
        K_NORM=k_norm is not None,
        num_warps=1 if group_pad * half_pad <= 512 else 4,
        num_stages=1,
    )


_DTYPES: dict[torch.dtype, KVDtype] = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


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
    block_index = tl.load(table_start + sequence) + index - tl.load(first_block + sequence)
    offset = tl.load(block_offsets + block_index)
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
    layer_layout = KVLayout(
        num_layers=1, num_kv_heads=heads, head_dim=layout.head_dim, block_size=layout.block_size, dtype=_DTYPES[dtype]
    )
    return LayerCache(memory, layer_layout, 0)


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

    `first_block` int32 [S + 1]: as of `first_blocks`; `blocks`: at least its last. The rest: `AttentionBatch`.
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


_WORDS = 4096  # per program


@triton.jit
def copy_blocks_kernel(words, pairs, count, WORDS: tl.constexpr):
    """Programs: pairs x pieces of WORDS words. A pair whose first offset is negative is padding."""
    pair = tl.program_id(0).to(tl.int64)
    source = tl.load(pairs + 2 * pair)
    target = tl.load(pairs + 2 * pair + 1)
    if source < 0:
        return
    piece = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = piece < count
    # Blocks are aligned to 16 bytes; in this form the compiler knows it and copies four words at a time.
    from_word = source // 16 * 4
    to_word = target // 16 * 4
    tl.store(words + to_word + piece, tl.load(words + from_word + piece, mask=inside), mask=inside)


def copy_blocks(arena: torch.Tensor, pairs: torch.Tensor, block_bytes: int) -> None:
    """Copy `block_bytes` from the first to the second byte offset of each of `pairs`, int64 [N, 2] on the same device.

    Offsets and `block_bytes` are multiples of 16; no block is both read and written. Pairs with a negative first offset
    are ignored, so the number of pairs may be padded.
    """
    if not pairs.shape[0]:
        return
    count = block_bytes // 4
    words = arena[: arena.numel() // 4 * 4].view(torch.int32)
    copy_blocks_kernel[(pairs.shape[0], triton.cdiv(count, _WORDS))](
        words, pairs, count, WORDS=_WORDS, num_warps=4, num_stages=1
    )
