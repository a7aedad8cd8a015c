"""What AIO adds to litestar: the types of a request and a connection with the state that AIO gives its app, bodies and
forms as they arrive, a router that is registered once, and an application behind another one, made by the first request
for one of its paths."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self, TypeAlias

from litestar import Litestar, Router, asgi
from litestar.connection import ASGIConnection, Request
from litestar.datastructures import State
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive, Scope, Send
from multipart import MultipartError, MultipartSegment, PushMultipartParser

from gateway.base.errors import ApiError, ClientGoneError, bad_request

HttpRequest = Request[Any, Any, State]
Connection = ASGIConnection[Any, Any, Any, Any]
"""A request, or a WebSocket before its first message."""

LATE_APP = "late_app"


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


FormEvent: TypeAlias = MultipartSegment | bytes | bytearray | None
"""The head of a part of a form, a piece of its content, or its end."""


async def read_form(request: HttpRequest, most_parts: int, take: Callable[[FormEvent], Awaitable[None]]) -> None:
    """Call `take` with all events of a form with files while it arrives. Raises `ApiError`: 415 for another content
    type, 400 for a malformed form or one of more parts; `ClientGoneError`."""
    kind, options = request.content_type
    boundary = options.get("boundary")
    if kind != "multipart/form-data" or not boundary:
        raise ApiError(415, "Send the file as multipart/form-data with a boundary.")
    try:
        with PushMultipartParser(boundary, max_segment_count=most_parts, strict=True) as parser:
            async for chunk in body_chunks(request):
                for event in parser.parse(chunk):
                    await take(event)
                if parser.closed:
                    break
    except (MultipartError, UnicodeError, LookupError) as error:
        raise bad_request(f"The form cannot be read: {error}.", None, "invalid_form") from None


class OnceRouter(Router):
    """A router that is registered once.

    Of others litestar makes a deep copy, so that they may be registered again: a hundred handlers with all that they
    hold. Handlers may be shared between routers nevertheless, because each router copies its own.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class LateApp:
    """The application behind the one in front, which has it in its state as `LATE_APP`: `make` returns it.

    `make` is called with that state, on a thread, and may take a second: it imports what the application consists of,
    while the event loop serves others.
    """

    def __init__(self, make: Callable[[State], Litestar]) -> None:
        self._make = make
        self._app: Litestar | None = None
        self._making = asyncio.Lock()

    async def made(self, state: State) -> Litestar:
        if self._app is None:
            async with self._making:
                if self._app is None:
                    self._app = await asyncio.to_thread(self._make, state)
        return self._app


def below(path: str) -> ASGIRouteHandler:
    """Return the route of an application in front, to `path` and all that starts with it of its late application; of
    `/`, to it alone."""

    @asgi(path, is_mount=path != "/", copy_scope=False)
    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["app"].state
        if path != "/":  # the router has cut it off, and ends the rest with a slash
            scope["path"] = path + scope["path"].removesuffix("/")
        late: LateApp = state[LATE_APP]
        app = await late.made(state)
        await app(scope, receive, send)

    return pass_on
