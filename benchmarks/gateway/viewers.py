"""What live updates of the dashboard cost the serving path: the same load with viewers and without, turn by turn."""

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import msgspec

from benchmarks.gateway.process_figures import cpu_seconds
from benchmarks.gateway.proxy import Target, one_round
from benchmarks.report.measured import Spread
from benchmarks.report.rounds import geometric_interval
from gateway.processes.server_process import ServerProcess

EVENTS = "/admin/overview/events"
# As the events tell browsers to.
RETRY_SECONDS = 1.0


class ViewersCost(msgspec.Struct, frozen=True, kw_only=True):
    """Of `pairs` of rounds of `seconds`, each with `viewers` and without, `concurrency` requests in flight.

    `throughput`: requests per second with viewers over without; `cpu`: CPU seconds of the server's process per request,
    in the same way: geometric means with 95% intervals. `alone_cpu`: CPU seconds per second that the viewers take while
    nothing else is served, over twice `seconds`. `bytes_seen`: what the viewers were sent during the pairs.
    """

    viewers: int
    concurrency: int
    pairs: int
    seconds: float
    requests: int
    errors: int
    bytes_seen: int
    without_req_s: float
    with_req_s: float
    throughput: Spread
    cpu: Spread
    alone_cpu: float


class Seen:
    """What viewers were sent."""

    bytes = 0


async def bench_viewers(
    target: Target,
    server: ServerProcess,
    *,
    secret: str,
    viewers: int,
    concurrency: int,
    pairs: int,
    seconds: float,
    progress: Callable[[str, float], None],
) -> ViewersCost:
    """Which of a pair comes first alternates. `secret`: an admin key."""
    limits = httpx.Limits(max_connections=None)
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    errors = requests = bytes_seen = 0
    async with httpx.AsyncClient(base_url=target.url, timeout=60, limits=limits) as http:
        await sign_in(http, secret)
        # Before any load: what a ledger still has to store after one is not the viewers'.
        progress("viewers alone", 0.0)
        before, alone, after = [await _idle(http, server, number, 2 * seconds) for number in (0, viewers, 0)]
        await one_round(target, False, concurrency, False, min(seconds, 1.0))
        for turn in range(pairs):
            for place, watched in enumerate((turn % 2 == 0, turn % 2 == 1)):
                progress("with viewers" if watched else "without", (2 * turn + place) / (2 * pairs))
                async with watching(http, viewers if watched else 0) as seen:
                    began = cpu_seconds(server.pid)
                    row = await one_round(target, False, concurrency, False, seconds)
                    used = cpu_seconds(server.pid) - began
                found[watched].append((row.req_s, used / max(row.ok, 1)))
                errors, requests, bytes_seen = errors + row.errors, requests + row.ok, bytes_seen + seen.bytes
    ratios = [(w[0] / o[0], w[1] / o[1]) for w, o in zip(found[True], found[False], strict=True)]
    return ViewersCost(
        viewers=viewers,
        concurrency=concurrency,
        pairs=pairs,
        seconds=seconds,
        requests=requests,
        errors=errors,
        bytes_seen=bytes_seen,
        without_req_s=statistics.median(rate for rate, _ in found[False]),
        with_req_s=statistics.median(rate for rate, _ in found[True]),
        throughput=geometric_interval([ratio for ratio, _ in ratios]),
        cpu=geometric_interval([ratio for _, ratio in ratios]),
        alone_cpu=round(alone - (before + after) / 2, 6),
    )


@asynccontextmanager
async def watching(http: httpx.AsyncClient, viewers: int) -> AsyncIterator[Seen]:
    """So many look at the overview until the block ends; it begins once all of them are there."""
    seen, begun = Seen(), [asyncio.Event() for _ in range(viewers)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_look(http, seen, here)) for here in begun]
        for here in begun:
            await here.wait()
        yield seen
        for task in tasks:
            task.cancel()


async def _idle(http: httpx.AsyncClient, server: ServerProcess, viewers: int, seconds: float) -> float:
    """CPU seconds per second of a server that has viewers only."""
    async with watching(http, viewers):
        before = cpu_seconds(server.pid)
        await asyncio.sleep(seconds)
        return (cpu_seconds(server.pid) - before) / seconds


async def sign_in(http: httpx.AsyncClient, secret: str) -> None:
    """As a browser does, by an admin key."""
    token = (await http.get("/admin/login")).text.split('name="csrf_token" value="')[1].split('"')[0]
    answer = await http.post("/admin/login", data={"csrf_token": token, "secret": secret})
    if answer.status_code != httpx.codes.SEE_OTHER:
        answer.raise_for_status()


async def _look(http: httpx.AsyncClient, seen: Seen, here: asyncio.Event) -> None:
    """As a browser's EventSource: from one stream to the next."""
    while True:
        async with http.stream("GET", EVENTS) as answer:
            answer.raise_for_status()
            async for chunk in answer.aiter_raw():
                here.set()
                seen.bytes += len(chunk)
        await asyncio.sleep(RETRY_SECONDS)
