"""The tier that answers in place of routing where routing does not pay, by the probes: the verdict is shown, logged
weekly, and acted on where the operator's knob says so. Replicas decide alike; while the database is away, what was
known last stays.
"""

import logging
import time
from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.complexity.quality_setting import DEFAULT_TARGET
from classifier.decision import ConstantTier
from gateway.base.stores.retries import look_every
from gateway.inference.router import RoutingService
from gateway.telemetry.metrics import Metrics
from migrations.tables.audit import audit_events, audited
from quality.comparison.routing_probes import WorthAsked, WorthFound, WorthRecord
from quality.comparison.routing_worth import RoutingWorth, in_words
from quality.store.database import writing_first

log = logging.getLogger(__name__)

POLL_SECONDS = 60.0
WEEK = 7 * 86_400.0
# The audit action of a change of what answers, and its subject for all keys without a verdict of their own.
CHANGED, CATALOGUE = "routing.constant", "catalogue"


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
        self._asked: WorthAsked | None = None
        # The verdicts that are shown, and what they were asked for; None before the first look.
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

    async def shown(self) -> WorthFound:
        """Return the verdicts that all pages show: of the last look, or new ones where something else is asked."""
        asked, shown = worth_asked(self._routing), self.last
        if shown is None or self._asked != asked:
            shown = await self.found()
            self.last, self._asked = shown, asked
        return shown

    async def look(self) -> WorthFound:
        """Read the verdicts and act on them as the knob says now; every change of what answers is audited."""
        routing, asked = self._routing, worth_asked(self._routing)
        verdicts = await self.found()
        act = routing.knobs.active.constant == "act" and routing.knobs.active.mode == "route"
        now = constants_of(verdicts) if act else {}
        await self._audit(now, verdicts)
        routing.constants, self.last, self._asked = now, verdicts, asked
        self._metrics.show_worth("not_known_yet" if verdicts.catalogue is None else verdicts.catalogue.verdict)
        at = self._clock()
        if self._logged_at is None or at >= self._logged_at + WEEK:
            self._logged_at = at
            log.info("%s", self.in_words(verdicts.catalogue))
            for key_worth in verdicts.keys:
                log.info("key %s: %s", key_worth.key_id or "none", self.in_words(key_worth.worth))
        return verdicts

    def in_words(self, worth: RoutingWorth | None) -> str:
        """Return a verdict in words, with the names of the tiers that serve now."""
        routing = self._routing
        return in_words(worth, routing.knobs.active.constant, routing.served.catalog.tier_names)

    async def _audit(self, now: dict[str | None, ConstantTier | None], verdicts: WorthFound) -> None:
        """Store a row for each key whose constant is another one than the trail says. Processes that look at the same
        time may both store it."""
        row = audit_events.c
        trail = select(row.subject, row.details).where(row.action == CHANGED).order_by(row.audit_event_id)
        async with writing_first(self._engine).begin() as connection:
            stored = {subject: details["tier"] for subject, details in await connection.execute(trail)}
            wanted = {CATALOGUE if key is None else key: constant and constant.tier for key, constant in now.items()}
            reasons = {key_worth.key_id or "": key_worth.worth for key_worth in verdicts.keys}
            for subject in sorted({*stored, *wanted}):
                tier = wanted.get(subject)
                if tier == stored.get(subject):
                    continue
                why = verdicts.catalogue if subject == CATALOGUE else reasons.get(subject)
                ends = "" if tier is not None else "routing decides again. "
                reason = ends + self.in_words(why)
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


def constants_of(verdicts: WorthFound) -> dict[str | None, ConstantTier | None]:
    """Return what answers in place of routing: by key with a verdict of its own, and by None for all other keys."""
    own = {key_worth.key_id: key_worth.worth for key_worth in verdicts.keys if key_worth.key_id is not None}
    decided: dict[str | None, ConstantTier | None] = {
        key: _constant(worth) for key, worth in own.items() if worth.verdict != "not_known_yet"
    }
    whole = None if verdicts.catalogue is None else _constant(verdicts.catalogue)
    if whole is None and not any(decided.values()):
        return {}
    return {**decided, None: whole}


def _constant(worth: RoutingWorth) -> ConstantTier | None:
    constant = worth.constant
    return None if constant is None else ConstantTier(tier=constant.tier, meets=constant.no_worse.low)
