"""A listener for a process that may open few files: it accepts a connection only while there is room for it.

An event loop's own server accepts all connections that wait until the process has no file left. uvloop then resets the
rest, and tiers, journal and database cannot be opened. Connections that are not accepted wait in the kernel.
"""

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Collection
from contextlib import suppress

from inference_core.io.background_tasks import repeated

ENOUGH_FILES = 1024
"""From so many files on the loop's own server accepts: they suffice for the process and hundreds of callers."""
# Files besides those open at the start: the journal, connections to the database, a socket that is being accepted.
_SPARE_FILES = 10
_POLL_SECONDS = 0.01


def room_for_connections() -> int | None:
    """Return how many connections this process has files for, two each; None if it may open many."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_FILES:
        return None
    return max((soft - len(os.listdir("/dev/fd")) - _SPARE_FILES) // 2, 1)


class PacedServer:
    """Takes the place of an `asyncio.Server` that listens at `listener`, of which it makes a copy.

    `connections`: those that are open; at most `room` are accepted. `protocol`: makes a connection's protocol.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        connections: Collection[object],
        room: int,
    ) -> None:
        self._socket = socket.socket(fileno=os.dup(listener.fileno()))
        self._socket.setblocking(False)
        self.sockets = (self._socket,)
        self._protocol, self._connections, self._room = protocol, connections, room
        self._accepting = repeated(self._accept, "accepting with few open files")
        self._accepting.add_done_callback(lambda _: self._socket.close())

    def close(self) -> None:
        """Accept nothing more."""
        self._accepting.cancel()

    async def wait_closed(self) -> None:
        """Wait for the end of `close`."""
        with suppress(asyncio.CancelledError):
            await self._accepting

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Polled: a connection that becomes a WebSocket changes its protocol, and ends with that one.
            while len(self._connections) >= self._room:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
            try:
                accepted, _ = await loop.sock_accept(self._socket)
                await loop.connect_accepted_socket(self._protocol, accepted)
            except OSError:
                # No file is left for it, or its client has left.
                await asyncio.sleep(_POLL_SECONDS)
