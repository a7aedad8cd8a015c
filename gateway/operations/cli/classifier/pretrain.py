"""`aio classifier pretrain`: train a small DistilBERT from scratch, for machines without a pretrained checkpoint."""

from pathlib import Path

import click

from gateway.operations.cli.classifier import data_option
from gateway.operations.cli.options import echo_answer, json_option, staged_progress


@click.command()
@click.argument("output", type=click.Path(path_type=Path))
@data_option
@click.option("--hold", multiple=True, metavar="DOMAIN", help="Domain whose prompts are left out.")
@click.option("--layers", default=4, show_default=True)
@click.option("--hidden", default=256, show_default=True, help="Width; a multiple of 64.")
@click.option("--vocabulary", default=8192, show_default=True)
@click.option("--max-tokens", default=256, show_default=True)
@click.option("--epochs", default=4, show_default=True)
@click.option("--seed", default=0, show_default=True)
@json_option
def pretrain(
    output: Path,
    data: Path | None,
    hold: tuple[str, ...],
    layers: int,
    hidden: int,
    vocabulary: int,
    max_tokens: int,
    epochs: int,
    seed: int,
    as_json: bool,
) -> None:
    """Train a tokeniser and a DistilBERT on the prompts of the train split, and write OUTPUT for `train --encoder`.

    Repeat the command to resume an interrupted run.
    """
    if hidden % 64 or hidden <= 0:
        raise click.BadParameter(f"{hidden} is not a positive multiple of 64.", param_hint="--hidden")
    from classifier.training.commands.pretrain import pretrain_command
    from classifier.training.recipes.pretrain import PretrainSettings

    settings = PretrainSettings(
        layers=layers,
        hidden=hidden,
        heads=hidden // 64,
        vocabulary=vocabulary,
        max_tokens=max_tokens,
        epochs=epochs,
        seed=seed,
    )
    with staged_progress("pretraining") as show:
        outcome = pretrain_command(output, settings, data=data, hold=hold, progress=show)
    echo_answer(
        as_json, outcome, f"{outcome.folder}: {outcome.texts} prompts, masked-word loss {outcome.valid_loss:.3f} nats"
    )
