"""An OpenAI-compatible server for gateways in other processes: it serves from a thread and repeats its input."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.loop_thread import on_a_thread
from tests.tiers.remote.loopback_server import Call, LoopbackServer


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
