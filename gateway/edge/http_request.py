"""The types of a request and of a connection: litestar's, with the state that AIO gives its app."""

from typing import Any

from litestar.connection import ASGIConnection, Request
from litestar.datastructures import State

HttpRequest = Request[Any, Any, State]
Connection = ASGIConnection[Any, Any, Any, Any]
"""A request, or a WebSocket before its first message."""
