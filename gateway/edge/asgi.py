"""What AIO adds to litestar: a path below which all others are; the types of a request and a connection with the state
that AIO gives its app, bodies and forms as they arrive, and a router that is registered once."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self, TypeAlias, TypeVar

from litestar import Router
from litestar.connection import ASGIConnection, Request
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from litestar.types import ASGIApp, Receive, Scope, Send
from multipart import MultipartError, MultipartSegment, PushMultipartParser

from gateway.base.errors import ApiError, ClientGoneError, bad_request

HttpRequest = Request[Any, Any, State]
Connection = ASGIConnection[Any, Any, Any, Any]
"""A request, or a WebSocket before its first message."""

T = TypeVar("T")
Named: TypeAlias = NamedDependency[SkipValidation[T]]
"""An argument of a handler that a dependency of this name makes; it is ours, and needs no validation."""

ROOT = "aio.root"
"""In a scope: the path below which a proxy serves AIO, where it does."""


def root_of(connection: Connection) -> str:
    """Return the path below which the client sees AIO; "" for none."""
    scope: Any = connection.scope
    root: str = scope.get(ROOT, "")
    return root


class UnderRoot:
    """An application that a proxy serves below a path, which `root` tells of a request; "" for none.

    Requests lose the path, where the proxy has left it. Redirects to our own paths and the paths of cookies get it; the
    links of pages get it where they are rendered.
    """

    def __init__(self, app: ASGIApp, root: Callable[[Scope], str]) -> None:
        self._app, self._root = app, root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on."""
        root = "" if scope["type"] == "lifespan" else self._root(scope)  # type: ignore[comparison-overlap]
        if not root:
            await self._app(scope, receive, send)
            return
        extended: Any = scope
        extended[ROOT] = root
        for name, cut in (("path", root), ("raw_path", root.encode())):
            path: Any = scope.get(name)
            if path is not None and path[: len(cut)] == cut and path[len(cut) : len(cut) + 1] in ("", "/", b"", b"/"):
                extended[name] = path[len(cut) :] or path[:1]

        async def send_below(event: Any) -> None:
            if event["type"] == "http.response.start":
                event = event | {"headers": [(name, _below(root, name, value)) for name, value in event["headers"]]}
            await send(event)

        await self._app(scope, receive, send_below)


_COOKIE_PATH = re.compile(rb"(; *path=)(/[^;]*)", re.IGNORECASE)


def _below(root: str, name: bytes, value: bytes) -> bytes:
    kind = name.lower()
    if kind == b"location" and value.startswith(b"/") and not value.startswith(b"//"):
        return root.encode() + value
    if kind == b"set-cookie" and not value.startswith(b"__Host-"):
        return _COOKIE_PATH.sub(lambda match: match[1] + root.encode() + match[2].rstrip(b"/"), value)
    return value


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
