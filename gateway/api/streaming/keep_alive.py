"""Keeping a stream's connection open before its first token: proxies between us and the caller drop what is silent."""

import asyncio

from litestar.types import Send

from gateway.api.streaming.sending import EVENT_STREAM, Headers

COMMENT = b": keep-alive\n\n"


class KeepAlive:
    """Begins the response with a comment once nothing has been said for `seconds`, and says one whenever it is due.

    From then on the status is 200 and the headers are `headers`: who answers was not known yet, and what goes wrong is
    an event. Until then it costs a timer.
    """

    def __init__(self, send: Send, headers: Headers, seconds: float) -> None:
        self._send, self._headers, self._seconds = send, headers, seconds
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._due)
        self._speaking: asyncio.Task[None] | None = None

    async def end(self) -> bool:
        """Say no more; whether the response has begun."""
        self._timer.cancel()
        if self._speaking is not None:
            # Half a comment must not be left behind: a cancelled caller of this one waits for the rest of it again.
            await asyncio.shield(self._speaking)
        return self._speaking is not None

    def _due(self) -> None:
        begun = self._speaking is not None
        self._speaking = self._loop.create_task(self._speak(begun))
        self._timer = self._loop.call_later(self._seconds, self._due)

    async def _speak(self, begun: bool) -> None:
        if not begun:
            headers = [*EVENT_STREAM, *self._headers]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})
