"""Limits failed sign-ins: of this process, in bounded memory, or of all processes together, counted in Redis by its
clock, in one atomic script each.

Devices that signed in before have limits of their own (`login`), so that failures of others, of the same account or
address, do not keep them out. A right key is never limited: keys are too long to be guessed.
"""

import logging
import math
import time
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Literal
from uuid import uuid4

import msgspec
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.base.stores.redis_store import Argument, Call, RedisScripts, RedisStore, RedisUnavailableError, script
from gateway.edge.asgi import HttpRequest
from gateway.operations.running import operations_of
from gateway.tenancy.changes import Order, write_down
from gateway.tenancy.guard import client_of
from migrations.tables.tenancy import dashboard_users
from quality.store.database import writing_first

WINDOW_SECONDS = 300.0
MOST_FAILURES = 5
"""Of an account from unknown devices, and of a known device."""
MOST_FAILURES_OF_A_NETWORK = 20
"""Of an address or an IPv6 network of 64 bits: many people may share it."""
MOST_STARTS_OF_A_NETWORK = 100
"""Ways to an OpenID provider that a network begins; right ones too, since nothing tells them apart yet."""
MOST_RECORDED = 200
"""Failures that are written to the log and the audit trail, of all addresses together."""
_MOST_SUBJECTS = 10_000

Kind = Literal["account", "network", "key", "device", "provider", "callback", "record"]
Subject = tuple[Kind, str]
"""What failures are counted for: an account, a known device, what is recorded, and a network that sends passwords,
keys, its browsers to an OpenID provider, or codes of one."""
MOST: dict[Kind, int] = {
    "account": MOST_FAILURES,
    "network": MOST_FAILURES_OF_A_NETWORK,
    "key": MOST_FAILURES_OF_A_NETWORK,
    "device": MOST_FAILURES,
    "provider": MOST_STARTS_OF_A_NETWORK,
    "callback": MOST_FAILURES_OF_A_NETWORK,
    "record": MOST_RECORDED,
}
"""Failures per window of each kind of subject."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt to sign in."""

    wait_seconds: int = 0
    """Seconds until the next one may be made. With 0 this one may, and counts as its `subjects`' failure until taken
    back.
    """
    is_news: bool = False
    """Whether it is the first that was refused since a limit was reached."""
    subjects: tuple[Subject, ...] = ()
    member: str = ""
    """Identifies the attempt in Redis."""


class LoginLimits(ABC):
    """Allows each subject at most `MOST` failures of its kind in `WINDOW_SECONDS`; an attempt has several subjects."""

    @abstractmethod
    async def begin(self, *subjects: Subject) -> Attempt:
        """Count an attempt as failed if all its subjects may make one, so that concurrent attempts count too."""

    @abstractmethod
    def take_back(self, attempt: Attempt) -> None:
        """Uncount an attempt that was right, and no other one, which may be another's. Does not wait."""


class OwnLoginLimits(LoginLimits):
    """The limits of one process. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = {kind: _FailureLimit(most, clock) for kind, most in MOST.items()}

    async def begin(self, *subjects: Subject) -> Attempt:
        if wait := max(self._limits[kind].wait(subject) for kind, subject in subjects):
            news = [self._limits[kind].is_news(subject) for kind, subject in subjects]
            return Attempt(wait_seconds=wait, is_news=any(news))
        self.count(*subjects)
        return Attempt(subjects=subjects)

    def count(self, *subjects: Subject) -> None:
        """Count a failure, whatever was counted before."""
        for kind, subject in subjects:
            self._limits[kind].failed(subject)

    def take_back(self, attempt: Attempt) -> None:
        for kind, subject in attempt.subjects:
            self._limits[kind].take_back(subject)


class _Failures(msgspec.Struct):
    """Times of the failures, and whether reaching the limit has been reported."""

    times: deque[float]
    is_reported: bool = False


class _FailureLimit:
    """Failures of the subjects of one kind."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most, self._clock = most, clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def wait(self, subject: str) -> int:
        """Return the whole seconds until another attempt is allowed; 0 if allowed now."""
        failures = self._failures.get(subject)
        if failures is None or len(failures.times) < self._most:
            return 0
        return max(math.ceil(failures.times[0] + WINDOW_SECONDS - self._clock()), 0)

    def failed(self, subject: str) -> None:
        failures = self._failures.setdefault(subject, _Failures(deque(maxlen=self._most)))
        failures.times.append(self._clock())
        failures.is_reported = False
        self._failures.move_to_end(subject)
        while len(self._failures) > _MOST_SUBJECTS:
            self._failures.popitem(last=False)

    def take_back(self, subject: str) -> None:
        failures = self._failures.get(subject)
        if failures is not None and failures.times:
            failures.times.pop()

    def is_news(self, subject: str) -> bool:
        """Return whether the subject has to wait and this was not asked since its last failure."""
        failures = self._failures.get(subject)
        if failures is None or failures.is_reported or not self.wait(subject):
            return False
        failures.is_reported = True
        return True


# What is typed as a name may be a password. So few bits of its hash do not give it away, and hardly two accounts whose
# sign-ins fail at the same time share a limit.
_BYTES_OF_A_NAME = 3

# KEYS: of each subject the sorted set of its failures by their time, then of each the mark that its limit was reported.
# ARGV: window in milliseconds, member, most failures of each subject.
_BEGIN = script("""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local window, subjects = tonumber(ARGV[1]), #KEYS / 2
local wait, news = 0, 0
for i = 1, subjects do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', now - window)
  local over = redis.call('ZCARD', KEYS[i]) - tonumber(ARGV[2 + i])
  if over >= 0 then
    local oldest = redis.call('ZRANGE', KEYS[i], over, over, 'WITHSCORES')
    wait = math.max(wait, tonumber(oldest[2]) + window - now)
    if redis.call('SET', KEYS[subjects + i], 1, 'NX', 'PX', window) then news = 1 end
  end
end
if wait > 0 then return {math.ceil(wait / 1000), news} end
for i = 1, subjects do
  redis.call('ZADD', KEYS[i], now, ARGV[2])
  redis.call('PEXPIRE', KEYS[i], window)
  redis.call('DEL', KEYS[subjects + i])
end
return {0, 0}
""")
# ARGV: member.
_TAKE_BACK = script("""
for i = 1, #KEYS do redis.call('ZREM', KEYS[i], ARGV[1]) end
return 1
""")


class SharedLoginLimits(LoginLimits):
    """While Redis is down every process counts by itself, what it counted before included."""

    def __init__(self, store: RedisStore) -> None:
        self._scripts, self._own = RedisScripts(store), OwnLoginLimits()

    async def begin(self, *subjects: Subject) -> Attempt:
        member = uuid4().hex
        arguments: list[Argument] = [int(WINDOW_SECONDS * 1e3), member, *(MOST[kind] for kind, _ in subjects)]
        keys = [*_keys("failed", subjects), *_keys("reported", subjects)]
        try:
            wait, news = await self._scripts.run(Call(_BEGIN, keys, arguments))
        except RedisUnavailableError:
            return await self._own.begin(*subjects)
        if wait:
            return Attempt(wait_seconds=wait, is_news=bool(news))
        self._own.count(*subjects)
        return Attempt(subjects=subjects, member=member)

    def take_back(self, attempt: Attempt) -> None:
        """See `LoginLimits`. What does not reach Redis expires there."""
        self._own.take_back(attempt)
        if attempt.member:
            self._scripts.put(Call(_TAKE_BACK, _keys("failed", attempt.subjects), [attempt.member]))


def _keys(what: str, subjects: tuple[Subject, ...]) -> list[str]:
    """Return the key of each subject, all in one slot of a cluster."""
    return [f"aio:{{sign-in}}:{what}:{kind}:{_digest(kind, subject)}" for kind, subject in subjects]


def _digest(kind: Kind, subject: str) -> str:
    size = _BYTES_OF_A_NAME if kind == "account" else 16
    return blake2b(subject.encode(errors="surrogatepass"), digest_size=size).hexdigest()


log = logging.getLogger(__name__)

Action = Literal["session.begun", "session.ended", "session.refused", "session.limited"]
Means = Literal["password", "key", "oidc"]
ANONYMOUS, UNKNOWN = "nobody", "unknown"
LIMITS = "login_limits"
_ALL: Subject = ("record", "all")


def limits_of(request: HttpRequest) -> LoginLimits:
    """Return the limits of all processes that share a Redis; without it, those of this process."""
    limits: LoginLimits | None = request.app.state.get(LIMITS)
    if limits is None:
        redis = operations_of(request).readiness.redis
        limits = request.app.state[LIMITS] = OwnLoginLimits() if redis is None else SharedLoginLimits(redis)
    return limits


async def note(request: HttpRequest, action: Action, actor: str, **details: str) -> None:
    """Record an action of a signed-in user. While the database is down, it is logged instead and nothing waits."""
    await _written(request, action, actor, actor, details)


async def note_failure(request: HttpRequest, action: Action, name: str, means: Means, why: str = "") -> None:
    """Log and record a failed attempt, unless so many were recorded that others would fill the log and the database. A
    `name` of no user is not kept: it may be a password in the wrong field."""
    recorded = await limits_of(request).begin(_ALL)
    if recorded.wait_seconds:
        if recorded.is_news:
            log.warning("so many sign-ins to the dashboard failed that for some minutes no more are recorded")
        return
    log.warning("a sign-in to the dashboard failed, by %s%s", means, f": {why}" if why else "")
    await _written(request, action, ANONYMOUS, name or means, {"by": means}, is_name=means == "password")


async def _written(
    request: HttpRequest, action: Action, actor: str, subject: str, details: dict[str, str], *, is_name: bool = False
) -> None:
    operations = operations_of(request)
    order = Order(actor=actor, now=operations.access.tenancy.clock.now())
    try:
        database = writing_first(operations.serving.database)
        async with database.begin() as connection:
            shown = subject if not is_name or await _is_user(connection, subject) else UNKNOWN
            await write_down(connection, order, action, shown, details | {"from": client_of(request).address})
    except (SQLAlchemyError, OSError) as error:
        log.warning("%s by %s was not recorded: %s", action, actor, type(error).__name__)


async def _is_user(connection: AsyncConnection, name: str) -> bool:
    query = select(dashboard_users.c.name).where(dashboard_users.c.name == name)
    return await connection.scalar(query) is not None
