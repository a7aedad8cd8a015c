"""Connections to a listening core whose clients have proven nothing yet, and the proof that both ends know a secret.

Such connections are few, for a short time, and none in the way. The secret is never sent. The server sends a random
number; the client answers with its own random number and a code over both (HMAC-SHA256, RFC 2104), and the server with
another code over both. This encrypts nothing, and is done inside TLS too (`tls`): a certificate shows that its owner
belongs to the deployment, the secret that both ends mean the same core. The callers bound the time of a handshake.
"""

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from typing import cast

from inference_core.errors import CoreTlsError
from inference_core.transport.tls import CertificateFolder, TlsConnection

_SIZE = 32
_CLIENT, _SERVER = b"aio core 1 client", b"aio core 1 server"


def _code(secret: bytes, who: bytes, server_number: bytes, client_number: bytes) -> bytes:
    return hmac.digest(secret, who + server_number + client_number, "sha256")


class _Handshake(asyncio.Protocol):
    """Exchanges the handshake, then passes the connection on to a protocol."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._received = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's TCP transports are none of asyncio's classes.
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._end()

    def _taken(self, size: int) -> bytes | None:
        """Take the first `size` received bytes; None if there are fewer."""
        if len(self._received) < size:
            return None
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _hand_over(self, protocol: asyncio.Protocol) -> None:
        transport, self._transport = self._transport, None
        assert transport is not None
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._received:
            protocol.data_received(bytes(self._received))

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


class ServerHandshake(_Handshake):
    """The listening end: disconnects clients that do not know the secret; `connection` makes a protocol for others.

    `refused` is called with the reason of a refusal, also of TLS.
    """

    def __init__(
        self, secret: bytes, connection: Callable[[], asyncio.Protocol], refused: Callable[[str], None]
    ) -> None:
        super().__init__(secret)
        self._connection = connection
        self._refused = refused
        self._number = secrets.token_bytes(_SIZE)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._transport is not None
        self._transport.write(self._number)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._transport is None or (answer := self._taken(2 * _SIZE)) is None:
            return
        client_number, code = answer[:_SIZE], answer[_SIZE:]
        if not hmac.compare_digest(code, _code(self._secret, _CLIENT, self._number, client_number)):
            self._refused("it does not know the core's secret")
            self._end()
            return
        self._transport.write(_code(self._secret, _SERVER, self._number, client_number))
        self._hand_over(self._connection())

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, CoreTlsError):
            self._refused(str(error))
        super().connection_lost(error)


class ClientHandshake(_Handshake):
    """The connecting end; `done`: whether the server knows the secret; then `protocol` takes the connection.

    `failure`: why TLS failed, if it did.
    """

    def __init__(self, secret: bytes, protocol: asyncio.Protocol) -> None:
        super().__init__(secret)
        self._protocol = protocol
        self._number = secrets.token_bytes(_SIZE)
        self._server_number: bytes | None = None
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.failure: CoreTlsError | None = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._transport is None:
            return
        if self._server_number is None and (number := self._taken(_SIZE)) is not None:
            self._server_number = number
            self._transport.write(self._number + _code(self._secret, _CLIENT, number, self._number))
        if self._server_number is None or (code := self._taken(_SIZE)) is None:
            return
        if not hmac.compare_digest(code, _code(self._secret, _SERVER, self._server_number, self._number)):
            self._end()
            return
        self._hand_over(self._protocol)
        if not self.done.done():
            self.done.set_result(True)

    def connection_lost(self, error: Exception | None) -> None:
        self.failure = error if isinstance(error, CoreTlsError) else None
        super().connection_lost(error)

    def _end(self) -> None:
        super()._end()
        if not self.done.done():
            self.done.set_result(False)


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
        for closed in [newcomer for newcomer in self._timers if newcomer.is_closing()]:
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
