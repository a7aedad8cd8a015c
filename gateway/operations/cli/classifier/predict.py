"""`aio classifier predict` and `aio classifier explain`: a version's predictions for many prompts, or one explained."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.classifier.versions import version_option
from gateway.operations.cli.options import data_dir_option, echo_json, json_option, settings_from, table

if TYPE_CHECKING:
    from classifier.prompt_predictions import Explanation


@click.command()
@click.option(
    "--input",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help='JSON lines with "id" and "prompt".',
)
@click.option("--output", "target", type=click.Path(dir_okay=False, path_type=Path), required=True, help="JSON lines.")
@version_option
@click.option("--quality", type=click.FloatRange(0, 1), help="Quality target of `tier`.  [0.7, or the version's own]")
@click.option("--catalog", metavar="NAME|FILE", help="Decide for this catalogue's tiers.")
@click.option("--processes", type=click.IntRange(min=1), help="Parallel processes.  [one per core]")
@data_dir_option
@json_option
def predict(
    source: Path,
    target: Path,
    version: str | None,
    quality: float | None,
    processes: int | None,
    catalog: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write classes, p_ok, tier and novelty of every prompt of a file; the order is the file's.

    Without --catalog it decides by complexity class, for tiers like 3B, 8B, 70B and 70B with chain of thought.
    The output is written completely or not at all.
    """
    from classifier.prompt_predictions import predict_lines, read_prompts
    from gateway.inference.catalogue.class_prior import class_prior
    from gateway.operations.cli.classifier.versions import folder_of
    from inference_core.io.atomic_file import atomic_file
    from tiers.catalog.load import load_catalog

    settings = settings_from(**options)
    folder = folder_of(settings.registry_path, version)
    known = None if catalog is None else load_catalog(catalog)
    began, written = time.perf_counter(), 0
    with atomic_file(target) as file:
        for count, lines in predict_lines(
            folder,
            read_prompts(source),
            quality_target=quality,
            processes=processes,
            catalogue_fingerprint="" if known is None else known.fingerprint,
            prior=None if known is None else class_prior(known, settings.data_path),
        ):
            file.write(lines)
            written += count
    seconds = time.perf_counter() - began
    if as_json:
        echo_json({"version": folder.name, "rows": written, "seconds": round(seconds, 3), "output": str(target)})
    else:
        rate = f"{written / seconds:,.0f} a second" if seconds else "at once"
        click.echo(f"{written:,} prompts by {folder.name} in {seconds:.2f} s ({rate}) -> {target}")


@click.command()
@click.argument("prompt", required=False)
@click.option(
    "--input", "source", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON lines of prompts."
)
@version_option
@data_dir_option
@json_option
def explain(prompt: str | None, source: Path | None, version: str | None, as_json: bool, **options: Any) -> None:
    """Explain the prediction for PROMPT: features, class and tier; or for the prompts of a file."""
    from classifier.prompt_predictions import PromptRow, explained, read_prompts
    from classifier.registry.acceptance import accepted_artefact
    from gateway.operations.cli.classifier.versions import folder_of

    if (prompt is None) == (source is None):
        raise click.UsageError("give either a PROMPT or --input FILE")
    model = accepted_artefact(folder_of(settings_from(**options).registry_path, version))
    rows = read_prompts(source) if source is not None else [PromptRow("prompt", prompt or "")]
    found = [explained(model, row) for row in rows]
    if as_json:
        echo_json(found if source is not None else found[0])
        return
    for number, one in enumerate(found):
        click.echo(("\n" if number else "") + _text(one, named=source is not None))


def _text(one: "Explanation", *, named: bool) -> str:
    from classifier.complexity.classes import Complexity

    tiers = [[str(k), f"{ok:.3f}"] for k, ok in enumerate(one.p_ok, start=1)]
    lines = [
        *([f"{one.id}"] if named else []),
        f"tier {one.tier} for a quality target of {one.quality_target:.3f}: {one.reason}",
        "",
        table(["tier", "P(good enough)"], tiers),
        "",
        "class: " + ", ".join(f"{c.name} {p:.2f}" for c, p in zip(Complexity, one.classes, strict=True)),
        f"classifier {one.version} ({one.kind}); unfamiliar {one.novelty:.2f} (1: no labels of such prompts)",
        "features: " + (", ".join(f"{name} {value:.3g}" for name, value in one.features.items()) or "none"),
    ]
    if one.looked_at < one.characters:
        lines.append(f"it looks at {one.looked_at:,} of {one.characters:,} characters")
    if one.router_instructions:
        lines.append("skipped, since they ask for a tier:  " + "; ".join(repr(a) for a in one.router_instructions))
    return "\n".join(lines)
