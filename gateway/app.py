"""The composition root: puts the parts of a gateway together, starts them in order and stops them in reverse."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from litestar import Litestar
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.footprint import trim_heap
from gateway.base.settings import Settings, SettingsError
from gateway.base.stores.database import DatabaseOutages
from gateway.base.stores.redis_store import RedisStore, open_redis
from gateway.base.stores.retries import background, retry_until_success
from gateway.batches.api.line_answers import LineAnswers
from gateway.batches.jobs import JOBS, Jobs
from gateway.edge.proxies import START_SECONDS, TrustedProxies
from gateway.http import Lifespan, http_app
from gateway.inference.agreement import Agreements
from gateway.inference.api.parsing import FILES
from gateway.inference.classifier_versions import ActiveClassifier, ActiveVersions, Classifier
from gateway.inference.embedding.embedder import CoreEmbedder, Embedder
from gateway.inference.escalation import ActiveProbes
from gateway.inference.replica_knobs import ReplicaKnobs
from gateway.inference.response_cache import ResponseCache, running_cache
from gateway.inference.router import RoutingService
from gateway.inference.routing_knobs import RoutingKnobFile
from gateway.inference.running_routing import running_routing
from gateway.inference.service import SERVING, RecordSink, RecordStore, Service, Serving, of_record
from gateway.inference.turn_memory import DatabaseTurns, RedisTurns
from gateway.operations.constant_tier import ConstantFollower
from gateway.operations.labels.active_labels import ActiveLabels
from gateway.operations.labels.loop_setup import offer_answer, quality_loop, running_quality_loop
from gateway.operations.privacy import Privacy
from gateway.operations.reload.catalogue_reload import CatalogueReload, reload_on_sighup
from gateway.operations.running import OPERATIONS, Operations, Readiness
from gateway.operations.running_figures import running_alerts, running_readings
from gateway.operations.worker_answers import PeerRecords, worker_answers
from gateway.runtime.cores.adapters import CoreAdapters
from gateway.runtime.cores.core_swap import CoreSwap
from gateway.runtime.cores.engine import Engine, LoadFailed, running_engine
from gateway.runtime.cores.knobs import CoreKnobs
from gateway.runtime.cores.next_core import next_core
from gateway.runtime.peers import Peers, WorkerIdentity
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.overview import Live
from gateway.telemetry.readings import Readings
from gateway.telemetry.refused_requests import RefusedRequests, log_request
from gateway.telemetry.scraped import OverloadCollector
from gateway.tenancy.admission import OverloadQueue
from gateway.tenancy.guard import ACCESS, Access
from gateway.tenancy.keys.key_secrets import keys_of
from gateway.tenancy.keys.key_use import read_key_use
from gateway.tenancy.tenancy import ShowKey, Tenancy, running_tenancy
from gateway.tenancy.users.sessions import Sessions
from inference_core.transport.client import CoreClient
from quality.estimates.costs import saved_lately
from quality.estimates.traffic import read_traffic
from quality.evaluation.tier_accuracy import ReportFileError, stored_report, warnings_of
from quality.learning.learning import LearningRecord
from quality.ledger.ledger import Ledger
from quality.quality_loop import QualityLoop
from quality.records.redaction import RedactText, load_redaction
from quality.store.database import migrate, open_database
from quality.verification.feedback import FeedbackDesk
from quality.verification.training_rows import Encode, encoder_of
from tiers.catalog.catalog import CPU_CORE, Catalog, CatalogInUse, EmbeddingSpec
from tiers.catalog.load import load_catalog
from tiers.engines import StatusOf
from tiers.local.text_threads import TextThreads
from tiers.tier import Tier

if TYPE_CHECKING:
    from gateway.inference.screening.screen import Screen
    from gateway.runtime.chat_queue.chat_worker import ChatWorker
    from gateway.runtime.chat_queue.queued_tier import ChatQueue
    from quality.evaluation.others_models import OthersModels
    from tiers.remote.embedding_client import EmbeddingClient

log = logging.getLogger(__name__)

# The served parts that a lifespan starts.
HttpApp = Callable[[Settings, Lifespan], Litestar]


def create_app(
    settings: Settings,
    *,
    tiers: Sequence[Tier] | None = None,
    classifier: Classifier | None = None,
    cores: Mapping[str, CoreClient] | None = None,
    worker: WorkerIdentity | None = None,
    http: HttpApp = http_app,
    show_admin_key: ShowKey | None = None,
    load_failed: LoadFailed | None = None,
) -> Litestar:
    """Return the application of one gateway process; its lifespan starts everything.

    `tiers` and `classifier` replace the catalogue's tiers and the active classifier; `cores`, by the catalogue's names,
    replace the cores behind its own tiers. `worker`: this process among several of a port. `show_admin_key` is called
    with the first admin key of an installation that has none; without it none is made. With `load_failed` requests are
    served once the first tier with a core serves, and it is called for a core that cannot be loaded after that. Raises
    `SettingsError`, `RedactionError` and `CatalogError` at once for errors that are visible without starting anything.
    """
    composition = Composition(settings, tiers, classifier, cores, worker, show_admin_key, load_failed)

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        async with composition.stack as stack:
            operations = await composition.start()
            serving = operations.serving
            app.state.update(
                {
                    ACCESS: operations.access,
                    SERVING: serving,
                    JOBS: operations.jobs,
                    FILES: operations.jobs.files,
                    OPERATIONS: operations,
                }
            )
            await asyncio.to_thread(trim_heap)
            stack.enter_context(reload_on_sighup(operations.reload))
            stack.enter_context(composition.metrics.loop_lag.sampled())
            yield
            # The server has waited for its callers already.
            seconds = operations.readiness.begin_shutdown(settings.drain_seconds)
            worker_drain = () if composition.chat_worker is None else (composition.chat_worker.drain(seconds),)
            left, *_ = await asyncio.gather(
                serving.service.drain(seconds), operations.jobs.drain(seconds), *worker_drain
            )
            if left:
                log.warning("%d answers did not end within %d s and are aborted", left, settings.drain_seconds)

    return http(settings, lifespan)


def _screen_of(metrics: Metrics, catalog: Catalog) -> "Screen | None":
    """What the catalogue asks for before and after answers. Raises `CatalogError`."""
    if catalog.private is None and not catalog.guardrails:
        return None
    from gateway.inference.screening.screen import screen_of

    return screen_of(catalog, metrics.count_verdict)


@dataclass(frozen=True, slots=True)
class Stores:
    """What keeps records, and what limits callers."""

    database: AsyncEngine
    ledger: Ledger
    outages: DatabaseOutages
    redis: RedisStore | None
    tenancy: Tenancy


@dataclass(frozen=True, slots=True)
class Models:
    """What computes answers and embeddings, here or on other servers."""

    threads: TextThreads
    engine: Engine
    embedders: "dict[str, Embedder | EmbeddingClient]"
    core_knobs: CoreKnobs
    replica_knobs: ReplicaKnobs


@dataclass(frozen=True, slots=True)
class Decisions:
    """What chooses a tier, and what it follows in the database."""

    routing: RoutingService
    active: ActiveClassifier | None
    """The classifier of the registry; None if the caller of `create_app` gave another one."""
    labels: ActiveLabels | None
    constant: ConstantFollower


@dataclass(frozen=True, slots=True)
class Verification:
    """What checks answers."""

    encode: Encode | None
    agreements: Agreements
    loop: QualityLoop | None
    """None if nothing is verified."""
    probes: ActiveProbes


@dataclass(frozen=True, slots=True)
class Answering:
    """What answers requests and batches of them."""

    serving: Serving
    cache: ResponseCache
    jobs: Jobs


class Composition:
    """The parts of a process, before and while it runs; `stack` stops those that are started, in reverse order. What
    only a setting or the catalogue turns on is imported where it is started."""

    def __init__(
        self,
        settings: Settings,
        tiers: Sequence[Tier] | None,
        classifier: Classifier | None,
        cores: Mapping[str, CoreClient] | None,
        worker: WorkerIdentity | None,
        show_admin_key: ShowKey | None,
        load_failed: LoadFailed | None,
    ) -> None:
        self.settings, self.stack = settings, AsyncExitStack()
        self._show_admin_key, self._load_failed = show_admin_key, load_failed
        self._peers = None if worker is None else Peers(worker)
        self.keys = keys_of(settings)
        self._identity_provider = None
        if settings.oidc_issuer:
            from gateway.tenancy.users.identity_provider import IdentityProvider

            self._identity_provider = IdentityProvider(settings)
        self._proxies = TrustedProxies(settings.trusted_proxies)
        catalog = load_catalog(settings.catalog)
        self.catalog = CatalogInUse(catalog)
        self._redaction = None
        self._redact: RedactText | None = None
        if settings.redaction:
            from quality.records.redaction_process import RedactionProcess

            load_redaction(settings.redaction)  # one that cannot be loaded is an error at once
            self._redaction = RedactionProcess(settings.redaction)
            self._redact = self._redaction.text
        self._exporter = None
        if (settings.trace_exporter, settings.trace_content) != ("none", "none"):
            from gateway.telemetry.span_export import configured_exporter

            self._exporter = configured_exporter(settings)
        if settings.alerts_somewhere:
            from gateway.telemetry.alert_channels import check_channels

            check_channels(settings)  # an invalid address is an error at once
        self._tiers, self._classifier, self._cores = tiers, classifier, cores
        self.metrics = Metrics()
        self._screen = _screen_of(self.metrics, catalog)
        if settings.chat_queue != "off" and not settings.redis_url:
            raise SettingsError(f"AIO_CHAT_QUEUE={settings.chat_queue} needs AIO_REDIS_URL, where the queue is")
        self._queued: Callable[[Tier], Tier] | None = None
        self.chat_worker: ChatWorker | None = None
        if settings.gpu_exporters:
            from gateway.telemetry.gpu_exporters import GpuExporters

            self.metrics.exporters = GpuExporters(settings.gpu_exporters)
        self.sinks: list[RecordSink] = []

    async def start(self) -> Operations:
        """Start every part, each after those that it needs."""
        stores = await self._start_stores()
        models = await self._start_models(stores)
        decisions = await self._start_routing(stores, models)
        verification = await self._start_verification(stores, models, decisions)
        answering = await self._start_answering(stores, models, decisions, verification)
        operations = await self._start_operations(stores, models, decisions, verification, answering)
        # Last: cores load while everything else starts.
        await models.engine.first_tier_serves()
        jobs = answering.jobs
        await self.stack.enter_async_context(jobs.working(LineAnswers(answering.serving, stores.tenancy, jobs.files)))
        if self.settings.chat_queue == "take" and stores.redis is not None:
            await self._start_chat_worker(stores.redis, models.engine)
        return operations

    async def _start_chat_queue(self, redis: RedisStore) -> "ChatQueue":
        """Start the queue of what the tiers are asked."""
        from gateway.runtime.chat_queue.queued_tier import ChatQueue

        settings = self.settings
        queue = ChatQueue(
            redis,
            settings.redis_url,
            settings.chat_queue_lease_seconds,
            settings.chat_queue_waiting,
            self.metrics.chat_queue.show,
        )
        await self.stack.enter_async_context(queue.running())
        return queue

    async def _start_chat_worker(self, redis: RedisStore, engine: Engine) -> None:
        """Answer chats of the queue."""
        from gateway.runtime.chat_queue.chat_worker import ChatWorker

        settings = self.settings
        worker = self.chat_worker = ChatWorker(
            redis,
            settings.redis_url,
            settings.chat_queue_lease_seconds,
            lambda: [*engine.tiers.values(), *engine.targets.values()],
            engine.cores,
            settings.chat_queue_concurrency,
            lambda: self.metrics.chat_queue.redelivered.add(()),
            self.metrics.chat_queue.show,
        )
        await self.stack.enter_async_context(worker.working())

    async def _start_stores(self) -> Stores:
        """Start what keeps records, and what limits callers."""
        settings, stack = self.settings, self.stack
        settings.data_path.mkdir(parents=True, exist_ok=True, mode=0o700)
        database, ledger, outages = await self._start_ledger()
        if self._exporter is not None:
            from gateway.telemetry.span_export import running_traces

            traces = await stack.enter_async_context(running_traces(settings, self._exporter))
            self.sinks.append(traces.observe)
        redis = await stack.enter_async_context(open_redis(settings.redis_url))
        tenancy = await stack.enter_async_context(
            running_tenancy(settings, self.catalog, self.keys, database, redis, self._show_admin_key)
        )
        self.catalog.renew_with(tenancy.directory.renew)
        return Stores(database, ledger, outages, redis, tenancy)

    async def _start_models(self, stores: Stores) -> Models:
        """Start engines and cores, and connect the tiers to them."""
        settings, stack, catalog = self.settings, self.stack, self.catalog.current
        # Texts of megabytes leave heaps that are mostly free.
        threads = TextThreads(when_quiet=trim_heap)
        stack.callback(threads.close)
        engines: Mapping[str, StatusOf] = {}
        cores = self._cores
        if settings.chat_queue == "put" and stores.redis is not None:
            queue = await self._start_chat_queue(stores.redis)
            cores, self._queued = queue.cores(catalog.core_names if self._tiers is None else []), queue.queued
        elif self._tiers is None and catalog.engines:
            from gateway.runtime.engines.running_engines import running_engines

            # Of several processes behind one port, their supervisor runs them.
            running = running_engines(catalog, settings.data_path, owned=self._peers is None)
            engines = (await stack.enter_async_context(running)).status
        engine = await stack.enter_async_context(
            running_engine(settings, catalog, self._tiers, cores, threads, engines, self._load_failed, self._queued)
        )
        embedders = {spec.name: _embedder(spec, engine.cores) for spec in catalog.embeddings}
        stack.push_async_callback(close_clients, embedders)
        self._warn_of_overpriced_tiers()
        core_knobs = CoreKnobs(engine.cores, stores.database)
        replica_knobs = ReplicaKnobs(engine.tiers.values(), settings.replica_knobs_path)
        if any(tier.core_name is None for tier in engine.tiers.values()):
            await self._follow(replica_knobs.follow, "knobs of replicas")
        return Models(threads, engine, embedders, core_knobs, replica_knobs)

    async def _start_routing(self, stores: Stores, models: Models) -> Decisions:
        """Start what chooses a tier, and what it learns from stored requests."""
        settings, database = self.settings, stores.database
        routing = await self.stack.enter_async_context(
            running_routing(
                settings,
                self.catalog,
                models.engine,
                self._classifier,
                stores.redis,
                models.threads,
                self._show_classifier,
            )
        )
        classifier = routing.classifier
        active = classifier if isinstance(classifier, ActiveClassifier) else None
        labels = None
        if active is not None:
            labels = ActiveLabels(database, active, self.metrics, self.catalog, settings.keys_are_tenants)
            await self._follow(labels.follow, "labels")
        # Where there is one tier, there is nothing to compare.
        compares = routing.served.strongest > 1
        if compares:
            prices = partial(routing.references.restore, database, routing.served.strongest)
            await self._restore(prices, "prices of earlier requests")
        await self._restore(partial(routing.answer_lengths.restore, database, routing.served), "lengths of answers")
        self.catalog.follow(lambda _: models.replica_knobs.renew(routing.served.tiers.values()))
        constant = ConstantFollower(database, routing, self.metrics)
        self.catalog.renew_with(constant.renew)
        if compares:
            await self._keep(constant.follow, "whether routing pays")
        return Decisions(routing, active, labels, constant)

    async def _start_verification(self, stores: Stores, models: Models, decisions: Decisions) -> Verification:
        """Start what checks answers, and the readers of finished requests."""
        settings, routing, active = self.settings, decisions.routing, decisions.active
        if self._redaction is not None:
            self.stack.push_async_callback(self._redaction.close)
        encode = None if active is None else encoder_of(lambda: active.model)
        agreements = Agreements(routing.knobs, routing)
        loop = None
        if settings.monitor:
            loop = quality_loop(
                settings,
                self.catalog,
                stores.database,
                models.engine.tiers,
                encode,
                self._redact,
                lambda: routing.knobs.active.shadow_share,
            )
            await self.stack.enter_async_context(running_quality_loop(loop))
            self.sinks.append(partial(offer_answer, loop, agreements.to_verify))
        self.sinks.append(self.metrics.requests.observe)
        if settings.log_requests:
            self.sinks.append(log_request)
        probes = await self._start_probes(routing.knobs, active, agreements)
        self.sinks.append(agreements.observe)
        await self._keep(partial(agreements.follow, stores.database), "counts of agreement")
        return Verification(encode, agreements, loop, probes)

    async def _start_answering(
        self, stores: Stores, models: Models, decisions: Decisions, verification: Verification
    ) -> Answering:
        """Start what answers requests and what runs batches of them."""
        settings, stack, database = self.settings, self.stack, stores.database
        routing = decisions.routing
        overload = OverloadQueue(settings.max_in_flight, settings.max_waiting, stores.ledger.is_full)
        self.metrics.registry.register(OverloadCollector(overload))
        worker = None if self._peers is None else self._peers.worker
        cache = await stack.enter_async_context(
            running_cache(settings, worker, stores.redis, routing, self.metrics.cache_failures.inc)
        )
        service = Service(
            routing,
            self.sinks,
            probes=verification.probes,
            tenancy=stores.tenancy,
            overload=overload,
            cache=cache,
            redaction=self._redaction,
            agreements=verification.agreements,
            begin=stores.ledger.begin,
        )
        service.screen = self._screen
        service.continues_streams = self._queued is not None
        stack.push_async_callback(service.close_screen)
        if self._redaction is None:
            # Where texts are stored without what is private, they are not stored as they are.
            turns = DatabaseTurns(database) if stores.redis is None else RedisTurns(stores.redis)
            service.turn_memory.store = turns
        jobs = Jobs(settings, database, stores.tenancy.clock, stores.tenancy.replica, stores.redis, self.metrics.jobs)
        serving = await self._start_serving(stores, models, verification, service)
        return Answering(serving, cache, jobs)

    async def _start_serving(
        self, stores: Stores, models: Models, verification: Verification, service: Service
    ) -> Serving:
        """Return what the endpoints answer with."""
        settings, database = self.settings, stores.database
        refused = RefusedRequests(self.metrics.refused, keeps_messages=self._redaction is None)
        await self._keep(partial(refused.keep, database), "counts of refused requests")
        records: RecordStore = stores.ledger if self._peers is None else PeerRecords(stores.ledger, self._peers)
        adapters = Path(settings.adapter_dir) if settings.adapter_dir else None
        serving = Serving(
            settings=settings,
            routing=service.routing,
            service=service,
            embedders=models.embedders,
            core_adapters=CoreAdapters(
                models.engine.cores, models.core_knobs, adapters, catalog=self.catalog, loaded=models.engine.adapters
            ),
            records=records,
            feedback=FeedbackDesk(
                database,
                verification.encode,
                len(self.catalog.current.tiers),
                redact=self._redact,
                catalog=self.catalog,
            ),
            database=database,
            created=int(time.time()),
            count_ignored=lambda endpoint: self.metrics.ignored_fields.labels(endpoint).inc(),
            count_refused=refused.count,
        )
        self.stack.push_async_callback(serving.close_passed)
        return serving

    async def _start_operations(
        self, stores: Stores, models: Models, decisions: Decisions, verification: Verification, answering: Answering
    ) -> Operations:
        """Start what shows the running parts and changes them."""
        settings, database, stack = self.settings, stores.database, self.stack
        service, loop = answering.serving.service, verification.loop
        privacy = Privacy(settings, database, stores.ledger, service.turn_memory.erase)
        await self._keep(privacy.keep, "deletion of old records")
        learning = LearningRecord(database)
        stack.push_async_callback(learning.close)
        refresh_metrics = await stack.enter_async_context(
            running_readings(
                self.metrics, models.engine, answering.jobs, loop, stores.ledger, service, answering.cache.store
            )
        )
        if self._identity_provider is not None:
            stack.push_async_callback(self._identity_provider.close)
        sessions = Sessions(database, stores.tenancy.directory, stores.tenancy.clock)
        operations = Operations(
            serving=answering.serving,
            readiness=Readiness(
                routing=decisions.routing,
                ledger=stores.ledger,
                outages=stores.outages,
                directory=stores.tenancy.directory,
                redis=stores.redis,
                away=models.engine.away,
                not_ready={},
            ),
            access=Access(settings, stores.tenancy, sessions, await self._start_proxies()),
            jobs=answering.jobs,
            core_knobs=models.core_knobs,
            replica_knobs=models.replica_knobs,
            reload=self._reload(stores, models, decisions, service),
            cache=answering.cache,
            privacy=privacy,
            identity_provider=self._identity_provider,
            live=await self._start_live(database, models, decisions, loop),
            quality_loop=loop,
            others_models=await self._start_others_models(),
            active_labels=decisions.labels,
            constant=decisions.constant,
            learning=learning,
            metrics=self.metrics,
            refresh_metrics=refresh_metrics,
            peers=self._peers,
        )
        await self._start_prices(operations.reload)
        if self._peers is not None and isinstance(operations.serving.records, PeerRecords):
            answers = worker_answers(operations, operations.serving.records)
            await stack.enter_async_context(self._peers.answering(answers))
        await self._start_alerts(models.engine, operations)
        return operations

    async def _start_others_models(self) -> "OthersModels | None":
        """Measure what others quantised. A reload brings models only to a core that is there."""
        if not self.catalog.current.core_names:
            return None
        from quality.evaluation.others_models import OthersModels

        settings = self.settings
        models = OthersModels(self.catalog, settings.cache_path, measures=settings.measure_models)
        await self._keep(models.follow, "quality of models")
        return models

    async def _start_live(
        self, database: AsyncEngine, models: Models, decisions: Decisions, loop: QualityLoop | None
    ) -> Live:
        live = Live(
            decisions.routing,
            self.metrics,
            models.engine.cores,
            Readings(lambda span: read_traffic(database, span, time.time())),
            Readings(lambda keys: read_key_use(database, keys, time.time())),
            self._peers,
            None if loop is None else loop.upgrade_rate,
            None if loop is None else loop.days_without_retraining,
            partial(saved_lately, database),
        )
        self.stack.push_async_callback(live.traffic.close)
        self.stack.push_async_callback(live.key_use.close)
        await self._keep(live.follow, "live figures")
        return live

    async def _start_alerts(self, engine: Engine, operations: Operations) -> None:
        await self.stack.enter_async_context(
            running_alerts(
                self.settings,
                self.metrics,
                engine,
                self._peers,
                operations.quality_loop,
                operations.serving.database,
                partial(operations.labels, costs=False),
                operations.constant,
            )
        )

    def _reload(self, stores: Stores, models: Models, decisions: Decisions, service: Service) -> CatalogueReload:
        """Return what replaces the catalogue of all parts that read it."""
        settings = self.settings
        core = models.engine.cores.get(CPU_CORE)
        return CatalogueReload(
            settings,
            service,
            partial(_screen_of, self.metrics),
            decisions.routing.classifier,
            stores.database,
            CoreSwap(core, partial(next_core, settings), models.threads, settings.drain_seconds),
            self.catalog,
            models.engine.targets,
            models.embedders,
            self._queued,
        )

    async def _keep(self, work: Callable[[], Awaitable[object]], name: str) -> None:
        await self.stack.enter_async_context(background(work, name))

    async def _restore(self, restore: Callable[[], Awaitable[object]], name: str) -> None:
        """Read what earlier processes stored, as soon as the database answers."""
        await self._keep(partial(retry_until_success, restore, name, {}), name)

    async def _follow(self, follow: Callable[[float], Awaitable[object]], name: str) -> None:
        """Look for what is new every few seconds."""
        await self._keep(partial(follow, self.settings.artefact_poll_seconds), name)

    async def _start_ledger(self) -> tuple[AsyncEngine, Ledger, DatabaseOutages]:
        """Start database and ledger. A database that is down delays nothing: the journal keeps its records."""
        engine = open_database(self.settings.database)
        outages = DatabaseOutages(engine)
        self.stack.callback(outages.close)
        self.stack.push_async_callback(engine.dispose)

        async def migrated() -> None:
            with outages.noted():
                await migrate(self.settings.database)

        try:
            await migrated()
        except (SQLAlchemyError, OSError) as error:
            log.warning("the database is down (%s); requests are served and journaled", error)
            name = "database migrations"
            await self._keep(partial(retry_until_success, migrated, name, {}, 5.0), name)
        await self._keep(partial(outages.follow, self.settings.keys_poll_seconds), "the database's faults")
        ledger = Ledger(self.settings.journal_path, engine)
        await ledger.start()
        self.stack.push_async_callback(ledger.close)
        self.sinks.append(of_record(ledger.append))
        return engine, ledger, outages

    def _warn_of_overpriced_tiers(self) -> None:
        """Based on the results of `aio bench tiers` in the data folder; an unreadable file stops nothing."""
        try:
            report = stored_report(self.settings.data_path, self.catalog.current)
        except ReportFileError as error:
            log.warning("%s", error)
            return
        for line in warnings_of(report, self.catalog.current) if report is not None else ():
            log.warning("%s", line)

    def _show_classifier(self, serving: ActiveVersions) -> None:
        trial = None if serving.canary is None else serving.canary.version
        self.metrics.show_classifier(serving.current.version, trial, serving.share)

    async def _start_probes(
        self, knobs: RoutingKnobFile, active: ActiveClassifier | None, agreements: Agreements
    ) -> ActiveProbes:
        use_lengths = (lambda lengths: None) if active is None else active.use_lengths
        pays = agreements.second_sample_pays
        probes = ActiveProbes(self.settings.probes_path, self.catalog, knobs, use_lengths, pays)
        probes.load()
        await self._follow(probes.follow, "evidence models")
        return probes

    async def _start_proxies(self) -> TrustedProxies:
        """Names that take long to resolve delay nothing: until then these proxies are not believed."""
        if self._proxies.has_names:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._proxies.resolve(), START_SECONDS)
            await self._keep(self._proxies.follow, "names of proxies")
        return self._proxies

    async def _start_prices(self, reload: CatalogueReload) -> None:
        """The package's list has prices that change with the date and the hour."""
        if self.catalog.current.has_listed_prices:
            await self._keep(partial(reload.follow_prices, self.settings.price_list_seconds), "listed prices")


async def close_clients(embedders: "Mapping[str, Embedder | EmbeddingClient]") -> None:
    """Close the connections to servers elsewhere."""
    for embedder in embedders.values():
        if embedder.spec.is_remote:
            await cast("EmbeddingClient", embedder).close()


def _embedder(spec: EmbeddingSpec, cores: Mapping[str, CoreClient]) -> "Embedder | EmbeddingClient":
    if spec.is_remote:
        from tiers.remote.embedding_client import EmbeddingClient

        return EmbeddingClient(spec)
    if spec.path is None:
        return CoreEmbedder(spec, cores)
    from gateway.inference.embedding.encoder_embedder import EncoderEmbedder

    return EncoderEmbedder(spec)
