"""One process of a mesh, leader or follower: its connections, its shards, and the runner built from both.

Shards are loaded on the rank's own device: weights repacked for the kernels, the largest step measured, the arena
sized. Ranks read only their own shards, so every machine's model files are compared, with one hash per machine.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch

from inference_core.device.batch import NoGraphs
from inference_core.device.block_tables import BlockTables, StepBuckets
from inference_core.device.cards import MemoryProfile, profile_cuda, profile_host
from inference_core.device.device_decoder import DeviceDecoder, of_one_rank
from inference_core.device.load_device_core import (
    DTYPES,
    MOST_DRAFTS,
    Profile,
    adapter_bank,
    buckets_of,
    capacity_of,
    device_knobs,
    device_layout,
    graphs_of,
)
from inference_core.device.weights import device_embedding, stored_experts, stored_linears, weight_bytes
from inference_core.engine.live_knobs import LiveKnobs
from inference_core.errors import MeshError
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import available_memory
from inference_core.models.transformer import rotary_table
from inference_core.models.weights import load_layers, vector
from inference_core.native.control_groups import usable_cpus
from inference_core.parallel.collectives import Connections, TensorGroup, check_world, wait_for_device
from inference_core.parallel.mesh import MeshSpec, RankEnvironment, RankShare
from inference_core.parallel.messages import ModelCommand, RunStep, UseThreads
from inference_core.parallel.rank_runner import DeviceStage, RankModel, RankRunner
from inference_core.parallel.shards import FINAL_NORM, DividedModel, ShardCheckpoint, divide_model, held_projections
from inference_core.step_plan import ScheduledSequence
from inference_core.triton_kernels.layer_cache import LayerCache


def check_checkpoint_hashes(
    environment: RankEnvironment, store: Any, files: Iterable[tuple[str, Checkpoint]], seconds: float
) -> dict[str, str]:
    """Return the content hash of every model by name. Each machine's first rank hashes the files, unless cached.

    `files`: names with checkpoints, the same on all ranks. `seconds`: timeout for the other ranks' hashes.
    Raises MeshError if this machine's file differs from that of the first machine.
    """
    machine = environment.rank // environment.local_world_size
    agreed: dict[str, str] = {}
    for name, checkpoint in files:
        own, first = f"file/{machine}/{name}", f"file/0/{name}"
        if environment.local_rank == 0:
            store.set(own, checkpoint.fingerprint)
        store.wait([own, first], timedelta(seconds=seconds))
        agreed[name] = store.get(own).decode()
        if agreed[name] != store.get(first).decode():
            raise MeshError(
                f"{name}: the file {checkpoint.path} on machine {machine} differs from machine 0's; copy that one"
            )
    return agreed


logger = logging.getLogger(__name__)
# Computes a step on this and all other ranks, and waits for it.
ProfileStep = Callable[[dict[str, RankModel], RunStep], None]


class DeviceShardLoader:
    """Loads one rank's shards of a mesh's models.

    The constructor divides the models without reading weights. Then call `load`, `arena_capacity` and `stages`, each
    on all ranks before the next on any. Raises ModelFileError, MeshError and MemoryPlanError for what cannot be divided
    or placed. `profile` measures the memory of the largest step; None: the device's own profiler.
    """

    # How many drafted tokens a step may have; memory is reserved for their logits.
    most_drafts = MOST_DRAFTS

    def __init__(
        self, spec: MeshSpec, environment: RankEnvironment, cache_dir: Path, profile: Profile | None = None
    ) -> None:
        self._spec = spec
        self._environment = environment
        self._cache_dir = cache_dir
        self._rank = environment.rank
        self.device = rank_device(spec, environment)
        host_bytes = spec.host_bytes or available_memory() // environment.local_world_size
        self._profile = profile or (profile_cuda if self.device.type == "cuda" else profile_host(host_bytes))
        self._models = [
            divide_model(
                model,
                open_checkpoint(resolve_model_path(model.path), cache_dir),
                spec.mesh,
                uneven=spec.uneven_splits,
                slab_bytes=spec.core.slab_bytes,
            )
            for model in spec.core.models
        ]
        self._decoders: dict[str, DeviceDecoder] = {}

    @property
    def models(self) -> list[DividedModel]:
        return self._models

    def load(self, store: Any, group: TensorGroup) -> dict[str, int]:
        """Read only this rank's weights. Returns their bytes by model.

        Raises MemoryPlanError, with the arithmetic, if they do not fit, and MeshError if this machine's files differ
        from those of the other machines.
        """
        self.use_threads(0)
        files = [(model.spec.name, model.checkpoint) for model in self._models]
        fingerprints = check_checkpoint_hashes(self._environment, store, files, self._spec.load_seconds)
        for model in self._models:
            name = model.spec.name
            share = model.shares[self._rank]
            shard = ShardCheckpoint(model.checkpoint, share, fingerprints[name])
            self._decoders[name] = load_shard(model, shard, share, self.device, self._cache_dir, group)
        return {name: weight_bytes(decoder) for name, decoder in self._decoders.items()}

    def arena_capacity(self, profile_step: ProfileStep) -> int:
        """Bytes left on this rank for keys and values during the largest step, besides what captured steps hold.

        Raises MemoryPlanError, with the arithmetic, if none are left.
        """
        core, slab = self._spec.core, self.slab_bytes
        stages = self.stages(slab)

        def profiled(model: DividedModel, tokens: int) -> MemoryProfile:
            step = largest_step(model, tokens, core.max_num_seqs, self.most_drafts)
            return self._profile(self.device, partial(profile_step, stages, step))

        profiles = [profiled(model, core.max_num_batched_tokens) for model in self._models]
        largest = max(profiles, key=lambda profile: profile.activations)
        if graphs_of(core, self.device) is not None:
            sizes = [buckets_of(capacity_of(core, model.spec)).most_tokens for model in self._models]
            captured = [profiled(model, size).activations for model, size in zip(self._models, sizes, strict=True)]
            largest = replace(largest, graphs=sum(captured))
        for line in largest.lines(core.memory_utilization, slab):
            logger.info("rank %d on %s: %s", self._environment.rank, self.device, line)
        return largest.arena_bytes(core.memory_utilization, slab)

    def stages(self, arena_bytes: int) -> dict[str, RankModel]:
        """Build every model's stage over an arena of `arena_bytes`."""
        arena = torch.zeros(arena_bytes, dtype=torch.uint8, device=self.device)
        return {model.spec.name: self._stage(model, arena) for model in self._models}

    def _stage(self, model: DividedModel, arena: torch.Tensor) -> RankModel:
        spec, share = self._spec, model.shares[self._rank]
        decoder, capacity = self._decoders[model.spec.name].over(arena), capacity_of(spec.core, model.spec)
        longest = -(-model.max_context // model.layout.block_size)
        # Never on the CPU, where gloo's sums wait for the host. Without graphs, padding a step only costs.
        make_graphs = graphs_of(spec.core, self.device)
        stage = DeviceStage(
            decoder,
            device_layout(model.spec, decoder.config),
            BlockTables(model.layout, self.slab_bytes, rows=capacity.sequences, row_blocks=longest),
            capacity,
            graphs=(make_graphs or NoGraphs)(),
            buckets=buckets_of(capacity) if make_graphs else StepBuckets(),
            # One per micro-batch, so that a leader never waits within a step, where a lost rank would hang it.
            staging_buffers=spec.max_micro_batches if spec.mesh.pipeline > 1 else 1,
        )
        return RankModel(stage, share, model.vocabulary_widths(spec.mesh.tensor), model.config, spec.mesh.pipeline)

    def knobs(self, file: Path | None) -> LiveKnobs:
        """The models' initial knobs; `file` stores changes that outlast the process."""
        return device_knobs(self._spec.core, {m.spec.name: m.layout for m in self._models}, file)

    @property
    def slab_bytes(self) -> int:
        return self._spec.core.slab_bytes

    def use_threads(self, threads: int) -> None:
        """Set the threads of a rank that computes on the CPU (0: its share of the machine's); ignored on cards."""
        if self.device.type == "cpu":
            part = max(1, usable_cpus() // self._environment.local_world_size)
            torch.set_num_threads(threads or part)


def load_shard(
    model: DividedModel,
    shard: ShardCheckpoint,
    share: RankShare,
    device: torch.device,
    cache_dir: Path,
    group: TensorGroup,
) -> DeviceDecoder:
    """Load a rank's part of the network on `device`, repacked for its kernels. `over` attaches the arena later."""
    dtype = DTYPES[model.spec.activations]
    held = held_projections(shard, share)
    linears = stored_linears(shard, model.spec.compute, dtype, device, cache_dir, held)
    stacks = stored_experts(shard, model.spec.compute, dtype, device, cache_dir, held)
    head = linears["head"] if share.last else None
    layout, nowhere = device_layout(model.spec, shard.config), torch.zeros(0, dtype=torch.uint8, device=device)
    return DeviceDecoder(
        config=shard.config,
        dtype=dtype,
        embedding=device_embedding(shard, head, dtype, device) if share.first else None,
        layers=load_layers(shard, linears, device, stacks),
        caches=[LayerCache(nowhere, layout, i) for i in range(shard.config.num_layers)],
        final_norm=vector(shard, FINAL_NORM).to(device) if share.last else None,
        head=head,
        cos_sin=rotary_table(shard.config, model.max_context).to(device),
        vocabulary=share.vocabulary if group.size > 1 else None,
        rank_sum=group.all_reduce if group.size > 1 else of_one_rank,
        adapters=adapter_bank(model.spec, shard.config, device),
    )


def rank_device(spec: MeshSpec, environment: RankEnvironment) -> torch.device:
    """Return the rank's device and make it this thread's current one. Raises MeshError if the machine lacks it."""
    if spec.device == "cpu":
        return torch.device("cpu")
    local, ranks = environment.local_rank, environment.local_world_size
    devices = list(range(ranks)) if spec.devices is None else spec.devices
    if len(devices) != ranks or len(set(devices)) != ranks:
        raise MeshError(f"devices {devices} for {ranks} ranks on a machine; name {ranks} different devices")
    there = torch.cuda.device_count()
    if devices[local] >= there:
        raise MeshError(
            f"rank {environment.rank} is to compute on cuda:{devices[local]}, but this machine has {there} CUDA "
            "device(s); take fewer ranks, or name others in devices"
        )
    device = torch.device("cuda", devices[local])
    torch.cuda.set_device(device)
    return device


def largest_step(model: DividedModel, tokens: int, sequences: int, drafts: int) -> RunStep:
    """A step of the given size with rows of logits for `drafts` more tokens. All sequences write to the same unused
    blocks, and use an empty adapter slot if there are slots."""
    slot = 0 if model.spec.max_adapters else -1
    shares, left = [], tokens
    for number in range(min(sequences, tokens)):
        following = min(sequences, tokens) - number - 1
        length = max(1, min(left - following, model.max_context))
        left -= length
        table = [0] * -(-length // model.layout.block_size)
        shares.append(ScheduledSequence(str(number), [0] * length, 0, table, None, adapter=slot))
    rows, end = [], 0
    for share in shares:
        end += len(share.token_ids)
        rows.append(end - 1)
    drafted = sorted(set(range(end)) - set(rows))[:drafts]
    return RunStep(model.spec.name, shares, sorted([*rows, *drafted]))


class Rank:
    """The constructor divides the models. Then call `connect`, `load`, `arena_capacity` and `allocate_arena`, each on
    all ranks before the next on any.

    Raises what dividing raises (see `DeviceShardLoader`), before it waits for other ranks.
    """

    def __init__(self, environment: RankEnvironment, spec: MeshSpec, cache_dir: Path) -> None:
        check_world(environment, spec.mesh)
        self._environment = environment
        self._spec = spec
        self.loader = DeviceShardLoader(spec, environment, cache_dir)
        self.connections: Connections
        self.runner: RankRunner

    def connect(self, store: Any) -> None:
        """Join the other ranks' process groups."""
        spec = self._spec
        self.connections = Connections(self._environment, spec.mesh, store, self.loader.device, spec.step_seconds)

    def load(self, store: Any) -> dict[str, int]:
        """Read this rank's weights. Returns their bytes by model."""
        return self.loader.load(store, self.connections.group)

    def arena_capacity(self, check_ranks: Callable[[], None]) -> int:
        """Bytes left for keys and values during the largest step. `check_ranks`: see `wait_for_device`."""

        def profile_step(models: dict[str, RankModel], step: RunStep) -> None:
            self._runner(models).run(step)
            wait_for_device(self.loader.device, check_ranks, self._spec.load_seconds)

        return self.loader.arena_capacity(profile_step)

    def allocate_arena(self, arena_bytes: int) -> None:
        """Allocate the arena and build `runner`, which then executes commands."""
        self.runner = self._runner(self.loader.stages(arena_bytes))

    def execute(self, command: ModelCommand | UseThreads) -> None:
        """Execute a command without a result. Raises what `RankRunner.execute` raises."""
        if isinstance(command, UseThreads):
            self.loader.use_threads(command.threads)
        else:
            self.runner.execute(command)

    def _runner(self, models: dict[str, RankModel]) -> RankRunner:
        return RankRunner(
            self._environment.rank,
            self._spec.mesh,
            models,
            self.connections.group,
            self.connections.links,
            max_micro_batches=self._spec.max_micro_batches,
            min_micro_batch_tokens=self._spec.min_micro_batch_tokens,
        )
