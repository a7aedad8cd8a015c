"""A model server that is hostile, in a process of its own: it answers as the prompt of a request says, on every wire.

A prompt that contains `hostile:NAME:SEED` is answered by the function NAME of `ANSWERS`, whose randomness is of that
seed; another prompt gets a short honest answer. Pages that no prompt reaches (catalogues of models, metrics) are
answered by the name that `HostileUpstream.order` gave for their path. Every answer is bounded in bytes and seconds.

    python -m tests.attacks.hostile_upstream [--port PORT]     prints the port

A module of answers is named in `ANSWER_MODULES`, and decorates its functions with `upstream_answer`.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from random import Random

from tests.attacks.hostile_wires import WIRES, HostileWire

ANSWER_MODULES = tuple(f"tests.attacks.upstream_{name}" for name in ("floods", "claims", "cuts", "echoes"))
MOST_BYTES, MOST_SECONDS = 96 * 2**20, 60.0
"""Of one answer."""
_ASKED = re.compile(rb"hostile:([a-z_0-9]+):(\d+)")
_STREAMED = re.compile(rb'"stream"\s*:\s*true')
_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)


class SpentError(Exception):
    """The answer has had its bytes or its seconds."""


@dataclass
class Asked:
    """A request, and the way to answer it. `path` is without the wire's prefix; `prompted`: by a prompt, else for a
    page. `body` is the request's."""

    wire: HostileWire
    path: str
    body: bytes
    streamed: bool
    prompted: bool
    draw: Random
    _writer: asyncio.StreamWriter
    _until: float
    _left: int = MOST_BYTES

    async def send(self, data: bytes) -> None:
        """Send bytes as they are. Raises `SpentError`, ConnectionError."""
        self._left -= len(data)
        if self._left < 0 or time.monotonic() > self._until:
            raise SpentError
        self._writer.write(data)
        await self._writer.drain()

    async def head(self, *lines: bytes, status: int = 200, kind: str | None = None) -> None:
        """Send a whole head of the right content type, with these lines. The body ends with the connection."""
        usual = self.wire.content_type if self.streamed else "application/json"
        start = f"HTTP/1.1 {status} X\r\ncontent-type: {kind or usual}\r\n".encode()
        await self.send(start + b"".join(line + b"\r\n" for line in lines) + b"\r\n")

    async def begin(self) -> None:
        """Send the head and the beginning of a stream."""
        await self.head()
        await self.send(self.wire.begin())

    @property
    def address(self) -> str:
        """The host and port at which this server was asked."""
        host, port = self._writer.get_extra_info("sockname")[:2]
        return f"{host}:{port}"

    async def pause(self, seconds: float) -> None:
        """Send nothing for so long."""
        await asyncio.sleep(seconds)


Answering = Callable[[Asked], Awaitable[None]]
ANSWERS: dict[str, Answering] = {}


def upstream_answer(answering: Answering) -> Answering:
    """Register an answer under its function's name."""
    ANSWERS[answering.__name__] = answering
    return answering


def load_answers() -> dict[str, Answering]:
    """All answers by name."""
    for module in ANSWER_MODULES:
        import_module(module)
    return ANSWERS


@upstream_answer
async def honest(asked: Asked) -> None:
    """A short answer, or an ordinary page."""
    if not asked.prompted:
        body, kind = _page(asked.path)
        await asked.head(b"content-length: %d" % len(body), kind=kind)
        await asked.send(body)
    elif asked.streamed:
        await asked.begin()
        await asked.send(asked.wire.text("Hello") + asked.wire.end())
    else:
        body = asked.wire.whole("Hello")
        await asked.head(b"content-length: %d" % len(body))
        await asked.send(body)


def _page(path: str) -> tuple[bytes, str]:
    if path.endswith("/metrics"):
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        names += ("llamacpp:requests_processing", "llamacpp:requests_deferred")
        return "".join(f"{name} 0\n" for name in names).encode(), "text/plain"
    tensors = [{"name": name} for name in ("text_input", "max_tokens", "sampling_parameters", "text_output")]
    slot = {"default_generation_settings": {"n_ctx": 4096}}
    known = {"object": "list", "data": [{"id": "m", "max_model_len": 4096}]}
    return json.dumps(known | slot | {"name": "m", "inputs": tensors, "outputs": tensors}).encode(), "application/json"


class _Server:
    """`pages`: the answers and seeds of paths that no prompt reaches, by a part of the path."""

    def __init__(self) -> None:
        self._answers = load_answers()
        self._pages: dict[str, tuple[str, int]] = {}

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A kernel that takes megabytes would hide a gateway that does not read.
        writer.transport.set_write_buffer_limits(64 * 1024)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, SpentError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1])) if length else b""
            method, path = head.decode("latin-1").split(" ")[:2]
            if path == "/control":
                self._pages = {place: (name, seed) for place, (name, seed) in json.loads(body).items()}
                writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                await writer.drain()
            else:
                await self._answer(method, path, body, writer)
        with suppress(ConnectionError):
            writer.close()

    async def _answer(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        prefix = path.split("/")[1]
        wire = HostileWire(prefix if prefix in WIRES else "openai")
        prompted = method == "POST"
        name, seed = "honest", 0
        if prompted and (found := _ASKED.search(body)) is not None:
            name, seed = found[1].decode(), int(found[2])
        elif not prompted:
            name, seed = next((given for place, given in self._pages.items() if place in path), (name, seed))
        streamed = prompted and bool(_STREAMED.search(body) or "stream" in path.lower())
        until = time.monotonic() + MOST_SECONDS
        draw = Random(f"{name} {seed}")
        await self._answers[name](Asked(wire, path, body, streamed, prompted, draw, writer, until))


class HostileUpstream:
    """A running one. `url`: without a path; `base_url` has that of a wire."""

    def __init__(self, url: str) -> None:
        self.url = url

    def base_url(self, wire: str) -> str:
        """The address of a tier of this wire."""
        return f"{self.url}/{wire}{'' if wire in ('bedrock', 'triton') else '/v1'}"

    def order(self, pages: dict[str, tuple[str, int]]) -> None:
        """Answer the pages whose path contains a key of `pages` by its name and seed, and all others honestly."""
        order = urllib.request.Request(f"{self.url}/control", json.dumps(pages).encode())
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(order, timeout=30):
            pass


@contextmanager
def hostile_upstream() -> Iterator[HostileUpstream]:
    """Run one on a free port of 127.0.0.1 until the block ends."""
    process = subprocess.Popen([sys.executable, "-m", __name__], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield HostileUpstream(f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.kill()
        process.wait()


async def _serve(port: int) -> None:
    server = await asyncio.start_server(_Server().connected, "127.0.0.1", port, limit=2**20)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Serve on the port of `--port`, else on a free one, whatever the other arguments are: a child engine has some."""
    port = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in sys.argv else 0
    asyncio.run(_serve(port))


if __name__ == "__main__":
    # As the module that the answers import.
    import_module("tests.attacks.hostile_upstream").main()
