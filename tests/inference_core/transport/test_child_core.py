"""A core in a child process: it serves as others do, ends with its client, and says what kept it from loading."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from inference_core.errors import CoreGoneError, CoreLostError, MemoryPlanError
from inference_core.protocol import AddRequest
from inference_core.transport import unix_socket
from inference_core.transport.unix_socket import ChildCoreClient
from tests.inference_core.transport.scripted_core import expected_tokens
from tests.polling import eventually, until
from tests.process_tree import lives

ROOT = Path(__file__).parents[3]
Ask = Callable[..., AddRequest]


def launch(kind: str, channel: socket.socket) -> "subprocess.Popen[bytes]":
    program = [sys.executable, "-m", "tests.inference_core.transport.child_program", str(channel.fileno()), kind]
    return subprocess.Popen(program, stdin=subprocess.DEVNULL, pass_fds=[channel.fileno()], cwd=ROOT)


@asynccontextmanager
async def client_of(kind: str = "serve") -> AsyncIterator[ChildCoreClient]:
    client = ChildCoreClient(lambda channel: launch(kind, channel))
    try:
        yield client
    finally:
        await client.close()


async def tokens_from(client: ChildCoreClient, request: AddRequest) -> list[int]:
    return [token async for output in client.generate(request) for token in output.token_ids]


async def test_a_child_answers_ends_with_its_client_and_is_started_again(ask: Ask) -> None:
    async with client_of() as client:
        processes = []
        for _ in range(2):
            await client.start()
            assert await tokens_from(client, ask(tokens=4)) == expected_tokens([1, 2, 3], 0, 4)
            processes.append(client.pid)
            await client.close()
            assert client.pid is None
            assert client.gone is not None
            assert set(client.models) == {"m"}, "tiers ask for them while a core is started again"
        first, second = processes
        assert first != second
        assert first is not None
        assert second is not None
        assert not lives(first)
        assert not lives(second)


async def test_a_signal_to_all_processes_of_a_service_does_not_end_a_child(ask: Ask) -> None:
    async with client_of() as client:
        await client.start()
        outputs = client.generate(ask(tokens=1000))
        await anext(outputs)
        assert client.pid is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(client.pid, number)
        assert len([None async for _ in outputs]) == 999
        assert await tokens_from(client, ask(tokens=4)) == expected_tokens([1, 2, 3], 0, 4)


async def test_a_child_that_was_launched_ahead_is_the_one_that_serves(ask: Ask) -> None:
    async with client_of() as client:
        client.launch_ahead()
        ahead = client.pid
        await client.start()
        assert client.pid == ahead
        assert await tokens_from(client, ask(tokens=2)) == expected_tokens([1, 2, 3], 0, 2)


async def test_a_child_that_was_launched_ahead_for_nothing_ends_too() -> None:
    async with client_of() as client:
        client.launch_ahead()
        ahead = client.pid
        assert ahead is not None
        await client.close()
        assert not lives(ahead)


async def test_a_killed_child_fails_its_requests_and_the_next_start_has_another(ask: Ask) -> None:
    async with client_of() as client:
        await client.start()
        killed = client.pid
        assert killed is not None
        outputs = client.generate(ask(tokens=10**6))
        await anext(outputs)
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(CoreLostError, match="connection to the core is lost"):
            async for _ in outputs:
                pass
        assert client.died
        await client.start()
        assert client.pid not in (None, killed)
        assert await tokens_from(client, ask(tokens=4)) == expected_tokens([1, 2, 3], 0, 4)


async def test_what_the_operator_can_mend_arrives_as_the_error_that_it_was() -> None:
    async with client_of("no-memory") as client:
        with pytest.raises(CoreGoneError, match="the core died: MemoryPlanError: 12 GB are needed") as caught:
            await client.start()
        assert isinstance(caught.value.__cause__, MemoryPlanError)
        assert str(caught.value.__cause__) == "12 GB are needed, 8 GB are free"


async def test_a_bug_arrives_as_its_text() -> None:
    async with client_of("bug") as client:
        with pytest.raises(CoreGoneError, match="the core died: ZeroDivisionError: a bug") as caught:
            await client.start()
        assert caught.value.__cause__ is None


async def test_a_child_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_socket, "END_SECONDS", 0.05)
    async with client_of("deaf") as client:
        await client.start()
        deaf = client.pid
        assert deaf is not None
        await client.close()
        assert not lives(deaf)


async def test_a_child_that_still_loads_is_not_waited_for() -> None:
    async with client_of("endless") as client:
        starting = asyncio.create_task(client.start())
        loading = await eventually(lambda: client.pid)
        starting.cancel()
        await asyncio.wait([starting])
        assert not lives(loading)


async def test_a_program_that_does_not_exist_is_no_core(tmp_path: Path) -> None:
    def missing(channel: socket.socket) -> Any:
        return subprocess.Popen([tmp_path / "missing"])

    client = ChildCoreClient(missing)
    with pytest.raises(CoreGoneError, match="the core's process cannot be started"):
        await client.start()
    await client.close()


def test_a_child_ends_when_the_process_of_its_client_is_killed() -> None:
    script = (
        "import asyncio\n"
        "from tests.inference_core.transport.test_child_core import client_of\n"
        "async def main():\n"
        "    async with client_of() as client:\n"
        "        await client.start()\n"
        "        print(client.pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert lives(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not lives(child))
