"""A gateway without tiers and a worker with them, in one process, over a real Redis: every API, whole and streamed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
import pytest_asyncio

from gateway.base.settings import Settings, SettingsError
from gateway.http import worker_app
from tests.polling import eventually
from tests.support.app import RunningGateway, running_gateway
from tests.support.database import RedisServer
from tiers.errors import TierContextError

SAID = "Hello there, how are you?"
CHAT = {"model": "tier-1", "messages": [{"role": "user", "content": "Say hello."}]}


class Site(NamedTuple):
    """A gateway that puts, and a worker that takes."""

    gateway: RunningGateway
    worker: RunningGateway
    redis: RedisServer


@pytest_asyncio.fixture
async def start(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def started(**fields: Any) -> Site:
            usual = Settings(
                data_dir=str(tmp_path / "gateway"), monitor=False, drain_seconds=5, redis_url=redis_server.url,
                chat_queue="put", **{"chat_queue_lease_seconds": 1.0} | fields,
            )  # fmt: skip
            own = msgspec.structs.replace(usual, data_dir=str(tmp_path / "worker"), chat_queue="take")
            worker = await stack.enter_async_context(running_gateway(own, http=worker_app))
            gateway = await stack.enter_async_context(running_gateway(usual))
            return Site(gateway, worker, redis_server)

        yield started


@pytest_asyncio.fixture
async def site(start: Any) -> Site:
    made: Site = await start()
    return made


async def events(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream."""
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def texts(node: Any) -> str:
    """All texts of deltas in an event."""
    if isinstance(node, list):
        return "".join(map(texts, node))
    if not isinstance(node, dict):
        return ""
    own = node.get("content") if isinstance(node.get("content"), str) else node.get("text")
    return own if isinstance(own, str) else "".join(map(texts, node.values()))


PATHS = {
    "chat": ("/v1/chat/completions", CHAT),
    "messages": ("/v1/messages", {**CHAT, "max_tokens": 50}),
    "responses": ("/v1/responses", {"model": "tier-1", "input": "Say hello."}),
    "gemini": (
        "/v1beta/models/tier-1:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": "Say hello."}]}]},
    ),
}


@pytest.mark.parametrize("api", PATHS)
async def test_a_whole_answer_comes_through_the_queue_in_every_api(site: Site, api: str) -> None:
    path, body = PATHS[api]
    answer = await site.gateway.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert SAID in answer.text
    assert len(site.worker.tier(1).requests) == 1
    assert site.gateway.tier(1).requests == []


@pytest.mark.parametrize("api", PATHS)
async def test_a_stream_brings_every_word_in_order_in_every_api(site: Site, api: str) -> None:
    path, body = PATHS[api]
    if api == "gemini":
        path, more = path.replace("generateContent", "streamGenerateContent?alt=sse"), {}
    else:
        more = {"stream": True}
    every = await events(site.gateway.http, path, body | more)
    if api == "chat":
        said = [texts(event["choices"]) for event in every]
    elif api == "messages":
        said = [event["delta"].get("text", "") for event in every if event["type"] == "content_block_delta"]
    elif api == "responses":
        said = [event["delta"] for event in every if event["type"] == "response.output_text.delta"]
    else:
        said = [texts(event["candidates"]) for event in every]
    assert "".join(said) == SAID
    assert sum(map(bool, said)) > 1


async def test_the_answer_is_recorded_and_billed_as_its_worker_counted(site: Site) -> None:
    answer = (await site.gateway.http.post("/v1/chat/completions", json=CHAT)).json()
    used = site.worker.tier(1).usage(site.worker.tier(1).requests[0])
    assert answer["usage"]["completion_tokens"] == used.completion_tokens
    assert answer["usage"]["prompt_tokens"] == used.prompt_tokens
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == used.cached_tokens


async def test_tools_choices_and_probabilities_cross_the_queue(site: Site) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    body = {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 1, "tools": [tool], "temperature": 0.5, "seed": 7}
    answer = (await site.gateway.http.post("/v1/chat/completions", json=body)).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == [SAID, SAID]
    assert [part["logprob"] for part in answer["choices"][1]["logprobs"]["content"]] == [-0.25] * 5
    (asked,) = site.worker.tier(1).requests
    assert asked.tooling is not None
    assert (asked.tooling.tools[0].name, asked.sampling.seed, asked.n) == ("look", 7, 2)


async def test_an_error_of_a_tier_is_the_gateways_own(site: Site) -> None:
    for tier in site.worker.tiers:
        tier.fail_at, tier.error = 0, TierContextError("too long", "messages", prompt_tokens=300, max_context=256)
    answer = await site.gateway.http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "300 tokens" in answer.json()["error"]["message"]


async def test_a_caller_that_leaves_frees_the_worker_and_is_billed(site: Site) -> None:
    tier = site.worker.tier(1)
    tier.hold_at = 2
    async with site.gateway.http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        await tier.holding.wait()
    await tier.ended.wait()
    assert tier.closed_early == 1
    await eventually(lambda: _none_running(site))


async def _none_running(site: Site) -> bool:
    return not site.gateway.serving.service.in_flight


async def test_a_waiting_chat_of_a_caller_that_leaves_is_never_started(start: Any) -> None:
    site = await start(chat_queue_concurrency=1)
    tier = site.worker.tier(1)
    tier.hold_at = 0
    first = asyncio.ensure_future(site.gateway.http.post("/v1/chat/completions", json=CHAT))
    await tier.holding.wait()
    second = asyncio.ensure_future(site.gateway.http.post("/v1/chat/completions", json=CHAT))
    await eventually(lambda: _waits(site, 1))
    second.cancel()
    await eventually(lambda: _waits(site, 0))
    tier.go.set()
    assert (await first).status_code == 200
    assert len(tier.requests) == 1


async def _waits(site: Site, number: int) -> bool:
    text = (await site.gateway.http.get("/metrics")).text
    return f'aio_chat_queue_waiting{{tier="tier-1"}} {float(number)}' in text


@pytest.mark.parametrize("api", PATHS)
async def test_a_full_queue_refuses_with_retry_after_in_every_api(start: Any, api: str) -> None:
    site = await start(chat_queue_concurrency=1, chat_queue_waiting=1)
    for tier in site.worker.tiers:
        tier.hold_at = 0
    held = [asyncio.ensure_future(site.gateway.http.post("/v1/chat/completions", json=CHAT))]
    await site.worker.tier(1).holding.wait()
    for number in (1, 2, 3, 4):
        body = {**CHAT, "model": f"tier-{number}"}
        held.append(asyncio.ensure_future(site.gateway.http.post("/v1/chat/completions", json=body)))
    await eventually(lambda: _waits(site, 1))
    path, body = PATHS[api]
    answer = await site.gateway.http.post(path, json=body)
    # Anthropic has a status of its own for it.
    assert answer.status_code == (529 if api == "messages" else 503)
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert "wait in its queue" in answer.json()["error"]["message"]
    for tier in site.worker.tiers:
        tier.go.set()
    assert {(await each).status_code for each in held} == {200}


async def test_redis_away_refuses_new_chats_at_once_and_a_running_one_goes_on_when_it_is_back(site: Site) -> None:
    tier = site.worker.tier(1)
    tier.hold_at = 2
    running = asyncio.ensure_future(site.gateway.http.post("/v1/chat/completions", json=CHAT))
    await tier.holding.wait()
    tier.hold_at = None
    site.redis.stop()
    answer = await site.gateway.http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "tier_unavailable"
    site.redis.start()
    tier.go.set()
    # This Redis keeps nothing on disk: the chat was forgotten, and is asked again.
    assert (await running).status_code == 200
    assert texts((await running).json()["choices"]) == SAID


async def test_redis_away_for_longer_than_a_lease_ends_running_chats_with_a_typed_error(site: Site) -> None:
    tier = site.worker.tier(1)
    tier.hold_at = 2
    running = asyncio.ensure_future(site.gateway.http.post("/v1/chat/completions", json=CHAT))
    await tier.holding.wait()
    site.redis.stop()
    answer = await running
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "tier_unavailable")
    assert "Redis does not answer" in answer.json()["error"]["message"]


async def test_a_tier_that_no_worker_has_is_not_asked(start: Any, redis_server: RedisServer, tmp_path: Path) -> None:
    alone = Settings(
        data_dir=str(tmp_path / "alone"), monitor=False, drain_seconds=5, redis_url=redis_server.url, chat_queue="put"
    )
    async with running_gateway(alone) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 503


def test_a_queue_without_redis_is_refused_at_the_start(tmp_path: Path) -> None:
    from gateway.app import create_app

    with pytest.raises(SettingsError, match="AIO_REDIS_URL"):
        create_app(Settings(data_dir=str(tmp_path), chat_queue="put"))
