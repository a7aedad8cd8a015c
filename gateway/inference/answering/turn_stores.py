"""Where turns of assistants are kept for their next step: a Redis, or the database, that all processes share."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec
from sqlalchemy import bindparam, delete, exists, func, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.base.stores.redis_scripts import Call, RedisScripts, script
from gateway.base.stores.redis_store import RedisStore, RedisUnavailableError
from migrations.tables.api_objects import kept_turns
from migrations.tables.audit import erasures
from quality.store.queries import exclude_erasures

log = logging.getLogger(__name__)

SECONDS = 86_400.0
"""For how long a turn is kept."""
MOST_BYTES = 64 * 2**20
"""Of all turns of one tenant."""
MOST_TURNS = 4096
"""That are looked up at once: the last ones of a conversation."""
_AT_ONCE = 256
_PREFIX = "aio:turn:1:"


class KeptTurn(msgspec.Struct, frozen=True, kw_only=True):
    """`turn_id`: what it is found by. `created_at`: of the request, UTC epoch seconds."""

    turn_id: str
    key_id: str | None
    tenant: str
    content: bytes
    created_at: float


class TurnStore(ABC):
    """Keeps turns for `SECONDS`, at most `MOST_BYTES` of a tenant: the oldest go first. Raises nothing: while it is
    away, nothing is found or kept, and the log says so once."""

    def __init__(self) -> None:
        self._is_away = False

    async def get(self, turn_ids: Sequence[str]) -> dict[str, bytes]:
        """Return what is kept of these turns."""
        try:
            found = await self._get(turn_ids[-MOST_TURNS:])
        except (RedisUnavailableError, SQLAlchemyError, OSError) as error:
            self._say_away(error)
            return {}
        self._is_away = False
        return found

    async def put(self, turns: Sequence[KeptTurn]) -> None:
        """Keep turns, unless their user was erased after the request came."""
        try:
            for turn in turns:
                await self._put(turn)
        except (RedisUnavailableError, SQLAlchemyError, OSError) as error:
            self._say_away(error)

    async def forget(self, key_id: str, now: float) -> None:  # noqa: B027 - an erasure deletes rows of the database
        """Drop what is kept of this key's user."""

    def _say_away(self, error: Exception) -> None:
        if not self._is_away:
            log.warning("reasoning of earlier steps is neither kept nor found (%s)", type(error).__name__)
        self._is_away = True

    @abstractmethod
    async def _get(self, turn_ids: Sequence[str]) -> dict[str, bytes]: ...

    @abstractmethod
    async def _put(self, turn: KeptTurn) -> None: ...


_OWNED = """
local function drop_oldest(most)
  local sum, members = 0, redis.call('ZRANGE', KEYS[1], 0, -1)
  for _, member in ipairs(members) do sum = sum + tonumber(string.match(member, ':(%d+)$')) end
  for _, member in ipairs(members) do
    if sum <= most then break end
    sum = sum - tonumber(string.match(member, ':(%d+)$'))
    redis.call('ZREM', KEYS[1], member)
    redis.call('DEL', ARGV[1] .. string.match(member, '^(.*):%d+$'))
  end
  redis.call('SET', KEYS[2], sum, 'EX', 172800)
end
"""
_PUT = script(
    _OWNED
    + """
local erased = redis.call('GET', KEYS[3])
if erased and tonumber(erased) >= tonumber(ARGV[5]) then return 0 end
redis.call('SET', ARGV[1] .. ARGV[2], ARGV[3], 'EX', ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[5] - ARGV[4])
redis.call('ZADD', KEYS[1], ARGV[5], ARGV[2] .. ':' .. string.len(ARGV[3]))
redis.call('EXPIRE', KEYS[1], ARGV[4])
local sum = redis.call('INCRBY', KEYS[2], string.len(ARGV[3]))
redis.call('EXPIRE', KEYS[2], 172800)
if sum > tonumber(ARGV[6]) then drop_oldest(tonumber(ARGV[6])) end
return 1
"""
)
_FORGET = script(
    _OWNED
    + """
redis.call('SET', KEYS[3], ARGV[2], 'EX', 172800)
drop_oldest(0)
return 1
"""
)


class RedisTurns(TurnStore):
    """In Redis. Turns of a user have one list, by which they are bounded and erased."""

    def __init__(self, redis: RedisStore, most_bytes: int = MOST_BYTES) -> None:
        super().__init__()
        self._redis, self._scripts, self._most_bytes = redis, RedisScripts(redis), most_bytes

    async def _get(self, turn_ids: Sequence[str]) -> dict[str, bytes]:
        names = [_PREFIX + turn_id for turn_id in turn_ids]
        found = await self._redis.ask(lambda redis: redis.mget(names))
        texts = zip(turn_ids, found, strict=True)
        return {turn_id: bytes.fromhex(text.decode()) for turn_id, text in texts if isinstance(text, bytes)}

    async def _put(self, turn: KeptTurn) -> None:
        content = turn.content.hex()
        arguments = (_PREFIX, turn.turn_id, content, int(SECONDS), turn.created_at, 2 * self._most_bytes)
        await self._scripts.run(Call(_PUT, _names(turn.key_id or turn.tenant), arguments))

    async def forget(self, key_id: str, now: float) -> None:
        """See `TurnStore`."""
        try:
            await self._scripts.run(Call(_FORGET, _names(key_id), (_PREFIX, now)))
        except RedisUnavailableError as error:
            self._say_away(error)


def _names(owner: str) -> tuple[str, str, str]:
    """Of the list of an owner's turns, of the sum of their bytes, and of the time of an erasure."""
    return f"{_PREFIX}of:{owner}", f"{_PREFIX}bytes:{owner}", f"{_PREFIX}erased:{owner}"


class DatabaseTurns(TurnStore):
    """In the database; an erasure deletes the user's rows there (`quality.store.queries.delete_key_data`)."""

    def __init__(
        self, engine: AsyncEngine, most_bytes: int = MOST_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        self._engine, self._most_bytes, self._clock = engine, most_bytes, clock

    async def _get(self, turn_ids: Sequence[str]) -> dict[str, bytes]:
        columns, found = kept_turns.c, dict[str, bytes]()
        since = self._clock() - SECONDS
        async with self._engine.connect() as connection:
            for first in range(0, len(turn_ids), _AT_ONCE):
                some = columns.turn_id.in_(turn_ids[first : first + _AT_ONCE])
                rows = select(columns.turn_id, columns.content).where(some, columns.created_at > since)
                found |= {row.turn_id: row.content for row in await connection.execute(rows)}
        return found

    async def _put(self, turn: KeptTurn) -> None:
        columns, row = kept_turns.c, msgspec.structs.asdict(turn) | {"size": len(turn.content)}
        erased = exists().where(erasures.c.key_id == turn.key_id, erasures.c.erased_at >= turn.created_at)
        values = [bindparam(name, value, columns[name].type) for name, value in row.items()]
        async with self._engine.begin() as connection:
            await exclude_erasures(connection)
            old = (columns.turn_id == turn.turn_id) | (columns.created_at <= self._clock() - SECONDS)
            await connection.execute(delete(kept_turns).where(old))
            await connection.execute(insert(kept_turns).from_select(list(row), select(*values).where(~erased)))
            await self._drop_oldest(connection, turn.tenant)

    async def _drop_oldest(self, connection: AsyncConnection, tenant: str) -> None:
        columns, mine = kept_turns.c, kept_turns.c.tenant == tenant
        size = int(await connection.scalar(select(func.coalesce(func.sum(columns.size), 0)).where(mine)) or 0)
        if size <= self._most_bytes:
            return
        gone: list[str] = []
        for row in await connection.execute(
            select(columns.turn_id, columns.size).where(mine).order_by(columns.created_at)
        ):
            if size <= self._most_bytes:
                break
            gone.append(row.turn_id)
            size -= row.size
        for first in range(0, len(gone), _AT_ONCE):
            await connection.execute(delete(kept_turns).where(columns.turn_id.in_(gone[first : first + _AT_ONCE])))
