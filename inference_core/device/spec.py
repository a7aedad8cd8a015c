"""What to load on devices: models, the largest step to reserve memory for, and the cards. No torch."""

from typing import Annotated, Literal

import msgspec

from inference_core.kv_cache.layout import KVDtype
from inference_core.model_spec import PINNED_SHARE, DeviceScheme, PinnedShare, PrefixSpec
from inference_core.protocol import KnobValue

Activations = Literal["bfloat16", "float16", "float32"]
DeviceKind = Literal["cuda", "cpu"]
DeviceKVDtype = Literal["float16", "bfloat16", "fp8", "float32"]
MaxAdapters = Annotated[int, msgspec.Meta(ge=0, le=1024)]
MaxAdapterRank = Annotated[int, msgspec.Meta(ge=1, le=512)]


class DeviceModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a core on a device.

    `path`: see `ModelSpec`. `compute`: `dense` multiplies in the activations' dtype; `int4` keeps 4-bit tensors packed
    (W4A16); `int8`, `fp8` (a scale per output) and `fp8-blocks` (one per 128 x 128) round activations to 8 bits too,
    row by row. `kv_dtype`: the cache's type of keys and values. `max_context`: tokens of prompt and answer together;
    None: the trained length. `host_cache_bytes`: host memory for blocks evicted from the device (initial value of the
    knob `host_cache_blocks`), allocated as it is used. `draft`: see `ModelSpec`. `max_adapters`: adapters of up to
    `max_adapter_rank` that are on the device at once, whose memory is reserved in full; of more, the least recently
    used go back to host memory. `adapters`: PEFT folders by the names under which they are served from the start.
    """

    name: str
    path: str
    compute: DeviceScheme = "dense"
    activations: Activations = "bfloat16"
    kv_dtype: KVDtype = "bfloat16"
    block_size: int = 16
    max_context: int | None = None
    draft: str | None = None
    host_cache_bytes: Annotated[int, msgspec.Meta(ge=0)] = 4 * 2**30
    max_adapters: MaxAdapters = 0
    max_adapter_rank: MaxAdapterRank = 16
    adapters: dict[str, str] = {}
    knobs: dict[str, KnobValue] = {}


class DeviceCoreSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One core on one device. The KV arena takes what weights and the activations of a step of `max_num_batched_tokens`
    in `max_num_seqs` leave of `memory_utilization` of the device. Knobs cannot exceed these two limits later.
    `capture_steps`: replay steps in which every sequence computes few tokens as CUDA graphs; nothing is captured on the
    CPU. `prefixes`, `pinned_share`: see `CoreSpec`.
    """

    models: list[DeviceModelSpec]
    memory_utilization: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    slab_bytes: int = 256 * 2**20
    max_num_batched_tokens: Annotated[int, msgspec.Meta(ge=1)] = 8192
    max_num_seqs: Annotated[int, msgspec.Meta(ge=1)] = 256
    capture_steps: bool = True
    knobs: dict[str, KnobValue] = {}
    prefixes: list[PrefixSpec] = []
    pinned_share: PinnedShare = PINNED_SHARE


class DeviceGroupSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One core on `cards` equal devices of the machine, from number `first_card` on, counted from 0.

    `pipeline`: stages of consecutive layers, a divisor of `cards`; the cards of a stage share its layers.

    `device` "cpu" runs the same code on the host by the kernels' references, slowly, to try out a catalogue. A card is
    then `card_bytes` of host memory; on GPUs `card_bytes` is what the plan assumes, and a core uses the card's real
    size.
    """

    name: str
    core: DeviceCoreSpec
    card_bytes: Annotated[int, msgspec.Meta(gt=0)]
    device: DeviceKind = "cuda"
    cards: Annotated[int, msgspec.Meta(ge=1)] = 1
    pipeline: Annotated[int, msgspec.Meta(ge=1)] = 1
    first_card: Annotated[int, msgspec.Meta(ge=0)] = 0
