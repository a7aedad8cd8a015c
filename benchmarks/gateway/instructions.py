"""Instructions of the gateway's process per request, counted by valgrind: two versions can be compared to about 1%,
where times of equal runs differ by 10%.

The kernel's part is not counted, nor what the processor waits for. Everything takes 20 to 50 times as long, so that
background work has a larger share than in service, and a still larger one on a busy machine.
"""

import asyncio
import os
import re
import secrets
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.gateway.proxy import Asker, Target, payloads_of
from benchmarks.gateway.upstream import proxied_catalogue, running_upstream
from gateway.base.configuration import own_command, variable_of
from gateway.processes.announcement import ServerStartError

CONCURRENCY = 8
_READY = b"AIO is ready on "
_COUNTED = re.compile(r"^totals: (\d+)", re.MULTILINE)


class ValgrindError(RuntimeError):
    """Valgrind is not installed, or does not count."""


async def instructions_per_request(folder: Path, *, stream: bool, warm: int, requests: int) -> float:
    """Ask `warm` requests, then count those of `requests` more. Raises `ValgrindError` and `ServerStartError`."""
    if shutil.which("valgrind") is None:
        raise ValgrindError("valgrind is not installed (Debian: apt-get install valgrind)")
    key = secrets.token_urlsafe(24)
    counts = folder / "counts"
    async with running_upstream() as upstream:
        catalogue = folder / "catalogue.toml"
        catalogue.write_text(proxied_catalogue(upstream), encoding="utf-8")
        variables = {
            "AIO_API_KEYS": f"bench={key}",
            variable_of("catalog"): str(catalogue),
            variable_of("data_dir"): str(folder),
            variable_of("log_level"): "error",
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
        }
        async with _counted_server(counts, variables) as (url, pid):
            target = Target("aio", url, "auto", key)
            await _ask(target, stream, warm)
            await _control(pid, "-i", "on")
            await _ask(target, stream, requests)
            await _control(pid, "-d")
    found = sum(map(int, _COUNTED.findall((folder / "counts.1").read_text("latin-1"))))
    if not found:
        raise ValgrindError(f"valgrind counted nothing; it says: {(folder / 'log').read_text('utf-8')[-500:]}")
    return found / requests


@asynccontextmanager
async def _counted_server(counts: Path, variables: dict[str, str]) -> AsyncIterator[tuple[str, int]]:
    with (counts.parent / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={counts}",
            *own_command("serve", "--role", "gateway", "--port", "0"),
            env={**os.environ, **variables}, stdout=asyncio.subprocess.PIPE, stderr=log,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            if _READY in line:
                yield line.partition(_READY)[2].split()[0].decode(), process.pid
                return
        raise ServerStartError(f"aio serve stopped with status {await process.wait()} before it was ready")
    finally:
        # A graceful end takes long at this speed, and is not counted.
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _control(pid: int, *options: str) -> None:
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec("callgrind_control", *options, str(pid), stdout=quiet, stderr=quiet)
    if await process.wait():
        raise ValgrindError(f"callgrind_control {' '.join(options)} failed")


async def _ask(target: Target, stream: bool, requests: int) -> None:
    parts = urlsplit(target.url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    payloads, loop = payloads_of(target, parts.netloc, stream), asyncio.get_running_loop()
    left = iter(range(requests))

    async def one() -> bool:
        _, asker = await loop.create_connection(lambda: Asker(payloads, stream, target.path), host, port)
        try:
            return all([await asker.ask() for _ in left])
        finally:
            asker.close()

    if not all(await asyncio.gather(*(one() for _ in range(CONCURRENCY)))):
        raise ValgrindError("a request was not answered")
