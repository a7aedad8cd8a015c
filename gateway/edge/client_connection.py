"""The connection of a request, as the HTTP protocol shows it to what answers: it can be watched without a task."""

from collections.abc import Callable
from typing import Protocol

# The extension of an ASGI scope that holds the request's `ClientConnection`, where the server has it.
CLIENT_CONNECTION = "aio.client_connection"


class ClientConnection(Protocol):
    """Whether the client is still there."""

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone` once the connection is lost; at once if it already is."""

    def unwatch(self, gone: Callable[[], None]) -> None:
        """Call it no more. Idempotent."""
