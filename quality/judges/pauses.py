"""Judges that cannot decide on a tenant's answers pause for that tenant: a reference that cannot be compared with is
paid for in vain."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable

log = logging.getLogger(__name__)

# So many answers in a row without a label, and the seconds for which their judges pause then.
MOST_UNDECIDED, PAUSE_SECONDS = 10, 3600.0
_MOST_KEPT = 10_000


class JudgePauses:
    """Counts, by tenant and judge, the answers in a row on which the judge could have decided and that got no label
    from any judge. Counts of one process, bounded in memory; `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._undecided: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._until: dict[tuple[str, str], float] = {}

    def paused(self, tenant: str) -> frozenset[str]:
        """Return the names of the judges that pause for `tenant` now."""
        now = self._clock()
        self._until = {pair: until for pair, until in self._until.items() if until > now}
        return frozenset(judge for of, judge in self._until if of == tenant)

    def note(self, tenant: str, judges: Iterable[str], *, labelled: bool) -> None:
        """Count an answer of `tenant` on which `judges` could have decided."""
        for judge in judges:
            pair = tenant, judge
            count = 0 if labelled else self._undecided.pop(pair, 0) + 1
            if count >= MOST_UNDECIDED:
                self._until[pair] = self._clock() + PAUSE_SECONDS
                log.warning(
                    "judge %s decided on none of the last %d answers of %s, and pauses for them for %.0f minutes",
                    judge,
                    count,
                    tenant or "callers without a key",
                    PAUSE_SECONDS / 60,
                )
                count = 0
            if count:
                self._undecided[pair] = count
            else:
                self._undecided.pop(pair, None)
        while len(self._undecided) > _MOST_KEPT:
            self._undecided.popitem(last=False)
