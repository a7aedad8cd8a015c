"""What to load: one model file, how to compute with it, and how much context it may use."""

from typing import Annotated, Literal

import msgspec

from inference_core.kv_cache.layout import KVDtype
from inference_core.protocol import KnobValue

Compute = Literal["int4-int8", "int4", "bfloat16", "float32"]
DeviceScheme = Literal["dense", "int4", "int8", "fp8", "fp8-blocks"]
MeasuredCompute = Literal[Compute, "int8", "fp8"]
"""What a comparison computes with: the CPU's arithmetic, or a card's 8-bit one on the CPU."""
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
PinnedShare = Annotated[float, msgspec.Meta(ge=0, le=0.9)]
PINNED_SHARE = 0.25


class QualityLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds that a report must keep; None sets no bound.

    `max_exact_match_loss` is a share of all questions and requires at least `min_reference_right` right answers of the
    reference, without which a loss could not show.
    """

    max_perplexity_rise: NonNegative | None = 0.01
    min_hidden_cosine: Share | None = 0.99
    max_mean_kl: NonNegative | None = None
    min_top1: Share | None = None
    min_rouge_l: Share | None = None
    min_bleu: Share | None = None
    max_exact_match_loss: Share | None = None
    min_reference_right: Annotated[int, msgspec.Meta(ge=0)] = 20


class QualityGate(QualityLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which quality report a model needs to be served, and its bounds where they differ from those of the model's use
    (`quality_report.DEFAULT_LIMITS`); None: as there.

    `report`: the file that `aio quality compare --report` wrote; None: a report that is shipped, or the one next to the
    model (`quality_report.usual_report`).
    """

    report: str | None = None
    max_perplexity_rise: NonNegative | None = None
    min_hidden_cosine: Share | None = None


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a core.

    `path`: a GGUF file or a Hugging Face folder; `package:NAME/FILE` names a file inside an installed Python package.
    `compute`: `int4-int8` multiplies packed 4-bit weights by dynamically quantised INT8 activations, `int4` by float32
    activations (exact dequantisation), `bfloat16` and `float32` are dense.
    `kv_dtype`: how the cache holds keys and values; `int8` takes about half of bfloat16's memory (see
    `kv_cache.layout`);
    `float16` and `fp8` (E4M3) need CUDA, which has no `int8`.
    `max_context`: tokens of prompt and answer together; None is what the model was trained for.
    `draft`: another model of the core with the same vocabulary that may draft for this one (the knob `speculation`).
    `max_adapters`: adapters in memory at once; the least recently used ones are evicted for others.
    `adapters`: PEFT folders by adapter name, loaded at start.
    `window_groups`: whether layers with a sliding window keep the blocks that they can still see, and no others, where
    that saves memory; else every block holds all layers.
    `knobs`: live knobs (`protocol.Knobs`) that this model starts with, by name, where they differ from the core's.
    `quality`: the quality report that the model needs to be served, and its bounds, where they are not the usual ones.
    """

    name: str
    path: str
    compute: Compute
    kv_dtype: KVDtype = "bfloat16"
    block_size: int = 16
    max_context: int | None = None
    draft: str | None = None
    max_adapters: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 8
    adapters: dict[str, str] = {}
    window_groups: bool = True
    knobs: dict[str, KnobValue] = {}
    quality: QualityGate | None = None


class PrefixMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A turn of a pinned prefix, as in a chat request."""

    role: Literal["system", "user", "assistant"]
    content: str


class PrefixSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prefix that is computed ahead and pinned in the prefix cache (SPEC KV-06): `messages`, such as a system prompt
    and examples, with which chats begin. The last one is not a user's, so that a user's turn may follow.

    `models`: those of the core that it is pinned for; [] for all. Either `public`, so that the prompts of all tenants
    find it, or of one `tenant`: a team, the id of a key without a team, or "" on a server without keys.
    """

    name: str
    messages: list[PrefixMessage]
    models: list[str] = []
    tenant: str | None = None
    public: bool = False

    def is_for(self, model: str) -> bool:
        """Whether it is pinned for `model`, one of its core's."""
        return not self.models or model in self.models


class CoreSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One core: its models and the bytes of its KV arena, cut into slabs. `threads` None is one per CPU.

    `knobs`: live knobs (`protocol.Knobs`) that every model starts with, by name, where they differ from the defaults.
    `watchdog_seconds`: a step that takes longer makes the core unhealthy until it ends.
    `prefixes` are pinned at start; they take at most `pinned_share` of the arena's slabs.
    """

    models: list[ModelSpec]
    arena_bytes: int = 256 * 2**20
    slab_bytes: int = 16 * 2**20
    threads: int | None = None
    knobs: dict[str, KnobValue] = {}
    watchdog_seconds: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    prefixes: list[PrefixSpec] = []
    pinned_share: PinnedShare = PINNED_SHARE
