"""`aio classifier complexity`, `aio classifier follow-up` and `aio retrain`: the complexity model, the model of
follow-ups, and the classifier again from recorded outcomes."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from gateway.base.field_types import ExistingFile, ExistingFolder, NewFile
from gateway.base.settings import Settings
from gateway.cli.cluster import joined
from gateway.cli.options import (
    FILE,
    NEW_FILE,
    audit_reason_option,
    echo_answer,
    echo_json,
    json_option,
    staged_progress,
    table,
    with_database,
    with_settings,
)
from gateway.cli.typed_options import options_of

if TYPE_CHECKING:
    from quality.retraining.retrain import RetrainResult
    from quality.retraining.training_process import OnProgress, Train


class ComplexityOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio classifier complexity`."""

    train: NewFile | None = None
    """Train on ROWS and write the model to this file."""
    model: ExistingFile | None = None
    """Model to measure. [the packaged one]"""
    prior: ExistingFile | None = None
    """Refit this model on ROWS instead of training from nothing."""
    unrated: ExistingFile | None = None
    """Prompts without classes, for --prior."""
    encoder: ExistingFolder | None = None
    """Fine-tune this checkpoint on ROWS and write it to the folder of --train, for AIO_CLASSIFIER_ENCODER."""
    seed: int = 0
    """Seed of the training and of the folds."""


@click.command()
@click.argument("rows", type=FILE)
@options_of(ComplexityOptions)
@json_option
def complexity(rows: Path, options: ComplexityOptions, as_json: bool) -> None:
    """Measure the complexity model on ROWS, or train one on them and measure it by cross-validation.

    A line of ROWS is {"prompt": text, "classes": [1 to 4 of each rater], "range": [least, most accepted tier]};
    the range may be left out. Or it is {"turns": [{"role": ..., "content": ...}, ...], "lo": tier, "hi": tier}: then
    the tiers for the last turn are measured, read in its conversation and alone.
    """
    from classifier.complexity.model import load_complexity, shipped_complexity
    from classifier.features.routing_input import routing_input_of_text
    from classifier.registry.artefact import default_artefact, load_artefact
    from classifier.training.fitting.complexity import fit_complexity, out_of_fold, predicted
    from classifier.training.metrics.complexity_report import (
        holds_conversations,
        measured,
        measured_conversations,
        read_conversations,
        read_labelled,
    )

    target, seed = options.train, options.seed
    if options.encoder is not None:
        if target is None:
            raise click.UsageError("--encoder needs --train FOLDER.")
        from classifier.training.recipes.fine_tune import FineTuneSettings, train_classes

        train_classes(read_labelled(rows), options.encoder, target, FineTuneSettings(seed=seed))
        echo_answer(as_json, {"encoder": target}, f"AIO_CLASSIFIER_ENCODER={target} classifies by it")
        return
    if holds_conversations(rows):
        if target is not None:
            raise click.UsageError("--train takes prompts with classes, not conversations.")
        model = shipped_complexity() if options.model is None else load_complexity(options.model)
        conversations = measured_conversations(read_conversations(rows), model, load_artefact(default_artefact()))
        head = ["measure", "in context", "last turn alone", "length", "one tier for all"]
        echo_answer(as_json, conversations, table(head, conversations.lines()))
        return
    labelled = read_labelled(rows)
    outcome_model = load_artefact(default_artefact())
    if target is not None and options.prior is not None:
        from classifier.training.fitting.complexity_refit import out_of_fold_refits, read_unrated, refit_complexity

        prior, unrated = (
            load_complexity(options.prior),
            [] if options.unrated is None else read_unrated(options.unrated),
        )
        refit_complexity(prior, labelled, unrated, outcome_model, seed=seed).save(target)
        predictions = out_of_fold_refits(prior, labelled, unrated, outcome_model, seed=seed)
    elif target is not None:
        fit_complexity(labelled, outcome_model, seed=seed).save(target)
        predictions = out_of_fold(labelled, outcome_model, seed=seed)
    else:
        model = shipped_complexity() if options.model is None else load_complexity(options.model)
        predictions = predicted(model, [routing_input_of_text(row.prompt) for row in labelled], outcome_model)
    report = measured(labelled, predictions)
    echo_answer(as_json, report, table(["measure", "model", "length alone"], [list(line) for line in report.lines()]))


@click.command("follow-up")
@click.argument("rows", type=FILE)
@click.option(
    "--train", "target", type=NEW_FILE, help="Train on AIO's own turns and on ROWS, and write the model to this file."
)
@click.option("--model", "model_file", type=FILE, help="Model to measure.  [the packaged one]")
@click.option("--seed", default=0, help="Seed of the training and of the folds.")
@json_option
def follow_up(rows: Path, target: Path | None, model_file: Path | None, seed: int, as_json: bool) -> None:
    """Measure on ROWS how well AIO knows whether a turn needs the earlier ones. With --train, it trains a model for
    this and measures it by cross-validation.

    A line of ROWS is {"turns": [{"role": ..., "content": ...}, ...], "follow_up": whether the last turn needs the
    others}, and perhaps a "weight" for training.
    """
    from classifier.features.follow_up_model import load_follow_up, shipped_follow_up
    from classifier.training.fitting.follow_up import (
        fit_follow_up,
        measured,
        out_of_fold,
        own_examples,
        predicted,
        read_dialogues,
    )

    dialogues = read_dialogues(rows)
    if target is not None:
        dialogues = [*own_examples(seed), *dialogues]
        fit_follow_up(dialogues).save(target)
        predictions = out_of_fold(dialogues, seed)
    else:
        predictions = predicted(shipped_follow_up() if model_file is None else load_follow_up(model_file), dialogues)
    report = measured(dialogues, predictions)
    echo_answer(as_json, report, table(["measure", "model"], report.lines()))


@click.command()
@click.option("--rollback", is_flag=True, help="Restore the previous classifier instead of training.")
@audit_reason_option
@with_settings("catalog", "data_dir", "database_url")
@click.option(
    "--cluster", "address", metavar="ADDRESS", help="Train on a Ray cluster: auto, HOST:PORT, ray://HOST:PORT."
)
@json_option
def retrain(rollback: bool, reason: str, address: str | None, as_json: bool, settings: Settings) -> None:
    """Train a classifier from stored outcomes, compare it with the serving one, and put it on trial or refuse it."""
    if rollback:
        version = _rollback(settings, reason)
        echo_answer(as_json, {"current": version}, f"classifier {version} serves again")
        return
    cluster = nullcontext() if address is None else joined(address)
    with cluster, staged_progress("retraining") as show:
        result = _retrain(settings, show, on_cluster=address is not None)
    if as_json:
        echo_json(result)
        return
    click.echo(f"{result.outcome}: {result.reason}")
    click.echo(f"incumbent {result.incumbent}, candidate {result.candidate or 'none'}, run {result.run_id}")
    for tier in (result.judgement or {}).get("calibration", []):
        slope = "not determined" if tier.get("slope") is None else "{:.2f} [{:.2f}, {:.2f}]".format(*tier["slope"])
        click.echo(f"tier {tier['tier']}: calibration slope {slope} (wanted: 0.9 to 1.1) on {tier['rows']} rows")


def _retrain(settings: Settings, show: "OnProgress", *, on_cluster: bool) -> "RetrainResult":
    from classifier.registry.registry import ArtefactRegistry
    from gateway.operations.labels.loop_setup import retrain_settings
    from quality.quality_loop import run_retraining
    from quality.retraining.training_process import run_training_process
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    train: Train = run_training_process
    if on_cluster:
        from gateway.runtime.cluster.training import train_on_cluster as train
    registry, ordered = ArtefactRegistry(settings.registry_path), retrain_settings(settings, catalog)
    return with_database(settings, lambda engine: run_retraining(registry, ordered, engine, "cli", show, train))


def _rollback(settings: Settings, reason: str) -> str:
    from classifier.registry.registry import ArtefactRegistry
    from quality.rollout.operator_commands import rollback

    registry = ArtefactRegistry(settings.registry_path)
    return with_database(settings, lambda engine: rollback(engine, registry, actor="cli", reason=reason))
