"""A core that other machines reach: its address, its listener, and the client that connects to it."""

import asyncio
import socket
import time

import msgspec

from inference_core.errors import CoreError, CoreGoneError, CoreTlsError
from inference_core.protocol import AbortRequest, AddRequest, Command
from inference_core.transport.framing import SILENT_SECONDS, Heartbeat
from inference_core.transport.handshake import HANDSHAKE_SECONDS, ClientHandshake, Newcomers
from inference_core.transport.listener import Listener, Protocols
from inference_core.transport.tls import CertificateFolder, Plain, Tls, TlsConnection, require_protection
from inference_core.transport.unix_socket import StreamCoreClient


class CoreAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a core listens."""

    host: str
    port: int
    secret: bytes
    """What a client must know; it is never sent."""
    tls: bool = False
    """Whether it speaks TLS."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"CoreAddress({self})"  # keeps the secret out of logs


class TcpListener(Listener):
    """Listens on `host`; port 0 takes a free one, which `address` then names. Clients must know `secret`.

    `tls`: the certificates of both ends, or where there may be none. A client that is silent for `silent_seconds` is
    disconnected and its requests end; clients must use the same limit.
    """

    def __init__(
        self,
        host: str,
        secret: bytes,
        port: int = 0,
        *,
        tls: Tls = Plain.ON_LOOPBACK,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        super().__init__()
        self._silent_seconds = silent_seconds
        self._tls = tls
        self._address = CoreAddress(host=host, port=port, secret=secret, tls=isinstance(tls, CertificateFolder))
        self._bound: socket.socket | None = None

    def __str__(self) -> str:
        return str(self._address)

    @property
    def address(self) -> CoreAddress:
        """Where clients connect, from `bind` on."""
        return self._address

    def bind(self) -> None:
        """See `Listener.bind`. Raises `CoreTlsError` for an address off this machine without TLS."""
        require_protection(self._tls, self._address.host)
        family = socket.AF_INET6 if ":" in self._address.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self._address.host, self._address.port))
        except OSError as error:
            bound.close()
            raise CoreError(f"cannot listen at {self}: {error}; name another address") from error
        self._bound = bound
        self._address = msgspec.structs.replace(self._address, port=bound.getsockname()[1])

    async def open(self, connection: Protocols) -> None:
        assert self._bound is not None
        newcomers = Newcomers(
            self._address.secret,
            lambda: Heartbeat(connection(), self._silent_seconds),
            self._tls if isinstance(self._tls, CertificateFolder) else None,
        )
        self._listener = await asyncio.get_running_loop().create_server(newcomers.protocol, sock=self._bound)

    def received(self, command: AddRequest | AbortRequest) -> AddRequest | AbortRequest:
        """Return the command with its times on this machine's clock; they are sent as seconds from now."""
        if isinstance(command, AbortRequest):
            return command
        shifted = _shifted(command, time.monotonic())
        # A request older than this machine's clock counts as arrived at 0.
        return shifted if shifted.arrival >= 0 else msgspec.structs.replace(shifted, arrival=0.0)

    def _forget(self) -> None:
        """A port leaves nothing behind."""


class TcpCoreClient(StreamCoreClient):
    """The client of the core at `address`; `silent_seconds` without a sign of it end the connection.

    `tls`: as of `TcpListener`; the core must speak TLS if and only if it names certificates.
    """

    def __init__(
        self,
        address: CoreAddress,
        *,
        tls: Tls = Plain.ON_LOOPBACK,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        super().__init__()
        self._address = address
        self._tls = tls
        self._silent_seconds = silent_seconds

    async def _reach(self, protocol: asyncio.Protocol) -> asyncio.WriteTransport:
        loop, address = asyncio.get_running_loop(), self._address
        self._require_agreement()
        handshake = ClientHandshake(address.secret, Heartbeat(protocol, self._silent_seconds))
        end: asyncio.Protocol = handshake
        if isinstance(self._tls, CertificateFolder):
            end = TlsConnection(self._tls.client_context(), handshake, server_side=False)
        stream: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                stream, _ = await loop.create_connection(lambda: end, address.host, address.port)
                is_trusted = await handshake.done
        except (OSError, TimeoutError) as error:
            raise CoreGoneError(f"no core answers at {address}: {error or 'no answer in time'}") from error
        finally:
            if stream is not None and not handshake.done.done():
                stream.abort()
        if handshake.failure is not None:
            raise CoreTlsError(f"no TLS with the core at {address}: {handshake.failure}") from handshake.failure
        if not is_trusted:
            raise CoreGoneError(f"the server at {address} is not the expected core, or accepts no clients now")
        return end if isinstance(end, TlsConnection) else stream

    def _require_agreement(self) -> None:
        """Raises `CoreTlsError` where this end and the core do not agree, or a plain connection may not be."""
        require_protection(self._tls, self._address.host)
        if self._address.tls != isinstance(self._tls, CertificateFolder):
            theirs, ours = ("", "out") if self._address.tls else ("out", "")
            raise CoreTlsError(
                f"the core at {self._address} was started with{theirs} TLS, this process with{ours} it; give both the "
                "same AIO_CORE_TLS"
            )

    def _send(self, command: Command) -> None:
        if isinstance(command, AddRequest):
            command = _shifted(command, -time.monotonic())
        super()._send(command)


def _shifted(request: AddRequest, seconds: float) -> AddRequest:
    """Return the request with its times `seconds` later; an unset arrival stays unset."""
    arrival = request.arrival and request.arrival + seconds
    deadline = None if request.deadline is None else request.deadline + seconds
    return msgspec.structs.replace(request, arrival=arrival, deadline=deadline)
