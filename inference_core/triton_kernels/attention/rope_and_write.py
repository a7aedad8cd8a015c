"""Normalises and rotates queries and keys after the projections, and writes keys and values to the cache.

One pass over the projections' output (SPEC AT-05): a program takes one token's KV head with the query heads that share
it. Rotates half-split pairs (Su et al. 2021); the norm is Qwen3's RMSNorm over each head.
"""

import torch
import triton
import triton.language as tl

from inference_core.triton_kernels.attention.attention_tiles import padded
from inference_core.triton_kernels.attention.layer_cache import ALIGNMENT, LARGEST_E4M3, LayerCache


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
