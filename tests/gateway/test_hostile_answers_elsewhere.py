"""Servers that are no tiers answer without a bound: the OpenID provider, the webhook, local servers, scraped gateways,
and the program of a child engine."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.operations.setup.found_tiers import ask_server
from gateway.planning.scaling.target_server import _exposition
from gateway.runtime.engines.engine_child import EngineProblem
from gateway.runtime.engines.engine_process import load_ollama_model
from gateway.tenancy.users.identity_provider import SignInError, _json
from tests.support.upstream import Call, LoopbackServer
from tiers.remote.http_exchange import RefusedBodyError, bounded_answer, lines_of
from tiers.remote.http_transport import HttpTransport

MOST = 64 * 2**20
BOMB = gzip.compress(gzip.compress(bytes(2**25), 1, mtime=0), mtime=0)


class Hostile:
    """Answers every request with the same flood; `sent` bytes of it were taken."""

    def __init__(self) -> None:
        self.url, self.sent = "", 0

    async def endless(self, call: Call) -> None:
        await call.begin(200, "application/json")
        call.writer.transport.set_write_buffer_limits(16 * 1024)
        while self.sent < MOST:
            await call.send(b'{"a": "' + b"x" * 60_000)
            self.sent += 60_000

    async def bomb(self, call: Call) -> None:
        head = f"HTTP/1.1 200 X\r\ncontent-encoding: gzip, gzip\r\ncontent-length: {len(BOMB)}\r\n\r\n"
        await call.send(head.encode() + BOMB)


Flood = Callable[[Hostile, Call], Awaitable[None]]


@asynccontextmanager
async def hostile(flood: Flood) -> AsyncIterator[Hostile]:
    here = Hostile()

    async def answer(call: Call) -> None:
        await flood(here, call)

    async with LoopbackServer(answer) as server:
        server.looked_at = answer
        here.url = server.base_url.removesuffix("/v1")
        yield here
    assert here.sent <= MOST // 2, "it was read to its end"


floods = pytest.mark.parametrize("flood", [Hostile.endless, Hostile.bomb], ids=["endless", "bomb"])


@floods
async def test_an_openid_provider(flood: Flood) -> None:
    async with hostile(flood) as server, httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(SignInError, match="cannot be reached"):
            await _json(client.build_request("GET", server.url), client, dict)


@floods
async def test_a_webhook_through_our_transport(flood: Flood) -> None:
    async with hostile(flood) as server:
        transport = HttpTransport(httpx.URL(server.url))
        async with httpx.AsyncClient(transport=transport) as client:
            with pytest.raises(RefusedBodyError):
                await bounded_answer(client, client.build_request("POST", server.url, json={}), 2**20, 60)


@floods
async def test_a_server_that_init_looks_at(flood: Flood, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with hostile(flood) as server:
        found = await ask_server(f"{server.url}/v1")

    assert "does not answer (RefusedBodyError)" in found.problem


@floods
async def test_a_gateway_that_is_scraped(flood: Flood) -> None:
    async with hostile(flood) as server, httpx.AsyncClient(trust_env=False) as client:
        assert await _exposition(client, server.url) is None


@floods
async def test_a_child_engine_that_loads_its_model(flood: Flood) -> None:
    async with hostile(flood) as server, httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        with pytest.raises(EngineProblem, match="RefusedBodyError"):
            await load_ollama_model(client, "m", lambda line: None)


async def test_a_line_without_an_end_is_refused_and_others_are_whole_however_they_are_cut() -> None:
    async def cut(*pieces: bytes) -> AsyncIterator[bytes]:
        for piece in pieces:
            await asyncio.sleep(0)
            yield piece

    assert [line async for line in lines_of(cut(b"a\nb", b"b\n", b"", b"c"), 10)] == [b"a", b"bb", b"c"]
    with pytest.raises(RefusedBodyError):
        assert [line async for line in lines_of(cut(*[b"x" * 6] * 3), 10)]
