"""Noticing that the caller hung up, and dropping the work for him at once."""

import asyncio

from litestar.types import Receive

# Before that nobody looks: an answer that is there sooner has cost next to nothing, and a task costs it more.
FIRST_LOOK_SECONDS = 0.005


class Presence:
    """Cancels the task that made it as soon as its caller disconnects, unless `end` came first. `gone`: he has.

    One watching task serves a request from its routing to its last byte. The request's body must have been read.
    """

    def __init__(self, receive: Receive) -> None:
        self.gone = False
        self._receive = receive
        self._served = asyncio.current_task()
        self._watch: asyncio.Task[None] | None = None
        self._first_look = asyncio.get_running_loop().call_later(FIRST_LOOK_SECONDS, self._look)

    def end(self) -> None:
        """Watch no longer. Idempotent."""
        self._first_look.cancel()
        if self._watch is not None:
            self._watch.cancel()

    def is_reason(self, error: BaseException) -> bool:
        """Whether `error` is the cancellation by which the caller's leaving ended the work; it is then dealt with."""
        if not (self.gone and isinstance(error, asyncio.CancelledError)):
            return False
        if self._served is not None:
            self._served.uncancel()
        return True

    def _look(self) -> None:
        self._watch = asyncio.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._served is not None:
            self._served.cancel()
