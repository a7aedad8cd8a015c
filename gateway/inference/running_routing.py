"""The routing of a process while it runs: classifier, knobs and conversations, which follow their sources."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from gateway.base.settings import Settings
from gateway.base.stores.redis_store import RedisStore
from gateway.base.stores.retries import background
from gateway.inference.class_prior import class_prior
from gateway.inference.classifier_versions import ActiveClassifier, ActiveVersions, Classifier
from gateway.inference.conversations import Conversations, SharedTurns
from gateway.inference.router import RoutingService
from gateway.inference.routing_knobs import RoutingKnobFile
from gateway.runtime.cores.engine import Engine
from gateway.runtime.cores.hidden_states import CoreStates
from tiers.catalog.catalog import CatalogInUse
from tiers.local.text_threads import TextThreads


@asynccontextmanager
async def running_routing(
    settings: Settings,
    catalog: CatalogInUse,
    engine: Engine,
    classifier: Classifier | None,
    redis: RedisStore | None,
    threads: TextThreads,
    show: Callable[[ActiveVersions], None],
) -> AsyncIterator[RoutingService]:
    """Route over the tiers of `engine`. `classifier` replaces the active one, of which
    `show` is called with the versions that serve, after each change."""
    seconds = settings.artefact_poll_seconds
    async with AsyncExitStack() as stack:
        if classifier is None:
            classifier = active = ActiveClassifier(
                settings.registry_path,
                catalog.current.fingerprint,
                show,
                prior=class_prior(catalog.current, settings.data_path),
                must_be_measured=settings.classifier_must_be_measured,
                states=partial(
                    CoreStates,
                    catalog=catalog,
                    cores=engine.cores,
                    cache_dir=settings.cache_path,
                    seconds=settings.hidden_state_seconds,
                    loop=asyncio.get_running_loop(),
                ),
                class_encoder=settings.classifier_encoder,
            )
            active.load()
            await stack.enter_async_context(background(partial(active.follow, seconds), "classifier versions"))
        knobs = RoutingKnobFile(settings.routing_knobs_path, len(catalog.current.tiers))
        await stack.enter_async_context(background(partial(knobs.follow, seconds), "routing knobs"))
        shared = None if redis is None else SharedTurns(redis)
        if shared is not None:
            stack.push_async_callback(shared.flush)
        yield RoutingService(
            catalog.current,
            engine.tiers,
            classifier,
            settings.quality_target,
            knobs,
            threads,
            Conversations(shared=shared),
            engine.targets,
        )
