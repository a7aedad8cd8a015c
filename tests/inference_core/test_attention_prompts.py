"""Attention of prompt queries in bfloat16, tiles or dot products: near float32, by its position alone."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from inference_core.attention import CpuAttention, ReferenceAttention
from inference_core.kv_cache.layout import KVDtype
from inference_core.models.transformer import rotary_table
from inference_core.native import cpu
from tests.inference_core.test_attention_borders import CONTEXTS, Cache, Span

pytestmark = [
    pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)"),
    pytest.mark.usefixtures("attention_kernels"),
]
DTYPES: list[KVDtype] = ["bfloat16", "int8"]


@pytest.fixture
def threads() -> Iterator[None]:
    yield
    cpu.set_threads(None)


def attend(cache: Cache, spans: list[Span], prompt: bool = True) -> torch.Tensor:
    """Write the spans' tokens and attend from them, as prompt or as generated tokens."""
    backend, batch = (
        CpuAttention(cache.config, cache.layout, cache.arena, rotary_table(cache.config, 1024)),
        cache.batch(spans),
    )
    qkv = torch.cat([cache.tokens[s][first:end] for s, first, end in spans]).clone()
    out = torch.empty(len(qkv), cache.config.num_heads * cache.config.head_dim)
    backend.rope_and_write(qkv, 0, batch, None, None)
    backend.prompt = torch.full((len(qkv),), int(prompt), dtype=torch.uint8)
    backend.attend(qkv, 0, batch, out)
    return out


def reference(cache: Cache, spans: list[Span]) -> tuple[torch.Tensor, torch.Tensor]:
    """The float32 answer over what lies in the cache, and the largest magnitudes of values in each head."""
    batch = cache.batch(spans)
    qkv = torch.cat([cache.tokens[s][first:end] for s, first, end in spans]).clone()
    out = torch.empty(len(qkv), cache.config.num_heads * cache.config.head_dim)
    CpuAttention(cache.config, cache.layout, cache.arena.clone(), rotary_table(cache.config, 1024)).rope_and_write(
        qkv, 0, batch, None, None
    )
    cache.backend(ReferenceAttention).attend(qkv, 0, batch, out)
    return out, qkv


def check_bound(cache: Cache, spans: list[Span]) -> None:
    """A query off by 2^-9 of itself moves a score by at most e = 2^-9 |q| |k| / sqrt(d), so a weight by a factor of at
    most exp(2 e) after normalisation; rounding the weight itself adds 2^-9, before values of at most `most`."""
    got = attend(cache, spans)
    want, qkv = reference(cache, spans)
    d, heads = cache.config.head_dim, cache.config.num_heads
    norms = qkv[:, : heads * d].reshape(-1, d).norm(dim=1).max()
    everything = torch.cat(cache.tokens)
    kv = everything[:, heads * d :].reshape(len(everything), 2, -1, d)
    score = 2**-9 * norms * kv[:, 0].norm(dim=2).max() * d**-0.5 * 1.02
    most = kv[:, 1].abs().max() * 1.02
    bound = most * ((2 * score).exp() - 1 + 2**-8 * 1.02)
    assert (got - want).abs().max() <= bound
    # Roundings are independent: far below the bound, which takes all of them in the same direction.
    assert (got - want).norm() / want.norm() < 0.01


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("group", "head_dim"), [(1, 64), (3, 96), (5, 80), (8, 128), (2, 16)])
def test_every_group_and_head_size_is_near_float32_at_every_border(group: int, head_dim: int, dtype: KVDtype) -> None:
    cache = Cache(group, head_dim, dtype, CONTEXTS, kv_heads=1)
    cache.fill()
    for queries in (1, 7, 40):
        check_bound(cache, cache.last_tokens(queries))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 20, 300])
def test_windows_begin_anywhere_in_a_chunk_or_partition(dtype: KVDtype, window: int) -> None:
    cache = Cache(3, 64, dtype, [17, 65, 257, 530], window=window, block_size=32)
    check_bound(cache, cache.whole())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 100])
def test_a_row_has_the_same_bits_alone_in_a_batch_and_in_any_chunks(dtype: KVDtype, window: int | None) -> None:
    lengths = [600, 70, 1, 300]
    together = Cache(3, 64, dtype, lengths, window=window)
    rows = dict(zip(range(4), attend(together, together.whole()).split(lengths), strict=True))
    alone = Cache(3, 64, dtype, lengths, window=window)
    for first, end in pairwise([0, 5, 21, 64, 97, 255, 258, 300, 599, 600]):
        spans = [(s, first, min(end, length)) for s, length in enumerate(lengths) if first < length]
        for span, part in zip(spans, attend(alone, spans).split([e - f for _, f, e in spans]), strict=True):
            assert torch.equal(part, rows[span[0]][span[1] : span[2]]), span
    for position in (0, 63, 64, 255, 256, 299):
        assert torch.equal(attend(alone, [(3, position, position + 1)])[0], rows[3][position])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_that_share_a_long_context_give_the_same_bits_as_one(dtype: KVDtype) -> None:
    cache = Cache(3, 64, dtype, [1000], kv_heads=1)
    cache.fill()
    cpu.set_threads(1)
    spans = cache.last_tokens(100)
    alone = attend(cache, spans)
    for count in (2, 5):
        cpu.set_threads(count)
        assert torch.equal(attend(cache, spans), alone)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_unused_slots_hold_never_matters(dtype: KVDtype) -> None:
    """0xFF is NaN in every float format, and the largest code in INT8."""
    results = []
    for garbage in (0x00, 0x55, 0xFF):
        cache = Cache(5, 80, dtype, [1, 37, 70, 259], garbage=garbage)
        results.append([attend(cache, cache.whole()), attend(cache, cache.last_tokens(1))])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    assert all(part.isfinite().all() for part in results[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_generated_tokens_are_computed_as_without_prompt_kernels(dtype: KVDtype) -> None:
    cache = Cache(3, 64, dtype, [70, 300])
    cache.fill()
    spans = cache.last_tokens(9)
    assert torch.equal(attend(cache, spans, prompt=False), cache.attend(spans))


def test_a_cache_in_float32_is_read_in_float32() -> None:
    cache = Cache(3, 64, "float32", [70, 300])
    cache.fill()
    spans = cache.last_tokens(9)
    assert torch.equal(attend(cache, spans), cache.attend(spans))


def test_kernels_without_prompt_arithmetic_refuse_it() -> None:
    cpu.extension().use_instruction_set("portable")
    cache = Cache(3, 64, "int8", [70])
    with pytest.raises(ValueError, match="no prompt arithmetic"):
        attend(cache, cache.whole())
