"""From a catalogue to the tiers that serve it."""

from collections.abc import Callable
from functools import cache

from inference_core.client import CoreClient
from inference_core.loaders.model_path import resolve_model_path
from inference_core.tokenization.loading import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from tiers.catalog import Catalog
from tiers.catalog_rules import require_servable
from tiers.core_watch import CoreWatch
from tiers.errors import CatalogError
from tiers.local import LocalTier
from tiers.remote import RemoteTier
from tiers.tier import Tier


def build_tiers(catalog: Catalog, core: CoreClient | None) -> list[Tier]:
    """One tier per entry, tier 1 first, not yet started; `core` serves the catalogue's own models.

    Tiers of one model share its tokeniser, tiers of one core its statistics. Raises CatalogError if the catalogue plans
    for devices that are not executed, if local tiers have no core, or if an API key is not set.
    """
    require_servable(catalog)
    local = [t.name for t in catalog.tiers if t.remote is None]
    if local and core is None:
        raise CatalogError(f"catalogue '{catalog.name}': {', '.join(local)} run on a core, and none was given")
    paths = {m.name: m.path for m in catalog.core.models}
    watch = None if core is None else CoreWatch(core)

    @cache
    def tokenizer(path: str) -> Tokenizer:
        return load_tokenizer(resolve_model_path(path))

    def loader(path: str) -> Callable[[], Tokenizer]:
        return lambda: tokenizer(path)

    tiers: list[Tier] = []
    for spec in catalog.tiers:
        if spec.model is None or core is None or watch is None:
            tiers.append(RemoteTier(spec))
        else:
            tiers.append(LocalTier(spec, core, loader(paths[spec.model]), watch))
    return tiers
