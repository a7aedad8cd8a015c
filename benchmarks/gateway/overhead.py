"""What a token costs the server in Python, from a core's step to the bytes of its event; the core computes nothing."""

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import uvicorn

from benchmarks.gateway.constant_rate_core import ConstantRateCore
from gateway.app import create_app
from gateway.base.settings import Settings
from inference_core.loaders.model_path import resolve_model_path
from inference_core.protocol import ModelInfo
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.transport.core_thread import ThreadCoreClient
from tiers.catalog.load import load_catalog

Progress = Callable[[str, float], None]

TEXT = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
    'wife. "My dear Mr. Bennet," said his lady to him one day, "have you heard that Netherfield Park is let at last?"\n'
)
# Reads streams to their end and looks at nothing, in one thread of a process of its own, so that the server's thread
# pays neither for it nor for waking many readers. A line "STREAMS BODY" makes it ask; it answers "done" or what failed.
_CLIENT = r"""
import selectors, socket, sys

def answered(port, streams, body):
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    request = head.encode() + b"%d\r\n\r\n" % len(body) + body
    selector = selectors.DefaultSelector()
    for _ in range(streams):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(request)
        selector.register(connection, selectors.EVENT_READ, bytearray())
    while selector.get_map():
        for key, _ in selector.select():
            got = key.fileobj.recv(65536)
            key.data.extend(got)
            if b"data: [DONE]" in key.data or not got:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                if not got:
                    return f"a stream ended with {bytes(key.data)}"
            del key.data[:-64]
    return "done"

for line in sys.stdin:
    streams, _, body = line.strip().partition(" ")
    print(answered(int(sys.argv[1]), int(streams), body.encode()), flush=True)
"""


async def bench_overhead(
    settings: Settings, *, streams: int, tokens: int, step_seconds: float, repeats: int, progress: Progress
) -> dict[str, Any]:
    """Microseconds of CPU time on the event loop's thread, per token and per request, with `streams` at once.

    Two lengths of answers tell the cost of a token from that of a request; each figure is from the least CPU time of
    `repeats` runs. `core_us_per_step` is what the core's thread spends between two steps.
    """
    short, long = 8, 8 + tokens
    async with served(settings, step_seconds) as (port, core), _client(port) as load:
        await load(streams, short)  # what is made once is not counted
        least = {short: float("inf"), long: float("inf")}
        between = float("inf")
        for done in range(repeats):
            for length in (short, long):
                before, steps, spent = time.thread_time(), core().steps, core().loop_seconds
                await load(streams, length)
                least[length] = min(least[length], time.thread_time() - before)
                between = min(between, (core().loop_seconds - spent) / (core().steps - steps))
            progress("streaming", (done + 1) / repeats)
    per_token = (least[long] - least[short]) / (streams * tokens)
    return {
        "streams": streams,
        "tokens": long,
        "step_ms": step_seconds * 1e3,
        "loop_us_per_token": round(per_token * 1e6, 1),
        "loop_us_per_request": round((least[short] / streams - short * per_token) * 1e6),
        "core_us_per_step": round(between * 1e6, 1),
    }


@asynccontextmanager
async def served(settings: Settings, step_seconds: float) -> AsyncIterator[tuple[int, Callable[[], ConstantRateCore]]]:
    """The gateway on this thread's event loop, over a paced core that has the catalogue's models by name."""
    catalog = load_catalog(settings.catalog)
    paths = catalog.model_paths
    tokenizer = load_tokenizer(resolve_model_path(next(iter(paths.values()))))
    made: dict[str, ConstantRateCore] = {}

    def load(core: str) -> ConstantRateCore:
        models = [
            ModelInfo(name=name, model_path=path, max_context=8192, vocab_size=tokenizer.vocab_size, weight_bytes=0,
                      compute="paced")
            for name, path in paths.items() if catalog.core_of(name) == core
        ]  # fmt: skip
        made[core] = ConstantRateCore(models, tokenizer.encode(TEXT), step_seconds)
        return made[core]

    app = create_app(settings, cores={name: ThreadCoreClient(partial(load, name)) for name in catalog.core_names})
    first = catalog.core_of(catalog.tier(1).model_name)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, http="httptools", lifespan="on"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield listener.getsockname()[1], lambda: made[first]
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def _client(port: int) -> AsyncIterator[Callable[[int, int], Awaitable[None]]]:
    """A call (streams, tokens) that asks for so many answers at once and returns when all were read to their end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CLIENT, str(port), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    commands, answers = process.stdin, process.stdout

    async def load(streams: int, tokens: int) -> None:
        messages = [{"role": "user", "content": "Go on."}]
        body = {"model": "tier-1", "messages": messages, "max_tokens": tokens, "stream": True}
        commands.write(b"%d %b\n" % (streams, msgspec.json.encode(body)))
        answer = (await answers.readline()).decode().strip()
        if answer != "done":
            raise RuntimeError(f"not all of {streams} streams were answered: {answer or 'the client stopped'}")

    try:
        yield load
    finally:
        commands.close()
        await process.wait()
