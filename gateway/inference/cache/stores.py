"""Where kept answers lie: in the memory of a process, or in a Redis that several share."""

import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from gateway.base.knobs.file import KnobFile
from gateway.base.stores.redis_store import RedisStore, RedisUnavailableError
from gateway.inference.cache.knobs import CacheKnobs

Clock = Callable[[], float]
# What an entry takes besides its value: key, tuple and places in the table, in bytes.
ENTRY_BYTES = 320
# With the version of a kept answer's shape: processes of different versions do not read each other's.
PREFIX = b"aio:answer:2:"


class AgedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """A kept value, `age_seconds` after it was put there."""

    key: bytes
    age_seconds: float
    value: bytes


class AnswerStore(ABC):
    """Keeps values for at least `ttl_seconds`, as far as there is room; never raises."""

    @abstractmethod
    async def get(self, key: bytes) -> bytes | None:
        """The value of `key`, if it is still there."""

    @abstractmethod
    async def put(self, key: bytes, value: bytes) -> None:
        """Keep `value`, in the place of an older one."""


class MemoryStore(AnswerStore):
    """In this process; the least recently used goes first. `clock`: seconds."""

    def __init__(self, knobs: KnobFile[CacheKnobs], clock: Clock = time.monotonic) -> None:
        self._knobs, self._clock = knobs, clock
        self._entries: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, key: bytes) -> bytes | None:
        """See `AnswerStore`."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._is_stale(entry[0]):
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry[1]

    async def put(self, key: bytes, value: bytes) -> None:
        """See `AnswerStore`."""
        if key in self._entries:
            self._drop(key)
        self._entries[key] = self._clock(), value
        self.bytes += len(value) + ENTRY_BYTES
        self.shrink()

    def shrink(self) -> None:
        """Let go of what is stale or beyond the bounds."""
        knobs = self._knobs.active
        while self._entries and (
            len(self._entries) > knobs.max_entries
            or self.bytes > knobs.max_bytes
            or self._is_stale(next(iter(self._entries.values()))[0])
        ):
            self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.bytes = 0

    def answers(self) -> list[AgedAnswer]:
        """What is kept and not stale, the least recently used first."""
        now = self._clock()
        return [
            AgedAnswer(key, now - kept_at, value)
            for key, (kept_at, value) in self._entries.items()
            if not self._is_stale(kept_at)
        ]

    def adopt(self, answers: Iterable[AgedAnswer]) -> None:
        """Keep `answers` of an earlier process, in their order, for the rest of their time."""
        for answer in answers:
            kept_at = self._clock() - answer.age_seconds
            if not self._is_stale(kept_at) and answer.key not in self._entries:
                self._entries[answer.key] = kept_at, answer.value
                self.bytes += len(answer.value) + ENTRY_BYTES
        self.shrink()

    def _is_stale(self, kept_at: float) -> bool:
        return self._clock() - kept_at >= self._knobs.active.ttl_seconds

    def _drop(self, key: bytes) -> None:
        _, value = self._entries.pop(key)
        self.bytes -= len(value) + ENTRY_BYTES


class SharedStore(AnswerStore):
    """In Redis, which forgets by itself; while it is down, nothing is found or kept, and `on_failure` is called."""

    def __init__(self, knobs: KnobFile[CacheKnobs], redis: RedisStore, on_failure: Callable[[], None]) -> None:
        self._knobs, self._redis, self._on_failure = knobs, redis, on_failure

    async def get(self, key: bytes) -> bytes | None:
        """See `AnswerStore`."""
        try:
            entry = await self._redis.ask(lambda redis: redis.get(PREFIX + key))
        except RedisUnavailableError:
            self._on_failure()
            return None
        return entry if isinstance(entry, bytes) else None

    async def put(self, key: bytes, value: bytes) -> None:
        """See `AnswerStore`."""
        milliseconds = max(1, round(self._knobs.active.ttl_seconds * 1e3))
        try:
            await self._redis.ask(lambda redis: redis.set(PREFIX + key, value, px=milliseconds))
        except RedisUnavailableError:
            self._on_failure()
