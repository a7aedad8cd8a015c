"""A core before it serves: whether this machine can serve a catalogue's cores, which models of a core are not loaded
yet (it serves others while it packs the weights of these, once), and another version of the CPU core, loaded next to
the one that serves.
"""

import asyncio
import logging
from collections.abc import Collection

from gateway.base.settings import Settings
from gateway.runtime.core_factory import fetch_core_models, require_cards, require_local_models
from gateway.runtime.cores.core_clients import core_clients
from inference_core.errors import CoreGoneError, MemoryPlanError, ModelFileError
from inference_core.protocol import CoreStats
from inference_core.transport.client import CoreClient
from inference_core.transport.event_client import EventClient
from tiers.catalog.catalog import CPU_CORE, Catalog
from tiers.catalog.hardware_check import require_plans, validate_files
from tiers.catalog.quality_gate import require_quality
from tiers.errors import CatalogError, CoreMemoryError

_POLL_SECONDS = 0.05


def not_loaded(stats: CoreStats) -> list[str]:
    """Return the names of the models whose requests wait for their weights."""
    return [model.name for model in stats.models if not model.is_loaded]


async def until_loaded(core: CoreClient) -> None:
    """Return once all models of a started core are loaded. Raises `CoreGoneError`."""
    while not_loaded(await core.stats()):  # noqa: ASYNC110 - a core tells when it is asked
        await asyncio.sleep(_POLL_SECONDS)


async def require_machine(catalog: Catalog, settings: Settings, cores: Collection[str]) -> None:
    """Check, without loading anything, that `cores` can be served here: cards, files and quality reports exist.

    Raises MissingExtraError, DevicesMissingError, ModelFileError, or CatalogError with what is missing and what to do.
    """
    if cores:
        require_local_models(catalog)
    groups = [group for group in catalog.served_groups if group.name in cores]
    meshes = [group.name for group in groups if group.cards > 1]
    if len(meshes) > 1:
        raise CatalogError(
            f"catalogue '{catalog.name}': {', '.join(meshes)} take several cards each, and a process leads one such "
            "group; serve each by aio serve --role core --group NAME, and the API by aio serve --role gateway"
        )
    if groups:
        await asyncio.to_thread(_check_machine, catalog, settings, [group.name for group in groups])
    await asyncio.to_thread(require_quality, catalog, settings.cache_path, cores)


def _check_machine(catalog: Catalog, settings: Settings, groups: list[str]) -> None:
    require_cards(catalog, groups)
    validate_files(catalog, groups)
    require_plans(catalog, settings.cache_path, groups)


log = logging.getLogger(__name__)


async def next_core(settings: Settings, catalog: Catalog) -> EventClient:
    """Return the CPU core of `catalog`, started, with all its models; they are downloaded first if need be.

    Raises `CatalogError`, a `CoreMemoryError` if it does not fit in what memory is left; then nothing is left of it.
    """
    try:
        await asyncio.to_thread(fetch_core_models, catalog, [CPU_CORE])
        await require_machine(catalog, settings, [CPU_CORE])
    except ModelFileError as error:
        raise CatalogError(f"the new version of the core cannot be loaded: {error}") from error
    core = core_clients(catalog, settings)[CPU_CORE]
    assert isinstance(core, EventClient)
    log.info("loading another version of the core, next to the one that serves")
    try:
        await core.start()
        await until_loaded(core)
    except CoreGoneError as error:
        await core.close()
        if isinstance(error.__cause__, MemoryPlanError):
            raise CoreMemoryError(
                "there is no memory for both versions of the core, and the old one serves on; free some, or restart "
                f"with the new catalogue: {error.__cause__}"
            ) from error
        raise CatalogError(f"the new version of the core cannot be loaded: {error}") from error
    except BaseException:
        await core.close()
        raise
    return core
