"""Checks that this machine can serve a catalogue's cores."""

import asyncio
from collections.abc import Collection

from gateway.base.settings import Settings
from gateway.runtime.core_factory import require_local_models
from gateway.runtime.required_cards import require_cards
from tiers.catalog.catalog import Catalog
from tiers.catalog.hardware_check import require_plans, validate_files
from tiers.catalog.quality_gate import require_quality
from tiers.errors import CatalogError


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
