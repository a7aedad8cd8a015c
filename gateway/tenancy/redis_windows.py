"""Rates and concurrency that all replicas share: counted in Redis, by its clock, in one atomic script per request."""

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gateway.caller import Allowance
from gateway.redis_store import RedisAwayError, RedisStore
from gateway.tenancy.windows import WINDOW_SECONDS, Entry, LocalWindows, Sums, Windows, judged

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger(__name__)

# A request of a replica that died counts as in flight for this long.
IN_FLIGHT_SECONDS = 60
RENEW_SECONDS = 20.0
_NO_LIMIT = -1

# KEYS: hash of "r<second>" and "t<second>", and sorted set of requests in flight by their expiry.
# ARGV: most requests, most tokens, most in flight, tokens asked for, member, window, seconds in flight.
_ENTER = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local second, window = tonumber(time[1]), tonumber(ARGV[6])
local requests, tokens, seen = 0, 0, {}
local held = redis.call('HGETALL', KEYS[1])
for i = 1, #held, 2 do
  local at = tonumber(string.sub(held[i], 2))
  if at <= second - window - 1 then
    redis.call('HDEL', KEYS[1], held[i])
  else
    local count = tonumber(held[i + 1])
    seen[#seen + 1] = held[i]
    seen[#seen + 1] = held[i + 1]
    if string.sub(held[i], 1, 1) == 'r' then requests = requests + count else tokens = tokens + count end
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local flying = redis.call('ZCARD', KEYS[2])
local most, most_tokens, most_flying, asked = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local refused = (most >= 0 and requests + 1 > most) or (most_tokens >= 0 and tokens + asked > most_tokens)
  or (most_flying >= 0 and flying >= most_flying)
if not refused then
  redis.call('HINCRBY', KEYS[1], 'r' .. second, 1)
  redis.call('HINCRBY', KEYS[1], 't' .. second, asked)
  redis.call('EXPIRE', KEYS[1], window + 2)
  if most_flying >= 0 then
    redis.call('ZADD', KEYS[2], now + ARGV[7], ARGV[5])
    redis.call('EXPIRE', KEYS[2], ARGV[7])
  end
  seen = {}
end
return {tostring(now), requests, tokens, flying, seen}
"""
# ARGV: second, tokens more than asked for, member.
_LEAVE = """
redis.call('ZREM', KEYS[2], ARGV[3])
if redis.call('HEXISTS', KEYS[1], 't' .. ARGV[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], 't' .. ARGV[1], ARGV[2])
end
return 1
"""
# ARGV: seconds in flight, then members.
_RENEW = """
local until_ = redis.call('TIME')[1] + ARGV[1]
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', until_, ARGV[i]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
"""


class RedisWindows(Windows):
    """See `Windows`. While Redis is away every process counts by itself; `closed`: it then raises `RedisAwayError`."""

    def __init__(self, store: RedisStore, *, closed: bool = False) -> None:
        self._store, self._closed = store, closed
        self._alone = LocalWindows()
        self._enter = store.redis.register_script(_ENTER)
        self._leave = store.redis.register_script(_LEAVE)
        self._renew = store.redis.register_script(_RENEW)
        self._in_flight: dict[str, set[str]] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def enter(self, key_id: str, allowance: Allowance, tokens: int, member: str) -> Entry:
        """See `Windows`. Raises `RedisAwayError` where that closes the door."""
        bounds = (allowance.requests_per_minute, allowance.tokens_per_minute, allowance.concurrency)
        given: list[int] = [_NO_LIMIT if bound is None else bound for bound in bounds]
        arguments: list[int | str] = [*given, tokens, member, WINDOW_SECONDS, IN_FLIGHT_SECONDS]

        async def command(redis: "Redis") -> Any:
            return await self._enter(keys=_names(key_id), args=arguments, client=redis)

        try:
            now, requests, used, flying, seen = await self._store.ask(command)
        except RedisAwayError:
            if self._closed:
                raise
            return await self._alone.enter(key_id, allowance, tokens, "")
        seconds = _seconds(seen)
        entry = Entry(key_id, asked_tokens=tokens, second=int(float(now)), member=member)
        last = seconds[-1][0] if seconds else entry.second
        entry = judged(entry, allowance, Sums(requests, used, flying), seconds, float(now), last)
        if not entry.refused and allowance.concurrency is not None:
            self._in_flight.setdefault(key_id, set()).add(member)
        return entry

    def leave(self, entry: Entry, tokens: int) -> None:
        """See `Windows`."""
        if not entry.member:
            self._alone.leave(entry, tokens)
            return
        members = self._in_flight.get(entry.key_id, set())
        members.discard(entry.member)
        if not members:
            self._in_flight.pop(entry.key_id, None)
        task = asyncio.ensure_future(self._left(entry, tokens))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def follow(self) -> None:
        """Keep what is in flight from expiring, for ever."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            for key_id, members in list(self._in_flight.items()):
                with suppress(RedisAwayError):
                    await self._renewed(key_id, list(members))

    async def close(self) -> None:
        """Wait until those who left have been told of."""
        await asyncio.gather(*self._leaving)

    async def _renewed(self, key_id: str, members: list[str]) -> None:
        async def command(redis: "Redis") -> Any:
            return await self._renew(keys=_names(key_id)[1:], args=[IN_FLIGHT_SECONDS, *members], client=redis)

        await self._store.ask(command)

    async def _left(self, entry: Entry, tokens: int) -> None:
        async def command(redis: "Redis") -> Any:
            arguments: list[int | str] = [entry.second, tokens - entry.asked_tokens, entry.member]
            return await self._leave(keys=_names(entry.key_id), args=arguments, client=redis)

        # Away: its place frees itself when it expires.
        with suppress(RedisAwayError):
            await self._store.ask(command)


def _names(key_id: str) -> list[str]:
    """The two names of a key's counts, in one slot of a cluster."""
    return [f"aio:rate:{{{key_id}}}", f"aio:flying:{{{key_id}}}"]


def _seconds(seen: list[bytes]) -> list[tuple[int, int, int]]:
    """Fields and counts of the hash as (second, requests, tokens), oldest first."""
    rows: dict[int, list[int]] = {}
    for field, count in zip(seen[::2], seen[1::2], strict=True):
        row = rows.setdefault(int(field[1:]), [0, 0])
        row[0 if field[:1] == b"r" else 1] += int(count)
    return [(second, *rows[second]) for second in sorted(rows)]  # type: ignore[misc]
