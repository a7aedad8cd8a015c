"""The client of a core in a child process, which lives as long as its client wants it."""

import asyncio
import socket
import subprocess
from collections.abc import Callable

from inference_core.errors import CoreGoneError
from inference_core.transport.framing import MAX_FRAME_BYTES
from inference_core.transport.heartbeat import LocalHeartbeat
from inference_core.transport.unix_socket import StreamCoreClient

Launch = Callable[[socket.socket], "subprocess.Popen[bytes]"]
# A core ends within a step, and then unmaps its weights.
END_SECONDS = 8.0


class ChildCoreClient(StreamCoreClient):
    """A core in a process of its own, reached by a pair of sockets that no other process has.

    `launch` starts a process that serves a core on the given socket (`InheritedListener`), and so ends when this one
    closes its own, or ends in whatever way. It is called at every `start`, unless `launch_ahead` was called since the
    last one. A process that is still loading when it is no longer wanted is killed.
    """

    def __init__(self, launch: Launch, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        super().__init__(max_frame_bytes=max_frame_bytes)
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
