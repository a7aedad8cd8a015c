"""The types of a request and of a connection: litestar's, with the state that AIO gives its app."""

from typing import Any, cast

from litestar.connection import ASGIConnection, Request
from litestar.datastructures import State
from litestar.exceptions import InternalServerException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from litestar.types import Empty

HttpRequest = Request[Any, Any, State]
Connection = ASGIConnection[Any, Any, Any, Any]
"""A request, or a WebSocket before its first message."""


class PlainRequest(Request[Any, Any, State]):
    """A request whose whole body is read from the server's messages. litestar reads it through an asynchronous
    generator and looks up its length in headers that it makes again, which takes several times as long."""

    async def body(self) -> bytes:
        """The body. Raises `RequestEntityTooLarge` if more than the limit is announced or has arrived, and
        `InternalServerException` if the client leaves before its end."""
        if self._body is Empty:
            self._body = await self._whole()
        return cast(bytes, self._body)

    async def _whole(self) -> bytes:
        most = self.route_handler.resolve_request_max_body_size()
        announced = [int(value) for name, value in self.scope["headers"] if name == b"content-length"]
        if most is not None and announced and announced[0] > most:
            raise RequestEntityTooLarge
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise InternalServerException("client disconnected prematurely")
            part = message["body"]
            size += len(part)
            if most is not None and size > most:
                raise RequestEntityTooLarge
            parts.append(part)
            more = message.get("more_body", False)
        self.is_connected = False
        return parts[0] if len(parts) == 1 else b"".join(parts)
