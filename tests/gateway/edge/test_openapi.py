"""What operators use: probes, metrics, documentation, and a start and stop that lose nothing."""

import asyncio
import json
import logging

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import func, select

from gateway.base.settings import Settings
from inference_core.io import background_tasks
from inference_core.io.background_tasks import repeated
from migrations.tables.requests import requests
from tests.gateway.inference.api.test_disconnects import only_record
from tests.polling import eventually
from tests.support.app import RunningGateway, running_gateway
from tiers.tier import TierLoad

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say the secret word."}]


async def test_a_serving_gateway_is_alive_and_ready(gateway: RunningGateway) -> None:
    assert (await gateway.http.get("/health/live")).json() == {"status": "ok"}
    ready = await gateway.http.get("/health/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ok"})


async def test_a_gateway_without_a_healthy_tier_is_alive_but_not_ready(gateway: RunningGateway) -> None:
    for tier in gateway.tiers:
        tier.health = TierLoad(healthy=False)
    assert (await gateway.http.get("/health/live")).status_code == 200
    ready = await gateway.http.get("/health/ready")
    assert ready.status_code == 503
    assert ready.json()["problems"] == {"tiers": "no tier takes requests"}


async def test_a_background_task_that_fails_degrades_the_gateway_and_goes_on(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_SECONDS", 0.0)
    failed, goes_on = False, asyncio.Event()

    async def work() -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise OverflowError("a secret")
        goes_on.set()
        await asyncio.sleep(3600)

    task = repeated(work, "watch")
    await asyncio.wait_for(goes_on.wait(), 120)
    ready = await gateway.http.get("/health/ready")
    task.cancel()
    await asyncio.wait([task])
    problems = {"task watch": "failed (OverflowError); the log has more"}
    assert (ready.status_code, ready.json()) == (200, {"status": "degraded", "problems": problems})
    assert (await gateway.http.get("/health/ready")).json() == {"status": "ok"}


async def test_metrics_are_in_prometheus_format_under_vllms_names(gateway: RunningGateway) -> None:
    await gateway.openai.chat.completions.create(model="tier-2", messages=HELLO)
    await gateway.openai.chat.completions.create(model="auto", messages=HELLO)
    answer = await gateway.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    for name in (
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_success",
        "aio_requests",
        "aio_cost_usd",
        "aio_saving_ratio",
        "aio_ledger_lag_records",
        "aio_journal_lag_seconds",
        "aio_route_seconds",
        "aio_tier_healthy",
    ):
        assert families[name].samples, name
    served = {
        sample.labels["tier"]: sample.value
        for sample in families["aio_requests"].samples
        if sample.name.endswith("_total")
    }
    assert served["2"] >= 1
    gaps = {sample.labels["model_name"]: sample for sample in families["vllm:inter_token_latency_seconds"].samples}
    assert "smollm2-bf16" in gaps


async def test_the_saving_is_counted_against_the_strongest_tier(gateway: RunningGateway) -> None:
    answer = await gateway.openai.chat.completions.create(model="tier-1", messages=HELLO)
    assert answer.usage is not None
    record = await only_record(gateway, answer.id)
    price = gateway.serving.routing.served.spec(gateway.serving.routing.served.strongest).price
    micro = (
        answer.usage.prompt_tokens * price.input_usd_per_million
        + answer.usage.completion_tokens * price.output_usd_per_million
    )
    assert record.baseline_cost_usd == pytest.approx(micro / 1e6)
    families = {
        family.name: family for family in text_string_to_metric_families((await gateway.http.get("/metrics")).text)
    }
    totals = [sample for sample in families["aio_requests"].samples if sample.name.endswith("_total")]

    async def stored() -> bool:
        async with gateway.serving.database.connect() as connection:
            return (await connection.scalar(select(func.count()).select_from(requests))) == sum(s.value for s in totals)

    await eventually(stored)
    async with gateway.serving.database.connect() as connection:
        sums = select(func.sum(requests.c.cost_usd), func.sum(requests.c.baseline_cost_usd))
        cost, baseline = (await connection.execute(sums)).one()
    assert families["aio_saving_ratio"].samples[0].value == pytest.approx(1 - cost / baseline)


async def test_the_documentation_page_needs_no_other_host(gateway: RunningGateway) -> None:
    page = await gateway.http.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "/v1/chat/completions" in page.text
    assert "temperature" in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert "<script" not in page.text


async def test_the_schema_describes_the_request_bodies(gateway: RunningGateway) -> None:
    schema = (await gateway.http.get("/docs/openapi.json")).json()
    body = schema["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["model", "messages"]
    assert {"temperature", "max_tokens", "top_k"} <= set(body["properties"])
    assert "$ref" not in json.dumps(body)


async def test_logs_hold_no_prompt_and_no_answer(gateway: RunningGateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    gateway.tier(1).fail_at = 0
    gateway.classifier.error = RuntimeError("broken")
    await gateway.openai.chat.completions.create(model="auto", messages=HELLO)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith(("gateway", "quality"))]
    assert ours
    assert not any("secret word" in line or "Hello there" in line for line in ours)


async def test_a_shutdown_waits_for_the_answer_under_way_and_records_it(settings: Settings) -> None:
    async with running_gateway(settings) as gateway:
        gateway.tier(1).hold_at = 2
        asking = asyncio.create_task(gateway.openai.chat.completions.create(model="tier-1", messages=HELLO))
        await gateway.tier(1).holding.wait()
        draining = asyncio.create_task(gateway.serving.service.drain(30))
        await asyncio.sleep(0)
        refused = await gateway.http.post("/v1/chat/completions", json={"model": "tier-1", "messages": HELLO})
        assert refused.status_code == 503
        gateway.tier(1).go.set()
        assert await draining == 0
        request_id = (await asking).id
    async with running_gateway(settings) as again:
        shown = await again.http.get(f"/v1/requests/{request_id}")
        assert shown.json()["answer"] == "Hello there, how are you?"


async def test_a_shutdown_that_cannot_wait_longer_still_records_the_stream(settings: Settings) -> None:
    async with running_gateway(settings, grace_seconds=0) as gateway:
        tier = gateway.tier(1)
        tier.hold_at = 1
        stream = await gateway.openai.chat.completions.create(model="tier-1", messages=HELLO, stream=True)
        await tier.holding.wait()
    assert tier.closed_early == 1
    async with running_gateway(settings) as again:
        shown = await again.http.get(f"/v1/requests/{stream.response.headers['x-aio-decision-id']}")
        assert (shown.json()["status"], shown.json()["answer"]) == ("aborted", "Hello")


async def test_tiers_are_started_before_and_closed_after_serving(settings: Settings) -> None:
    async with running_gateway(settings) as gateway:
        assert all(tier.started for tier in gateway.tiers)
    assert not any(tier.started for tier in gateway.tiers)


async def test_a_database_that_is_away_does_not_stop_the_service(settings: Settings) -> None:
    away = Settings(data_dir=settings.data_dir, database_url="postgresql://missing@127.0.0.1:1/none", monitor=False)
    async with running_gateway(away) as gateway:
        answer = await gateway.openai.chat.completions.create(model="auto", messages=HELLO)
        await gateway.serving.records.recorded(answer.id)  # type: ignore[attr-defined]
        shown = await gateway.http.get(f"/v1/requests/{answer.id}")
        assert shown.json()["status"] == "ok"
    async with running_gateway(settings) as back:
        assert (await back.http.get(f"/v1/requests/{answer.id}")).status_code == 200


class TestKeys:
    """Callers and their keys."""

    KEY, OTHER = "test-ann-cf51f678d59fe375144ae295aaa5ecaa", "test-bob-1910d7b688c69af38d5326153c1c1eff"

    @pytest.fixture
    def guarded(self, settings: Settings) -> Settings:
        return Settings(data_dir=settings.data_dir, monitor=False, api_keys=f"ann={self.KEY},bob={self.OTHER}")

    async def test_a_key_is_needed_and_its_owner_is_recorded(self, guarded: Settings) -> None:
        async with running_gateway(guarded) as gateway:
            body = {"model": "auto", "messages": HELLO}
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {self.KEY}"}):
                answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
            ann = {"authorization": f"Bearer {self.KEY}"}
            answer = await gateway.http.post("/v1/chat/completions", json=body, headers=ann)
            record = await self.show(gateway, answer, ann)
            assert record.json()["key_id"] == "ann"
            assert gateway.tier(1).requests[0].salt == "ann"
            assert self.KEY not in record.text
            others = await self.show(gateway, answer, {"authorization": f"Bearer {self.OTHER}"})
            assert others.status_code == 404
            assert (await gateway.http.get("/health/ready")).status_code == 200

    async def show(self, gateway: RunningGateway, answer: httpx.Response, headers: dict[str, str]) -> httpx.Response:
        request_id = answer.headers["x-aio-decision-id"]
        await gateway.serving.records.recorded(request_id)  # type: ignore[attr-defined]
        return await gateway.http.get(f"/v1/requests/{request_id}", headers=headers)
