"""Rate limits and concurrency of a key: a sliding minute of requests and tokens, and the requests in flight.

In memory, or shared by all replicas: counted in Redis, by its clock, in one atomic script per request. Requests of
the same moment share one round trip (`gateway.base.stores.redis_store`).
"""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from gateway.base.inference_request import Allowance
from gateway.base.stores.redis_store import Argument, Call, RedisScripts, RedisStore, RedisUnavailableError, script

# Requests are counted per whole second; each counts until its second has left the window.
WINDOW_SECONDS = 60


class Room(msgspec.Struct, frozen=True):
    """Requests or tokens per minute: the limit, the remainder, and seconds until the full limit is available."""

    limit: int
    remaining: int
    reset_seconds: float


class Entry(msgspec.Struct, frozen=True):
    """The outcome of rate limiting a request."""

    key_id: str
    refused: str = ""
    """The limit by which it was refused; "" if it was admitted, and has to leave."""
    retry_seconds: float | None = 0.0
    """When it would be admitted; None for never, because it asks for more tokens than the limit."""
    requests: Room | None = None
    tokens: Room | None = None
    requested_tokens: int = 0
    second: int = 0
    """With `member`, identifies the request."""
    member: str = ""


class Windows(ABC):
    """Counts over any minute never exceed the limits, by the counting process's clock: clock steps change nothing.

    `enter` counts a request with an estimate of its tokens, or rejects it and counts nothing. Each admitted entry
    leaves exactly once, with the tokens that it used.
    """

    @abstractmethod
    async def enter(self, key_id: str, allowance: Allowance, tokens: int, member: str) -> Entry:
        """Admit the request `member` (unique), if the limits of its key allow it."""

    @abstractmethod
    async def claim(self, entry: Entry, allowance: Allowance, tokens: int) -> Entry:
        """Count `tokens` more for an admitted request, and return its entry; or return one that is `refused`, counting
        nothing."""

    @abstractmethod
    def leave(self, entry: Entry, tokens: int) -> None:
        """The request has ended. Does not wait."""


class _Window:
    """The last minute of one key: [second, requests, tokens], oldest first, and their sums."""

    __slots__ = ("in_flight", "requests", "seconds", "tokens")

    def __init__(self) -> None:
        self.seconds: deque[list[int]] = deque()
        self.requests = self.tokens = self.in_flight = 0

    def forget(self, second: int) -> None:
        """Drop what has left the window that ends with `second`."""
        while self.seconds and self.seconds[0][0] <= second - WINDOW_SECONDS - 1:
            _, requests, tokens = self.seconds.popleft()
            self.requests -= requests
            self.tokens -= tokens

    def add(self, second: int, requests: int, tokens: int) -> None:
        """Count what happened in `second`, if it is still in the window."""
        self.requests += requests
        self.tokens += tokens
        for row in reversed(self.seconds):
            if row[0] == second:
                row[1] += requests
                row[2] += tokens
                return
            if row[0] < second:
                break
        self.seconds.append([second, requests, tokens])


class LocalWindows(Windows):
    """Counts of this process only. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: defaultdict[str, _Window] = defaultdict(_Window)

    async def enter(self, key_id: str, allowance: Allowance, tokens: int, member: str) -> Entry:
        now = self._clock()
        second, window = math.floor(now), self._windows[key_id]
        window.forget(second)
        sums = Sums(window.requests, window.tokens, window.in_flight)
        last = window.seconds[-1][0] if window.seconds else second
        entry = Entry(key_id, requested_tokens=tokens, second=second)
        entry = judged(entry, allowance, sums, window.seconds, now, last)
        if not entry.refused:
            window.add(second, 1, tokens)
            window.in_flight += 1
        return entry

    async def claim(self, entry: Entry, allowance: Allowance, tokens: int) -> Entry:
        now = self._clock()
        second, window = math.floor(now), self._windows[entry.key_id]
        window.forget(second)
        sums = Sums(window.requests, window.tokens, window.in_flight)
        last = window.seconds[-1][0] if window.seconds else second
        more = Entry(entry.key_id, requested_tokens=tokens, second=second)
        more = judged(more, _of_tokens(allowance), sums, window.seconds, now, last)
        if not more.refused:
            window.add(second, 0, tokens)
        return _claimed(entry, more)

    def leave(self, entry: Entry, tokens: int) -> None:
        window = self._windows[entry.key_id]
        window.in_flight -= 1
        window.forget(math.floor(self._clock()))
        if window.seconds and window.seconds[0][0] <= entry.second:
            window.add(entry.second, 0, tokens - entry.requested_tokens)
        if not window.in_flight and not window.seconds:
            del self._windows[entry.key_id]


def _of_tokens(allowance: Allowance) -> Allowance:
    """The limit of tokens alone."""
    return Allowance(tokens_per_minute=allowance.tokens_per_minute)


def _claimed(entry: Entry, more: Entry) -> Entry:
    """Return the entry of a request that was admitted, with the tokens of `more`; `more` if it is refused."""
    if more.refused:
        return more
    tokens = entry.requested_tokens + more.requested_tokens
    return msgspec.structs.replace(entry, tokens=more.tokens, requested_tokens=tokens, second=more.second)


class Sums(msgspec.Struct, frozen=True):
    """Counts in a window, and in flight."""

    requests: int
    tokens: int
    in_flight: int


def judged(
    entry: Entry, allowance: Allowance, sums: Sums, seconds: Iterable[Sequence[int]], now: float, last: int
) -> Entry:
    """Apply the limits to `entry` before it is counted.

    `seconds`: contents of the window as (second, requests, tokens), oldest first, which a refusal reads; `last`: the
    newest second in it.
    """
    refused: str = ""
    retry: float | None = 0.0
    most, most_tokens = allowance.requests_per_minute, allowance.tokens_per_minute
    if allowance.concurrency is not None and sums.in_flight >= allowance.concurrency:
        refused, retry = "concurrency", 1.0
    elif most is not None and sums.requests + 1 > most:
        refused, retry = "requests", _wait([(s, r) for s, r, _ in seconds], sums.requests + 1 - most, now)
    elif most_tokens is not None and sums.tokens + entry.requested_tokens > most_tokens:
        over = sums.tokens + entry.requested_tokens - most_tokens
        refused, retry = "tokens", _wait([(s, t) for s, _, t in seconds], over, now)
    counted, newest = (0, last) if refused else (1, entry.second)
    reset = newest + WINDOW_SECONDS + 1 - now
    return msgspec.structs.replace(
        entry,
        refused=refused,
        retry_seconds=retry,
        requests=None if most is None else Room(most, max(most - sums.requests - counted, 0), reset),
        tokens=(
            None
            if most_tokens is None
            else Room(most_tokens, max(most_tokens - sums.tokens - counted * entry.requested_tokens, 0), reset)
        ),
    )


def _wait(counts: list[tuple[int, int]], over: int, now: float) -> float | None:
    """Return the seconds until `over` of the counts have left the window; None if all of them are not enough."""
    for second, count in counts:
        over -= count
        if over <= 0:
            return second + WINDOW_SECONDS + 1 - now
    return None


# A request of a dead replica counts as in flight for this long.
IN_FLIGHT_SECONDS = 60
RENEW_SECONDS = 20.0
# How long a request's actual tokens may wait for another request's round trip.
TELL_SECONDS = 1.0
_NO_LIMIT = -1

# KEYS: hash, and sorted set of requests in flight by their expiry. The hash holds the counts of each second,
# "r<second>" and "t<second>", their sums "r" and "t", and "first", the oldest second that the sums may include. ARGV:
# most requests, most tokens, most in flight, requested tokens, member, window, seconds in flight, and how many requests
# to count, 1 if that is missing.
_ENTER = script("""
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local second, window, counted = tonumber(time[1]), tonumber(ARGV[6]), tonumber(ARGV[8] or 1)
local sums = redis.call('HMGET', KEYS[1], 'r', 't', 'first')
local requests, tokens, first = tonumber(sums[1]) or 0, tonumber(sums[2]) or 0, tonumber(sums[3]) or second
if first < second - window then
  for at = first, second - window - 1 do
    local gone = redis.call('HMGET', KEYS[1], 'r' .. at, 't' .. at)
    if gone[1] or gone[2] then
      requests, tokens = requests - (tonumber(gone[1]) or 0), tokens - (tonumber(gone[2]) or 0)
      redis.call('HDEL', KEYS[1], 'r' .. at, 't' .. at)
    end
  end
  first = second - window
  redis.call('HSET', KEYS[1], 'r', requests, 't', tokens, 'first', first)
end
local most, most_tokens, most_flying, asked = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local flying = 0
if most_flying >= 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  flying = redis.call('ZCARD', KEYS[2])
end
if (most >= 0 and requests + 1 > most) or (most_tokens >= 0 and tokens + asked > most_tokens)
  or (most_flying >= 0 and flying >= most_flying) then
  return {tostring(now), requests, tokens, flying, redis.call('HGETALL', KEYS[1])}
end
redis.call('HINCRBY', KEYS[1], 'r' .. second, counted)
if asked > 0 then redis.call('HINCRBY', KEYS[1], 't' .. second, asked) end
redis.call('HSET', KEYS[1], 'r', requests + counted, 't', tokens + asked, 'first', first)
redis.call('EXPIRE', KEYS[1], window + 2)
if most_flying >= 0 then
  redis.call('ZADD', KEYS[2], now + ARGV[7], ARGV[5])
  redis.call('EXPIRE', KEYS[2], ARGV[7])
end
return {tostring(now), requests, tokens, flying, {}}
""")
# ARGV: second, tokens in addition to those requested, member.
_LEAVE = script("""
redis.call('ZREM', KEYS[2], ARGV[3])
if redis.call('HEXISTS', KEYS[1], 'r' .. ARGV[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], 't' .. ARGV[1], ARGV[2])
  redis.call('HINCRBY', KEYS[1], 't', ARGV[2])
end
return 1
""")
# ARGV: seconds in flight, then members.
_RENEW = script("""
local until_ = redis.call('TIME')[1] + ARGV[1]
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', until_, ARGV[i]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
""")


class RedisWindows(Windows):
    """See `Windows`. While Redis is down every process counts by itself, or `closed` raises `RedisUnavailableError`."""

    def __init__(self, store: RedisStore, *, closed: bool = False) -> None:
        self._scripts, self._closed = RedisScripts(store), closed
        self._alone = LocalWindows()
        self._in_flight: dict[str, set[str]] = {}

    async def enter(self, key_id: str, allowance: Allowance, tokens: int, member: str) -> Entry:
        """See `Windows`. Raises `RedisUnavailableError` if configured to reject then."""
        bounds = (allowance.requests_per_minute, allowance.tokens_per_minute, allowance.concurrency)
        limits: list[int] = [_NO_LIMIT if bound is None else bound for bound in bounds]
        arguments: list[Argument] = [*limits, tokens, member, WINDOW_SECONDS, IN_FLIGHT_SECONDS]
        try:
            entry = await self._judged(Entry(key_id, requested_tokens=tokens, member=member), allowance, arguments)
        except RedisUnavailableError:
            if self._closed:
                raise
            return await self._alone.enter(key_id, allowance, tokens, "")
        if not entry.refused and allowance.concurrency is not None:
            self._in_flight.setdefault(key_id, set()).add(member)
        return entry

    async def claim(self, entry: Entry, allowance: Allowance, tokens: int) -> Entry:
        """See `Windows`. Raises `RedisUnavailableError` if configured to reject then; else nothing more is counted of
        a request that Redis had admitted."""
        if not entry.member:
            return await self._alone.claim(entry, allowance, tokens)
        most = _NO_LIMIT if allowance.tokens_per_minute is None else allowance.tokens_per_minute
        arguments: list[Argument] = [_NO_LIMIT, most, _NO_LIMIT, tokens, "", WINDOW_SECONDS, IN_FLIGHT_SECONDS, 0]
        try:
            more = await self._judged(Entry(entry.key_id, requested_tokens=tokens), _of_tokens(allowance), arguments)
        except RedisUnavailableError:
            if self._closed:
                raise
            return entry
        return _claimed(entry, more)

    async def _judged(self, entry: Entry, allowance: Allowance, arguments: list[Argument]) -> Entry:
        """Return `entry` as Redis has judged it, whose script has these arguments."""
        now, requests, used, flying, seen = await self._scripts.run(Call(_ENTER, _names(entry.key_id), arguments))
        seconds = _seconds(seen)
        entry = msgspec.structs.replace(entry, second=int(float(now)))
        last = seconds[-1][0] if seconds else entry.second
        return judged(entry, allowance, Sums(requests, used, flying), seconds, float(now), last)

    def leave(self, entry: Entry, tokens: int) -> None:
        """See `Windows`. The place in flight is released at once; tokens are corrected with the next round trip."""
        if not entry.member:
            self._alone.leave(entry, tokens)
            return
        members = self._in_flight.get(entry.key_id, set())
        placed = entry.member in members
        members.discard(entry.member)
        if not members:
            self._in_flight.pop(entry.key_id, None)
        if placed or (entry.tokens is not None and tokens != entry.requested_tokens):
            arguments: list[Argument] = [entry.second, tokens - entry.requested_tokens, entry.member]
            # Unreachable: its place expires.
            self._scripts.put(Call(_LEAVE, _names(entry.key_id), arguments), at_once=placed)

    async def follow(self) -> None:
        """Keep entries in flight from expiring, and send pending corrections, until cancelled."""
        renewed = 0.0
        while True:
            await asyncio.sleep(TELL_SECONDS)
            renewed += TELL_SECONDS
            if renewed >= RENEW_SECONDS:
                renewed = 0.0
                self.renew()
            await self._scripts.flush()

    def renew(self) -> None:
        """Extend the expiry of entries in flight."""
        for key_id, members in self._in_flight.items():
            self._scripts.put(Call(_RENEW, _names(key_id)[1:], [IN_FLIGHT_SECONDS, *members]))

    async def close(self) -> None:
        """Wait until all departures have been sent."""
        await self._scripts.flush()


def _names(key_id: str) -> list[str]:
    """Return the two keys of a key's counts, in one slot of a cluster."""
    return [f"aio:window:{{{key_id}}}", f"aio:flying:{{{key_id}}}"]


def _seconds(seen: list[bytes]) -> list[tuple[int, int, int]]:
    """Return fields and counts of the hash as (second, requests, tokens), oldest first."""
    rows: dict[int, list[int]] = {}
    for field, count in zip(seen[::2], seen[1::2], strict=True):
        if not field[1:].isdigit():
            continue
        row = rows.setdefault(int(field[1:]), [0, 0])
        row[0 if field[:1] == b"r" else 1] += int(count)
    return [(second, *rows[second]) for second in sorted(rows)]  # type: ignore[misc]
