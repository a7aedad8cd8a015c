"""Long prompts attended in padded parts equal the float32 reference: by any attention that gives logarithms of its sums
of weights in the interpreter, by cuDNN on a card of compute capability 9.0."""

import threading

import pytest
import torch

from inference_core.kv_cache.layout import KVDtype
from inference_core.triton_kernels import paged_attention as kernels
from inference_core.triton_kernels import prompt_attention
from inference_core.triton_kernels.paged_attention import paged_attention
from inference_core.triton_kernels.prompt_attention import build_prompt_plans, has_prompt_plans
from inference_core.triton_kernels.reference import reference_paged_attention
from tests.inference_core.triton_kernels.conftest import INTERPRETED
from tests.inference_core.triton_kernels.paged_batch import PADDED_ROWS, SENTINEL, PagedBatch, Span

GRAIN = 16
HEADS, KV_HEADS = 8, 2
ON_A_CARD = [(1500, 1500), (8192, 8192), (10240, 2048), (9000, 2500)]


def defined(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention by its definition, masked from the top left as cuDNN's is."""
    group = query.shape[1] // keys.shape[1]
    wide_keys, wide_values = (x.repeat_interleave(group, 1).float() for x in (keys, values))
    scores = query.float() @ wide_keys.transpose(2, 3) * query.shape[-1] ** -0.5
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu(1), -torch.inf)
    return (scores.softmax(-1) @ wide_values).to(query.dtype), scores.logsumexp(-1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 16 and 64 tokens, of at most 128 queries."""
    monkeypatch.setattr(prompt_attention, "PROMPT_GRAIN", GRAIN)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bool]]:
    """As if plans were built; of each attention its queries, its keys and whether it is causal."""
    shapes: list[tuple[int, int, bool]] = []

    def attend(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shapes.append((query.shape[2], keys.shape[2], causal))
        return defined(query, keys, values, causal)

    monkeypatch.setattr(kernels, "has_prompt_plans", lambda *_: True)
    monkeypatch.setattr(kernels, "cudnn_attend", attend)
    return shapes


def paged(
    spans: list[Span],
    device: torch.device,
    *,
    activation: torch.dtype = torch.float32,
    cache: KVDtype = "float32",
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    head_dim: int = 64,
) -> PagedBatch:
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    return PagedBatch(spans, activation=activation, cache=cache, device=device, **sizes)


def attended(case: PagedBatch, prompts: list[int], *, window: int = 0, softcap: float = 0.0) -> torch.Tensor:
    batch, out = case.batch(), case.on_device(case.empty_out())
    tables = [batch.block_offsets, batch.table_start, batch.query_start, batch.context_len]
    options = {"max_query_len": batch.max_query_len, "prompts": prompts, "window": window, "softcap": softcap}
    paged_attention(case.on_device(case.qkv), case.cache_on_device(), *map(case.on_device, tables), out, **options)
    return out.cpu()


def expected(case: PagedBatch, *, window: int = 0, softcap: float = 0.0) -> torch.Tensor:
    """The reference's, in float32 from the same numbers, on the case's device."""
    batch, out = case.batch(), case.on_device(case.empty_out().float())
    tables = (batch.block_offsets, batch.table_start, batch.query_start, batch.context_len)
    options = {"window": window, "softcap": softcap}
    qkv = case.on_device(case.qkv.float())
    reference_paged_attention(qkv, case.cache_on_device(), *map(case.on_device, tables), out, **options)
    return out.cpu()


def all_prompts(spans: list[Span], indices: list[int]) -> list[int]:
    firsts = [sum(queries for _, queries in spans[:index]) for index in range(len(spans))]
    return [n for i in indices for n in (i, firsts[i], spans[i][1], spans[i][0])]


@pytest.mark.skipif(not INTERPRETED, reason="parts of a few tokens; cuDNN's parts have tests below")
@pytest.mark.parametrize("cache", ["float32", "bfloat16", "fp8"])
@pytest.mark.parametrize(
    ("spans", "prompts"),
    [
        ([(16, 16)], [0]),
        ([(21, 21)], [0]),
        ([(150, 150)], [0]),
        ([(64, 16)], [0]),
        ([(64 + 16 + 16 + 7 + 20, 20)], [0]),
        ([(40, 1), (50, 20), (33, 1)], [1]),
        ([(30, 30), (90, 21)], [0, 1]),
        ([(5, 5), (40, 40), (17, 1), (20, 4), (100, 33)], [1, 4]),
    ],
)
def test_prompts_in_parts_equal_the_reference(
    spans: list[Span], prompts: list[int], cache: KVDtype, device: torch.device, small: None, plans: list[object]
) -> None:
    """Padding in front and behind, contexts of several parts, other sequences before, between and behind prompts."""
    case = paged(spans, device, cache=cache)
    got = attended(case, all_prompts(spans, prompts))
    assert plans
    assert (got[-PADDED_ROWS:] == SENTINEL).all(), "rows of padding were written"
    torch.testing.assert_close(got, expected(case), atol=2e-5, rtol=2e-5)


@pytest.mark.skipif(not INTERPRETED, reason="parts of a few tokens; cuDNN's parts have tests below")
def test_plans_are_shared_by_lengths_up_to_the_same_multiple(
    device: torch.device, small: None, plans: list[tuple[int, int, bool]]
) -> None:
    """So few are needed: of a causal part as long as its queries, and of parts of two sizes."""
    spans = [(16 + 64 + 16 + queries, queries) for queries in (17, 25, 32)]
    attended(paged(spans, device), all_prompts(spans, [0, 1, 2]))
    assert plans == 3 * [(32, 32, True), (32, 64, False), (32, 16, False), (32, 16, False)]


@pytest.mark.skipif(not INTERPRETED, reason="parts of a few tokens; cuDNN's parts have tests below")
def test_more_queries_than_are_attended_at_once_follow_their_own_context(
    device: torch.device, small: None, plans: list[tuple[int, int, bool]]
) -> None:
    spans = [(200, 200)]
    case = paged(spans, device)
    torch.testing.assert_close(
        attended(case, all_prompts(spans, [0]))[:200], expected(case)[:200], atol=2e-5, rtol=2e-5
    )
    assert [(queries, causal) for queries, _, causal in plans] == [(128, True), (80, True), (80, False), (80, False)]


@pytest.mark.parametrize("options", [{"window": 8}, {"softcap": 3.0}])
def test_a_window_or_a_cap_leaves_prompts_to_the_kernel(
    options: dict[str, float], device: torch.device, plans: list[object]
) -> None:
    spans = [(40, 40)]
    case = paged(spans, device)
    torch.testing.assert_close(attended(case, all_prompts(spans, [0]), **options), expected(case, **options))
    assert not plans


def test_without_plans_the_kernel_attends_all(device: torch.device) -> None:
    spans = [(40, 40), (70, 1)]
    case = paged(spans, device)
    assert not has_prompt_plans(case.on_device(case.qkv), HEADS, KV_HEADS, 64)
    torch.testing.assert_close(attended(case, all_prompts(spans, [0])), expected(case), atol=2e-5, rtol=2e-5)


@pytest.fixture
def card(device: torch.device) -> torch.device:
    if INTERPRETED or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a card of compute capability 9.0")
    return device


@pytest.mark.parametrize("activation", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("span", ON_A_CARD)
@pytest.mark.parametrize("cache", ["bfloat16", "fp8"])
def test_cudnn_equals_the_reference(span: Span, cache: KVDtype, activation: torch.dtype, card: torch.device) -> None:
    case = paged([span, (40, 1)], card, activation=activation, cache=cache, head_dim=128)
    assert build_prompt_plans(case.on_device(case.qkv), HEADS, KV_HEADS, 128, 8192)
    got, want = attended(case, all_prompts([span], [0])).float(), expected(case)
    assert (got[-PADDED_ROWS:] == SENTINEL).all(), "rows of padding were written"
    got, want = got[:-PADDED_ROWS], want[:-PADDED_ROWS]
    assert (got - want).norm() < 4e-3 * want.norm()
    assert ((got - want).norm(dim=1) / want.norm(dim=1)).max() < 1e-2


def test_plans_belong_to_the_thread_that_built_them(card: torch.device) -> None:
    qkv = torch.empty(0, (HEADS + 2 * KV_HEADS) * 64, dtype=torch.bfloat16, device=card)
    assert build_prompt_plans(qkv, HEADS, KV_HEADS, 64, 2048)
    found: list[bool] = [has_prompt_plans(qkv, HEADS, KV_HEADS, 64)]
    thread = threading.Thread(target=lambda: found.append(has_prompt_plans(qkv, HEADS, KV_HEADS, 64)))
    thread.start()
    thread.join()
    assert found == [True, False]


def test_other_activations_and_head_sizes_have_no_plans(card: torch.device) -> None:
    for dtype, head_dim in ((torch.float32, 64), (torch.bfloat16, 80)):
        qkv = torch.empty(0, (HEADS + 2 * KV_HEADS) * head_dim, dtype=dtype, device=card)
        assert not build_prompt_plans(qkv, HEADS, KV_HEADS, head_dim, 2048)
