"""The four laptop tiers answering with the real model over one real core."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from inference_core.core_loop import ThreadCoreClient
from inference_core.loading import load_core
from inference_core.protocol import SamplingParams
from tests.tiers.tier_world import chat, collect
from tiers.build import build_tiers
from tiers.catalog_file import load_catalog
from tiers.tier import Tier

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def core(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ThreadCoreClient]:
    cache = tmp_path_factory.mktemp("weights")
    client = ThreadCoreClient(lambda: load_core(load_catalog("laptop").core, cache))
    await client.start()
    yield client
    await client.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tiers(core: ThreadCoreClient) -> AsyncIterator[list[Tier]]:
    built = build_tiers(load_catalog("laptop"), {"cpu": core})
    for tier in built:
        await tier.start()
    yield built
    for tier in built:
        await tier.close()


async def prefix_hits(core: ThreadCoreClient, model: str) -> int:
    return next(m.prefix_hit_tokens for m in (await core.stats()).models if m.name == model)


@pytest.mark.parametrize("number", [1, 2, 4])
async def test_every_tier_knows_the_capital_of_france(tiers: list[Tier], number: int) -> None:
    (answer,), usage = await collect(tiers[number - 1], chat("Name the capital of France.", max_tokens=40))
    assert "Paris" in answer.text
    assert usage.prompt_tokens == tiers[number - 1].count_prompt_tokens(chat("Name the capital of France."))


async def test_tier_3_bills_five_samples_and_says_the_same_when_asked_again(tiers: list[Tier]) -> None:
    request = chat("What is 12 + 30? Reply with just the number.", max_tokens=12)
    (first,), usage = await collect(tiers[2], request)
    (again,), _ = await collect(tiers[2], request)
    assert first.text == again.text
    assert usage.completion_tokens >= 4 * len(first.token_ids) > 0


async def test_tier_4_thinks_within_its_budget_and_answers_on_cached_tokens(
    core: ThreadCoreClient, tiers: list[Tier]
) -> None:
    before = await prefix_hits(core, "smollm2-bf16")
    request = chat("How many legs do three dogs have?", max_tokens=80, reasoning_budget=40)
    (answer,), usage = await collect(tiers[3], request)
    assert answer.reasoning
    assert answer.text
    assert 0 < usage.reasoning_tokens <= 40
    assert usage.reasoning_tokens < usage.completion_tokens <= 80
    # The answer's prefill finds the prompt and the thought, all but the last partial block.
    hits = await prefix_hits(core, "smollm2-bf16") - before
    assert hits >= usage.prompt_tokens + usage.reasoning_tokens - 16


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_a_client_that_leaves_frees_its_blocks(core: ThreadCoreClient, tiers: list[Tier], number: int) -> None:
    request = chat("Tell me about Rome.", max_tokens=500, n=2, sampling=SamplingParams(temperature=1.0))
    async with aclosing(tiers[number - 1].generate(request)) as deltas:  # type: ignore[type-var]
        await anext(deltas)
    assert [(m.running, m.waiting, m.blocks_in_use) for m in (await core.stats()).models] == [(0, 0, 0)] * 2


async def test_three_tiers_share_one_copy_of_the_weights(core: ThreadCoreClient, tiers: list[Tier]) -> None:
    assert list(core.models) == ["smollm2-int4", "smollm2-bf16"]
    assert [t.model for t in tiers[1:]] == ["smollm2-bf16"] * 3
    assert {t.max_context for t in tiers} == {8192}
