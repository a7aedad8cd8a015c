"""The response cache of a process while it runs: in its memory or in Redis, and in memory over a restart."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from gateway.base.knobs.file import KnobFile
from gateway.base.settings import Settings
from gateway.base.stores.redis_store import RedisStore
from gateway.base.stores.retries import background
from gateway.inference.cache.answer_file import AnswerFile, answers_path, delete_answers_beyond
from gateway.inference.cache.knobs import CacheKnobs
from gateway.inference.cache.response_cache import ResponseCache
from gateway.inference.cache.stores import AnswerStore, MemoryStore, SharedStore
from gateway.inference.routing.router import RoutingService
from gateway.runtime.peers import WorkerPlace


@asynccontextmanager
async def running_cache(
    settings: Settings,
    place: WorkerPlace | None,
    redis: RedisStore | None,
    routing: RoutingService,
    on_failure: Callable[[], None],
) -> AsyncIterator[ResponseCache]:
    """The cache of the process at `place`, whose knobs follow their file; each failure of Redis calls `on_failure`."""
    knobs = KnobFile(CacheKnobs, "cache", settings.cache_knobs_path)
    # A redacted answer would not be the answer, and Redis may write what it holds to a disk.
    store: AnswerStore = (
        MemoryStore(knobs) if redis is None or settings.redaction else SharedStore(knobs, redis, on_failure)
    )
    follow = partial(knobs.follow, settings.artefact_poll_seconds)
    async with background(follow, "knobs of the cache"), _kept_over_restarts(settings, place, store):
        yield ResponseCache(knobs, store, routing)


@asynccontextmanager
async def _kept_over_restarts(settings: Settings, place: WorkerPlace | None, store: AnswerStore) -> AsyncIterator[None]:
    """Let the cache in memory outlive the process, where texts may be written down."""
    number, count = (0, 1) if place is None else (place.number, place.count)
    file = AnswerFile(answers_path(settings.data_path, number))
    if number == 0:
        await asyncio.to_thread(delete_answers_beyond, settings.data_path, count)
    answers = await asyncio.to_thread(file.take)
    may_write = settings.cache_over_restarts and not settings.redaction and settings.text_days != 0
    if not isinstance(store, MemoryStore) or not may_write:
        yield
        return
    store.adopt(answers)
    try:
        yield
    finally:
        await asyncio.to_thread(file.write, store.answers())
