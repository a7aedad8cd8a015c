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
    """Where a core listens. `secret`: what a client must know; it never travels."""

    host: str
    port: int
    secret: bytes

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"CoreAddress({self})"  # in no log the secret


class TcpListener(Listener):
    """Listens on `host`; port 0 takes a free one, which `address` then tells. Only who knows `secret` comes in.

    A client that is silent for `silent_seconds` is gone, and its requests with it; clients have to wait as long.
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
        """With its times by this machine's clock; they travel as seconds from now."""
        if isinstance(command, AbortRequest):
            return command
        shifted = _shifted(command, time.monotonic())
        # Whoever waited elsewhere since before this machine was started has arrived now.
        return shifted if shifted.arrival >= 0 else msgspec.structs.replace(shifted, arrival=0.0)

    def _forget(self) -> None:
        """Nothing is left of a port."""


class TcpCoreClient(StreamCoreClient):
    """Of the core at `address`; its silence of `silent_seconds` ends the connection."""

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
            raise CoreGoneError(f"who answers at {address} is not the core that was asked for, or takes nobody now")
        return transport

    def _send(self, command: Command) -> None:
        if isinstance(command, AddRequest):
            command = _shifted(command, -time.monotonic())
        super()._send(command)


def _shifted(request: AddRequest, seconds: float) -> AddRequest:
    """With its moments `seconds` later; an arrival that is not told stays so."""
    arrival = request.arrival and request.arrival + seconds
    deadline = None if request.deadline is None else request.deadline + seconds
    return msgspec.structs.replace(request, arrival=arrival, deadline=deadline)
