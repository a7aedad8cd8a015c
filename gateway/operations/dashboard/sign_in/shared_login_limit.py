"""Limits failed sign-ins of all processes together: counted in Redis, by its clock, in one atomic script each."""

from hashlib import blake2b
from uuid import uuid4

from gateway.base.stores.redis_store import Argument, Call, RedisScripts, RedisStore, RedisUnavailableError, script
from gateway.operations.dashboard.sign_in.login_limit import (
    MOST,
    WINDOW_SECONDS,
    Attempt,
    Kind,
    LoginLimits,
    OwnLoginLimits,
    Subject,
)

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
        """See `LoginLimits`."""
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
