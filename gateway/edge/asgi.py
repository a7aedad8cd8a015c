"""What AIO adds to litestar: the types of a request and a connection with the state that AIO gives its app, a router
that is registered once, and an application behind another one, made by the first request for one of its paths."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from litestar import Litestar, Router, asgi
from litestar.connection import ASGIConnection, Request
from litestar.datastructures import State
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive, Scope, Send

from gateway.base.errors import ClientGoneError

HttpRequest = Request[Any, Any, State]
Connection = ASGIConnection[Any, Any, Any, Any]
"""A request, or a WebSocket before its first message."""


async def body_chunks(request: HttpRequest) -> AsyncIterator[bytes]:
    """Yield the pieces of the body. Raises `ClientGoneError`."""
    while True:
        event = await request.receive()
        if event["type"] == "http.disconnect":
            raise ClientGoneError
        if event["type"] != "http.request":
            continue
        if body := event["body"]:
            yield body
        if not event.get("more_body", False):
            return


class OnceRouter(Router):
    """A router that is registered once.

    Of others litestar makes a deep copy, so that they may be registered again: a hundred handlers with all that they
    hold. Handlers may be shared between routers nevertheless, because each router copies its own.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class LateApp:
    """`make` returns the application, which shares the state of the one in front. It is called on a thread, and may
    take a second: it imports what the application consists of, while the event loop serves others.
    """

    def __init__(self, make: Callable[[State], Litestar]) -> None:
        self._make = make
        self._app: Litestar | None = None
        self._making = asyncio.Lock()

    def below(self, path: str) -> ASGIRouteHandler:
        """Return the route of the application in front to `path` and all that starts with it; of `/`, to it alone."""

        @asgi(path, is_mount=path != "/", copy_scope=False)
        async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
            front: Litestar = scope["app"]
            if path != "/":  # the router has cut it off, and ends the rest with a slash
                scope["path"] = path + scope["path"].removesuffix("/")
            app = self._app or await self._made(front.state)
            await app(scope, receive, send)

        return pass_on

    async def _made(self, state: State) -> Litestar:
        async with self._making:
            if self._app is None:
                self._app = await asyncio.to_thread(self._make, state)
            return self._app
