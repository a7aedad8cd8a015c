"""The server's HTTP protocol with bounds on what a connection may cost before it has asked for anything."""

import asyncio
import logging
import resource
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import ApiError, ErrorEnvelope

log = logging.getLogger(__name__)

# What a process opens beside its callers' connections: the database, the journal, models, sockets of other processes.
_FILES_OF_OUR_OWN = 256
_MOST_FILES = 1 << 20
STEADY_BYTES_PER_SECOND = 65_536
_PHRASES = {408: b"Request Timeout", 503: b"Service Unavailable"}


class BoundedHttpProtocol(HttpToolsProtocol):
    """As uvicorn's, but a request must have arrived `patience` seconds after its connection or its first byte has, and
    beyond `most` connections a new one is told to come back: whoever only opens connections, or sends a byte now and
    then, holds none for long.

    One that arrives steadily, at `STEADY_BYTES_PER_SECOND` or faster, has as long again each time: a large file on a
    slow line. A request that arrives in one piece, as nearly all do, sets no timer.
    """

    def __init__(self, *arguments: Any, patience: float, most: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._patience, self._most = patience, most
        self._arriving = False
        self._deadline: asyncio.TimerHandle | None = None
        # Bytes since the deadline was set.
        self._arrived = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            # The log would be the attacker's as well.
            log.debug("refused a connection beyond %d", self._most)
            self._refuse(ApiError(503, "Too many connections. Try again later.", code="too_many_connections"))
        else:
            self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        super().data_received(data)
        if self._arriving:
            if self._deadline is None:
                self._set_deadline()
            self._arrived += len(data)

    def on_message_begin(self) -> None:
        """See httptools."""
        self._arriving = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        """See httptools."""
        self._arriving = False
        self._clear_deadline()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """See uvicorn; from here on the connection is another protocol's."""
        self._clear_deadline()
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._clear_deadline()
        super().connection_lost(exc)

    def _set_deadline(self) -> None:
        self._arrived = 0
        self._deadline = self.loop.call_later(self._patience, self._give_up)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self._arriving and self._arrived >= STEADY_BYTES_PER_SECOND * self._patience:
            self._set_deadline()
            return
        self._deadline = None
        answering = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if answering:
            self.transport.close()
        else:
            message = f"The request did not arrive within {self._patience:g} s."
            self._refuse(ApiError(408, message, code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Answer without the application, which has not been asked, and close."""
        body = msgspec.json.encode(ErrorEnvelope(error.body))
        head = (
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nretry-after: %s\r\n"
            b"connection: close\r\n\r\n"
        ) % (error.status, _PHRASES[error.status], len(body), error.retry_after.encode())
        self.transport.write(head + body)
        self.transport.close()


def connections_allowed(wanted: int | None) -> int:
    """How many connections this process may take: `wanted`, or what its open files allow, each with a tier's own.

    Raises the soft limit of open files to the hard one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if files > soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    allowed = max((files - _FILES_OF_OUR_OWN) // 2, 16)
    if wanted is not None and wanted > allowed:
        log.warning("%d connections are wanted, and %d open files allow %d", wanted, files, allowed)
    return allowed if wanted is None else min(wanted, allowed)
