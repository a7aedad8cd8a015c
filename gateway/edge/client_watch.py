"""Watch the client of a request: when it disconnects, or reads nothing for too long, its work is cancelled.

The HTTP protocol shows what answers the connection of its request, so that it is watched without a task.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from litestar.types import Receive, Scope

# The extension of an ASGI scope that holds the request's `ClientConnection`, where the server has it.
CLIENT_CONNECTION = "aio.client_connection"


class ClientConnection(Protocol):
    """Whether the client is still there."""

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone` once the connection is lost; at once if it already is."""

    def unwatch(self, gone: Callable[[], None]) -> None:
        """Call it no more. Idempotent."""


log = logging.getLogger(__name__)

# No task watches before that: most answers are there sooner, and a task would cost more than they do.
FIRST_LOOK_SECONDS = 0.005


class _ClientWatch:
    """Cancels the task that made it, at most once, unless `end` came first."""

    def __init__(self) -> None:
        self._cancelled = False
        self._served = asyncio.current_task()

    def is_reason(self, error: BaseException) -> bool:
        """Whether `error` is the cancellation by this watch; the task then counts as not cancelled any more."""
        if not (self._cancelled and isinstance(error, asyncio.CancelledError)):
            return False
        if self._served is not None:
            self._served.uncancel()
        return True

    def _cancel(self) -> None:
        self._cancelled = True
        if self._served is not None:
            self._served.cancel()


class DisconnectWatch(_ClientWatch):
    """Cancels as soon as the client disconnects, from a request's routing to its last byte. The server's protocol says
    so; other ASGI servers are watched by a task. The request's body must have been read."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__()
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None
        self._first_look: asyncio.TimerHandle | None = None
        extensions: dict[str, Any] = scope.get("extensions") or {}
        self._client: ClientConnection | None = extensions.get(CLIENT_CONNECTION)
        if self._client is not None:
            self._client.watch(self._cancel)
        else:
            self._first_look = asyncio.get_running_loop().call_later(FIRST_LOOK_SECONDS, self._look)

    def end(self) -> None:
        """Stop watching. Idempotent."""
        if self._client is not None:
            self._client.unwatch(self._cancel)
        if self._first_look is not None:
            self._first_look.cancel()
        if self._watch is not None:
            self._watch.cancel()

    def _look(self) -> None:
        self._watch = asyncio.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._cancel()


class StallWatch(_ClientWatch):
    """Cancels once what was `sending` has not been `taken` for `seconds`: an answer, and a remote tier behind it, would
    wait for such a client for ever.

    One timer at a time serves a stream of any length; an event costs a look at the clock.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._since: float | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._look)

    def sending(self) -> None:
        """Bytes are on their way to the client from now on."""
        self._since = time.monotonic()

    def taken(self) -> None:
        """The connection has room again."""
        self._since = None

    def end(self) -> None:
        """Stop watching. Idempotent."""
        self._timer.cancel()

    def _look(self) -> None:
        waited = 0.0 if self._since is None else time.monotonic() - self._since
        if waited < self._seconds:
            self._timer = self._loop.call_later(self._seconds - waited, self._look)
        elif self._served is not None:
            log.info("a stream's reader took nothing for %g s and is given up", self._seconds)
            self._cancel()
