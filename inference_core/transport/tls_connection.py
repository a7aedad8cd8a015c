"""A TLS connection over a byte stream of the event loop, the same on asyncio and uvloop.

Instead of the loop's own, because asyncio closes a failed handshake without the alert that says why, and counts what a
peer left unread only in part.
"""

import asyncio
import contextlib
import ssl
from typing import Any, cast

from inference_core.errors import CoreTlsError
from inference_core.transport.tls import CERTIFICATE_NAME, check_peer, reason_of

_RECORD_BYTES = 16 << 10
"""The most that a record holds, and so a read returns."""
_WRITE_BYTES = 256 << 10
"""Bytes that are encrypted at once: a frame is not held as a whole in yet another copy."""


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """The protocol of the stream's transport, and the transport of `protocol`, whose `connection_made` follows the
    handshake.

    If TLS fails, also before `connection_made`, `protocol.connection_lost` gets a `CoreTlsError` with the reason. The
    caller bounds the time of the handshake.
    """

    def __init__(self, context: ssl.SSLContext, protocol: asyncio.Protocol, *, server_side: bool) -> None:
        super().__init__()
        self._protocol: asyncio.BaseProtocol = protocol
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = None if server_side else CERTIFICATE_NAME
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side, server_hostname=name)
        self._established = self._closing = False
        self._error: CoreTlsError | None = None

    # The protocol of the byte stream.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's TCP transports are none of asyncio's classes.
        self._stream = cast(asyncio.Transport, transport)
        self._advance()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._incoming.write(data)
        self._advance()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._protocol.connection_lost(self._error or error)

    def _advance(self) -> None:
        """Shake hands, then pass on all that has arrived."""
        received: list[bytes] = []
        error: ssl.SSLError | None = None
        try:
            if not self._established:
                self._shake_hands()
            while not self._closing and (self._incoming.pending or self._tls.pending()):
                if data := self._tls.read(_RECORD_BYTES):
                    received.append(data)
                else:
                    self.close()  # the peer sends nothing more
            self._flush()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLZeroReturnError:
            self.close()
        except ssl.SSLError as caught:
            error = caught
        if received:
            cast(asyncio.Protocol, self._protocol).data_received(b"".join(received))
        if error is not None:
            self._fail(error)

    def _shake_hands(self) -> None:
        self._tls.do_handshake()
        check_peer(self._tls.getpeercert() or {}, str(self.get_extra_info("peername")))
        self._established = True
        self._flush()
        self._protocol.connection_made(self)

    def _fail(self, error: ssl.SSLError) -> None:
        """Close, after the alert that tells the peer why."""
        if self._error is None:
            self._error = CoreTlsError(reason_of(error))
            self._error.__cause__ = error
        self._flush()
        self._closing = True
        self._stream.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._stream.write(self._outgoing.read())

    # The transport of the protocol above.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send; ignored once the connection is closing."""
        if self._closing:
            return
        left = memoryview(data)
        try:
            while left:
                left = left[self._tls.write(left[:_WRITE_BYTES]) :]
                self._flush()
        except ssl.SSLError as error:
            self._fail(error)

    def get_write_buffer_size(self) -> int:
        """Return the encrypted bytes that are not sent yet."""
        return self._stream.get_write_buffer_size()

    def is_closing(self) -> bool:
        """Whether the connection is closing or closed."""
        return self._closing

    def close(self) -> None:
        """Send what was written, say that it was all, and close."""
        if self._closing:
            return
        self._closing = True
        if self._established:
            with contextlib.suppress(ssl.SSLError):  # the peer's own farewell is not waited for
                self._tls.unwrap()
            self._flush()
        self._stream.close()

    def abort(self) -> None:
        """Close at once; what is not sent is lost."""
        self._closing = True
        self._stream.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let `protocol` receive from now on."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol that receives."""
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.BaseTransport`; of the byte stream."""
        return self._stream.get_extra_info(name, default)
