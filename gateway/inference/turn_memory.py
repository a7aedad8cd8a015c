"""Remembers what a server needs back of its earlier turns, and gives it to that server at the next step.

A turn is found by its first call, or by the result that it follows. Which server and model answered with it is known
even if its client carries all that is needed. Processes share the turns in a Redis, or in the database.
"""

import asyncio
import hashlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from sqlalchemy import bindparam, delete, exists, func, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.base.inference_request import InferenceRequest
from gateway.base.stores.redis_store import Call as ScriptCall
from gateway.base.stores.redis_store import RedisScripts, RedisStore, RedisUnavailableError, script
from gateway.inference.answer import Answer
from inference_core.io.background_tasks import once
from migrations.tables.api_objects import stored_turns
from migrations.tables.audit import erasures
from quality.store.queries import exclude_erasures
from tiers.conversation import Call, Opaque, Turn
from tiers.deltas import CollectedChoice
from tiers.dialects.chat_opaque import (
    AUDIO,
    FORM,
    audio_reference,
    opaque_fields,
    opaque_of,
    recallable_blocks,
    size_of,
)

log = logging.getLogger(__name__)

SECONDS = 86_400.0
"""For how long a turn is stored."""
MOST_BYTES = 64 * 2**20
"""Of all turns of one tenant."""
MOST_TURNS = 4096
"""That are looked up at once: the last ones of a conversation."""
_AT_ONCE = 256
SAVE_SECONDS = 1.0
"""How long the end of an answer waits for the store."""
_MOST_SAVING = 256
_PREFIX = "aio:turn:1:"


class StoredTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn as a store holds it."""

    turn_id: str
    """The id by which it is found."""
    key_id: str | None
    tenant: str
    content: bytes
    created_at: float
    """When the request arrived, in UTC epoch seconds."""


class TurnStore(ABC):
    """Stores turns for `SECONDS`, at most `MOST_BYTES` of a tenant: the oldest go first. Raises nothing: while it is
    away, nothing is found or stored, and the log says so once."""

    def __init__(self) -> None:
        self._is_away = False

    async def get(self, turn_ids: Sequence[str]) -> dict[str, bytes]:
        """Return the content of those of these turns that are stored."""
        try:
            content_by_turn = await self._get(turn_ids[-MOST_TURNS:])
        except (RedisUnavailableError, SQLAlchemyError, OSError) as error:
            self._say_away(error)
            return {}
        self._is_away = False
        return content_by_turn

    async def put(self, turns: Sequence[StoredTurn]) -> None:
        """Store turns, unless their user was erased after the request came."""
        try:
            for turn in turns:
                await self._put(turn)
        except (RedisUnavailableError, SQLAlchemyError, OSError) as error:
            self._say_away(error)

    async def forget(self, key_id: str, now: float) -> None:  # noqa: B027 - an erasure deletes rows of the database
        """Drop the turns of this key's user."""

    def _say_away(self, error: Exception) -> None:
        if not self._is_away:
            log.warning("reasoning of earlier steps is neither stored nor found (%s)", type(error).__name__)
        self._is_away = True

    @abstractmethod
    async def _get(self, turn_ids: Sequence[str]) -> dict[str, bytes]: ...

    @abstractmethod
    async def _put(self, turn: StoredTurn) -> None: ...


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
        hex_texts = await self._redis.ask(lambda redis: redis.mget(names))
        texts = zip(turn_ids, hex_texts, strict=True)
        return {turn_id: bytes.fromhex(text.decode()) for turn_id, text in texts if isinstance(text, bytes)}

    async def _put(self, turn: StoredTurn) -> None:
        content = turn.content.hex()
        arguments = (_PREFIX, turn.turn_id, content, int(SECONDS), turn.created_at, 2 * self._most_bytes)
        await self._scripts.run(ScriptCall(_PUT, _names(turn.key_id or turn.tenant), arguments))

    async def forget(self, key_id: str, now: float) -> None:
        try:
            await self._scripts.run(ScriptCall(_FORGET, _names(key_id), (_PREFIX, now)))
        except RedisUnavailableError as error:
            self._say_away(error)


def _names(owner: str) -> tuple[str, str, str]:
    """Of the list of an owner's turns, of the sum of their bytes, and of the time of an erasure."""
    return f"{_PREFIX}of:{owner}", f"{_PREFIX}bytes:{owner}", f"{_PREFIX}erased:{owner}"


class DatabaseTurns(TurnStore):
    """In the database; an erasure deletes the user's rows there (`quality.store.queries.delete_key_data`)."""

    def __init__(self, engine: AsyncEngine, most_bytes: int = MOST_BYTES) -> None:
        super().__init__()
        self._engine, self._most_bytes = engine, most_bytes

    async def _get(self, turn_ids: Sequence[str]) -> dict[str, bytes]:
        columns, content_by_turn = stored_turns.c, dict[str, bytes]()
        since = time.time() - SECONDS
        async with self._engine.connect() as connection:
            for first in range(0, len(turn_ids), _AT_ONCE):
                some = columns.turn_id.in_(turn_ids[first : first + _AT_ONCE])
                rows = select(columns.turn_id, columns.content).where(some, columns.created_at > since)
                content_by_turn |= {row.turn_id: row.content for row in await connection.execute(rows)}
        return content_by_turn

    async def _put(self, turn: StoredTurn) -> None:
        columns, row = stored_turns.c, msgspec.structs.asdict(turn) | {"size": len(turn.content)}
        erased = exists().where(erasures.c.key_id == turn.key_id, erasures.c.erased_at >= turn.created_at)
        values = [bindparam(name, value, columns[name].type) for name, value in row.items()]
        async with self._engine.begin() as connection:
            await exclude_erasures(connection)
            old = (columns.turn_id == turn.turn_id) | (columns.created_at <= time.time() - SECONDS)
            await connection.execute(delete(stored_turns).where(old))
            await connection.execute(insert(stored_turns).from_select(list(row), select(*values).where(~erased)))
            await self._drop_oldest(connection, turn.tenant)

    async def _drop_oldest(self, connection: AsyncConnection, tenant: str) -> None:
        columns, mine = stored_turns.c, stored_turns.c.tenant == tenant
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
            await connection.execute(delete(stored_turns).where(columns.turn_id.in_(gone[first : first + _AT_ONCE])))


K = TypeVar("K")
V = TypeVar("V")
"""Of all that this process has in memory."""
MOST_KNOWN = 100_000
"""Of turns of which nothing is stored, and of thoughts whose server is known."""
_HERE = "here"
"""What stands for the server of what a tier in process thought."""
FRESH_SECONDS = 600.0
"""For how long a process trusts its memory where a store is shared: others may have erased a user meanwhile."""


class _Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """The server and model that answered with a turn, a digest of its text and calls, and what is given back of it."""

    answered_by: str = msgspec.field(name="maker")
    said: bytes
    blocks: tuple[Opaque, ...] = ()


class _InMemory(NamedTuple):
    turn: _Turn
    until: float
    key_id: str | None


class TurnMemory:
    """Turns of the requests whose texts may be stored, each only for the key that it belongs to. Of other requests it
    is known which server answered with a turn, in memory alone.

    `store`: shared by all processes; without one there is this memory, of at most `most_bytes`, each for `seconds`.
    """

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
        store: TurnStore | None = None,
    ) -> None:
        self.store = store
        self._most_bytes, self._seconds, self._clock = most_bytes, seconds, clock
        self._turns: dict[str, _InMemory] = {}  # oldest first
        self._absent: dict[str, float] = {}  # until when nothing is there, oldest first
        self._servers: dict[bytes, str] = {}  # server and model by digest, oldest first
        self._saving: set[asyncio.Task[None]] = set()
        self._size = 0

    def __len__(self) -> int:
        return len(self._turns)

    def remember(self, answer: Answer) -> list[StoredTurn]:
        """Remember what an answer's server said, and return what is for the store, too."""
        request, answered_by = answer.request, answer.answered_by or _HERE
        messages = request.generation.messages
        if messages is None:
            return []
        rows: list[StoredTurn] = []
        after_result = bool(messages) and messages[-1].role == "tool"
        for choice in answer.choices:
            if not (after_result or choice.thoughts or choice.calls or choice.opaque):
                # Only a text, as most answers are.
                continue
            for said in _digests_of(choice.reasoning, opaque_fields(choice), choice.tool_calls):
                _note(self._servers, said, answered_by)
            turn_id = _turn_id(request, choice.text, choice.tool_calls, messages[-1] if messages else None)
            if turn_id is None:
                continue
            turn = _Turn(answered_by, _said(choice.text, choice.tool_calls), _content(request, choice))
            is_sealed = any(block.seal for blocks in choice.opaque.values() for block in blocks)
            if not turn.blocks and not is_sealed and not choice.reasoning:
                _note(self._absent, turn_id, self._clock() + self._lifetime)
                continue
            self._put(turn_id, turn, request.key_id)
            if answered_by != _HERE and self.store is not None and _may_store(request):
                rows.append(_row(request, turn_id, turn))
        return rows

    async def save(self, rows: Sequence[StoredTurn]) -> None:
        """Put turns into the store. One that does not answer gets them later: until then this process has them; only
        where many wait for it, this waits too."""
        if self.store is None:
            return
        saving = once(self.store.put(rows), "storing of turns")
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)
        await asyncio.wait({saving}, timeout=SAVE_SECONDS if len(self._saving) < _MOST_SAVING else None)

    async def recall(self, request: InferenceRequest) -> Sequence[Turn]:
        """Return the turns of `request`, each with the server that answered with it and what is remembered of it."""
        messages = request.generation.messages or []
        ids = {
            index: turn_id
            for index, message in enumerate(messages)
            if message.role == "assistant"
            and (turn_id := _turn_id(request, message.text, message.calls, messages[index - 1]))
        }
        now = self._clock()
        unknown = [turn_id for turn_id in ids.values() if not self._knows(turn_id, now)]
        if unknown and self.store is not None and _may_store(request):
            content_by_turn = await self.store.get(unknown)
            for turn_id in unknown:
                if (content := content_by_turn.get(turn_id)) is not None:
                    self._put(turn_id, _decode(content), request.key_id)
                else:
                    _note(self._absent, turn_id, now + self._lifetime)
        may_store = _may_store(request)
        return [self._recalled(message, ids.get(index), may_store) for index, message in enumerate(messages)]

    def _knows(self, turn_id: str, now: float) -> bool:
        remembered = self._turns.get(turn_id)
        if remembered is not None and remembered.until <= now:
            self._drop([turn_id])
            remembered = None
        return remembered is not None or self._absent.get(turn_id, 0.0) > now

    def _recalled(self, message: Turn, turn_id: str | None, may_store: bool) -> Turn:
        if message.role != "assistant":
            return message
        remembered = None if turn_id is None else self._turns.get(turn_id)
        turn = None if remembered is None else remembered.turn
        # Some servers give every call the same id: what the turn itself has is surer.
        carried = _digests_of(message.thoughts, opaque_of(message), message.calls)
        server = next((self._servers[said] for said in carried if said in self._servers), None)
        if turn is None or server not in (None, turn.answered_by):
            return message if server is None else msgspec.structs.replace(message, answered_by=server)
        recalled = turn.blocks if may_store else ()
        if recalled and recalled[0].dialect != FORM and turn.said != _said(message.text, message.calls):
            # The whole turn would be replaced, which its client has changed.
            recalled = ()
        if not recalled and message.is_plain:
            return message
        # What its client carries of the turn stays where nothing may be stored here.
        return msgspec.structs.replace(message, answered_by=turn.answered_by, recalled=recalled or message.recalled)

    @property
    def _lifetime(self) -> float:
        return self._seconds if self.store is None else min(self._seconds, FRESH_SECONDS)

    async def erase(self, key_id: str) -> None:
        """Drop what is remembered for this key; other processes forget it within `FRESH_SECONDS`."""
        self.forget(key_id)
        if self.store is not None:
            await self.store.forget(key_id, time.time())

    def forget(self, key_id: str) -> None:
        """Drop what this process has of this key."""
        self._drop([turn_id for turn_id, turn in self._turns.items() if turn.key_id == key_id])

    def _put(self, turn_id: str, turn: _Turn, key_id: str | None) -> None:
        self._drop([turn_id] if turn_id in self._turns else [])
        self._absent.pop(turn_id, None)
        now = self._clock()
        self._turns[turn_id] = _InMemory(turn, now + self._lifetime, key_id)
        self._size += _size(turn)
        while self._turns and (self._size > self._most_bytes or next(iter(self._turns.values())).until <= now):
            self._drop([next(iter(self._turns))])

    def _drop(self, turn_ids: Iterable[str]) -> None:
        for turn_id in turn_ids:
            self._size -= _size(self._turns.pop(turn_id).turn)


def _row(request: InferenceRequest, turn_id: str, turn: _Turn) -> StoredTurn:
    return StoredTurn(
        turn_id=turn_id,
        key_id=request.key_id,
        tenant=request.caller.tenant,
        content=_encode(turn),
        created_at=request.created_at,
    )


def _may_store(request: InferenceRequest) -> bool:
    """Whether its texts may be stored, and belong to somebody."""
    return request.consent.reuse and (request.options.credential is None or request.key_id is not None)


def _content(request: InferenceRequest, choice: CollectedChoice) -> tuple[Opaque, ...]:
    """What is given back of an answer: its server's own form, unless the client carries that; else thoughts and opaque
    fields of a chat, which many clients drop although the API has fields for it."""
    if not _may_store(request):
        return ()
    blocks = recallable_blocks(choice)
    if blocks and request.generation.is_in(blocks[0].dialect):
        return ()
    return blocks


def _turn_id(request: InferenceRequest, text: str, calls: Sequence[Call], before: Turn | None) -> str | None:
    """What a turn is found by: its first call, or its text after the result of one; None for a turn of neither."""
    if calls:
        key: tuple[str, ...] = ("call", calls[0].id, calls[0].name, _canonical(calls[0].arguments))
    elif before is not None and before.role == "tool":
        key = "after", before.call_id or "", text.strip()
    else:
        return None
    whose = request.caller.tenant, request.key_id or ""
    return hashlib.blake2b(_json((whose, key)), digest_size=32).hexdigest()


def _said(text: str, calls: Sequence[Call]) -> bytes:
    said = text.strip(), [(call.id, call.name, _canonical(call.arguments)) for call in calls]
    return hashlib.blake2b(_json(said), digest_size=16).digest()


def _canonical(arguments: str) -> str:
    """Arguments as any client may write them again; those that are no JSON stay as they are."""
    try:
        return _json(msgspec.json.decode(arguments)).decode()
    except (msgspec.DecodeError, RecursionError, ValueError):
        return arguments


def _digests_of(reasoning: str, fields: Sequence[Opaque], calls: Sequence[Call]) -> Iterator[bytes]:
    """Yield digests of what a turn has that is for its server alone."""
    if reasoning:
        yield _digest(reasoning)
    for block in fields:
        for opaque in audio_reference(msgspec.json.decode(block.json)) if block.type == AUDIO else (block,):
            yield _digest(opaque.json.decode(errors="replace"))
    for call in calls:
        if call.source is not None:
            yield _digest(call.source.json.decode(errors="replace"))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).digest()


def _size(turn: _Turn) -> int:
    return 256 + size_of(turn.blocks)


def _note(bounded: dict[K, V], key: K, value: V) -> None:
    bounded.pop(key, None)
    bounded[key] = value
    if len(bounded) > MOST_KNOWN:
        del bounded[next(iter(bounded))]


_json = msgspec.json.Encoder(order="deterministic").encode
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Turn).decode
