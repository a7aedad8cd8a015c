"""The catalogue: models, and two to eight tiers over them, as typed data."""

import hashlib
from typing import Any

import msgspec

from inference_core.model_spec import CoreSpec
from tiers.catalog.embedding_spec import EmbeddingSpec
from tiers.catalog.gpu_group import GpuGroupSpec
from tiers.catalog.rule_spec import RuleSpec
from tiers.catalog.screening_spec import GuardrailSpec, PrivateSpec
from tiers.catalog.target_spec import TargetSpec
from tiers.catalog.tier_spec import Count, PolicySpec, TierSpec
from tiers.engines.engine_spec import EngineSpec

CPU_CORE = "cpu"
"""What the core of this machine's CPU is called where a catalogue has several cores."""


class Catalog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models and tiers of one installation; `tiers[k-1]` is tier k.

    `core` is served by this machine's CPU; each of `gpu_groups` is a core on GPUs, served if a tier uses it.
    `reference_prompt_tokens` is the mean prompt length that the prices were derived for. `aliases`: further names of
    `auto`, of tiers and of models, so that a client's model name need not change; `*` is any name that is not known.
    `unmeasured`: quantised models, by name, that are served without a quality report, each with the reason
    (`tiers.catalog.quality_gate`). `private`: which prompts only local tiers may see, None for those that callers mark;
    `guardrails`: what judges prompts and answers, in this order. `targets`: servers that are no tiers,
    for fallback chains and rules. `rules`: which requests may go to which tiers.
    """

    name: str
    description: str = ""
    reference_prompt_tokens: Count = 200
    core: CoreSpec = msgspec.field(default_factory=lambda: CoreSpec(models=[]))
    gpu_groups: list[GpuGroupSpec] = []
    tiers: list[TierSpec]
    targets: list[TargetSpec] = []
    rules: list[RuleSpec] = []
    embeddings: list[EmbeddingSpec] = []
    aliases: dict[str, str] = {}
    unmeasured: dict[str, str] = {}
    private: PrivateSpec | None = None
    guardrails: list[GuardrailSpec] = []

    def tier(self, number: int) -> TierSpec:
        """The spec of tier `number`, from 1."""
        return self.tiers[number - 1]

    def numbered(self, name: str) -> int | None:
        """The number of the tier of this name, which may be `tier-N`; None if there is none."""
        return next((tier.number for tier in self.tiers if name in (tier.name, f"tier-{tier.number}")), None)

    def target(self, name: str) -> TargetSpec | None:
        """The target of this name."""
        return next((target for target in self.targets if target.name == name), None)

    @property
    def served_groups(self) -> list[GpuGroupSpec]:
        """The GPU groups with a model that a tier uses; the others are only plans."""
        wanted = {tier.model for tier in self.tiers}
        return [group for group in self.gpu_groups if any(m.name in wanted for m in group.models)]

    @property
    def has_listed_prices(self) -> bool:
        """Whether a price is the price list's, which may change."""
        return any(tier.price.listed for tier in self.tiers) or any(one.listed for one in self.embeddings)

    @property
    def is_unbilled(self) -> bool:
        """Whether all tiers run in AIO or in engines that it starts: their prices are on no bill, and what an
        answer takes is time of one's own machines."""
        return all(tier.remote is None or tier.remote.engine is not None for tier in self.tiers)

    @property
    def core_names(self) -> list[str]:
        """The cores that serve this catalogue: the CPU's, if it has models, then those of its GPU groups."""
        return [CPU_CORE] * bool(self.core.models) + [group.name for group in self.served_groups]

    @property
    def model_paths(self) -> dict[str, str]:
        """The file of every model, by the model's name."""
        paths = {m.name: m.path for m in self.core.models}
        return paths | {m.name: m.path for group in self.gpu_groups for m in group.models}

    @property
    def drafts(self) -> dict[str, str]:
        """The draft model of each model, by name."""
        drafts = {m.name: m.draft for m in self.core.models}
        drafts |= {m.name: m.draft for group in self.gpu_groups for m in group.models}
        return {name: draft for name, draft in drafts.items() if draft is not None}

    def group(self, name: str) -> GpuGroupSpec:
        """The GPU group of this name."""
        return next(group for group in self.gpu_groups if group.name == name)

    def core_of(self, model: str) -> str:
        """Return the name of the core that serves `model`."""
        return next((g.name for g in self.gpu_groups if any(m.name == model for m in g.models)), CPU_CORE)

    def cards_of(self, group: GpuGroupSpec) -> range:
        """Return the numbers of the CUDA devices of a served group."""
        free = 0
        for other in self.served_groups:
            if other.device != "cuda":
                continue
            first = free if other.first_card is None else other.first_card
            if other is group:
                return range(first, first + group.cards)
            free = max(free, first + other.cards)
        return range(0)

    @property
    def engines(self) -> dict[str, EngineSpec]:
        """The engines that AIO starts, each by the name of the first tier on it; equal specs are one engine."""
        found: dict[str, EngineSpec] = {}
        for tier in self.tiers:
            engine = None if tier.remote is None else tier.remote.engine
            if engine is not None and engine not in found.values():
                found[tier.name] = engine
        return found

    def engine_name(self, tier: TierSpec) -> str | None:
        """Return the name, among `engines`, of the one that `tier` is on; None if AIO starts none for it."""
        engine = None if tier.remote is None else tier.remote.engine
        return None if engine is None else next(name for name, one in self.engines.items() if one == engine)

    @property
    def fingerprint(self) -> str:
        """Hash of everything that affects the tiers' answers (not prices): labels are valid for one of these."""
        return _hash([self._answering(tier) for tier in self.tiers])

    def tier_fingerprint(self, number: int) -> str:
        """Hash of everything that affects one tier's answers, at any position: probes are valid for one of these."""
        return self.fingerprint_of(self.tier(number))

    def fingerprint_of(self, tier: TierSpec) -> str:
        """`tier_fingerprint` of an entry, which may be a target."""
        return _hash(self._answering(tier)[1:])

    @property
    def tier_fingerprints(self) -> list[str]:
        """`tier_fingerprint` of every tier, ascending."""
        return [self.tier_fingerprint(tier.number) for tier in self.tiers]

    def _answering(self, tier: TierSpec) -> list[Any]:
        models = {m.name: [m.path, m.compute] for m in self.core.models}
        models |= {m.name: [m.path, m.weights] for group in self.gpu_groups for m in group.models}
        # With several replicas only the model counts: another replica gives the same answers.
        remote: list[object] | None = None
        if tier.remote is not None:
            engine = tier.remote.engine
            remote = [tier.remote.base_url, tier.model_name] if engine is None else engine.answering
        answering = [tier.number, models.get(tier.model_name), remote, _answering_policy(tier.policy)]
        # Only where a tier binds one, so that what was measured without adapters stays valid.
        return answering if tier.adapter is None else [*answering, self._adapter_path(tier)]

    def _adapter_path(self, tier: TierSpec) -> str:
        adapters = {m.name: m.adapters for m in self.core.models}
        adapters |= {m.name: m.adapters for group in self.gpu_groups for m in group.models}
        return adapters.get(str(tier.model), {}).get(str(tier.adapter), str(tier.adapter))


def _answering_policy(policy: PolicySpec) -> dict[str, Any]:
    """Return the policy's fields; a probe's confidence that is not asked for changes no answer, so that what is known
    of a policy from before there was one stays valid."""
    fields: dict[str, Any] = msgspec.to_builtins(policy)
    if not fields.get("probe_confidence"):
        fields.pop("probe_confidence", None)
    return fields


def _hash(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:16]
