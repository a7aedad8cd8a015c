"""A core that other machines reach: its address, its listener, and the client that connects to it."""

import asyncio
import socket
import time

import msgspec

from inference_core.errors import CoreError, CoreGoneError
from inference_core.protocol import AbortRequest, AddRequest, Command
from inference_core.transport.framing import MAX_FRAME_BYTES
from inference_core.transport.heartbeat import SILENT_SECONDS, Heartbeat
from inference_core.transport.hmac_handshake import SECONDS, ClientHandshake, ServerHandshake
from inference_core.transport.listener import Listener, Protocols
from inference_core.transport.unix_socket import StreamCoreClient


class CoreAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a core listens. `secret`: what a client must know; it is never sent."""

    host: str
    port: int
    secret: bytes

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"CoreAddress({self})"  # keeps the secret out of logs


class TcpListener(Listener):
    """Listens on `host`; port 0 takes a free port, which `address` then names. Clients must know `secret`.

    A client that is silent for `silent_seconds` is disconnected and its requests end; clients must use the same limit.
    """

    def __init__(self, host: str, secret: bytes, port: int = 0, *, silent_seconds: float = SILENT_SECONDS) -> None:
        super().__init__()
        self._silent_seconds = silent_seconds
        self._address = CoreAddress(host=host, port=port, secret=secret)
        self._bound: socket.socket | None = None

    def __str__(self) -> str:
        return str(self._address)

    @property
    def address(self) -> CoreAddress:
        """Where clients connect, from `bind` on."""
        return self._address

    def bind(self) -> None:
        """See `Listener.bind`."""
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
        """See `Listener.open`."""
        assert self._bound is not None
        loop, secret = asyncio.get_running_loop(), self._address.secret
        self._listener = await loop.create_server(
            lambda: ServerHandshake(secret, lambda: Heartbeat(connection(), self._silent_seconds)), sock=self._bound
        )

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
    """The client of the core at `address`; `silent_seconds` without a sign of it end the connection."""

    def __init__(
        self,
        address: CoreAddress,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        super().__init__(max_frame_bytes=max_frame_bytes)
        self._address = address
        self._silent_seconds = silent_seconds

    async def _reach(self, protocol: asyncio.Protocol) -> asyncio.WriteTransport:
        loop, address = asyncio.get_running_loop(), self._address
        handshake = ClientHandshake(address.secret, Heartbeat(protocol, self._silent_seconds))
        try:
            async with asyncio.timeout(SECONDS):
                transport, _ = await loop.create_connection(lambda: handshake, address.host, address.port)
        except (OSError, TimeoutError) as error:
            raise CoreGoneError(f"no core answers at {address}: {error or 'no connection in time'}") from error
        if not await handshake.done:
            raise CoreGoneError(f"the server at {address} is not the expected core, or accepts no clients now")
        return transport

    def _send(self, command: Command) -> None:
        if isinstance(command, AddRequest):
            command = _shifted(command, -time.monotonic())
        super()._send(command)


def _shifted(request: AddRequest, seconds: float) -> AddRequest:
    """Return the request with its times `seconds` later; an unset arrival stays unset."""
    arrival = request.arrival and request.arrival + seconds
    deadline = None if request.deadline is None else request.deadline + seconds
    return msgspec.structs.replace(request, arrival=arrival, deadline=deadline)
