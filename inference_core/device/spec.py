"""What to load on devices: models, the largest step that memory is set aside for, and which cards. No torch."""

from typing import Annotated, Literal

import msgspec

from inference_core.kv_cache.layout import KVDtype
from inference_core.model_spec import DeviceScheme
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
    row by row. `kv_dtype`: how the cache holds keys and values. `max_context`: tokens of prompt and answer together;
    None is what the model was trained for. `host_cache_bytes`: host memory for blocks that the device has no room for
    (the knob `host_cache_blocks` begins with it); it is taken as it is used. `draft`: see `ModelSpec`. `max_adapters`:
    adapters of up to `max_adapter_rank` that lie on the device at once, for which memory is taken in full; of more,
    those in use least recently go back to host memory. `adapters`: PEFT folders by the names that they are served under
    from the start.
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
    """One core on one device. The KV arena takes what `memory_utilization` of the device leaves after weights and the
    activations of a step of `max_num_batched_tokens` in `max_num_seqs`, which no knob passes later.
    """

    models: list[DeviceModelSpec]
    memory_utilization: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    slab_bytes: int = 256 * 2**20
    max_num_batched_tokens: Annotated[int, msgspec.Meta(ge=1)] = 8192
    max_num_seqs: Annotated[int, msgspec.Meta(ge=1)] = 256
    knobs: dict[str, KnobValue] = {}


class DeviceGroupSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One core on `cards` equal devices: number `first_card` of the machine and those after it, counted from 0.

    `pipeline`, which divides `cards`: stages of consecutive layers; the cards of a stage share its layers.

    `device` "cpu" runs the same code on the host, by the kernels' references: to try a catalogue out, not to be fast.
    A card is then `card_bytes` of the host's memory; of a GPU it is what the plan counts on, and a core takes what the
    card really has.
    """

    name: str
    core: DeviceCoreSpec
    card_bytes: Annotated[int, msgspec.Meta(gt=0)]
    device: DeviceKind = "cuda"
    cards: Annotated[int, msgspec.Meta(ge=1)] = 1
    pipeline: Annotated[int, msgspec.Meta(ge=1)] = 1
    first_card: Annotated[int, msgspec.Meta(ge=0)] = 0
