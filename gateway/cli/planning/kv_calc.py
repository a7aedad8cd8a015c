"""`aio kv-calc`: the arithmetic of a KV cache, of the weights and of model placement, line by line."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from gateway.cli.options import echo_answer, json_option
from inference_core.errors import CoreError, ModelFileError
from inference_core.kv_cache.layout import WindowGroups
from inference_core.kv_cache.memory_plan import GB, Devices, KVDemand, MemoryPlan, format_bytes, plan_memory
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.decoder_tensors import SHAPES, decoder_tensors
from inference_core.loaders.decoder_tensors import shape as known_shape
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import Kind, PackedTensor
from inference_core.model_config import ModelConfig
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.parallel.mesh import Mesh
from inference_core.placement.hardware import Device, Machines, Workload, cold_start_line, read_devices
from inference_core.placement.hardware import device as known_device
from inference_core.placement.planner import place
from inference_core.placement.rank_memory import Placement
from inference_core.placement.weight_formats import PlacedDraft, WeightFormat, weight_format
from tiers.catalog.catalog import Catalog
from tiers.catalog.gpu_group import GpuGroupSpec, GpuModelSpec
from tiers.catalog.load import load_catalog


@click.command("kv-calc")
@click.option("--model", metavar="PATH", help="Take the shape from a GGUF file or a Hugging Face folder.")
@click.option("--shape", metavar="NAME", help="Take the shape of a known model, such as llama-3.3-70b.")
@click.option("--catalog", metavar="NAME|FILE", help="Explain every model of a catalogue.")
@click.option("--layers", type=click.IntRange(min=1), help="Decoder layers.")
@click.option("--heads", type=click.IntRange(min=1), help="Query heads.")
@click.option("--kv-heads", type=click.IntRange(min=1), help="KV heads.  [as many as query heads]")
@click.option("--head-dim", type=click.IntRange(min=1), default=128)
@click.option("--length", type=click.IntRange(min=1), default=8192, help="Tokens per sequence.")
@click.option("--batch", type=click.IntRange(min=1), default=1, help="Number of sequences.")
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16", "fp8", "int8"]), default="float16")
@click.option("--weights-gb", type=click.FloatRange(min=0), help="Size of the weights in GB (10^9 bytes).")
@click.option("--device-gb", type=click.FloatRange(min=0), help="Memory of one device in GB.")
@click.option("--devices", type=click.IntRange(min=1), help="Number of devices of the machine.  [1]")
@click.option("--usable-share", type=click.FloatRange(0, 1, min_open=True), default=0.9)
@click.option("--device", "device_name", metavar="NAME", help="Plan a placement on these devices: l4, h100, ...")
@click.option("--hardware", metavar="FILE", type=click.Path(path_type=Path), help="Custom hardware catalogue.")
@click.option("--weights", metavar="FORMAT", help="bfloat16, fp8, awq-int4, q4_k, ...  [the device's best]")
@click.option("--nodes", type=click.IntRange(min=1), default=1, help="Number of machines.")
@click.option("--island", type=click.IntRange(min=1), help="Devices joined by the fast link.  [all of a machine]")
@click.option("--tensor", type=click.IntRange(min=1), help="Tensor parallel size.  [as few as suffice]")
@click.option("--pipeline", type=click.IntRange(min=1), help="Pipeline stages.  [as few as suffice]")
@click.option("--max-watts", type=click.FloatRange(min=0, min_open=True), help="Power limit of a device.")
@click.option("--host-gb", type=click.FloatRange(min=0), show_default=False, default=0.0, help="Host memory in GB.")
@click.option("--uneven", is_flag=True, help="Allow heads and layers that the devices do not divide.")
@json_option
def kv_calc(model: str | None, shape: str | None, catalog: str | None, as_json: bool, **options: Any) -> None:
    """Calculate the bytes of a KV cache from a model's shape, and whether it fits with the weights.

    With --device, plan the placement: which devices share layers, which hold stages, how many copies
    there is room for, what each rank holds, how many sequences fit, and which rule decided each of it.

    \b
    aio kv-calc --layers 80 --heads 64 --kv-heads 8 --batch 32 --weights-gb 40 --device-gb 24 --devices 4
    aio kv-calc --shape llama-3.3-70b --weights awq-int4 --device l4 --devices 4
    aio kv-calc --catalog datacenter
    """
    sources = [name for name, value in (("--model", model), ("--shape", shape), ("--catalog", catalog)) if value]
    if len(sources) > 1:
        raise click.UsageError(f"{' and '.join(sources)} name different models; give one of them")
    if catalog is not None:
        found = explain_catalog(catalog, options)
        echo_answer(as_json, found, "\n\n".join("\n".join([entry.title, *entry.lines]) for entry in found))
        return
    config = read_shape(model, shape)
    if options["device_name"] is not None:
        if config is None:
            raise click.UsageError("to place a model, give its whole shape by --model PATH or --shape NAME")
        placement = place_model(config, options)
        echo_answer(as_json, placement, "\n".join(placement.lines))
        return
    kv, plan = plan_cache(config, options)
    echo_answer(
        as_json,
        {"demand": kv, "bytes_per_token": kv.bytes_per_token, "total_bytes": kv.total_bytes, "plan": plan},
        "\n".join([*kv.explain(), *(plan.lines if plan else ())]),
    )


Options = Mapping[str, Any]
# The oldest generation that the kernels support, for catalogues that give only a card's memory.
_ANY_CARD_CAPABILITY = 8.0


class Explanation(msgspec.Struct, frozen=True):
    """One model of a catalogue: its tiers and devices, the arithmetic, and the placement if there is one."""

    title: str
    lines: list[str]
    placement: Placement | None = None


def read_shape(model: str | None, shape: str | None) -> ModelConfig | None:
    """Return the named model; None if none is named. Raises ModelFileError."""
    if model is not None:
        return open_checkpoint(resolve_model_path(model)).config
    return None if shape is None else known_shape(shape)


def plan_cache(config: ModelConfig | None, options: Options) -> tuple[KVDemand, MemoryPlan | None]:
    """Return the cache that the options describe, and a plan if they give a device size. Raises MemoryPlanError."""
    length, batch, dtype = options["length"], options["batch"], options["dtype"]
    if config is not None:
        kv = KVDemand.of_model(config, length=length, batch=batch, dtype=dtype)
    elif options["layers"] is None or options["heads"] is None:
        raise click.UsageError("give --model PATH, --shape NAME or --catalog NAME, or --layers and --heads")
    else:
        kv = KVDemand(
            num_layers=options["layers"],
            num_heads=options["heads"],
            num_kv_heads=options["kv_heads"] or options["heads"],
            head_dim=options["head_dim"],
            length=length,
            batch=batch,
            dtype=dtype,
        )
    if options["device_gb"] is None:
        return kv, None
    cards = Devices(
        bytes_each=int(options["device_gb"] * GB), count=options["devices"] or 1, usable_share=options["usable_share"]
    )
    return kv, plan_memory(devices=cards, weight_bytes=int((options["weights_gb"] or 0) * GB), kv=kv)


def place_model(config: ModelConfig, options: Options) -> Placement:
    """Place the model on the devices of the options. Raises PlacementError and MeshError."""
    machines = Machines(
        device=_device(options),
        devices_per_node=options["devices"] or 1,
        nodes=options["nodes"],
        island=options["island"],
    )
    form = None if options["weights"] is None else weight_format(options["weights"])
    return place(config, machines, _workload(options), form, _mesh(options))


def explain_catalog(name: str, options: Options) -> list[Explanation]:
    """Explain every model of a catalogue: on CPU cores as loaded, on GPU groups as placed.

    `--device`, `--devices` and similar options replace the catalogue's GPUs.
    """
    catalog = load_catalog(name)
    found = [_explain_core_model(catalog, model) for model in catalog.core.models]
    return found + [
        _explain_gpu_model(catalog, group, model, options) for group in catalog.gpu_groups for model in group.models
    ]


def _device(given: Options) -> Device:
    name = given["device_name"]
    if given["hardware"] is None:
        found = known_device(name)
    else:
        listed = read_devices(given["hardware"])
        if name not in listed:
            raise click.UsageError(f"{given['hardware']} has no device '{name}'; it has {', '.join(listed)}")
        found = listed[name]
    if given["device_gb"] is None:
        return found
    return msgspec.structs.replace(found, memory_bytes=int(given["device_gb"] * GB))


def _workload(given: Options) -> Workload:
    return Workload(
        length=given["length"],
        batch=given["batch"],
        kv_dtype=given["dtype"],
        usable_share=given["usable_share"],
        max_watts=given["max_watts"],
        host_bytes=int(given["host_gb"] * GB),
        uneven_splits=given["uneven"],
    )


def _mesh(given: Options) -> Mesh | None:
    """Return the requested mesh; one of its two sizes implies 1 for the other."""
    if given["tensor"] is None and given["pipeline"] is None:
        return None
    return Mesh(tensor=given["tensor"] or 1, pipeline=given["pipeline"] or 1)


def _title(catalog: Catalog, model: str, where: str) -> str:
    tiers = ", ".join(str(tier.number) for tier in catalog.tiers if tier.model == model)
    targets = ", ".join(target for target, draft in catalog.drafts.items() if draft == model)
    return f"{model} ({where}), tier {tiers or 'none'}{f', drafts for {targets}' if targets else ''}"


class _ShapeAlone(Checkpoint):
    """A model without its file, as Q4_0: the sizes of its tensors, and no numbers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(Path(), None)
        self._config = config

    @property
    def config(self) -> ModelConfig:
        return self._config

    @cached_property
    def tensors(self) -> dict[str, PackedTensor]:
        kinds: dict[int, Kind] = {1: "F32", 2: "Q4_0"}
        shapes = decoder_tensors(self._config)
        return {name: PackedTensor(kinds[len(shape)], shape, np.empty(0)) for name, shape in shapes.items()}


def _explain_core_model(catalog: Catalog, model: ModelSpec) -> Explanation:
    title = _title(catalog, model.name, "this machine's CPU")
    from inference_core.loading.load_core import max_context_of, weight_bytes

    checkpoint: Checkpoint
    source: list[str] = []
    try:
        checkpoint = open_checkpoint(resolve_model_path(model.path))
    except ModelFileError as error:
        named = max((name for name in SHAPES if model.name.startswith(name)), key=len, default=None)
        if named is None:
            return Explanation(title, [f"its shape is in its file, which is missing: {error}"])
        checkpoint = _ShapeAlone(SHAPES[named])
        source = [f"its file is missing ({model.path}); by its name it has the shape of {named}, assumed Q4_0"]
    config, core = checkpoint.config, catalog.core
    length = max_context_of(model, config)
    weights = weight_bytes(checkpoint, model)
    # Every CPU dtype can be planned with.
    demand = KVDemand.of_model(config, length=length, batch=1, dtype=model.kv_dtype, window_groups=model.window_groups)
    return Explanation(
        title,
        [
            *source,
            f"weights: {format_bytes(weights)} packed for {model.compute}",
            *demand.explain()[:-1],
            *_arena_lines(core, model, config, length),
            cold_start_line(weights),
        ],
    )


def _arena_lines(core: CoreSpec, model: ModelSpec, config: ModelConfig, length: int) -> list[str]:
    from inference_core.loading.load_core import served_layout

    layout = served_layout(model, config)
    slabs, per_slab = core.arena_bytes // core.slab_bytes, layout.blocks_per_slab(core.slab_bytes)
    if layout.window:
        blocks, each = slabs * per_slab, WindowGroups(layout).blocks_for(length)
        return [
            f"arena: {format_bytes(core.arena_bytes)} for {len(core.models)} model(s) = {slabs:,} slabs x {per_slab} "
            f"blocks of {layout.num_layers} layers x {model.block_size} tokens",
            f"sequences: {blocks:,} blocks / {each:,} for {length:,} tokens = {blocks // each:,} at the same time",
        ]
    tokens = slabs * per_slab * model.block_size
    return [
        f"arena: {format_bytes(core.arena_bytes)} for {len(core.models)} model(s) = {slabs:,} slabs x {per_slab} "
        f"blocks x {model.block_size} tokens = {tokens:,} tokens if this model uses all of it",
        f"sequences: {tokens:,} tokens / {length:,} = {tokens // length:,} at the same time",
    ]


def _explain_gpu_model(catalog: Catalog, group: GpuGroupSpec, model: GpuModelSpec, given: Options) -> Explanation:
    title = _title(catalog, model.name, f"{group.name}, {group.cards} x {group.card_bytes / GB:g} GB")
    draft = group.draft_of(model)
    placed = [model] if draft is None else [model, draft]
    # A placement covers one model with its draft.
    if any(m.shape is None for m in placed) or len(group.models) > len(placed):
        start = cold_start_line(-(-sum(each.weight_bytes for each in group.models) // group.cards))
        return Explanation(title, [*group.memory_lines(), start])
    try:
        placement = _place_in_group(group, model, draft, given)
    except CoreError as error:
        return Explanation(title, str(error).splitlines())
    stated = [f"the catalogue states {format_bytes(m.weight_bytes)} of weights of {m.name}" for m in placed]
    return Explanation(title, [*stated, *placement.lines], placement)


def _place_in_group(group: GpuGroupSpec, model: GpuModelSpec, draft: GpuModelSpec | None, given: Options) -> Placement:
    if given["device_name"] is None:
        card = Device(
            name=f"card of {group.card_bytes / GB:g} GB",
            kind="gpu",
            memory_bytes=group.card_bytes,
            compute_capability=_ANY_CARD_CAPABILITY,
        )
    else:
        card = _device(given)
    machines = Machines(
        device=card, devices_per_node=given["devices"] or group.cards, nodes=given["nodes"], island=given["island"]
    )
    asked = _mesh(given)
    if asked is None and given["device_name"] is None and given["devices"] is None:
        asked = Mesh(tensor=group.tensor, pipeline=group.pipeline)  # as the catalogue has it
    form: WeightFormat = weight_format(given["weights"] or model.weights)
    placed_draft = None
    if draft is not None:
        placed_draft = PlacedDraft(
            name=draft.name, config=_shape_of(draft), form=weight_format(draft.weights), kv_dtype=draft.kv_dtype
        )
    workload = msgspec.structs.replace(
        _workload(given),
        length=min(given["length"], model.max_context),
        kv_dtype=model.kv_dtype,
        usable_share=group.memory_utilization,
    )
    return place(_shape_of(model), machines, workload, form, asked, placed_draft)


def _shape_of(model: GpuModelSpec) -> ModelConfig:
    assert model.shape is not None  # only models with one are placed
    return SHAPES[model.shape]
