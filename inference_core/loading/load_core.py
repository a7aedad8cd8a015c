"""Builds a Core from its specification: opens files, checks memory, maps weights, allocates the arena."""

import logging
import threading
import time
from pathlib import Path
from typing import get_args

import torch
from msgspec.structs import replace

from inference_core.attention import ReferenceAttention
from inference_core.engine.core import Core
from inference_core.engine.live_knobs import KnobsFile, LiveKnobs, start_knobs
from inference_core.errors import MemoryPlanError, ModelFileError
from inference_core.execution.block_memory import allocate_arena
from inference_core.execution.logits_runner import DecoderRunner, LogitsRunner
from inference_core.execution.native_runner import NativeRunner
from inference_core.kv_cache.layout import CpuKVDtype, KVLayout, grouped
from inference_core.kv_cache.memory_plan import format_bytes
from inference_core.linear.panels import BYTES_PER_WEIGHT, panel_kind
from inference_core.loaders.checkpoint import Checkpoint, describe_sparsity
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.outliers import load_decoder
from inference_core.loading.prepare_core import load_adapters, paired_drafts, pin_prefixes
from inference_core.lora.packing import Storage, TorchAdapterBank
from inference_core.model_config import ModelConfig
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.models.transformer import Decoder, rotary_table
from inference_core.models.weights import Projection, are_packed, projections
from inference_core.native import control_groups, cpu
from inference_core.native.control_groups import usable_cpus
from inference_core.protocol import Knobs, ModelInfo
from inference_core.protocol.kv_blocks import KVIdentity

logger = logging.getLogger(__name__)


def load_core(
    spec: CoreSpec,
    cache_dir: Path,
    *,
    knobs: Knobs | None = None,
    knobs_file: Path | None = None,
    first_model: str | None = None,
) -> Core:
    """Load every model of `spec` on this machine's CPU.

    `knobs` replaces the initial knobs of `spec`; `knobs_file` stores knob changes that outlast the process. With a
    `first_model` the core is returned once it is loaded, and all else that takes no packing: models whose weights must
    be packed first are loaded by a thread meanwhile, one after another, and requests for them wait.

    Raises ModelFileError for a missing or corrupt file, MemoryPlanError, with the arithmetic, if it does not fit, and
    PrefixError for a prefix that cannot be pinned.
    """
    start = start_knobs(spec)
    if knobs is not None:
        start = dict.fromkeys(start, replace(knobs, threads=knobs.threads or spec.threads or 0))
    live = LiveKnobs(start, None if knobs_file is None else KnobsFile(knobs_file))
    use_threads(max((k.threads for k in live.active.values()), default=0))
    opened = {m.name: (m, open_checkpoint(resolve_model_path(m.path), cache_dir)) for m in spec.models}
    check_memory(spec, [checkpoint for _, checkpoint in opened.values()], available_memory())
    arena = allocate_arena(spec.arena_bytes)
    drafts = paired_drafts(spec.models)
    later = _loaded_later(opened, drafts, first_model, cache_dir)
    for name in later:
        check_kernels(opened[name][0], opened[name][1].config)
    empty = {n: _empty_runner(m, c, c.config, spec, arena) for n, (m, c) in opened.items() if n in later}
    runners = {name: empty.get(name) or runner_of(m, c, spec, arena, cache_dir) for name, (m, c) in opened.items()}
    core = Core(
        runners,
        arena_bytes=spec.arena_bytes,
        slab_bytes=spec.slab_bytes,
        knobs=live,
        use_threads=use_threads,
        threads_in_use=cpu.threads_in_use,
        drafts=drafts,
        pinned_share=spec.pinned_share,
    )
    load_adapters(core, spec.models)
    pin_prefixes(core, spec.models, spec.prefixes)
    if later:
        waiting, closed = [(empty[name], *opened[name]) for name in later], threading.Event()
        core.call_at_close(closed.set)
        threading.Thread(target=_load_runners, args=(waiting, cache_dir, closed), name="aio-load", daemon=True).start()
    return core


def _loaded_later(
    opened: dict[str, tuple[ModelSpec, Checkpoint]], drafts: dict[str, str], first_model: str | None, cache_dir: Path
) -> list[str]:
    """Return the models that `first_model` does not wait for, drafts first: their weights must be packed, and no model
    that is loaded before drafts with them."""
    if first_model is None or not cpu.AVAILABLE:
        return []
    unpacked = [n for n, (m, c) in opened.items() if n != first_model and not are_packed(c, m.compute, cache_dir)]
    needed = {drafts.get(name) for name in opened if name not in unpacked}
    return sorted((name for name in unpacked if name not in needed), key=lambda name: name not in drafts.values())


def _load_runners(
    waiting: list[tuple[NativeRunner, ModelSpec, Checkpoint]], cache_dir: Path, closed: threading.Event
) -> None:
    """Give the runners their weights, one after another, until their core is closed."""
    for runner, spec, checkpoint in waiting:
        if closed.is_set():
            return
        began = time.perf_counter()
        try:
            runner.load(load_decoder(checkpoint, spec.compute, cache_dir))
            _log_loaded(spec, checkpoint, began)
        except Exception as error:
            runner.load_error = error
            # A process that ends ends its pools of threads first.
            if not closed.is_set():
                logger.error("%s cannot be loaded: %s", spec.name, error)


def use_threads(threads: int | None) -> None:
    """Set the kernels' threads (0 or None: one per CPU); torch gets one if the native thread pool is used."""
    if cpu.AVAILABLE:
        cpu.set_threads(threads or None)
        torch.set_num_threads(1)
    else:
        logger.warning("no native CPU kernels, using slower plain torch: install a C++ compiler and reinstall")
        torch.set_num_threads(threads or usable_cpus())


def layout_of(spec: ModelSpec, config: ModelConfig) -> KVLayout:
    """The geometry of blocks that hold all layers of the model."""
    return KVLayout(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=spec.block_size,
        dtype=spec.kv_dtype,
    )


def served_layout(spec: ModelSpec, config: ModelConfig) -> KVLayout:
    """The geometry of the model's blocks in a core, where window layers may have blocks of their own."""
    layout = layout_of(spec, config)
    if not (spec.window_groups and cpu.AVAILABLE):
        return layout
    return grouped(layout, config, max_context_of(spec, config))


def weight_bytes(checkpoint: Checkpoint, spec: ModelSpec) -> int:
    """Bytes of the linear layers as packed by `linear.panels`, computed from shapes."""
    return linear_bytes(checkpoint, list(projections(checkpoint)), spec.compute)


def linear_bytes(checkpoint: Checkpoint, wanted: list[Projection], compute: Compute) -> int:
    """Bytes of the `wanted` linear layers, packed; see `weight_bytes`."""
    tensors = (checkpoint.tensors[name] for projection in wanted for name in projection.tensors)
    return int(sum(t.shape[0] * t.shape[1] * BYTES_PER_WEIGHT[panel_kind(t, compute)] for t in tensors))


def max_context_of(spec: ModelSpec, config: ModelConfig) -> int:
    """Tokens of prompt and answer together: the requested number, at most the model's trained length."""
    return min(spec.max_context or config.max_position, config.max_position)


def check_kernels(spec: ModelSpec, config: ModelConfig) -> None:
    """Raises ModelFileError for shapes and caches that the CPU kernels cannot compute."""
    if spec.kv_dtype not in get_args(CpuKVDtype):
        raise ModelFileError(
            f"{spec.name}: on the CPU kv_dtype is one of {', '.join(get_args(CpuKVDtype))}, not {spec.kv_dtype}; "
            "change kv_dtype, or serve the model on a CUDA device"
        )
    if cpu.AVAILABLE and (config.head_dim % 16 or spec.block_size % 16):
        raise ModelFileError(
            f"{spec.name}: the CPU kernels need head_dim and block_size in multiples of 16, "
            f"not {config.head_dim} and {spec.block_size}"
        )


def available_memory() -> int:
    """Bytes that can be allocated without swapping, on this machine and in this process's control groups."""
    if (available := control_groups.available_memory()) is None:
        raise MemoryPlanError("/proc/meminfo does not say how much memory is available")
    return available


def check_memory(spec: CoreSpec, checkpoints: list[Checkpoint], available: int) -> None:
    """Raise MemoryPlanError, with every term of the sum, if the core does not fit in `available` bytes."""
    models = list(zip(spec.models, checkpoints, strict=True))
    needs = [(f"weights of {model.name} ({model.compute})", weight_bytes(c, model)) for model, c in models]
    needs.append(("KV arena", spec.arena_bytes))
    total = sum(size for _, size in needs)
    if total > available:
        needs += [("sum", total), ("available", available)]
        lines = [f"  {name}: {format_bytes(size)}" for name, size in needs]
        raise MemoryPlanError("\n".join(["this core does not fit:", *lines]))
    for model, checkpoint in models:
        layout = served_layout(model, checkpoint.config)
        if layout.block_bytes > spec.slab_bytes:
            raise MemoryPlanError(
                f"{model.name}: a block of {layout.block_size} tokens takes {layout.block_bytes} bytes, "
                f"more than a slab of {spec.slab_bytes}; make slab_bytes larger or block_size smaller"
            )


def runner_of(
    spec: ModelSpec, checkpoint: Checkpoint, core: CoreSpec, arena: torch.Tensor, cache_dir: Path
) -> LogitsRunner:
    """Build the runner of `checkpoint` under `spec`, over `arena` uint8 [bytes]. Raises ModelFileError."""
    began = time.perf_counter()
    check_kernels(spec, checkpoint.config)  # Checked before weights are packed, which takes long.
    runner = runner_over(spec, checkpoint, load_decoder(checkpoint, spec.compute, cache_dir), core, arena)
    _log_loaded(spec, checkpoint, began)
    return runner


def runner_over(
    spec: ModelSpec, checkpoint: Checkpoint, decoder: Decoder, core: CoreSpec, arena: torch.Tensor
) -> LogitsRunner:
    """Build the runner of `decoder` (of `checkpoint`) over `arena` uint8 [bytes], with blocks of `served_layout`. Call
    `check_kernels` first."""
    config = decoder.config
    if cpu.AVAILABLE:
        native = _empty_runner(spec, checkpoint, config, core, arena)
        native.load(decoder)
        return native
    layout = layout_of(spec, config)
    bank = TorchAdapterBank(config, spec.max_adapters, _adapter_storage(spec)) if spec.max_adapters else None
    attention = ReferenceAttention(config, layout, arena, rotary_within(spec, config, core))
    return DecoderRunner(info_of(spec, checkpoint, config), decoder, layout, attention, core.slab_bytes, bank)


def _empty_runner(
    spec: ModelSpec, checkpoint: Checkpoint, config: ModelConfig, core: CoreSpec, arena: torch.Tensor
) -> NativeRunner:
    """Build a runner for a decoder of `config`, without its weights."""
    return NativeRunner(
        info_of(spec, checkpoint, config),
        config,
        served_layout(spec, config),
        arena,
        core.slab_bytes,
        rotary_within(spec, config, core),
        spec.max_adapters,
        _adapter_storage(spec),
    )


def _log_loaded(spec: ModelSpec, checkpoint: Checkpoint, began: float) -> None:
    logger.info("loaded %s (%s) in %.0f ms", spec.name, spec.compute, (time.perf_counter() - began) * 1e3)
    if sparsity := describe_sparsity(checkpoint):
        logger.info("%s is %s", spec.name, sparsity)


def _adapter_storage(spec: ModelSpec) -> Storage:
    # At least as exact as the weights that adapters are added to.
    return "float32" if spec.compute == "float32" else "bfloat16"


def info_of(spec: ModelSpec, checkpoint: Checkpoint, config: ModelConfig) -> ModelInfo:
    """What the runner of `checkpoint` under `spec` says of itself; `config`: its decoder's."""
    return ModelInfo(
        name=spec.name,
        model_path=spec.path,
        max_context=max_context_of(spec, config),
        vocab_size=config.vocab_size,
        weight_bytes=weight_bytes(checkpoint, spec),
        compute=spec.compute,
        weights=checkpoint.fingerprint,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        kv=KVIdentity(
            weights=checkpoint.fingerprint,
            compute=spec.compute,
            kernels=cpu.extension().instruction_set() if cpu.AVAILABLE else "torch",
            layout=served_layout(spec, config),
        ),
    )


def rotary_within(spec: ModelSpec, config: ModelConfig, core: CoreSpec) -> torch.Tensor:
    """The rotary table, float32 [positions, head_dim]: no sequence is longer than the arena of `core`, whatever maximum
    length a file claims. The knob `kv_dtype` may make room for more of them."""
    layout, longest = replace(served_layout(spec, config), dtype="int8"), max_context_of(spec, config)
    if not layout.window or layout.window_groups:
        longest = min(longest, core.arena_bytes // layout.bytes_per_token)
    return rotary_table(config, longest)
