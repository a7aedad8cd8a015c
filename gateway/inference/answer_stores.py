"""Where kept answers lie: in the memory of a process, or in a Redis that several share; with the cache's live knobs.

Over a restart: what a process has in memory when it stops, the next one begins with (SPEC CA-02).
"""

import logging
import math
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.base.knobs import KnobFile
from gateway.base.stores.redis_store import RedisStore, RedisUnavailableError
from inference_core.io.files import JSON_ERRORS, atomic_file


class CacheKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may change while serving; the bounds are enforced and the descriptions shown."""

    enabled: Annotated[
        bool, Meta(description="Whether AIO keeps answers, and equal requests at the same time share one.")
    ] = True
    ttl_seconds: Annotated[
        float, Meta(gt=0, le=86_400, description="For how many seconds AIO gives a kept answer again.")
    ] = 30.0
    max_entries: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="The most answers that a process keeps. The least recently used goes first.",
        ),
    ] = 10_000
    max_bytes: Annotated[
        int, Meta(ge=0, le=2**40, description="The most bytes of the answers of a process, and of a single one.")
    ] = 64 * 2**20


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
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._is_stale(entry[0]):
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry[1]

    async def put(self, key: bytes, value: bytes) -> None:
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
        try:
            entry = await self._redis.ask(lambda redis: redis.get(PREFIX + key))
        except RedisUnavailableError:
            self._on_failure()
            return None
        return entry if isinstance(entry, bytes) else None

    async def put(self, key: bytes, value: bytes) -> None:
        milliseconds = max(1, round(self._knobs.active.ttl_seconds * 1e3))
        try:
            await self._redis.ask(lambda redis: redis.set(PREFIX + key, value, px=milliseconds))
        except RedisUnavailableError:
            self._on_failure()


log = logging.getLogger(__name__)

MOST_BYTES = 256 * 2**20
"""Most bytes of answers in a file: neither end nor start of a process may take long."""


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    written_at: float
    answers: list[AgedAnswer]


class AnswerFile:
    """`path`, which one process writes at its end and the next one takes at its start. Nothing here raises: without the
    file a cache begins empty. `clock`: seconds, which processes share."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock

    def write(self, answers: list[AgedAnswer]) -> None:
        """Write `answers`, the least recently used first; of more than `MOST_BYTES` the last ones."""
        room, kept = MOST_BYTES, list[AgedAnswer]()
        for answer in reversed(answers):
            room -= len(answer.value)
            if room < 0:
                break
            kept.append(answer)
        if not kept:
            return
        content = _Content(written_at=self._clock(), answers=kept[::-1])
        try:
            with atomic_file(self._path) as file:
                file.write(_encode(content))
        except OSError as error:
            log.warning("cached answers are lost with this process: %s", error)

    def take(self) -> list[AgedAnswer]:
        """Return the answers with their ages now, and delete the file, which holds texts."""
        try:
            content = _decode(self._path.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, *JSON_ERRORS) as error:
            log.warning("cached answers of the last process cannot be read: %s", error)
            content = _Content(written_at=math.inf, answers=[])
        try:
            self._path.unlink()
        except OSError as error:
            # Another start would take answers again that were replaced since.
            log.warning("cached answers of the last process are not used, since they cannot be deleted: %s", error)
            return []
        passed = self._clock() - content.written_at
        if passed < 0:  # Nothing was read, or the clock was set back: nothing is known of their ages.
            return []
        return [AgedAnswer(answer.key, answer.age_seconds + passed, answer.value) for answer in content.answers]


def answers_path(folder: Path, process: int) -> Path:
    """File of the answers of a gateway process, the `process`-th behind its port, between two runs."""
    return folder / f"answers.{process}.msgpack"


def delete_answers_beyond(folder: Path, processes: int) -> None:
    """Delete what more processes than the `processes` of this start have left, and none would take."""
    kept = {answers_path(folder, number) for number in range(processes)}
    for path in set(folder.glob("answers.*.msgpack")) - kept:
        try:
            path.unlink()
        except OSError as error:
            log.warning("cached answers of a former process cannot be deleted: %s", error)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Content).decode
