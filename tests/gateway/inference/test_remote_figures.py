"""Tiers on other servers have what tiers in process have: gaps between tokens, a speed, a queue, and its effects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.base.settings import Settings
from gateway.telemetry.alert_rules import RULES, alert_figures
from gateway.telemetry.alerts import keep_looking
from tests.gateway.telemetry.alert_desk import alert_url
from tests.polling import eventually
from tests.support.app import RunningGateway, running_gateway
from tests.support.upstream import Call, LoopbackServer, remote_catalog
from tiers.remote.remote_tier import RemoteTier
from tiers.tier import Tier

WORDS = ("One", " two", " three", " four")
MANY = 500_000


@asynccontextmanager
async def serving(
    settings: Settings, folder: Path, *servers: LoopbackServer, kind: str = "vllm"
) -> AsyncIterator[RunningGateway]:
    """A gateway whose tier 1 is the first of `servers`, and all others the last."""
    text = remote_catalog(servers[-1].base_url).replace('model = "upstream"', f'model = "upstream"\nkind = "{kind}"')
    file = folder / "catalog.toml"
    file.write_text(text.replace(servers[-1].base_url, servers[0].base_url, 1))
    own = msgspec.structs.replace(settings, catalog=str(file), data_dir=str(folder / "data"))
    async with running_gateway(own, scripted=False) as gateway:
        yield gateway


async def samples(gateway: RunningGateway) -> dict[str, float]:
    page = (await gateway.http.get("/metrics")).text
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.labels.get("tier", "1") == "1" and "le" not in sample.labels
    }


def queued(waiting: int) -> Any:
    """vLLM's page: so many wait, and with each look one answer more is finished."""
    finished = 0

    async def look(call: Call) -> None:
        nonlocal finished
        finished += 1
        gauges = f"vllm:num_requests_running 8\nvllm:num_requests_waiting {waiting}\n"
        await call.begin(200, "text/plain; version=0.0.4")
        await call.send(f"{gauges}vllm:request_success_total {finished}\n".encode())

    return look


async def say_hi(call: Call) -> None:
    await call.say("Hi.")


async def test_gaps_and_tokens_per_second_of_a_remote_stream_are_metrics(settings: Settings, tmp_path: Path) -> None:
    read = asyncio.Semaphore(1)

    async def say(call: Call) -> None:
        await call.begin()
        for word in WORDS:
            await read.acquire()
            await call.chunk(word)
        await call.end({"prompt_tokens": 9, "completion_tokens": 8})

    async with LoopbackServer(say) as server, serving(settings, tmp_path, server) as gateway:
        stream = await gateway.openai.chat.completions.create(
            model="tier-1", messages=[{"role": "user", "content": "Count."}], stream=True
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                read.release()
        found = await samples(gateway)
        (tier,) = (await gateway.http.get("/admin/api/overview")).json()["tiers"][:1]
    assert found["vllm:inter_token_latency_seconds_count"] == len(WORDS) - 1
    assert found["aio_decode_tokens_per_second_count"] == found["vllm:time_per_output_token_seconds_count"] == 1
    assert found["aio_decode_tokens_per_second_sum"] > 0
    assert tier["tokens_per_second_p50"] > 0
    assert tier["itl_seconds"]["p50"] > 0


async def test_a_deadline_keeps_a_request_from_a_server_with_a_long_queue(settings: Settings, tmp_path: Path) -> None:
    async with LoopbackServer(say_hi) as busy, LoopbackServer(say_hi) as idle:
        busy.looked_at, idle.looked_at = queued(MANY), queued(0)
        async with serving(settings, tmp_path, busy, idle) as gateway:
            for _ in range(2):
                for tier in gateway.serving.routing.served.tiers.values():
                    await cast(RemoteTier, tier.active_tier()).look_at_queue()
            body = {"model": "auto", "messages": [{"role": "user", "content": "Say hello."}]}
            whenever = await gateway.http.post("/v1/chat/completions", json=body)
            soon = await gateway.http.post(
                "/v1/chat/completions", json=body, headers={"x-aio-deadline-ms": "1000", "cache-control": "no-store"}
            )
            shown = await samples(gateway)
    assert (whenever.headers["x-aio-tier"], len(busy.calls)) == ("1", 1)
    assert (soon.headers["x-aio-tier"], len(idle.calls)) == ("2", 1)
    assert shown["aio_remote_waiting"] == MANY
    assert shown["aio_tier_predicted_wait_seconds"] > 1


async def test_a_deadline_keeps_a_request_from_a_server_that_tells_nothing_and_whose_stream_is_late(
    settings: Settings, tmp_path: Path
) -> None:
    now, go_on = 0.0, asyncio.Event()

    async def say(call: Call) -> None:
        nonlocal now
        if call.body.get("stream"):
            if now:
                await go_on.wait()
            now += 0.5
        await say_hi(call)

    body = {"model": "auto", "messages": [{"role": "user", "content": "Say hello."}]}
    stream = body | {"model": "tier-1", "stream": True}
    soon = {"x-aio-deadline-ms": "1000", "cache-control": "no-store"}
    async with (
        LoopbackServer(say) as busy,
        LoopbackServer(say) as idle,
        serving(settings, tmp_path, busy, idle, kind="openai") as gateway,
    ):
        tier = cast(RemoteTier, gateway.serving.routing.served.tiers[1].active_tier())
        tier._clock = lambda: now
        await gateway.http.post("/v1/chat/completions", json=stream)
        before = await gateway.http.post("/v1/chat/completions", json=body, headers=soon)
        late = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=stream, headers=soon))
        await eventually(lambda: len(busy.calls) == 3)
        now = 8.5
        load = tier.load()
        after = await gateway.http.post("/v1/chat/completions", json=body, headers=soon)
        go_on.set()
        await late
    assert (load.waiting, load.predicted_wait_seconds) == (1, 7.5)
    assert [response.headers["x-aio-tier"] for response in (before, after)] == ["1", "2"]
    assert len(idle.calls) == 1


def test_a_queue_elsewhere_counts_once_in_the_alerts_however_many_tiers_share_the_server() -> None:
    well = SimpleNamespace(healthy=True)
    found: tuple[dict[str, int], ...] = ({"a": 501}, {"a": 400, "b": 2}, {})
    tiers = [SimpleNamespace(queues=lambda one=one: one, load=lambda: well) for one in found]
    assert alert_figures({}, {}, cast(list[Tier], tiers), [])["waiting"] == 503
    assert alert_figures({}, {}, cast(list[Tier], tiers[2:]), [])["waiting"] is None


@pytest.mark.usefixtures("ready_alert_sender")
async def test_channels_and_overview_tell_of_a_queue_elsewhere(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = next(rule for rule in RULES if rule.name == "AioQueueVeryLong")
    at_once = msgspec.structs.replace(rule, for_seconds=0.0)
    monkeypatch.setattr("gateway.telemetry.alerts.keep_looking", partial(keep_looking, rules=[at_once]))
    heard = asyncio.Queue[dict[str, Any]]()

    async def hear(call: Call) -> None:
        await call.reply(202, {"status": "success"})
        heard.put_nowait(call.body)

    async with LoopbackServer(hear) as desk, LoopbackServer(hear) as server:
        server.looked_at = queued(MANY)
        telling = msgspec.structs.replace(settings, alert_urls=alert_url(desk), alert_poll_seconds=0.02)
        async with serving(telling, tmp_path, server) as gateway:
            event = await asyncio.wait_for(heard.get(), 120)
            live = gateway.operations.live
            for seconds in (0.0, rule.for_seconds, rule.for_seconds + 10):
                live._clock = partial(float, seconds)
                await live.sample()
            shown = (await live.overview()).alerts
    assert event["title"] == "AIO: AioQueueVeryLong (critical)"
    assert f"({MANY:.4g})" in event["message"]
    assert {alert.name: alert.value for alert in shown} == {"AioQueueLong": MANY, "AioQueueVeryLong": MANY}
