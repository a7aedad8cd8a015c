"""A model of a mesh, divided over its ranks, before any weights are read."""

from dataclasses import dataclass

from inference_core.device.load_device_core import device_layout
from inference_core.device.spec import DeviceModelSpec
from inference_core.errors import MemoryPlanError
from inference_core.kv_cache.layout import KVLayout
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.decoder_tensors import refuse_features
from inference_core.model_config import ModelConfig
from inference_core.models.weights import Projection, projections
from inference_core.parallel.shards.shard_checkpoint import ShardCheckpoint, split_units
from inference_core.parallel.topology.mesh import Mesh
from inference_core.parallel.topology.splits import RankShare, divide
from inference_core.protocol import ModelInfo


@dataclass(slots=True, frozen=True)
class DividedModel:
    """`layout`: of the rank whose blocks are the largest."""

    spec: DeviceModelSpec
    checkpoint: Checkpoint
    shares: list[RankShare]
    layout: KVLayout

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    @property
    def max_context(self) -> int:
        """Tokens of prompt and answer together: the requested number, at most the model's trained length."""
        return min(self.spec.max_context or self.config.max_position, self.config.max_position)

    def vocabulary_widths(self, tensor_ranks: int) -> list[int]:
        """Vocabulary rows of each rank of a stage."""
        return [len(share.vocabulary) for share in self.shares[:tensor_ranks]]

    def info(self, weight_bytes: int) -> ModelInfo:
        return ModelInfo(
            name=self.spec.name,
            model_path=self.spec.path,
            max_context=self.max_context,
            vocab_size=self.config.vocab_size,
            weight_bytes=weight_bytes,
            compute=self.spec.compute,
            weights=self.checkpoint.fingerprint,
        )


def divide_model(
    spec: DeviceModelSpec, checkpoint: Checkpoint, mesh: Mesh, *, uneven: bool, slab_bytes: int
) -> DividedModel:
    """Divide a model. Raises MeshError if it cannot be divided, ModelFileError if it has features that meshes do not
    compute, MemoryPlanError for blocks larger than a slab."""
    refuse_features(checkpoint.path, checkpoint.config, "a mesh")
    shares = divide(checkpoint.config, mesh, split_units(checkpoint), uneven=uneven)
    layouts = [device_layout(spec, share.config(checkpoint.config)) for share in shares]
    largest = max(layouts, key=lambda layout: layout.block_bytes)
    if largest.block_bytes > slab_bytes:
        raise MemoryPlanError(
            f"{spec.name}: a rank's block of {largest.block_size} tokens takes {largest.block_bytes} bytes, more "
            f"than a slab of {slab_bytes}; make slab_bytes larger or block_size smaller"
        )
    return DividedModel(spec, checkpoint, shares, largest)


def held_projections(shard: ShardCheckpoint, share: RankShare) -> list[Projection]:
    """The linear layers that a rank holds; the head belongs to the last stage."""
    return [projection for projection in projections(shard) if projection.name != "head" or share.last]
