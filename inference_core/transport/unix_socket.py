"""The client of a core in another process: over any byte stream, over a Unix socket, and of a child process.

A child process lives as long as its client wants it.
"""

import asyncio
import socket
import subprocess
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

from inference_core.errors import CoreGoneError, InvalidRequestError
from inference_core.protocol import Command, Event
from inference_core.transport.event_client import EventClient
from inference_core.transport.framing import (
    LOCAL_SILENT_SECONDS,
    MAX_FRAME_BYTES,
    FrameError,
    FrameReader,
    FrameWriter,
    LocalHeartbeat,
)


class StreamCoreClient(EventClient):
    """Speaks to a `CoreServer` over a byte stream; one connection, made at every `start`.

    `start` returns once the core has loaded its models. A command whose frame would be over `max_frame_bytes`
    raises `InvalidRequestError`.
    """

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        super().__init__()
        self._max_frame_bytes = max_frame_bytes
        self._writer = FrameWriter(max_frame_bytes)
        self._transport: asyncio.WriteTransport | None = None
        self._closed: asyncio.Future[None] | None = None

    @abstractmethod
    async def _reach(self, protocol: asyncio.Protocol) -> asyncio.WriteTransport:
        """Connect `protocol` to the server. Raises `CoreGoneError`."""

    async def _connect(self) -> None:
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def lost(reason: str, cause: Exception | None) -> None:
            self._on_disconnect(reason, cause, died=True)
            if not closed.done():
                closed.set_result(None)

        self._transport = await self._reach(EventProtocol(self._receive, lost, self._max_frame_bytes))
        self._closed = closed

    async def _disconnect(self) -> None:
        if self._transport is not None and self._closed is not None:
            transport, closed = self._transport, self._closed
            self._transport = self._closed = None
            transport.close()
            await closed

    def _send(self, command: Command) -> None:
        if self._transport is None:
            raise CoreGoneError("the core client is closed")
        try:
            frame = self._writer.frame([command])
        except FrameError as error:
            raise InvalidRequestError(
                f"prompt_token_ids is too large for the core's socket: {error}", "prompt_token_ids"
            ) from error
        self._transport.write(frame)


class SocketCoreClient(StreamCoreClient):
    """The client of the `serve_core` that listens at `path`. A core that is silent for `silent_seconds` is lost: its
    process is stopped, or its machine has no processor for it."""

    def __init__(
        self, path: str | Path, *, max_frame_bytes: int = MAX_FRAME_BYTES, silent_seconds: float = LOCAL_SILENT_SECONDS
    ) -> None:
        super().__init__(max_frame_bytes=max_frame_bytes)
        self._path, self._silent_seconds = str(path), silent_seconds

    async def _reach(self, protocol: asyncio.Protocol) -> asyncio.WriteTransport:
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_unix_connection(
                lambda: LocalHeartbeat(protocol, self._silent_seconds), self._path
            )
        except OSError as error:
            raise CoreGoneError(f"no core listens at {self._path}: {error}") from error
        return transport


class EventProtocol(asyncio.Protocol):
    """Reads lists of events; a frame holds all the events of one step."""

    def __init__(
        self,
        receive: Callable[[list[Event]], None],
        lost: Callable[[str, Exception | None], None],
        max_frame_bytes: int,
    ) -> None:
        self._receive = receive
        self._lost = lost
        self._reader = FrameReader(list[Event], max_frame_bytes)
        self._transport: asyncio.BaseTransport | None = None
        self._fault: FrameError | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._fault is not None:
            return
        try:
            for events in self._reader.feed(data):
                self._receive(events)
        except FrameError as error:
            self._fault = error
            if self._transport is not None:
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        cause = self._fault or error
        detail = f": {cause}" if cause is not None else ""
        self._lost(f"the connection to the core is lost{detail}", cause)


Launch = Callable[[socket.socket], "subprocess.Popen[bytes]"]
# A core ends within a step, and then unmaps its weights.
END_SECONDS = 8.0


class ChildCoreClient(StreamCoreClient):
    """A core in a process of its own, reached by a pair of sockets that no other process has.

    `launch` starts a process that serves a core on the given socket (`InheritedListener`), and so ends when this one
    closes its own, or ends in whatever way. It is called at every `start`, unless `launch_ahead` was called since the
    last one. A process that is still loading when it is no longer wanted is killed.
    """

    def __init__(self, launch: Launch) -> None:
        super().__init__()
        self._launch = launch
        self._process: subprocess.Popen[bytes] | None = None
        self._ahead: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the core's process, None if there is none."""
        process = self._ahead[0] if self._ahead is not None else self._process
        return None if process is None else process.pid

    def launch_ahead(self) -> None:
        """Start the process now, so that it loads while this one does other things. Raises `CoreGoneError`."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = self._launch(theirs)
            except OSError as error:
                ours.close()
                raise CoreGoneError(f"the core's process cannot be started: {error}") from error
        ours.setblocking(False)
        self._ahead = process, ours

    async def close(self) -> None:
        """See `CoreClient.close`; the process has ended then, one that was only launched ahead too."""
        await super().close()
        if self._ahead is not None:
            (process, channel), self._ahead = self._ahead, None
            channel.close()
            await asyncio.to_thread(_end, process, 0.0)

    async def _reach(self, protocol: asyncio.Protocol) -> asyncio.WriteTransport:
        if self._ahead is None:
            self.launch_ahead()
        assert self._ahead is not None
        (self._process, channel), self._ahead = self._ahead, None
        transport, _ = await asyncio.get_running_loop().create_unix_connection(
            lambda: LocalHeartbeat(protocol), sock=channel
        )
        return transport

    async def _disconnect(self) -> None:
        await super()._disconnect()
        if self._process is not None:
            process, self._process = self._process, None
            await asyncio.to_thread(_end, process, END_SECONDS if self._has_loaded or self.died else 0.0)

    @property
    def _has_loaded(self) -> bool:
        """Whether the last start succeeded."""
        connected = self._connected
        return connected is not None and connected.done() and not connected.cancelled() and not connected.exception()


def _end(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Return when a process without its socket has ended; after `seconds` it is killed."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
