"""A low-rank adapter as read from its folder, and the model layers that its parts change."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from inference_core.model_config import ModelConfig

if TYPE_CHECKING:
    # It needs NumPy, which what reads a catalogue does without.
    from inference_core.loaders.packed_tensor import PackedTensor

Projection = Literal["qkv", "output", "gate_up", "down"]
PROJECTIONS: tuple[Projection, ...] = ("qkv", "output", "gate_up", "down")


@dataclass(slots=True, frozen=True)
class AdapterTarget:
    """A linear layer of every block: outputs `column` to `column + outputs` of a fused projection."""

    parent: str
    projection: Projection
    column: int
    inputs: int
    outputs: int


def adapter_targets(config: ModelConfig) -> dict[str, AdapterTarget]:
    """The layers that an adapter may change, by transformers' names: not experts, and not queries and keys whose
    numbers the decoder has in another order than the file (`ModelConfig.rotary_dim`)."""
    refused = {"q_proj", "k_proj"} if config.rotary_dim is not None else set()
    if config.num_experts:
        refused |= {"gate_proj", "up_proj", "down_proj"}
    return {name: target for name, target in projection_parts(config).items() if name not in refused}


def projection_parts(config: ModelConfig) -> dict[str, AdapterTarget]:
    """Every part of the fused projections of a block without experts, by transformers' names, whether an adapter may
    change it or not."""
    hidden, wide = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "q_proj": AdapterTarget("self_attn", "qkv", 0, hidden, queries),
        "k_proj": AdapterTarget("self_attn", "qkv", queries, hidden, keys),
        "v_proj": AdapterTarget("self_attn", "qkv", queries + keys, hidden, keys),
        "o_proj": AdapterTarget("self_attn", "output", 0, queries, hidden),
        "gate_proj": AdapterTarget("mlp", "gate_up", 0, hidden, wide),
        "up_proj": AdapterTarget("mlp", "gate_up", wide, hidden, wide),
        "down_proj": AdapterTarget("mlp", "down", 0, wide, hidden),
    }


@dataclass(slots=True, frozen=True, eq=False)
class LowRank:
    """One layer's update: y += scale * B (A x), with `down` = A [rank, inputs] and `up` = B [outputs, rank]."""

    down: "PackedTensor"
    up: "PackedTensor"
    scale: float

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    @property
    def num_weights(self) -> int:
        return self.rank * (self.down.shape[1] + self.up.shape[0])


@dataclass(slots=True, frozen=True, eq=False)
class Adapter:
    """A checked adapter, its tensors mapped from the file. `layers`: per block, by module name (`adapter_targets`).

    `digest`: 16-byte content hash, so that cached results of other weights are never used for this adapter.
    """

    path: Path
    digest: bytes
    layers: list[dict[str, LowRank]]

    @property
    def rank(self) -> int:
        """The largest of its layers' ranks."""
        return max((low.rank for layer in self.layers for low in layer.values()), default=0)

    @property
    def num_weights(self) -> int:
        return sum(low.num_weights for layer in self.layers for low in layer.values())
