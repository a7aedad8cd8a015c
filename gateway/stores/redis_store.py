"""Redis, where one is configured: a client with finite timeouts, and a store that fails at once while Redis is away."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger(__name__)

T = TypeVar("T")
TIMEOUT_SECONDS = 0.5
# After a failure nobody waits for Redis again before this has passed.
REST_SECONDS = 1.0


class RedisUnavailableError(RuntimeError):
    """Redis did not answer, or did not a moment ago; the caller goes on without it."""


def redis_client(url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> "Redis":
    """A client of its own, which connects on first use and again after a loss. Values are bytes.

    Commands that block need one with a `timeout_seconds` above the time they block for.
    """
    # Imported here: a gateway without Redis starts faster.
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return Redis.from_url(
        url,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=min(timeout_seconds, TIMEOUT_SECONDS),
        # Once, at once: the connection may have been lost while it was idle.
        retry=Retry(NoBackoff(), 1),
        decode_responses=False,
    )


class RedisStore:
    """The process's shared client. `clock`: monotonic seconds."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.redis = redis_client(url)
        self._clock = clock
        self._failing = False
        self._rests_until = 0.0

    @property
    def away(self) -> bool:
        """Whether Redis failed so lately that it is not asked."""
        return self._failing and self._clock() < self._rests_until

    async def ask(self, command: "Callable[[Redis], Awaitable[T]]") -> T:
        """What Redis answers to `command`. Raises `RedisUnavailableError`, at once while it is known to be away."""
        from redis.exceptions import RedisError

        if self.away:
            raise RedisUnavailableError("Redis is away")
        try:
            answer = await command(self.redis)
        except (RedisError, OSError) as error:
            if not self._failing:
                log.warning("Redis is away (%s); it is tried again every %g s", type(error).__name__, REST_SECONDS)
            self._failing, self._rests_until = True, self._clock() + REST_SECONDS
            raise RedisUnavailableError(f"Redis is away: {type(error).__name__}") from error
        if self._failing:
            self._failing = False
            log.info("Redis answers again")
        return answer


@asynccontextmanager
async def open_redis(url: str) -> AsyncIterator[RedisStore | None]:
    """The store of `url`, closed at the end; None for "". A Redis that is away delays no start."""
    if not url:
        yield None
        return
    store = RedisStore(url)
    try:
        yield store
    finally:
        await store.redis.aclose()
