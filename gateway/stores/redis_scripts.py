"""Lua scripts in Redis, many calls in one round trip: what is asked while one is under way goes with the next."""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from gateway.stores.redis_store import RedisStore, RedisUnavailableError

if TYPE_CHECKING:
    from redis.asyncio import Redis

Argument: TypeAlias = int | float | str
# Of one round trip: Redis serves nobody else while it runs a pipeline's scripts one after another.
MOST_CALLS = 128


class Script(msgspec.Struct, frozen=True):
    """A Lua text and the SHA-1 by which Redis knows it."""

    text: str
    sha: str


def script(text: str) -> Script:
    """The script of a text."""
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class Call(msgspec.Struct, frozen=True):
    """One run of a script."""

    script: Script
    keys: Sequence[str]
    arguments: Sequence[Argument]


class RedisScripts:
    """Runs calls in the order in which they were made, on one connection at a time.

    A script that fails and a Redis that is away both raise `RedisUnavailableError` for whoever waits.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._waiting: list[tuple[Call, asyncio.Future[Any] | None]] = []
        self._sending: asyncio.Task[None] | None = None

    async def run(self, call: Call) -> Any:
        """What the script returns. Raises `RedisUnavailableError`."""
        if self._store.away:
            raise RedisUnavailableError("Redis is away")
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        self._start()
        return await answer

    def put(self, call: Call, *, at_once: bool = True) -> None:
        """Run it without waiting; lost while Redis is away. Unless `at_once`, it waits for the next call to go with."""
        self._waiting.append((call, None))
        if at_once or len(self._waiting) >= MOST_CALLS:
            self._start()

    async def flush(self) -> None:
        """Wait until everything was sent."""
        if self._waiting:
            self._start()
        if self._sending is not None:
            await self._sending

    def _start(self) -> None:
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send())

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
    """Each call's answer, or the error that Redis gave for it. A Redis that does not know the scripts, since it has
    been started again, is told them; it has run nothing of those calls."""
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
            told = call.script.text if by_text else call.script.sha
            pipe.execute_command("EVAL" if by_text else "EVALSHA", told, len(call.keys), *call.keys, *call.arguments)
        return list(await pipe.execute(raise_on_error=False))
