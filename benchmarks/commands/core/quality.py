"""`python -m benchmarks quality`: every arithmetic and cache encoding of a model against float32, on real text."""

from pathlib import Path
from typing import Any

import click
import msgspec

from gateway.operations.cli.options import cache_dir_option, catalog_option, json_option, settings_from


@click.command()
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="UTF-8 text to read.  [pages of novels and essays in the public domain]",
)
@click.option("--tokens", default=2048, show_default=True, help="Of the text, at most.")
@click.option("--window", default=512, show_default=True, help="Tokens that share a context.")
@catalog_option
@cache_dir_option
@json_option
def quality(model: str | None, text: Path | None, tokens: int, window: int, as_json: bool, **given: Any) -> None:
    """Perplexity, divergence and agreement with float32, one row per arithmetic and encoding of the KV cache.

    A row passes if the mean normalised dot product of its logits is above 0.99 and its perplexity within 1%.
    """
    from benchmarks.core.quality import bench_quality
    from tiers.catalog.load import load_catalog

    settings = settings_from(**given)
    specs = {spec.name: spec for spec in load_catalog(settings.catalog).core.models}
    name = model or next(iter(specs), "")
    if name not in specs:
        raise click.ClickException(f"the catalogue has no model {name!r} on its core; it has {', '.join(specs)}")
    content = None if text is None else text.read_text("utf-8")
    rows = bench_quality(specs[name].path, settings.cache_path, text=content, tokens=tokens, window=window)
    try:
        for row in rows:
            row = {"model": name, **row}
            click.echo(msgspec.json.encode(row) if as_json else "  ".join(f"{key}={row[key]}" for key in row))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
