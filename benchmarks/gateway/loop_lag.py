"""How far large bodies hold up the streams of a gateway: its own metric of the event loop's lag, under both."""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from benchmarks.gateway.proxy import TOPICS
from benchmarks.gateway.upstream import WHOLE, running_upstream, whole_request
from gateway.base.settings import Settings
from gateway.processes.server_process import running_server

_LAUNCH = (
    "from benchmarks.gateway.loop_lag import PacedUpstream; from benchmarks.gateway.upstream import serve_connections; "
    "serve_connections(lambda: PacedUpstream({pace}))"
)
_BUCKET = re.compile(r'^aio_event_loop_lag_seconds_bucket\{.*?le="([^"]+)".*\} (\S+)$', re.MULTILINE)
_TOKENS_PER_STREAM = 400
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
_EVENT = (
    b'data: {"id":"mock-1","object":"chat.completion.chunk","created":1,"model":"mock",'
    b'"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":%b}]}\n\n'
)
Progress = Callable[[str, float], None]


class LagRow(msgspec.Struct, frozen=True, kw_only=True):
    """The lag of the gateway's event loop in milliseconds, estimated within the buckets of its histogram; `max_ms` is
    the upper bound of the last bucket with a sample, infinite above the last bound."""

    kind: str
    streams: int
    body_bytes: int
    bodies: int
    refused: int
    tokens: int
    samples: int
    p50_ms: float
    p99_ms: float
    max_ms: float


async def bench_loop_lag(
    settings: Settings, key: str, *, kinds: Iterable[str], streams: int, rate: float, seconds: float,
    body_bytes: int, progress: Progress,
) -> AsyncIterator[LagRow]:  # fmt: skip
    """One row for each of `kinds`, in one gateway process in front of the upstream of `settings`' catalogue."""
    environment = {"AIO_API_KEYS": f"bench={key}", "AIO_MONITOR": "false"}
    async with running_server(settings, environment, "gateway") as server, _client(server.url, key) as client:
        for kind in kinds:
            progress(kind, 0.0)
            yield await _row(client, server.url, key, kind, streams, rate, seconds, body_bytes)
            progress(kind, 1.0)


async def bench_core_lag(settings: Settings, key: str, *, streams: int, seconds: float) -> LagRow:
    """The lag of a gateway whose core runs the first tier of `settings`' catalogue, while that generates
    (SPEC GW-07); no body but the streams' own arrives."""
    environment = {"AIO_API_KEYS": f"bench={key}", "AIO_MONITOR": "false"}
    async with (
        running_server(settings, environment) as server,
        _client(server.url, key) as client,
        _Readers(client, streams, ignore_eos=True) as readers,
    ):
        before, first = await _buckets(client), readers.tokens
        await readers.read_for(seconds)
        return _lag_row("core here", streams, before, await _buckets(client), readers.tokens - first)


async def _row(
    client: httpx.AsyncClient, url: str, key: str, kind: str, streams: int, rate: float, seconds: float, body_bytes: int
) -> LagRow:
    body = large_body(kind, body_bytes)
    async with _Readers(client, streams) as readers:
        # One before them, for what is made once.
        await _send(url, key, body)
        before, first, began = await _buckets(client), readers.tokens, time.monotonic()
        statuses: list[asyncio.Task[int]] = []
        while (passed := time.monotonic() - began) < seconds and readers.all_run:
            statuses.append(asyncio.create_task(_send(url, key, body)))
            await asyncio.sleep(max((len(statuses) / rate) - passed, 0.0))
        answered = await asyncio.gather(*statuses)
        row = _lag_row(kind, streams, before, await _buckets(client), readers.tokens - first)
    refused = sum(status != 200 for status in answered)
    return msgspec.structs.replace(row, body_bytes=len(body), bodies=len(answered), refused=refused)


def _client(url: str, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=url,
        timeout=120,
        headers={"authorization": f"Bearer {key}", "x-aio-cache": "off"},
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
    )


class _Readers:
    """So many streams at a time, one answer after the other; `tokens` counts their events."""

    def __init__(self, client: httpx.AsyncClient, streams: int, **asked: Any) -> None:
        self.tokens = 0
        self._client, self._streams = client, streams
        self._body = {"model": "tier-1", "messages": [{"role": "user", "content": "Go on."}], "stream": True,
                      "max_tokens": _TOKENS_PER_STREAM, **asked}  # fmt: skip
        self._running: list[asyncio.Task[None]] = []

    @property
    def all_run(self) -> bool:
        """Whether no stream has failed."""
        return not any(task.done() for task in self._running)

    async def __aenter__(self) -> "_Readers":
        """Return when there are as many tokens as streams."""
        self._running = [asyncio.create_task(self._read()) for _ in range(self._streams)]
        while self.tokens < self._streams and self.all_run:  # noqa: ASYNC110 - counted by the readers
            await asyncio.sleep(0.05)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all; raise what made one of them fail."""
        for task in self._running:
            task.cancel()
        for end in await asyncio.gather(*self._running, return_exceptions=True):
            if isinstance(end, Exception):
                raise end

    async def read_for(self, seconds: float) -> None:
        """Return after so long, or when a stream has failed."""
        await asyncio.wait(self._running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def _read(self) -> None:
        while True:
            async with self._client.stream("POST", "/v1/chat/completions", json=self._body) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    self.tokens += line.startswith("data: {")


def _lag_row(
    kind: str, streams: int, before: list[tuple[float, float]], after: list[tuple[float, float]], tokens: int
) -> LagRow:
    """The lag between two readings of the histogram, without bodies."""
    taken = [now - then for (_, now), (_, then) in zip(after, before, strict=True)]
    bounds = [bound for bound, _ in before]
    return LagRow(
        kind=kind, streams=streams, body_bytes=0, bodies=0, refused=0, tokens=tokens, samples=int(taken[-1]),
        p50_ms=quantile_ms(bounds, taken, 0.5), p99_ms=quantile_ms(bounds, taken, 0.99),
        max_ms=quantile_ms(bounds, [float(count >= taken[-1]) for count in taken], 1.0),
    )  # fmt: skip


def large_body(kind: str, size: int) -> bytes:
    """A chat of almost `size` bytes: `prose`, `code` (escapes in every line), `escaped` (no ASCII, all of it escaped),
    `image` (one data URL) or `messages` (2,000 of the same length)."""
    rng = random.Random(7)
    room = size - 512
    content: Any
    messages: list[dict[str, Any]]
    if kind == "messages":
        text = " ".join(rng.choices(TOPICS.split(), k=room // 2000))[: room // 2000 - 40]
        messages = [{"role": "user", "content": text}] * 2000
    else:
        if kind == "image":
            content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0K" * (room // 8)}}]
        elif kind == "escaped":
            content = ("\u0439\u0446\u0443 \u043a\u0435\u043d" * (room // 37))[: room // 6]
        elif kind == "code":
            line = '    values["name"] = [value for value in found if value]\n'
            content = line * (room // (len(line) + 3))
        else:
            content = " ".join(rng.choices(TOPICS.split(), k=room // 6))[:room]
        messages = [{"role": "user", "content": content}]
    body = {"model": "tier-1", "messages": messages, "max_tokens": 16}
    if kind != "escaped":
        return msgspec.json.encode(body)
    text = msgspec.json.encode(body).decode()
    return re.sub(r"[^\x00-\x7f]", lambda found: f"\\u{ord(found[0]):04x}", text).encode()


async def _send(url: str, key: str, body: bytes) -> int:
    """The status of one answer; on a connection of its own, so that sending costs this process little."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {key}\r\n"
        "x-aio-cache: off\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    try:
        writer.write(head.encode())
        writer.write(body)
        answer = await reader.read()
    finally:
        writer.close()
    return int(answer[9:12])


async def _buckets(client: httpx.AsyncClient) -> list[tuple[float, float]]:
    text = (await client.get("/metrics")).text
    return [(float(bound), float(count)) for bound, count in _BUCKET.findall(text)]


def quantile_ms(bounds: list[float], counts: list[float], q: float) -> float:
    """Milliseconds, interpolated as Prometheus does; `counts` are cumulative, `bounds` in seconds."""
    wanted = q * counts[-1]
    for (low, below), (bound, count) in pairwise(zip([0.0, *bounds], [0.0, *counts], strict=True)):
        if count >= wanted and count > below:
            if bound == float("inf"):
                return bound
            return round((low + (bound - low) * (wanted - below) / (count - below)) * 1e3, 2)
    return 0.0


class PacedUpstream(asyncio.Protocol):
    """One kept connection: a stream gets a token every `pace` seconds, anything else its answer at once."""

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        assert self._transport is not None
        self._buffer += data
        if (found := whole_request(self._buffer)) is None:
            return
        is_stream = b'"stream":true' in self._buffer
        del self._buffer[: found[2]]
        if is_stream:
            self._transport.write(_STREAM_HEAD)
            self._next(0)
        else:
            self._transport.write(WHOLE)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._timer is not None:
            self._timer.cancel()

    def _next(self, place: int) -> None:
        assert self._transport is not None
        if place == _TOKENS_PER_STREAM:
            self._transport.write(_EVENT % (b"", b'"stop"') + b"data: [DONE]\n\n")
            self._transport.close()
            return
        self._transport.write(_EVENT % (b"word ", b"null"))
        self._timer = asyncio.get_running_loop().call_later(self._pace, self._next, place + 1)


def paced_upstream(pace: float) -> AbstractAsyncContextManager[str]:
    """The base URL of an upstream whose streams have a token every `pace` seconds, in a process of its own."""
    return running_upstream(_LAUNCH.format(pace=pace))
