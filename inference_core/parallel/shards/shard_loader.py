"""The seam of loading: how one rank of a mesh comes to its stages of all models, whatever it computes on."""

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
    """A model of the mesh before anything of it is read. `layout`: of the rank whose blocks are the largest."""

    spec: Spec
    checkpoint: Checkpoint
    shares: list[RankShare]
    layout: KVLayout

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    @property
    def max_context(self) -> int:
        """Tokens of prompt and answer together: what is asked for, and what the model was trained for at most."""
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
        )


def divide_model(
    spec: Spec,
    checkpoint: Checkpoint,
    terms: MeshOptions,
    layout_of: Callable[[Spec, ModelConfig], KVLayout],
    slab_bytes: int,
) -> DividedModel[Spec]:
    """Raises MeshError for what cannot be divided and MemoryPlanError for blocks that no slab takes."""
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
    """The linear layers of a rank: the head belongs to the last stage."""
    return [projection for projection in projections(shard) if projection.name != "head" or share.last]


class RankShardLoader(ABC):
    """One rank's parts of a mesh's models.

    Contract: the constructor divides the models without reading weights. Then call `load`, `arena_capacity` and
    `stages`, each on all ranks of a replica before the next on any.
    """

    device: torch.device
    # How many drafted tokens a step may have: memory is set aside for their logits.
    most_drafts: int

    @property
    @abstractmethod
    def models(self) -> list[DividedModel[Any]]: ...

    @abstractmethod
    def load(self, store: Any, group: TensorGroup) -> dict[str, int]:
        """Read this rank's weights, and nothing else; returns their bytes by model.

        Raises MemoryPlanError, with the arithmetic, if they cannot fit, and MeshError if the files of this machine are
        not those of the others.
        """

    @abstractmethod
    def arena_capacity(self, profile_step: ProfileStep) -> int:
        """Bytes that this rank has for keys and values, beside what the largest step takes.

        Raises MemoryPlanError, with the arithmetic, if there are none.
        """

    @abstractmethod
    def stages(self, arena_bytes: int) -> dict[str, RankModel]:
        """Every model's stage over an arena of that size."""

    @abstractmethod
    def knobs(self, file: Path | None) -> LiveKnobs:
        """What the models start with, and where changes that are to be kept are kept."""

    @property
    @abstractmethod
    def slab_bytes(self) -> int: ...

    @abstractmethod
    def use_threads(self, threads: int) -> None:
        """Give this rank's kernels their threads (0: its part of the machine's CPUs), where they have any."""
