"""Which messages about alerts were sent, in the database: replicas and restarts repeat none."""

from collections.abc import Collection
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import ColumnElement, Row, delete, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.audit import alert_messages
from quality.store.queries import exclusive

_LOCK = 0x41494F0D  # PostgreSQL advisory lock number: "AIO", 13
KEPT_SECONDS = 366 * 86_400.0
_COLUMNS = alert_messages.c
State = Literal["on", "over"]
# Of a row whose message is on its way; after so long its process died.
SENDING: Final = "sending"
ATTEMPT_SECONDS = 120.0


class Sent(NamedTuple):
    """The last message about a cause in a channel. `sent_at`: epoch seconds."""

    channel: str
    cause: str
    state: State | Literal["sending"]
    severity: str
    summary: str
    ends: bool
    sent_at: float


class Claim(NamedTuple):
    """Whether the caller is to send the message, and the last one before it."""

    granted: bool
    last: Sent | None


class AlertMessages:
    """The sent messages of all replicas. All methods raise what the database raises."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def claim(self, message: Sent, gap_seconds: float) -> Claim:
        """Note that `message` is on its way unless the last one about its cause has the same state, is on its way or
        is younger than `gap_seconds`; an end whose beginning was not sent is not sent either."""
        mine, noted = _mine(message), message._asdict() | {"state": SENDING}
        async with exclusive(self._engine, _LOCK) as connection:
            row = (await connection.execute(select(alert_messages).where(*mine))).first()
            last = None if row is None else _sent(row)
            if last is None and message.state == "over":
                return Claim(False, None)
            if last is None:
                old = _COLUMNS.sent_at < message.sent_at - KEPT_SECONDS
                await connection.execute(delete(alert_messages).where(old))
                await connection.execute(insert(alert_messages).values(noted))
            elif last.state == SENDING and message.sent_at >= last.sent_at + ATTEMPT_SECONDS:
                await connection.execute(update(alert_messages).where(*mine).values(noted))
            elif last.state in (message.state, SENDING) or message.sent_at < last.sent_at + gap_seconds:
                return Claim(False, last)
            else:
                await connection.execute(update(alert_messages).where(*mine).values(noted))
        return Claim(True, last)

    async def confirm(self, message: Sent) -> None:
        """Note that a claimed message was accepted."""
        async with exclusive(self._engine, _LOCK) as connection:
            await connection.execute(update(alert_messages).where(*_mine(message)).values(message._asdict()))

    async def release(self, message: Sent, before: Sent | None) -> None:
        """Note that a claimed message could not be sent: `before`, or nothing, is the last one."""
        async with exclusive(self._engine, _LOCK) as connection:
            if before is None:
                await connection.execute(delete(alert_messages).where(*_mine(message)))
            else:
                await connection.execute(update(alert_messages).where(*_mine(message)).values(before._asdict()))

    async def standing(self, source: str, pairing: Collection[str]) -> list[Sent]:
        """Return the beginnings whose end is to be sent, of causes of `source` and of shared ones. `pairing`: channels
        that hear of every end."""
        own = or_(_COLUMNS.cause.startswith(f"{source}/", autoescape=True), _COLUMNS.cause.startswith("Aio"))
        ending = or_(_COLUMNS.ends, _COLUMNS.channel.in_(pairing))
        query = select(alert_messages).where(_COLUMNS.state == "on", own, ending)
        async with self._engine.connect() as connection:
            return [_sent(row) for row in await connection.execute(query)]

    async def newest(self, most: int) -> list[Sent]:
        """Return the last message about each cause, newest first."""
        query = select(alert_messages).where(_COLUMNS.state != SENDING).order_by(_COLUMNS.sent_at.desc()).limit(most)
        async with self._engine.connect() as connection:
            return [_sent(row) for row in await connection.execute(query)]


def _mine(message: Sent) -> tuple[ColumnElement[bool], ...]:
    return _COLUMNS.channel == message.channel, _COLUMNS.cause == message.cause


def _sent(row: Row[Any]) -> Sent:
    return Sent(**row._mapping)
