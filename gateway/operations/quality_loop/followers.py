"""What a serving process follows in the database: the catalogue's own labels, which each version that serves is given,
so that a label takes effect at once; and whether routing pays, by the probes: it is shown, logged weekly, and the
constant tier answers where the operator's knob says so. Replicas decide alike; while the database is away, what was
known last stays.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.quality_setting import DEFAULT_TARGET
from classifier.decision import ConstantTier
from gateway.base.stores.retries import look_every
from gateway.inference.classifier_versions import ActiveClassifier, LoadedVersion
from gateway.inference.router import RoutingService
from gateway.telemetry.metrics import Metrics
from migrations.tables.audit import audit_events, audited
from quality.comparison.routing_probes import WorthAsked, WorthFound, WorthRecord
from quality.comparison.routing_worth import RoutingWorth, in_words
from quality.learning.own_labels import OwnLabels
from quality.store.database import writing_first
from tiers.catalog.catalog import CatalogInUse

log = logging.getLogger(__name__)

POLL_SECONDS = 60.0
WEEK = 7 * 86_400.0
# The audit action of a change of what answers, and its subject for all keys without a verdict of their own.
CHANGED, CATALOGUE = "routing.constant", "catalogue"


class ActiveLabels:
    """Follows the stored labels for the versions that serve."""

    def __init__(
        self,
        engine: AsyncEngine,
        classifier: ActiveClassifier,
        metrics: Metrics,
        catalog: CatalogInUse,
        keys_are_tenants: bool = False,
    ) -> None:
        self._engine, self._classifier, self._metrics, self._catalog = engine, classifier, metrics, catalog
        self._keys_are_tenants = keys_are_tenants
        self._labels: dict[LoadedVersion, OwnLabels] = {}
        self._turn = asyncio.Lock()
        classifier.before_serving = self.give

    def _tiers(self) -> Sequence[str]:
        return self._catalog.current.tier_fingerprints

    async def follow(self, seconds: float) -> None:
        """Take in what is new every `seconds`, at first at once."""
        await look_every(seconds, lambda: self.catch_up(time.time()), "own labels", log)

    async def catch_up(self, now: float) -> None:
        """Take in what is stored at `now`, in epoch seconds."""
        async with self._turn:
            serving = self._classifier.serving_or_none
            if serving is None:
                return
            self._labels = {version: self._labels.get(version) or self._of(version) for version in serving.versions}
            for version, labels in self._labels.items():
                version.own = await labels.catch_up(now)
            self._metrics.own_labels.set(self.counts.get(serving.current.version, 0))

    async def give(self, versions: Sequence[LoadedVersion]) -> None:
        """Give `versions` what is stored now, before they serve; while the database is away they serve without it."""
        async with self._turn:
            try:
                for version in versions:
                    labels = self._labels[version] = self._of(version)
                    version.own = await labels.catch_up(time.time())
            except (SQLAlchemyError, OSError) as error:
                log.warning("own labels cannot be read: %s", error)

    def _of(self, version: LoadedVersion) -> OwnLabels:
        return OwnLabels(self._engine, version.model, version.table, self._tiers, version.head, self._keys_are_tenants)

    @property
    def counts(self) -> dict[str, int]:
        """By version, how many labels count in its decisions."""
        return {version.version: 0 if version.own is None else version.own.labels for version in self._labels}


class ConstantFollower:
    """The verdict of one gateway process."""

    def __init__(
        self,
        engine: AsyncEngine,
        routing: RoutingService,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine, self._routing, self._metrics, self._clock = engine, routing, metrics, clock
        self._record = WorthRecord(engine)
        self._logged_at: float | None = None
        # The verdicts of the last look; None before the first.
        self.last: WorthFound | None = None

    async def follow(self, seconds: float = POLL_SECONDS) -> None:
        """Look every `seconds`, at first at once."""
        await look_every(seconds, self.look, "whether routing pays", log)

    async def renew(self) -> None:
        """Forget what was measured of the tiers of another catalogue; the next look says what holds of the new ones."""
        self._routing.constants, self.last = {}, None

    async def found(self) -> WorthFound:
        """Return the verdicts by the probes that are stored now."""
        return await self._record.of(worth_asked(self._routing))

    async def look(self) -> WorthFound:
        """Read the verdicts and act on them as the knob says now; every change of what answers is audited."""
        routing, found = self._routing, await self.found()
        act = routing.knobs.active.constant == "act" and routing.knobs.active.mode == "route"
        now = constants_of(found) if act else {}
        await self._audit(now, found)
        routing.constants, self.last = now, found
        self._metrics.show_worth("not_known_yet" if found.catalogue is None else found.catalogue.verdict)
        at = self._clock()
        if self._logged_at is None or at >= self._logged_at + WEEK:
            self._logged_at = at
            log.info("%s", in_words(found.catalogue, routing.knobs.active.constant))
            for one in found.keys:
                log.info("key %s: %s", one.key_id or "none", in_words(one.worth, routing.knobs.active.constant))
        return found

    async def _audit(self, now: dict[str | None, ConstantTier | None], found: WorthFound) -> None:
        """Store a row for each key whose constant is another one than the trail says. Processes that look at the same
        time may both store it."""
        row = audit_events.c
        trail = select(row.subject, row.details).where(row.action == CHANGED).order_by(row.audit_event_id)
        async with writing_first(self._engine).begin() as connection:
            stored = {subject: details["tier"] for subject, details in await connection.execute(trail)}
            wanted = {CATALOGUE if key is None else key: one and one.tier for key, one in now.items()}
            reasons = {one.key_id or "": one.worth for one in found.keys}
            for subject in sorted({*stored, *wanted}):
                tier = wanted.get(subject)
                if tier == stored.get(subject):
                    continue
                why = found.catalogue if subject == CATALOGUE else reasons.get(subject)
                ends = "" if tier is not None else "routing decides again. "
                reason = ends + in_words(why, self._routing.knobs.active.constant)
                event = audited(self._clock(), "quality loop", CHANGED, subject, reason, {"tier": tier})
                await connection.execute(event)
                log.warning("constant tier of %s: %s", subject, tier)


def worth_asked(routing: RoutingService) -> WorthAsked:
    """Return what the verdict is asked for: at the active quality target and worth."""
    target = routing.active_target
    return WorthAsked(
        tiers=tuple(routing.served.catalog.tier_fingerprints),
        target=DEFAULT_TARGET if target is None else target,
        worth=routing.knobs.active.constant_worth,
    )


def constants_of(found: WorthFound) -> dict[str | None, ConstantTier | None]:
    """Return what answers in place of routing: by key with a verdict of its own, and by None for all other keys."""
    own = {one.key_id: one.worth for one in found.keys if one.key_id is not None}
    decided: dict[str | None, ConstantTier | None] = {
        key: _constant(worth) for key, worth in own.items() if worth.verdict != "not_known_yet"
    }
    whole = None if found.catalogue is None else _constant(found.catalogue)
    if whole is None and not any(decided.values()):
        return {}
    return {**decided, None: whole}


def _constant(worth: RoutingWorth) -> ConstantTier | None:
    one = worth.constant
    return None if one is None else ConstantTier(tier=one.tier, meets=one.no_worse.low)
