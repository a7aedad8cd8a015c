"""Events of a core to the event loop of its process, tokens of the decode steps under way among them.

Steps write those to a socket, past the interpreter; everything else is queued by the core's thread.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence

from inference_core.protocol import Event, SequenceOutput
from inference_core.protocol.token_channel import SharedCount, TokenChannel
from inference_core.transport.framing import FrameReader

_MOST_BYTES = 1 << 16


class TokenRelay:
    """Calls `receive` with queued events, and with outputs that steps write to its channel, in their order.

    `queued` counts the lists of events; `received` is called after each of them with how many have been received. All
    of it happens on the event loop that made the relay, but for `queue`.
    """

    def __init__(
        self, receive: Callable[[Sequence[Event]], None], received: Callable[[int], None] = lambda _: None
    ) -> None:
        self.queued = SharedCount()
        self._received = SharedCount()
        self._receive, self._note_received = receive, received
        self._queueing = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader(list[SequenceOutput])
        self._end, other = socket.socketpair()
        self._end.setblocking(False)
        with other:
            self._channel = TokenChannel(other.fileno(), self.queued, self._received)
        self._loop.add_reader(self._end, self._drain)

    def route(self, request_id: str) -> tuple[TokenChannel, str] | None:
        """See `TokenRoutes`: requests keep their ids."""
        return self._channel, request_id

    def queue(self, events: Sequence[Event]) -> None:
        """Receive `events` soon, after the tokens that left before; from any thread. Raises `RuntimeError` once the
        event loop is closed."""
        with self._queueing:
            self.queued.value += 1
            self._loop.call_soon_threadsafe(self._take, events)

    def close(self) -> None:
        """Take no further tokens. Idempotent."""
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end)
            self._end.close()

    def _take(self, events: Sequence[Event]) -> None:
        self._drain()
        self._receive(events)
        self._received.value += 1
        self._note_received(self._received.value)

    def _drain(self) -> None:
        while True:
            try:
                data = self._end.recv(_MOST_BYTES)
            except BlockingIOError:
                return
            for outputs in self._frames.feed(data):
                self._receive(outputs)
