"""GPU groups of a catalogue: the models on each group's cards, with the memory arithmetic of SPEC TI-06.

The numbers that determine the memory of a model are planned where a catalogue leaves them out.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from inference_core.errors import ModelFileError
from inference_core.kv_cache.layout import kv_bytes_per_token
from inference_core.kv_cache.memory_plan import Devices
from inference_core.loaders.decoder_tensors import SHAPES
from inference_core.lora.adapter import adapter_targets
from inference_core.model_config import ModelConfig
from inference_core.model_spec import (
    PINNED_SHARE,
    Activations,
    DeviceKind,
    DeviceKVDtype,
    DeviceScheme,
    MaxAdapterRank,
    MaxAdapters,
    PinnedShare,
    PrefixSpec,
    QualityGate,
)
from inference_core.placement.weight_formats import FORMATS, model_weights
from inference_core.protocol import KnobValue

if TYPE_CHECKING:
    from inference_core.loaders.checkpoint import Checkpoint

_BITS = {"dense": 16.0, "int8": 8.0, "fp8": 8.0, "fp8-blocks": 8.0, "int4": 4.5}
# "30B" and "135M", "8x7B" (with two active experts), and "A3B" for the active part of the number before it.
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)(b|m)(?![A-Za-z0-9])", re.IGNORECASE)
_ACTIVE = re.compile(r"(?<![A-Za-z0-9])a(\d+(?:\.\d+)?)b(?![A-Za-z0-9])", re.IGNORECASE)

_OF_SHAPE = ("num_layers", "num_kv_heads", "head_dim")


def with_planned_numbers(table: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Complete every `[[gpu_groups.models]]` of a decoded TOML document: by the shape that it names, else by the
    headers of its file, which must be here. Append to `problems` what cannot be known."""
    groups = table.get("gpu_groups")
    if not isinstance(groups, list):
        return dict(table)
    return {**table, "gpu_groups": [_group(group, f"gpu_groups[{i}]", problems) for i, group in enumerate(groups)]}


def weight_bytes_of(config: ModelConfig, weights: str) -> int:
    """Return the bytes of a model's weights in a format, computed from the shapes of its tensors."""
    return model_weights(config).num_bytes(FORMATS[weights])


def numbers_of(checkpoint: "Checkpoint") -> dict[str, int]:
    """Return the numbers as a file's headers state them."""
    return _numbers(checkpoint.config) | {"weight_bytes": checkpoint.stored_bytes}


def _group(group: Any, where: str, problems: list[str]) -> Any:
    models = group.get("models") if isinstance(group, Mapping) else None
    if not isinstance(models, list):
        return group
    return {**group, "models": [_model(model, f"{where}.models[{i}]", problems) for i, model in enumerate(models)]}


def _model(entry: Any, where: str, problems: list[str]) -> Any:
    if not isinstance(entry, Mapping) or all(name in entry for name in (*_OF_SHAPE, "weight_bytes")):
        return entry
    shape, path, weights = entry.get("shape"), entry.get("path"), entry.get("weights")
    if isinstance(shape, str) and shape in SHAPES and isinstance(weights, str) and weights in FORMATS:
        config = SHAPES[shape]
        return {**_numbers(config), "weight_bytes": weight_bytes_of(config, weights), **entry}
    if not isinstance(path, str):
        return entry  # reported when it is converted
    # Imported here: most catalogues are read without the readers of model files.
    from inference_core.loaders.hub_model import resolve_model_path
    from inference_core.loaders.open_checkpoint import open_checkpoint

    try:
        return {**numbers_of(open_checkpoint(resolve_model_path(path))), **entry}
    except ModelFileError as error:
        problems.append(f"{where}: AIO takes missing numbers from the model's file: {error}; or name its shape")
        return entry


def _numbers(config: ModelConfig) -> dict[str, int]:
    return {name: getattr(config, name) for name in _OF_SHAPE}


GpuWeights = Literal["awq-int4", "gptq-int4", "q4_0", "q4_1", "q4_k", "bfloat16", "int8", "fp8"]
COMPUTE: dict[GpuWeights, DeviceScheme] = {
    "awq-int4": "int4",
    "gptq-int4": "int4",
    "q4_0": "int4",
    "q4_1": "int4",
    "q4_k": "int4",
    "bfloat16": "dense",
    "int8": "int8",
    "fp8": "fp8",
}
"""How a device multiplies weights of each format; see `DeviceModelSpec`."""


class GpuModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a GPU group: its file, its weight format and the numbers that determine its memory.

    A catalogue may leave the numbers out: they are those of `shape`, or of the file's headers
    (`tiers.catalog.gpu_group`).
    """

    name: str
    path: str
    weights: GpuWeights
    weight_bytes: Annotated[int, msgspec.Meta(gt=0)]
    num_layers: Annotated[int, msgspec.Meta(gt=0)]
    num_kv_heads: Annotated[int, msgspec.Meta(gt=0)]
    head_dim: Annotated[int, msgspec.Meta(gt=0)]
    kv_dtype: DeviceKVDtype = "float16"
    shape: str | None = None
    """Names a model whose numbers are known (`inference_core.loaders.decoder_tensors`). A placement can then be planned
    without the file, and a loaded file must agree with it.
    """
    max_context: Annotated[int, msgspec.Meta(ge=2)]
    activations: Activations = "bfloat16"
    """See `DeviceModelSpec`."""
    block_size: Annotated[int, msgspec.Meta(ge=1)] = 16
    """See `DeviceModelSpec`."""
    max_adapters: MaxAdapters = 0
    """Most LoRA adapters; see `DeviceModelSpec`. Their slots take memory of the cards."""
    max_adapter_rank: MaxAdapterRank = 16
    """See `DeviceModelSpec`."""
    adapters: dict[str, str] = {}
    """See `DeviceModelSpec`."""
    draft: str | None = None
    """Another model of the group, with the same vocabulary, that may draft for this one (the knob `speculation`)."""
    knobs: dict[str, KnobValue] = {}
    """Initial live knobs of this model, by name, where they differ from the group's."""
    quality: QualityGate | None = None
    """The report required to serve the model, and its bounds."""

    @property
    def compute(self) -> DeviceScheme:
        """The arithmetic on the weights; see `DeviceModelSpec`."""
        return COMPUTE[self.weights]

    @property
    def kv_bytes_per_token(self) -> int:
        """See `inference_core.kv_cache.layout.kv_bytes_per_token`."""
        return kv_bytes_per_token(
            num_layers=self.num_layers, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, dtype=self.kv_dtype
        )


def adapter_bytes(model: GpuModelSpec, cards: int) -> int | None:
    """Return the bytes of `model`'s adapter slots on the `cards` cards that share its layers, summed over all pipeline
    stages; None if the model's sizes are unknown.

    For a layer split by outputs every card has all of A and its part of B; for one split by inputs it is the reverse.
    """
    if not model.max_adapters:
        return 0
    if model.shape not in SHAPES:
        return None
    numbers = 0
    for target in adapter_targets(SHAPES[model.shape]).values():
        by_outputs = target.projection in ("qkv", "gate_up")
        numbers += target.inputs * (cards if by_outputs else 1) + target.outputs * (1 if by_outputs else cards)
    itemsize = 4 if model.activations == "float32" else 2
    return numbers * model.num_layers * model.max_adapters * model.max_adapter_rank * itemsize


class GpuGroupSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A core on `cards` equal GPUs, which share its models; `memory_utilization` of each may be used."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=40)]
    cards: Annotated[int, msgspec.Meta(ge=1)]
    card_bytes: Annotated[int, msgspec.Meta(gt=0)]
    pipeline: Annotated[int, msgspec.Meta(ge=1)] = 1
    """The number of stages of consecutive layers; the cards of a stage share its layers in tensor parallel."""
    memory_utilization: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    max_num_batched_tokens: Annotated[int, msgspec.Meta(ge=1)] = 8192
    """Most tokens of a step; memory is reserved for such a step."""
    max_num_seqs: Annotated[int, msgspec.Meta(ge=1)] = 256
    """Most sequences of a step; memory is reserved for such a step."""
    capture_steps: bool = True
    """See `DeviceCoreSpec`."""
    slab_bytes: Annotated[int, msgspec.Meta(gt=0)] = 256 * 2**20
    device: DeviceKind = "cuda"
    """"cpu" runs the group on the host, slowly (see `DeviceGroupSpec`)."""
    first_card: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The number of the first card, which the others follow; None for the first that no earlier group uses."""
    knobs: dict[str, KnobValue] = {}
    """Initial live knobs, by name. They may set less than the limits of a step."""
    watchdog_seconds: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """A step that takes longer makes the core unhealthy until it ends."""
    prefixes: list[PrefixSpec] = []
    """Prefixes that are pinned at start."""
    pinned_share: PinnedShare = PINNED_SHARE
    """Share of the KV cache that they may take."""
    models: list[GpuModelSpec]

    @property
    def tensor(self) -> int:
        """The number of cards that share a layer."""
        return self.cards // self.pipeline

    @property
    def usable_bytes(self) -> int:
        """The bytes of all cards together that weights and KV cache may use."""
        cards = Devices(bytes_each=self.card_bytes, count=self.cards, usable_share=self.memory_utilization)
        return cards.usable_bytes

    @property
    def kv_bytes(self) -> int:
        """The bytes left for the KV cache; negative if weights and adapter slots alone do not fit."""
        slots = sum(adapter_bytes(m, self.tensor) or 0 for m in self.models)
        return self.usable_bytes - sum(m.weight_bytes for m in self.models) - slots

    def draft_of(self, model: GpuModelSpec) -> GpuModelSpec | None:
        """Return the model of this group that drafts for `model`."""
        return next((m for m in self.models if m.name == model.draft), None)

    def memory_lines(self) -> list[str]:
        """Return the arithmetic, one line per term, in GB of 10^9 bytes."""
        lines = [
            f"{self.name}: {self.cards} x {self.card_bytes / 1e9:.1f} GB x {self.memory_utilization:g} "
            f"= {self.usable_bytes / 1e9:.1f} GB usable"
        ]
        lines += [f"  - {m.weight_bytes / 1e9:.1f} GB weights of {m.name} ({m.weights})" for m in self.models]
        for m in self.models:
            slots = adapter_bytes(m, self.tensor)
            if slots != 0:
                size = "an unknown size (it names no shape)" if slots is None else f"{slots / 1e9:.1f} GB"
                lines.append(
                    f"  - {size}: {m.max_adapters} slots for adapters of {m.name}, rank {m.max_adapter_rank} at most"
                )
        lines.append(f"  = {self.kv_bytes / 1e9:.1f} GB for keys and values")
        for m in self.models:
            draft = self.draft_of(m)
            in_all = m.kv_bytes_per_token + (draft.kv_bytes_per_token if draft else 0)
            of = m.name if draft is None else f"{m.name} and its draft {draft.name}"
            lines.append(f"  / {in_all} bytes per token of {of} = {max(self.kv_bytes, 0) // in_all} tokens")
        return lines


def named_billions(name: str) -> float | None:
    """Return the billions of active parameters in a model's name or path; None without them."""
    if active := _ACTIVE.search(name):
        return float(active[1])
    if (size := _SIZE.search(name)) is None:
        return None
    billions = float(size[2]) * (2.0 if size[1] else 1.0)
    return billions / 1000 if size[3] in "mM" else billions


def planned_billions(model: GpuModelSpec) -> float:
    """Return the billions of parameters of a GPU group's model: by its shape's name, its own, or its weights' bytes."""
    named = named_billions(model.shape or "") or named_billions(model.name) or named_billions(model.path)
    return model.weight_bytes * 8 / _BITS[model.compute] / 1e9 if named is None else named
