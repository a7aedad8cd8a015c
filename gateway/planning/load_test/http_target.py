"""A server over HTTP as a target of benchmarks: streamed completions, read by a client that costs little itself;
and a real `aio serve` in its own process, to be measured so."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import httpx
import msgspec

from gateway.base.configuration import own_command, variable_of
from gateway.base.settings import Settings
from gateway.planning.load_test.run import AskError, BenchTarget, Timing
from gateway.planning.load_test.workload import Job
from gateway.processes.announcement import ServerStartError
from tiers.dialects.event_stream import EventParser
from tiers.remote.http_exchange import HttpClient, pieces_of
from tiers.remote.http_transport import HttpTransport, ProxyingTransport

_CONNECT_SECONDS = 30.0
# `LoadRun` ends an answer that takes too long.
_MOST_SECONDS = 86_400.0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Choice(msgspec.Struct):
    text: str = ""


class _Event(msgspec.Struct):
    """What counts in an event of a streamed completion."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Event)


# What is measured is answers that are made; other servers pass it over.
NO_CACHE = (b"x-aio-cache", b"off")


class HttpTarget(BenchTarget):
    """`model` of the OpenAI-compatible server at `url`, asked as remote tiers ask theirs: the load generator shares the
    machine with the server, so its client costs little. Connections are kept and used again."""

    api = "completions"

    def __init__(self, url: str, model: str) -> None:
        self._http = HttpClient(f"{url.rstrip('/')}/v1", [NO_CACHE], _CONNECT_SECONDS, HttpTransport, None)
        self._model = model

    async def ask(self, job: Job, due: float, timing: Timing) -> None:
        body = {
            "model": self._model,
            "prompt": job.prompt,
            "max_tokens": job.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            async with contextlib.aclosing(self._events(msgspec.json.encode(body))) as events:
                await _read(events, due, timing)
        except httpx.TransportError as error:
            raise AskError("connection", str(error)) from error
        except (ValueError, msgspec.MsgspecError) as error:
            raise AskError("bad or error event", str(error)) from error

    async def close(self) -> None:
        await self._http.close()

    async def _events(self, body: bytes) -> AsyncGenerator[bytes, None]:
        """The data of every event of one answer. The connection is kept if the answer was read to its end."""
        deadline = asyncio.get_running_loop().time() + _MOST_SECONDS
        reply = await self._http.send("POST", "completions", body, _MOST_SECONDS, deadline)
        async with contextlib.aclosing(reply):
            if reply.status_code != 200:
                refusal = b"".join([piece async for piece in pieces_of(reply)])
                raise AskError(f"http {reply.status_code}", refusal.decode(errors="replace")[:300])
            parser = EventParser()
            async for piece in pieces_of(reply):
                for event in parser.feed(piece):
                    if not event.is_end:
                        yield event.data


async def _read(events: AsyncIterator[bytes], due: float, timing: Timing) -> None:
    last, pieces = due, 0
    async for data in events:
        now, event = perf_counter(), _DECODER.decode(data)
        if event.error is not None:
            raise ValueError(f"the answer broke off: {event.error}")
        if event.usage is not None:
            timing.prompt_tokens, timing.output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens
        if any(choice.text for choice in event.choices):
            last, pieces = timing.note_text(now, due, last), pieces + 1
    timing.has_usage = timing.output_tokens > 0
    timing.output_tokens = timing.output_tokens or pieces


_READY = "AIO is ready on "


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A ready server: its address, process id, and the seconds from launch to `/health/ready`."""

    url: str
    pid: int
    ready_seconds: float


@asynccontextmanager
async def running_server(
    settings: Settings, environment: Mapping[str, str], role: str = "all"
) -> AsyncIterator[ServerProcess]:
    """Launch on a free port with the folders and catalogue of `settings`, until all cores and models have loaded, which
    may be after it is ready; stop gracefully at the end.

    Errors that it logs appear on standard error. Raises `ServerStartError` if it stops before it is ready.
    """
    began = time.perf_counter()
    process = await launched(settings, environment, role)
    try:
        url = await _announced_url(process)
        await _until_ready(url)
        seconds = time.perf_counter() - began
        await _until_loaded(url)
        yield ServerProcess(url, process.pid, seconds)
    finally:
        await stopped(process)


async def launched(settings: Settings, environment: Mapping[str, str], role: str) -> asyncio.subprocess.Process:
    """Start `aio serve` in this role, on a free port, with the folders and catalogue of `settings`."""
    folders = {
        variable_of("data_dir"): str(settings.data_path),
        variable_of("cache_dir"): str(settings.cache_path),
        variable_of("catalog"): settings.catalog,
    }
    return await asyncio.create_subprocess_exec(
        *own_command("serve", "--role", role, "--port", "0"),
        env={**os.environ, variable_of("log_level"): "error", **folders, "PYTHONUNBUFFERED": "1", **environment},
        stdout=asyncio.subprocess.PIPE,
    )


async def stopped(process: asyncio.subprocess.Process) -> None:
    """End it gracefully, and wait for that."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    await process.communicate()


async def _announced_url(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async for line in process.stdout:
        if _READY.encode() in line:
            return line.decode().split(_READY)[1].split()[0]
    raise ServerStartError(f"aio serve stopped with status {await process.wait()} before it was ready")


async def _until_ready(url: str) -> None:
    """A gateway process serves before its core is up; it is ready when it says so."""
    async with httpx.AsyncClient(base_url=url, transport=ProxyingTransport()) as client:
        # Polled: the event happens in another process.
        while (await client.get("/health/ready")).status_code != httpx.codes.OK:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _until_loaded(url: str) -> None:
    """Return once `/health/ready` names no core and no model that still loads."""
    async with httpx.AsyncClient(base_url=url, transport=ProxyingTransport()) as client:
        while any(name.startswith(("core", "model ")) for name in (await _problems(client))):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _problems(client: httpx.AsyncClient) -> dict[str, str]:
    problems: dict[str, str] = (await client.get("/health/ready")).json().get("problems", {})
    return problems
