"""An OpenAI-compatible upstream with ready answers, in a process of its own: what benchmarks of proxying proxy to."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

WORDS = ["Paris", "is", "the", "capital", "of", "France", "."]
USAGE = {"prompt_tokens": 12, "completion_tokens": len(WORDS), "total_tokens": 12 + len(WORDS)}
_LONGEST_HEAD = 1 << 14
_LAUNCH = "from benchmarks.gateway.upstream import Upstream, serve_connections; serve_connections(Upstream)"

_TIER = """
[[tiers]]
number = {number}
name = "remote-{number}"
class = "{kind}"
price = {{ input_usd_per_million = {price}, output_usd_per_million = {price} }}
objective = {{ ttft_ms = 500, itl_ms = 50 }}
expected_answer_tokens = 200
mean_latency_ms = 1000
max_tokens = {max_tokens}
remote = {{ base_url = "{url}", model = "{model}", max_context = {max_context} }}
"""


def frame_of(kind: str, choices: list[Any]) -> dict[str, Any]:
    """A completion or a chunk of one without its usage."""
    return {"id": "mock-1", "object": kind, "created": 1, "model": "mock", "choices": choices}


def _events(usage: bool) -> bytes:
    deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}, *({"content": f"{w} "} for w in WORDS), {}]
    frames = [
        frame_of("chat.completion.chunk", [{"index": 0, "delta": d, "finish_reason": None if d else "stop"}])
        for d in deltas
    ]
    if usage:
        frames.append(frame_of("chat.completion.chunk", []) | {"usage": USAGE})
    return b"".join(b"data: " + msgspec.json.encode(frame) + b"\n\n" for frame in frames) + b"data: [DONE]\n\n"


def whole_answer(kind: str, body: bytes) -> bytes:
    """An answer with a status of 200."""
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


_CHOICE = {"index": 0, "message": {"role": "assistant", "content": " ".join(WORDS)}, "finish_reason": "stop"}
WHOLE = whole_answer("application/json", msgspec.json.encode(frame_of("chat.completion", [_CHOICE]) | {"usage": USAGE}))
STREAMED = {usage: whole_answer("text/event-stream", _events(usage)) for usage in (False, True)}
MODELS = whole_answer("application/json", b'{"object":"list","data":[{"id":"mock","object":"model"}]}')


class Upstream(asyncio.Protocol):
    """One kept connection; looks only for what it must know of a request."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._buffer += data
        while (request := whole_request(self._buffer)) is not None:
            head, start, stop = request
            body = bytes(self._buffer[start:stop])
            del self._buffer[:stop]
            self.respond(head, body)

    def respond(self, head: bytes, body: bytes) -> None:
        """Answer a request by its head in lower case and its body."""
        self.write(_reply(head, body.replace(b" ", b"")))

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        assert self._transport is not None
        self._transport.write(data)


def whole_request(buffer: bytes | bytearray) -> tuple[bytes, int, int] | None:
    """The head of the first request in lower case, and where its body starts and stops; None until it is whole."""
    end = buffer.find(b"\r\n\r\n", 0, _LONGEST_HEAD)
    if end < 0:
        return None
    head = bytes(buffer[:end]).lower()
    at = head.find(b"\r\ncontent-length:")
    stop = end + 4 + (int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0)
    return (head, end + 4, stop) if len(buffer) >= stop else None


def _reply(head: bytes, body: bytes) -> bytes:
    if head.startswith(b"get"):
        return MODELS
    return STREAMED[b'"include_usage":true' in body] if b'"stream":true' in body else WHOLE


def serve_connections(connection: Callable[[], asyncio.Protocol]) -> None:
    """Serve on a free port of this machine, which is printed, until standard input ends."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(connection, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        async with server:
            await loop.run_in_executor(None, sys.stdin.read)

    asyncio.run(serve())


@asynccontextmanager
async def running_upstream(launch: str = _LAUNCH) -> AsyncIterator[str]:
    """The base URL of an upstream that runs as long as the context does, in a process of its own; `launch`: the Python
    code that serves it by `serve_connections`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", launch, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.stdin.close()
        await process.wait()


def proxied_catalogue(url: str, model: str = "mock", *, max_context: int = 262_144, max_tokens: int = 4096) -> str:
    """A catalogue whose four tiers are all `model` of the upstream at `url`, up to /v1."""
    kinds = ("SIMPLE", "MEDIUM", "COMPLEX", "EXPERT")
    return 'name = "proxied"\n' + "".join(
        _TIER.format(
            number=n, kind=kind, price=float(n), url=url, model=model, max_context=max_context, max_tokens=max_tokens
        )
        for n, kind in enumerate(kinds, start=1)
    )
