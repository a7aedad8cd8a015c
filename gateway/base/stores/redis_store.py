"""Redis, if configured: a client with finite timeouts, and a store that fails fast while Redis is down."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from inference_core.extras import require_extra

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger(__name__)

T = TypeVar("T")
TIMEOUT_SECONDS = 0.5
# After a failure no request waits for Redis again before this has passed.
REST_SECONDS = 1.0


class RedisUnavailableError(RuntimeError):
    """Redis did not answer, now or a moment ago; the caller continues without it."""


def redis_client(url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> "Redis":
    """Return a separate client, which connects on first use and reconnects after a loss. Values are bytes.

    Commands that block need one with a `timeout_seconds` above their blocking time.
    """
    require_extra("redis", "AIO_REDIS_URL")
    # Imported here: a gateway without Redis is installed without its client.
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return Redis.from_url(
        url,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=min(timeout_seconds, TIMEOUT_SECONDS),
        # One immediate retry: the connection may have been lost while it was idle.
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
        """Whether Redis failed so recently that it is not asked."""
        return self._failing and self._clock() < self._rests_until

    async def ask(self, command: "Callable[[Redis], Awaitable[T]]") -> T:
        """Return Redis' answer to `command`. Raises `RedisUnavailableError`, at once if Redis is known to be down."""
        from redis.exceptions import RedisError

        if self.away:
            raise RedisUnavailableError("Redis is down")
        try:
            answer = await command(self.redis)
        except (RedisError, OSError) as error:
            if not self._failing:
                log.warning("Redis is down (%s); it is retried every %g s", type(error).__name__, REST_SECONDS)
            self._failing, self._rests_until = True, self._clock() + REST_SECONDS
            raise RedisUnavailableError(f"Redis is down: {type(error).__name__}") from error
        if self._failing:
            self._failing = False
            log.info("Redis answers again")
        return answer


@asynccontextmanager
async def open_redis(url: str) -> AsyncIterator[RedisStore | None]:
    """The store of `url`, closed at the end; None for "". A Redis that is down delays no start."""
    if not url:
        yield None
        return
    store = RedisStore(url)
    try:
        yield store
    finally:
        await store.redis.aclose()
