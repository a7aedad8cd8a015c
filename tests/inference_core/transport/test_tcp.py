"""What only the TCP transport has: strangers are turned away, and times mean the same on both machines."""

import asyncio
import contextlib
import socket
import time

import msgspec
import pytest
import uvloop
from scripted_core import ScriptedCore, expected_tokens

from inference_core.errors import CoreError, CoreGoneError
from inference_core.transport.server import CoreServer
from inference_core.transport.tcp import CoreAddress, TcpCoreClient, TcpListener
from tests.ports import held_port


class ListeningCore(ScriptedCore):
    """Remembers the requests as they came."""

    def __init__(self):
        super().__init__()
        self.requests = []

    def add(self, request):
        self.requests.append(request)
        super().add(request)


@pytest.fixture
async def served():
    """A core behind a TCP listener, the listener, and a client that is started."""
    core, listener = ListeningCore(), TcpListener("127.0.0.1", b"right")
    server = CoreServer(lambda: core, listener)
    await server.start()
    client = TcpCoreClient(listener.address)
    await client.start()
    yield core, listener, client
    await client.close()
    await server.stop()


async def test_a_client_without_the_secret_is_refused(served):
    _, listener, _ = served
    stranger = TcpCoreClient(msgspec.structs.replace(listener.address, secret=b"wrong"))

    with pytest.raises(CoreGoneError, match="is not the expected core"):
        await stranger.start()


async def test_a_client_does_not_speak_to_a_server_without_the_secret(ask):
    async def impostor(reader, writer):
        writer.write(b"n" * 32)
        await reader.readexactly(64)
        writer.write(b"c" * 32)
        assert await reader.read() == b""  # nothing more is sent
        writer.close()

    server = await asyncio.start_server(impostor, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]

    with pytest.raises(CoreGoneError, match="is not the expected core"):
        await TcpCoreClient(CoreAddress(host=host, port=port, secret=b"s")).start()
    server.close()


async def test_commands_before_the_handshake_are_not_obeyed(served, ask):
    core, listener, _ = served
    reader, writer = await asyncio.open_connection(listener.address.host, listener.address.port)
    await reader.readexactly(32)
    writer.write(b"\0" * 64 + b"\x00\x00\x00\x01\x90")

    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    assert core.requests == []


async def test_times_are_translated_to_the_readers_clock(served, ask, monkeypatch):
    core, _, client = served
    ours = time.monotonic
    elsewhere = 1e6  # what the client's machine has been up for longer
    sent_at = ours() + elsewhere
    sent = ask(arrival=sent_at - 2, deadline=sent_at + 3)
    clocks = iter([ours() + elsewhere])  # the client's clock is read once, then the server's
    monkeypatch.setattr("inference_core.transport.tcp.time.monotonic", lambda: next(clocks, None) or ours())

    tokens = [token async for output in client.generate(sent) for token in output.token_ids]

    assert tokens == expected_tokens([1, 2, 3], 0, 8)
    (got,) = core.requests
    assert got.deadline - got.arrival == pytest.approx(5)
    assert got.arrival <= ours() - 2 + 1e-3
    assert got.deadline > ours() - 60


async def test_a_request_without_times_stays_without(served, ask):
    core, _, client = served

    assert [output async for output in client.generate(ask())]

    assert [(request.arrival, request.deadline) for request in core.requests] == [(0.0, None)]


async def test_a_port_that_is_taken_is_an_error_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CoreError, match=f"cannot listen at 127.0.0.1:{port}"):
            await CoreServer(ScriptedCore, TcpListener("127.0.0.1", b"s", port)).start()


async def test_an_address_without_a_server_is_a_core_that_is_gone():
    with held_port() as held:
        port = held.getsockname()[1]
        with pytest.raises(CoreGoneError, match=f"no core answers at 127.0.0.1:{port}"):
            await TcpCoreClient(CoreAddress(host="127.0.0.1", port=port, secret=b"s")).start()


async def test_an_idle_connection_stays_as_long_as_both_ends_beat(ask):
    listener = TcpListener("127.0.0.1", b"s", silent_seconds=0.25)
    server = CoreServer(ScriptedCore, listener)
    await server.start()
    client = TcpCoreClient(listener.address, silent_seconds=0.25)
    await client.start()
    heartbeat = client._transport.get_protocol()
    beats = asyncio.Semaphore(0)
    received, heartbeat.data_received = heartbeat.data_received, lambda data: (received(data), beats.release())

    for _ in range(12):
        await beats.acquire()

    assert [output async for output in client.generate(ask())]
    await client.close()
    await server.stop()


def test_both_ends_also_run_on_uvloop(ask):
    async def answered():
        listener = TcpListener("127.0.0.1", b"s")
        server = CoreServer(ScriptedCore, listener)
        await server.start()
        client = TcpCoreClient(listener.address)
        await client.start()
        tokens = [token async for output in client.generate(ask()) for token in output.token_ids]
        await client.close()
        await server.stop()
        return tokens

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(answered()) == expected_tokens([1, 2, 3], 0, 8)
