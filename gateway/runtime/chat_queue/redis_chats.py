"""The queue's keys in Redis and the scripts over them; each script is one step that nothing can interrupt.

Every key has the same hash tag. Times and ages are those of Redis' own clock.
"""

from collections.abc import Mapping, Sequence

import msgspec

from gateway.base.stores.redis_store import Argument, Call, RedisScripts, RedisStore, script
from inference_core.protocol import LAST_CLASS

MOST_RESULTS = 2000
"""Entries of a gateway's results that it has not read; workers wait beyond."""
MOST_DELIVERIES = 3
KEPT_SECONDS = 86_400
"""A chat whose tier no worker serves is forgotten after a day without another."""

_PREFIX = "aio:{chats}:"
_GROUP = "workers"
BELL = f"{_PREFIX}bell"
"""Rung when a chat is put, and with the entry of one that is withdrawn."""
_WORKERS = f"{_PREFIX}workers"
PRIORITIES = range(LAST_CLASS + 2)
"""As in `GenerationRequest.priority`: smaller goes first."""


def requests_of(tier: str, priority: int) -> str:
    """The stream of chats that wait for a tier or are being answered."""
    return f"{_PREFIX}requests:{tier}:{priority}"


def results_of(gateway: str) -> str:
    return f"{_PREFIX}results:{gateway}"


def open_of(gateway: str) -> str:
    """The hash of a gateway's open chats: entry and stream by number. It exists while the gateway lives."""
    return f"{_PREFIX}open:{gateway}"


# KEYS: requests, open. ARGV: group, chat, most that wait, gateway, body, bell. A repeated call adds nothing.
_PUT = script(f"""
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 1 then return 1 end
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM') end
if redis.call('XLEN', KEYS[1]) - redis.call('XPENDING', KEYS[1], ARGV[1])[1] >= tonumber(ARGV[3]) then return 0 end
local id = redis.call('XADD', KEYS[1], '*', 'g', ARGV[4], 'c', ARGV[2], 'b', ARGV[5])
redis.call('EXPIRE', KEYS[1], {KEPT_SECONDS})
redis.call('HSET', KEYS[2], ARGV[2], id .. ' ' .. KEYS[1])
redis.call('PUBLISH', ARGV[6], '')
return 1
""")
# KEYS: open. ARGV: group, chat, bell. An entry that is gone from the pending ones stops the worker's writes. Returns 1
# if a worker has it.
_WITHDRAW = script("""
local place = redis.call('HGET', KEYS[1], ARGV[2])
if not place then return 0 end
local id, stream = string.match(place, '^(%S+) (.*)$')
local held = redis.call('XACK', stream, ARGV[1], id)
redis.call('XDEL', stream, id)
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('PUBLISH', ARGV[3], place)
return held
""")
# KEYS: requests, most urgent first. ARGV: group, worker, lease in milliseconds, most, prefix. Those of dead workers go
# first, and those of dead gateways are dropped.
_TAKE = script("""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local left, taken = tonumber(ARGV[4]), {}
local function add(stream, entry, deliveries)
  local fields = entry[2]
  if redis.call('EXISTS', ARGV[5] .. 'open:' .. fields[2]) == 0 then
    redis.call('XACK', stream, ARGV[1], entry[1])
    redis.call('XDEL', stream, entry[1])
    return
  end
  local age = now - tonumber(string.match(entry[1], '^%d+'))
  taken[#taken + 1] = {stream, entry[1], deliveries, fields[2], fields[4], fields[6], age}
  left = left - 1
end
for _, stream in ipairs(KEYS) do
  if left > 0 and redis.call('EXISTS', stream) == 1 then
    for _, stale in ipairs(redis.call('XPENDING', stream, ARGV[1], 'IDLE', ARGV[3], '-', '+', left)) do
      local claimed = redis.call('XCLAIM', stream, ARGV[1], ARGV[2], ARGV[3], stale[1])[1]
      if claimed and claimed[2] then
        add(stream, claimed, stale[4] + 1)
      else
        redis.call('XACK', stream, ARGV[1], stale[1])
      end
    end
    if left > 0 then
      local got = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', left, 'STREAMS', stream, '>')
      for _, entry in ipairs(got and got[1][2] or {}) do add(stream, entry, 1) end
    end
  end
end
return taken
""")
# KEYS: requests, results, open. ARGV: group, worker, entry, chat, delivery, number, piece, 1 if it is the last, most
# results, milliseconds that results are kept. Returns 1 if written, 0 if there is no room, -1 if the worker does not
# hold the chat.
_WRITE = script("""
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1, ARGV[2]) == 0 then return -1 end
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
  redis.call('XDEL', KEYS[1], ARGV[3])
  return -1
end
if redis.call('XLEN', KEYS[2]) >= tonumber(ARGV[9]) then return 0 end
redis.call('XADD', KEYS[2], '*', 'c', ARGV[4], 'd', ARGV[5], 'n', ARGV[6], 'b', ARGV[7])
redis.call('PEXPIRE', KEYS[2], ARGV[10])
if ARGV[8] == '1' then
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
  redis.call('XDEL', KEYS[1], ARGV[3])
  redis.call('HDEL', KEYS[3], ARGV[4])
else
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'JUSTID')
end
return 1
""")
# KEYS: results, open. ARGV: chat, delivery, number, piece, milliseconds. The counts of a chat that was withdrawn.
_SETTLE = script("""
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
redis.call('XADD', KEYS[1], '*', 'c', ARGV[1], 'd', ARGV[2], 'n', ARGV[3], 'b', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return 1
""")
# KEYS: workers, then the stream of each chat. ARGV: group, worker, facts, then the entry of each chat. Renews the
# leases, and returns the places of chats that the worker does not hold.
_KEEP = script("""
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[2], time[1] * 1000 + math.floor(time[2] / 1000) .. ' ' .. ARGV[3])
local lost = {}
for place = 2, #KEYS do
  local id = ARGV[place + 2]
  local mine = {}
  if redis.call('EXISTS', KEYS[place]) == 1 then
    mine = redis.call('XPENDING', KEYS[place], ARGV[1], id, id, 1, ARGV[2])
  end
  if #mine == 0 then
    lost[#lost + 1] = place - 2
  else
    redis.call('XCLAIM', KEYS[place], ARGV[1], ARGV[2], 0, id, 'JUSTID')
  end
end
return lost
""")
# KEYS: requests. ARGV: group, worker, entry, lease in milliseconds, bell. Another worker takes it at once.
_HAND_BACK = script("""
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1, ARGV[2]) == 0 then return 0 end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'IDLE', ARGV[4], 'JUSTID')
redis.call('PUBLISH', ARGV[5], '')
return 1
""")
# KEYS: open, results, workers. ARGV: milliseconds that a silent gateway's keys are kept, milliseconds after which a
# silent worker is gone. Returns the numbers of open chats, and the facts of live workers.
_LOOK = script("""
redis.call('HSET', KEYS[1], 'alive', 1)
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local workers, facts_of = {}, redis.call('HGETALL', KEYS[3])
for n = 1, #facts_of, 2 do
  local at, facts = string.match(facts_of[n + 1], '^(%d+) (.*)$')
  if now - tonumber(at) > tonumber(ARGV[2]) then
    redis.call('HDEL', KEYS[3], facts_of[n])
  else
    workers[#workers + 1] = facts
  end
end
return {redis.call('HKEYS', KEYS[1]), workers}
""")
# KEYS: streams of requests. ARGV: group. Returns of each stream what waits, what is being answered and the age of the
# oldest that waits.
_DEPTHS = script("""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local depths = {}
for n = 1, #KEYS do
  local waiting, running, oldest = 0, 0, 0
  if redis.call('EXISTS', KEYS[n]) == 1 then
    running = redis.call('XPENDING', KEYS[n], ARGV[1])[1]
    waiting = redis.call('XLEN', KEYS[n]) - running
    local group = redis.call('XINFO', 'GROUPS', KEYS[n])[1]
    for field = 1, #group, 2 do
      if group[field] == 'last-delivered-id' then
        local first = redis.call('XRANGE', KEYS[n], '(' .. group[field + 1], '+', 'COUNT', 1)[1]
        if first then oldest = now - tonumber(string.match(first[1], '^%d+')) end
      end
    end
  end
  depths[#depths + 1] = {waiting, running, oldest}
end
return depths
""")
# KEYS: workers. ARGV: worker.
_FORGET = script("return redis.call('HDEL', KEYS[1], ARGV[1])")


class TakenChat(msgspec.Struct, frozen=True):
    """A chat that a worker holds: its entry in the stream of its tier, and whose it is."""

    stream: str
    entry: str
    deliveries: int
    gateway: str
    chat: str
    body: bytes
    age_seconds: float
    """How long ago it was put."""

    @property
    def place(self) -> str:
        """As the bell names it."""
        return f"{self.entry} {self.stream}"

    @property
    def tier(self) -> str:
        """The name of the tier that is asked."""
        return self.stream.removeprefix(f"{_PREFIX}requests:").rpartition(":")[0]


class Depth(msgspec.Struct, frozen=True):
    """What is in the queue for a tier."""

    waiting: int = 0
    running: int = 0
    oldest_seconds: float = 0.0
    """How long the oldest one waits."""


class Look(msgspec.Struct, frozen=True):
    """What a gateway sees of the queue."""

    open_chats: frozenset[str]
    workers: list[bytes]


class RedisChats:
    """The queue as one process uses it. All of it raises `RedisUnavailableError`. `lease_seconds`: how long a silent
    worker keeps its chats, and a silent gateway its results."""

    def __init__(self, store: RedisStore, lease_seconds: float) -> None:
        self._scripts = RedisScripts(store)
        self._lease_ms = round(lease_seconds * 1e3)

    async def put(self, gateway: str, chat: str, tier: str, priority: int, body: bytes, most_waiting: int) -> bool:
        """Queue a chat; False if so many wait already."""
        keys = [requests_of(tier, priority), open_of(gateway)]
        arguments: list[Argument] = [_GROUP, chat, most_waiting, gateway, body, BELL]
        return bool(await self._scripts.run(Call(_PUT, keys, arguments)))

    async def withdraw(self, gateway: str, chat: str) -> bool:
        """Take a chat out of the queue, or away from its worker; return whether a worker had it."""
        return bool(await self._scripts.run(Call(_WITHDRAW, [open_of(gateway)], [_GROUP, chat, BELL])))

    async def take(self, worker: str, tiers: Sequence[str], most: int) -> list[TakenChat]:
        """Return at most so many chats of these tiers, the most urgent first, which the worker then holds."""
        keys = [requests_of(tier, priority) for priority in PRIORITIES for tier in tiers]
        arguments: list[Argument] = [_GROUP, worker, self._lease_ms, most, _PREFIX]
        return [
            TakenChat(
                stream.decode(), entry.decode(), int(deliveries), gateway.decode(), chat.decode(), body, age / 1e3
            )
            for stream, entry, deliveries, gateway, chat, body, age in await self._scripts.run(
                Call(_TAKE, keys, arguments)
            )
        ]

    async def write(self, worker: str, taken: TakenChat, number: int, piece: bytes, *, last: bool) -> int:
        """Add a piece to the results: 1 if it is there, 0 while there is no room, -1 if the worker does not hold the
        chat. The last one acknowledges it."""
        keys = [taken.stream, results_of(taken.gateway), open_of(taken.gateway)]
        arguments: list[Argument] = [
            _GROUP, worker, taken.entry, taken.chat, taken.deliveries, number, piece, int(last), MOST_RESULTS,
            2 * self._lease_ms,
        ]  # fmt: skip
        return int(await self._scripts.run(Call(_WRITE, keys, arguments)))

    async def settle(self, taken: TakenChat, number: int, piece: bytes) -> None:
        """Send the last counts of a chat that was withdrawn."""
        keys = [results_of(taken.gateway), open_of(taken.gateway)]
        await self._scripts.run(Call(_SETTLE, keys, [taken.chat, taken.deliveries, number, piece, 2 * self._lease_ms]))

    async def keep(self, worker: str, facts: bytes, held: Sequence[TakenChat]) -> list[TakenChat]:
        """Tell what the worker has and renew its leases; return the chats that it does not hold any more."""
        keys = [_WORKERS, *(taken.stream for taken in held)]
        arguments: list[Argument] = [_GROUP, worker, facts, *(taken.entry for taken in held)]
        return [held[place] for place in await self._scripts.run(Call(_KEEP, keys, arguments))]

    async def hand_back(self, worker: str, taken: TakenChat) -> None:
        """Let another worker take the chat now."""
        keys = [taken.stream]
        await self._scripts.run(Call(_HAND_BACK, keys, [_GROUP, worker, taken.entry, self._lease_ms, BELL]))

    async def forget(self, worker: str) -> None:
        """The worker ends."""
        await self._scripts.run(Call(_FORGET, [_WORKERS], [worker]))

    async def look(self, gateway: str) -> Look:
        """Say that the gateway lives, and return what it sees."""
        keys = [open_of(gateway), results_of(gateway), _WORKERS]
        chats, workers = await self._scripts.run(Call(_LOOK, keys, [2 * self._lease_ms, self._lease_ms]))
        return Look(frozenset(chat.decode() for chat in chats) - {"alive"}, workers)

    async def depths(self, tiers: Sequence[str]) -> dict[str, Depth]:
        """Return what is in the queue for each tier, over all priorities."""
        streams = [(tier, requests_of(tier, priority)) for tier in tiers for priority in PRIORITIES]
        depths = await self._scripts.run(Call(_DEPTHS, [stream for _, stream in streams], [_GROUP]))
        by_tier: dict[str, Depth] = {}
        for (tier, _), (waiting, running, oldest) in zip(streams, depths, strict=True):
            before = by_tier.get(tier, Depth())
            by_tier[tier] = Depth(
                before.waiting + waiting, before.running + running, max(before.oldest_seconds, oldest / 1e3)
            )
        return by_tier


def result_of(fields: Mapping[bytes, bytes]) -> tuple[str, int, int, bytes]:
    """Return chat, delivery, number and piece of an entry of results."""
    return fields[b"c"].decode(), int(fields[b"d"]), int(fields[b"n"]), fields[b"b"]
