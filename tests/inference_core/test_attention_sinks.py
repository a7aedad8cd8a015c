"""A score of each head's own takes weight in every softmax and gives no value, however contexts are divided."""

import pytest
import torch

from inference_core.attention import CpuAttention, ReferenceAttention
from inference_core.kv_cache.layout import KVDtype
from inference_core.native import cpu
from tests.inference_core.test_attention_borders import BOUND, DTYPES, Cache, Span

pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")
HEADS = 8
# None to speak of, some, and all of the weight: beyond what two to its power is as a float32.
SINKS = torch.tensor([-200.0, -3.0, 0.0, 1.0, 2.5, 6.0, 50.0, 300.0])


def attend(cache: Cache, spans: list[Span], sinks: torch.Tensor | None, *, prompt: bool = False) -> torch.Tensor:
    """float32 [tokens, heads, head_dim], over a cache that is filled."""
    backend = CpuAttention(cache.config, cache.layout, cache.arena, cache.backend(CpuAttention).cos_sin)
    batch = cache.batch(spans)
    qkv = torch.cat([cache.tokens[s][first:end] for s, first, end in spans]).clone()
    backend.rope_and_write(qkv, 0, batch, None, None)
    if prompt:
        backend.prompt = torch.ones(len(qkv), dtype=torch.uint8)
    out = torch.empty(len(qkv), HEADS * cache.config.head_dim)
    backend.attend(qkv, 0, batch, out, sinks)
    return out.view(len(qkv), HEADS, -1)


def reference(cache: Cache, spans: list[Span], sinks: torch.Tensor | None) -> torch.Tensor:
    batch, config = cache.batch(spans), cache.config
    qkv = torch.cat([cache.tokens[s][first:end] for s, first, end in spans]).clone()
    table = cache.backend(CpuAttention).cos_sin
    CpuAttention(config, cache.layout, cache.arena.clone(), table).rope_and_write(qkv, 0, batch, None, None)
    out = torch.empty(len(qkv), HEADS * config.head_dim)
    cache.backend(ReferenceAttention).attend(qkv, 0, batch, out, sinks)
    return out.view(len(qkv), HEADS, -1)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("window", [None, 24, 300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sinks_take_their_weight(dtype: KVDtype, window: int | None) -> None:
    cache = Cache(4, 32, dtype, [1, 65, 530], window=window)
    cache.fill()
    got, want = attend(cache, cache.whole(), SINKS), reference(cache, cache.whole(), SINKS)
    torch.testing.assert_close(got, want, atol=BOUND[dtype], rtol=BOUND[dtype])
    assert got[:, 7].abs().max() == 0, "a sink this high takes all of the weight"
    assert torch.equal(got[:, 0], attend(cache, cache.whole(), None)[:, 0]), "a sink this low takes none"


def test_a_row_with_sinks_is_the_same_whole_alone_and_on_any_number_of_threads() -> None:
    cache = Cache(4, 32, "bfloat16", [530])
    cache.fill()
    try:
        cpu.set_threads(1)
        whole = attend(cache, cache.whole(), SINKS)
        for threads in (1, 3):
            cpu.set_threads(threads)
            for position in (0, 255, 256, 529):
                alone = attend(cache, [(0, position, position + 1)], SINKS)
                assert torch.equal(alone[0], whole[position])
    finally:
        cpu.set_threads(None)


@pytest.mark.usefixtures("prompt_kernels")
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_prompt_arithmetic_has_sinks_too(dtype: KVDtype) -> None:
    cache = Cache(4, 32, dtype, [130])
    cache.fill()
    got, want = attend(cache, cache.whole(), SINKS, prompt=True), attend(cache, cache.whole(), SINKS)
    assert not torch.equal(got, want)
    torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
