"""An OpenAI-compatible server for gateways in other processes: it serves from a thread and repeats its input."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.tiers.remote.loopback_server import Call, LoopbackServer


class Upstream:
    """Answers the last message word by word. One that starts with `hold` pauses after its first word, or before it is
    sent whole, until `let_go`; one that starts with `linger` after its last word, before its end and usage. One that
    starts with `die` gets no answer: the asking process is to be killed."""

    def __init__(self) -> None:
        self.base_url = ""
        self.held = threading.Semaphore(0)
        self.deadly = threading.Semaphore(0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._go = asyncio.Event()
        self._stopped = asyncio.Event()

    def let_go(self) -> None:
        """End every pause, also later ones."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._go.set)

    def hold_again(self) -> None:
        """Pause as at first."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._go.clear)

    def stop(self) -> None:
        """End `serve`."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopped.set)

    async def serve(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        async with LoopbackServer(self._answer) as server:
            self.base_url = server.base_url
            started.set()
            await self._stopped.wait()

    async def _answer(self, call: Call) -> None:
        text = call.body["messages"][-1]["content"]
        words = text.split(" ")
        usage = {"prompt_tokens": 10, "completion_tokens": len(words), "total_tokens": 10 + len(words)}
        if not call.body.get("stream"):
            await self._pause(words, "hold")
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            await call.reply(200, {"object": "chat.completion", "choices": [choice], "usage": usage})
            return
        await call.begin()
        await call.chunk(words[0])
        await self._pause(words, "hold")
        for word in words[1:]:
            await call.chunk(f" {word}")
        await self._pause(words, "linger")
        await call.chunk(finish="stop")
        await call.event({"choices": [], "usage": usage})
        await call.send(b"data: [DONE]\n\n")

    async def _pause(self, words: list[str], where: str) -> None:
        if words[0] == where:
            self.held.release()
            await self._go.wait()
        elif words[0] == "die":
            self.deadly.release()
            await self._stopped.wait()


@contextmanager
def running_upstream() -> Iterator[Upstream]:
    """Serve on a free loopback port until the block ends."""
    upstream, started = Upstream(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(upstream.serve(started)))
    thread.start()
    assert started.wait(60)
    try:
        yield upstream
    finally:
        upstream.let_go()
        upstream.stop()
        thread.join()
