"""The catalogue: models, and two to eight tiers over them, as typed data.

Further entries: embedding models; targets, servers that are no tiers, which routing never chooses by itself (requests,
chains and rules name them); routing rules, for which requests and which tiers; and what is said of prompts before a
tier may see them: which ones are private, and which guardrails judge them and their answers.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from inference_core.model_spec import CoreSpec
from inference_core.protocol.commands import Pooling
from tiers.catalog.gpu_group import GpuGroupSpec
from tiers.catalog.tier_spec import Count, NonNegative, PolicySpec, Positive, Price, ProviderName, TierSpec
from tiers.engines import EngineSpec


class EmbeddingSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that embeds texts. Exactly one of `model` and `path` is set. With a `provider` or a `url`, `model` is one
    of a server elsewhere.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    model: str | None = None
    """A model of the CPU's core, whose hidden state after `layer` of its layers (default: all) is pooled; or a model of
    a server elsewhere.
    """
    path: str | None = None
    """A folder with an encoder's checkpoint (BERT, DistilBERT, ModernBERT and their kind). Its last states are averaged
    unless a sentence-transformers folder says otherwise. Vectors have length 1.
    """
    layer: Count | None = None
    pooling: Pooling = "mean"
    max_tokens: Count = 512
    """The most that the server reads of a text, which bounds its price. Unless given it is 8,192; for others it is 512.
    """
    shortenable: bool = False
    """Whether the model was trained so that the first entries of a vector are a vector too (Kusupati et al. 2022,
    "Matryoshka representation learning"), so that callers may ask for fewer `dimensions`.
    """
    input_usd_per_million: NonNegative | None = None
    """None for the price list's price."""
    provider: ProviderName | None = None
    """The provider of a server elsewhere, which gives its address."""
    url: str | None = None
    """The address of a server elsewhere, the part before `/embeddings`."""
    api_key_env: str | None = None
    """The environment variable with the key of a server elsewhere."""
    max_inputs: Annotated[int, msgspec.Meta(ge=1, le=2048)] = 2048
    """Most texts of one call; a request with more is split."""
    timeout_seconds: Positive = 60.0
    local: bool = False
    """Whether the server is in the operator's network."""
    listed: str = ""
    """The list that the price comes from."""

    @property
    def is_remote(self) -> bool:
        """Whether a server elsewhere computes the vectors."""
        return self.url is not None

    @property
    def price(self) -> Price:
        """What its tokens cost, in the form of a tier's."""
        return Price(input_usd_per_million=self.usd_per_million, output_usd_per_million=0.0, listed=self.listed)

    @property
    def usd_per_million(self) -> float:
        """The price of a catalogue that was checked."""
        assert self.input_usd_per_million is not None
        return self.input_usd_per_million


class TargetSpec(TierSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry like a tier's, on a server elsewhere. Without a price it has that tier's, as an estimate.

    Its `fallback` are the targets that stand in for it where a request or a rule names it, and tiers where
    `fallback_named` is set. None stands, for a rule, for that tier and its chain.
    """

    stands_for: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """The name of the tier that its answers count as, in records and permissions. By default it is the first tier whose
    `fallback` names it, else the strongest. Its `number` is that tier's.
    """


Script = Literal[
    "latin", "cyrillic", "greek", "arabic", "hebrew", "devanagari", "thai", "han", "kana", "hangul", "other"
]
Values = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]
Tokens = Annotated[int, Meta(ge=0)]
ANY = "*"
"""Of a tag or header: it is there, whatever its value."""
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)\Z")


class RuleWhen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conditions of a rule, all of which must hold. Of several values one suffices. A rule without any holds for
    every request.
    """

    key: Values | None = None
    """Ids or names of keys."""
    team: Values | None = None
    """Ids or names of teams."""
    tag: dict[str, Values] = {}
    """Values of the request's `metadata`, by name. `*` is any value."""
    header: dict[str, Values] = {}
    """Values of its headers, by name. `*` is any value."""
    hour: str | None = None
    """`HH:MM-HH:MM` in `time_zone`, the end not included, over midnight where the end is earlier."""
    time_zone: str = "UTC"
    language: Annotated[list[Script], Meta(min_length=1)] | None = None
    """The script that most letters of the last user turn are in, which is all that is looked at: `latin` is English as
    well as French.
    """
    min_tokens: Tokens | None = None
    """Least tokens of the prompt, as routing estimates them."""
    max_tokens: Tokens | None = None
    """Most tokens of the prompt, as routing estimates them."""


class RuleSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for the requests of `when`. All rules that match a request apply together."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")]
    when: RuleWhen = RuleWhen()
    allow: Values | None = None
    """The names of the tiers and targets that may answer; those of several rules intersect."""
    floor: str | None = None
    """The least tier; the highest holds."""
    target: str | None = None
    """The tier or target that answers in place of routing while it is up, of the first rule that has one."""
    quality: Annotated[float, Meta(ge=0, le=1)] | Literal["economy", "balanced", "careful"] | None = None
    """The quality target of requests that ask for none, of the first rule that has one."""


def minutes_of(hour: str) -> tuple[int, int] | None:
    """Return the first minute of a day and the one after the last of `HH:MM-HH:MM`; None for any other text."""
    match = _HOURS.match(hour)
    if match is None:
        return None
    return int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])


RuleName = Literal["email", "phone", "card", "iban", "api-key", "private-key", "national-id"]
RULES: tuple[RuleName, ...] = get_args(RuleName)
Stage = Literal["request", "answer"]
STAGES: tuple[Stage, ...] = get_args(Stage)


class PrivateSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompts that only local tiers may see."""

    rules: list[RuleName] = msgspec.field(default_factory=lambda: list(RULES))
    """What is looked for in their texts."""
    patterns: dict[Annotated[str, msgspec.Meta(min_length=1, max_length=64)], str] = {}
    """Further regular expressions, by shown name."""
    unreadable: bool = True
    """Whether a prompt with something that no rule can read (images, audio, files, token ids) is private."""
    store: bool = True
    """Whether texts of private requests may be stored, sampled and learned from."""


class GuardrailSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A judge of texts: a class in process (`python`, as `module:Class`, made with `options`), or a server (`url`)."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    python: str | None = None
    url: str | None = None
    on: Annotated[list[Stage], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: list(STAGES))
    """The stages that it is asked at."""
    fail: Literal["closed", "open"] = "closed"
    """What becomes of a text that it does not judge within `timeout_seconds`, or at all. `closed` refuses the request,
    `open` lets the text pass.
    """
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 5.0
    local: bool | None = None
    """Whether what the server is sent stays in the operator's network."""
    api_key_env: str | None = None
    """The variable that holds the server's bearer token."""
    options: dict[str, Any] = {}

    @property
    def is_local(self) -> bool:
        """Whether what it is sent stays in the operator's network: as declared, else where it runs in process."""
        return self.url is None if self.local is None else self.local


CPU_CORE = "cpu"
"""What the core of this machine's CPU is called where a catalogue has several cores."""


class Catalog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models and tiers of one installation."""

    name: str
    description: str = ""
    reference_prompt_tokens: Count = 200
    """The mean prompt length that the prices were derived for."""
    core: CoreSpec = msgspec.field(default_factory=lambda: CoreSpec(models=[]))
    """The core that this machine's CPU serves."""
    gpu_groups: list[GpuGroupSpec] = []
    """Cores on GPUs; each is served if a tier uses it."""
    tiers: list[TierSpec]
    """All tiers; tier k is at index k-1."""
    targets: list[TargetSpec] = []
    """Servers that are no tiers, for fallback chains and rules."""
    rules: list[RuleSpec] = []
    """Which requests may go to which tiers."""
    embeddings: list[EmbeddingSpec] = []
    aliases: dict[str, str] = {}
    """Further names of `auto`, of tiers and of models, so that a client's model name need not change. `*` is any name
    that is not known.
    """
    unmeasured: dict[str, str] = {}
    """Quantised models, by name, that are served without a quality report, each with the reason
    (`tiers.catalog.quality_gate`).
    """
    require_report: bool = False
    """Whether files that others quantised are refused without a passing quality report, instead of being served as not
    measured."""
    private: PrivateSpec | None = None
    """Which prompts only local tiers may see; None for those that callers mark."""
    guardrails: list[GuardrailSpec] = []
    """What judges prompts and answers, in this order."""

    def tier(self, number: int) -> TierSpec:
        """The spec of tier `number`, from 1."""
        return self.tiers[number - 1]

    @property
    def tier_names(self) -> dict[int, str]:
        """The tiers' names by their numbers."""
        return {tier.number: tier.name for tier in self.tiers}

    def numbered(self, name: str) -> int | None:
        """The number of the tier of this name, which may be `tier-N`; None if there is none."""
        return next((tier.number for tier in self.tiers if name in (tier.name, f"tier-{tier.number}")), None)

    def target(self, name: str) -> TargetSpec | None:
        return next((target for target in self.targets if target.name == name), None)

    @property
    def served_groups(self) -> list[GpuGroupSpec]:
        """The GPU groups with a model that a tier uses; the others are only plans."""
        wanted = {tier.model for tier in self.tiers}
        return [group for group in self.gpu_groups if any(m.name in wanted for m in group.models)]

    @property
    def has_listed_prices(self) -> bool:
        """Whether a price is the price list's, which may change."""
        return any(tier.price.listed for tier in self.tiers) or any(embedding.listed for embedding in self.embeddings)

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
        return next(group for group in self.gpu_groups if group.name == name)

    def core_of(self, model: str) -> str:
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
        engines: dict[str, EngineSpec] = {}
        for tier in self.tiers:
            engine = None if tier.remote is None else tier.remote.engine
            if engine is not None and engine not in engines.values():
                engines[tier.name] = engine
        return engines

    def engine_name(self, tier: TierSpec) -> str | None:
        """Return the name, among `engines`, of the one that `tier` is on; None if AIO starts none for it."""
        engine = None if tier.remote is None else tier.remote.engine
        return None if engine is None else next(name for name, spec in self.engines.items() if spec == engine)

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


def name_of_tier(number: int, names: Mapping[int, str]) -> str:
    """Return what sentences call a tier: its name, or "tier N" where none is known."""
    return names.get(number, f"tier {number}")


class CatalogInUse:
    """The catalogue that serves now, which every part asks for when it needs it: a reload replaces `current`, a value
    that never changes, in one turn of the event loop."""

    __slots__ = ("_followers", "_renewals", "current")

    def __init__(self, catalog: Catalog) -> None:
        self.current = catalog
        self._followers: list[Callable[[Catalog], None]] = []
        self._renewals: list[Callable[[], Awaitable[None]]] = []

    def follow(self, follower: Callable[[Catalog], None]) -> None:
        """Call `follower` with each catalogue that replaces the current one, in the same turn of the event loop."""
        self._followers.append(follower)

    def renew_with(self, renewal: Callable[[], Awaitable[None]]) -> None:
        """Await `renewal` after each reload that changed a tier; it reports its own failures."""
        self._renewals.append(renewal)

    def switch_to(self, catalog: Catalog) -> None:
        """Replace the current catalogue."""
        self.current = catalog
        for follower in self._followers:
            follower(catalog)

    async def renew(self) -> None:
        """Let all parts read again what depends on the tiers."""
        for renewal in self._renewals:
            await renewal()
