"""One gateway's connection to a core server: its frames, its unfinished requests, its unread bytes."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import cast

from inference_core.protocol import AbortRequest, AddRequest, Command, Event, Goodbye, SequenceOutput
from inference_core.protocol.mendable_errors import sent_error
from inference_core.transport.framing import FrameError, FrameReader, FrameWriter

log = logging.getLogger(__name__)


class CoreConnection(asyncio.Protocol):
    """Reads lists of commands and writes lists of events, never waiting for its reader.

    `unfinished` maps the client's own request ids to the number of choices still to finish. `opened`, `command`
    and `closed` are the server's; `closed` is called once, as soon as nothing more can be sent.
    """

    def __init__(
        self,
        *,
        opened: Callable[["CoreConnection"], None],
        command: Callable[["CoreConnection", Command], None],
        closed: Callable[["CoreConnection"], None],
        number: int,
        max_unread_bytes: int,
        max_frame_bytes: int,
    ) -> None:
        self.number = number
        self.unfinished: dict[str, int] = {}
        self._opened = opened
        self._command = command
        self._closed = closed
        self._max_unread_bytes = max_unread_bytes
        self._reader = FrameReader(list[Command], max_frame_bytes)
        self._writer = FrameWriter(max_frame_bytes)
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's TCP transports are none of asyncio's classes.
        self._transport = cast(asyncio.WriteTransport, transport)
        self._opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()

    def data_received(self, data: bytes) -> None:
        try:
            for commands in self._reader.feed(data):
                for command in commands:
                    self._note(command)
                    self._command(self, command)
        except FrameError as error:
            log.warning("connection %d broke the protocol: %s", self.number, error)
            self.end(str(error))

    def _note(self, command: Command) -> None:
        if isinstance(command, AddRequest):
            if command.request_id in self.unfinished:
                raise FrameError(f"request id {command.request_id!r} is still in use; give every request its own")
            self.unfinished[command.request_id] = command.n
        elif isinstance(command, AbortRequest) and command.index is None:
            self.unfinished.pop(command.request_id, None)

    def send(self, events: Sequence[Event]) -> None:
        """Write one frame; disconnect a client with too many unread bytes."""
        wanted = [event for event in events if self._is_wanted(event)]
        if not wanted or self._transport is None:
            return
        try:
            self._transport.write(self._writer.frame(wanted))
        except FrameError as error:
            self.end(str(error))
            return
        unread = self._transport.get_write_buffer_size()
        if unread > self._max_unread_bytes:
            log.warning("connection %d left %d bytes unread and is cut off", self.number, unread)
            transport = self._transport
            self._leave()
            transport.abort()

    def _is_wanted(self, event: Event) -> bool:
        """Count finished choices; return whether the output's request was unfinished (False after an abort)."""
        if not isinstance(event, SequenceOutput):
            return True
        left = self.unfinished.get(event.request_id)
        if left is None:
            return False
        if event.finish_reason == "error" or (event.finish_reason is not None and left == 1):
            del self.unfinished[event.request_id]
        elif event.finish_reason is not None:
            self.unfinished[event.request_id] = left - 1
        return True

    def end(self, reason: str, cause: BaseException | None = None) -> None:
        """Send a goodbye and close after all earlier frames. `cause`: the error that the core died of."""
        transport = self._transport
        if transport is not None:
            self.send([Goodbye(reason=reason, died=cause is not None, error=sent_error(cause))])
            self._leave()
            transport.close()

    def _leave(self) -> None:
        if self._transport is not None:
            self._transport = None
            self._closed(self)
