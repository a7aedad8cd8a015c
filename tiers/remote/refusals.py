"""What servers were found to refuse, which is left out of further requests or sent by another name."""

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

MOST = 1000
"""Served models that are known at a time."""
SECONDS = 86_400.0
"""For how long a refusal is remembered."""
NOTHING: frozenset[str] = frozenset()
MOST_NAMES, ENOUGH = 256, 2
"""Names that are known of a served model, and tenants that have to know one until all do."""


class ServedModel(NamedTuple):
    """What refused something: a model, by its tier, the address of its server, and the API that it was asked by."""

    tier: str
    url: str
    api: str
    model: str


class LearnedRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """What a server was learned to refuse."""

    tier: str
    url: str
    api: str
    model: str
    parameters: list[str]
    """The parameters that the server refuses."""
    until: float
    """When that is forgotten, seconds since 1970."""
    tenants: int = 0
    """How many tenants' requests each was refused in. If it is some of them alone, the refusal holds for these; 0: it
    holds for all.
    """


Said = tuple[str, str]
"""What was refused, and the status and the code by which it was."""


class LearnedRefusals:
    """What at most `most` served models refused, each for `seconds`. Only what a retry without it has shown is noted.

    A refusal may be about one caller's values, or repeat its words, so it holds for the tenant alone whose request got
    it. Once that of a second tenant gets the same one, by the same status and code, it holds for all. What requests
    without a tenant get holds for all at once: they are AIO's own, or no caller has a key.
    """

    def __init__(self, most: int = MOST, seconds: float = SECONDS, clock: Callable[[], float] = time.time) -> None:
        self._most, self._seconds, self._clock = most, seconds, clock
        # By served model, the oldest first: until when each tenant that was refused something knows it.
        self.known: dict[ServedModel, dict[Said, dict[str, float]]] = {}

    def at(self, served: ServedModel, tenant: str = "") -> frozenset[str]:
        """Return what is refused there to a tenant."""
        if (refusals := self.known.get(served)) is None:
            return NOTHING
        return frozenset(name for (name, _), told in refusals.items() if self._holds(told, tenant))

    def _holds(self, known_until: dict[str, float], tenant: str | None) -> bool:
        """Whether it holds for a tenant; for None, for all."""
        now = self._clock()
        live = [holder for holder, until in known_until.items() if until > now]
        return len(live) > 1 or "" in live or (tenant is not None and tenant in live)

    def learn(self, served: ServedModel, parameters: Collection[str], tenant: str = "", cause: str = "") -> None:
        """Note that `served` refuses `parameters` to a tenant. `cause`: the status and the code."""
        if not parameters:
            return
        refusals = self.known.pop(served, {})
        until = self._clock() + self._seconds
        for name in sorted(parameters)[:MOST_NAMES]:
            told = {holder: end for holder, end in refusals.pop((name, cause), {}).items() if end > self._clock()}
            if tenant in told or len(told) < ENOUGH:
                told[tenant] = until
            refusals[name, cause] = told
        for oldest in list(refusals)[:-MOST_NAMES]:
            del refusals[oldest]
        self.known[served] = refusals
        if len(self.known) > self._most:
            del self.known[next(iter(self.known))]

    def listed(self) -> list[LearnedRefusal]:
        """Return what is known, the latest last."""
        now, listing = self._clock(), list[LearnedRefusal]()
        for served, refusals in self.known.items():
            live = {said: told for said, told in refusals.items() if any(until > now for until in told.values())}
            for is_all in (True, False):
                some = {said[0]: told for said, told in live.items() if self._holds(told, None) is is_all}
                if some:
                    until = max(until for told in some.values() for until in told.values())
                    tenants = 0 if is_all else len({tenant for told in some.values() for tenant in told})
                    listing.append(
                        LearnedRefusal(**served._asdict(), parameters=sorted(some), until=until, tenants=tenants)
                    )
        return listing

    def forget(self, tier: str | None = None) -> int:
        """Forget what is known of a tier, or all; return of how many served models."""
        gone = [served for served in self.known if tier in (None, served.tier)]
        for served in gone:
            del self.known[served]
        return len(gone)


REFUSALS = LearnedRefusals()
"""Those that this process knows: all tiers share them, and a reload of the catalogue changes nothing about them."""
