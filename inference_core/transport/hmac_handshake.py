"""Both ends of a connection prove that they know a secret, which is never sent.

The server sends a random number; the client answers with its own random number and a code over both (HMAC-SHA256,
RFC 2104), and the server with another code over both. The connection is not encrypted.
"""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable
from typing import cast

log = logging.getLogger(__name__)

SECONDS = 10.0
"""How long each end waits for the other."""
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
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's TCP transports are none of asyncio's classes.
        self._transport = cast(asyncio.WriteTransport, transport)
        self._timer = asyncio.get_running_loop().call_later(SECONDS, self._end)

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
        if self._timer is not None:
            self._timer.cancel()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._received:
            protocol.data_received(bytes(self._received))

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


class ServerHandshake(_Handshake):
    """The listening end: disconnects clients that do not know the secret; `connection` makes a protocol for others."""

    def __init__(self, secret: bytes, connection: Callable[[], asyncio.Protocol]) -> None:
        super().__init__(secret)
        self._connection = connection
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
            log.warning("%s does not know the core's secret", self._transport.get_extra_info("peername"))
            self._end()
            return
        self._transport.write(_code(self._secret, _SERVER, self._number, client_number))
        self._hand_over(self._connection())


class ClientHandshake(_Handshake):
    """The connecting end; `done`: whether the server knows the secret; then `protocol` takes the connection."""

    def __init__(self, secret: bytes, protocol: asyncio.Protocol) -> None:
        super().__init__(secret)
        self._protocol = protocol
        self._number = secrets.token_bytes(_SIZE)
        self._server_number: bytes | None = None
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

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

    def _end(self) -> None:
        super()._end()
        if not self.done.done():
            self.done.set_result(False)
