"""Redis, if configured: a client with finite timeouts, and a store that fails fast while Redis is down.

Lua scripts, many calls per round trip: calls made during one round trip share the next.
"""

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec

from gateway.base.settings import SettingsError
from inference_core.extras import require_extra
from inference_core.io.background_tasks import once
from tiers.catalog.tier_spec import TlsSpec
from tiers.errors import CatalogError
from tiers.remote.certificates import trust_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger(__name__)

T = TypeVar("T")
TIMEOUT_SECONDS = 0.5
# After a failure no request waits for Redis again before this has passed.
REST_SECONDS = 1.0
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_ADDRESS = re.compile(r"rediss?://(?:.*@)?(?:\[[0-9a-fA-F:.]+\]|[^][:/@?]+)(?::\d{1,5})?(?:[/?]|$)|unix:(?://.*@|//)?/")


class RedisUnavailableError(RuntimeError):
    """Redis did not answer, now or a moment ago; the caller continues without it."""


def redis_client(url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> "Redis":
    """Return a separate client, which connects on first use and reconnects after a loss. Values are bytes.

    Commands that block need one with a `timeout_seconds` above their blocking time. Raises `SettingsError`.
    """
    require_extra("redis", "AIO_REDIS_URL")
    if not _ADDRESS.match(url):
        raise SettingsError("AIO_REDIS_URL is not the address of a Redis: give redis://[:password@]host:port/number")
    _require_files(url)
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


def _require_files(url: str) -> None:
    """Read the files of certificates that the URL names, as the client will at each connection."""
    query = {name: values[-1] for name, values in parse_qs(urlsplit(url).query).items()}
    ca, certificate, key = (query.get(name) for name in _TLS_FILES)
    try:
        if ca or certificate:
            named = [f"AIO_REDIS_URL: {name}" for name in _TLS_FILES]
            trust_of(TlsSpec(ca=ca, certificate=certificate, key=key), (named[0], named[1], named[2]))
    except CatalogError as error:
        raise SettingsError(str(error)) from error


async def cancellable(asking: Awaitable[T]) -> T:
    """Await what a client is asked, and raise a cancellation that came meanwhile: the client sends by
    `asyncio.wait_for`, which before Python 3.12 loses one that comes as it ends."""
    cancelling = asyncio.current_task().cancelling  # type: ignore[union-attr]
    before = cancelling()
    try:
        return await asking
    finally:
        if cancelling() > before:
            raise asyncio.CancelledError


class RedisStore:
    """The process's shared client. `clock`: monotonic seconds."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.redis = redis_client(url)
        self._clock = clock
        self.is_failing = False  # whether it did not answer when it was last asked
        self._rests_until = 0.0

    @property
    def away(self) -> bool:
        """Whether Redis failed so recently that it is not asked."""
        return self.is_failing and self._clock() < self._rests_until

    async def look(self) -> None:
        """Ask whether it is there, for `is_failing`."""
        with suppress(RedisUnavailableError):
            await self.ask(lambda redis: redis.ping())

    async def ask(self, command: "Callable[[Redis], Awaitable[T]]") -> T:
        """Return Redis' answer to `command`. Raises `RedisUnavailableError`, at once if Redis is known to be down."""
        from redis.exceptions import RedisError

        if self.away:
            raise RedisUnavailableError("Redis is down")
        try:
            answer = await cancellable(command(self.redis))
        except (RedisError, OSError) as error:
            if not self.is_failing:
                log.warning("Redis is down (%s); it is retried every %g s", type(error).__name__, REST_SECONDS)
            self.is_failing, self._rests_until = True, self._clock() + REST_SECONDS
            raise RedisUnavailableError(f"Redis is down: {type(error).__name__}") from error
        if self.is_failing:
            self.is_failing = False
            log.info("Redis answers again")
        return answer


@asynccontextmanager
async def open_redis(url: str) -> AsyncIterator[RedisStore | None]:
    """The store of `url`, closed at the end; None for "". A Redis that is down delays no start."""
    if not url:
        yield None
        return
    store = RedisStore(url)
    async with aclosing(store.redis):
        yield store


Argument: TypeAlias = int | float | str | bytes
# Most calls of one round trip: Redis serves no other client while it runs a pipeline's scripts.
MOST_CALLS = 128


class Script(msgspec.Struct, frozen=True):
    """A Lua text and the SHA-1 by which Redis identifies it."""

    text: str
    sha: str


def script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class Call(msgspec.Struct, frozen=True):
    """One run of a script."""

    script: Script
    keys: Sequence[str]
    arguments: Sequence[Argument]


class RedisScripts:
    """Runs calls in the order in which they were made, on one connection at a time.

    Both a failing script and a Redis that is down raise `RedisUnavailableError` in the waiting callers.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._waiting: list[tuple[Call, asyncio.Future[Any] | None]] = []
        self._sending: asyncio.Task[None] | None = None

    async def run(self, call: Call) -> Any:
        """Run the script and return its result. Raises `RedisUnavailableError`."""
        if self._store.away:
            raise RedisUnavailableError("Redis is down")
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        self._start()
        return await answer

    def put(self, call: Call, *, at_once: bool = True) -> None:
        """Run it without waiting; lost while Redis is down. Unless `at_once`, it is sent with the next call."""
        self._waiting.append((call, None))
        if at_once or len(self._waiting) >= MOST_CALLS:
            self._start()

    async def flush(self) -> None:
        """Wait until everything is sent."""
        if self._waiting:
            self._start()
        if self._sending is not None and not self._sending.done():
            # Others wait for the same calls.
            await asyncio.shield(self._sending)

    def _start(self) -> None:
        if self._sending is None or self._sending.done():
            self._sending = once(self._send(), "calls to Redis")

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST_CALLS], self._waiting[MOST_CALLS:]
            await self._send_batch(batch)

    async def _send_batch(self, batch: list[tuple[Call, asyncio.Future[Any] | None]]) -> None:
        calls = [call for call, _ in batch]
        try:
            answers: list[Any] = await self._store.ask(lambda redis: _answers(redis, calls))
        except RedisUnavailableError as error:
            answers = [error] * len(batch)
        except BaseException:
            for _, waiting in batch:
                if waiting is not None:
                    waiting.cancel()
            raise
        for (_, waiting), answer in zip(batch, answers, strict=True):
            if waiting is None or waiting.done():
                continue
            if isinstance(answer, RedisUnavailableError):
                waiting.set_exception(answer)
            elif isinstance(answer, Exception):
                waiting.set_exception(RedisUnavailableError(f"Redis refused a script: {type(answer).__name__}"))
            else:
                waiting.set_result(answer)


async def _answers(redis: "Redis", calls: Sequence[Call]) -> list[Any]:
    """Return each call's answer or error. A restarted Redis does not know the scripts; it ran none of those calls, and
    gets the texts."""
    from redis.exceptions import NoScriptError

    answers = await _piped(redis, calls, by_text=False)
    unknown = [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if unknown:
        again = await _piped(redis, [calls[n] for n in unknown], by_text=True)
        for n, answer in zip(unknown, again, strict=True):
            answers[n] = answer
    return answers


async def _piped(redis: "Redis", calls: Sequence[Call], *, by_text: bool) -> list[Any]:
    async with redis.pipeline(transaction=False) as pipe:
        for call in calls:
            sent = call.script.text if by_text else call.script.sha
            pipe.execute_command("EVAL" if by_text else "EVALSHA", sent, len(call.keys), *call.keys, *call.arguments)
        return list(await pipe.execute(raise_on_error=False))
