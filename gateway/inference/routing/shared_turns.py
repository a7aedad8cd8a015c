"""The tiers of conversations in Redis, so that any process goes on with what another one answered (SPEC GW-19)."""

from base64 import b64decode, b64encode
from typing import NamedTuple

from gateway.base.stores.redis_scripts import Call, RedisScripts, script
from gateway.base.stores.redis_store import RedisStore, RedisUnavailableError

PREFIX = "aio:turns:"
_GET = script('return redis.call("GET", KEYS[1])')
_SET = script('return redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])')


class Noted(NamedTuple):
    """What is known of a conversation: its tiers, oldest first, and the encoded session, b"" for none."""

    tiers: tuple[int, ...] = ()
    session: bytes = b""


class SharedTurns:
    """Tiers and sessions by digest, for the seconds that each is noted for; while Redis is down nothing is found or
    noted.

    Digests of all processes must be made with the same secret. A value is one digit per tier, oldest first, and the
    session after a colon, in base64, if there is one.
    """

    def __init__(self, store: RedisStore) -> None:
        self._scripts = RedisScripts(store)

    async def get(self, digest: bytes) -> Noted:
        """What is noted for `digest`; empty if there is nothing."""
        try:
            stored = await self._scripts.run(Call(_GET, [PREFIX + digest.hex()], []))
        except RedisUnavailableError:
            return Noted()
        if not isinstance(stored, bytes):
            return Noted()
        digits, _, session = stored.partition(b":")
        return Noted(tuple([digit - ord("0") for digit in digits]), b64decode(session))

    def note(self, digest: bytes, noted: Noted, seconds: float) -> None:
        """Keep what is `noted` for `digest`, without waiting for it."""
        value = "".join(map(str, noted.tiers))
        if noted.session:
            value += f":{b64encode(noted.session).decode()}"
        self._scripts.put(Call(_SET, [PREFIX + digest.hex()], [value, max(1, round(seconds * 1e3))]))

    async def flush(self) -> None:
        """Wait until everything is noted."""
        await self._scripts.flush()
