"""`aio quantize`: a smaller copy of a model, in a layout that other engines read too; `aio triton-config`: describe a
tier's model for Triton Inference Server, using its knobs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import (
    FILE,
    NEW_FOLDER,
    cache_dir_option,
    catalog_option,
    echo_answer,
    gone_option,
    json_option,
    settings_from,
    staged_progress,
)
from inference_core.native.control_groups import usable_cpus

if TYPE_CHECKING:
    from inference_core.quantization.method import QuantizationMethod
    from tiers.catalog.triton_config import Backend, DeviceKind

# Which options each method accepts; any other is an error instead of being ignored.
_OPTIONS = {
    "rtn": {"group_size", "symmetric"},
    "awq": {"group_size", "symmetric"},
    "gptq": {"group_size", "symmetric", "act_order", "damping"},
    "int8": {"alpha"},
    "fp8": {"scales"},
}


@click.command()
@click.argument("source")
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--method", type=click.Choice(list(_OPTIONS)), required=True, help="Quantisation method.")
@gone_option("--bits", "the method decides: int8 and fp8 have 8 bits, the others 4")
@click.option("--group-size", type=click.Choice(["32", "64", "128"]), help="Inputs per scale.  [the largest that fits]")
@click.option("--symmetric/--asymmetric", default=None, help="Zero points of 8, or of each group.  [asymmetric]")
@click.option("--act-order/--no-act-order", default=None, help="gptq: most active inputs first.  [act-order]")
@click.option(
    "--damping",
    type=click.FloatRange(0, 1, min_open=True),
    help="gptq: share of the mean moment.  [0.01]",
)
@click.option("--alpha", type=click.FloatRange(0, 1), help="int8: how much of outliers moves into weights.  [0.5]")
@click.option("--scales", type=click.Choice(["channel", "block"]), help="fp8: per output, or 128 x 128.  [channel]")
@click.option(
    "--calibration",
    multiple=True,
    type=FILE,
    help="UTF-8 text to calibrate on; may be repeated.  [the package's, 60,000 words]",
)
@click.option("--samples", type=click.IntRange(min=1), help="Windows of the text.  [all that it has, at most 128]")
@click.option("--window", type=click.IntRange(min=2), default=512, help="Tokens per window.")
@click.option("--dtype", type=click.Choice(["float16", "bfloat16"]), help="Of all other tensors.  [float16 for 4 bits]")
@cache_dir_option
@json_option
def quantize(
    source: str,
    destination: Path,
    method: str,
    calibration: tuple[Path, ...],
    samples: int | None,
    window: int,
    dtype: str | None,
    cache_dir: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write SOURCE, a Hugging Face folder or a GGUF file (package:NAME/FILE too), to the new folder DESTINATION.

    \b
    rtn    4-bit weights rounded to nearest, the baseline
    awq    4-bit weights, important channels scaled up before rounding
    gptq   4-bit weights, each rounding error compensated by later inputs
    int8   8-bit weights and activations, outliers smoothed (SmoothQuant)
    fp8    8-bit floating-point weights (E4M3); needs no calibration

    Compare the result with SOURCE by `aio quality compare`.
    """
    chosen = _method(method, {name: value for name, value in options.items() if value is not None})
    import torch

    from inference_core.loaders.hub_model import resolve_model_path
    from inference_core.quantization.calibration import calibration_text
    from inference_core.quantization.quantize_model import quantize_model

    settings = settings_from(cache_dir=cache_dir)
    torch.set_num_threads(usable_cpus())
    with staged_progress(f"quantising with {method}") as progress:
        written = quantize_model(
            resolve_model_path(source),
            destination.expanduser(),
            chosen,
            calibration_text(calibration),
            samples=samples,
            window=window,
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


def _method(name: str, given: dict[str, Any]) -> "QuantizationMethod":
    foreign = sorted(given.keys() - _OPTIONS[name])
    if foreign:
        known = ", ".join(_flag(option) for option in sorted(_OPTIONS[name]))
        raise click.UsageError(f"{', '.join(map(_flag, foreign))}: not for {name}, which accepts {known}")
    from inference_core.quantization.awq import AWQ, RoundToNearest
    from inference_core.quantization.eight_bit import FP8, SmoothQuant
    from inference_core.quantization.gptq import GPTQ

    if "group_size" in given:
        given["group_size"] = int(given["group_size"])
    methods: dict[str, Callable[..., QuantizationMethod]] = {
        "rtn": RoundToNearest,
        "awq": AWQ,
        "gptq": GPTQ,
        "int8": SmoothQuant,
        "fp8": FP8,
    }
    return methods[name](**given)


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


@click.command("triton-config")
@catalog_option
@click.option("--tier", type=click.IntRange(1, 8), required=True, help="Tier of the model.")
@click.option(
    "--backend",
    type=click.Choice(["python", "vllm"]),
    default="python",
    help="python: text in and out behind the dynamic batcher, as tensorrt_llm_bls. vllm: Triton's vLLM backend.",
)
@click.option("--kind", type=click.Choice(["gpu", "cpu"]), default="gpu", help="Device of the instances.")
@click.option("--instances", type=click.IntRange(min=1), default=1, help="Instances per GPU.")
@click.option("--gpus", metavar="0,1", help="GPU numbers.  [all]")
@click.option(
    "--weights", metavar="PATH", help="With vllm: path of the weights on Triton's machine.  [the catalogue's path]"
)
@click.option("--out", metavar="DIR", type=NEW_FOLDER, help="Model repository to write to.  [print only]")
def triton_config(
    catalog: str | None,
    tier: int,
    backend: "Backend",
    kind: "DeviceKind",
    instances: int,
    gpus: str | None,
    weights: str | None,
    out: Path | None,
) -> None:
    """Describe a tier's model as `config.pbtxt`; batch sizes, queue and delay come from the model's knobs.

    Instances are replicas, each with its own weights: `--instances 2 --gpus 0,1` makes four. A model that does not fit
    one GPU is split by its backend (tensor parallel), never by an instance group.
    """
    from tiers.catalog.load import load_catalog
    from tiers.catalog.triton_config import Instances, triton_files

    try:
        cards = [int(number) for number in gpus.split(",")] if gpus else []
    except ValueError:
        raise click.BadParameter(
            f"{gpus!r} is not a list of GPU numbers separated by commas", param_hint="--gpus"
        ) from None
    loaded = load_catalog(settings_from(catalog=catalog).catalog)
    files = triton_files(loaded, tier, backend, Instances(kind=kind, count=instances, gpus=cards), weights)
    if out is None:
        click.echo("\n".join(f"# {path}\n{text}" for path, text in files.items()), nl=False)
        return
    for path, text in files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text, encoding="utf-8")
        click.echo(str(out / path))
