"""A rank's shares on the CPU: divides the models, checks memory, reads its part of each file."""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from inference_core.attention.backend import AttentionBackend
from inference_core.attention.batches import BlockAddresses
from inference_core.attention.cpu import CpuAttention
from inference_core.attention.reference import ReferenceAttention
from inference_core.engine.live_knobs import KnobsFile, LiveKnobs, start_knobs
from inference_core.errors import MemoryPlanError
from inference_core.kv_cache.arena import allocate_arena
from inference_core.kv_cache.memory_plan import format_bytes
from inference_core.loaders.model_path import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import available_memory, check_kernels, layout_of, linear_bytes, use_threads
from inference_core.lora.packing import Storage
from inference_core.lora.reference import TorchAdapterBank
from inference_core.model_spec import ModelSpec
from inference_core.models.rotary import rotary_table
from inference_core.models.weights import load_embedding, load_layers, load_linears, vector
from inference_core.native import cpu
from inference_core.parallel.communication.collectives import TensorGroup
from inference_core.parallel.ranks.rank_runner import RankModel
from inference_core.parallel.shards.checkpoint_hash_check import check_checkpoint_hashes
from inference_core.parallel.shards.shard_checkpoint import FINAL_NORM, ShardCheckpoint
from inference_core.parallel.shards.shard_loader import (
    DividedModel,
    ProfileStep,
    RankShardLoader,
    divide_model,
    held_projections,
)
from inference_core.parallel.stages.cpu_stage import CpuStage, StageWeights
from inference_core.parallel.topology.environment import RankEnvironment
from inference_core.parallel.topology.mesh_spec import MeshSpec
from inference_core.parallel.topology.splits import RankShare


def divide_models(spec: MeshSpec, cache_dir: Path) -> list[DividedModel[ModelSpec]]:
    """Open every model and divide it. Raises ModelFileError, MeshError and, for blocks that no slab takes,
    MemoryPlanError."""
    divided = []
    for model in spec.core.models:
        checkpoint = open_checkpoint(resolve_model_path(model.path), cache_dir)
        check_kernels(model, checkpoint.config)
        divided.append(divide_model(model, checkpoint, spec, layout_of, spec.core.slab_bytes))
    return divided


class CpuShardLoader(RankShardLoader):
    """See `RankShardLoader`; raises what `divide_models` raises."""

    device = torch.device("cpu")
    most_drafts = sys.maxsize

    def __init__(self, spec: MeshSpec, environment: RankEnvironment, cache_dir: Path) -> None:
        self._spec = spec
        self._environment = environment
        self._cache_dir = cache_dir
        self._inside = environment.rank % spec.mesh.replica_size
        self._models = divide_models(spec, cache_dir)
        self._loaded: dict[str, tuple[StageWeights, TensorGroup]] = {}

    @property
    def models(self) -> list[DividedModel[ModelSpec]]:
        return self._models

    def load(self, store: Any, group: TensorGroup) -> dict[str, int]:
        spec, local_ranks = self._spec, self._environment.local_world_size
        self.use_threads(0)
        check_shard_memory(spec, self._models, self._inside, local_ranks, available_memory())
        files = [(model.spec.name, model.checkpoint) for model in self._models]
        fingerprints = check_checkpoint_hashes(self._environment, store, files, spec.load_seconds)
        sizes: dict[str, int] = {}
        for model in self._models:
            name, share = model.spec.name, model.shares[self._inside]
            shard = ShardCheckpoint(model.checkpoint, share, fingerprints[name])
            self._loaded[name] = load_weights(shard, share, model.spec, self._cache_dir), group
            sizes[name] = linear_bytes(shard, held_projections(shard, share), model.spec.compute)
        return sizes

    def arena_capacity(self, profile_step: ProfileStep) -> int:
        return self._spec.core.arena_bytes

    def stages(self, arena_bytes: int) -> dict[str, RankModel]:
        arena = allocate_arena(arena_bytes)
        return {model.spec.name: self._stage(model, arena) for model in self._models}

    def _stage(self, model: DividedModel[ModelSpec], arena: torch.Tensor) -> RankModel:
        weights, group = self._loaded[model.spec.name]
        layout = layout_of(model.spec, weights.config)
        # No position lies beyond what the arena holds, whatever length a file claims.
        positions = min(model.max_context, arena.numel() // model.layout.bytes_per_token)
        attention_type: type[AttentionBackend] = CpuAttention if cpu.AVAILABLE else ReferenceAttention
        attention = attention_type(weights.config, layout, arena, rotary_table(weights.config, positions))
        addresses = BlockAddresses(layout.block_size, model.layout.block_bytes, self.slab_bytes)
        # Adapters lose no more than the weights that they are added to.
        storage: Storage = "float32" if model.spec.compute == "float32" else "bfloat16"
        slots = model.spec.max_adapters
        adapters = TorchAdapterBank(weights.config, slots, storage) if slots else None
        stage = CpuStage(weights, attention, addresses, group, adapters)
        widths = model.vocabulary_widths(self._spec.mesh.tensor)
        return RankModel(stage, model.shares[self._inside], widths, model.config)

    def knobs(self, file: Path | None) -> LiveKnobs:
        return LiveKnobs(start_knobs(self._spec.core), None if file is None else KnobsFile(file))

    @property
    def slab_bytes(self) -> int:
        return self._spec.core.slab_bytes

    def use_threads(self, threads: int) -> None:
        part = self._spec.core.threads or max(1, len(os.sched_getaffinity(0)) // self._environment.local_world_size)
        use_threads(threads or part)


def check_shard_memory(
    spec: MeshSpec, models: list[DividedModel[ModelSpec]], inside: int, local_ranks: int, available: int
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
