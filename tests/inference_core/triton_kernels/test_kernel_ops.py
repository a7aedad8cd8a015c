"""The custom ops hold torch's contract, and on the CPU they are the references (SPEC AT-07)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inference_core.attention import AttentionBackend, AttentionBatch, ReferenceAttention
from inference_core.errors import MemoryPlanError
from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.model_config import AttentionFeatures, ModelConfig, RotaryEmbedding
from inference_core.models.transformer import rotary_table
from inference_core.triton_kernels import ops
from inference_core.triton_kernels.layer_cache import LayerCache
from inference_core.triton_kernels.ops import ExpertRows, route
from inference_core.triton_kernels.weights import Int4Weight, pack_int4
from tests.inference_core.triton_kernels.int4_tensors import int4_tensor

D, HEADS, KV_HEADS, BLOCK = 16, 4, 2, 16


def layout(dtype: KVDtype = "float32", layers: int = 2) -> KVLayout:
    return KVLayout(num_layers=layers, num_kv_heads=KV_HEADS, head_dim=D, block_size=BLOCK, dtype=dtype)


def batch_of_two(block_bytes: int) -> AttentionBatch:
    """A prompt of 20 tokens and a token behind 7 others, over three blocks in another order."""
    offsets = torch.tensor([2, 0, 1]) * block_bytes
    positions = torch.cat([torch.arange(20), torch.tensor([7])]).int()
    blocks = torch.tensor([0] * 16 + [1] * 4 + [2])
    return AttentionBatch(
        positions=positions,
        slots=offsets[blocks],
        block_offsets=offsets,
        table_start=torch.tensor([0, 2], dtype=torch.int32),
        query_start=torch.tensor([0, 20, 21], dtype=torch.int32),
        context_len=torch.tensor([20, 8], dtype=torch.int32),
        max_query_len=20,
    )


class OpsAttention(AttentionBackend):
    """The two attention ops behind the interface of the CPU's backends, for comparison."""

    def rope_and_write(
        self,
        qkv: torch.Tensor,
        layer: int,
        batch: AttentionBatch,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
    ) -> None:
        cache = ops.cache_numbers(LayerCache(self.arena, self.layout, layer))
        torch.ops.aio.rope_and_write(
            qkv, self.arena, self.cos_sin, batch.positions, batch.slots, q_norm, k_norm, self.config.rms_eps, *cache
        )

    def attend(self, qkv: torch.Tensor, layer: int, batch: AttentionBatch, out: torch.Tensor) -> None:
        tables = (batch.block_offsets, batch.table_start, batch.query_start, batch.context_len)
        cache = ops.cache_numbers(LayerCache(self.arena, self.layout, layer))
        window = self.config.attention.sliding_window or 0
        torch.ops.aio.paged_attention(
            out, qkv, self.arena, *tables, batch.max_query_len or qkv.shape[0], 0, [], window, 0.0, *cache
        )


def attention_arguments() -> tuple[Any, ...]:
    cache = LayerCache(torch.zeros(3 * layout().block_bytes, dtype=torch.uint8), layout(), 1)
    batch = batch_of_two(layout().block_bytes)
    tables = (batch.block_offsets, batch.table_start, batch.query_start, batch.context_len)
    qkv = torch.randn(21, (HEADS + 2 * KV_HEADS) * D)
    return torch.zeros(21, HEADS * D), qkv, cache.arena, *tables, 20, 0, [], 0, 0.0, *ops.cache_numbers(cache)


def rope_arguments() -> tuple[Any, ...]:
    cache = LayerCache(torch.zeros(3 * layout("fp8").block_bytes, dtype=torch.uint8), layout("fp8"), 1)
    batch = batch_of_two(layout("fp8").block_bytes)
    qkv, norm = torch.randn(21, (HEADS + 2 * KV_HEADS) * D), torch.ones(D)
    return (
        qkv,
        cache.arena,
        torch.randn(32, D),
        batch.positions,
        batch.slots,
        norm,
        None,
        1e-6,
        *ops.cache_numbers(cache),
    )


def expert_rows() -> ExpertRows:
    return route(torch.randn(5, 4), torch.tensor([0, 0, -1, 0, 0]), 2, normalise=True)


def int4_arguments() -> tuple[Any, ...]:
    weight = Int4Weight.load(pack_int4(int4_tensor("Q4_1", 8, 256)), 256, "cpu")
    rows, stack = expert_rows(), [weight.codes, weight.scales, weight.offsets]
    x, arrays = torch.randn(5, 256).half(), [array.expand(4, *array.shape).contiguous() for array in stack]
    return torch.zeros(10, 8).half(), x, *arrays, rows.order, rows.starts, 2


def codes_and_scales() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(3, 8, dtype=torch.int8), torch.empty(3)


def norm_to_codes() -> tuple[Any, ...]:
    codes, scales = codes_and_scales()
    return codes, torch.randn(3, 8), torch.ones(8), 1e-6, scales


def added_norm_to_codes() -> tuple[Any, ...]:
    codes, scales = codes_and_scales()
    return codes, torch.randn(3, 8), torch.randn(3, 8), torch.ones(8), 1e-6, scales


def activation_to_codes() -> tuple[Any, ...]:
    codes, scales = codes_and_scales()
    return codes, torch.randn(3, 16), scales


CASES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "paged_attention": attention_arguments,
    "rope_and_write": rope_arguments,
    "rms_norm": lambda: (torch.empty(3, 8), torch.randn(3, 8), torch.ones(8), 1e-6),
    "add_rms_norm": lambda: (torch.empty(3, 8), torch.randn(3, 8), torch.randn(3, 8), torch.ones(8), 1e-6),
    "rms_norm, codes": norm_to_codes,
    "add_rms_norm, codes": added_norm_to_codes,
    "swiglu, codes": activation_to_codes,
    "geglu, codes": activation_to_codes,
    "swiglu": lambda: (torch.empty(3, 8), torch.randn(3, 16)),
    "geglu": lambda: (torch.empty(3, 8), torch.randn(3, 16)),
    "route_experts": lambda: (
        torch.empty(3, 2, dtype=torch.int32),
        torch.empty(3, 2),
        torch.randn(3, 4),
        torch.tensor([0, -1, 0]),
        False,
    ),
    "group_rows": lambda: (
        torch.empty(10, dtype=torch.int32),
        torch.empty(5, dtype=torch.int32),
        expert_rows().experts,
    ),
    "dense_experts": lambda: (
        torch.zeros(10, 8),
        torch.randn(5, 16),
        torch.randn(4, 8, 16),
        expert_rows().order,
        expert_rows().starts,
        2,
    ),
    "int4_experts": int4_arguments,
    "add_experts": lambda: (
        torch.empty(5, 8),
        torch.randn(10, 8),
        expert_rows().experts,
        expert_rows().weights,
    ),
    "copy_blocks": lambda: (torch.zeros(64, dtype=torch.uint8), torch.tensor([[0, 32], [-1, 0]]), 16),
}


@pytest.mark.parametrize("name", CASES)
def test_an_op_says_truly_what_it_writes_and_traces(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.aio, name.partition(",")[0]).default, CASES[name]())


def config(window: int | None) -> ModelConfig:
    return ModelConfig(
        architecture="llama",
        vocab_size=10,
        hidden_size=HEADS * D,
        intermediate_size=8,
        num_layers=2,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=D,
        max_position=64,
        rms_eps=1e-6,
        rope=RotaryEmbedding(theta=10000.0),
        attention=AttentionFeatures(sliding_window=window),
    )


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "q/k norm"])
@pytest.mark.parametrize("window", [None, 5])
def test_both_block_interiors_give_the_same_attention(window: int | None, norm: bool) -> None:
    """The head-major references against the oracle of the CPU's kernels: nothing is shared but the batch."""
    answers = []
    for kind in (ReferenceAttention, OpsAttention):
        arena = torch.full((3 * layout().block_bytes,), 0xFF, dtype=torch.uint8)
        backend = kind(config(window), layout(), arena, rotary_table(config(window), 64))
        generator = torch.Generator().manual_seed(3)
        earlier, now = (torch.randn(n, (HEADS + 2 * KV_HEADS) * D, generator=generator) for n in (7, 21))
        weight = torch.linspace(0.5, 2, D) if norm else None
        batch = batch_of_two(layout().block_bytes)
        first = AttentionBatch(
            positions=torch.arange(7).int(),
            slots=batch.slots[-1:].expand(7).contiguous(),
            block_offsets=batch.block_offsets[2:],
            table_start=torch.zeros(1, dtype=torch.int32),
            query_start=torch.tensor([0, 7], dtype=torch.int32),
            context_len=torch.tensor([7], dtype=torch.int32),
        )
        out = torch.empty(21, HEADS * D)
        for layer in range(2):
            backend.rope_and_write(earlier.clone(), layer, first, weight, weight)
            qkv = now.clone()
            backend.rope_and_write(qkv, layer, batch, weight, weight)
            backend.attend(qkv, layer, batch, out)
            answers.append(out.clone())
    torch.testing.assert_close(answers[2], answers[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(answers[3], answers[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "fp8"])
def test_a_smaller_cache_stays_close_to_float32(dtype: KVDtype) -> None:
    """SPEC KV-07 asks for a cosine of at least 0.99."""
    answers = []
    for kind in ("float32", dtype):
        arena = torch.zeros(3 * layout(kind).block_bytes, dtype=torch.uint8)
        backend = OpsAttention(config(None), layout(kind), arena, rotary_table(config(None), 64))
        qkv = torch.randn(21, (HEADS + 2 * KV_HEADS) * D, generator=torch.Generator().manual_seed(3))
        batch, out = batch_of_two(layout(kind).block_bytes), torch.empty(21, HEADS * D)
        backend.rope_and_write(qkv, 0, batch, None, None)
        backend.attend(qkv, 0, batch, out)
        answers.append(out[:20])
    assert torch.cosine_similarity(*answers, dim=1).min() > 0.99


def test_a_cache_is_laid_out_as_documented() -> None:
    cache = LayerCache(torch.zeros(2 * layout("float16").block_bytes, dtype=torch.uint8), layout("float16"), 1)
    batch = batch_of_two(layout("float16").block_bytes)
    qkv = torch.randn(1, (HEADS + 2 * KV_HEADS) * D)
    unturned = torch.cat([torch.ones(8, D // 2), torch.zeros(8, D // 2)], dim=1)
    slot, position = torch.tensor([layout("float16").block_bytes]), batch.positions[-1:]
    torch.ops.aio.rope_and_write(
        qkv, cache.arena, unturned, position, slot, None, None, 1e-6, *ops.cache_numbers(cache)
    )
    block = cache.arena.view(torch.float16).view(2, 2, 2, KV_HEADS, BLOCK, D)  # block, layer, keys or values, ...
    key, value = qkv[0].view(-1, D)[HEADS:].half().view(2, KV_HEADS, D)
    assert torch.equal(block[1, 1, 0, :, 7], key)
    assert torch.equal(block[1, 1, 1, :, 7], value)
    assert int((cache.arena.view(torch.float16) != 0).sum()) == 2 * KV_HEADS * D


def test_a_layout_that_cuda_cannot_read_is_refused_with_the_choice() -> None:
    with pytest.raises(MemoryPlanError, match="int8; choose one of float32, float16, bfloat16, fp8"):
        LayerCache(torch.zeros(1, dtype=torch.uint8), layout("int8"), 0)
    odd = KVLayout(num_layers=1, num_kv_heads=1, head_dim=20, block_size=16, dtype="float16")
    with pytest.raises(MemoryPlanError, match="head_dim 20 and block_size 16"):
        LayerCache(torch.zeros(1, dtype=torch.uint8), odd, 0)
