"""Every kernel here compiles for every device of ours, without spills or a stack (SPEC AT-01, AT-02, AT-05, [A])."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.triton_kernels.cache_writes import copy_blocks, rope_and_write
from inference_core.triton_kernels.layer_cache import LayerCache
from inference_core.triton_kernels.paged_attention import paged_attention
from inference_core.triton_kernels.prompt_attention import attend_prompt
from inference_core.triton_kernels.row_kernels import add_rms_norm, geglu, swiglu
from tests.inference_core.triton_kernels.aot import E4M3, AotCase, check_usage, grid

meta = partial(torch.empty, device="meta")
ints = partial(meta, dtype=torch.int32)
longs = partial(meta, dtype=torch.int64)


def layer(cache: KVDtype, kv_heads: int, head_dim: int) -> LayerCache:
    layout = KVLayout(num_layers=4, num_kv_heads=kv_heads, head_dim=head_dim, block_size=16, dtype=cache)
    return LayerCache(meta(1 << 20, dtype=torch.uint8), layout, 2)


def attention(
    tokens: int,
    sequences: int,
    queries: int,
    *,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    cache: KVDtype = "bfloat16",
    window: int = 0,
    softcap: float = 0.0,
    blocks: int = 0,
) -> None:
    qkv, out = meta(tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype), meta(tokens, heads * head_dim, dtype=dtype)
    paged_attention(
        qkv,
        layer(cache, kv_heads, head_dim),
        longs(4096),
        ints(sequences),
        ints(sequences + 1),
        ints(sequences),
        out,
        window=window,
        softcap=softcap,
        max_query_len=queries,
        context_blocks=blocks,
    )


def prompt(context: int, queries: int, head_dim: int = 128, cache: KVDtype = "bfloat16") -> None:
    """A prompt in parts: gathered keys and merged results, with any attention between them."""

    def attend(query: torch.Tensor, keys: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        _, heads, rows, _ = query.shape
        return rows_of_heads(rows, heads, head_dim), meta(1, heads, rows, 1)

    qkv, out = (meta(queries, heads * head_dim, dtype=torch.bfloat16) for heads in (32 + 2 * 8, 32))
    attend_prompt(qkv, layer(cache, 8, head_dim), longs(4096), ints(1), 0, queries, context, out, attend)


def rows_of_heads(rows: int, heads: int, head_dim: int) -> torch.Tensor:
    """[1, heads, rows, head_dim] with the heads of a row next to each other."""
    return meta(1, rows, heads, head_dim, dtype=torch.bfloat16).transpose(1, 2)


def rope(cache: KVDtype, norm: torch.Tensor | None) -> None:
    qkv = meta(64, (32 + 2 * 8) * 128, dtype=torch.bfloat16)
    rope_and_write(qkv, meta(4096, 128), ints(64), longs(64), layer(cache, 8, 128), norm, norm, 1e-6)


def rows(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=torch.bfloat16)


def normed(dtype: torch.dtype) -> None:
    add_rms_norm(rows(64, 8192), rows(64, 8192), rows(8192), 1e-6, meta(64, 8192, dtype=dtype), meta(64))


def activated(width: int, dtype: torch.dtype) -> None:
    for kernel in (swiglu, geglu):
        kernel(rows(64, 2 * width), meta(64, width, dtype=dtype), meta(64))


CODES = {"INT8": (torch.int8, 80), "FP8": (torch.float8_e4m3fn, E4M3)}
# True shapes: Llama 3 8B (32/8 heads of 128), SmolLM2 135M (9/3 of 64), Gemma 2 9B (16/8 of 256, capped), and MQA.
# Scalars and block tables take 4 and 8 bytes.
WIDE: dict[str, Any] = {"wide_loads": True, "narrowest_load": 4}
FP8 = {"cache": "fp8"}
FP32 = {"dtype": torch.float32, "cache": "float32"}
SMOL = {"heads": 9, "kv_heads": 3, "head_dim": 64}
GEMMA2 = {"heads": 16, "kv_heads": 8, "head_dim": 256, "softcap": 50.0}
CASES = {
    "decode": AotCase(partial(attention, 64, 64, 1), **WIDE),
    "decode, split": AotCase(partial(attention, 1, 1, 1), **WIDE),
    "decode, window": AotCase(partial(attention, 64, 64, 1, window=4096), **WIDE),
    "decode, head of 64": AotCase(partial(attention, 64, 64, 1, **SMOL), **WIDE),
    "decode, MQA": AotCase(partial(attention, 64, 64, 1, kv_heads=1), **WIDE),
    "decode, float32": AotCase(partial(attention, 64, 64, 1, **FP32), **WIDE),
    "decode, FP8 cache": AotCase(partial(attention, 64, 64, 1, **FP8), least=E4M3, **WIDE),
    "verify": AotCase(partial(attention, 320, 64, 5), **WIDE),
    "prefill": AotCase(partial(attention, 4096, 8, 2048), **WIDE),
    "prefill, window": AotCase(partial(attention, 4096, 8, 2048, window=4096), **WIDE),
    "prefill, head of 64": AotCase(partial(attention, 4096, 8, 2048, **SMOL), **WIDE),
    "prefill, head of 256": AotCase(partial(attention, 4096, 8, 2048, heads=8, kv_heads=4, head_dim=256), **WIDE),
    "prefill, float32": AotCase(partial(attention, 4096, 8, 2048, **FP32), **WIDE),
    "prefill, FP8 cache": AotCase(partial(attention, 4096, 8, 2048, **FP8), least=E4M3, **WIDE),
    "prefill, FP8 cache unpacked": AotCase(partial(attention, 4096, 8, 2048, blocks=512, **FP8), least=E4M3, **WIDE),
    "decode, capped, window": AotCase(partial(attention, 64, 64, 1, window=4096, **GEMMA2), **WIDE),
    "prefill, capped, window": AotCase(partial(attention, 4096, 8, 2048, window=4096, **GEMMA2), **WIDE),
    "prefill, capped, FP8 cache": AotCase(partial(attention, 4096, 8, 2048, **GEMMA2, **FP8), least=E4M3, **WIDE),
    "prompt in parts": AotCase(partial(prompt, 8192, 2048), least=90, **WIDE),
    "prompt in parts, head of 64": AotCase(partial(prompt, 8192, 2048, head_dim=64), least=90, **WIDE),
    "prompt in parts, FP8 cache": AotCase(partial(prompt, 8192, 2048, cache="fp8"), least=90, **WIDE),
    "prompt in one part": AotCase(partial(prompt, 2048, 2048), least=90, narrowest_load=4),
    "RoPE and write": AotCase(partial(rope, "bfloat16", None), **WIDE),
    "RoPE, norm and write, FP8": AotCase(partial(rope, "fp8", rows(128)), least=E4M3, **WIDE),
    "residual and norm": AotCase(
        lambda: add_rms_norm(rows(64, 8192), rows(64, 8192), rows(8192), 1e-6, rows(64, 8192)), **WIDE
    ),
    "SwiGLU": AotCase(lambda: swiglu(rows(64, 28672), rows(64, 14336)), **WIDE),
    "GEGLU": AotCase(lambda: geglu(rows(64, 28672), rows(64, 14336)), **WIDE),
    **{
        f"norm, {name} codes": AotCase(partial(normed, codes), least=least, **WIDE)
        for name, (codes, least) in CODES.items()
    },
    **{
        f"{name} codes of {width}": AotCase(partial(activated, width, codes), least=least, **WIDE)
        for name, (codes, least) in CODES.items()
        for width in (14336, 28672)
    },
    "block copy": AotCase(lambda: copy_blocks(meta(1 << 20, dtype=torch.uint8), longs(8, 2), 1 << 16), **WIDE),
}


@pytest.mark.kernels
@pytest.mark.parametrize(("name", "capability"), grid(CASES))
def test_a_launch_compiles_without_spills(
    name: str, capability: int, compiled: Callable[[str], dict[str, Any]]
) -> None:
    check_usage(CASES[name], compiled(Path(__file__).stem)[name][str(capability)], capability)
