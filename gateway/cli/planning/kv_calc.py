"""`aio kv-calc`: the arithmetic of a KV cache, of the weights and of model placement, line by line."""

from pathlib import Path
from typing import Annotated, Literal

import click
import msgspec
from msgspec import Meta

from gateway.base.field_types import Count, NotNegative, Positive
from gateway.cli.options import echo_answer, gone_option, json_option
from gateway.cli.typed_options import options_of
from inference_core.kv_cache.memory_plan import GB, Devices, KVDemand, MemoryPlan, plan_memory
from inference_core.loaders.decoder_tensors import shape as known_shape
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.model_config import ModelConfig
from inference_core.parallel.mesh import Mesh
from inference_core.placement.hardware import Device, Machines, Workload, read_devices
from inference_core.placement.hardware import device as known_device
from inference_core.placement.planner import place
from inference_core.placement.rank_memory import Placement
from inference_core.placement.weight_formats import weight_format


class DemandOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Whose keys and values are counted."""

    model: Annotated[str, Meta(title="PATH")] | None = None
    """Take the shape from a GGUF file or a Hugging Face folder."""
    shape: Annotated[str, Meta(title="NAME")] | None = None
    """Take the shape of a known model, such as llama-3.3-70b."""
    layers: Count | None = None
    """Decoder layers of the model."""
    heads: Count | None = None
    """Query heads of each layer."""
    kv_heads: Count | None = None
    """KV heads of each layer. [as many as query heads]"""
    head_dim: Count = 128
    """Size of a head."""
    length: Count = 8192
    """Tokens of each sequence."""
    batch: Count = 1
    """Number of sequences."""
    dtype: Literal["float32", "float16", "bfloat16", "fp8", "int8"] = "float16"
    """Number format of keys and values."""


class MemoryOptions(DemandOptions, frozen=True, kw_only=True):
    """What memory they must fit in, next to the weights."""

    weights_gb: NotNegative | None = None
    """Size of the weights in GB (10^9 bytes)."""
    device_gb: NotNegative | None = None
    """Memory of one device in GB."""
    devices: Count = 1
    """Number of devices of a machine."""
    usable_share: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """Share of a device's memory for weights, keys and values."""


class KvOptions(MemoryOptions, frozen=True, kw_only=True):
    """Options of `aio kv-calc`: the others plan a placement."""

    device: Annotated[str, Meta(title="NAME")] | None = None
    """Plan a placement on devices of this name, such as l4 or h100."""
    hardware: Annotated[Path, Meta(title="FILE")] | None = None
    """File that describes your own devices."""
    weights: Annotated[str, Meta(title="FORMAT")] | None = None
    """Format of the weights, such as bfloat16, fp8, awq-int4 or q4_k. [the device's best]"""
    nodes: Count = 1
    """Number of machines."""
    island: Count | None = None
    """Number of devices that the fast link joins. [all of a machine]"""
    tensor: Count | None = None
    """Tensor parallel size. [as few as suffice]"""
    pipeline: Count | None = None
    """Number of pipeline stages. [as few as suffice]"""
    max_watts: Positive | None = None
    """Power limit of a device in watts."""
    host_gb: NotNegative = 0.0
    """Host memory in GB for weights that do not fit on the devices."""
    uneven: bool = False
    """Allow numbers of heads and layers that the devices do not divide evenly."""


@click.command("kv-calc")
@gone_option("--catalog", "`aio models --catalog NAME` shows what holds each model of a catalogue")
@options_of(KvOptions)
@json_option
def kv_calc(options: KvOptions, as_json: bool) -> None:
    """Calculate the bytes of a KV cache from a model's shape, and whether it fits with the weights.

    With --device, plan the placement: which devices share layers, which hold stages, how many copies
    there is room for, what each rank holds, how many sequences fit, and which rule decided each of it.

    \b
    aio kv-calc --layers 80 --heads 64 --kv-heads 8 --batch 32 --weights-gb 40 --device-gb 24 --devices 4
    aio kv-calc --shape llama-3.3-70b --weights awq-int4 --device l4 --devices 4
    """
    if options.model is not None and options.shape is not None:
        raise click.UsageError("--model and --shape name different models; give one of them")
    config = None if options.shape is None else known_shape(options.shape)
    if options.model is not None:
        config = open_checkpoint(resolve_model_path(options.model)).config
    if options.device is not None:
        if config is None:
            raise click.UsageError("to place a model, give its whole shape by --model PATH or --shape NAME")
        placement = _place(config, options, options.device)
        echo_answer(as_json, placement, "\n".join(placement.lines))
        return
    kv = _demand(config, options)
    plan = _plan(kv, options)
    echo_answer(
        as_json,
        {"demand": kv, "bytes_per_token": kv.bytes_per_token, "total_bytes": kv.total_bytes, "plan": plan},
        "\n".join([*kv.explain(), *(plan.lines if plan else ())]),
    )


def _demand(config: ModelConfig | None, options: DemandOptions) -> KVDemand:
    if config is not None:
        return KVDemand.of_model(config, length=options.length, batch=options.batch, dtype=options.dtype)
    if options.layers is None or options.heads is None:
        raise click.UsageError("give --model PATH or --shape NAME, or --layers and --heads")
    return KVDemand(
        num_layers=options.layers,
        num_heads=options.heads,
        num_kv_heads=options.kv_heads or options.heads,
        head_dim=options.head_dim,
        length=options.length,
        batch=options.batch,
        dtype=options.dtype,
    )


def _plan(kv: KVDemand, options: MemoryOptions) -> MemoryPlan | None:
    """Return None without the size of a device. Raises MemoryPlanError."""
    if options.device_gb is None:
        return None
    cards = Devices(bytes_each=int(options.device_gb * GB), count=options.devices, usable_share=options.usable_share)
    return plan_memory(devices=cards, weight_bytes=int((options.weights_gb or 0) * GB), kv=kv)


def _place(config: ModelConfig, options: KvOptions, name: str) -> Placement:
    """Raises PlacementError and MeshError."""
    machines = Machines(
        device=_device(options, name), devices_per_node=options.devices, nodes=options.nodes, island=options.island
    )
    workload = Workload(
        length=options.length,
        batch=options.batch,
        kv_dtype=options.dtype,
        usable_share=options.usable_share,
        max_watts=options.max_watts,
        host_bytes=int(options.host_gb * GB),
        uneven_splits=options.uneven,
    )
    form = None if options.weights is None else weight_format(options.weights)
    # One of the two sizes implies 1 for the other.
    asked = options.tensor is not None or options.pipeline is not None
    mesh = Mesh(tensor=options.tensor or 1, pipeline=options.pipeline or 1) if asked else None
    return place(config, machines, workload, form, mesh)


def _device(options: KvOptions, name: str) -> Device:
    if options.hardware is None:
        device = known_device(name)
    else:
        listed = read_devices(options.hardware)
        if name not in listed:
            raise click.UsageError(f"{options.hardware} has no device '{name}'; it has {', '.join(listed)}")
        device = listed[name]
    if options.device_gb is None:
        return device
    return msgspec.structs.replace(device, memory_bytes=int(options.device_gb * GB))
