"""Servers of models for tests: HTTP/1.1 on a free loopback port, whose replies a test writes byte by byte.

`LoopbackServer` serves on the test's own loop and answers as its handler says. `Upstream` is one with a thread of its
own, for gateways in other processes. `write_remote_catalog` writes the catalogue of tiers that are one such server: a
gateway over it needs no core and starts at once.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.loop_thread import on_a_thread

Handler = Callable[["Call"], Coroutine[Any, Any, None]]

TIER = """
[[tiers]]
number = {number}
name = "tier-{number}"
price = {{ input_usd_per_million = {price}, output_usd_per_million = {output} }}
objective = {{ ttft_ms = 1000, itl_ms = 100 }}
expected_answer_tokens = 200
mean_latency_ms = 1000
max_tokens = 512

[tiers.remote]
base_url = "{base_url}"
model = "{model}"
max_context = 4096
"""


@dataclass
class Call:
    """One request as received, and the way to answer it. `body`: its JSON, {} for another type; `raw`: its bytes."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    reader: asyncio.StreamReader = field(repr=False)
    writer: asyncio.StreamWriter = field(repr=False)
    raw: bytes = b""

    async def begin(self, status: int = 200, kind: str = "text/event-stream; charset=utf-8") -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n"
        await self.send(head.encode())

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def event(self, payload: object) -> None:
        await self.send(f"data: {json.dumps(payload)}\n\n".encode())

    async def chunk(self, text: str = "", *, index: int = 0, finish: str | None = None, **delta: object) -> None:
        """One chat chunk."""
        choice = {"index": index, "delta": {"content": text, **delta}, "finish_reason": finish}
        await self.event({"object": "chat.completion.chunk", "choices": [choice]})

    async def reply(self, status: int, payload: object) -> None:
        await self.begin(status, "application/json")
        await self.send(json.dumps(payload).encode())

    async def whole(
        self, content: str | None, usage: Mapping[str, Any] | None = None, finish: str = "stop", **message: Any
    ) -> None:
        """A whole chat answer."""
        said = {"role": "assistant", "content": content} | message
        answer = {"object": "chat.completion", "choices": [{"index": 0, "message": said, "finish_reason": finish}]}
        await self.reply(200, answer if usage is None else answer | {"usage": usage})

    async def end(self, usage: Mapping[str, Any] | None = None, finish: str = "stop") -> None:
        """What ends a streamed chat: why it ended, its counts where there are any, and the mark."""
        await self.chunk(finish=finish)
        if usage is not None:
            await self.event({"choices": [], "usage": usage})
        await self.send(b"data: [DONE]\n\n")

    async def say(self, *words: str, usage: Mapping[str, Any] | None = None) -> None:
        """A chat answer as it is asked for: whole, or streamed with a chunk for each of `words`."""
        if not self.body.get("stream"):
            await self.whole("".join(words), usage)
            return
        await self.begin()
        for word in words:
            await self.chunk(word)
        await self.end(usage)

    async def begin_chunked(self, kind: str = "text/event-stream; charset=utf-8") -> None:
        """Start a chunked body, as servers send streams."""
        head = f"HTTP/1.1 200 X\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
        await self.send(head.encode())

    async def chunked_event(self, payload: object) -> None:
        """One event of such a body."""
        data = f"data: {json.dumps(payload)}\n\n".encode()
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_chunked(self) -> None:
        """The end of such a body."""
        await self.send(b"0\r\n\r\n")

    async def client_gone(self) -> None:
        """Returns when the client has closed its side of the connection."""
        while await self.reader.read(1024):
            pass


async def list_nothing(call: Call) -> None:
    """What is there: a list of no models."""
    await call.reply(200, {"object": "list", "data": []})


class LoopbackServer:
    """Serves `handler` on a free port of 127.0.0.1; `calls` are the POST requests received.

    `looks`: the paths of GET requests, which `looked_at` answers.
    """

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.calls: list[Call] = []
        self.looks: list[str] = []
        self.looked_at: Handler = list_nothing
        self.disconnected = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "LoopbackServer":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def base_url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def drained(self) -> None:
        """Returns when no connection is being served."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """Refuse new connections and cut the open ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.disconnected.set()
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        is_json = bool(body) and "json" in headers.get("content-type", "json")
        call = Call(path, headers, json.loads(body) if is_json else {}, reader, writer, body)
        if method == "GET":
            self.looks.append(path)
            await self.looked_at(call)
            return
        self.calls.append(call)
        gone = asyncio.create_task(call.client_gone())
        answer = asyncio.create_task(self.handler(call))
        try:
            await asyncio.wait({gone, answer}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                self.disconnected.set()
            else:
                answer.result()
        finally:
            for task in (gone, answer):
                task.cancel()
            await asyncio.gather(gone, answer, return_exceptions=True)


class Upstream:
    """Answers the last message word by word. One that starts with `hold` pauses after its first word, or before it is
    sent whole, until `let_go`; one that starts with `linger` after its last word, before its end and usage. One that
    starts with `die` gets no answer: the asking process is to be killed."""

    def __init__(self) -> None:
        self.base_url = ""
        self.held = threading.Semaphore(0)
        self.deadly = threading.Semaphore(0)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._go = asyncio.Event()

    def let_go(self) -> None:
        """End every pause, also later ones."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self._go.set)

    def hold_again(self) -> None:
        """Pause as at first."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self._go.clear)

    async def answer(self, call: Call) -> None:
        text = call.body["messages"][-1]["content"]
        words = text.split(" ")
        usage = {"prompt_tokens": 10, "completion_tokens": len(words), "total_tokens": 10 + len(words)}
        if not call.body.get("stream"):
            await self._pause(words, "hold")
            await call.whole(text, usage)
            return
        await call.begin()
        await call.chunk(words[0])
        await self._pause(words, "hold")
        for word in words[1:]:
            await call.chunk(f" {word}")
        await self._pause(words, "linger")
        await call.end(usage)

    async def _pause(self, words: list[str], where: str) -> None:
        if words[0] == where:
            self.held.release()
            await self._go.wait()
        elif words[0] == "die":
            self.deadly.release()
            await asyncio.Event().wait()


@contextmanager
def running_upstream() -> Iterator[Upstream]:
    """Serve on a free loopback port until the block ends."""
    upstream = Upstream()
    with on_a_thread(LoopbackServer(upstream.answer)) as (server, upstream.loop):
        upstream.base_url = server.base_url
        yield upstream


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    """A server for tiers elsewhere, for a gateway process that serves the module's tests."""
    with running_upstream() as server:
        yield server


@pytest.fixture
def own_upstream() -> Iterator[Upstream]:
    """One for this test alone, which may let its answers go."""
    with running_upstream() as server:
        yield server


def remote_catalog(base_url: str, tiers: int = 4, *, own_models: bool = False) -> str:
    """Each tier costs ten times as much as the one before. `own_models`: each is a model of its own, which labels need:
    those of one model are equally good."""
    entries = (
        TIER.format(
            number=n,
            price=10.0 ** (n - 2),
            output=3 * 10.0 ** (n - 2),
            base_url=base_url,
            model=f"upstream-{n}" if own_models else "upstream",
        )
        for n in range(1, tiers + 1)
    )
    return 'name = "one-upstream"\n' + "".join(entries)


def write_remote_catalog(path: Path, base_url: str, tiers: int = 4, *, own_models: bool = False) -> Path:
    path.write_text(remote_catalog(base_url, tiers, own_models=own_models))
    return path
