"""Every attention backend equals the reference on ragged batches over scattered blocks (SPEC AT-01, AT-03, KV-08)."""

from functools import cache

import numpy as np
import pytest
import torch

from inference_core.attention import AttentionBackend, AttentionBatch, CpuAttention, ReferenceAttention
from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.model_config import AttentionFeatures, ModelConfig, RotaryEmbedding
from inference_core.models.transformer import rotary_table

LAYERS = 2


def config(heads: int, kv_heads: int, head_dim: int, window: int | None = None) -> ModelConfig:
    return ModelConfig(
        architecture="llama",
        vocab_size=10,
        hidden_size=heads * head_dim,
        intermediate_size=8,
        num_layers=LAYERS,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=256,
        rms_eps=1e-6,
        rope=RotaryEmbedding(theta=10000.0),
        attention=AttentionFeatures(sliding_window=window),
    )


class Paged:
    """A backend over an arena poisoned with NaN, with a scattered block table per sequence."""

    def __init__(
        self, kind: type[AttentionBackend], shape: ModelConfig, dtype: KVDtype, block_size: int, lengths: list[int]
    ) -> None:
        self.layout = KVLayout(
            num_layers=LAYERS,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            block_size=block_size,
            dtype=dtype,
        )
        counts = [-(-length // block_size) for length in lengths]
        order = np.random.default_rng(1).permutation(sum(counts) + 3)
        arena = torch.full((len(order) * self.layout.block_bytes // 4,), torch.nan).view(torch.uint8)
        self.backend = kind(shape, self.layout, arena, rotary_table(shape, 256))
        self.tables = [order[sum(counts[:i]) : sum(counts[: i + 1])] for i in range(len(counts))]
        self.shape = shape

    def batch(self, spans: list[tuple[int, int, int]]) -> AttentionBatch:
        """`spans`: (sequence, first position, end position) of each share of the step."""
        positions = [np.arange(first, end) for _, first, end in spans]
        tables = [self.tables[s].astype(np.int64) * self.layout.block_bytes for s, _, _ in spans]
        lengths = [end - first for _, first, end in spans]
        slots = [table[p // self.layout.block_size] for table, p in zip(tables, positions, strict=True)]
        starts = np.cumsum([0, *[len(t) for t in tables]])[:-1]
        return AttentionBatch(
            positions=torch.from_numpy(np.concatenate(positions).astype(np.int32)),
            slots=torch.from_numpy(np.concatenate(slots)),
            block_offsets=torch.from_numpy(np.concatenate(tables)),
            table_start=torch.from_numpy(starts.astype(np.int32)),
            query_start=torch.from_numpy(np.cumsum([0, *lengths]).astype(np.int32)),
            context_len=torch.tensor([end for _, _, end in spans], dtype=torch.int32),
        )

    def run(
        self,
        qkv: torch.Tensor,
        spans: list[tuple[int, int, int]],
        norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Two layers of attention on `qkv` [T, …] for the given spans; the second layer's output."""
        out = torch.empty(qkv.shape[0], self.shape.num_heads * self.shape.head_dim)
        for layer in range(LAYERS):
            rows = qkv.clone() * (layer + 1)
            q_norm, k_norm = norms or (None, None)
            self.backend.rope_and_write(rows, layer, self.batch(spans), q_norm, k_norm)
            self.backend.attend(rows, layer, self.batch(spans), out)
        return out


def random_qkv(shape: ModelConfig, tokens: int, seed: int = 0) -> torch.Tensor:
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    return torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed))


SHAPES = [(4, 4, 16), (9, 3, 64), (8, 1, 32), (6, 2, 128)]
LENGTHS = [1, 16, 37, 70]
SPANS = [(s, 0, length) for s, length in enumerate(LENGTHS)]


@cache
def reference(
    heads: int, kv_heads: int, head_dim: int, dtype: KVDtype, block_size: int, window: int | None
) -> torch.Tensor:
    """What every instruction set has to give for the prompts of LENGTHS."""
    shape = config(heads, kv_heads, head_dim, window)
    return Paged(ReferenceAttention, shape, dtype, block_size, LENGTHS).run(random_qkv(shape, sum(LENGTHS)), SPANS)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("block_size", "window"), [(16, None), (32, None), (16, 20)])
def test_the_native_backend_equals_the_reference(
    heads: int, kv_heads: int, head_dim: int, dtype: KVDtype, block_size: int, window: int | None
) -> None:
    shape = config(heads, kv_heads, head_dim, window)
    got = Paged(CpuAttention, shape, dtype, block_size, LENGTHS).run(random_qkv(shape, sum(LENGTHS)), SPANS)
    want = reference(heads, kv_heads, head_dim, dtype, block_size, window)
    # bfloat16 keys rotate in float32 and round once: a last-bit difference before rounding may flip that rounding.
    bound = 3e-5 if dtype == "float32" else 5e-3  # sums over the head are single chains of up to 128
    torch.testing.assert_close(got, want, atol=bound, rtol=bound)


@pytest.mark.usefixtures("instruction_set")
def test_heads_are_normalised_before_rotation_as_in_qwen3() -> None:
    shape = config(4, 2, 32)
    norms = (torch.linspace(0.5, 2, 32), torch.linspace(2, 0.5, 32))
    qkv = random_qkv(shape, 20)
    got = Paged(CpuAttention, shape, "float32", 16, [20]).run(qkv, [(0, 0, 20)], norms)
    want = Paged(ReferenceAttention, shape, "float32", 16, [20]).run(qkv, [(0, 0, 20)], norms)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("window", [None, 24])
def test_chunks_and_decodes_have_the_same_bits_as_one_pass(window: int | None) -> None:
    """One forward may mix prefill chunks and decodes over existing blocks (SPEC AT-03, BS-06)."""
    shape, lengths = config(9, 3, 64, window), [60, 45]
    qkv = random_qkv(shape, 105)
    whole = Paged(CpuAttention, shape, "bfloat16", 16, lengths).run(qkv, [(0, 0, 60), (1, 0, 45)])
    paged = Paged(CpuAttention, shape, "bfloat16", 16, lengths)
    first, second = qkv[:60], qkv[60:]
    parts = torch.empty_like(whole)
    parts[:33] = paged.run(first[:33], [(0, 0, 33)])
    mixed = paged.run(torch.cat([second[:30], first[33:34]]), [(1, 0, 30), (0, 33, 34)])
    parts[60:90], parts[33:34] = mixed[:30], mixed[30:]
    for position in range(34, 60):
        parts[position : position + 1] = paged.run(first[position : position + 1], [(0, position, position + 1)])
    parts[90:] = paged.run(second[30:], [(1, 30, 45)])
    assert torch.equal(parts, whole)


def test_the_reference_equals_dense_attention_with_repeated_heads() -> None:
    shape, tokens = config(6, 2, 16), 23
    qkv = random_qkv(shape, tokens)
    got = Paged(ReferenceAttention, shape, "float32", 16, [tokens]).run(qkv, [(0, 0, tokens)])
    rows = (qkv * LAYERS).view(tokens, 10, 16)
    table = rotary_table(shape, tokens)
    cos, sin = table[:, None, :8].repeat(1, 1, 2), table[:, None, 8:].repeat(1, 1, 2)
    rotated = rows * cos + torch.cat([-rows[..., 8:], rows[..., :8]], -1) * sin
    query, key = rotated[:, :6].transpose(0, 1), rotated[:, 6:8].repeat_interleave(3, 1).transpose(0, 1)
    value = rows[:, 8:].repeat_interleave(3, 1).transpose(0, 1)
    want = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(got, want.transpose(0, 1).reshape(tokens, -1), atol=1e-5, rtol=1e-5)
