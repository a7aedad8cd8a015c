"""The core's activity in metrics, usage, stats and records, end to end over HTTP."""

import asyncio
import threading
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from gateway.base.settings import Settings
from tests.polling import eventually
from tests.support.app import RunningGateway, StartApp
from tests.support.core import laptop_hash_core
from tiers.errors import TierUnavailableError

pytestmark = pytest.mark.asyncio(loop_scope="module")
INT4 = "smollm2-int4"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(
    tmp_path_factory: pytest.TempPathFactory, paused: threading.Event, module_app: StartApp
) -> RunningGateway:
    """The laptop catalogue's tiers on a core of hash models."""
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=False, drain_seconds=5)
    return await module_app(settings, core=laptop_hash_core(settings, paused), scripted=False)


@pytest.fixture(scope="module")
def paused() -> threading.Event:
    """While it is set, the core makes no step."""
    return threading.Event()


def question(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def scraped(aio: RunningGateway, **labels: str) -> dict[str, float]:
    """The samples of one scrape that carry `labels`, by name."""
    text = (await aio.http.get("/metrics")).text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {s.name: s.value for s in samples if labels.items() <= s.labels.items()}


async def ask(aio: RunningGateway, text: str, **fields: Any) -> Any:
    fields = {"model": "tier-1", "max_tokens": 4, "temperature": 0} | fields
    return await aio.openai.chat.completions.create(messages=question(text), **fields)


async def test_cached_prompt_tokens_are_the_same_in_usage_streams_metrics_stats_and_the_record(
    aio: RunningGateway,
) -> None:
    text = "A long system prompt that many requests share, word for word, again and again. " * 8
    before = await scraped(aio, model_name=INT4)
    stats_before = (await aio.http.get("/v1/admin/stats")).json()["tiers"][0]
    whole = [await ask(aio, text) for _ in range(2)]
    stream = await ask(aio, text, stream=True, stream_options={"include_usage": True})
    usages = [answer.usage for answer in whole] + [[chunk async for chunk in stream][-1].usage]
    prompt = usages[0].prompt_tokens
    cached = [usage.prompt_tokens_details.cached_tokens for usage in usages]
    full_blocks = (prompt - 1) // 16 * 16
    assert cached == [0, full_blocks, full_blocks]

    after = await scraped(aio, model_name=INT4)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("vllm:prefix_cache_queries_total") == 3 * prompt
    assert grown("vllm:prefix_cache_hits_total") == 2 * full_blocks
    assert grown("vllm:prompt_tokens_total") == 3 * prompt
    tier = (await aio.http.get("/v1/admin/stats")).json()["tiers"][0]
    assert tier["cached_tokens"] - stats_before["cached_tokens"] == 2 * full_blocks
    assert tier["prefix_hit_rate"] == pytest.approx(tier["cached_tokens"] / tier["prompt_tokens"])
    await aio.serving.records.recorded(whole[1].id)  # type: ignore[attr-defined]
    record = (await aio.http.get(f"/v1/requests/{whole[1].id}")).json()
    assert record["cached_tokens"] == full_blocks
    by_tier = await scraped(aio, tier="1")
    assert by_tier["aio_cached_tokens_total"] == tier["cached_tokens"]
    assert by_tier["aio_prompt_tokens_total"] == tier["prompt_tokens"]


async def test_prefixes_are_shared_between_the_tiers_of_one_model(aio: RunningGateway) -> None:
    text = "Tiers two and four think with the same weights, and the first words of this are long enough. " * 3
    await ask(aio, text, model="tier-2")
    again = await ask(aio, text, model="tier-4", max_tokens=70)
    assert again.usage.prompt_tokens_details.cached_tokens > 16
    other_model = await ask(aio, text, model="tier-1")
    # Every chat starts with the template's own words.
    assert other_model.usage.prompt_tokens_details.cached_tokens == 16


async def test_queueing_prefill_and_decoding_times_are_measured_per_model(aio: RunningGateway) -> None:
    await ask(aio, "How long does this take?", max_tokens=8)
    samples = await scraped(aio, model_name=INT4)
    stages = ("request_queue_time", "request_prefill_time", "request_decode_time")
    for stage in (*stages, "time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        assert samples[f"vllm:{stage}_seconds_count"] >= 1, stage
    spent = sum(samples[f"vllm:{stage}_seconds_sum"] for stage in stages)
    assert 0 < spent <= samples["vllm:e2e_request_latency_seconds_sum"]


async def test_steps_limits_and_knobs_are_metrics(aio: RunningGateway) -> None:
    await ask(aio, "Anything.")
    samples = await scraped(aio, model_name=INT4)
    assert samples["aio_step_seconds_count"] == samples["aio_step_sequences_count"] >= 1
    assert samples["aio_step_seconds_sum"] > 0
    assert (samples["aio_token_budget"], samples["aio_prefill_chunk"], samples["aio_seats"]) == (512, 256, 64)
    assert samples["aio_tuner_decisions_total"] == samples["aio_queue_alert"] == 0
    assert (await scraped(aio, model_name=INT4, knob="max_waiting"))["aio_knob"] == 1000
    await aio.http.patch("/v1/admin/knobs/core", json={"max_waiting": 900, "prefix_caching": False})
    assert (await scraped(aio, model_name=INT4, knob="max_waiting"))["aio_knob"] == 900
    assert (await scraped(aio, model_name=INT4, knob="prefix_caching"))["aio_knob"] == 0
    await aio.http.patch("/v1/admin/knobs/core", json={"max_waiting": None, "prefix_caching": None})


async def test_the_knobs_show_what_the_tuner_does_and_which_batch_sizes_would_suit(aio: RunningGateway) -> None:
    await asyncio.gather(*(ask(aio, f"Question {number}", max_tokens=30) for number in range(3)))
    shown = (await aio.http.get("/v1/admin/knobs/core")).json()
    assert shown["tuning"][INT4]["max_num_batched_tokens"] == 512
    assert shown["tuning"][INT4]["base_seconds"] >= 0
    assert shown["preferred_batch_sizes"][INT4][0] >= 1


async def test_the_predicted_wait_of_every_tier_is_a_metric_and_in_the_recorded_decision(aio: RunningGateway) -> None:
    answer = await ask(aio, "Who waits?")
    await aio.serving.records.recorded(answer.id)  # type: ignore[attr-defined]
    inputs = (await aio.http.get(f"/v1/requests/{answer.id}")).json()["decision"]["inputs"]
    assert len(inputs["predicted_waits"]) == 4
    assert all(wait >= 0 for wait in inputs["predicted_waits"])
    for tier in "1234":
        assert (await scraped(aio, tier=tier))["aio_tier_predicted_wait_seconds"] >= 0


async def test_a_queue_past_its_threshold_alerts_and_a_full_one_refuses_with_retry_after(
    aio: RunningGateway, paused: threading.Event
) -> None:
    await aio.http.patch("/v1/admin/knobs/core", json={"alert_waiting": 1, "max_waiting": 2, "model": INT4})
    paused.set()
    waiting = [asyncio.create_task(ask(aio, f"I wait, {number}.", max_tokens=1)) for number in range(2)]

    async def both_wait() -> bool:
        return (await scraped(aio, model_name=INT4))["vllm:num_requests_waiting"] == 2

    await eventually(both_wait)
    assert (await scraped(aio, model_name=INT4))["aio_queue_alert"] == 1
    body = {"model": "tier-1", "messages": question("I am too many.")}
    refused = await aio.http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "tier_unavailable"
    assert "limit of 2" in refused.json()["error"]["message"]
    paused.clear()
    assert [answer.choices[0].finish_reason for answer in await asyncio.gather(*waiting)] == ["length"] * 2
    assert (await scraped(aio, model_name=INT4))["aio_queue_alert"] == 0
    await aio.http.patch("/v1/admin/knobs/core", json={"alert_waiting": None, "max_waiting": None})


@pytest.mark.parametrize(("wait", "said"), [(0.0, "1"), (7.2, "8"), (1e9, "60")])
async def test_retry_after_is_the_predicted_wait_within_reason(gateway: RunningGateway, wait: float, said: str) -> None:
    error = TierUnavailableError("1000 sequences wait")
    error.retry_after_seconds = wait
    gateway.tier(4).fail_at, gateway.tier(4).error = 0, error
    body = {"model": "tier-4", "messages": question("Hello?")}
    refused = await gateway.http.post("/v1/chat/completions", json=body)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, said)
