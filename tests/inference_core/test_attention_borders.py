"""Attention at the boundaries of blocks, chunks and partitions, for every shape and cache format; a row's result does
not depend on the batch (SPEC AT-01, AT-03, BS-06, KV-07, KV-08).
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch

from inference_core.attention import (
    AttentionBackend,
    AttentionBatch,
    CpuAttention,
    ReferenceAttention,
    dequantize_int8,
    quantize_int8,
)
from inference_core.kv_cache.layout import KVDtype, KVLayout
from inference_core.model_config import AttentionFeatures, ModelConfig, RotaryEmbedding
from inference_core.models.transformer import rotary_table
from inference_core.native import cpu

pytestmark = pytest.mark.properties

DTYPES: list[KVDtype] = ["float32", "bfloat16", "int8"]
# Sums of up to 128 products in one chain; INT8 adds queries and weights of 16 bits.
BOUND = {"float32": 3e-5, "bfloat16": 3e-5, "int8": 5e-4}
# Around a block of 16, a chunk of 64 and a partition of 256 tokens.
CONTEXTS = [1, 16, 17, 63, 65, 256, 257, 530]
Span = tuple[int, int, int]  # sequence, first position, end position


class Cache:
    """One layer over blocks in random order; every byte that no token has written holds `garbage`."""

    def __init__(
        self,
        group: int,
        head_dim: int,
        dtype: KVDtype,
        lengths: list[int],
        *,
        kv_heads: int = 2,
        window: int | None = None,
        block_size: int = 16,
        garbage: int = 0xFF,
    ) -> None:
        self.config = ModelConfig(
            architecture="llama",
            vocab_size=10,
            hidden_size=group * kv_heads * head_dim,
            intermediate_size=8,
            num_layers=1,
            num_heads=group * kv_heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            max_position=1024,
            rms_eps=1e-6,
            rope=RotaryEmbedding(theta=10000.0),
            attention=AttentionFeatures(sliding_window=window),
        )
        self.layout = KVLayout(
            num_layers=1, num_kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype
        )
        counts = [-(-length // block_size) for length in lengths]
        order = np.random.default_rng(3).permutation(sum(counts))
        self.tables = [order[sum(counts[:i]) : sum(counts[: i + 1])] for i in range(len(counts))]
        self.arena = torch.full((len(order) * self.layout.block_bytes,), garbage, dtype=torch.uint8)
        self.lengths = lengths
        width = (group + 2) * kv_heads * head_dim
        generator = torch.Generator().manual_seed(group * 1000 + head_dim)
        self.tokens = [torch.randn(length, width, generator=generator) for length in lengths]

    def backend(self, kind: type[AttentionBackend]) -> AttentionBackend:
        return kind(self.config, self.layout, self.arena, rotary_table(self.config, 1024))

    def batch(self, spans: list[Span]) -> AttentionBatch:
        size = self.layout.block_size
        positions = [np.arange(first, end) for _, first, end in spans]
        tables = [self.tables[s].astype(np.int64) * self.layout.block_bytes for s, _, _ in spans]
        return AttentionBatch(
            positions=torch.from_numpy(np.concatenate(positions).astype(np.int32)),
            slots=torch.from_numpy(np.concatenate([t[p // size] for t, p in zip(tables, positions, strict=True)])),
            block_offsets=torch.from_numpy(np.concatenate(tables)),
            table_start=torch.from_numpy(np.cumsum([0, *map(len, tables)])[:-1].astype(np.int32)),
            query_start=torch.from_numpy(np.cumsum([0, *map(len, positions)]).astype(np.int32)),
            context_len=torch.tensor([end for _, _, end in spans], dtype=torch.int32),
        )

    def attend(self, spans: list[Span], kind: type[AttentionBackend] = CpuAttention) -> torch.Tensor:
        """Write the spans' tokens and attend from them: float32 [tokens, heads * head_dim]."""
        backend, batch = self.backend(kind), self.batch(spans)
        qkv = torch.cat([self.tokens[s][first:end] for s, first, end in spans]).clone()
        out = torch.empty(len(qkv), self.config.num_heads * self.config.head_dim)
        backend.rope_and_write(qkv, 0, batch, None, None)
        backend.attend(qkv, 0, batch, out)
        return out

    def fill(self) -> None:
        """Write every token of every sequence."""
        self.backend(CpuAttention).rope_and_write(torch.cat(self.tokens), 0, self.batch(self.whole()), None, None)

    def expected(self, spans: list[Span]) -> torch.Tensor:
        """The reference's answer over what the native kernels have written."""
        batch = self.batch(spans)
        qkv = torch.cat([self.tokens[s][first:end] for s, first, end in spans]).clone()
        out = torch.empty(len(qkv), self.config.num_heads * self.config.head_dim)
        CpuAttention(self.config, self.layout, self.arena.clone(), rotary_table(self.config, 1024)).rope_and_write(
            qkv, 0, batch, None, None
        )
        self.backend(ReferenceAttention).attend(qkv, 0, batch, out)
        return out

    def whole(self) -> list[Span]:
        return [(s, 0, length) for s, length in enumerate(self.lengths)]

    def last_tokens(self, count: int) -> list[Span]:
        return [(s, max(0, length - count), length) for s, length in enumerate(self.lengths)]


@pytest.fixture
def threads() -> Iterator[None]:
    yield
    cpu.set_threads(None)


def equals_the_reference(group: int, head_dim: int) -> None:
    dtype = DTYPES[(group + head_dim // 16) % 3]
    cache = Cache(group, head_dim, dtype, CONTEXTS, kv_heads=1)
    cache.fill()
    for queries in (1, 7):
        spans = cache.last_tokens(queries)
        torch.testing.assert_close(cache.attend(spans), cache.expected(spans), atol=BOUND[dtype], rtol=BOUND[dtype])


@pytest.mark.skipif(not cpu.AVAILABLE, reason="kernels not built")
@pytest.mark.parametrize("group", range(1, 9))
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_every_group_and_head_size_equals_the_reference_at_every_border(group: int, head_dim: int) -> None:
    equals_the_reference(group, head_dim)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(("group", "head_dim"), [(1, 64), (2, 80), (3, 96), (5, 128), (7, 64), (8, 80)])
def test_every_instruction_set_equals_the_reference_at_every_border(group: int, head_dim: int) -> None:
    equals_the_reference(group, head_dim)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 20, 64, 300])
def test_windows_begin_anywhere_in_a_chunk_or_partition(dtype: KVDtype, window: int) -> None:
    cache = Cache(3, 64, dtype, [17, 65, 257, 530], window=window, block_size=32)
    got = cache.attend(cache.whole())
    torch.testing.assert_close(got, cache.expected(cache.whole()), atol=BOUND[dtype], rtol=BOUND[dtype])


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 100])
def test_a_row_has_the_same_bits_alone_in_a_batch_in_any_chunks_and_as_a_decode(
    dtype: KVDtype, window: int | None
) -> None:
    lengths = [600, 70, 1, 300]
    together = Cache(3, 64, dtype, lengths, window=window)
    rows = dict(zip(range(4), together.attend(together.whole()).split(lengths), strict=True))
    alone = Cache(3, 64, dtype, lengths, window=window)
    cuts = [0, 5, 21, 64, 97, 255, 258, 300, 599, 600]
    for first, end in pairwise(cuts):
        spans = [(s, first, min(end, length)) for s, length in enumerate(lengths) if first < length]
        for span, part in zip(spans, alone.attend(spans).split([e - f for _, f, e in spans]), strict=True):
            assert torch.equal(part, rows[span[0]][span[1] : span[2]]), span
    for position in (0, 63, 64, 255, 256, 299):
        assert torch.equal(alone.attend([(3, position, position + 1)])[0], rows[3][position])
    assert torch.equal(together.arena, alone.arena)


@pytest.mark.usefixtures("instruction_set", "threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 3, 100])
def test_threads_that_share_a_long_context_give_the_same_bits_as_one(dtype: KVDtype, queries: int) -> None:
    cache = Cache(3, 64, dtype, [1000], kv_heads=1)
    cache.fill()
    cpu.set_threads(1)
    spans = cache.last_tokens(queries)
    alone = cache.attend(spans)
    for count in (2, 5):
        cpu.set_threads(count)
        for _ in range(3):  # whichever thread happens to finish last
            assert torch.equal(cache.attend(spans), alone)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_unused_slots_hold_never_matters(dtype: KVDtype) -> None:
    """0xFF is NaN in every float format, and the largest code in INT8."""
    results = []
    for garbage in (0x00, 0x55, 0xFF):
        cache = Cache(5, 80, dtype, [1, 37, 70, 259], garbage=garbage)
        results.append([cache.attend(cache.whole()), cache.attend(cache.last_tokens(1))])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    assert all(part.isfinite().all() for part in results[0])


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_int8_holds_at_least_1_9_times_the_tokens_of_bfloat16(head_dim: int) -> None:
    sizes = [
        KVLayout(num_layers=2, num_kv_heads=3, head_dim=head_dim, block_size=16, dtype=dtype).block_bytes
        for dtype in ("bfloat16", "int8")
    ]
    assert sizes[0] / sizes[1] >= 1.9


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("head_dim", [64, 128])
def test_int8_attention_stays_within_a_percent_of_float32(head_dim: int) -> None:
    exact = Cache(3, head_dim, "float32", [500])
    small = Cache(3, head_dim, "int8", [500])
    want, got = exact.attend(exact.whole()), small.attend(small.whole())
    assert (got - want).norm() / want.norm() < 0.01
    assert torch.cosine_similarity(got, want, dim=1).min() > 0.999


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_written_one_by_one_or_in_runs_leave_the_bytes_of_the_reference(dtype: KVDtype) -> None:
    lengths = [50]
    native, reference = Cache(2, 80, dtype, lengths), Cache(2, 80, dtype, lengths)
    for first, end in ((0, 3), (3, 32), (32, 33), (33, 50)):
        native.attend([(0, first, end)])
    reference.attend(reference.whole(), ReferenceAttention)
    same = (native.arena == reference.arena).float().mean()
    # Rotation rounds differently by instruction set: a last bit here and there, or one step of a code.
    assert same > (0.7 if dtype == "float32" else 0.99)
    spans = native.last_tokens(1)
    torch.testing.assert_close(native.expected(spans), reference.expected(spans), atol=2e-2, rtol=2e-2)


def test_the_int8_code_of_the_reference_keeps_the_largest_number_and_zero() -> None:
    x = torch.tensor([[0.0, 1.0, -3.0, 2.999], [0.0, 0.0, 0.0, 0.0]])
    codes, scale = quantize_int8(x)
    assert codes[:, 0].tolist() == [128, 128]
    assert codes.min() >= 1
    back = dequantize_int8(codes, scale)
    assert (back - x).abs().max() <= float(scale.float().max()) / 2
    assert torch.equal(back[1], x[1])
