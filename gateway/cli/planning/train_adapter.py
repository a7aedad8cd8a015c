"""`aio adapters train`: a LoRA adapter for a model of the catalogue, from examples or recorded answers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import msgspec
from msgspec import Meta

from gateway.base.field_types import Count, ExistingFile
from gateway.base.settings import Settings
from gateway.cli.options import (
    echo_answer,
    gone_option,
    json_option,
    staged_progress,
    table,
    with_database,
    with_settings,
)
from gateway.cli.typed_options import options_of
from inference_core.native.control_groups import usable_cpus
from quality.distillation.recipe import Recipe

if TYPE_CHECKING:
    from quality.distillation.examples import Example
    from quality.distillation.train import NamedModel, TrainingRecord
    from tiers.catalog.catalog import Catalog


_MOVED = (
    "it was of the recipe that made the adapter of the catalogue `ladder`, which is no part of the installed program. "
    "In a clone of AIO's repository, `python -m benchmarks ladder MODEL FOLDER` has it. The adapter ships, and `aio "
    "bench ladder` measures it"
)


class TrainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio adapters train`, besides those of the recipe."""

    examples: ExistingFile | None = None
    """JSON lines with messages, or with prompt and answer."""
    recorded: bool = False
    """Learn from recorded answers of keys that consented to the storing of texts."""
    tier: Count | None = None
    """The tier whose recorded answers count. [the strongest]"""
    limit: Count = 20_000
    """Maximum number of recorded answers."""
    teacher: Annotated[str, Meta(title="MODEL")] | None = None
    """A model with the same vocabulary, whose distribution the adapter learns."""
    held_out: Annotated[float, Meta(gt=0, lt=1)] = 0.1
    """Share of the prompts that are kept for the measurement."""
    max_tokens: Annotated[int, Meta(ge=2)] = 512
    """Maximum tokens of prompt and answer together."""
    device: str = "auto"
    """cpu, cuda or cuda:1. auto is cuda if there is one."""
    threads: Count | None = None
    """Threads of the CPU. [one per CPU]"""


@click.command("train")
@click.argument("model")
@click.argument("folder", type=click.Path(path_type=Path))
@options_of(TrainOptions)
@options_of(Recipe, "recipe")
@gone_option("--recipe", _MOVED)
@gone_option("--steps", _MOVED)
@gone_option("--rows", _MOVED)
@gone_option("--from", _MOVED)
@with_settings("catalog", "data_dir", "database_url", "cache_dir")
@json_option
def train(model: str, folder: Path, options: TrainOptions, recipe: Recipe, as_json: bool, settings: Settings) -> None:
    """Train a LoRA adapter for MODEL of the catalogue and write it to FOLDER in PEFT's layout.

    A tenth of the prompts is held out. The adapter is written only if it is better on them with 95% confidence; else
    the figures are shown, and the command exits with 1. A tier then binds it with `adapter = "FOLDER"`.
    """
    from quality.distillation.train import NoGainError, train_adapter
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    base = named_model(catalog, model)
    teacher = None if options.teacher is None else named_model(catalog, options.teacher)
    examples, source = _examples(settings, catalog, model, options)
    try:
        with staged_progress("training") as progress:
            record = train_adapter(
                base,
                folder.absolute(),
                examples,
                recipe,
                source=source,
                held_out=options.held_out,
                max_tokens=options.max_tokens,
                teacher=teacher,
                device=torch_device(options.device, options.threads),
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
        names = ", ".join(catalog.model_paths) or "none"
        raise click.UsageError(f"{name!r} is not a model of the catalogue; its models are: {names}")
    return NamedModel(name=name, path=catalog.model_paths[name])


def _examples(settings: Settings, catalog: "Catalog", model: str, options: TrainOptions) -> "tuple[list[Example], str]":
    """Return the examples, and where they are from."""
    from quality.distillation.examples import read_examples, recorded_examples

    if options.recorded == (options.examples is not None):
        raise click.UsageError("give either --examples FILE or --recorded")
    if options.examples is not None:
        return read_examples(options.examples), options.examples.name
    tier = options.tier or len(catalog.tiers)
    learners = [spec for spec in catalog.tiers if spec.model == model]
    examples = with_database(settings, lambda engine: recorded_examples(engine, tier, options.limit, learners))
    return examples, f"recorded answers of tier {tier}"


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
