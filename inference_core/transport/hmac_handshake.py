"""Both ends of a connection prove that they know a secret, which is never sent.

The server sends a random number; the client answers with its own random number and a code over both (HMAC-SHA256,
RFC 2104), and the server with another code over both. This encrypts nothing, and is done inside TLS too (`tls`): a
certificate shows that its owner belongs to the deployment, the secret that both ends mean the same core. The callers
bound the time of a handshake.
"""

import asyncio
import hmac
import secrets
from collections.abc import Callable
from typing import cast

from inference_core.errors import CoreTlsError

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
