"""Builds a Core on one CUDA device: loads weights, measures the largest step, gives the rest to the KV arena."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from inference_core.device.adapter_bank import DeviceAdapterBank
from inference_core.device.batch import CudaGraphs, Graphs, NoGraphs
from inference_core.device.block_tables import StepBuckets
from inference_core.device.cards import MemoryProfile, profile_cuda
from inference_core.device.device_decoder import DeviceDecoder
from inference_core.device.device_runner import DeviceRunner
from inference_core.device.step_inputs import Capacity
from inference_core.device.weights import load_device_decoder, stored_experts, stored_linears, weight_bytes
from inference_core.engine.core import Core
from inference_core.engine.live_knobs import KnobsFile, LiveKnobs, changed_knobs
from inference_core.errors import MemoryPlanError
from inference_core.kv_cache.layout import KVLayout
from inference_core.kv_cache.memory_plan import format_bytes
from inference_core.linear.device import DeviceScheme
from inference_core.linear.linear import Linear
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.decoder_tensors import refuse_features
from inference_core.loading.prepare_core import load_adapters, paired_drafts, pin_prefixes
from inference_core.model_config import ModelConfig
from inference_core.model_spec import DeviceCoreSpec, DeviceModelSpec
from inference_core.protocol import MOST_HOST_BLOCKS, Knobs, ModelInfo
from inference_core.protocol.kv_blocks import KVIdentity

logger = logging.getLogger(__name__)
Linears = Callable[[Checkpoint, DeviceScheme, torch.dtype, torch.device, Path], dict[str, Linear]]
Profile = Callable[[torch.device, Callable[[], object]], MemoryProfile]
# The most drafted tokens of a step: each takes a row of logits as wide as the vocabulary. Drafts pay only when few
# sequences decode, so memory for more would be wasted.
MOST_DRAFTS = 256
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def load_device_core(
    spec: DeviceCoreSpec,
    checkpoints: dict[str, Checkpoint],
    device: torch.device,
    cache_dir: Path,
    *,
    profile: Profile = profile_cuda,
    make_graphs: Callable[[], Graphs] | None = None,
    linears: Linears = stored_linears,
    title: str | None = None,
    knobs_file: Path | None = None,
) -> Core:
    """Load every model of `spec` (checkpoints by name) on `device`. The KV arena takes what is left of
    `memory_utilization` of the device. Repacked weights are cached under `cache_dir`. `linears` builds the projections;
    benchmarks replace it. `make_graphs`: what replays steps; None: `graphs_of`. `title`: the core's name in the log.
    `knobs_file`: stores knob changes that outlast the process.

    Raises ModelFileError for a bad file, MemoryPlanError, with the arithmetic, if the models do not fit, and
    PrefixError
    for a prefix that cannot be pinned.
    """
    for model in spec.models:
        refuse_features(checkpoints[model.name].path, checkpoints[model.name].config, "a GPU")
    drafts = paired_drafts(spec.models)
    make_graphs = make_graphs or graphs_of(spec, device) or NoGraphs

    def runner(model: DeviceModelSpec, decoder: DeviceDecoder, arena: torch.Tensor, graphs: Graphs) -> DeviceRunner:
        config, layout, capacity = decoder.config, device_layout(model, decoder.config), capacity_of(spec, model)
        info = ModelInfo(
            name=model.name,
            model_path=model.path,
            max_context=min(model.max_context or config.max_position, config.max_position),
            vocab_size=config.vocab_size,
            weight_bytes=weight_bytes(decoder),
            compute=model.compute,
            weights=checkpoints[model.name].fingerprint,
            kv=KVIdentity(
                weights=checkpoints[model.name].fingerprint,
                compute=f"{model.compute} {model.activations}",
                kernels=torch.cuda.get_device_name(device) if device.type == "cuda" else "device kernels on the CPU",
                layout=layout,
            ),
        )
        return DeviceRunner(
            info,
            decoder.over(arena),
            layout,
            arena,
            spec.slab_bytes,
            graphs=graphs,
            # Without graphs, padding a step only costs.
            buckets=StepBuckets() if make_graphs is NoGraphs else buckets_of(capacity),
            capacity=capacity,
        )

    placeholder = torch.zeros(spec.slab_bytes, dtype=torch.uint8, device=device)
    decoders = {
        m.name: _decoder(m, checkpoints[m.name], placeholder, spec.slab_bytes, cache_dir, linears) for m in spec.models
    }
    # All runners exist while each is profiled, since their persistent buffers share the device.
    profiled_runners = [runner(m, decoders[m.name], placeholder, make_graphs()) for m in spec.models]
    profiles = [profile(device, profiled.profile_step) for profiled in profiled_runners]
    largest = max(profiles, key=lambda p: p.activations)
    if make_graphs is not NoGraphs:
        captured = [profile(device, profiled.profile_captured_step).activations for profiled in profiled_runners]
        largest = replace(largest, graphs=sum(captured))
    for line in (*_weight_lines(spec, profiled_runners), *largest.lines(spec.memory_utilization, spec.slab_bytes)):
        logger.info("%s: %s", title or device, line)
    arena_bytes = largest.arena_bytes(spec.memory_utilization, spec.slab_bytes)
    del profiled_runners, placeholder
    arena = torch.zeros(arena_bytes, dtype=torch.uint8, device=device)
    runners = {m.name: runner(m, decoders[m.name], arena, make_graphs()) for m in spec.models}
    knobs = device_knobs(spec, {name: made.layout for name, made in runners.items()}, knobs_file)
    core = Core(
        runners,
        arena_bytes=arena_bytes,
        slab_bytes=spec.slab_bytes,
        knobs=knobs,
        drafts=drafts,
        pinned_share=spec.pinned_share,
    )
    load_adapters(core, spec.models)
    pin_prefixes(core, spec.models, spec.prefixes)
    return core


def _weight_lines(spec: DeviceCoreSpec, runners: list[DeviceRunner]) -> list[str]:
    lines = []
    for m, r in zip(spec.models, runners, strict=True):
        lines.append(f"weights of {m.name} ({m.compute}): {format_bytes(r.info.weight_bytes)}")
        if r.adapters is not None:
            slots = f"{m.max_adapters} slots for adapters of {m.name} of up to {m.max_adapter_rank} ranks"
            lines.append(f"{slots}: {format_bytes(r.adapters.slot_bytes)}")
    return lines


def capacity_of(spec: DeviceCoreSpec, model: DeviceModelSpec) -> Capacity:
    """The largest step of `model`. Most steps start few sequences, so table updates rarely exceed their array."""
    return Capacity(
        tokens=spec.max_num_batched_tokens,
        sequences=spec.max_num_seqs,
        draws=spec.max_num_seqs + MOST_DRAFTS,
        table_updates=spec.max_num_batched_tokens // 16 + 2 * spec.max_num_seqs,
        adapter_slots=model.max_adapters,
    )


def graphs_of(spec: DeviceCoreSpec, device: torch.device) -> Callable[[], Graphs] | None:
    """Return what makes the graphs that steps on `device` are replayed from; None if every kernel is launched."""
    return CudaGraphs if device.type == "cuda" and spec.capture_steps else None


def buckets_of(capacity: Capacity) -> StepBuckets:
    """The step sizes that are captured as graphs."""
    return StepBuckets.up_to(capacity.tokens, capacity.draws)


def device_knobs(spec: DeviceCoreSpec, layouts: Mapping[str, KVLayout], file: Path | None = None) -> LiveKnobs:
    """Initial knobs: steps as large as memory is reserved for, unless the specification says less, and the specified
    host memory in blocks of each model's layout. `file`: see `KnobsFile`."""
    most = {"max_num_batched_tokens": spec.max_num_batched_tokens, "max_num_seqs": spec.max_num_seqs}
    largest = msgspec.structs.replace(Knobs(), **most, prefill_chunk=spec.max_num_batched_tokens)
    start: dict[str, Knobs] = {}
    for m in spec.models:
        blocks = min(m.host_cache_bytes // layouts[m.name].block_bytes, MOST_HOST_BLOCKS)
        own = changed_knobs(largest, {"host_cache_blocks": blocks} | spec.knobs, largest)
        start[m.name] = changed_knobs(own, m.knobs, own)
    return LiveKnobs(start, None if file is None else KnobsFile(file), most)


def device_layout(model: DeviceModelSpec, config: ModelConfig) -> KVLayout:
    """The model's block geometry."""
    return KVLayout(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=model.block_size,
        dtype=model.kv_dtype,
    )


def _decoder(
    model: DeviceModelSpec,
    checkpoint: Checkpoint,
    arena: torch.Tensor,
    slab_bytes: int,
    cache_dir: Path,
    linears: Linears,
) -> DeviceDecoder:
    layout = device_layout(model, checkpoint.config)
    if layout.block_bytes > slab_bytes:
        raise MemoryPlanError(
            f"{model.name}: a block of {layout.block_size} tokens takes {layout.block_bytes} bytes, "
            f"more than a slab of {slab_bytes}; make slab_bytes larger or block_size smaller"
        )
    dtype = DTYPES[model.activations]
    made = linears(checkpoint, model.compute, dtype, arena.device, cache_dir)
    stacks = stored_experts(checkpoint, model.compute, dtype, arena.device, cache_dir)
    longest = min(model.max_context or checkpoint.config.max_position, checkpoint.config.max_position)
    decoder = load_device_decoder(checkpoint, made, layout, arena, dtype=dtype, max_context=longest, stacks=stacks)
    return replace(decoder, adapters=adapter_bank(model, checkpoint.config, arena.device))


def adapter_bank(model: DeviceModelSpec, config: ModelConfig, device: torch.device) -> DeviceAdapterBank | None:
    """The adapter slots of `model`, whole or one rank's shard of it; None if it has none."""
    if not model.max_adapters:
        return None
    dtype = DTYPES[model.activations]
    return DeviceAdapterBank(config, model.max_adapters, model.max_adapter_rank, dtype, device)
