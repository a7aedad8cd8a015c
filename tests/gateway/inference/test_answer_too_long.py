"""A server that answers far too much is cut off; its caller gets an error, and pays for its limit of tokens at most."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.base.settings import Settings
from tests.support.app import running_gateway
from tests.support.upstream import Call, LoopbackServer, write_remote_catalog

MOST = 64 * 2**20


async def flood(call: Call) -> None:
    """Text without an end, streamed or whole."""
    call.writer.transport.set_write_buffer_limits(16 * 1024)
    sent = 0
    if call.body.get("stream"):
        await call.begin()
        while sent < MOST:
            await call.chunk("a" * 3000)
            sent += 3000
    else:
        await call.begin(200, "application/json")
        await call.send(b'{"choices": [{"index": 0, "message": {"content": "')
        while sent < MOST:
            await call.send(b"a" * 30_000)
            sent += 30_000


async def ask(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    body = {"model": "tier-1", "max_tokens": 16, "messages": [{"role": "user", "content": "Say hello."}]}
    return await http.post("/v1/chat/completions", json=body | fields, headers={"x-aio-cache": "off"})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=str(tmp_path / "data"), catalog=str(tmp_path / "catalog.toml"), monitor=False)


async def test_a_stream_ends_with_an_error_event_and_a_whole_answer_is_a_502(
    settings: Settings, tmp_path: Path
) -> None:
    async with LoopbackServer(flood) as server:
        write_remote_catalog(tmp_path / "catalog.toml", server.base_url)
        async with running_gateway(settings, scripted=False) as aio:
            stream = await ask(aio.http, stream=True, stream_options={"include_usage": True})
            whole = await ask(aio.http)

    events = [line.removeprefix("data: ") for line in stream.text.splitlines() if line.startswith("data: {")]
    (error,) = [event["error"] for event in map(json.loads, events) if "error" in event]
    assert error["code"] == "answer_too_long"
    assert "16 tokens" in error["message"]
    used = [event["usage"] for event in map(json.loads, events) if event.get("usage")]
    assert all(usage["completion_tokens"] <= 16 for usage in used)
    assert (whole.status_code, whole.json()["error"]["code"]) == (502, "answer_too_long")
