"""Loads another version of the CPU core, next to the one that serves."""

import asyncio
import logging

from gateway.base.settings import Settings
from gateway.runtime.cores.core_clients import core_clients
from gateway.runtime.cores.loaded_models import until_loaded
from gateway.runtime.cores.machine_check import require_machine
from gateway.runtime.hub_models import fetch_core_models
from inference_core.errors import CoreGoneError, MemoryPlanError, ModelFileError
from inference_core.transport.event_client import EventClient
from tiers.catalog.catalog import CPU_CORE, Catalog
from tiers.errors import CatalogError, CoreMemoryError

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
