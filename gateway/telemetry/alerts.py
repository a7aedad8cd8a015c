"""Alerts without Prometheus: figures and causes are checked every few seconds, and channels hear when one begins and
when it is over.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import ColumnElement, Row, delete, insert, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.settings import Settings
from gateway.telemetry.alert_channels import AlertNotSentError, Cause, Channel, Message, channels_of
from gateway.telemetry.alert_rules import RULES, AlertInputs, AlertRule, Figure, Severity
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
    """The last message about a cause in a channel."""

    channel: str
    cause: str
    state: State | Literal["sending"]
    severity: Severity
    summary: str
    ends: bool
    sent_at: float
    """Epoch seconds."""


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
                return Claim(True, None)
            died = last.state == SENDING and message.sent_at >= last.sent_at + ATTEMPT_SECONDS
            too_early = last.state in (message.state, SENDING) or message.sent_at < last.sent_at + gap_seconds
            if too_early and not died:
                return Claim(False, last)
            await connection.execute(update(alert_messages).where(*mine).values(noted))
        return Claim(True, last)

    async def settle(self, message: Sent, last: Sent | None) -> None:
        """Note which one is the last about the cause of a claimed message: itself if it was sent, else that before."""
        change = delete(alert_messages) if last is None else update(alert_messages).values(last._asdict())
        async with exclusive(self._engine, _LOCK) as connection:
            await connection.execute(change.where(*_mine(message)))

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


log = logging.getLogger(__name__)

Why = Callable[[Figure], str | None]
Causes = Mapping[str, Sequence[Cause]]
"""The causes that stand now, by the name of their alert; of a name that is missing nothing is known."""
# Tiers that are out are causes of their own.
OWN_RULES = tuple(rule for rule in RULES if rule.figure != "tiers_down")
DATABASE_ERRORS = (SQLAlchemyError, OSError)


_ACTIONS: Mapping[State, Literal["trigger", "resolve"]] = {"on": "trigger", "over": "resolve"}


class Alerts:
    """Call `look` with figures periodically. A message that failed is sent at the next call; a channel hears of a cause
    again only when its state has changed, and not before the channel's gap has passed. Unknown figures change nothing.

    `why` adds to a message what is known about its figure. `messages`: what was sent before this process and by others;
    while the database is away, this process's own memory decides. `clock`: epoch seconds.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        rules: Sequence[AlertRule] = RULES,
        source: str = "",
        clock: Callable[[], float] = time.time,
        why: Why = lambda figure: None,
        messages: AlertMessages | None = None,
    ) -> None:
        self._channels, self._rules, self._clock = channels, rules, clock
        self._source, self._why, self._messages = source or socket.gethostname(), why, messages
        # When each cause began that stands now, with the name of its alert.
        self._since: dict[str, tuple[float, str]] = {}
        self._last: dict[str, dict[str, Sent]] = {channel.name: {} for channel in channels}
        self._remembers = messages is None

    async def look(self, figures: AlertInputs, causes: Causes | None = None) -> None:
        """Send a message for each cause that began or ended."""
        await self._remember()
        by_rule = self._by_rule(figures) | dict(causes or {})
        now, active = self._clock(), {cause.id: cause for each in by_rule.values() for cause in each}
        self._since = {id_: begun for id_, begun in self._since.items() if id_ in active or begun[1] not in by_rule}
        for id_, cause in active.items():
            self._since.setdefault(id_, (now, cause.name))
        lasting = {id_: cause for id_, cause in active.items() if now - self._since[id_][0] >= cause.for_seconds}
        await asyncio.gather(*(self._inform(channel, lasting, active, by_rule) for channel in self._channels))

    def _by_rule(self, figures: AlertInputs) -> dict[str, Sequence[Cause]]:
        values = {rule: value for rule in self._rules if (value := figures.get(rule.figure)) is not None}
        return {rule.name: [self._cause(rule, value)] if value > rule.above else [] for rule, value in values.items()}

    def _cause(self, rule: AlertRule, value: float) -> Cause:
        why = self._why(rule.figure)
        return Cause(
            name=rule.name,
            key=rule.name,
            summary=f"{rule.summary} ({value:.4g})" + (f"; {why}" if why else ""),
            severity=rule.severity,
            source=self._source,
            for_seconds=rule.for_seconds,
        )

    async def _inform(
        self, channel: Channel, lasting: Mapping[str, Cause], active: Mapping[str, Cause], by_rule: Causes
    ) -> None:
        """Tell a channel what has changed, until a message fails."""
        sent = self._last[channel.name]
        for id_, cause in lasting.items():
            is_new = id_ not in sent or sent[id_].state == "over"
            if is_new and not await self._report(channel, cause, "on"):
                return
        for id_, last in list(sent.items()):
            cause = self._cause_of(last)
            if id_ in active or cause.name not in by_rule:
                continue
            if last.state == "over" or not (channel.pairs or last.ends):
                if self._clock() >= last.sent_at + channel.gap_seconds:
                    del sent[id_]
            elif not await self._report(channel, cause, "over"):
                return

    def _cause_of(self, last: Sent) -> Cause:
        """Return what a message was about, which an earlier process on this machine may have sent."""
        key = last.cause.removeprefix(f"{self._source}/")
        return Cause(
            name=key.partition("/")[0],
            key=key,
            summary=last.summary,
            severity=last.severity,
            source="" if key == last.cause else self._source,
            ends=last.ends,
        )

    async def _report(self, channel: Channel, cause: Cause, state: State) -> bool:
        """Send what has changed, unless it is too early or another process has; False if the channel refused it."""
        sent, now = self._last[channel.name], self._clock()
        if (last := sent.get(cause.id)) is not None and now < last.sent_at + channel.gap_seconds:
            return True
        note = Sent(channel.name, cause.id, state, cause.severity, cause.summary, cause.ends, now)
        claim = await self._claim(note, channel)
        if claim is not None and not claim.granted:
            if claim.last is not None and claim.last.state != SENDING:
                sent[cause.id] = note._replace(state=claim.last.state, sent_at=claim.last.sent_at)
            return True
        action = _ACTIONS[state]
        try:
            await channel.send(Message(action=action, cause=cause, source=self._source, at=now))
        except AlertNotSentError as error:
            log.warning("alert %s (%s) waits for %s: %s", cause.name, action, channel.name, error)
            if claim is not None:
                await self._settle(note, claim.last)
            return False
        sent[cause.id] = note
        if claim is not None:
            await self._settle(note, note)
        log.warning("alert %s: %s (%s)", cause.name, action, channel.name)
        return True

    async def _claim(self, note: Sent, channel: Channel) -> Claim | None:
        """None while the database is away: what this process remembers decides."""
        if self._messages is None:
            return None
        try:
            return await self._messages.claim(note, channel.gap_seconds)
        except DATABASE_ERRORS as error:
            log.warning("sent alerts cannot be noted: %s", type(error).__name__)
            return None

    async def _settle(self, note: Sent, last: Sent | None) -> None:
        """Note what became of a message; while the database is away it is sent again after a restart at most."""
        try:
            if self._messages is not None:
                await self._messages.settle(note, last)
        except DATABASE_ERRORS as error:
            log.warning("what became of alert %s cannot be noted: %s", note.cause, type(error).__name__)

    async def _remember(self) -> None:
        """Read once what an earlier process on this machine reported, to report its end."""
        if self._remembers or self._messages is None:
            return
        try:
            pairing = [channel.name for channel in self._channels if channel.pairs]
            standing = await self._messages.standing(self._source, pairing)
        except DATABASE_ERRORS:
            return
        self._remembers = True
        for message in standing:
            if message.channel in self._last:
                self._last[message.channel].setdefault(message.cause, message)


async def keep_looking(
    settings: Settings,
    figures: Callable[[], Awaitable[AlertInputs]],
    causes: Callable[[], Awaitable[Causes]],
    database: AsyncEngine,
    rules: Sequence[AlertRule] = OWN_RULES,
    why: Why = lambda figure: None,
) -> None:
    """Check every `alert_poll_seconds` and tell the channels of `settings`. Raises `SettingsError` if invalid."""
    alerts = Alerts(channels_of(settings), rules, why=why, messages=AlertMessages(database))
    while True:
        try:
            await alerts.look(await figures(), await causes())
        except Exception:
            # A failed read is retried at the next check.
            log.exception("alerts were not evaluated")
        await asyncio.sleep(settings.alert_poll_seconds)
