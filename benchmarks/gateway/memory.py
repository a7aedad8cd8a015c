"""Whether a gateway's memory stays as it is: its resident set while it proxies distinct prompts to a ready upstream."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import httpx
import msgspec

from benchmarks.gateway.process_figures import resident_bytes
from benchmarks.gateway.proxy import Asker, Target, payloads_of
from gateway.processes.server_process import ServerProcess

_LAG = re.compile(r"^aio_ledger_lag_records ([\d.]+)", re.MULTILINE)


class Resident(msgspec.Struct, frozen=True):
    """After so many answered requests; `bytes` is the process's VmRSS."""

    requests: int
    bytes: int


async def resident_while_proxying(
    server: ServerProcess, target: Target, *, requests: int, every: int, concurrency: int
) -> AsyncIterator[Resident]:
    """The gateway's resident set before the first request and after each `every` of them, no two prompts alike.

    Each look waits until the database has every record: a process at its limit records in its journal first, and what
    is to follow takes some hundred bytes each, which is no growth. Raises `RuntimeError` if a request is not answered,
    `OSError` if no server answers.
    """
    parts = urlsplit(target.url)
    payloads, host = payloads_of(target, parts.netloc, stream=False), parts.hostname or "127.0.0.1"
    loop = asyncio.get_running_loop()

    async def some(left: Iterator[int]) -> None:
        _, asker = await loop.create_connection(lambda: Asker(payloads, False), host, parts.port or 80)
        for _ in left:
            if not await asker.ask():
                raise RuntimeError(f"a request to {target.url} was not answered")
        asker.close()

    yield Resident(0, resident_bytes(server.pid))
    for done in range(every, requests + 1, every):
        left = iter(range(every))
        await asyncio.gather(*(some(left) for _ in range(concurrency)))
        await caught_up(server.url)
        yield Resident(done, resident_bytes(server.pid))


async def caught_up(url: str) -> None:
    """Return once the server's database has every record."""
    async with httpx.AsyncClient(base_url=url) as client:
        # Polled: it happens in another process.
        while (lag := _LAG.search((await client.get("/metrics")).text)) and float(lag[1]):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
