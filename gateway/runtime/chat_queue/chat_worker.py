"""The worker's side: takes chats from the queue, asks its tiers, and sends every delta back."""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress

import msgspec

from gateway.base.stores.redis_store import (
    TIMEOUT_SECONDS,
    RedisStore,
    RedisUnavailableError,
    cancellable,
    redis_client,
)
from gateway.base.stores.retries import background
from gateway.runtime.chat_queue.redis_chats import BELL, MOST_DELIVERIES, RedisChats, TakenChat
from gateway.runtime.chat_queue.wire import TierFacts, WorkerFacts, decoded_request, encoded_facts, piece_of
from inference_core.protocol import SamplingParams
from inference_core.transport.client import CoreClient
from tiers.errors import TierError, TierLostError, TierUnavailableError
from tiers.tier import Delta, GenerationRequest, Tier

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""How long a chat waits for a worker that has missed the bell."""
_MOST_UNSENT = 64
"""Deltas of a chat that its tier may be ahead of Redis."""
_FULL_SECONDS, _AWAY_SECONDS = 0.05, 0.2
_SETTLE_SECONDS = 4.0
"""How long the counts of a server elsewhere are waited for, after a chat was withdrawn."""


class NotHeldError(Exception):
    """The chat is another worker's, or its caller has left."""


class ChatWorker:
    """Answers queued chats with `tiers`, at most `concurrency` at once. `cores`: of these tiers, by name. `redelivered`
    is called for each chat that another worker had. `show` gets of each tier what waits, what is being answered and how
    long the oldest waits."""

    def __init__(
        self,
        store: RedisStore,
        url: str,
        lease_seconds: float,
        tiers: Callable[[], Iterable[Tier]],
        cores: Mapping[str, CoreClient],
        concurrency: int,
        redelivered: Callable[[], None],
        show: Callable[[str, int, int, float], None] = lambda *depth: None,
    ) -> None:
        self._chats, self._url, self._lease = RedisChats(store, lease_seconds), url, lease_seconds
        self._tiers, self._cores, self._concurrency = tiers, cores, concurrency
        self._redelivered, self._show = redelivered, show
        self._worker = secrets.token_hex(8)
        self._running: dict[str, tuple[TakenChat, asyncio.Task[None]]] = {}
        self._turn = asyncio.Event()
        self._draining = False

    @property
    def running(self) -> int:
        return len(self._running)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Take and answer chats while the context is open."""
        async with AsyncExitStack() as stack:
            with suppress(RedisUnavailableError):
                await self._keep()
            works = {"bell": self._listen, "leases": self._keep_all, "taking": self._take_all}
            for name, work in works.items():
                await stack.enter_async_context(background(work, f"chat queue: {name}"))
            yield
            await self.drain(0.0)

    async def drain(self, seconds: float) -> None:
        """Take nothing more, wait up to `seconds` for running chats, and hand back the rest."""
        self._draining = True
        self._turn.set()
        with suppress(RedisUnavailableError):
            await self._chats.forget(self._worker)
        running = list(self._running.values())
        if running:
            await asyncio.wait([task for _, task in running], timeout=seconds)
        left = [(taken, task) for taken, task in running if not task.done()]
        if left:
            log.warning("%d queued chats did not end in time and are handed back", len(left))
        for taken, _ in left:
            with suppress(RedisUnavailableError):
                await self._chats.hand_back(self._worker, taken)
            self._drop(taken.place)
        await asyncio.gather(*(task for _, task in left), return_exceptions=True)

    async def _take_all(self) -> None:
        turns = itertools.count()
        while not self._draining:
            self._turn.clear()
            free = self._concurrency - self.running
            tiers = [tier.name for tier in self._tiers() if tier.is_started]
            if free > 0 and tiers:
                # Tiers take turns to be first, so that none starves another of the same priority.
                first = next(turns) % len(tiers)
                tiers = tiers[first:] + tiers[:first]
                with suppress(RedisUnavailableError):
                    for taken in await self._chats.take(self._worker, tiers, free):
                        self._begin(taken)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._turn.wait()

    def _begin(self, taken: TakenChat) -> None:
        # Taken over from itself: its answer so far was lost on the way, or its loop was held up.
        self._drop(taken.place)
        if taken.deliveries > 1:
            self._redelivered()
            log.warning("a queued chat of tier %s is taken over, delivery %d", taken.tier, taken.deliveries)
        task = asyncio.create_task(self._work(taken))
        self._running[taken.place] = (taken, task)

        def ended(task: asyncio.Task[None]) -> None:
            if self._running.get(taken.place) == (taken, task):
                del self._running[taken.place]
            self._turn.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("a queued chat was given up", exc_info=error)

        task.add_done_callback(ended)

    def _drop(self, place: str) -> None:
        """Stop answering a chat that is not held any more."""
        if (running := self._running.pop(place, None)) is not None:
            running[1].cancel()

    async def _keep_all(self) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            with suppress(RedisUnavailableError):
                await self._keep()

    async def _keep(self) -> None:
        held = [taken for taken, _ in self._running.values()]
        for lost in await self._chats.keep(self._worker, encoded_facts(self._facts()), held):
            # One that has ended meanwhile is not there any more.
            self._drop(lost.place)
        for tier, depth in (await self._chats.depths([tier.name for tier in self._tiers()])).items():
            self._show(tier, depth.waiting, depth.running, depth.oldest_seconds)

    def _facts(self) -> WorkerFacts:
        started = {} if self._draining else {tier.name: TierFacts.of(tier) for tier in self._tiers() if tier.is_started}
        cores = {name: list(core.models.values()) for name, core in self._cores.items() if core.gone is None}
        return WorkerFacts(tiers=started, cores=cores)

    async def _listen(self) -> None:
        """Hear what is put and what is withdrawn."""
        from redis.exceptions import RedisError

        async with aclosing(redis_client(self._url, timeout_seconds=_LOOK_SECONDS + TIMEOUT_SECONDS)) as redis:
            while True:
                try:
                    async with redis.pubsub() as bell:
                        await cancellable(bell.subscribe(BELL))
                        while True:
                            ringing = bell.get_message(ignore_subscribe_messages=True, timeout=_LOOK_SECONDS)
                            rung = await cancellable(ringing)
                            if rung is not None:
                                self._hear(rung["data"].decode())
                except (RedisError, OSError):
                    await asyncio.sleep(_AWAY_SECONDS)

    def _hear(self, place: str) -> None:
        if place:
            self._drop(place)
        else:
            self._turn.set()

    async def _work(self, taken: TakenChat) -> None:
        sender = _Sender(self._chats, self._worker, taken, self._lease)
        try:
            request = decoded_request(taken.body, taken.age_seconds)
        except msgspec.DecodeError as error:
            log.error("a gateway of another version queued what cannot be read: %s", error)
            request = GenerationRequest(request_id="", sampling=SamplingParams())
            failure: TierError = TierUnavailableError("the workers of the chat queue are of another version")
            with suppress(NotHeldError):
                await sender.send(piece_of(request, [], failure=failure), last=True)
            return
        try:
            await self._answer(taken, request, sender)
        except NotHeldError:
            await self._settle(request, sender)
        except asyncio.CancelledError:
            # The tier was closed on the way here.
            sender.stop()
            await self._settle(request, sender)
            raise

    async def _answer(self, taken: TakenChat, request: GenerationRequest, sender: "_Sender") -> None:
        if taken.deliveries > MOST_DELIVERIES:
            error = TierLostError(f"{MOST_DELIVERIES} workers were lost while they answered")
            await sender.send(piece_of(request, [], failure=error), last=True)
            return
        if request.strict_deadline and request.deadline is not None and request.deadline < time.monotonic():
            late = TierUnavailableError("the deadline passed while the request waited in the chat queue")
            await sender.send(piece_of(request, [], failure=late), last=True)
            return
        if taken.deliveries > 1:
            # A gateway that has passed on what came before withdraws the chat.
            await sender.send(piece_of(request, []))
        failure: TierError | None = None
        last: list[Delta] = []
        try:
            async with aclosing(self._tier(taken.tier).generate(request)) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    if request.whole or delta.end is not None:
                        last.append(delta)
                    else:
                        await sender.push(request, delta)
            await sender.flush()
        except TierError as error:
            failure = error
            await sender.flush()
        except NotHeldError:
            raise
        except Exception as error:
            log.error("tier %s failed in request %s", taken.tier, request.request_id, exc_info=error)
            failure = TierError("a worker of the chat queue failed")
            await sender.flush()
        await sender.send(piece_of(request, last, failure=failure, ended=True), last=True)

    def _tier(self, name: str) -> Tier:
        for tier in self._tiers():
            if tier.name == name:
                return tier
        raise TierUnavailableError(f"tier '{name}' is gone from the worker's catalogue")

    async def _settle(self, request: GenerationRequest, sender: "_Sender") -> None:
        """Send what the chat has used, for a caller that has left."""
        if request.meter.is_empty:
            return
        if request.meter.unsettled:
            await asyncio.wait(request.meter.unsettled, timeout=_SETTLE_SECONDS)
        with suppress(RedisUnavailableError):
            await sender.settle(piece_of(request, [], left=True))


class _Sender:
    """Sends the pieces of one chat in order, for as long as the worker holds it."""

    def __init__(self, chats: RedisChats, worker: str, taken: TakenChat, lease_seconds: float) -> None:
        self._chats, self._worker, self._taken, self._lease = chats, worker, taken, lease_seconds
        self._number = 0
        self._unsent: list[Delta] = []
        self._sending: asyncio.Task[None] | None = None

    async def push(self, request: GenerationRequest, delta: Delta) -> None:
        """Send a delta, with all that come while those before it are on their way; wait once these are many. Raises
        `NotHeldError`, of a delta before it too."""
        self._unsent.append(delta)
        if self._sending is None or self._sending.done():
            await self.flush()
            self._sending = asyncio.create_task(self._send_all(request))
        elif len(self._unsent) >= _MOST_UNSENT:
            await self.flush()

    async def flush(self) -> None:
        """Wait until all deltas are sent. Raises `NotHeldError`."""
        if (sending := self._sending) is not None:
            self._sending = None
            await sending

    def stop(self) -> None:
        """Send nothing more."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    async def _send_all(self, request: GenerationRequest) -> None:
        while self._unsent:
            deltas, self._unsent = self._unsent, []
            await self.send(piece_of(request, deltas))

    async def send(self, piece: bytes, *, last: bool = False) -> None:
        """Wait until the piece is among the results. Raises `NotHeldError`, also if Redis is away for a lease."""
        self._number += 1
        until = time.monotonic() + self._lease
        while True:
            try:
                written = await self._chats.write(self._worker, self._taken, self._number, piece, last=last)
            except RedisUnavailableError:
                if time.monotonic() > until:
                    raise NotHeldError from None
                await asyncio.sleep(_AWAY_SECONDS)
                continue
            if written < 0:
                raise NotHeldError
            if written:
                return
            await asyncio.sleep(_FULL_SECONDS)

    async def settle(self, piece: bytes) -> None:
        """Send the last counts of a chat that was withdrawn."""
        self._number += 1
        await self._chats.settle(self._taken, self._number, piece)
