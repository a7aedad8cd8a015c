"""Connections to a listening core whose clients have proven nothing yet: few, for a short time, and none in the way."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import cast

from inference_core.transport.hmac_handshake import ServerHandshake
from inference_core.transport.tls import CertificateFolder
from inference_core.transport.tls_connection import TlsConnection

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
"""How long the handshakes of a connection, TLS and HMAC together, may take."""
MOST_NEWCOMERS = 128
"""Connections in their handshakes at once; one more closes the oldest. An honest handshake takes milliseconds, so what
is the oldest is hardly ever one."""
LOG_SECONDS = 10.0


class Newcomers:
    """`protocol` makes the protocol of each new connection; `admitted` that of one whose client knows `secret`, after
    TLS where `certificates` are given."""

    def __init__(
        self, secret: bytes, admitted: Callable[[], asyncio.Protocol], certificates: CertificateFolder | None
    ) -> None:
        self._secret = secret
        self._admitted = admitted
        self._certificates = certificates
        self._timers: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        self._refused = 0
        self._logged = float("-inf")

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of a connection that was just accepted."""
        return _Newcomer(self)

    def enter(self, stream: asyncio.Transport) -> asyncio.Protocol:
        """Count a connection, and return the protocol of its handshakes."""
        for closed in [one for one in self._timers if one.is_closing()]:
            self._leave(closed)
        if len(self._timers) >= MOST_NEWCOMERS:
            oldest = next(iter(self._timers))
            self._leave(oldest)
            oldest.abort()
            self._note_refused(oldest, "more recent connections took its place before it proved anything")
        self._timers[stream] = asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, stream.abort)

        def admitted() -> asyncio.Protocol:
            self._leave(stream)
            return self._admitted()

        handshake = ServerHandshake(self._secret, admitted, lambda reason: self._note_refused(stream, reason))
        if self._certificates is None:
            return handshake
        return TlsConnection(self._certificates.server_context(), handshake, server_side=True)

    def _leave(self, stream: asyncio.Transport) -> None:
        if (timer := self._timers.pop(stream, None)) is not None:
            timer.cancel()

    def _note_refused(self, stream: asyncio.Transport, reason: str) -> None:
        """Log a refusal; not each, so that strangers cannot fill the log."""
        self._refused += 1
        now = time.monotonic()
        if now - self._logged < LOG_SECONDS:
            return
        peer = stream.get_extra_info("peername")
        log.warning("refused %d connection(s), the last from %s: %s", self._refused, peer, reason)
        self._logged, self._refused = now, 0


class _Newcomer(asyncio.Protocol):
    """Passes a connection on as soon as it is there."""

    def __init__(self, newcomers: Newcomers) -> None:
        self._newcomers = newcomers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's TCP transports are none of asyncio's classes.
        stream = cast(asyncio.Transport, transport)
        protocol = self._newcomers.enter(stream)
        stream.set_protocol(protocol)
        protocol.connection_made(stream)
