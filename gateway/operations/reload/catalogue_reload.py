"""Replaces the catalogue of a running gateway, also on SIGHUP: validated as a whole, then switched in one turn of the
event loop.
"""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.settings import Settings
from gateway.inference.class_prior import class_prior
from gateway.inference.classifier_versions import ActiveClassifier, Classifier
from gateway.inference.embedding.embedder import Embedder
from gateway.inference.served_catalogue import ServedCatalogue
from gateway.inference.service import Service
from gateway.runtime.cores.core_swap import CoreSwap, NextVersion
from inference_core.io.background_tasks import once
from quality.store.queries import record_audit
from tiers.build import ReloadableTier, build_remote
from tiers.catalog.catalog import CPU_CORE, Catalog, CatalogInUse
from tiers.catalog.load import load_catalog
from tiers.catalog.tier_spec import TierSpec
from tiers.errors import CatalogError, TierError
from tiers.local.local_tier import LocalTier
from tiers.tier import Tier

if TYPE_CHECKING:
    from gateway.inference.screening.screen import Screen
    from tiers.remote.embedding_client import EmbeddingClient

log = logging.getLogger(__name__)

ScreenOf = Callable[[Catalog], "Screen | None"]
LOOK_SECONDS = 0.1


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload changed: numbers of tiers, none if the catalogue is unchanged."""

    catalogue: str
    fingerprint: str
    tiers: list[int]
    loaded: list[str] = []
    """The models of the CPU core if another version of it was loaded."""
    embeddings: list[str] = []
    """Embeddings of servers elsewhere that were added, changed in more than their price, or removed."""


class CatalogueReload:
    """Reads the catalogue of `settings` again. Remote tiers and those of a CPU core in this process may be replaced by
    any others, that core too (`swap`), and embeddings of servers elsewhere come and go; GPU groups, engines and cores
    elsewhere may only change prices and objectives, anything else needs a new process.

    A rejected catalogue changes nothing. Running answers keep their tier and price. `catalog` gets the new one, and
    passes it on to all that follow it.
    """

    def __init__(
        self,
        settings: Settings,
        service: Service,
        screen_of: ScreenOf,
        classifier: Classifier,
        database: AsyncEngine,
        swap: CoreSwap,
        catalog: CatalogInUse,
        targets: dict[str, Tier] | None = None,
        embedders: "dict[str, Embedder | EmbeddingClient] | None" = None,
        queued: Callable[[Tier], Tier] | None = None,
    ) -> None:
        """`screen_of`: makes what a catalogue asks for before and after answers; raises `CatalogError`. `targets`:
        those that are started, by name, and `embedders`; both follow the catalogue. `queued`: puts the requests of a
        tier into the chat queue."""
        self._settings, self._service, self._screen_of = settings, service, screen_of
        self._routing, self._classifier = service.routing, classifier
        self._database, self._swap, self._catalog = database, swap, catalog
        self._targets = {} if targets is None else targets
        self._embedders = {} if embedders is None else embedders
        self._queued: Callable[[Tier], Tier] = (lambda tier: tier) if queued is None else queued
        self._turn = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()

    async def follow_prices(self, seconds: float) -> None:
        """Every `seconds` switch to the listed prices of that moment."""
        while True:
            await asyncio.sleep(seconds)
            self.reprice()

    def reprice(self) -> None:
        """Switch to the listed prices of now, where the catalogue gives none; nothing else changes. Running answers
        keep theirs. Contains no await, and does nothing while the prices are the same."""
        # Imported where prices are the list's.
        from tiers.catalog.price_list import repriced

        before = self._routing.served.catalog
        catalog = repriced(before)
        if catalog is not before:
            self._switch_to(catalog, [], None, self._service.screen, {})
            log.info("prices have changed: %s", ", ".join(_changed_prices(before, catalog)))

    async def reload(self, actor: str, reason: str) -> Reloaded:
        """Load the catalogue's file and switch to it. Raises `CatalogError` with every reason against it."""
        async with self._turn:
            catalog = await asyncio.to_thread(load_catalog, self._settings.catalog)
            before = self._routing.served.catalog
            if len(catalog.tiers) != len(before.tiers):
                raise CatalogError(
                    f"the catalogue {self._settings.catalog} is rejected: it has {len(catalog.tiers)} tiers, "
                    f"not {len(before.tiers)}, which needs a new process"
                )
            changed = [
                spec
                for spec in catalog.tiers
                if spec != before.tier(spec.number)
                or catalog.tier_fingerprint(spec.number) != before.tier_fingerprint(spec.number)
            ]
            self._check(catalog, changed)
            screen = await asyncio.to_thread(self._screen_of, catalog)
            new_targets = [spec for spec in catalog.targets if spec != before.target(spec.name)]
            elsewhere = [spec for spec in changed if spec.remote and not spec.remote.engine]
            started = await self._started(catalog, [*elsewhere, *new_targets])
            version = await self._next_version(catalog, changed, started)
            # A process that never reloads does not import what does it.
            from gateway.inference.embedding.embedder import clients_for

            clients = clients_for(before, catalog)
            gone = {spec.name for spec in before.embeddings} - {spec.name for spec in catalog.embeddings}
            self._switch_to(catalog, started, version, screen, clients)
            if changed and isinstance(self._classifier, ActiveClassifier):
                prior = await asyncio.to_thread(class_prior, catalog, self._settings.data_path)
                await self._classifier.serve_catalogue(catalog.fingerprint, prior)
            if changed:
                await self._catalog.renew()
            done = Reloaded(
                catalogue=self._settings.catalog,
                fingerprint=catalog.fingerprint,
                tiers=[spec.number for spec in changed],
                loaded=[] if version is None or version.core is None else list(version.core.models),
                embeddings=sorted({*clients, *gone}),
            )
        await self._write_down(actor, reason, done)
        return done

    def _check(self, catalog: Catalog, changed: list[TierSpec]) -> None:
        from gateway.inference.embedding.embedder import computed_here

        before = self._routing.served.catalog
        problems = []
        if computed_here(catalog) != computed_here(before):
            problems.append("embeddings that are computed here differ, which needs a new process")
        if catalog.gpu_groups != before.gpu_groups:
            problems.append("gpu_groups differ, which needs a new process")
        elif catalog.core_names != before.core_names:
            problems.append("its tiers need other cores, which needs a new process")
        problems += self._swap.problems(before, catalog)
        for spec in changed:
            old = before.tier(spec.number)
            if self._is_fixed(spec, catalog) or self._is_fixed(old, before):
                if not _differs_in_figures_alone(spec, old):
                    problems.append(f"tier {spec.number} runs here: only its price and its objectives can be reloaded")
            elif not isinstance(self._routing.served.tiers[spec.number], ReloadableTier):
                problems.append(f"tier {spec.number} is not one of the catalogue's own")
        if problems:
            raise CatalogError(f"the catalogue {self._settings.catalog} is rejected: {'; '.join(problems)}")

    def _is_fixed(self, spec: TierSpec, catalog: Catalog) -> bool:
        """Whether the tier is on an engine that AIO starts, or on a core that cannot be replaced in this process."""
        if spec.model is None:
            return spec.remote is not None and spec.remote.engine is not None
        return not self._swap.is_possible or catalog.core_of(spec.model) != CPU_CORE

    async def _started(self, catalog: Catalog, specs: list[TierSpec]) -> list[Tier]:
        """Start new tiers for `specs`, all of which answer. Raises `CatalogError`."""
        tiers: list[Tier] = []
        try:
            for spec in specs:
                tiers.append(self._queued(build_remote(catalog, spec)))
                await tiers[-1].start()
        except TierError as error:
            await asyncio.gather(*(tier.close() for tier in tiers))
            raise CatalogError(f"a tier of the new catalogue does not answer: {error.for_operators}") from error
        return tiers

    async def _next_version(self, catalog: Catalog, changed: list[TierSpec], started: list[Tier]) -> NextVersion | None:
        """Load what the CPU core is to compute; None if it stays as it is. Closes `started` if that fails."""
        before = self._routing.served.catalog
        replaced = [
            spec
            for spec in changed
            if not (self._is_fixed(spec, catalog) or _differs_in_figures_alone(spec, before.tier(spec.number)))
            and (spec.model is not None or before.tier(spec.number).model is not None)
        ]
        if catalog.core == before.core and not replaced:
            return None
        try:
            return await self._swap.load(before, catalog)
        except BaseException:
            await asyncio.gather(*(tier.close() for tier in started))
            raise

    def _switch_to(
        self,
        catalog: Catalog,
        started: list[Tier],
        version: NextVersion | None,
        screen: "Screen | None",
        clients: "dict[str, EmbeddingClient]",
    ) -> None:
        """Contains no await, so that every request is routed by the old catalogue or by the new one."""
        from gateway.inference.embedding.embedder import exchange_clients

        standing = {
            number: tier for number, tier in self._routing.served.tiers.items() if isinstance(tier, ReloadableTier)
        }
        if version is not None:
            old = [tier.active_tier() for tier in standing.values()]
            on_core = [tier for tier in old if isinstance(tier, LocalTier) and tier.core_name == CPU_CORE]
            self._swap.switch(version, on_core)
        self._exchange_targets(catalog, [tier for tier in started if tier.is_target])
        on_servers = [tier for tier in started if not tier.is_target]
        for tier in (*on_servers, *(() if version is None else version.tiers)):
            retired = standing[tier.number].active_tier()
            standing[tier.number].exchange(tier)
            if not isinstance(retired, LocalTier):
                self._begin_to_retire(retired)
        old_screen = self._service.screen
        if old_screen is not None and old_screen is not screen:
            self._end(_close_after(old_screen, self._settings.drain_seconds), "end of the old guardrails")
        for client in exchange_clients(self._embedders, catalog, clients):
            self._end(_close_after(client, self._settings.drain_seconds), "end of an old embedding client")
        self._service.screen = screen
        self._routing.served = ServedCatalogue(catalog, self._routing.served.tiers, self._targets)
        self._routing.references.clear()
        self._catalog.switch_to(catalog)

    def _exchange_targets(self, catalog: Catalog, started: list[Tier]) -> None:
        """Put the new targets in their places, and end those that are replaced or gone."""
        new = {tier.name: tier for tier in started}
        for name in [name for name in self._targets if name in new or catalog.target(name) is None]:
            self._begin_to_retire(self._targets.pop(name))
        for name, tier in new.items():
            self._targets[name] = target = ReloadableTier(tier)
            target.exchange(tier)

    def _begin_to_retire(self, tier: Tier) -> None:
        self._end(_retire(tier, self._settings.drain_seconds), "end of old tiers")

    def _end(self, ending: Coroutine[None, None, None], name: str) -> None:
        task = once(ending, name)
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _write_down(self, actor: str, reason: str, done: Reloaded) -> None:
        log.info("the catalogue %s is loaded; changed tiers: %s", done.catalogue, done.tiers or "none")
        try:
            await record_audit(
                self._database, at=time.time(), actor=actor, action="catalogue.reloaded", subject=done.catalogue,
                reason=reason, details=done,
            )  # fmt: skip
        except (SQLAlchemyError, OSError) as error:
            log.warning("the reload by %s is not recorded: %s", actor, error)


def _changed_prices(before: Catalog, after: Catalog) -> list[str]:
    old = {spec.name: spec.price for spec in before.tiers} | {spec.name: spec.price for spec in before.embeddings}
    new = {spec.name: spec.price for spec in after.tiers} | {spec.name: spec.price for spec in after.embeddings}
    return [name for name, price in new.items() if price != old[name]]


def _differs_in_figures_alone(spec: TierSpec, old: TierSpec) -> bool:
    """Whether the tier answers as before: its price, its objectives and its fallback chain may differ."""
    return spec == msgspec.structs.replace(
        old,
        price=spec.price,
        objective=spec.objective,
        fallback=spec.fallback,
        expected_answer_tokens=spec.expected_answer_tokens,
        mean_latency_ms=spec.mean_latency_ms,
    )


async def _retire(tier: Tier, seconds: float) -> None:
    """Close a tier once its last answer has ended, or after `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    # Polled: a tier reports only its load.
    while tier.load().running and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_SECONDS)
    await tier.close()


async def _close_after(old: "Screen | EmbeddingClient", seconds: float) -> None:
    """Close what requests that began before the switch may still use."""
    await asyncio.sleep(seconds)
    await old.close()


@contextmanager
def reload_on_sighup(reload: CatalogueReload) -> Iterator[None]:
    """While the context is open, a SIGHUP reloads; a rejected catalogue is logged. For a process's main thread."""
    if not hasattr(signal, "SIGHUP") or threading.current_thread() is not threading.main_thread():
        yield
        return
    tasks: set[asyncio.Task[None]] = set()

    def begin() -> None:
        task = once(_reload(reload), "reload")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, begin)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


async def _reload(reload: CatalogueReload) -> None:
    try:
        await reload.reload("signal", "SIGHUP")
    except CatalogError as error:
        log.error("%s", error)
    except Exception:
        log.exception("the catalogue was not reloaded")
