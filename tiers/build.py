"""Build the tiers of a catalogue."""

from collections.abc import Callable, Mapping
from functools import cache

from inference_core.loaders.model_path import resolve_model_path
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.transport.client import CoreClient
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import TierSpec
from tiers.decoding.text_threads import TextThreads
from tiers.errors import CatalogError
from tiers.local.core_health import CoreWatch
from tiers.local.local_tier import LocalTier
from tiers.remote.remote_tier import RemoteTier
from tiers.replicas.replica_set import ReplicaSet
from tiers.tier import Tier


def build_tiers(catalog: Catalog, cores: Mapping[str, CoreClient], threads: TextThreads | None = None) -> list[Tier]:
    """Return one tier per entry, tier 1 first, not yet started; `cores`, by the catalogue's names, serve its own
    models.

    Tiers of one model file share its tokeniser, tiers of one core its statistics, and all of them `threads`. Raises
    CatalogError if a local tier's core is not among `cores`.
    """
    homeless = [t.name for t in catalog.tiers if t.model is not None and catalog.core_of(t.model) not in cores]
    if homeless:
        given = ", ".join(cores) or "none"
        raise CatalogError(
            f"catalogue '{catalog.name}': {', '.join(homeless)} run on a core that is not there ({given})"
        )
    watches = {name: CoreWatch(core) for name, core in cores.items()}
    paths, threads = catalog.model_paths, threads or TextThreads()

    @cache
    def tokenizer(path: str) -> Tokenizer:
        return load_tokenizer(resolve_model_path(path))

    def loader(path: str) -> Callable[[], Tokenizer]:
        return lambda: tokenizer(path)

    tiers: list[Tier] = []
    for spec in catalog.tiers:
        if spec.model is None:
            tiers.append(build_remote(spec))
            continue
        name = catalog.core_of(spec.model)
        load = loader(paths[spec.model])
        tiers.append(LocalTier(spec, cores[name], load, watches[name], core_name=name, threads=threads))
    return tiers


def build_remote(spec: TierSpec) -> Tier:
    """Return the tier of an entry with a `remote` table, not yet started."""
    is_replicated = spec.remote is not None and spec.remote.is_replicated
    return ReplicaSet(spec) if is_replicated else RemoteTier(spec)


def require_a_key(catalog: Catalog, environ: Mapping[str, str]) -> None:
    """Raise CatalogError if no tier can serve because API keys are not set; with one that can, the others are away."""
    variables: list[str] = []
    for spec in catalog.tiers:
        wanted = [] if spec.remote is None else [s.api_key_env or spec.remote.api_key_env for s in spec.remote.servers]
        missing = [name for name in wanted if name is not None and not environ.get(name, "").strip()]
        if not missing or len(missing) < len(wanted):
            return
        variables += missing
    raise CatalogError(
        f"catalogue '{catalog.name}': no tier has its API key; set {', '.join(dict.fromkeys(variables))} in the "
        "environment and start again"
    )
