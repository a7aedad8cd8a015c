"""The model server behind the attacked gateways: it never fails, whatever is asked, and repeats the last message.

A request whose `user` says so gets a refusal by its number, or an answer with what was sent.
"""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.loop_thread import on_a_thread
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.remote.scripted_refusals import refusal

PAUSE = "pause"
"""A streamed answer to a message that starts with it has many words, slowly."""
REFUSED, TOLD = "refused ", "told"
"""The user of a request that gets the refusal of the number behind it, and of one that is told its own fields."""


def _text_of(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return (content if isinstance(content, str) else "") or "nothing"


class EchoUpstream:
    """`asked` counts the requests; `last` is the body of the latest, and `raw` its bytes."""

    def __init__(self) -> None:
        self.base_url, self.asked = "", 0
        self.last: dict[str, Any] = {}
        self.raw = b""
        self.server = LoopbackServer(self._answer)

    async def _answer(self, call: Call) -> None:
        self.asked += 1
        self.last, self.raw = call.body, call.raw
        self.server.calls.clear()
        messages, user = call.body.get("messages") or [{}], str(call.body.get("user"))
        if user.startswith(REFUSED) and "seed" in call.body:
            # Without it, the request is taken: what else was changed may be learned.
            found = refusal(int(user.removeprefix(REFUSED)))
            if found.status != 200:
                await call.reply(found.status, found.body)
                return
            await call.begin()
            await call.event(found.body)
            return
        if user == TOLD:
            # In hexadecimal, so that no stop string stands in it.
            await call.say(json.dumps(call.body).encode().hex())
            return
        text = _text_of(messages[-1])[:20_000]
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if not call.body.get("stream") or not text.startswith(PAUSE):
            await call.say(text, usage=usage)
            return
        await call.begin()
        for number in range(2000):
            await call.chunk(f" {number} " + "x" * 500)
            await asyncio.sleep(0.005)
        await call.end(usage)


@contextmanager
def echo_upstream() -> Iterator[EchoUpstream]:
    """Serve on a free loopback port until the block ends."""
    upstream = EchoUpstream()
    with on_a_thread(upstream.server):
        upstream.base_url = upstream.server.base_url
        yield upstream


class Canary:
    """A listening address that a gateway must not ask: it counts the connections."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                connection.close()

    def close(self) -> None:
        # Wakes the thread, which a close alone does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
