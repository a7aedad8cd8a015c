"""A process that may open few files answers every request: connections wait in the kernel while it has no room."""

import asyncio
import os
import resource
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from gateway.processes.event_loop import ENOUGH_FILES, PacedServer, room_for_connections
from tests.polling import eventually
from tests.support.served import READY, run_at_start, started
from tests.support.upstream import Upstream, write_remote_catalog

FILES = 40


class Counting(asyncio.Protocol):
    """A connection that is in `connections` from its beginning to its end."""

    def __init__(self, connections: set[asyncio.Protocol]) -> None:
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)


async def test_connections_beyond_the_room_wait_until_others_end() -> None:
    connections: set[asyncio.Protocol] = set()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = PacedServer(listener, lambda: Counting(connections), connections, room=2)
        opened = [await asyncio.open_connection(*listener.getsockname()) for _ in range(4)]
        await eventually(lambda: len(connections) == 2)
        first = next(iter(connections))
        assert isinstance(first, Counting)
        first.transport.close()
        await eventually(lambda: first not in connections and len(connections) == 2)
        server.close()
        await server.wait_closed()
        for _, writer in opened:
            writer.close()


def test_each_connection_has_two_of_the_files_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"soft": FILES}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits["soft"], limits["soft"]))
    monkeypatch.setattr(os, "listdir", lambda _: ["0"] * 20)
    assert room_for_connections() == 5
    limits["soft"] = 10
    assert room_for_connections() == 1
    for limits["soft"] in (ENOUGH_FILES, resource.RLIM_INFINITY):
        assert room_for_connections() is None


@pytest.mark.processes
def test_a_gateway_of_40_files_answers_all_of_many_clients_and_says_at_the_start_that_the_limit_is_low(
    upstream: Upstream, tmp_path: Path
) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url)
    body = {"model": "tier-1", "messages": [{"role": "user", "content": "Hello there"}]}

    def ask(url: str) -> int:
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60, headers={"x-aio-cache": "off"})
        return answer.status_code

    data = tmp_path / "data"
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))"
    environment = run_at_start(tmp_path / "site", limit)
    options = ("--port", "0", "--catalog", str(catalog))
    with started(data, tmp_path / "cache", *options, environment=environment) as process:
        assert process.stdout is not None
        url = next(found[1] for line in process.stdout if (found := READY.search(line)))
        with ThreadPoolExecutor(50) as pool:
            statuses = Counter(pool.map(ask, [url] * 150))
    assert statuses == {200: 150}
    assert "few open files are allowed" in (data / "log").read_text()
