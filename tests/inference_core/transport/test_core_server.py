"""What only the socket transport has: the file, several clients at once, slow and broken clients, shutting down."""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import stat

import msgspec
import pytest
from scripted_core import ScriptedCore, expected_tokens

from inference_core.errors import CoreError, CoreGoneError, CoreLostError, InvalidRequestError
from inference_core.protocol import AbortRequest, CoreStats, Event, Hello, QueryStats
from inference_core.transport.framing import FrameWriter
from inference_core.transport.listener import UnixListener
from inference_core.transport.server import CoreServer, _permanent, serve_core
from inference_core.transport.unix_socket import SocketCoreClient
from tests.polling import eventually


@pytest.fixture
def path(tmp_path):
    return tmp_path / "core.sock"


@pytest.fixture
async def stack():
    async with contextlib.AsyncExitStack() as stack:
        yield stack


async def serve(stack, path, core=None, **options):
    server = CoreServer(lambda: core or ScriptedCore(), UnixListener(path), **options)
    await server.start()
    stack.push_async_callback(server.stop)
    return server


async def client_of(stack, path, **options):
    client = SocketCoreClient(path, **options)
    stack.push_async_callback(client.close)
    await client.start()
    return client


async def tokens_from(client, request):
    return [token async for output in client.generate(request) for token in output.token_ids]


async def opened(client, request):
    outputs = client.generate(request)
    await anext(outputs)
    return outputs


async def running(client):
    return (await client.stats()).models[0].running


async def test_only_the_owner_may_connect(stack, path):
    await serve(stack, path)

    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


async def test_a_socket_that_a_dead_server_left_is_replaced(stack, path, ask):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    await serve(stack, path)

    assert await tokens_from(await client_of(stack, path), ask(tokens=2)) == expected_tokens([1, 2, 3], 0, 2)


async def test_a_living_servers_socket_is_left_alone(stack, path, ask):
    await serve(stack, path)

    with pytest.raises(CoreError, match="another core listens"):
        await CoreServer(ScriptedCore, UnixListener(path)).start()

    assert await tokens_from(await client_of(stack, path), ask(tokens=1))


async def test_a_file_that_is_no_socket_is_not_removed(path):
    path.write_text("precious")

    with pytest.raises(CoreError, match="not a socket"):
        await CoreServer(ScriptedCore, UnixListener(path)).start()

    assert path.read_text() == "precious"


async def test_a_path_too_long_for_a_socket_is_refused_with_the_limit(tmp_path):
    with pytest.raises(CoreError, match="at most 107 bytes"):
        await CoreServer(ScriptedCore, UnixListener(tmp_path / ("x" * 120))).start()


async def test_without_a_server_start_raises(path):
    with pytest.raises(CoreGoneError, match=r"no core listens at .*core\.sock"):
        await SocketCoreClient(path).start()


async def test_clients_that_use_the_same_request_ids_do_not_meet(stack, path, ask):
    await serve(stack, path)
    first, second = await client_of(stack, path), await client_of(stack, path)

    answers = await asyncio.gather(
        tokens_from(first, ask("same", [1], tokens=30)), tokens_from(second, ask("same", [2], tokens=30))
    )

    assert answers == [expected_tokens([1], 0, 30), expected_tokens([2], 0, 30)]


async def test_a_client_cannot_abort_anothers_request_of_the_same_id(stack, path, ask):
    await serve(stack, path)
    first, second = await client_of(stack, path), await client_of(stack, path)
    staying = await opened(first, ask("same", [1], tokens=10**6))
    closing = await opened(second, ask("same", [2], tokens=10**6))

    await closing.aclose()

    assert await running(second) == 1
    assert await anext(staying)


async def test_a_connection_that_drops_takes_its_requests_and_no_others(stack, path, ask):
    core = ScriptedCore()
    await serve(stack, path, core)
    dropping, staying = await client_of(stack, path), await client_of(stack, path)
    lost = [await opened(dropping, ask(f"r{i}", tokens=10**6, n=2)) for i in range(3)]
    kept = await opened(staying, ask(tokens=10**6))

    dropping._transport.abort()

    for outputs in lost:
        with pytest.raises(CoreGoneError, match="connection to the core is lost"):
            async for _ in outputs:
                pass
    await until(staying, running_is=1)
    assert await anext(kept)


async def until(client, *, running_is):
    """Ask until the count is reached; the test's own time limit is the bound."""
    while await running(client) != running_is:
        pass


async def test_a_client_that_does_not_read_is_disconnected_and_delays_no_other(stack, path, ask):
    core = ScriptedCore(tokens_per_step=20_000)
    await serve(stack, path, core, max_unread_bytes=100_000)
    reading = await client_of(stack, path)
    _, deaf = await asyncio.open_unix_connection(str(path), limit=1)
    deaf.transport.pause_reading()

    deaf.write(FrameWriter().frame([ask("deaf", tokens=10**9)]))
    await until(reading, running_is=1)
    await until(reading, running_is=0)

    assert await tokens_from(reading, ask(tokens=3)) == expected_tokens([1, 2, 3], 0, 3)
    deaf.transport.abort()


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_client_that_speaks_something_else_is_cut_off_and_others_go_on(stack, path, ask, garbage):
    await serve(stack, path)
    client = await client_of(stack, path)
    reader, writer = await asyncio.open_unix_connection(str(path))

    writer.write(garbage)
    farewell = await reader.read()

    assert b"goodbye" in farewell
    assert await tokens_from(client, ask(tokens=2)) == expected_tokens([1, 2, 3], 0, 2)
    writer.close()


async def test_a_second_request_of_a_living_id_on_one_connection_breaks_the_protocol(stack, path, ask):
    core = ScriptedCore()
    await serve(stack, path, core)
    witness = await client_of(stack, path)
    reader, writer = await asyncio.open_unix_connection(str(path))

    writer.write(FrameWriter().frame([ask("r", tokens=10**6), ask("r", tokens=10**6)]))
    farewell = await reader.read()

    assert b"still in use" in farewell
    await until(witness, running_is=0)
    writer.close()


async def test_nothing_of_a_request_is_sent_once_its_abort_has_arrived(stack, path, ask):
    core = ScriptedCore()
    await serve(stack, path, core)
    reader, writer = await asyncio.open_unix_connection(str(path))
    core.hold()
    writer.write(FrameWriter().frame([ask("r", tokens=10**6)]))
    await asyncio.to_thread(core.in_step.wait)

    writer.write(FrameWriter().frame([AbortRequest("r"), QueryStats("q")]))
    for _ in range(100):
        await asyncio.sleep(0)
    core.release()

    events = []
    while not any(isinstance(event, CoreStats) for event in events):
        size = int.from_bytes(await reader.readexactly(4), "big")
        events += msgspec.msgpack.decode(await reader.readexactly(size), type=list[Event])
    assert [type(event) for event in events] == [Hello, CoreStats]
    writer.close()


async def test_a_request_too_large_for_a_frame_is_refused_before_it_is_sent(stack, path, ask):
    await serve(stack, path)
    client = await client_of(stack, path, max_frame_bytes=1000)

    with pytest.raises(InvalidRequestError, match="limit of 1000"):
        await tokens_from(client, ask(prompt=range(2000)))

    assert await tokens_from(client, ask(tokens=2)) == expected_tokens([1, 2, 3], 0, 2)


async def test_stopping_lets_running_requests_finish_and_refuses_new_ones(stack, path, ask):
    core = ScriptedCore()
    server = await serve(stack, path, core)
    client = await client_of(stack, path)
    core.hold()
    finishing = asyncio.create_task(tokens_from(client, ask("old", tokens=50)))
    await asyncio.to_thread(core.in_step.wait)

    stop = asyncio.create_task(server.stop(grace_seconds=60))
    await asyncio.sleep(0)
    refused = [output async for output in client.generate(ask("new"))]
    core.release()

    assert await finishing == expected_tokens([1, 2, 3], 0, 50)
    await stop
    assert [output.error_kind for output in refused] == ["overloaded"]
    assert not path.exists()


async def test_what_outlives_the_grace_is_cut_off_with_the_reason(stack, path, ask):
    server = await serve(stack, path)
    client = await client_of(stack, path)
    outputs = await opened(client, ask(tokens=10**9))

    await server.stop()

    with pytest.raises(CoreGoneError, match="shutting down") as caught:
        async for _ in outputs:
            pass
    assert not isinstance(caught.value, CoreLostError)


async def test_a_new_server_does_not_lose_its_socket_when_the_old_one_stops(stack, path, ask):
    old = await serve(stack, path)
    os.unlink(path)
    await serve(stack, path)

    await old.stop()

    assert await tokens_from(await client_of(stack, path), ask(tokens=1))


async def start(client, process):
    """Start a client as soon as its server process listens."""
    while True:
        try:
            await client.start()
            break
        except CoreGoneError:
            assert process.is_alive()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_process_exits_cleanly_on_a_signal(path, ask, number):
    process = multiprocessing.get_context("spawn").Process(target=serve_core, args=(ScriptedCore, UnixListener(path)))
    process.start()
    client = SocketCoreClient(path)
    await start(client, process)
    assert await tokens_from(client, ask(tokens=4)) == expected_tokens([1, 2, 3], 0, 4)

    os.kill(process.pid, number)
    await asyncio.to_thread(process.join, 60)

    assert process.exitcode == 0
    assert not path.exists()
    with pytest.raises(CoreGoneError):
        await client.stats()
    await client.close()


async def test_a_killed_server_process_can_be_replaced_on_the_same_path(path, ask):
    context, client = multiprocessing.get_context("spawn"), SocketCoreClient(path)
    for _ in range(2):
        process = context.Process(target=serve_core, args=(ScriptedCore, UnixListener(path)))
        process.start()
        await start(client, process)
        outputs = await opened(client, ask(tokens=10**6))
        process.kill()
        with pytest.raises(CoreLostError, match="connection to the core is lost"):
            async for _ in outputs:
                pass
        await asyncio.to_thread(process.join, 60)
        # What comes later was not in it.
        with pytest.raises(CoreGoneError) as caught:
            await anext(client.generate(ask(tokens=1)))
        assert not isinstance(caught.value, CoreLostError)
    await client.close()


async def test_a_stopped_server_process_is_given_up_and_reached_again_once_it_goes_on(path, ask):
    listener, client = UnixListener(path, silent_seconds=1.0), SocketCoreClient(path, silent_seconds=1.0)
    process = multiprocessing.get_context("spawn").Process(target=serve_core, args=(ScriptedCore, listener))
    process.start()
    await start(client, process)
    heartbeat = client._transport.get_protocol()
    await eventually(lambda: heartbeat._has_beaten)
    outputs = await opened(client, ask(tokens=10**6))
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(CoreLostError, match="nothing was heard for 1 s"):
        async for _ in outputs:
            pass
    waiting = asyncio.ensure_future(client.start())
    os.kill(process.pid, signal.SIGCONT)
    await waiting
    assert await tokens_from(client, ask(tokens=4)) == expected_tokens([1, 2, 3], 0, 4)
    await client.close()
    process.kill()
    await asyncio.to_thread(process.join, 60)


async def test_a_server_that_sends_no_beats_is_waited_for(path, ask):
    heard = asyncio.Event()
    silent = await asyncio.start_unix_server(lambda reader, writer: heard.set(), path)
    client = SocketCoreClient(path, silent_seconds=0.05)
    starting = asyncio.ensure_future(client.start())
    await heard.wait()
    done, _ = await asyncio.wait({starting}, timeout=0.5)
    assert not done
    starting.cancel()
    await client.close()
    silent.close()


@pytest.mark.parametrize("fails", [False, True])
def test_a_core_loads_without_garbage_collection_and_is_never_looked_through_later(fails: bool) -> None:
    seen: list[bool] = []

    def load() -> ScriptedCore:
        seen.append(gc.isenabled())
        if fails:
            raise MemoryError
        return ScriptedCore()

    before = gc.get_freeze_count()
    with pytest.raises(MemoryError) if fails else contextlib.nullcontext():
        _permanent(load)
    assert seen == [False]
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
