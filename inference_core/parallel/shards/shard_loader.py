"""The interface that loads one rank's stages of all models, on any kind of device."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from inference_core.device.spec import DeviceModelSpec
from inference_core.engine.live_knobs import LiveKnobs
from inference_core.errors import MemoryPlanError
from inference_core.kv_cache.layout import KVLayout
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.model_config import ModelConfig
from inference_core.model_spec import ModelSpec
from inference_core.models.weights import Projection, projections
from inference_core.parallel.communication.collectives import TensorGroup
from inference_core.parallel.communication.messages import RunStep
from inference_core.parallel.ranks.rank_runner import RankModel
from inference_core.parallel.shards.shard_checkpoint import ShardCheckpoint, split_units
from inference_core.parallel.topology.mesh_spec import MeshOptions
from inference_core.parallel.topology.splits import RankShare, divide
from inference_core.protocol import ModelInfo

Spec = TypeVar("Spec", ModelSpec, DeviceModelSpec)
# Computes a step on this and all other ranks of the replica, and waits for it.
ProfileStep = Callable[[dict[str, RankModel], RunStep], None]


@dataclass(slots=True, frozen=True)
class DividedModel(Generic[Spec]):
    """A model of the mesh before its weights are read. `layout`: of the rank whose blocks are the largest."""

    spec: Spec
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
    spec: Spec,
    checkpoint: Checkpoint,
    terms: MeshOptions,
    layout_of: Callable[[Spec, ModelConfig], KVLayout],
    slab_bytes: int,
) -> DividedModel[Spec]:
    """Divide a model. Raises MeshError if it cannot be divided, MemoryPlanError for blocks larger than a slab."""
    shares = divide(checkpoint.config, terms.mesh, split_units(checkpoint), uneven=terms.uneven_splits)
    layouts = [layout_of(spec, share.config(checkpoint.config)) for share in shares]
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


class RankShardLoader(ABC):
    """Loads one rank's shards of a mesh's models.

    Contract: the constructor divides the models without reading weights. Then call `load`, `arena_capacity` and
    `stages`, each on all ranks of a replica before the next on any.
    """

    device: torch.device
    # How many drafted tokens a step may have; memory is reserved for their logits.
    most_drafts: int

    @property
    @abstractmethod
    def models(self) -> list[DividedModel[Any]]: ...

    @abstractmethod
    def load(self, store: Any, group: TensorGroup) -> dict[str, int]:
        """Read only this rank's weights. Returns their bytes by model.

        Raises MemoryPlanError, with the arithmetic, if they do not fit, and MeshError if this machine's files differ
        from those of the other machines.
        """

    @abstractmethod
    def arena_capacity(self, profile_step: ProfileStep) -> int:
        """Bytes left on this rank for keys and values during the largest step.

        Raises MemoryPlanError, with the arithmetic, if none are left.
        """

    @abstractmethod
    def stages(self, arena_bytes: int) -> dict[str, RankModel]:
        """Build every model's stage over an arena of `arena_bytes`."""

    @abstractmethod
    def knobs(self, file: Path | None) -> LiveKnobs:
        """The models' initial knobs; `file` stores changes that outlast the process."""

    @property
    @abstractmethod
    def slab_bytes(self) -> int: ...

    @abstractmethod
    def use_threads(self, threads: int) -> None:
        """Set the threads of this rank's CPU kernels (0: its share of the machine's CPUs); ignored on devices."""
