"""`python -m benchmarks ladder`: train the adapter of the catalogue `ladder`; and the tasks that measure it."""

from pathlib import Path
from typing import Any

import click

from gateway.cli.options import FOLDER, echo_answer, json_option, setting_options, settings_from, staged_progress, table
from gateway.cli.planning.train_adapter import named_model, torch_device

_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command()
@click.argument("model")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(min=10), default=480, help="A stopped training is continued.")
@click.option("--rows", type=click.IntRange(min=1), default=2, help="Sequences of 480 tokens per step; more on a card.")
@click.option("--from", "start", type=FOLDER, help="An adapter of this recipe, at which training begins.")
@click.option("--rank", type=click.IntRange(1, 512), default=16)
@click.option("--alpha", type=_POSITIVE, default=32.0)
@click.option("--learning-rate", type=_POSITIVE, default=2e-3, help="Falls linearly to zero.")
@click.option("--base", type=click.Choice(["bfloat16", "float32"]), default="float32", help="Of the frozen weights.")
@click.option("--seed", type=int, default=0)
@click.option("--device", default="auto", help="cpu, cuda, cuda:1; auto is cuda where there is one.")
@click.option("--threads", type=click.IntRange(min=1), help="Of the CPU.  [one per CPU]")
@setting_options("catalog", "cache_dir")
@json_option
def ladder(
    model: str, folder: Path, start: Path | None, device: str, threads: int | None, as_json: bool, **options: Any
) -> None:
    """Train one adapter for MODEL of the catalogue and write it to FOLDER: direct answers, answers after a short
    thought, and answers after a longer one, to tasks that a program makes.

    It is written only if it is better on held-out wordings with 95% confidence.
    """
    from benchmarks.ladder.record import LadderRecipe
    from benchmarks.ladder.train import train_ladder
    from tiers.catalog.load import load_catalog

    settings = settings_from(**{name: options.pop(name) for name in ("catalog", "cache_dir")})
    base, folder = named_model(load_catalog(settings.catalog), model), folder.absolute()
    recipe = LadderRecipe(**options)
    with staged_progress("training") as progress:
        record = train_ladder(
            base,
            folder,
            recipe,
            start=start,
            device=torch_device(device, threads),
            cache_dir=settings.cache_path,
            progress=progress,
        )
    rows = [[mode, f"{loss.before:.4f}", f"{loss.after:.4f}"] for mode, loss in record.held_out_loss.items()]
    text = (
        f"{record.tokens:,} tokens in {recipe.steps} steps and {record.seconds:.0f} s\n\n"
        f"{table(['held-out loss', 'before', 'after'], rows)}\n\n"
        f"{folder} is written; its README.md says how tiers use it."
    )
    echo_answer(as_json, record, text)


@click.command("ladder-tasks")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def ladder_tasks(file: Path) -> None:
    """Write the tasks that `aio bench ladder` asks to FILE, quality/evaluation/ladder_tasks.json of the repository."""
    from benchmarks.ladder.tasks import stored_tasks

    file.write_bytes(stored_tasks())
