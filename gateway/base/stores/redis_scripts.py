"""Lua scripts in Redis, many calls per round trip: calls made during one round trip share the next."""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from gateway.base.stores.redis_store import RedisStore, RedisUnavailableError
from inference_core.io.background_tasks import once

if TYPE_CHECKING:
    from redis.asyncio import Redis

Argument: TypeAlias = int | float | str
# Most calls of one round trip: Redis serves no other client while it runs a pipeline's scripts.
MOST_CALLS = 128


class Script(msgspec.Struct, frozen=True):
    """A Lua text and the SHA-1 by which Redis identifies it."""

    text: str
    sha: str


def script(text: str) -> Script:
    """Return the script of a text."""
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
        if self._sending is not None:
            await self._sending

    def _start(self) -> None:
        if self._sending is None:
            self._sending = once(self._send(), "calls to Redis")

    async def _send(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MOST_CALLS], self._waiting[MOST_CALLS:]
                await self._send_batch(batch)
        finally:
            self._sending = None

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
