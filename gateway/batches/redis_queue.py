"""The queue in Redis: streams per batch, whose consumer groups track who works on what and until when.

What Redis forgets, or never knew, is announced again from the lines' rows; those rows also resolve double deliveries.
If Redis forgets a batch, the death counts of its lines are lost.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gateway.base.stores.redis_store import RedisStore, RedisUnavailableError
from gateway.batches.batch_book import LineBook
from gateway.batches.job_queue import BatchJob, JobQueue, QueueUnavailableError

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript

T = TypeVar("T")

_GROUP = "workers"
_AT_ONCE = 1000
# Expiry of an abandoned batch's keys: longer than any completion window.
_KEPT_SECONDS = 8 * 86_400
# If a process dies while it announces a batch, another takes over after this time.
_ANNOUNCING_SECONDS = 60

# Most due lines moved by one script run.
_MOST_MOVED = 1000

# Prelude of every script that hands out lines. KEYS: stream, delayed lines, mark that all lines were announced, stream
# of suspects. ARGV: group, worker, lease in milliseconds. An entry holds a line's number, its deliveries so far, the
# deaths of its workers, and 1 if the last delivery ended with one; an announced entry lacks the latter two. A worker
# that takes over its own entry is alive: it has only lost track of it.
_LOOK = f"""
if redis.call('EXISTS', KEYS[3]) == 0 or redis.call('EXISTS', KEYS[1]) == 0 then return false end
local function add(number, deliveries, deaths, died)
  local stream = deaths > 0 and KEYS[4] or KEYS[1]
  if redis.call('EXISTS', stream) == 0 then
    redis.call('XGROUP', 'CREATE', stream, ARGV[1], '0', 'MKSTREAM')
    redis.call('EXPIRE', stream, {_KEPT_SECONDS})
  end
  redis.call('XADD', stream, '*', 'n', number, 'd', deliveries, 'x', deaths, 'r', died)
end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
for _, line in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, {_MOST_MOVED})) do
  local number, deliveries, deaths = string.match(line, '(%d+):(%d+):?(%d*)')
  add(number, deliveries, tonumber(deaths) or 0, 0)
  redis.call('ZREM', KEYS[2], line)
end
for _, stream in ipairs({{KEYS[1], KEYS[4]}}) do
  if redis.call('EXISTS', stream) == 1 then
    for _, stale in ipairs(redis.call('XPENDING', stream, ARGV[1], 'IDLE', ARGV[3], '-', '+', {_MOST_MOVED})) do
      local entry = redis.call('XRANGE', stream, stale[1], stale[1])[1]
      redis.call('XACK', stream, ARGV[1], stale[1])
      if entry then
        local died = stale[2] == ARGV[2] and 0 or 1
        redis.call('XDEL', stream, stale[1])
        add(entry[2][2], entry[2][4] + 1, (entry[2][6] or 0) + died, died)
      end
    end
  end
end
local function read(stream, most)
  local taken = {{}}
  local got = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', most, 'STREAMS', stream, '>')
  for _, entry in ipairs(got and got[1][2] or {{}}) do
    taken[#taken + 1] = {{entry[1], entry[2][2], entry[2][4] + 1, entry[2][6] or 0, entry[2][8] or 0}}
  end
  return taken
end
local function has_suspect()
  return redis.call('EXISTS', KEYS[4]) == 1 and redis.call('XLEN', KEYS[4]) > 0
    and redis.call('XPENDING', KEYS[4], ARGV[1])[1] == 0
end
"""
# ARGV besides: how many.
_TAKE = _LOOK + "return read(KEYS[1], ARGV[4])"
_HAS_SUSPECT = _LOOK + "return has_suspect() and 1 or 0"
_TAKE_SUSPECT = _LOOK + "return has_suspect() and read(KEYS[4], 1) or {}"
# KEYS: stream. ARGV: group, worker, entries. Renews the worker's own entries and returns the others; a Redis that has
# forgotten the batch returns none.
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
# KEYS: stream, delayed lines. ARGV: group, entry, seconds, line. One call per entry.
_PUT_BACK = """
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if redis.call('XDEL', KEYS[1], ARGV[2]) == 0 then return 0 end
local time = redis.call('TIME')
redis.call('ZADD', KEYS[2], time[1] + time[2] / 1e6 + ARGV[3], ARGV[4])
return 1
"""


class RedisQueue(JobQueue):
    """See `JobQueue`. `worker`: this worker's name.

    The first worker to take from a batch that Redis does not know announces its lines; until all are announced, none is
    handed out. A dead worker is noticed at the next look after its lease has expired; its lines move to the batch's
    stream of suspects.
    """

    def __init__(self, store: RedisStore, lines: LineBook, worker: str, lease_seconds: float) -> None:
        self._store, self._lines, self._worker = store, lines, worker
        self._lease_ms = round(lease_seconds * 1e3)
        self._take = store.redis.register_script(_TAKE)
        self._has_suspect = store.redis.register_script(_HAS_SUSPECT)
        self._take_suspect = store.redis.register_script(_TAKE_SUSPECT)
        self._keep = store.redis.register_script(_KEEP)
        self._put_back = store.redis.register_script(_PUT_BACK)

    async def take(self, batch_id: str, most: int) -> list[BatchJob]:
        taken = await self._run(self._take, batch_id, most)
        if taken is None:
            if not await self._announce(batch_id):
                return []
            taken = await self._run(self._take, batch_id, most) or []
        return _jobs(batch_id, taken)

    async def has_suspect(self, batch_id: str) -> bool:
        return bool(await self._run(self._has_suspect, batch_id))

    async def take_suspect(self, batch_id: str) -> BatchJob | None:
        taken = _jobs(batch_id, await self._run(self._take_suspect, batch_id) or [])
        return taken[0] if taken else None

    async def keep(self, jobs: Sequence[BatchJob]) -> list[BatchJob]:
        lost: list[BatchJob] = []
        for stream, mine in _by_stream(jobs).items():
            arguments = [_GROUP, self._worker, *mine]
            gone = await self._ask(
                lambda redis, stream=stream, arguments=arguments: self._keep(  # type: ignore[misc]
                    keys=[stream], args=arguments, client=redis
                )
            )
            lost += [mine[token.decode()] for token in gone]
        return lost

    async def put_back(self, job: BatchJob, seconds: float, deliveries: int, deaths: int) -> None:
        arguments: list[Any] = [_GROUP, job.token, seconds, f"{job.number}:{deliveries}:{deaths}"]
        names = [_stream_of(job), _names(job.batch_id).later]
        await self._ask(lambda redis: self._put_back(keys=names, args=arguments, client=redis))

    async def done(self, jobs: Sequence[BatchJob]) -> None:
        for stream, mine in _by_stream(jobs).items():

            async def command(redis: "Redis", stream: str = stream, tokens: Sequence[str] = list(mine)) -> None:
                async with redis.pipeline(transaction=True) as pipeline:
                    pipeline.xack(stream, _GROUP, *tokens)
                    pipeline.xdel(stream, *tokens)
                    await pipeline.execute()

            await self._ask(command)

    async def forget(self, batch_id: str) -> None:
        names = [*_names(batch_id), _announcing(batch_id)]
        await self._ask(lambda redis: redis.delete(*names))

    async def _run(self, script: "AsyncScript", batch_id: str, *arguments: int) -> Any:
        """Run a script that starts with `_LOOK`; None for a batch whose lines are not announced."""
        names = list(_names(batch_id))
        script_args: list[str | int] = [_GROUP, self._worker, self._lease_ms, *arguments]
        return await self._ask(lambda redis: script(keys=names, args=script_args, client=redis))

    async def _announce(self, batch_id: str) -> bool:
        """Announce all unanswered lines to Redis; False if another process is doing it."""
        names = _names(batch_id)
        marker = f"{self._worker}:{time.monotonic_ns()}"
        if not await self._ask(lambda redis: redis.set(_announcing(batch_id), marker, nx=True, ex=_ANNOUNCING_SECONDS)):
            return False

        async def begin(redis: "Redis") -> None:
            async with redis.pipeline(transaction=True) as pipeline:
                # Left over from an interrupted announcement; or the group lost its mark, and deliveries restart.
                pipeline.delete(*names)
                pipeline.xgroup_create(names.lines, _GROUP, id="0", mkstream=True)
                pipeline.expire(names.lines, _KEPT_SECONDS)
                await pipeline.execute()

        await self._ask(begin)
        after = 0
        while numbers := await self._lines.pending(batch_id, after, _AT_ONCE):

            async def add(redis: "Redis", numbers: list[int] = numbers) -> None:
                async with redis.pipeline(transaction=True) as pipeline:
                    for number in numbers:
                        pipeline.xadd(names.lines, {"n": number, "d": 0})
                    await pipeline.execute()

            await self._ask(add)
            after = numbers[-1]
        await self._ask(lambda redis: redis.set(names.announced, 1, ex=_KEPT_SECONDS))
        await self._ask(lambda redis: redis.delete(_announcing(batch_id)))
        return True

    async def _ask(self, command: "Callable[[Redis], Awaitable[T]]") -> T:
        try:
            return await self._store.ask(command)
        except RedisUnavailableError as error:
            raise QueueUnavailableError(str(error)) from error


class _Names(NamedTuple):
    """Keys of a batch: stream, delayed lines, mark that all were announced, stream of suspects."""

    lines: str
    later: str
    announced: str
    suspects: str


def _names(batch_id: str) -> _Names:
    """All keys hash to one slot of a Redis cluster."""
    return _Names(*(f"aio:batch:{{{batch_id}}}:{part}" for part in _Names._fields))


def _stream_of(job: BatchJob) -> str:
    names = _names(job.batch_id)
    return names.suspects if job.deaths else names.lines


def _by_stream(jobs: Sequence[BatchJob]) -> dict[str, dict[str, BatchJob]]:
    """Group jobs by stream, as tokens."""
    jobs_by_stream: dict[str, dict[str, BatchJob]] = {}
    for job in jobs:
        jobs_by_stream.setdefault(_stream_of(job), {})[job.token] = job
    return jobs_by_stream


def _jobs(batch_id: str, taken: Sequence[Any]) -> list[BatchJob]:
    return [
        BatchJob(
            batch_id=batch_id,
            number=int(number),
            deliveries=int(deliveries),
            deaths=int(deaths),
            redelivered=bool(int(died)),
            token=token.decode(),
        )
        for token, number, deliveries, deaths, died in taken
    ]


def _announcing(batch_id: str) -> str:
    return f"aio:batch:{{{batch_id}}}:announcing"
