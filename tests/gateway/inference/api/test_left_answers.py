"""Callers that leave an answer that is billed to its end: their place is free at once, and their bill follows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from quality.records.record import Record
from tests.polling import eventually
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call, LoopbackServer

_KEY = "AIO_TEST_LEFT_KEY"
_TIER = """
[[tiers]]
name = "{name}"
kind = "openai-provider"
url = "{url}"
model = "{name}"
api_key_env = "{key}"
price = {{ input_usd_per_million = 1, output_usd_per_million = 10 }}
max_context = 50000
"""
USAGE = {"prompt_tokens": 9, "completion_tokens": 5000, "completion_tokens_details": {"reasoning_tokens": 4990}}
USD = (9 * 1 + 5000 * 10) / 1e6
BODY: dict[str, Any] = {"model": "large", "max_tokens": 8000}
ASKED: dict[str, Any] = BODY | {"messages": [{"role": "user", "content": "Hi"}]}


class World(NamedTuple):
    """A gateway before a provider whose answers pause after their first words until they may `go`."""

    gateway: RunningGateway
    server: LoopbackServer
    go: asyncio.Event

    async def left(self, key: str, path: str, body: dict[str, Any]) -> str:
        """Ask, read some words, leave; return the request's id."""
        async with (
            httpx.AsyncClient(base_url=self.gateway.url, timeout=60, headers=bearer(key)) as client,
            client.stream("POST", f"/v1/{path}", json=body | {"stream": True}) as answer,
        ):
            assert answer.status_code == 200, await answer.aread()
            async for piece in answer.aiter_text():
                if "Hello" in piece:
                    break
        return answer.headers["x-aio-decision-id"]

    async def record(self, request_id: str) -> Record:
        async def find() -> Record | None:
            found = await self.gateway.serving.records.find(request_id)
            assert found is None or isinstance(found, Record)
            return found

        found: Record = await eventually(find)
        return found


@asynccontextmanager
async def world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setenv(_KEY, "sk-test")
    go = asyncio.Event()

    async def answer(call: Call) -> None:
        is_chat = "messages" in call.body
        if call.body.get("stream"):
            await call.begin()
            said: dict[str, Any] = {"delta": {"content": "Hello"}} if is_chat else {"text": "Hello"}
            await call.event({"choices": [{"index": 0, "finish_reason": None} | said]})
        await go.wait()
        if not call.body.get("stream"):
            await call.whole("Hello", USAGE)
            return
        said = {"delta": {}} if is_chat else {"text": ""}
        await call.event({"choices": [{"index": 0, "finish_reason": "stop"} | said]})
        await call.event({"choices": [], "usage": USAGE})
        await call.send(b"data: [DONE]\n\n")

    async with LoopbackServer(answer) as server:
        catalog = "".join(_TIER.format(name=n, url=server.base_url, key=_KEY) for n in ("small", "large"))
        async with gateway_of(folder, catalog, protocol="httptools") as gateway:
            try:
                yield World(gateway, server, go)
            finally:
                go.set()


async def test_the_place_of_a_caller_who_left_is_free_while_its_budget_is_held_until_the_counts_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as w:
        key = await w.gateway.key("ada", concurrency=1)
        await w.gateway.budget("ada", 0.082)
        first = await w.left(key, "chat/completions", ASKED)
        await eventually(lambda: w.gateway.serving.service.overload.running == 0)
        # Each may cost 8 cents: the second is admitted by the limits of the key, and not by its budget.
        refused = await w.gateway.http.post("/v1/chat/completions", json=ASKED, headers=bearer(key))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
        w.go.set()
        record = await w.record(first)
        assert (record.status, record.completion_tokens, record.reasoning_tokens) == ("aborted", 5000, 4990)
        assert record.cost_usd == pytest.approx(USD)
        assert [attempt.estimated for attempt in record.attempts] == [False]
        await eventually(lambda: _is_spent(w.gateway, USD))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", BODY | {"prompt": "Hi"}),
        ("messages", ASKED),
        ("responses", {"model": "large", "max_output_tokens": 8000, "input": "Hi"}),
    ],
)
async def test_the_counts_are_read_over_every_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    async with world(tmp_path, monkeypatch) as w:
        request_id = await w.left(await w.gateway.key("ada"), path, body)
        w.go.set()
        assert (await w.record(request_id)).cost_usd == pytest.approx(USD)


async def test_a_whole_answer_without_a_waiting_caller_is_billed_as_its_provider_bills_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as w:
        async with httpx.AsyncClient(base_url=w.gateway.url, headers=bearer(await w.gateway.key("ada"))) as client:
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=ASKED, timeout=60))
            await eventually(lambda: w.server.calls)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await eventually(lambda: w.gateway.serving.service.overload.running == 0)
        w.go.set()
        await w.gateway.serving.service.idle()
        rows = await eventually(lambda: _requests(w.gateway))
        assert (rows[0]["status"], rows[0]["cost_usd"]) == ("aborted", pytest.approx(USD))


async def test_a_shutdown_records_what_is_known_of_an_answer_that_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as w:
        request_id = await w.left(await w.gateway.key("ada"), "chat/completions", ASKED)
        service = w.gateway.serving.service
        await eventually(lambda: service.overload.running == 0)
        assert await service.drain(0.0) == 0
        record = await w.record(request_id)
        assert [attempt.estimated for attempt in record.attempts] == [True]
        assert record.completion_tokens == 2


async def test_of_a_generation_that_two_callers_share_the_last_to_leave_pays_what_its_provider_bills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, monkeypatch) as w:
        key = await w.gateway.key("ada")
        body = ASKED | {"temperature": 0, "stream": True}
        requests: list[str] = []
        async with (
            httpx.AsyncClient(base_url=w.gateway.url, timeout=60, headers=bearer(key)) as client,
            AsyncExitStack() as stack,
        ):
            for _ in range(2):
                answer = await stack.enter_async_context(client.stream("POST", "/v1/chat/completions", json=body))
                requests.append(answer.headers["x-aio-decision-id"])
            assert len(w.server.calls) == 1
        await eventually(lambda: w.gateway.serving.service.overload.running == 0)
        w.go.set()
        records = [await w.record(request_id) for request_id in requests]
    assert sorted(record.cost_usd for record in records) == [0.0, pytest.approx(USD)]
    assert {record.cache for record in records} == {"miss", "shared"}


async def _is_spent(gateway: RunningGateway, usd: float) -> bool:
    rows = (await gateway.order("GET", "/budgets"))["rows"]
    return bool(rows[0]["spent_usd"] == pytest.approx(usd))


async def _requests(gateway: RunningGateway) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await gateway.order("GET", "/requests"))["rows"]
    return rows
