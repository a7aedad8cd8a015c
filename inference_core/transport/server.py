"""Serves one core to any number of gateway processes, over a Unix socket or over TCP.

A gateway's connection has its frames, its unfinished requests, and its unread bytes.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, cast

import msgspec

from inference_core.errors import CoreGoneError, QueueFullError
from inference_core.protocol import AbortRequest, AddRequest, Command, CoreHealth, Event, Goodbye, Hello, SequenceOutput
from inference_core.protocol.outputs import refusal, sent_error
from inference_core.protocol.token_channel import SharedCount, TokenChannel
from inference_core.transport.core_thread import (
    THE_CORE,
    WATCHDOG_SECONDS,
    CoreFactory,
    CoreLoop,
    SteppingCore,
    TokenRelay,
    why_dead,
)
from inference_core.transport.framing import MAX_FRAME_BYTES, FrameError, FrameReader, FrameWriter
from inference_core.transport.listener import Listener

log = logging.getLogger(__name__)


class CoreConnection(asyncio.Protocol):
    """Reads lists of commands and writes lists of events, never waiting for its reader.

    `unfinished` maps the client's own request ids to the number of choices still to finish. `opened`, `command`
    and `closed` are the server's; `closed` is called once, as soon as nothing more can be sent. `queued` counts the
    lists of events that the core has made. `channel`: of a Unix socket, where tokens may leave without this thread.
    """

    def __init__(
        self,
        *,
        opened: Callable[["CoreConnection"], None],
        command: Callable[["CoreConnection", Command], None],
        closed: Callable[["CoreConnection"], None],
        number: int,
        queued: SharedCount,
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
        self._queued, self._written = queued, SharedCount()
        self.channel: TokenChannel | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's TCP transports are none of asyncio's classes.
        self._transport = cast(asyncio.WriteTransport, transport)
        stream = transport.get_extra_info("socket")
        if stream is not None and stream.family == socket.AF_UNIX:
            self.channel = TokenChannel(stream.fileno(), self._queued, self._written)
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
        if unread:
            # Half a frame may be written, which no tokens of a step may follow.
            self._written.value = -1
        if unread > self._max_unread_bytes:
            log.warning("connection %d left %d bytes unread and is cut off", self.number, unread)
            transport = self._transport
            self._leave()
            transport.abort()

    def note_written(self, lists: int) -> None:
        """Note that so many lists of the core's events are written as far as they are this client's."""
        if self._transport is not None and self._transport.get_write_buffer_size() == 0:
            self._written.value = lists

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
            self._transport = self.channel = None
            self._closed(self)


T = TypeVar("T")


def serve_core(
    core_factory: CoreFactory,
    listener: Listener,
    *,
    grace_seconds: float = 10.0,
    watchdog_seconds: float = WATCHDOG_SECONDS,
    title: str = THE_CORE,
    tell_manager: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve a core behind `listener` until SIGTERM or SIGINT; what `aio serve --role core` runs. A private one: until
    its connection closes: a signal to all processes of a service must not end the core before its gateway has drained.

    After the signal nothing is accepted; running requests may finish within `grace_seconds` and are aborted then.
    `tell_manager` is called when it listens and when it stops, with sd_notify's lines. Raises `CoreGoneError` if the
    core dies or does not load, and `CoreError` if the address is not available.
    """
    server = CoreServer(partial(_permanent, core_factory), listener, watchdog_seconds=watchdog_seconds, title=title)
    asyncio.run(_serve_until_signal(server, grace_seconds, tell_manager))


def _permanent(core_factory: CoreFactory) -> SteppingCore:
    """Load a core without garbage collection, which would look at every object of torch again and again, now and
    whenever requests allocate many objects: what loading made stays for the life of the process."""
    gc.disable()
    try:
        return core_factory()
    finally:
        gc.freeze()
        gc.enable()


async def _serve_until_signal(server: "CoreServer", grace_seconds: float, tell_manager: Callable[[str], None]) -> None:
    loop, signalled = asyncio.get_running_loop(), asyncio.Event()

    def on_signal() -> None:
        if not server.is_private:
            signalled.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await server.start()
    tell_manager("READY=1")
    ends = signalled.wait(), server.wait_gone(), server.wait_abandoned()
    waits = [asyncio.create_task(end) for end in ends]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    tell_manager("STOPPING=1")
    await server.stop(grace_seconds)


class CoreServer:
    """A core on its thread, and the connections to it.

    Ids of requests and queries are prefixed by the connection's number on the way in and stripped on the way out, so
    clients can neither collide nor abort each other's work. A connection that drops takes its requests with it. A
    client with more than `max_unread_bytes` unread is disconnected.
    """

    def __init__(
        self,
        core_factory: CoreFactory,
        listener: Listener,
        *,
        max_unread_bytes: int = 8 << 20,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        watchdog_seconds: float = WATCHDOG_SECONDS,
        title: str = THE_CORE,
    ) -> None:
        self._title = title
        self._listener = listener
        self._max_unread_bytes = max_unread_bytes
        self._max_frame_bytes = max_frame_bytes
        self._core_factory = core_factory
        self._watchdog_seconds = watchdog_seconds
        self._connections: dict[int, CoreConnection] = {}
        self._numbers = 0
        self._hello: Hello | None = None
        self._health = CoreHealth(stuck=None)
        self._draining = False
        self._idle = asyncio.Event()
        self._abandoned = asyncio.Event()

    async def start(self) -> None:
        """Listen at once while the core loads; clients get their `Hello` when it is ready."""
        loop = asyncio.get_running_loop()
        self._listener.bind()
        self._gone: asyncio.Future[BaseException | None] = loop.create_future()
        self._relay = TokenRelay(self._share, self._note_received)
        self._core_loop = CoreLoop(
            self._core_factory,
            self._deliver,
            _on_loop(loop, self._note_core_gone),
            self._watchdog_seconds,
            self._title,
            self,
        )
        self._core_loop.start()
        await self._listener.open(self._connection)
        if self._gone.done():
            self._listener.close()
        log.info("%s listens at %s", self._title, self._listener)

    @property
    def is_private(self) -> bool:
        """Whether it serves one connection only, and ends with it."""
        return self._listener.is_private

    async def wait_gone(self) -> None:
        """Return when the core's thread has ended."""
        await asyncio.shield(self._gone)

    async def wait_abandoned(self) -> None:
        """Return when the only connection of a private listener is closed."""
        await self._abandoned.wait()

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Stop accepting, let requests finish for `grace_seconds`, abort the rest, close.

        Raises `CoreGoneError` if the core had died.
        """
        self._draining = True
        self._listener.close()
        if self._is_busy() and not self._gone.done():
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), grace_seconds)
        for connection in list(self._connections.values()):
            connection.end(f"{self._title} is shutting down")
        self._core_loop.stop()
        cause = await self._gone
        await asyncio.to_thread(self._core_loop.join)
        self._relay.close()
        if cause is not None:
            raise CoreGoneError(why_dead(cause, self._title)) from cause

    def _connection(self) -> CoreConnection:
        self._numbers += 1
        return CoreConnection(
            opened=self._note_opened,
            command=self._pass_on,
            closed=self._note_closed,
            number=self._numbers,
            queued=self._relay.queued,
            max_unread_bytes=self._max_unread_bytes,
            max_frame_bytes=self._max_frame_bytes,
        )

    def _note_opened(self, connection: CoreConnection) -> None:
        self._connections[connection.number] = connection
        if self._gone.done() and (cause := self._gone.result()) is not None:
            connection.end(why_dead(cause, self._title), cause)
        elif self._gone.done() or self._draining:
            connection.end(f"{self._title} is shutting down")
        elif self._hello is not None:
            connection.send([self._hello, self._health] if self._health.stuck else [self._hello])

    def _note_closed(self, connection: CoreConnection) -> None:
        del self._connections[connection.number]
        for request_id in connection.unfinished:
            self._core_loop.submit(AbortRequest(f"{connection.number}/{request_id}"))
        self._note_idle()
        if self._listener.is_private:
            self._abandoned.set()

    def _pass_on(self, connection: CoreConnection, command: Command) -> None:
        """Submit a client's command to the core under the connection's prefix."""
        if isinstance(command, AddRequest) and self._draining:
            connection.send([refusal(command.request_id, QueueFullError("the core is shutting down; ask another"))])
        elif isinstance(command, AddRequest | AbortRequest):
            wire_id = f"{connection.number}/{command.request_id}"
            command = msgspec.structs.replace(self._listener.received(command), request_id=wire_id)
            self._core_loop.submit(command)
        else:
            wire_id = f"{connection.number}/{command.query_id}"
            self._core_loop.submit(msgspec.structs.replace(command, query_id=wire_id))

    def route(self, request_id: str) -> tuple[TokenChannel, str] | None:
        """See `TokenRoutes`: to the socket of the client, or where that is none of this machine's, to this thread."""
        number, _, name = request_id.partition("/")
        connection = self._connections.get(int(number)) if number.isdecimal() else None
        if connection is None:
            return None
        channel = connection.channel
        return self._relay.route(request_id) if channel is None else (channel, name)

    def _deliver(self, events: list[Event]) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop was closed first
            self._relay.queue(events)

    def _note_received(self, lists: int) -> None:
        for connection in self._connections.values():
            connection.note_written(lists)

    def _share(self, events: Sequence[Event]) -> None:
        """Send each connection its events of one turn in one frame."""
        shares: dict[int, list[Event]] = defaultdict(list)
        for event in events:
            if isinstance(event, SequenceOutput):
                number, _, event.request_id = event.request_id.partition("/")
                shares[int(number)].append(event)
            elif isinstance(event, Hello):
                self._hello = event
                self._listener.note_loaded()
                for connection in list(self._connections.values()):
                    connection.send([event])
            elif isinstance(event, CoreHealth):
                self._health = event
                for connection in list(self._connections.values()):
                    connection.send([event])
            elif not isinstance(event, Goodbye):
                number, _, event.query_id = event.query_id.partition("/")
                shares[int(number)].append(event)
        for connection_number, share in shares.items():
            if receiver := self._connections.get(connection_number):
                receiver.send(share)
        self._note_idle()

    def _note_core_gone(self, cause: BaseException | None) -> None:
        self._listener.close()
        if cause is not None:
            for connection in list(self._connections.values()):
                connection.end(why_dead(cause, self._title), cause)
        self._idle.set()
        self._gone.set_result(cause)

    def _is_busy(self) -> bool:
        return any(connection.unfinished for connection in self._connections.values())

    def _note_idle(self) -> None:
        if not self._is_busy():
            self._idle.set()


def _on_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[T], None]) -> Callable[[T], None]:
    def call(value: T) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop was closed first
            loop.call_soon_threadsafe(callback, value)

    return call
