"""`aio triton-config`: describe a tier's model for Triton Inference Server, using its knobs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.operations.cli.options import catalog_option, settings_from

if TYPE_CHECKING:
    from tiers.catalog.triton_config import Backend, DeviceKind


@click.command("triton-config")
@catalog_option
@click.option("--tier", type=click.IntRange(1, 8), required=True, help="Tier of the model.")
@click.option(
    "--backend",
    type=click.Choice(["python", "vllm"]),
    default="python",
    show_default=True,
    help="python: text in and out behind the dynamic batcher, as tensorrt_llm_bls. vllm: Triton's vLLM backend.",
)
@click.option(
    "--kind", type=click.Choice(["gpu", "cpu"]), default="gpu", show_default=True, help="Device of the instances."
)
@click.option("--instances", type=click.IntRange(min=1), default=1, show_default=True, help="Instances per GPU.")
@click.option("--gpus", metavar="0,1", help="GPU numbers.  [all]")
@click.option(
    "--weights", metavar="PATH", help="With vllm: path of the weights on Triton's machine.  [the catalogue's path]"
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Model repository to write to.  [print only]",
)
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
