"""Attention, norms, activations and block copies as torch custom ops `aio::*`: one model code runs on CPU and CUDA.

The ops take a layer of the cache as numbers (`LayerCache`). Importing this module registers them, without triton.
"""

from typing import Any

import torch

from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.triton_kernels import decoder_reference
from inference_core.triton_kernels.attention.layer_cache import LayerCache
from inference_core.triton_kernels.registration import register

_CACHE = "str kv_dtype, int kv_heads, int head_dim, int block_size, int layer"


def cache_numbers(cache: LayerCache) -> tuple[str, int, int, int, int]:
    """The op arguments that describe a layer of the cache, in addition to its arena."""
    layout = cache.layout
    return layout.dtype, layout.num_kv_heads, layout.head_dim, layout.block_size, cache.layer


def _cache(
    arena: torch.Tensor, kv_dtype: KVDtype, kv_heads: int, head_dim: int, block_size: int, layer: int
) -> LayerCache:
    # A layer's offset does not depend on the number of layers after it.
    layout = KVLayout(
        num_layers=layer + 1, num_kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=kv_dtype
    )
    return LayerCache(arena, layout, layer)


# The schemas below name the arguments of each op, in this order; the last ones describe the layer (`cache_numbers`).


def _paged_attention_cpu(out: torch.Tensor, qkv: torch.Tensor, arena: torch.Tensor, *more: Any) -> None:
    offsets, table_start, query_start, context_len, _, _, window, softcap, *cache = more
    ragged = (offsets, table_start, query_start, context_len)
    decoder_reference.reference_paged_attention(
        qkv, _cache(arena, *cache), *ragged, out, window=window, softcap=softcap
    )


def _paged_attention_cuda(out: torch.Tensor, qkv: torch.Tensor, arena: torch.Tensor, *more: Any) -> None:
    from inference_core.triton_kernels.attention.paged_attention import paged_attention

    offsets, table_start, query_start, context_len, longest, blocks, window, softcap, *cache = more
    ragged = (offsets, table_start, query_start, context_len)
    options = {"window": window, "softcap": softcap, "max_query_len": longest, "context_blocks": blocks}
    paged_attention(qkv, _cache(arena, *cache), *ragged, out, **options)


def _rope_and_write_cpu(qkv: torch.Tensor, arena: torch.Tensor, *more: Any) -> None:
    cos_sin, positions, slots, q_norm, k_norm, eps, *cache = more
    decoder_reference.reference_rope_and_write(
        qkv, cos_sin, positions, slots, _cache(arena, *cache), q_norm, k_norm, eps
    )


def _rope_and_write_cuda(qkv: torch.Tensor, arena: torch.Tensor, *more: Any) -> None:
    from inference_core.triton_kernels.attention.rope_and_write import rope_and_write

    cos_sin, positions, slots, q_norm, k_norm, eps, *cache = more
    rope_and_write(qkv, cos_sin, positions, slots, _cache(arena, *cache), q_norm, k_norm, eps)


def _rms_norm_cuda(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    from inference_core.triton_kernels.rms_norm import rms_norm

    rms_norm(x, weight, eps, out)


def _add_rms_norm_cuda(
    out: torch.Tensor, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> None:
    from inference_core.triton_kernels.rms_norm import add_rms_norm

    add_rms_norm(x, residual, weight, eps, out)


def _swiglu_cuda(out: torch.Tensor, gate_up: torch.Tensor) -> None:
    from inference_core.triton_kernels.swiglu import swiglu

    swiglu(gate_up, out)


def _geglu_cuda(out: torch.Tensor, gate_up: torch.Tensor) -> None:
    from inference_core.triton_kernels.swiglu import geglu

    geglu(gate_up, out)


def _copy_blocks_cuda(arena: torch.Tensor, pairs: torch.Tensor, block_bytes: int) -> None:
    from inference_core.triton_kernels.attention.block_copy import copy_blocks

    copy_blocks(arena, pairs, block_bytes)


register(
    "paged_attention(Tensor(a!) out, Tensor qkv, Tensor arena, Tensor block_offsets, Tensor table_start, "
    "Tensor query_start, Tensor context_len, int max_query_len, int context_blocks, int window, "
    f"float softcap, {_CACHE}) -> ()",
    cpu=_paged_attention_cpu,
    cuda=_paged_attention_cuda,
)
register(
    "rope_and_write(Tensor(a!) qkv, Tensor(b!) arena, Tensor cos_sin, Tensor positions, Tensor slots, "
    f"Tensor? q_norm, Tensor? k_norm, float eps, {_CACHE}) -> ()",
    cpu=_rope_and_write_cpu,
    cuda=_rope_and_write_cuda,
)
register(
    "rms_norm(Tensor(a!) out, Tensor x, Tensor weight, float eps) -> ()",
    cpu=lambda out, x, weight, eps: decoder_reference.reference_rms_norm(x, weight, eps, out),
    cuda=_rms_norm_cuda,
)
register(
    "add_rms_norm(Tensor(a!) out, Tensor(b!) residual, Tensor x, Tensor weight, float eps) -> ()",
    cpu=lambda out, residual, x, weight, eps: decoder_reference.reference_add_rms_norm(x, residual, weight, eps, out),
    cuda=_add_rms_norm_cuda,
)
register(
    "swiglu(Tensor(a!) out, Tensor gate_up) -> ()",
    cpu=lambda out, gate_up: decoder_reference.reference_swiglu(gate_up, out),
    cuda=_swiglu_cuda,
)
register(
    "geglu(Tensor(a!) out, Tensor gate_up) -> ()",
    cpu=lambda out, gate_up: decoder_reference.reference_geglu(gate_up, out),
    cuda=_geglu_cuda,
)
register(
    "copy_blocks(Tensor(a!) arena, Tensor pairs, int block_bytes) -> ()",
    cpu=decoder_reference.reference_copy_blocks,
    cuda=_copy_blocks_cuda,
)
