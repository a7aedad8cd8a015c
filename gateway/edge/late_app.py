"""An application behind another one, made by the first request for one of its paths."""

import asyncio
from collections.abc import Callable

from litestar import Litestar, asgi
from litestar.datastructures import State
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive, Scope, Send


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
