"""A real `aio serve` in a process of its own, to be measured."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from gateway.base.configuration import own_command, variable_of
from gateway.base.settings import Settings
from gateway.processes.announcement import ServerStartError
from tiers.remote.http_transport import ProxyingTransport

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
