"""Measures the groups of a catalogue, one after another, in this process, next to the most that cards can do by their
data sheets: the roofline of Williams, Waterman and Patterson (2009).

A decode step reads all weights once, whatever the number of answers, and multiplies them for each; a prompt is bound by
arithmetic alone. Keys, values and attention are left out, so that long contexts stay further below.
"""

import gc
import importlib
import importlib.metadata
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from msgspec.structs import replace

from gateway import __version__
from gateway.runtime.device_report import DeviceReport, GroupSpeed, ModelSpeed, StreamSpeed
from inference_core.device.device_speed import CoreSpeed, memory_bandwidth
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.model_config import ModelConfig
from inference_core.model_spec import DeviceGroupSpec
from inference_core.parallel.load_group import load_group
from inference_core.placement.hardware import Device, reported_device
from inference_core.placement.weight_formats import model_weights
from inference_core.protocol import ModelInfo
from tiers.catalog.catalog import Catalog
from tiers.catalog.core_spec import group_spec

FAR_SHARE = 0.5
"""A figure below this share of its roofline is noted."""


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """A group's cards together: `bandwidth` in bytes per second of the cards that share a layer, `flops` in FLOP/s of
    16 bits of all of them."""

    bandwidth: float
    flops: float

    def decode(self, streams: int, config: ModelConfig, weight_bytes: int) -> float:
        """Return the most generated tokens per second of `streams` answers at once."""
        weights = model_weights(config)
        head = config.vocab_size * config.hidden_size
        reading = weight_bytes / self.bandwidth
        computing = streams * 2 * (weights.linear + head) / self.flops
        return streams / max(reading, computing)

    def prefill(self, config: ModelConfig) -> float:
        """Return the most prompt tokens per second; only a prompt's last token passes the vocabulary."""
        return self.flops / (2 * model_weights(config).linear)


def peak_of(device: Device, *, cards: int, tensor: int) -> Peak | None:
    """Return the peak of `cards` cards, of which `tensor` share a layer; None without numbers in the catalogue."""
    if device.bandwidth is None or device.flops is None:
        return None
    return Peak(bandwidth=tensor * device.bandwidth, flops=cards * device.flops)


def with_roofline(group: GroupSpeed, tensor: int, configs: dict[str, ModelConfig]) -> GroupSpeed:
    """Return `group` with the rooflines of its cards, whose layers `tensor` of them share, and with notes.

    `configs`: the shapes of its models by name.
    """
    device = reported_device(group.card)
    peak = None if device is None else peak_of(device, cards=group.cards, tensor=tensor)
    if device is None or peak is None:
        return msgspec.structs.replace(group, notes=[f"no roofline: the table of cards has no {group.card!r}"])
    models = [_with_peak(model, peak, configs[model.model]) for model in group.models]
    bounded = msgspec.structs.replace(group, bandwidth_roofline=device.bandwidth, models=models)
    return msgspec.structs.replace(bounded, notes=_far(bounded))


def _with_peak(model: ModelSpeed, peak: Peak, config: ModelConfig) -> ModelSpeed:
    """A mixture of experts has none: how many experts a step reads depends on its tokens."""
    if config.num_experts:
        return model
    decode = [
        msgspec.structs.replace(speed, roofline=peak.decode(speed.streams, config, model.weight_bytes))
        for speed in model.decode
    ]
    return msgspec.structs.replace(model, prefill_roofline=peak.prefill(config), decode=decode)


def _far(group: GroupSpeed) -> list[str]:
    """Return a sentence for every figure that is below `FAR_SHARE` of its roofline."""
    figures = [(f"{group.card} copies memory", group.bandwidth / 1e9, group.bandwidth_roofline, 1e9, "GB/s")]
    for model in group.models:
        figures.append(
            (f"prompts of {model.model}", model.prefill_tokens_per_second, model.prefill_roofline, 1.0, "tokens/s")
        )
        figures += [
            (_streams(model, speed), speed.tokens_per_second, speed.roofline, 1.0, "tokens/s") for speed in model.decode
        ]
    return [
        f"{what}: {value:,.0f} {unit}, {value * scale / most:.0%} of what the data sheet allows ({most / scale:,.0f})"
        for what, value, most, scale, unit in figures
        if most is not None and value * scale < FAR_SHARE * most
    ]


def _streams(model: ModelSpeed, speed: StreamSpeed) -> str:
    return f"{speed.streams} answer{'s' * (speed.streams > 1)} of {model.model} at once"


MANY_STREAMS = 32
_BANDWIDTH_SHARE = 0.05
Say = Callable[[str], object]
T = TypeVar("T")


def measure_groups(catalog: Catalog, cache_path: Path, seconds: float, say: Say) -> DeviceReport:
    """Measure the groups that the catalogue's tiers use, in `seconds` plus the time that their models take to load.
    `say` gets a line for each part that begins.

    Raises the errors of `load_group`, and `RuntimeError` if a model cannot compute a request.
    """
    specs = [group_spec(catalog, group.name) for group in catalog.served_groups]
    used = {tier.model for tier in catalog.tiers}
    models = {spec.name: [model.name for model in spec.core.models if model.name in used] for spec in specs}
    measures = sum(len(models[spec.name]) * (4 if spec.device == "cuda" else 3) for spec in specs)
    each = seconds * (1 - _BANDWIDTH_SHARE) / measures
    groups = []
    for spec in specs:
        say(f"{spec.name}: memory bandwidth")
        device = torch.device("cuda", spec.first_card) if spec.device == "cuda" else torch.device("cpu")
        bandwidth = memory_bandwidth(device, seconds * _BANDWIDTH_SHARE / len(specs))
        measured = _with_captured_steps(spec, models[spec.name], cache_path, each, say)
        if spec.device == "cuda":
            eager = _eager_speeds(spec, models[spec.name], cache_path, each, say)
            gains = {model.model: model.decode[0].tokens_per_second / eager[model.model] for model in measured}
            measured = [replace(model, graph_gain=gains[model.model]) for model in measured]
        group = GroupSpeed(
            group=spec.name,
            device=spec.device,
            cards=spec.cards,
            card=torch.cuda.get_device_name(device) if spec.device == "cuda" else "this machine's CPU",
            card_bytes=torch.cuda.get_device_properties(device).total_memory
            if spec.device == "cuda"
            else spec.card_bytes,
            bandwidth=bandwidth,
            models=measured,
            notes=[],
        )
        configs = {
            model.name: open_checkpoint(resolve_model_path(model.path), cache_path).config for model in spec.core.models
        }
        groups.append(with_roofline(group, spec.cards // spec.pipeline, configs))
    return DeviceReport(
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        catalog=catalog.name,
        versions=versions(),
        groups=groups,
    )


def _with_captured_steps(
    spec: DeviceGroupSpec, models: list[str], cache_path: Path, seconds: float, say: Say
) -> list[ModelSpeed]:
    def measure(speed: CoreSpeed, info: ModelInfo) -> ModelSpeed:
        say(f"{spec.name}: {info.name} reads prompts")
        prefill = speed.prefill(seconds)
        decode = []
        for streams in dict.fromkeys((1, min(MANY_STREAMS, spec.core.max_num_seqs))):
            say(f"{spec.name}: {info.name} writes {streams} answer{'s' * (streams > 1)} at once")
            decode.append(StreamSpeed(streams=streams, tokens_per_second=speed.decode(streams, seconds)))
        return ModelSpeed(
            model=info.name, weight_bytes=info.weight_bytes, prefill_tokens_per_second=prefill, decode=decode
        )

    return list(_measured(spec, models, cache_path, say, measure).values())


def _eager_speeds(
    spec: DeviceGroupSpec, models: list[str], cache_path: Path, seconds: float, say: Say
) -> dict[str, float]:
    """Return one answer's tokens per second by model, every kernel launched by itself."""

    def measure(speed: CoreSpeed, info: ModelInfo) -> float:
        say(f"{spec.name}: {info.name} writes 1 answer without captured steps")
        return speed.decode(1, seconds)

    eager = replace(spec, core=replace(spec.core, capture_steps=False))
    return _measured(eager, models, cache_path, say, measure)


def _measured(
    spec: DeviceGroupSpec, models: list[str], cache_path: Path, say: Say, measure: Callable[[CoreSpeed, ModelInfo], T]
) -> dict[str, T]:
    """Load the group, measure each of `models`, and give its memory back."""
    say(f"{spec.name}: loading {', '.join(model.name for model in spec.core.models)}")
    core = load_group(spec, cache_path)
    try:
        return {info.name: measure(CoreSpeed(core, info), info) for info in core.model_infos if info.name in models}
    finally:
        core.close()
        del core
        gc.collect()
        if spec.device == "cuda":
            torch.cuda.empty_cache()


def versions() -> dict[str, str]:
    """Return the versions of AIO, torch, Triton, CUDA and the driver, those that are there."""
    all_versions = {
        "aio": __version__,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "driver": driver_version(),
    }
    try:
        all_versions["triton"] = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        all_versions["triton"] = None
    return {name: version for name, version in all_versions.items() if version}


def driver_version(nvml: Any = None) -> str | None:
    """Return NVIDIA's driver by NVML (`nvml`: the module, by default pynvml); None without it."""
    try:
        nvml = nvml or importlib.import_module("pynvml")
        nvml.nvmlInit()
        return str(nvml.nvmlSystemGetDriverVersion())
    except Exception:  # whatever is missing: the module, the driver, a card
        return None


def report_text(report: DeviceReport) -> str:
    """Return the report's figures for people, a block per group."""
    lines = []
    for group in report.groups:
        lines.append(f"{group.group}: {group.cards} x {group.card}, {group.bandwidth / 1e9:,.0f} GB/s of memory a card")
        for model in group.models:
            decode = ", ".join(f"{speed.tokens_per_second:,.1f} ({speed.streams} at once)" for speed in model.decode)
            gain = "" if model.graph_gain is None else f"; {model.graph_gain:.2f} times as fast by captured steps"
            prefill = f"{model.prefill_tokens_per_second:,.0f} prompt tokens/s"
            lines.append(f"  {model.model}: {prefill}, {decode} generated tokens/s{gain}")
        lines += [f"  note: {note}" for note in group.notes]
    return "\n".join(lines)


def report_bytes(report: DeviceReport) -> bytes:
    """Return the report's JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
