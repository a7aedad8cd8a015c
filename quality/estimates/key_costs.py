"""What a key's requests cost of late, against those of its own week before.

A caller whose requests become dearer, by words that take them to stronger tiers or by longer answers, is seen before a
budget ends, and also where there is none.
"""

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from migrations.tables.requests import requests

LATELY_SECONDS, BEFORE_SECONDS = 3600.0, 7 * 86_400.0
LEAST_REQUESTS = 20
"""Of a key in each of the two periods: the cost of few requests says little."""


class KeyCost(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars per request in the last hour and in the week before it, with the number of requests. `key_id` is None
    for requests without a key."""

    key_id: str | None
    lately_usd: float
    lately: int
    before_usd: float
    before: int

    @property
    def ratio(self) -> float:
        """How many times as much a request costs as in the week before."""
        return self.lately_usd / self.before_usd

    @property
    def text(self) -> str:
        """One line for an operator."""
        whose = "requests without a key" if self.key_id is None else f"key {self.key_id}"
        return (
            f"{whose}: ${self.lately_usd:.3g} a request in the last hour ({self.lately:,} requests), "
            f"${self.before_usd:.3g} in the week before ({self.before:,})"
        )


async def dearest_key(engine: AsyncEngine, now: float) -> KeyCost | None:
    """Return the key whose cost per request has risen most, by its ratio; None without enough requests of any that cost
    something. `now`: epoch seconds. Raises the database's errors."""
    at = requests.c.created_at
    since = now - LATELY_SECONDS
    figures = (requests.c.key_id, func.avg(requests.c.cost_usd), func.count())
    enough = func.count() >= LEAST_REQUESTS
    lately = select(*figures).where(at >= since, at < now).group_by(requests.c.key_id).having(enough)
    before = select(*figures).where(at >= since - BEFORE_SECONDS, at < since).group_by(requests.c.key_id).having(enough)
    async with engine.connect() as connection:
        new = {key: (float(usd), int(count)) for key, usd, count in await connection.execute(lately)}
        # The longer period is read only where there is something to compare it with.
        old = {key: (float(usd), int(count)) for key, usd, count in await connection.execute(before)} if new else {}
    found = [
        KeyCost(key_id=key, lately_usd=usd, lately=count, before_usd=old[key][0], before=old[key][1])
        for key, (usd, count) in new.items()
        if key in old and old[key][0] > 0
    ]
    return max(found, key=lambda one: one.ratio, default=None)
