"""Replaces the catalogue of a running gateway: validated as a whole, then switched in one turn of the event loop."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.knobs.replicas import ReplicaKnobs
from gateway.routing.active_classifier import ActiveClassifier
from gateway.routing.class_prior import class_prior
from gateway.routing.model import Classifier
from gateway.routing.router import RoutingService
from gateway.settings import Settings
from quality.store.queries import record_audit
from tiers.build import build_remote
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog
from tiers.catalog.tier_spec import TierSpec
from tiers.errors import CatalogError, TierError
from tiers.hot_swap import ReloadableTier
from tiers.tier import Tier

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload changed: numbers of tiers, none if the catalogue is unchanged."""

    catalogue: str
    fingerprint: str
    tiers: list[int]


class CatalogueReload:
    """Reads the catalogue of `settings` again. Remote tiers may be replaced by any others; what this machine computes
    may only change its prices and objectives, anything else needs a new process.

    A rejected catalogue changes nothing. Running answers keep their tier and price. `renewals`: callbacks after the
    switch; they report their own failures.
    """

    def __init__(
        self,
        settings: Settings,
        routing: RoutingService,
        classifier: Classifier,
        replica_knobs: ReplicaKnobs,
        database: AsyncEngine,
        renewals: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        self._settings, self._routing, self._classifier = settings, routing, classifier
        self._replica_knobs, self._database = replica_knobs, database
        self._renewals = renewals
        self._turn = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()

    async def reload(self, actor: str, reason: str) -> Reloaded:
        """Load the catalogue's file and switch to it. Raises `CatalogError` with every reason against it."""
        async with self._turn:
            catalog = await asyncio.to_thread(load_catalog, self._settings.catalog)
            before = self._routing.catalog
            if len(catalog.tiers) != len(before.tiers):
                raise CatalogError(
                    f"the catalogue {self._settings.catalog} is rejected: it has {len(catalog.tiers)} tiers, "
                    f"not {len(before.tiers)}, which needs a new process"
                )
            changed = [spec for spec, old in zip(catalog.tiers, before.tiers, strict=True) if spec != old]
            self._check(catalog, changed)
            started = await _started([spec for spec in changed if spec.model is None])
            self._switch_to(catalog, started)
            if changed and isinstance(self._classifier, ActiveClassifier):
                prior = await asyncio.to_thread(class_prior, before, self._settings.data_path)
                await self._classifier.serve_catalogue(before.fingerprint, prior)
            for renew in self._renewals if changed else ():
                await renew()
            done = Reloaded(
                catalogue=self._settings.catalog,
                fingerprint=before.fingerprint,
                tiers=[spec.number for spec in changed],
            )
        await self._write_down(actor, reason, done)
        return done

    def _check(self, catalog: Catalog, changed: list[TierSpec]) -> None:
        before = self._routing.catalog
        problems = []
        if any(getattr(catalog, name) != getattr(before, name) for name in ("core", "gpu_groups", "embeddings")):
            problems.append("core, gpu_groups or embeddings differ: what this machine computes needs a new process")
        for spec in changed:
            old = before.tier(spec.number)
            local = spec.model is not None or old.model is not None
            if local and spec != msgspec.structs.replace(
                old,
                price=spec.price,
                objective=spec.objective,
                expected_answer_tokens=spec.expected_answer_tokens,
                mean_latency_ms=spec.mean_latency_ms,
            ):
                problems.append(f"tier {spec.number} runs here: only its price and its objectives can be reloaded")
            elif not local and not isinstance(self._routing.tiers[spec.number], ReloadableTier):
                problems.append(f"tier {spec.number} is not one of the catalogue's own")
        if problems:
            raise CatalogError(f"the catalogue {self._settings.catalog} is rejected: {'; '.join(problems)}")

    def _switch_to(self, catalog: Catalog, started: list[Tier]) -> None:
        """Contains no await, so that every request is routed by the old catalogue or by the new one."""
        for tier in started:
            standing = self._routing.tiers[tier.number]
            assert isinstance(standing, ReloadableTier)
            task = asyncio.create_task(_retire(standing.active_tier(), self._settings.drain_seconds))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
            standing.exchange(tier)
        # All users of the catalogue hold this list.
        self._routing.catalog.tiers[:] = catalog.tiers
        aliases = self._routing.catalog.aliases
        aliases.clear()
        aliases.update(catalog.aliases)
        self._routing.fingerprint = catalog.fingerprint
        self._replica_knobs.renew(self._routing.tiers.values())

    async def _write_down(self, actor: str, reason: str, done: Reloaded) -> None:
        log.info("the catalogue %s is loaded; changed tiers: %s", done.catalogue, done.tiers or "none")
        try:
            await record_audit(
                self._database, at=time.time(), actor=actor, action="catalogue.reloaded", subject=done.catalogue,
                reason=reason, details=done,
            )  # fmt: skip
        except (SQLAlchemyError, OSError) as error:
            log.warning("the reload by %s is not recorded: %s", actor, error)


async def _started(specs: list[TierSpec]) -> list[Tier]:
    """Start new tiers for `specs`, all of which answer. Raises `CatalogError`."""
    tiers: list[Tier] = []
    try:
        for spec in specs:
            tiers.append(build_remote(spec))
            await tiers[-1].start()
    except TierError as error:
        await asyncio.gather(*(tier.close() for tier in tiers))
        raise CatalogError(f"a tier of the new catalogue does not answer: {error}") from error
    return tiers


async def _retire(tier: Tier, seconds: float) -> None:
    """Close a tier once its last answer has ended, or after `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    # Polled: a tier reports only its load.
    while tier.load().running and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_SECONDS)
    await tier.close()
