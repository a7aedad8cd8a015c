"""`aio adapters train`: a LoRA adapter for a model of the catalogue, from examples or recorded answers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import (
    FILE,
    cache_dir_option,
    catalog_option,
    data_dir_option,
    database_option,
    echo_answer,
    gone_option,
    json_option,
    settings_from,
    staged_progress,
    table,
    with_database,
)
from inference_core.native.control_groups import usable_cpus

if TYPE_CHECKING:
    from gateway.base.settings import Settings
    from quality.distillation.examples import Example
    from quality.distillation.train import NamedModel, TrainingRecord
    from tiers.catalog.catalog import Catalog

_POSITIVE = click.FloatRange(min=0, min_open=True)


_MOVED = (
    "it was of the recipe that made the adapter of the catalogue `ladder`, which is no part of the installed program. "
    "In a clone of AIO's repository, `python -m benchmarks ladder MODEL FOLDER` has it. The adapter ships, and `aio "
    "bench ladder` measures it"
)


@click.command("train")
@click.argument("model")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--examples", type=FILE, help="JSON lines with messages, or with prompt and answer.")
@click.option("--recorded", is_flag=True, help="Learn from recorded answers, of keys that consented to storing texts.")
@gone_option("--recipe", _MOVED)
@gone_option("--steps", _MOVED)
@gone_option("--rows", _MOVED)
@gone_option("--from", _MOVED)
@click.option("--tier", type=click.IntRange(min=1), help="The tier whose recorded answers count.  [the strongest]")
@click.option("--limit", type=click.IntRange(min=1), default=20_000, help="Most recorded answers.")
@click.option("--teacher", metavar="MODEL", help="A model of the same vocabulary, whose distribution is learned.")
@click.option("--rank", type=click.IntRange(1, 512), default=16)
@click.option("--alpha", type=_POSITIVE, default=32.0)
@click.option("--learning-rate", type=_POSITIVE, default=2e-3, help="Falls linearly to zero.")
@click.option("--epochs", type=click.IntRange(min=1), default=1)
@click.option("--batch", type=click.IntRange(min=1), default=8, help="Examples per step.")
@click.option("--base", type=click.Choice(["bfloat16", "float32"]), help="Of the frozen weights.  [bfloat16]")
@click.option("--seed", type=int, default=0)
@click.option(
    "--held-out",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.1,
    help="Share of prompts to measure with.",
)
@click.option("--max-tokens", type=click.IntRange(min=2), default=512, help="Of prompt and answer together.")
@click.option("--device", default="auto", help="cpu, cuda, cuda:1; auto is cuda where there is one.")
@click.option("--threads", type=click.IntRange(min=1), help="Of the CPU.  [one per CPU]")
@catalog_option
@data_dir_option
@database_option
@cache_dir_option
@json_option
def train(model: str, folder: Path, as_json: bool, **options: Any) -> None:
    """Train a LoRA adapter for MODEL of the catalogue and write it to FOLDER in PEFT's layout.

    A tenth of the prompts is held out. The adapter is written only if it is better on them with 95% confidence; else
    the figures are shown, and the command exits with 1. A tier then binds it with `adapter = "FOLDER"`.
    """
    from quality.distillation.train import NoGainError, Recipe, train_adapter
    from tiers.catalog.load import load_catalog

    stored = ("catalog", "data_dir", "database_url", "cache_dir")
    settings = settings_from(**{name: options.pop(name) for name in stored})
    catalog = load_catalog(settings.catalog)
    teacher = options.pop("teacher")
    base, wanted = named_model(catalog, model), None if teacher is None else named_model(catalog, teacher)
    examples, source = _examples(settings, catalog, model, options)
    recipe = Recipe(**{name: options[name] for name in Recipe.__struct_fields__ if options.get(name) is not None})
    try:
        with staged_progress("training") as progress:
            record = train_adapter(
                base,
                folder.absolute(),
                examples,
                recipe,
                source=source,
                held_out=options["held_out"],
                max_tokens=options["max_tokens"],
                teacher=wanted,
                device=torch_device(options["device"], options["threads"]),
                cache_dir=settings.cache_path,
                progress=progress,
            )
    except NoGainError as error:
        _show(error.record, as_json)
        raise
    _show(record, as_json)
    if not as_json:
        click.echo(f'\n{folder} is written. Bind it to a tier of {model}:\n\nadapter = "{folder.absolute()}"')


def named_model(catalog: "Catalog", name: str) -> "NamedModel":
    """Return the model of that name. Raises UsageError for one that the catalogue does not have."""
    from quality.distillation.train import NamedModel

    if name not in catalog.model_paths:
        known = ", ".join(catalog.model_paths) or "none"
        raise click.UsageError(f"{name!r} is no model of the catalogue; its models are: {known}")
    return NamedModel(name=name, path=catalog.model_paths[name])


def _examples(
    settings: "Settings", catalog: "Catalog", model: str, given: dict[str, Any]
) -> "tuple[list[Example], str]":
    """Return the examples, and where they are from."""
    from quality.distillation.examples import read_examples, recorded_examples

    if given["recorded"] == (given["examples"] is not None):
        raise click.UsageError("give either --examples FILE or --recorded")
    if not given["recorded"]:
        return read_examples(given["examples"]), given["examples"].name
    tier = given["tier"] or len(catalog.tiers)
    learners = [spec for spec in catalog.tiers if spec.model == model]
    found = with_database(settings, lambda engine: recorded_examples(engine, tier, given["limit"], learners))
    return found, f"recorded answers of tier {tier}"


def torch_device(name: str, threads: int | None) -> str:
    """Return torch's name of the device, and set the CPU's threads. Raises UsageError if it is not there."""

    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise click.UsageError(f"--device {name}: {error}") from error
    torch.set_num_threads(threads or usable_cpus())
    return name


def _show(record: "TrainingRecord", as_json: bool) -> None:
    outcome = record.outcome
    left_out = f", {record.left_out} left out" if record.left_out else ""
    text = (
        f"{record.training} examples from {record.source}, {outcome.tokens:,} tokens in {outcome.steps} steps and "
        f"{outcome.seconds:.0f} s; {record.held_out} held out{left_out}\n"
    )
    rows = [
        [name, *(f"{value:.4f}" for value in (getattr(outcome.before, name), getattr(outcome.after, name)))]
        for name in outcome.before.__struct_fields__
        if getattr(outcome.before, name) is not None
    ]
    echo_answer(as_json, record, f"{text}\n{table(['held out', 'before', 'after'], rows)}")
