"""`aio classifier collect` and `probes`: outcomes of this catalogue's tiers, and evidence models fitted on them."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import (
    FILE,
    FOLDER,
    NEW_FILE,
    NEW_FOLDER,
    cache_dir_option,
    catalog_option,
    data_dir_option,
    echo_answer,
    json_option,
    settings_from,
    shown_progress,
    table,
)

if TYPE_CHECKING:
    from classifier.model.outcome_model import OutcomeModel
    from classifier.training.metrics.probe_evaluation import ProbeReport
    from gateway.base.settings import Settings
    from quality.evaluation.collect_outcomes import Collection, Progress, Question
    from quality.evaluation.task_set import Kind
    from tiers.catalog.catalog import Catalog


@click.command()
@click.argument("folder", type=NEW_FOLDER)
@click.option("--tiers", default="1,2,3,4", help="Numbers of the tiers to ask.")
@click.option("--tasks", type=click.IntRange(0, 5000), default=400, help="Number of generated tasks.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(["copy", "spell", "compare", "arithmetic"]),
    help="Kinds of the generated tasks.  [all]",
)
@click.option("--word-problems", type=click.IntRange(0, 300), default=0, help="GSM8K problems from --data.")
@click.option(
    "--choices",
    type=FILE,
    help="Own multiple-choice questions as JSON lines: prompt with its options, answer with the letter.",
)
@click.option("--data", type=FOLDER, help="Public data.  [AIO_DATA]")
@click.option("--second/--no-second", default=True, help="Ask again where agreement can check the answer.")
@click.option("--seed", default=11, help="Seed of the generated tasks.")
@click.option("--concurrency", type=click.IntRange(min=1), default=8, help="Answers in flight.")
@catalog_option
@data_dir_option
@cache_dir_option
def collect(
    folder: Path,
    tiers: str,
    tasks: int,
    kinds: tuple["Kind", ...],
    word_problems: int,
    choices: Path | None,
    data: Path | None,
    second: bool,
    seed: int,
    concurrency: int,
    **options: Any,
) -> None:
    """Ask the tiers verifiable prompts and keep outcomes and evidence in FOLDER; resumes a started folder.

    The prompts are generated tasks of graded difficulty, word problems with known answers and multiple choice. No
    texts are kept.
    """
    from classifier.training.data.dataset import data_folder
    from quality.evaluation.collect_outcomes import KINDS, Collection, choice_questions, graded_questions
    from quality.evaluation.collect_outcomes import word_problems as public_problems
    from tiers.catalog.load import load_catalog

    settings = settings_from(role="all", **options)
    catalog = load_catalog(settings.catalog)
    numbers = _numbers(tiers, len(catalog.tiers))
    how = Collection(seed=seed, concurrency=concurrency, second=second)
    questions = graded_questions(seed, tasks, kinds or KINDS)
    if word_problems:
        questions += public_problems(data or data_folder(), word_problems)
    if choices is not None:
        questions += choice_questions(choices)
    with shown_progress() as progress:
        asked = asyncio.run(_collect(settings, catalog, folder, numbers, questions, how, progress))
    click.echo(f"{asked} answers were added to {folder}; aio classifier probes {folder} fits on them")


@click.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--registry", type=click.Path(path_type=Path), help="Registry of evidence models.  [probes/ in the data folder]"
)
@click.option("--promote/--no-promote", default=True, help="Whether `aio serve` uses them.")
@click.option("--seed", default=0)
@click.option("--report", type=NEW_FILE, help="Write the figures there as JSON.")
@catalog_option
@data_dir_option
@json_option
def probes(
    folder: Path, registry: Path | None, promote: bool, seed: int, report: Path | None, as_json: bool, **options: Any
) -> None:
    """Fit models that judge an answer before it is sent, and answer lengths, on the outcomes in FOLDER, and measure
    them.

    A tier gets a model only if that judges better than the prompt alone. Running servers follow within
    AIO_ARTEFACT_POLL_SECONDS.
    """
    from classifier.training.metrics.probe_evaluation import make_probes
    from tiers.catalog.load import load_catalog

    settings = settings_from(**options)
    strongest = len(load_catalog(settings.catalog).tiers)
    made = make_probes(folder, registry or settings.probes_path, strongest, promote=promote, seed=seed)
    if report is not None:
        import msgspec

        report.write_bytes(msgspec.json.format(msgspec.json.encode(made.report), indent=1) + b"\n")
    shown = f"{_shown(made.report)}\n{made.folder}: {'promoted' if promote else 'not promoted'}"
    echo_answer(as_json, made.report, shown)


async def _collect(
    settings: "Settings",
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


def _classifier(settings: "Settings", catalog: "Catalog") -> "OutcomeModel":
    from classifier.registry.artefact import default_artefact, load_artefact
    from classifier.registry.registry import ArtefactRegistry

    folder = ArtefactRegistry(settings.registry_path).current_or(default_artefact())
    return load_artefact(folder, catalog.fingerprint)


def _numbers(given: str, most: int) -> list[int]:
    try:
        numbers = sorted({int(part) for part in given.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers[-1] > most:
        raise click.UsageError(f"--tiers {given}: give numbers from 1 to {most}, separated by commas")
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
    tasks = sorted({task for found in report.accuracies.values() for task in found})
    rows = [
        [tier, *(f"{found[task][0]}/{found[task][1]}" if task in found else "" for task in tasks)]
        for tier, found in report.accuracies.items()
    ]
    return table(["tier", *tasks], rows)


def _figure(value: float, interval: tuple[float, float], sign: str = "") -> str:
    return f"{value:{sign}.3f} [{interval[0]:{sign}.3f}, {interval[1]:{sign}.3f}]"
