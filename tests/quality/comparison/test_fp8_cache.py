"""What a card's FP8 cache loses is compared on the CPU, with the numbers that the cards store (KV-07, QZ-09)."""

from pathlib import Path

import pytest
import torch

from inference_core.attention import AttentionBatch, ReferenceAttention
from inference_core.kv_cache.layout import KVLayout
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.models.transformer import rotary_table
from inference_core.quantization.quality_report import DEFAULT_LIMITS, QualityReport
from inference_core.triton_kernels.layer_cache import LayerCache
from inference_core.triton_kernels.reference import load, rounded_to_fp8, store
from quality.evaluation.effort import Effort
from quality.evaluation.model_outputs import Fp8Attention, Side, Variant
from quality.evaluation.quantised_model import compare_models
from tests.inference_core.quantization.tiny_model import TEXT, write_tiny_model

EFFORT = Effort(text_tokens=192, window=96, first_tokens=8, generations=2, generation_tokens=6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def compared(model: Path, cache: Path, kv_dtype: str, compute: str = "float32") -> QualityReport:
    reference, candidate = Variant("float32", "float32"), Variant(compute, kv_dtype)  # type: ignore[arg-type]
    sides = Side(str(model), reference), Side(str(model), candidate)
    return compare_models(*sides, cache, limits=DEFAULT_LIMITS, text=TEXT, effort=EFFORT)


def test_rows_are_rounded_as_the_reference_of_the_cards_kernels_stores_them() -> None:
    layout = KVLayout(num_layers=2, num_kv_heads=3, head_dim=16, block_size=16, dtype="fp8")
    cache = LayerCache(torch.zeros(2 * layout.block_bytes, dtype=torch.uint8), layout, 1)
    sizes = torch.logspace(-6, 6, 10)[:, None, None]
    keys, values = (torch.randn(10, 3, 16, generator=torch.Generator().manual_seed(seed)) * sizes for seed in (1, 2))
    keys[4, 1] = 0
    blocks, tokens = torch.full((10,), layout.block_bytes), torch.arange(10)
    store(cache, blocks, tokens, keys, values)
    for stored, given in zip(load(cache, blocks, tokens), (keys, values), strict=True):
        assert torch.equal(stored, rounded_to_fp8(given))
        assert ((stored - given).abs() <= given.abs() / 16 + given.abs().amax(-1, keepdim=True) * 2**-17).all()


def test_keys_and_values_of_a_step_are_rounded_in_the_cache_and_no_other_number(model: Path) -> None:
    config = open_checkpoint(model).config
    heads, kv_heads, d = config.num_heads, config.num_kv_heads, config.head_dim
    layout = KVLayout(num_layers=2, num_kv_heads=kv_heads, head_dim=d, block_size=16, dtype="float32")
    arenas = [torch.full((3 * layout.block_bytes,), 1, dtype=torch.uint8) for _ in range(2)]
    backends = [ReferenceAttention(config, layout, arena, rotary_table(config, 64)) for arena in arenas]
    qkv = torch.randn(5, (heads + 2 * kv_heads) * d, generator=torch.Generator().manual_seed(3))
    positions = torch.tensor([15, 16, 17, 18, 19], dtype=torch.int32)
    none = torch.zeros(0, dtype=torch.int32)
    slots = torch.tensor([2, 0, 0, 0, 0]) * layout.block_bytes
    batch = AttentionBatch(positions, slots, slots, none, none, none)
    backends[0].rope_and_write(qkv.clone(), 1, batch, None, None)
    Fp8Attention(backends[1]).rope_and_write(qkv.clone(), 1, batch, None, None)
    plain, rounded = (arena.view(torch.float32) for arena in arenas)
    changed = (plain != rounded).nonzero().flatten()
    assert 0.8 < len(changed) / (5 * 2 * kv_heads * d) <= 1
    in_block = changed % (layout.block_bytes // 4)
    assert (in_block >= layout.layer_bytes // 4).all(), "another layer was changed"
    blocks = [arena.view(torch.float32).view(3, 2, kv_heads, 2, d * 16)[:, 1] for arena in arenas]
    for row, slot in enumerate((2, 0, 0, 0, 0)):
        at = int(positions[row]) % 16
        keys = [block[slot, :, 0].view(kv_heads, d, 16)[:, :, at] for block in blocks]
        values = [block[slot, :, 1].view(kv_heads, 16, d)[:, at] for block in blocks]
        assert torch.equal(keys[1], rounded_to_fp8(keys[0]))
        assert torch.equal(values[1], rounded_to_fp8(values[0]))


@pytest.mark.parametrize("compute", ["float32", "bfloat16", "fp8"])
def test_a_comparison_with_an_fp8_cache_shows_what_it_loses(model: Path, tmp_path: Path, compute: str) -> None:
    with_it, without = (compared(model, tmp_path, kv_dtype, compute) for kv_dtype in ("fp8", "float32"))
    assert (with_it.candidate.kv_dtype, with_it.candidate.compute) == ("fp8", compute)
    assert 0.99 < with_it.text.hidden_cosine < without.text.hidden_cosine
    assert with_it.text.mean_kl > without.text.mean_kl
    assert with_it.generations is not None
    assert with_it.generations.prompts == 2
