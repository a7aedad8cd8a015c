"""The tiers of conversations in Redis, so that any process goes on with what another one answered (SPEC GW-19)."""

from gateway.base.stores.redis_scripts import Call, RedisScripts, script
from gateway.base.stores.redis_store import RedisStore, RedisUnavailableError

PREFIX = "aio:turns:"
_GET = script('return redis.call("GET", KEYS[1])')
_SET = script('return redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])')


class SharedTurns:
    """Tiers by digest, for the seconds that each is noted for; while Redis is down nothing is found or noted.

    Digests of all processes must be made with the same secret. A value is one digit per tier, oldest first.
    """

    def __init__(self, store: RedisStore) -> None:
        self._scripts = RedisScripts(store)

    async def get(self, digest: bytes) -> tuple[int, ...]:
        """The tiers of `digest`, oldest first; empty if there are none."""
        try:
            stored = await self._scripts.run(Call(_GET, [PREFIX + digest.hex()], []))
        except RedisUnavailableError:
            return ()
        return tuple(stored[i] - ord("0") for i in range(len(stored))) if isinstance(stored, bytes) else ()

    def note(self, digest: bytes, tiers: tuple[int, ...], seconds: float) -> None:
        """Keep `tiers` for `digest`, without waiting for it."""
        value = "".join(map(str, tiers))
        self._scripts.put(Call(_SET, [PREFIX + digest.hex()], [value, max(1, round(seconds * 1e3))]))

    async def flush(self) -> None:
        """Wait until everything is noted."""
        await self._scripts.flush()
