"""`python -m benchmarks kernels`: the linear and attention kernels on a model's shapes against the machine's bounds."""

from dataclasses import asdict
from typing import Any

import click
import msgspec

from gateway.operations.cli.options import cache_dir_option, catalog_option, json_option, settings_from
from gateway.planning.commands.bench import ManyNumbers, numbers_of


@click.command(cls=ManyNumbers)
@click.option("--model", help="Model of the catalogue whose shapes are taken.  [its first]")
@click.option("--scheme", multiple=True, help="int4-int8, int8-int8, int4-float, bfloat16, float32.  [all]")
@click.option("--rows", callback=numbers_of(int), metavar="N...", default="1 2 4 8 16 32 64 128 256", show_default=True)
@click.option("--attention", is_flag=True, help="The attention kernels too, for every format of the KV cache.")
@click.option("--threads", default=1, show_default=True, help="Threads of the kernels.")
@catalog_option
@cache_dir_option
@json_option
def kernels(
    model: str | None,
    scheme: tuple[str, ...],
    rows: tuple[int, ...],
    attention: bool,
    threads: int,
    as_json: bool,
    **given: Any,
) -> None:
    """First the machine's peaks and what they allow the model, in tokens per second; then one row per kernel and size.

    Example: python -m benchmarks kernels --scheme int4-int8 --rows 1 8 64 --json
    """
    from benchmarks.kernels.attention_kernels import bench_attention
    from benchmarks.kernels.linear_kernels import SCHEMES, bench_kernels
    from benchmarks.kernels.machine_peaks import machine_peaks, model_bounds
    from inference_core.loaders.hub_model import resolve_model_path
    from inference_core.loaders.open_checkpoint import open_checkpoint
    from inference_core.loading.load_core import weight_bytes
    from tiers.catalog.load import load_catalog

    chosen = tuple(name for name in SCHEMES if name in scheme) if scheme else SCHEMES
    unknown = set(scheme) - set(SCHEMES)
    if unknown:
        raise click.BadParameter(f"no scheme {', '.join(sorted(unknown))}; there are {', '.join(SCHEMES)}")
    settings = settings_from(**given)
    specs = {spec.name: spec for spec in load_catalog(settings.catalog).core.models}
    name = model or next(iter(specs), "")
    if name not in specs:
        raise click.ClickException(f"the catalogue has no model {name!r} on its core; it has {', '.join(specs)}")
    checkpoint = open_checkpoint(resolve_model_path(specs[name].path), settings.cache_path)
    peaks = machine_peaks()
    _show({"machine": asdict(peaks)}, as_json)
    _show(
        {"model": name, "bounds": model_bounds(peaks, checkpoint.config, weight_bytes(checkpoint, specs[name]))},
        as_json,
    )
    for row in bench_kernels(checkpoint.config, peaks, schemes=chosen, rows=rows, threads=threads):
        _show(row, as_json)
    for row in bench_attention(checkpoint.config, peaks, threads=threads) if attention else ():
        _show(row, as_json)


def _show(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(row))
        return
    parts = (value if isinstance(value, dict) else {key: value} for key, value in row.items())
    cells = {key: value for part in parts for key, value in part.items()}
    click.echo(
        "  ".join(f"{key}={round(value, 3) if isinstance(value, float) else value}" for key, value in cells.items())
    )
