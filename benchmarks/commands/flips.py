"""`python -m benchmarks flips`: how often words that change nothing of the task change the tier."""

from pathlib import Path

import click
import msgspec

from benchmarks.classifier.flips import flips as measured
from classifier.complexity.model import load_complexity, shipped_complexity
from classifier.registry.artefact import default_artefact, load_artefact


class _Row(msgspec.Struct):
    prompt: str


@click.command()
@click.argument("rows", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--model", "model_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Complexity model to measure.  [the packaged one]")  # fmt: skip
@click.option("--draws", type=click.IntRange(min=1), default=2, show_default=True, help="Of each kind, for a prompt.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def flips(rows: Path, model_file: Path | None, draws: int, seed: int, as_json: bool) -> None:
    """Flips of the tier of the prompts in ROWS (JSON lines with a "prompt") by distractors and noise; and the mean
    price after them, relative to the price before."""
    prompts = [msgspec.json.decode(line, type=_Row).prompt for line in rows.read_bytes().splitlines() if line.strip()]
    model = shipped_complexity() if model_file is None else load_complexity(model_file)
    found = measured(prompts, model, load_artefact(default_artefact()), draws=draws, seed=seed)
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    click.echo(f"{len(prompts)} prompts, {draws} draws of each kind\n{'':<22}{'up':>7}{'down':>7}{'price':>7}")
    for one in found:
        click.echo(f"{one.kind:<22}{one.up:>7.1%}{one.down:>7.1%}{one.cost:>7.2f}")
