"""Loads one rank's shares of a mesh's models: divides them, checks memory, reads its part of each file."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from inference_core.attention.backend import AttentionBackend
from inference_core.attention.batches import BlockAddresses
from inference_core.attention.cpu import CpuAttention
from inference_core.attention.reference import ReferenceAttention
from inference_core.errors import MemoryPlanError
from inference_core.kv_arena import allocate_arena
from inference_core.kv_layout import KVLayout
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.model_path import resolve_model_path
from inference_core.loaders.opening import open_checkpoint
from inference_core.loading import (
    available_memory,
    check_kernels,
    layout_of,
    linear_bytes,
    max_context_of,
    use_threads,
    weight_bytes,
)
from inference_core.memory_plan import format_bytes
from inference_core.model_config import ModelConfig
from inference_core.model_spec import ModelSpec
from inference_core.models.rotary import rotary_table
from inference_core.models.weights import Projection, load_embedding, load_layers, load_linears, projections, vector
from inference_core.native import cpu
from inference_core.parallel.collectives import TensorGroup
from inference_core.parallel.cpu_stage import CpuStage, StageWeights
from inference_core.parallel.environment import RankEnvironment
from inference_core.parallel.file_agreement import agree_on_files
from inference_core.parallel.mesh_spec import MeshSpec
from inference_core.parallel.rank_runner import RankModel
from inference_core.parallel.shard_checkpoint import FINAL_NORM, ShardCheckpoint, split_units
from inference_core.parallel.splits import RankShare, divide
from inference_core.protocol import ModelInfo


@dataclass(slots=True, frozen=True)
class DividedModel:
    """A model of the mesh before anything of it is read. `layout`: of the rank whose blocks are the largest."""

    spec: ModelSpec
    checkpoint: Checkpoint
    shares: list[RankShare]
    layout: KVLayout

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            name=self.spec.name,
            model_path=self.spec.path,
            max_context=max_context_of(self.spec, self.config),
            vocab_size=self.config.vocab_size,
            weight_bytes=weight_bytes(self.checkpoint, self.spec),
            compute=self.spec.compute,
        )


def divide_models(spec: MeshSpec, cache_dir: Path) -> list[DividedModel]:
    """Open every model and divide it. Raises ModelFileError, MeshError and, for blocks that no slab takes,
    MemoryPlanError."""
    divided = []
    for model in spec.core.models:
        checkpoint = open_checkpoint(resolve_model_path(model.path), cache_dir)
        check_kernels(model, checkpoint.config)
        shares = divide(checkpoint.config, spec.mesh, split_units(checkpoint), uneven=spec.uneven_splits)
        layouts = [layout_of(model, share.config(checkpoint.config)) for share in shares]
        largest = max(layouts, key=lambda layout: layout.block_bytes)
        if largest.block_bytes > spec.core.slab_bytes:
            raise MemoryPlanError(
                f"{model.name}: a rank's block of {largest.block_size} tokens takes {largest.block_bytes} bytes, more "
                f"than a slab of {spec.core.slab_bytes}; make slab_bytes larger or block_size smaller"
            )
        divided.append(DividedModel(model, checkpoint, shares, largest))
    return divided


def share_threads(spec: MeshSpec, local_ranks: int) -> int:
    """Kernel threads of a rank: those asked for, else its part of the CPUs that its machine's ranks share."""
    return spec.core.threads or max(1, len(os.sched_getaffinity(0)) // local_ranks)


def load_shares(
    spec: MeshSpec,
    models: list[DividedModel],
    environment: RankEnvironment,
    store: Any,
    group: TensorGroup,
    cache_dir: Path,
) -> dict[str, RankModel]:
    """This rank's stage of every model over an arena of its own; nothing but its shares is read.

    Raises MemoryPlanError, with the arithmetic, if this machine's ranks together would not fit, and MeshError if its
    files are not those of the other machines.
    """
    local_ranks = environment.local_world_size
    use_threads(share_threads(spec, local_ranks))
    inside = environment.rank % spec.mesh.replica_size
    check_share_memory(spec, models, inside, local_ranks, available_memory())
    files = [(model.spec.name, model.checkpoint) for model in models]
    fingerprints = agree_on_files(environment, store, files, spec.load_seconds)
    arena = allocate_arena(spec.core.arena_bytes)
    return {
        model.spec.name: _load(spec, model, inside, arena, group, fingerprints[model.spec.name], cache_dir)
        for model in models
    }


def check_share_memory(
    spec: MeshSpec, models: list[DividedModel], inside: int, local_ranks: int, available: int
) -> None:
    """Refuse what cannot fit, naming every term; `inside` is the rank's number within its replica."""
    needs = []
    for model in models:
        share = model.shares[inside]
        shard = ShardCheckpoint(model.checkpoint, share)
        size = linear_bytes(shard, held_projections(shard, share), model.spec.compute)
        needs.append((f"this rank's weights of {model.spec.name} ({model.spec.compute})", size))
    needs.append(("KV arena of a rank", spec.core.arena_bytes))
    total = sum(size for _, size in needs)
    if total * local_ranks > available:
        needs += [("sum", total), (f"on this machine, {local_ranks} ranks", total * local_ranks)]
        needs.append(("available", available))
        lines = [f"  {name}: {format_bytes(size)}" for name, size in needs]
        raise MemoryPlanError("\n".join(["this machine's ranks do not fit:", *lines]))


def held_projections(shard: ShardCheckpoint, share: RankShare) -> list[Projection]:
    """The linear layers of a rank: the head belongs to the last stage."""
    return [projection for projection in projections(shard) if projection.name != "head" or share.last]


def load_weights(shard: ShardCheckpoint, share: RankShare, model: ModelSpec, cache_dir: Path) -> StageWeights:
    """What one rank holds, packed as for a whole model and kept under `cache_dir` for the next start."""
    linears = load_linears(shard, held_projections(shard, share), model.compute, cache_dir)
    return StageWeights(
        config=shard.config,
        vocabulary=share.vocabulary,
        embedding=load_embedding(shard, model.compute) if share.first else None,
        layers=load_layers(shard, linears),
        final_norm=vector(shard, FINAL_NORM) if share.last else None,
        head=linears["head"] if share.last else None,
    )


def _load(
    spec: MeshSpec,
    model: DividedModel,
    inside: int,
    arena: torch.Tensor,
    group: TensorGroup,
    fingerprint: str,
    cache_dir: Path,
) -> RankModel:
    share = model.shares[inside]
    shard = ShardCheckpoint(model.checkpoint, share, fingerprint)
    layout = layout_of(model.spec, shard.config)
    # No position lies beyond what the arena holds, whatever length a file claims.
    positions = min(max_context_of(model.spec, model.config), spec.core.arena_bytes // model.layout.bytes_per_token)
    attention_type: type[AttentionBackend] = CpuAttention if cpu.AVAILABLE else ReferenceAttention
    attention = attention_type(shard.config, layout, arena, rotary_table(shard.config, positions))
    addresses = BlockAddresses(layout.block_size, model.layout.block_bytes, spec.core.slab_bytes)
    stage = CpuStage(load_weights(shard, share, model.spec, cache_dir), attention, addresses, group)
    widths = [each.vocabulary.size for each in model.shares[: spec.mesh.tensor]]
    return RankModel(stage, share, widths)
