"""The queue in Redis: a stream for each batch, whose consumer group knows who works on what and for how long.

What Redis forgets, or never was told, is announced again from the lines' rows; what it delivers twice, those rows tell.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.jobs.job_queue import Job, JobQueue, QueueAwayError
from gateway.jobs.line_book import LineBook
from gateway.stores.redis_store import RedisAwayError, RedisStore

if TYPE_CHECKING:
    from redis.asyncio import Redis

T = TypeVar("T")

_GROUP = "workers"
_AT_ONCE = 1000
# Of a batch that nobody takes from any more: longer than any completion window.
_KEPT_SECONDS = 8 * 86_400
# Whoever announces a batch and dies is followed by another after so long.
_ANNOUNCING_SECONDS = 60

# KEYS: stream, lines that wait for their time, mark that all lines were announced.
# ARGV: group, worker, how many, milliseconds of a lease. An entry is a line's number and its deliveries so far.
_TAKE = """
if redis.call('EXISTS', KEYS[3]) == 0 or redis.call('EXISTS', KEYS[1]) == 0 then return false end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
for _, line in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[3])) do
  local number, delivered = string.match(line, '(%d+):(%d+)')
  redis.call('XADD', KEYS[1], '*', 'n', number, 'd', delivered)
  redis.call('ZREM', KEYS[2], line)
end
local taken, most = {}, tonumber(ARGV[3])
local stale = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[4], '-', '+', most)
for _, entry in ipairs(stale) do
  local got = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[4], entry[1], 'COUNT', 1)[2][1]
  if got and got[1] == entry[1] and got[2] then
    taken[#taken + 1] = {got[1], got[2][2], got[2][4] + entry[4] + 1, 1}
  end
end
if #taken < most then
  local fresh = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', most - #taken, 'STREAMS', KEYS[1], '>')
  for _, entry in ipairs(fresh and fresh[1][2] or {}) do
    taken[#taken + 1] = {entry[1], entry[2][2], entry[2][4] + 1, 0}
  end
end
return taken
"""
# KEYS: stream. ARGV: group, worker, entries. Renews those that still are the worker's; returns the others,
# which a Redis that has forgotten the batch cannot tell.
_KEEP = """
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local lost = {}
for i = 3, #ARGV do
  local mine = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if #mine == 0 then
    lost[#lost + 1] = ARGV[i]
  else
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
  end
end
return lost
"""
# KEYS: stream, lines that wait for their time. ARGV: group, entry, number, deliveries, seconds. Once for each entry.
_PUT_BACK = """
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if redis.call('XDEL', KEYS[1], ARGV[2]) == 0 then return 0 end
if tonumber(ARGV[5]) > 0 then
  local time = redis.call('TIME')
  redis.call('ZADD', KEYS[2], time[1] + time[2] / 1e6 + ARGV[5], ARGV[3] .. ':' .. ARGV[4])
else
  redis.call('XADD', KEYS[1], '*', 'n', ARGV[3], 'd', ARGV[4])
end
return 1
"""


class RedisQueue(JobQueue):
    """See `JobQueue`. `worker`: this one's name.

    Lines are announced by whoever first takes from a batch that Redis knows nothing of; until all of them are, none is
    given. A worker that died is noticed once its lease is over, by whoever takes next.
    """

    def __init__(self, store: RedisStore, lines: LineBook, worker: str, lease_seconds: float) -> None:
        self._store, self._lines, self._worker = store, lines, worker
        self._lease_ms = round(lease_seconds * 1e3)
        self._take = store.redis.register_script(_TAKE)
        self._keep = store.redis.register_script(_KEEP)
        self._put_back = store.redis.register_script(_PUT_BACK)

    async def take(self, batch_id: str, most: int) -> list[Job]:
        """See `JobQueue`."""
        taken = await self._taken(batch_id, most)
        if taken is None:
            if not await self._announce(batch_id):
                return []
            taken = await self._taken(batch_id, most) or []
        return [
            Job(
                batch_id=batch_id,
                number=int(number),
                deliveries=int(deliveries),
                redelivered=bool(again),
                token=token.decode(),
            )
            for token, number, deliveries, again in taken
        ]

    async def keep(self, jobs: Sequence[Job]) -> list[Job]:
        """See `JobQueue`."""
        lost: list[Job] = []
        for batch_id in {job.batch_id for job in jobs}:
            mine = {job.token: job for job in jobs if job.batch_id == batch_id}
            arguments = [_GROUP, self._worker, *mine]
            gone = await self._ask(
                lambda redis, batch_id=batch_id, arguments=arguments: self._keep(  # type: ignore[misc]
                    keys=_names(batch_id)[:1], args=arguments, client=redis
                )
            )
            lost += [mine[token.decode()] for token in gone]
        return lost

    async def put_back(self, job: Job, seconds: float, deliveries: int) -> None:
        """See `JobQueue`."""
        arguments: list[Any] = [_GROUP, job.token, job.number, deliveries, seconds]
        names = _names(job.batch_id)[:2]
        await self._ask(lambda redis: self._put_back(keys=names, args=arguments, client=redis))

    async def done(self, jobs: Sequence[Job]) -> None:
        """See `JobQueue`."""
        for batch_id in {job.batch_id for job in jobs}:
            stream, tokens = _names(batch_id)[0], [job.token for job in jobs if job.batch_id == batch_id]

            async def command(redis: "Redis", stream: str = stream, tokens: list[str] = tokens) -> None:
                async with redis.pipeline(transaction=True) as pipeline:
                    pipeline.xack(stream, _GROUP, *tokens)
                    pipeline.xdel(stream, *tokens)
                    await pipeline.execute()

            await self._ask(command)

    async def forget(self, batch_id: str) -> None:
        """See `JobQueue`."""
        names = [*_names(batch_id), _announcing(batch_id)]
        await self._ask(lambda redis: redis.delete(*names))

    async def _taken(self, batch_id: str, most: int) -> Any:
        names = _names(batch_id)
        arguments: list[str | int] = [_GROUP, self._worker, most, self._lease_ms]
        return await self._ask(lambda redis: self._take(keys=names, args=arguments, client=redis))

    async def _announce(self, batch_id: str) -> bool:
        """Tell Redis of all lines that wait for an answer; False where another is about to."""
        stream, later, announced = _names(batch_id)
        marker = f"{self._worker}:{time.monotonic_ns()}"
        if not await self._ask(lambda redis: redis.set(_announcing(batch_id), marker, nx=True, ex=_ANNOUNCING_SECONDS)):
            return False

        async def begin(redis: "Redis") -> None:
            async with redis.pipeline(transaction=True) as pipeline:
                # Of an announcement that was cut off; or the group has lost its mark, and deliveries begin anew.
                pipeline.delete(stream, later, announced)
                pipeline.xgroup_create(stream, _GROUP, id="0", mkstream=True)
                pipeline.expire(stream, _KEPT_SECONDS)
                await pipeline.execute()

        await self._ask(begin)
        after = 0
        while numbers := await self._lines.pending(batch_id, after, _AT_ONCE):

            async def add(redis: "Redis", numbers: list[int] = numbers) -> None:
                async with redis.pipeline(transaction=True) as pipeline:
                    for number in numbers:
                        pipeline.xadd(stream, {"n": number, "d": 0})
                    await pipeline.execute()

            await self._ask(add)
            after = numbers[-1]
        await self._ask(lambda redis: redis.set(announced, 1, ex=_KEPT_SECONDS))
        await self._ask(lambda redis: redis.delete(_announcing(batch_id)))
        return True

    async def _ask(self, command: "Callable[[Redis], Awaitable[T]]") -> T:
        try:
            return await self._store.ask(command)
        except RedisAwayError as error:
            raise QueueAwayError(str(error)) from error


def _names(batch_id: str) -> list[str]:
    """Stream, lines that wait, and mark of a batch, in one slot of a cluster."""
    return [f"aio:batch:{{{batch_id}}}:{part}" for part in ("lines", "later", "announced")]


def _announcing(batch_id: str) -> str:
    return f"aio:batch:{{{batch_id}}}:announcing"
