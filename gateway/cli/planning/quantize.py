"""`aio quantize`: a smaller copy of a model, in a layout that other engines read too; `aio triton-config`: describe a
tier's model for Triton Inference Server, using its knobs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import msgspec
from msgspec import Meta

from gateway.base.field_types import Count, ExistingFile, NewFolder, Share
from gateway.base.settings import Settings
from gateway.cli.options import (
    echo_answer,
    gone_option,
    json_option,
    staged_progress,
    with_settings,
)
from gateway.cli.typed_options import options_of
from inference_core.native.control_groups import usable_cpus
from tiers.dialects.triton_config import Backend, DeviceKind

if TYPE_CHECKING:
    from inference_core.quantization.method import QuantizationMethod

# Which options each method accepts; any other is an error instead of being ignored.
_OPTIONS = {
    "rtn": {"group_size", "symmetric"},
    "awq": {"group_size", "symmetric"},
    "gptq": {"group_size", "symmetric", "act_order", "damping"},
    "int8": {"alpha"},
    "fp8": {"scales"},
}


class MethodOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that only some methods of `aio quantize` accept."""

    group_size: Literal["32", "64", "128"] | None = None
    """Inputs that share a scale. [the largest that fits]"""
    symmetric: Annotated[bool, Meta(extra={"off": "--asymmetric"})] | None = None
    """Use the zero point 8, instead of one for each group. [asymmetric]"""
    act_order: bool | None = None
    """gptq: quantise the most active inputs first. [act-order]"""
    damping: Annotated[float, Meta(gt=0, le=1)] | None = None
    """gptq: share of the mean moment that is added to each. [0.01]"""
    alpha: Share | None = None
    """int8: share of the outliers' size that moves into the weights. [0.5]"""
    scales: Literal["channel", "block"] | None = None
    """fp8: one scale for each output, or for each block of 128 x 128. [channel]"""


class QuantizeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio quantize` for every method."""

    method: Literal["rtn", "awq", "gptq", "int8", "fp8"]
    """Quantisation method."""
    calibration: tuple[ExistingFile, ...] = ()
    """UTF-8 text to calibrate on. May be repeated. [the package's, 60,000 words]"""
    samples: Count | None = None
    """Number of windows of the text. [all that it has, at most 128]"""
    window: Annotated[int, Meta(ge=2)] = 512
    """Tokens in a window."""
    dtype: Literal["float16", "bfloat16"] | None = None
    """Number format of all other tensors. [float16 for 4 bits]"""


@click.command()
@click.argument("source")
@click.argument("destination", type=click.Path(path_type=Path))
@options_of(QuantizeOptions)
@options_of(MethodOptions, "own")
@gone_option("--bits", "the method decides: int8 and fp8 have 8 bits, the others 4")
@with_settings("cache_dir")
@json_option
def quantize(
    source: str, destination: Path, options: QuantizeOptions, own: MethodOptions, as_json: bool, settings: Settings
) -> None:
    """Write SOURCE (a Hugging Face folder, a GGUF file or package:NAME/FILE) to the new folder DESTINATION.

    \b
    rtn    4-bit weights rounded to nearest, the baseline
    awq    4-bit weights, important channels scaled up before rounding
    gptq   4-bit weights, each rounding error compensated by later inputs
    int8   8-bit weights and activations, outliers smoothed (SmoothQuant)
    fp8    8-bit floating-point weights (E4M3); needs no calibration

    Compare the result with SOURCE by `aio quality compare`.
    """
    method, dtype = options.method, options.dtype
    chosen = _method(method, {name: value for name, value in msgspec.structs.asdict(own).items() if value is not None})
    import torch

    from inference_core.loaders.hub_model import resolve_model_path
    from inference_core.quantization.calibration import calibration_text
    from inference_core.quantization.quantize_model import quantize_model

    torch.set_num_threads(usable_cpus())
    with staged_progress(f"quantising with {method}") as progress:
        written = quantize_model(
            resolve_model_path(source),
            destination.expanduser(),
            chosen,
            calibration_text(options.calibration),
            samples=options.samples,
            window=options.window,
            dtype=None if dtype is None else getattr(torch, dtype),
            cache_dir=settings.cache_path,
            progress=progress,
        )
    ratio = written.source_bytes / written.linear_bytes
    echo_answer(
        as_json,
        {
            "destination": str(destination),
            "method": method,
            "settings": chosen.settings(),
            "total_bytes": written.total_bytes,
            "linear_bytes": written.linear_bytes,
            "linear_bytes_as_16_bit": written.source_bytes,
        },
        f"{destination}: {written.total_bytes / 1e6:.1f} MB; linear layers {written.linear_bytes / 1e6:.1f} MB, "
        f"{ratio:.2f} times smaller than 16-bit ones",
    )


def _method(name: str, options: dict[str, Any]) -> "QuantizationMethod":
    foreign = sorted(options.keys() - _OPTIONS[name])
    if foreign:
        accepted = ", ".join(_flag(option) for option in sorted(_OPTIONS[name]))
        raise click.UsageError(f"{', '.join(map(_flag, foreign))}: not for {name}, which accepts {accepted}")
    from inference_core.quantization.awq import AWQ, RoundToNearest
    from inference_core.quantization.eight_bit import FP8, SmoothQuant
    from inference_core.quantization.gptq import GPTQ

    if "group_size" in options:
        options["group_size"] = int(options["group_size"])
    methods: dict[str, Callable[..., QuantizationMethod]] = {
        "rtn": RoundToNearest,
        "awq": AWQ,
        "gptq": GPTQ,
        "int8": SmoothQuant,
        "fp8": FP8,
    }
    return methods[name](**options)


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


class TritonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio triton-config`."""

    tier: Annotated[int, Meta(ge=1, le=8)]
    """Tier of the model."""
    backend: Backend = "python"
    """python: text in and out behind the dynamic batcher, as tensorrt_llm_bls. vllm: Triton's vLLM backend."""
    kind: DeviceKind = "gpu"
    """Device of the instances."""
    instances: Count = 1
    """Instances on each GPU."""
    gpus: Annotated[str, Meta(title="0,1")] | None = None
    """Numbers of the GPUs. [all]"""
    weights: Annotated[str, Meta(title="PATH")] | None = None
    """With vllm: path of the weights on Triton's machine. [the catalogue's path]"""
    out: Annotated[NewFolder, Meta(title="DIR")] | None = None
    """Model repository to write to. [print only]"""


@click.command("triton-config")
@with_settings("catalog")
@options_of(TritonOptions)
def triton_config(options: TritonOptions, settings: Settings) -> None:
    """Describe a tier's model as `config.pbtxt`. Batch sizes, queue and delay come from the model's knobs.

    Instances are replicas, each with its own weights: `--instances 2 --gpus 0,1` makes four. A model that does not fit
    one GPU is split by its backend (tensor parallel), never by an instance group.
    """
    from tiers.catalog.load import load_catalog
    from tiers.dialects.triton_config import Instances, triton_files

    try:
        cards = [int(number) for number in options.gpus.split(",")] if options.gpus else []
    except ValueError:
        raise click.BadParameter(
            f"{options.gpus!r} is not a list of GPU numbers separated by commas", param_hint="--gpus"
        ) from None
    loaded = load_catalog(settings.catalog)
    instances = Instances(kind=options.kind, count=options.instances, gpus=cards)
    files = triton_files(loaded, options.tier, options.backend, instances, options.weights)
    out = options.out
    if out is None:
        click.echo("\n".join(f"# {path}\n{text}" for path, text in files.items()), nl=False)
        return
    for path, text in files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text, encoding="utf-8")
        click.echo(str(out / path))
