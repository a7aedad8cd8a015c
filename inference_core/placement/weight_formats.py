"""The bytes of a model's weights in each format, in total and per rank, exact if the format has a fixed size.

A draft model is placed with its target: loaded into the same core, divided over the same devices.
"""

from math import prod
from typing import Literal

import msgspec

from inference_core.errors import MeshError
from inference_core.kv_cache.layout import KVDtype
from inference_core.loaders.decoder_tensors import decoder_tensors
from inference_core.model_config import ModelConfig
from inference_core.parallel.mesh import Mesh, RankShare, SplitUnits, divide
from inference_core.placement.hardware import Device

WeightFormatName = Literal["float32", "bfloat16", "fp8", "int8", "awq-int4", "gptq-int4", "q4_0", "q4_1", "q4_k"]
VECTOR_BITS = 16.0


class WeightFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How weights are stored."""

    name: WeightFormatName
    bits: float
    """Bits per weight of a linear layer, with scales and zero points."""
    why: str
    """Why linear layers have these bits."""
    group: int = 1
    """Inputs that share a scale and cannot be split; 1 without groups."""
    other_bits: float = VECTOR_BITS
    """Bits per number of all other tensors."""


FORMATS: dict[str, WeightFormat] = {
    each.name: each
    for each in (
        WeightFormat(name="float32", bits=32.0, why="32", other_bits=32.0),
        WeightFormat(name="bfloat16", bits=16.0, why="16"),
        WeightFormat(name="fp8", bits=8.0, why="8, one scale per output channel aside"),
        WeightFormat(name="int8", bits=8.0, why="8, one scale per output channel aside"),
        WeightFormat(name="awq-int4", bits=4 + 20 / 128, why="4 + (16 scale + 4 zero point) / 128", group=128),
        WeightFormat(name="gptq-int4", bits=4 + 20 / 128, why="4 + (16 scale + 4 zero point) / 128", group=128),
        WeightFormat(name="q4_0", bits=4.5, why="18 bytes for 32 weights", group=32, other_bits=4.5),
        WeightFormat(name="q4_1", bits=5.0, why="20 bytes for 32 weights", group=32, other_bits=5.0),
        WeightFormat(
            name="q4_k", bits=4.5, why="144 bytes for 256 weights; Q4_K_M files mix in wider ones", group=256,
            other_bits=4.5,
        ),
    )
}  # fmt: skip


def weight_format(name: str) -> WeightFormat:
    """The format `name`. Raises MeshError with the known names."""
    if name not in FORMATS:
        raise MeshError(f"no weight format '{name}'; known are {', '.join(FORMATS)}")
    return FORMATS[name]


def preferred_format(device: Device) -> WeightFormat:
    """The preferred format of a device (SPEC QZ-08): Q4_K on CPUs, FP8 from Hopper on, AWQ on other GPUs."""
    if device.kind == "cpu":
        return FORMATS["q4_k"]
    return FORMATS["fp8" if (device.compute_capability or 0) >= 9.0 else "awq-int4"]


def split_units_of(config: ModelConfig, form: WeightFormat) -> SplitUnits:
    """The smallest units in which row-parallel layers of this format can be split; a group of all inputs cannot be."""
    return SplitUnits(
        attention_output=min(form.group, config.num_heads * config.head_dim),
        down=min(form.group, config.intermediate_size),
    )


class ModelWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of weights: in linear layers, in embedding and head, in norms and biases."""

    linear: int
    vocabulary: int
    vectors: int

    @property
    def total(self) -> int:
        return self.linear + self.vocabulary + self.vectors

    def num_bytes(self, form: WeightFormat) -> int:
        """Bytes in `form`, rounded up; norms and biases have 16 bits, or 32 in a float32 file."""
        vectors = self.vectors * max(VECTOR_BITS, form.other_bits)
        return int(-(-(self.linear * form.bits + self.vocabulary * form.other_bits + vectors) // 8))


def model_weights(config: ModelConfig) -> ModelWeights:
    """The weights of the whole model, from the shapes of its tensors."""
    linear = vocabulary = vectors = 0
    for name, shape in decoder_tensors(config).items():
        if len(shape) == 1:
            vectors += shape[0]
        elif name.startswith("model.layers."):
            linear += prod(shape)
        else:
            vocabulary += prod(shape)
    return ModelWeights(linear=linear, vocabulary=vocabulary, vectors=vectors)


def rank_weights(config: ModelConfig, share: RankShare) -> ModelWeights:
    """The weights of one rank. A tied embedding that both ends of a pipeline need counts at both."""
    held = model_weights(share.config(config))
    tables = held.vocabulary if config.tie_embeddings else held.vocabulary // 2
    copies = share.first or share.last if config.tie_embeddings else int(share.first) + int(share.last)
    final_norm = 0 if share.last else config.hidden_size
    return ModelWeights(linear=held.linear, vocabulary=tables * int(copies), vectors=held.vectors - final_norm)


class PlacedDraft(msgspec.Struct, frozen=True, kw_only=True):
    """Every device holds, in addition to the target's, its share of the draft's weights and of its keys and values."""

    name: str
    config: ModelConfig
    form: WeightFormat
    kv_dtype: KVDtype = "float16"

    def shares(self, mesh: Mesh, *, uneven: bool) -> list[RankShare]:
        """The draft's share of each rank of `mesh`. Raises MeshError if the draft cannot be divided over it."""
        return divide(self.config, mesh, split_units_of(self.config, self.form), uneven=uneven)
