"""`aio classifier collect` and `probes`: outcomes of this catalogue's tiers, and evidence models fitted on them."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import msgspec
from msgspec import Meta

from gateway.base.field_types import Count, ExistingFile, ExistingFolder, NewFile
from gateway.base.settings import Settings
from gateway.cli.options import (
    FOLDER,
    MACHINE,
    NEW_FOLDER,
    echo_answer,
    json_option,
    shown_progress,
    table,
    with_settings,
)
from gateway.cli.typed_options import options_of
from quality.evaluation.task_set import Kind

if TYPE_CHECKING:
    from classifier.model.outcome_model import OutcomeModel
    from classifier.training.metrics.probe_evaluation import ProbeReport
    from quality.evaluation.collect_outcomes import Collection, Progress, Question
    from tiers.catalog.catalog import Catalog


class CollectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio classifier collect`."""

    tiers: str = "1,2,3,4"
    """Numbers of the tiers to ask, separated by commas."""
    tasks: Annotated[int, Meta(ge=0, le=5000)] = 400
    """Number of generated tasks."""
    kinds: tuple[Kind, ...] = msgspec.field(name="kind", default=())
    """A kind of generated tasks. May be repeated. [all]"""
    word_problems: Annotated[int, Meta(ge=0, le=300)] = 0
    """Number of GSM8K problems from --data."""
    choices: ExistingFile | None = None
    """Multiple-choice questions of your own as JSON lines: prompt with its options, answer with the letter."""
    data: ExistingFolder | None = None
    """Folder of public data. [AIO_DATA]"""
    second: bool = True
    """Ask a second time if the agreement of two answers is evidence."""
    seed: int = 11
    """Seed of the generated tasks."""
    concurrency: Count = 8
    """Answers in flight."""


@click.command()
@click.argument("folder", type=NEW_FOLDER)
@options_of(CollectOptions)
@with_settings(*MACHINE, role="all")
def collect(folder: Path, options: CollectOptions, settings: Settings) -> None:
    """Ask the tiers prompts with verifiable answers, and keep outcomes and evidence in FOLDER. It resumes a started
    folder.

    The prompts are generated tasks of graded difficulty, word problems with known answers and multiple choice. No
    texts are kept.
    """
    from classifier.training.data.dataset import data_folder
    from quality.evaluation.collect_outcomes import KINDS, Collection, choice_questions, graded_questions
    from quality.evaluation.collect_outcomes import word_problems as public_problems
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    numbers = _numbers(options.tiers, len(catalog.tiers))
    how = Collection(seed=options.seed, concurrency=options.concurrency, second=options.second)
    questions = graded_questions(options.seed, options.tasks, options.kinds or KINDS)
    if options.word_problems:
        questions += public_problems(options.data or data_folder(), options.word_problems)
    if options.choices is not None:
        questions += choice_questions(options.choices)
    with shown_progress() as progress:
        asked = asyncio.run(_collect(settings, catalog, folder, numbers, questions, how, progress))
    click.echo(f"{asked} answers were added to {folder}; aio classifier probes {folder} fits on them")


class ProbeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio classifier probes`."""

    registry: Path | None = None
    """Registry of evidence models. [probes/ in the data folder]"""
    promote: bool = True
    """Let `aio serve` use the models."""
    seed: int = 0
    """Seed of the split into folds."""
    report: NewFile | None = None
    """Write the figures to this file as JSON."""


@click.command()
@click.argument("folder", type=FOLDER)
@options_of(ProbeOptions)
@with_settings("catalog", "data_dir")
@json_option
def probes(folder: Path, options: ProbeOptions, as_json: bool, settings: Settings) -> None:
    """Fit models of answer lengths, and models that judge an answer before it is sent, on the outcomes in FOLDER, and
    measure them.

    A tier gets a model only if that judges better than the prompt alone. Running servers follow within
    AIO_ARTEFACT_POLL_SECONDS.
    """
    from classifier.training.metrics.probe_evaluation import make_probes
    from tiers.catalog.load import load_catalog

    strongest = len(load_catalog(settings.catalog).tiers)
    registry = options.registry or settings.probes_path
    made = make_probes(folder, registry, strongest, promote=options.promote, seed=options.seed)
    if options.report is not None:
        options.report.write_bytes(msgspec.json.format(msgspec.json.encode(made.report), indent=1) + b"\n")
    shown = f"{_shown(made.report)}\n{made.folder}: {'promoted' if options.promote else 'not promoted'}"
    echo_answer(as_json, made.report, shown)


async def _collect(
    settings: Settings,
    catalog: "Catalog",
    folder: Path,
    numbers: list[int],
    questions: "list[Question]",
    how: "Collection",
    progress: "Progress",
) -> int:
    from classifier.class_predictor import ClassPredictor
    from classifier.training.data.outcome_folder import OutcomeFolder
    from gateway.inference.class_prior import class_prior
    from gateway.runtime.cores.engine import running_engine
    from quality.evaluation.collect_outcomes import PromptModel, collect_outcomes, outcomes_manifest

    model = _classifier(settings, catalog)
    prompts = PromptModel(model, ClassPredictor(model, class_prior(catalog, settings.data_path)))
    outcomes = OutcomeFolder.begun(folder, outcomes_manifest(catalog, numbers, model, how))
    async with running_engine(settings, catalog) as engine:
        asked = [engine.tiers[number] for number in numbers]
        return await collect_outcomes(asked, catalog, outcomes, questions, prompts, how, progress)


def _classifier(settings: Settings, catalog: "Catalog") -> "OutcomeModel":
    from classifier.registry.artefact import default_artefact, load_artefact
    from classifier.registry.registry import ArtefactRegistry

    folder = ArtefactRegistry(settings.registry_path).current_or(default_artefact())
    return load_artefact(folder, catalog.fingerprint)


def _numbers(text: str, most: int) -> list[int]:
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers[-1] > most:
        raise click.UsageError(f"--tiers {text}: give numbers from 1 to {most}, separated by commas")
    return numbers


def _shown(report: "ProbeReport") -> str:
    parts = [_accuracies(report)]
    for tier in report.tiers:
        rows = [
            [
                score.way,
                _figure(score.auc, score.auc_interval),
                _figure(score.auc_in_task, score.auc_in_task_interval),
                _figure(score.more_in_task, score.more_in_task_interval, sign="+"),
                _figure(score.auc_in_level, score.auc_in_level_interval),
                _figure(score.more_in_level, score.more_in_level_interval, sign="+"),
                f"{score.brier:.3f}",
                f"{score.ece:.3f} ({score.ece_band:.3f})",
                f"{score.slope:.2f}",
            ]
            for score in tier.ways
        ]
        head = [
            "judged by",
            "AUC",
            "AUC in task",
            "more",
            "AUC in task and level",
            "more",
            "Brier",
            "ECE (perfect: 95%)",
            "slope (perfect: 1)",
        ]
        kept = "in use" if tier.tier in report.in_use else "not used: not better by its standard error"
        title = f"\ntier {tier.tier} ({tier.model}): {tier.label}, {tier.rate:.1%} of {tier.rows}; evidence {kept}"
        parts.append(f"{title}\n{table(head, rows)}")
    head = ["tier", "mean tokens", "mean absolute error", "error of the mean", "R2 of log"]
    rows = [
        [
            str(length.tier),
            f"{length.mean_tokens:.1f}",
            f"{length.absolute_error:.1f}",
            f"{length.absolute_error_of_mean:.1f}",
            f"{length.r_squared_of_log:.2f}",
        ]
        for length in report.lengths
    ]
    parts.append(f"\nlengths of answers\n{table(head, rows)}")
    return "\n".join(parts)


def _accuracies(report: "ProbeReport") -> str:
    tasks = sorted({task for by_task in report.accuracies.values() for task in by_task})
    rows = [
        [tier, *(f"{by_task[task][0]}/{by_task[task][1]}" if task in by_task else "" for task in tasks)]
        for tier, by_task in report.accuracies.items()
    ]
    return table(["tier", *tasks], rows)


def _figure(value: float, interval: tuple[float, float], sign: str = "") -> str:
    return f"{value:{sign}.3f} [{interval[0]:{sign}.3f}, {interval[1]:{sign}.3f}]"
