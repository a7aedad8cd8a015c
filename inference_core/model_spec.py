"""What to load: model files, how to compute with them, and how much context they may use. No torch.

`CoreSpec` is of a core on the CPU; `DeviceCoreSpec` and `DeviceGroupSpec` are of cores on devices: the largest step to
reserve memory for, and the cards.
"""

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
    """Bounds that a report must keep; None sets no bound."""

    max_perplexity_rise: NonNegative | None = 0.01
    min_hidden_cosine: Share | None = 0.99
    max_mean_kl: NonNegative | None = None
    min_top1: Share | None = None
    min_rouge_l: Share | None = None
    min_bleu: Share | None = None
    max_exact_match_loss: Share | None = None
    """Bound of the loss, as a share of all questions."""
    min_reference_right: Annotated[int, msgspec.Meta(ge=0)] = 20
    """Right answers of the reference that a bound of the loss requires; with fewer, a loss could not show."""


class QualityGate(QualityLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which quality report a model needs to be served, and its bounds where they differ from those of the model's use
    (`quality_report.DEFAULT_LIMITS`); None: as there.
    """

    report: str | None = None
    """The file that `aio quality compare --report` wrote. None: a report that is shipped, or the one next to the model
    (`quality_report.usual_report`).
    """
    max_perplexity_rise: NonNegative | None = None
    min_hidden_cosine: Share | None = None


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a core."""

    name: str
    path: str
    """A GGUF file or a Hugging Face folder. `package:NAME/FILE` names a file inside an installed Python package."""
    compute: Compute
    """`int4-int8` multiplies packed 4-bit weights by dynamically quantised INT8 activations, `int4` by float32
    activations (exact dequantisation), `bfloat16` and `float32` are dense.
    """
    kv_dtype: KVDtype = "bfloat16"
    """How the cache holds keys and values. `int8` takes about half of bfloat16's memory (see `kv_cache.layout`).
    `float16` and `fp8` (E4M3) need CUDA, which has no `int8`.
    """
    block_size: Annotated[int, msgspec.Meta(ge=1)] = 16
    max_context: Annotated[int, msgspec.Meta(ge=2)] | None = None
    """Tokens of prompt and answer together; None is what the model was trained for."""
    draft: str | None = None
    """Another model of the core with the same vocabulary that may draft for this one (the knob `speculation`)."""
    max_adapters: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 8
    """Adapters in memory at once; the least recently used ones are evicted for others."""
    adapters: dict[str, str] = {}
    """PEFT folders by adapter name, loaded at start."""
    window_groups: bool = True
    """Whether layers with a sliding window keep the blocks that they can still see, and no others, where that saves
    memory; else every block holds all layers.
    """
    knobs: dict[str, KnobValue] = {}
    """Live knobs (`protocol.Knobs`) that this model starts with, by name, where they differ from the core's."""
    quality: QualityGate | None = None
    """The quality report that the model needs to be served, and its bounds, where they are not the usual ones."""


class PrefixMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A turn of a pinned prefix, as in a chat request."""

    role: Literal["system", "user", "assistant"]
    content: str


class PrefixSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prefix that is computed ahead and pinned in the prefix cache (SPEC KV-06)."""

    name: str
    messages: list[PrefixMessage]
    """The messages with which chats begin, such as a system prompt and examples. The last one is not a user's, so that
    a user's turn may follow.
    """
    models: list[str] = []
    """Models of the core that it is pinned for; [] for all."""
    tenant: str | None = None
    """The one tenant whose prompts find it: a team, the id of a key without a team, or "" on a server without keys."""
    public: bool = False
    """Whether the prompts of all tenants find it; if not, a `tenant` is named."""

    def is_for(self, model: str) -> bool:
        """Whether it is pinned for `model`, one of its core's."""
        return not self.models or model in self.models


class CoreSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One core: its models and the bytes of its KV arena, cut into slabs."""

    models: list[ModelSpec]
    arena_bytes: int = 256 * 2**20
    slab_bytes: Annotated[int, msgspec.Meta(gt=0)] = 16 * 2**20
    threads: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """None is one per CPU."""
    knobs: dict[str, KnobValue] = {}
    """Live knobs (`protocol.Knobs`) that every model starts with, by name, where they differ from the defaults."""
    watchdog_seconds: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """A step that takes longer makes the core unhealthy until it ends."""
    prefixes: list[PrefixSpec] = []
    """Prefixes that are pinned at start."""
    pinned_share: PinnedShare = PINNED_SHARE
    """Share of the arena's slabs that pinned prefixes may take."""


Activations = Literal["bfloat16", "float16", "float32"]
DeviceKind = Literal["cuda", "cpu"]
DeviceKVDtype = Literal["float16", "bfloat16", "fp8", "float32"]
MaxAdapters = Annotated[int, msgspec.Meta(ge=0, le=1024)]
MaxAdapterRank = Annotated[int, msgspec.Meta(ge=1, le=512)]


class DeviceModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a core on a device."""

    name: str
    path: str
    """See `ModelSpec`."""
    compute: DeviceScheme = "dense"
    """`dense` multiplies in the activations' dtype. `int4` keeps 4-bit tensors packed (W4A16). `int8`, `fp8` (a scale
    per output) and `fp8-blocks` (one per 128 x 128) round activations to 8 bits too, row by row.
    """
    activations: Activations = "bfloat16"
    kv_dtype: KVDtype = "bfloat16"
    """The cache's type of keys and values."""
    block_size: int = 16
    max_context: int | None = None
    """Tokens of prompt and answer together; None: the trained length."""
    draft: str | None = None
    """See `ModelSpec`."""
    host_cache_bytes: Annotated[int, msgspec.Meta(ge=0)] = 4 * 2**30
    """Host memory for blocks evicted from the device (initial value of the knob `host_cache_blocks`), allocated as it
    is used.
    """
    max_adapters: MaxAdapters = 0
    """Adapters of up to `max_adapter_rank` that are on the device at once, whose memory is reserved in full; of more,
    the least recently used go back to host memory.
    """
    max_adapter_rank: MaxAdapterRank = 16
    adapters: dict[str, str] = {}
    """PEFT folders by the names under which they are served from the start."""
    knobs: dict[str, KnobValue] = {}


class DeviceCoreSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One core on one device. The KV arena takes what weights and the activations of a step of `max_num_batched_tokens`
    in `max_num_seqs` leave of `memory_utilization` of the device. Knobs cannot exceed these two limits later.
    """

    models: list[DeviceModelSpec]
    memory_utilization: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    slab_bytes: int = 256 * 2**20
    max_num_batched_tokens: Annotated[int, msgspec.Meta(ge=1)] = 8192
    max_num_seqs: Annotated[int, msgspec.Meta(ge=1)] = 256
    capture_steps: bool = True
    """Replay steps in which every sequence computes few tokens as CUDA graphs; nothing is captured on the CPU."""
    knobs: dict[str, KnobValue] = {}
    prefixes: list[PrefixSpec] = []
    """See `CoreSpec`."""
    pinned_share: PinnedShare = PINNED_SHARE
    """See `CoreSpec`."""


class DeviceGroupSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One core on `cards` equal devices of the machine, from number `first_card` on, counted from 0."""

    name: str
    core: DeviceCoreSpec
    card_bytes: Annotated[int, msgspec.Meta(gt=0)]
    """With "cpu", the host memory of a card. On GPUs it is what the plan assumes; a core uses the real size."""
    device: DeviceKind = "cuda"
    """"cpu" runs the same code on the host by the kernels' references, slowly, to try out a catalogue."""
    cards: Annotated[int, msgspec.Meta(ge=1)] = 1
    pipeline: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Stages of consecutive layers, a divisor of `cards`; the cards of a stage share its layers."""
    first_card: Annotated[int, msgspec.Meta(ge=0)] = 0
