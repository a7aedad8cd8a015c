"""What a strongest answer usually costs a caller: the reference in which routing counts the dollars of a prompt."""

import time
from collections import OrderedDict

from sqlalchemy.ext.asyncio import AsyncEngine

from quality.store.queries import strongest_prices

# Of a key or a system prompt: the prompt's own price counts as so many earlier ones, so that on the first day prompts
# are not compared with each other, and no prompt looks more than (n + 10) / 10 times as dear as it is.
OWN_WEIGHT = 10.0
# A mean is over about so many of the newest requests.
NEWEST = 1000
# Keys and system prompts that are remembered, about 200 bytes each.
MOST = 20_000


class ReferencePrices:
    """Running means, in US dollars, of the strongest tier's predicted price: of each key's prompts, and of those with
    each of its system prompts. This process's requests since its start or the last change of prices, and those of
    earlier processes, at the prices of their time; of system prompts, those of callers who consent to learning."""

    def __init__(self) -> None:
        self._began = time.time()
        self._means: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def of(self, key: str, app: str, usd: float) -> float:
        """Return the reference for a prompt whose strongest answer is predicted to cost `usd`: the mean of its system
        prompt `app` (a hash, "" without one), towards that of its `key`, towards `usd` itself."""
        found = self._towards((key, ""), usd)
        return self._towards((key, app), found) if app else found

    def observe(self, key: str, app: str, usd: float) -> None:
        """Count a request that is being answered."""
        self._count((key, ""), usd)
        if app:
            self._count((key, app), usd)

    async def restore(self, database: AsyncEngine, tiers: int) -> None:
        """Count the newest stored requests, of any process, from before this one began."""
        for key, app, usd in await strongest_prices(database, tiers, self._began, NEWEST):
            self.observe(key, app, usd)

    def clear(self) -> None:
        """Forget all means, because prices have changed."""
        self._means.clear()

    def _towards(self, place: tuple[str, str], parent: float) -> float:
        count, mean = self._means.get(place, (0.0, 0.0))
        return (OWN_WEIGHT * parent + count * mean) / (OWN_WEIGHT + count)

    def _count(self, place: tuple[str, str], usd: float) -> None:
        means = self._means
        if (known := means.get(place)) is None:
            means[place] = (1.0, usd)
            if len(means) > MOST:
                means.popitem(last=False)
            return
        count = known[0] + 1.0 if known[0] < NEWEST else NEWEST
        means[place] = (count, known[1] + (usd - known[1]) / count)
        means.move_to_end(place)
