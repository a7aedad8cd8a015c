"""The asyncio client that all transports share: commands out, events in, one stream per request."""

import asyncio
import itertools
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from inference_core.errors import CoreGoneError, CoreLostError, InvalidRequestError, KVTransferError
from inference_core.protocol import (
    AbortRequest,
    AdapterInfo,
    AdaptersSet,
    AddRequest,
    BlocksExported,
    BlocksImported,
    Command,
    CoreHealth,
    CoreStats,
    Event,
    ExportBlocks,
    Goodbye,
    Hello,
    ImportBlocks,
    KnobsSet,
    KnobValue,
    LoadAdapter,
    ModelInfo,
    QueryStats,
    SequenceOutput,
    SetKnobs,
    UnloadAdapter,
)
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame
from inference_core.protocol.outputs import received_error
from inference_core.transport.client import CoreClient

T = TypeVar("T")
Answer = CoreStats | KnobsSet | AdaptersSet | BlocksExported | BlocksImported
Query = QueryStats | SetKnobs | LoadAdapter | UnloadAdapter | ExportBlocks | ImportBlocks


class Mailbox(Generic[T]):
    """An unbounded queue from callbacks to one coroutine of the same event loop.

    Costs a third of an `asyncio.Queue`, which serves many readers and writers.
    """

    __slots__ = ("_items", "_loop", "_waiter")

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def items(self) -> list[T]:
        """What no one has taken yet, oldest first."""
        return list(self._items)

    def put(self, item: T) -> None:
        """Leave an item; the reader, if it waits, runs in the loop's next turn."""
        self._items.append(item)
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    async def get(self) -> T:
        """The oldest item, once there is one. A reader that is cancelled loses none."""
        while not self._items:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._items.popleft()


class EventClient(CoreClient):
    """A `CoreClient` over any channel that carries `Command`s one way and lists of `Event`s the other.

    A transport implements `_connect`, `_disconnect` and `_send`, calls `_receive` with the events of a step and
    `_on_disconnect` once when the channel closes. All of it happens on the event loop that awaited `start`.
    On the channel a request carries its own id and a serial number, so an id may be used again at once after
    an early close: outputs in flight for the closed request are dropped.
    """

    def __init__(self) -> None:
        self._serials = itertools.count()
        self._streams: dict[str, Mailbox[SequenceOutput | None]] = {}
        self._wire_ids: dict[str, str] = {}
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self._models: dict[str, ModelInfo] = {}
        self._connected: asyncio.Future[None] | None = None
        self._starting = asyncio.Lock()
        self._closed_reason: str | None = "the core client was not started"
        self._cause: BaseException | None = None
        self._died = False
        self._stuck: str | None = None

    @abstractmethod
    async def _connect(self) -> None:
        """Open the channel; `Hello` follows as its first event. Raises `CoreGoneError`."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Close the channel after what was sent before; idempotent."""

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Put a command on the channel; never blocks."""

    async def start(self) -> None:
        async with self._starting:
            if self._closed_reason is None:
                return
            await self._disconnect()  # events of a dead channel must not arrive on the next one
            self._closed_reason, self._cause, self._stuck = None, None, None
            self._died = False
            self._connected = asyncio.get_running_loop().create_future()
            try:
                await self._connect()
                await self._connected
            except BaseException:
                self._on_disconnect("the core client did not start")
                await self._disconnect()
                raise

    async def close(self) -> None:
        if self._closed_reason is None:
            for wire_id in self._streams:
                self._send(AbortRequest(wire_id))
        self._on_disconnect("the core client is closed")
        await self._disconnect()

    @property
    def gone(self) -> str | None:
        if self._closed_reason is None and (self._connected is None or not self._connected.done()):
            return "the core has not answered yet"
        return self._closed_reason

    @property
    def died(self) -> bool:
        return self._died

    @property
    def stuck(self) -> str | None:
        return self._stuck

    @property
    def models(self) -> dict[str, ModelInfo]:
        return self._models

    @property
    def is_idle(self) -> bool:
        """Whether no request is open and no query waits for its answer."""
        return not self._streams and not self._answers

    def generate(self, request: AddRequest) -> AsyncGenerator[SequenceOutput, None]:
        self.require_core()
        return self._outputs(request)

    async def _outputs(self, request: AddRequest) -> AsyncGenerator[SequenceOutput, None]:
        self.require_core()
        wire_id = f"{request.request_id}#{next(self._serials)}"
        mailbox: Mailbox[SequenceOutput | None] = Mailbox()
        self._streams[wire_id] = mailbox
        self._wire_ids[request.request_id] = wire_id
        unfinished = request.n
        try:
            self._send(msgspec.structs.replace(request, request_id=wire_id))
            while unfinished:
                output = await mailbox.get()
                if output is None:
                    raise self._closed_error(CoreLostError if self._died else CoreGoneError)
                output.request_id = request.request_id
                unfinished -= output.finish_reason is not None
                if output.finish_reason == "error":
                    unfinished = 0  # the core loop has ended the other choices
                if not unfinished:
                    del self._streams[wire_id]
                yield output
        finally:
            if self._streams.pop(wire_id, None) is not None and self._closed_reason is None:
                self._send(AbortRequest(wire_id))
            if self._wire_ids.get(request.request_id) == wire_id:
                del self._wire_ids[request.request_id]

    def unread(self, request_id: str) -> list[SequenceOutput]:
        mailbox = self._streams.get(self._wire_ids.get(request_id, ""))
        return [] if mailbox is None else [output for output in mailbox.items if output is not None]

    def abort_choice(self, request_id: str, index: int) -> None:
        wire_id = self._wire_ids.get(request_id)
        if wire_id is not None and wire_id in self._streams and self._closed_reason is None:
            self._send(AbortRequest(wire_id, index))

    async def stats(self) -> CoreStats:
        answer = await self._ask(QueryStats(self._query_id()))
        assert isinstance(answer, CoreStats)
        return answer

    async def set_knobs(
        self, changes: Mapping[str, KnobValue], model: str | None = None, *, keep: bool = False
    ) -> KnobsSet:
        answer = await self._ask(SetKnobs(self._query_id(), dict(changes), model, keep))
        assert isinstance(answer, KnobsSet)
        if answer.error is not None:
            raise InvalidRequestError(answer.error, answer.error_param)
        return answer

    async def load_adapter(self, model: str, name: str, path: str) -> list[AdapterInfo]:
        return _adapters(await self._ask(LoadAdapter(self._query_id(), model, name, path)))

    async def unload_adapter(self, model: str, name: str) -> list[AdapterInfo]:
        return _adapters(await self._ask(UnloadAdapter(self._query_id(), model, name)))

    async def export_blocks(self, chain: BlockChain, first: int, most_bytes: int) -> BlockFrame:
        answer = await self._ask(ExportBlocks(self._query_id(), chain, first, most_bytes))
        assert isinstance(answer, BlocksExported)
        if answer.frame is None:
            raise KVTransferError(answer.error or "no blocks were returned", answer.reason)
        return answer.frame

    async def import_blocks(self, chain: BlockChain, frame: BlockFrame | None = None) -> int:
        answer = await self._ask(ImportBlocks(self._query_id(), chain, frame))
        assert isinstance(answer, BlocksImported)
        if answer.error is not None:
            raise KVTransferError(answer.error, answer.reason)
        return answer.held

    def _query_id(self) -> str:
        return f"#{next(self._serials)}"

    async def _ask(self, command: Query) -> Answer:
        self.require_core()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[command.query_id] = answer
        try:
            self._send(command)
            return await answer
        finally:
            self._answers.pop(command.query_id, None)

    def _receive(self, events: Sequence[Event]) -> None:
        """Deliver every event to the stream or query that waits for it."""
        for event in events:
            if isinstance(event, SequenceOutput):
                if mailbox := self._streams.get(event.request_id):
                    mailbox.put(event)
            elif isinstance(event, Hello):
                self._models = {model.name: model for model in event.models}
                if self._connected is not None and not self._connected.done():
                    self._connected.set_result(None)
            elif isinstance(event, Goodbye):
                self._on_disconnect(event.reason, received_error(event.error), died=event.died)
            elif isinstance(event, CoreHealth):
                self._stuck = event.stuck
            elif (answer := self._answers.get(event.query_id)) and not answer.done():
                answer.set_result(event)

    def _on_disconnect(self, reason: str, cause: BaseException | None = None, *, died: bool = False) -> None:
        """Fail all streams and queries because the channel closed for `reason`. Only the first call counts.

        `died`: the core ended without having been stopped.
        """
        if self._closed_reason is not None:
            return
        self._closed_reason, self._cause, self._died = reason, cause, died
        for mailbox in self._streams.values():
            mailbox.put(None)
        for answer in [*self._answers.values(), self._connected]:
            if answer is not None and not answer.done():
                answer.set_exception(self._closed_error())
                answer.exception()  # no warning if the caller has stopped waiting

    def require_core(self) -> None:
        """Raises `CoreGoneError` if the channel is closed."""
        if self._closed_reason is not None:
            raise self._closed_error()

    def _closed_error(self, kind: type[CoreGoneError] = CoreGoneError) -> CoreGoneError:
        error = kind(self._closed_reason)
        error.__cause__ = self._cause
        return error


def _adapters(answer: Answer) -> list[AdapterInfo]:
    assert isinstance(answer, AdaptersSet)
    if answer.error is not None:
        raise InvalidRequestError(answer.error, answer.error_param)
    return answer.adapters
