"""Build the tiers of a catalogue, and replace them while they serve; later requests go to the new ones.

What serves tiers on servers is imported with the first such tier.
"""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from inference_core.loaders.hub_model import resolve_model_path
from inference_core.tokenization.load_tokenizer import shared_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.transport.client import CoreClient
from tiers.catalog.catalog import Catalog, TargetSpec
from tiers.catalog.replica_spec import server_key
from tiers.catalog.tier_spec import OWN_SERVERS, TierSpec
from tiers.engines import EngineStatus, StatusOf
from tiers.errors import CatalogError, ReplicaStatus, TierRequestError
from tiers.local.local_tier import CoreWatch, LocalTier
from tiers.local.text_threads import TextThreads
from tiers.tier import Delta, GenerationRequest, Tier, TierLoad


class DelegatingTier(Tier):
    """Does what `tier` does, and is what it is."""

    def __init__(self, tier: Tier) -> None:
        self._current = tier
        self._take_attributes()

    async def prepare(self) -> None:
        await self._current.prepare()

    async def start(self) -> None:
        await self._current.start()
        self._take_attributes()

    def _take_attributes(self) -> None:
        """Show what the tier is; its server's model and context are known once it has started."""
        tier = self._current
        self.name, self.number, self.model, self.max_context = tier.name, tier.number, tier.model, tier.max_context
        self.core_name, self.num_layers, self.version = tier.core_name, tier.num_layers, tier.version
        self.max_output, self.takes_chats = tier.max_output, tier.takes_chats
        self.is_local, self.is_target = tier.is_local, tier.is_target
        self.asks_credential, self.continues_chats = tier.asks_credential, tier.continues_chats

    async def close(self) -> None:
        await self._current.close()

    def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        return self._current.generate(request)

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        return self._current.count_prompt_tokens(request)

    def refusal(self, request: GenerationRequest) -> TierRequestError | None:
        return self._current.refusal(request)

    def learned_refusal(self, request: GenerationRequest) -> TierRequestError | None:
        return self._current.learned_refusal(request)

    @property
    def weights(self) -> str:
        return self._current.weights

    def prompt_tokens_up_to(self, request: GenerationRequest, most: int) -> int:
        return self._current.prompt_tokens_up_to(request, most)

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._current.tokenizer

    def load(self) -> TierLoad:
        return self._current.load()

    def queues(self) -> dict[str, int]:
        return self._current.queues()

    def replicas(self) -> list[ReplicaStatus]:
        return self._current.replicas()


class ReloadableTier(DelegatingTier):
    """Delegates to the active tier. Running answers stay with the tier that started them."""

    def __init__(self, current: Tier) -> None:
        super().__init__(current)
        self.is_started = False

    def exchange(self, tier: Tier) -> None:
        """Make `tier`, which has been started, the active one. The caller closes the previous tier."""
        self._current, self.is_started = tier, True
        self._take_attributes()

    def active_tier(self) -> Tier:
        return self._current

    async def start(self) -> None:
        """See `Tier.start`; one that has been exchanged meanwhile is started."""
        if not self.is_started:
            current = self._current
            await current.start()
            self.is_started = current is self._current or self.is_started
            self._take_attributes()

    def load(self) -> TierLoad:
        load = super().load()
        return load if self.is_started else msgspec.structs.replace(load, healthy=False)


T = TypeVar("T", bound=Tier)


def build_tiers(
    catalog: Catalog,
    cores: Mapping[str, CoreClient],
    threads: TextThreads | None = None,
    engine_status: Mapping[str, StatusOf] | None = None,
) -> list[Tier]:
    """Return one tier per entry, tier 1 first, not yet started; `cores`, by the catalogue's names, serve its own
    models. `engine_status`: the states of the engines that AIO starts, by their names in `catalog.engines`; without
    one, such a tier stays unhealthy.

    Tiers of one model file share its tokeniser, tiers of one core its statistics, and all of them `threads`. Raises
    CatalogError if a local tier's core is not among `cores`.
    """
    homeless = [t.name for t in catalog.tiers if t.model is not None and catalog.core_of(t.model) not in cores]
    if homeless:
        core_names = ", ".join(cores) or "none"
        raise CatalogError(
            f"catalogue '{catalog.name}': {', '.join(homeless)} run on a core that is not there ({core_names})"
        )
    states, threads = engine_status or {}, threads or TextThreads()
    local = {tier.number: tier for name, core in cores.items() for tier in build_local(catalog, name, core, threads)}
    tiers: list[Tier] = []
    for spec in catalog.tiers:
        if (engine := catalog.engine_name(spec)) is not None:
            from tiers.remote.engine_tier import EngineTier

            tiers.append(_labelled(EngineTier(spec, states.get(engine, _not_started)), catalog, spec))
        elif spec.model is None:
            tiers.append(build_remote(catalog, spec))
        else:
            tiers.append(local[spec.number])
    return tiers


def _not_started() -> EngineStatus:
    return EngineStatus(state="down", detail="no process starts it here")


def build_local(catalog: Catalog, core_name: str, core: CoreClient, threads: TextThreads) -> list[LocalTier]:
    """Return the tiers on `core`, `core_name` in the catalogue, not yet started; they share one `CoreWatch`."""
    watch, paths = CoreWatch(core), catalog.model_paths
    tiers = []
    for spec in catalog.tiers:
        if spec.model is not None and catalog.core_of(spec.model) == core_name:
            load = partial(_tokenizer, paths[spec.model])
            tier = LocalTier(spec, core, load, watch, core_name=core_name, threads=threads)
            tiers.append(_labelled(tier, catalog, spec))
    return tiers


def _tokenizer(model: str) -> Tokenizer:
    return shared_tokenizer(resolve_model_path(model))


def build_targets(catalog: Catalog) -> list[Tier]:
    """Return one tier per target of `catalog`, not yet started."""
    return [build_remote(catalog, spec) for spec in catalog.targets]


def build_remote(catalog: Catalog, spec: TierSpec) -> Tier:
    """Return the tier of `spec`, an entry of `catalog` with a `remote` table, not yet started."""
    if spec.remote is not None and spec.remote.is_replicated:
        from tiers.replicas.replica_set import ReplicaSet

        return _labelled(ReplicaSet(spec), catalog, spec)
    from tiers.remote.remote_tier import RemoteTier

    return _labelled(RemoteTier(spec), catalog, spec)


def _labelled(tier: T, catalog: Catalog, spec: TierSpec) -> T:
    """Return `tier` with what its entry in `catalog`, `spec`, says of it."""
    tier.version, tier.is_local = catalog.fingerprint_of(spec), spec.is_local
    tier.is_target, tier.asks_credential = isinstance(spec, TargetSpec), spec.asks_credential
    remotes = [tier_spec.remote for tier_spec in (*catalog.tiers, *catalog.targets) if tier_spec.remote is not None]
    kinds = [remote.kind for remote in remotes]
    tier.is_only_of_api = spec.remote is not None and kinds.count(spec.remote.kind) == 1
    tier.is_only_server = len(remotes) == 1 or OWN_SERVERS.issuperset(kinds)
    return tier


def require_a_key(catalog: Catalog, environ: Mapping[str, str]) -> None:
    """Raise CatalogError if no tier can serve because API keys are not set; with one that can, the others are away."""
    variables: list[str] = []
    for spec in catalog.tiers:
        wanted = [] if spec.remote is None else [s.api_key_env or spec.remote.api_key_env for s in spec.remote.servers]
        missing = [name for name in wanted if name is not None and not server_key(environ, name)]
        if not missing or len(missing) < len(wanted):
            return
        variables += missing
    raise CatalogError(
        f"catalogue '{catalog.name}': no tier has its API key; set {', '.join(dict.fromkeys(variables))} in the "
        "environment and start again"
    )
