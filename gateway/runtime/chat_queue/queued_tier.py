"""The gateway's side: tiers whose attempts go through the queue, and the one reader of their results."""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from gateway.base.stores.redis_store import (
    TIMEOUT_SECONDS,
    RedisStore,
    RedisUnavailableError,
    cancellable,
    redis_client,
)
from gateway.base.stores.retries import background
from gateway.runtime.chat_queue.redis_chats import Depth, Look, RedisChats, result_of, results_of
from gateway.runtime.chat_queue.wire import Piece, TierFacts, decoded_facts, decoded_piece, encoded_request
from inference_core.errors import CoreGoneError
from inference_core.io.background_tasks import once
from inference_core.protocol import Command, CoreStats, Hello, ModelInfo, QueryStats
from inference_core.transport.event_client import EventClient, Mailbox
from tiers.build import DelegatingTier
from tiers.errors import (
    HEADER,
    ReplicaStatus,
    TierBusyError,
    TierCapabilityError,
    TierError,
    TierLostError,
    TierUnavailableError,
)
from tiers.tier import Delta, GenerationRequest, Tier, TierLoad, Usage

log = logging.getLogger(__name__)

_BLOCK_SECONDS = 1.0
_AT_ONCE = 500
_PAUSE_SECONDS = 0.2
_PATIENCE_LEASES = 6
"""So long a chat waits for a tier that no worker has any more: one that restarts is back by then."""
SETTLE_SECONDS = 5.0
"""How long the counts of an answer that was left are waited for."""


class ForgottenError(TierLostError):
    """Redis has lost the chat."""


class OpenChat:
    """A chat of this process that is in the queue: what has arrived of its answer, and what it has used."""

    def __init__(self, chat: str, tier: str, claims: list[Usage]) -> None:
        """`claims`: those of the request's meter."""
        self.chat, self.tier = chat, tier
        self.put_at = time.monotonic()
        self.usage = Usage()
        self.has_ended = self.is_left = False
        self._arrived: Mailbox[tuple[int, Piece] | TierError] = Mailbox()
        self._claims = claims
        self._delivery = self._number = self._read_delivery = 0
        self._settled = asyncio.Event()

    def take(self, delivery: int, number: int, body: bytes) -> None:
        """Note a piece; one that came before, or that a worker before the present one sent, is nothing new."""
        if delivery < self._delivery or (delivery == self._delivery and number <= self._number):
            return
        piece = decoded_piece(body)
        if piece.left and not self.is_left:
            # Its worker has lost it to another one.
            return
        self._delivery, self._number = delivery, number
        if piece.ended or piece.left:
            self.has_ended = True
        self._arrived.put((delivery, piece))
        if self.is_left:
            self.note_unread()
            if self.has_ended:
                self._settled.set()

    def note(self, delivery: int, piece: Piece) -> None:
        """Count what has been used up to this piece, of the worker whose answer is passed on."""
        self._read_delivery, self.usage = delivery, piece.usage
        self._claims[:] = piece.claims

    def note_unread(self) -> None:
        """Count what has arrived for a caller that has left."""
        for arrived in self._arrived.items:
            if isinstance(arrived, tuple) and self._read_delivery in (0, arrived[0]):
                self.note(*arrived)

    def fail(self, error: TierError) -> None:
        self._arrived.put(error)

    async def next(self) -> tuple[int, Piece]:
        """Return the next piece and the delivery that it is of. Raises what the queue has failed with."""
        arrived = await self._arrived.get()
        if isinstance(arrived, TierError):
            raise arrived
        return arrived

    async def settled(self) -> None:
        """Wait for the last counts, not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._settled.wait()


class ChatQueue:
    """The queue as a gateway uses it. `most_waiting`: chats of one tier and priority that may wait. `show` gets
    of each tier what waits, what is being answered and how long the oldest waits."""

    def __init__(
        self,
        store: RedisStore,
        url: str,
        lease_seconds: float,
        most_waiting: int,
        show: Callable[[str, int, int, float], None] = lambda *depth: None,
    ) -> None:
        self._chats, self._url, self._show = RedisChats(store, lease_seconds), url, show
        self._lease, self._most_waiting = lease_seconds, most_waiting
        self._gateway = secrets.token_hex(8)
        self._open: dict[str, OpenChat] = {}
        self._running: Counter[str] = Counter()
        self._missing: frozenset[str] = frozenset()
        self._leaving: set[asyncio.Task[None]] = set()
        self._tiers: list[str] = []
        self._put = 0
        self._facts: dict[str, list[TierFacts]] = {}
        self._served_at: dict[str, float] = {}
        self._cores: dict[str, list[ModelInfo]] = {}
        self.depths: dict[str, Depth] = {}
        self.is_away = False

    def queued(self, tier: Tier) -> Tier:
        """Return the tier whose attempts are queued; `tier` says what a request is for it."""
        if tier.name not in self._tiers:
            self._tiers.append(tier.name)
        return QueuedTier(tier, self)

    def cores(self, names: list[str]) -> dict[str, EventClient]:
        """Return a client of each core that workers have, by name."""
        return {name: CoreOfWorkers(partial(self._models_of, name)) for name in names}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Read results and look at the queue while the context is open."""
        async with AsyncExitStack() as stack:
            with suppress(RedisUnavailableError):
                await self._look()
            await stack.enter_async_context(background(self._read, "results of queued chats"))
            await stack.enter_async_context(background(self._keep_looking, "the chat queue"))
            yield
            for task in self._leaving:
                task.cancel()

    async def put(self, tier: str, request: GenerationRequest) -> OpenChat:
        """Queue a chat. Raises `TierBusyError` if too many wait, and `TierUnavailableError` while Redis is away."""
        body = encoded_request(request)
        self._put += 1
        chat = OpenChat(str(self._put), tier, request.meter.claims)
        self._open[chat.chat] = chat
        self._running[tier] += 1
        try:
            is_put = await self._chats.put(self._gateway, chat.chat, tier, request.priority, body, self._most_waiting)
        except RedisUnavailableError as error:
            self.leave(chat)
            raise self._away() from error
        except BaseException:
            self.leave(chat)
            raise
        if not is_put:
            self._forget(chat)
            raise self._full(tier)
        request.meter.add(lambda: chat.usage)
        return chat

    def leave(self, chat: OpenChat) -> asyncio.Task[None] | None:
        """Forget a chat. One that has not ended is withdrawn, and the task ends once its last counts are there."""
        chat.note_unread()
        if chat.has_ended:
            self._forget(chat)
            return None
        chat.is_left = True
        task = once(self._withdraw(chat), "a chat that was left")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    def facts(self, tier: str) -> TierFacts | None:
        """Return what a worker tells of the tier, a healthy one if there is any."""
        facts = self._facts.get(tier, [])
        return next((told for told in facts if told.healthy), facts[0] if facts else None)

    def load(self, tier: str) -> TierLoad:
        """See `Tier.load`: it waits as long as the oldest one has waited, and as long as the least busy worker says."""
        facts, depth = self._facts.get(tier, []), self.depths.get(tier, Depth())
        healthy = [told.wait_seconds for told in facts if told.healthy]
        return TierLoad(
            # While Redis is away, an attempt says so, more clearly than a tier that is passed over.
            healthy=bool(healthy),
            running=self._running[tier],
            waiting=depth.waiting,
            predicted_wait_seconds=depth.oldest_seconds + min(healthy, default=0.0),
        )

    def _models_of(self, core: str) -> list[ModelInfo] | None:
        return self._cores.get(core)

    def _away(self) -> TierUnavailableError:
        return TierUnavailableError("the chat queue is away, because Redis does not answer")

    def _forgotten(self) -> TierLostError:
        return ForgottenError("the chat queue has lost the request")

    def _unserved(self) -> TierUnavailableError:
        return TierUnavailableError("no worker of the chat queue has the tier any more")

    def _full(self, tier: str) -> TierBusyError:
        error = TierBusyError(f"tier '{tier}' takes no chats now: {self._most_waiting} wait in its queue")
        error.retry_after_seconds = max(1.0, self.load(tier).predicted_wait_seconds)
        return error

    async def _withdraw(self, chat: OpenChat) -> None:
        try:
            with suppress(RedisUnavailableError):
                if await self._chats.withdraw(self._gateway, chat.chat):
                    await chat.settled()
        finally:
            self._forget(chat)

    def _forget(self, chat: OpenChat) -> None:
        del self._open[chat.chat]
        self._running[chat.tier] -= 1

    async def _read(self) -> None:
        """Hand every result to its chat. While Redis is away, chats wait for a lease."""
        from redis.exceptions import RedisError

        name, after, away_since = results_of(self._gateway), "0", 0.0
        async with aclosing(redis_client(self._url, timeout_seconds=_BLOCK_SECONDS + TIMEOUT_SECONDS)) as redis:
            while True:
                try:
                    reading = redis.xread({name: after}, count=_AT_ONCE, block=round(_BLOCK_SECONDS * 1e3))
                    answer: Any = await cancellable(reading)
                    entries = answer[0][1] if answer else []
                    for entry, fields in entries:
                        self._note(fields)
                        after = entry
                    if entries:
                        # All that is before the last one, which the next call passes over.
                        await cancellable(redis.xtrim(name, minid=after, approximate=False))
                    self.is_away, away_since = False, 0.0
                except (RedisError, OSError) as error:
                    if not self.is_away:
                        log.warning("the chat queue is away: %s", type(error).__name__)
                    self.is_away, away_since = True, away_since or time.monotonic()
                    if time.monotonic() - away_since > self._lease:
                        self._fail(list(self._open.values()), self._away)
                    await asyncio.sleep(_PAUSE_SECONDS)

    def _note(self, fields: Mapping[bytes, bytes]) -> None:
        number, delivery, position, piece = result_of(fields)
        chat = self._open.get(number)
        if chat is None:
            # Its caller left; the next look withdraws it, if it is still there.
            return
        try:
            chat.take(delivery, position, piece)
        except msgspec.DecodeError as error:
            log.error("a worker of another version sent what cannot be read: %s", error)
            chat.fail(TierError("a worker of another version answered"))

    async def _keep_looking(self) -> None:
        while True:
            with suppress(RedisUnavailableError):
                await self._look()
            await asyncio.sleep(self._lease / 3)

    async def _look(self) -> None:
        """Note what workers have and what waits, and miss chats that Redis has forgotten."""
        before = frozenset(self._open)
        seen = await self._chats.look(self._gateway)
        self._note_workers(seen)
        self.depths = await self._chats.depths(self._tiers)
        for tier, depth in self.depths.items():
            self._show(tier, depth.waiting, depth.running, depth.oldest_seconds)
        missing = before - seen.open_chats
        # Twice, since the last result of a chat that has ended may not have been read yet.
        gone = [chat for number in missing & self._missing if (chat := self._open.get(number)) is not None]
        self._fail([chat for chat in gone if not chat.has_ended], self._forgotten)
        self._missing = missing
        patience = time.monotonic() - _PATIENCE_LEASES * self._lease
        self._fail([chat for chat in self._open.values() if self._is_unserved(chat, patience)], self._unserved)
        for number in seen.open_chats - frozenset(self._open):
            await self._chats.withdraw(self._gateway, number)

    def _is_unserved(self, chat: OpenChat, patience: float) -> bool:
        return not chat.is_left and max(chat.put_at, self._served_at.get(chat.tier, 0.0)) < patience

    def _note_workers(self, seen: Look) -> None:
        facts: dict[str, list[TierFacts]] = {}
        cores: dict[str, list[ModelInfo]] = {}
        for body in seen.workers:
            try:
                worker = decoded_facts(body)
            except msgspec.DecodeError:
                continue
            for name, told in worker.tiers.items():
                facts.setdefault(name, []).append(told)
            cores |= worker.cores
        self._served_at |= dict.fromkeys(facts, time.monotonic())
        self._facts, self._cores = facts, cores

    def _fail(self, chats: list[OpenChat], why: Callable[[], TierError]) -> None:
        for chat in chats:
            chat.fail(why())


class QueuedTier(DelegatingTier):
    """A tier whose requests workers answer. See `Tier`.

    `tier` is never asked: it counts prompts and knows what its server or model refuses. What only a started one knows
    workers say.
    """

    def __init__(self, tier: Tier, queue: ChatQueue) -> None:
        super().__init__(tier)
        self._queue = queue

    async def start(self) -> None:
        """See `Tier.start`: returns when some worker has the tier."""
        if self._current.core_name is not None:
            await self._current.start()
            self._take_attributes()
        facts = self._queue.facts(self.name)
        if facts is None:
            raise TierUnavailableError(f"tier '{self.name}': no worker of the chat queue has it")
        self.model, self.max_context, self.max_output = facts.model, facts.max_context, facts.max_output
        self.num_layers, self.takes_chats = facts.num_layers, facts.takes_chats
        self.continues_chats = facts.continues_chats

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        if request.credential is not None:
            raise TierCapabilityError(f"tier '{self.name}' is asked through a queue, which takes no credential", HEADER)
        has_passed = False
        while True:
            try:
                async with aclosing(self._answered(request)) as deltas:
                    async for delta in deltas:
                        has_passed = True
                        yield delta
                return
            except ForgottenError:
                if has_passed:
                    raise

    async def _answered(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """Yield the deltas of one worker: of the last one, if none have been yielded before."""
        chat = await self._queue.put(self.name, request)
        delivered, has_passed = 0, False
        held: list[Delta] = []
        try:
            while True:
                delivery, piece = await chat.next()
                if delivery > delivered:
                    if has_passed:
                        raise TierLostError(f"the worker that answered for tier '{self.name}' is gone")
                    delivered, held = delivery, []
                chat.note(delivery, piece)
                piece.sent.put_into(request.sent)
                now = time.monotonic()
                for delta in piece.deltas:
                    delta.made_at = now
                    if request.whole:
                        held.append(delta)
                    else:
                        has_passed = True
                        yield delta
                if piece.failure is not None:
                    raise piece.failure.error()
                if piece.ended:
                    break
            for delta in held:
                yield delta
        except ForgottenError:
            chat.usage = Usage()
            raise
        finally:
            if (settling := self._queue.leave(chat)) is not None:
                request.meter.unsettled.append(settling)

    def load(self) -> TierLoad:
        return self._queue.load(self.name)

    def queues(self) -> dict[str, int]:
        return {self.name: self.load().waiting}

    def replicas(self) -> list[ReplicaStatus]:
        """See `Tier.replicas`: workers have them."""
        return []


class CoreOfWorkers(EventClient):
    """The client of a core that only workers reach: it knows the core's models, and computes nothing."""

    def __init__(self, models: Callable[[], list[ModelInfo] | None]) -> None:
        super().__init__()
        self._of_workers = models

    async def _connect(self) -> None:
        models = self._of_workers()
        if models is None:
            raise CoreGoneError("no worker of the chat queue has it")
        self._receive([Hello(models=models)])

    async def _disconnect(self) -> None:
        pass

    def _send(self, command: Command) -> None:
        if not isinstance(command, QueryStats):
            raise CoreGoneError("only chats go through the chat queue: ask a worker's process")
        if self._of_workers() is None:
            self._on_disconnect("no worker of the chat queue has it")
            return
        stats = CoreStats(query_id=command.query_id, steps=0, arena_bytes=0, slab_bytes=0, slabs_free=0, models=[])
        self._receive([stats])
