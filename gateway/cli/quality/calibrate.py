"""`aio quality calibrate`: measure and store how far each judge can be trusted on this catalogue."""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec
from msgspec import Meta

from gateway.base.field_types import Count, ExistingFolder
from gateway.base.settings import Settings
from gateway.cli.options import echo_json, json_option, shown_progress, table, with_settings
from gateway.cli.typed_options import options_of

if TYPE_CHECKING:
    from quality.evaluation.collect_outcomes import Question
    from quality.judges.calibration import Calibration, GradedPair
    from quality.judges.catalogue_pairs import Progress
    from tiers.catalog.catalog import Catalog


class CalibrateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio quality calibrate`."""

    tasks: Annotated[int, Meta(ge=0, le=5000)] = 60
    """Number of generated tasks."""
    word_problems: Annotated[int, Meta(ge=0, le=300)] = 0
    """Number of GSM8K problems from --data."""
    data: ExistingFolder | None = None
    """Folder of public data. [AIO_DATA]"""
    judging: Annotated[int, Meta(ge=0, le=5000)] = 60
    """Number of pairs of answers that the model judge compares."""
    seed: int = 11
    """Seed of the generated tasks."""
    concurrency: Count = 8
    """Answers in flight."""


@click.command()
@options_of(CalibrateOptions)
@with_settings("catalog", "data_dir", "cache_dir", "database_url", role="all")
@json_option
def calibrate(options: CalibrateOptions, as_json: bool, settings: Settings) -> None:
    """Ask questions with known answers to every tier, let each judge compare the answers, and count how often it is
    right.

    A judge whose balanced accuracy is not significantly above one half makes no labels; the labels of the others
    weigh by it. A judge that decided too few of the tiers' answers is measured on generated pairs; the one that asks
    the model on planted ones, one after another until it is known whether to trust it. The result is stored for this
    catalogue; `aio serve` reads it at start. --judging 0 leaves out the judge that asks the model.
    """
    from classifier.training.data.dataset import data_folder
    from quality.evaluation.collect_outcomes import graded_questions
    from quality.evaluation.collect_outcomes import word_problems as public_problems
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    questions = graded_questions(options.seed, options.tasks)
    if options.word_problems:
        questions += public_problems(options.data or data_folder(), options.word_problems)
    with shown_progress() as progress:
        calibrations, pairs = asyncio.run(_measure(settings, catalog, questions, options, progress))
    if as_json:
        echo_json({"catalogue": catalog.fingerprint, "judges": [_plain(calibration) for calibration in calibrations]})
        return
    no_worse = sum(pair.no_worse for pair in pairs)
    click.echo(f"{len(pairs)} pairs of answers by {catalog.name}'s tiers: {no_worse} no worse than the strongest's\n")
    click.echo(_shown(calibrations))
    for calibration in calibrations:
        if calibration.bias is not None:
            click.echo(f"\n{calibration.judge}: {calibration.bias.in_words}")


async def _measure(
    settings: Settings,
    catalog: "Catalog",
    questions: "list[Question]",
    options: CalibrateOptions,
    progress: "Progress",
) -> "tuple[list[Calibration], list[GradedPair]]":
    from gateway.base.stores.data_folder import private_data_folder
    from gateway.runtime.cores.engine import running_engine
    from quality.judges.catalogue_pairs import answered_pairs
    from quality.judges.pairwise import PairwiseJudge
    from quality.judges.panel import measure, rule_based_judges, store_calibration
    from quality.judges.self_calibration import measure_model
    from quality.store.database import database_needed, database_opened, require_schema

    private_data_folder(settings.data_path)
    with database_needed(settings.database):
        await require_schema(settings.database)
    async with database_opened(settings.database) as database:
        async with running_engine(settings, catalog) as engine:
            tiers = [engine.tiers[number] for number in sorted(engine.tiers)]
            pairs = await answered_pairs(tiers, catalog, questions, concurrency=options.concurrency, progress=progress)
            calibrations = [await measure(judge, pairs) for judge in rule_based_judges()]
            if options.judging:
                progress("judging", 0.9)
                calibrations.append(await measure_model(PairwiseJudge(tiers[-1]), _spread(pairs, options.judging)))
        now = time.time()
        for calibration in calibrations:
            await store_calibration(database, calibration, catalog.fingerprint, now, "aio quality calibrate")
    return calibrations, pairs


def _spread(pairs: "list[GradedPair]", count: int) -> "list[GradedPair]":
    """Take `count` pairs at even steps, equally of both outcomes if there are enough."""
    good, bad = ([pair for pair in pairs if pair.no_worse is outcome] for outcome in (True, False))
    half = min(len(good), len(bad), count // 2)
    return [side[index * len(side) // half] for side in (good, bad) for index in range(half)]


def _plain(calibration: "Calibration") -> dict[str, Any]:
    from msgspec import to_builtins

    derived = ("sensitivity", "specificity", "balanced_accuracy", "lower_bound", "trusted")
    counts: dict[str, Any] = to_builtins(calibration)
    return counts | {name: getattr(calibration, name) for name in derived}


def _shown(calibrations: "list[Calibration]") -> str:
    rows = [
        [
            calibration.judge,
            calibration.pairs,
            f"{calibration.true_no_worse}/{calibration.true_no_worse + calibration.false_worse}",
            f"{calibration.true_worse}/{calibration.true_worse + calibration.false_no_worse}",
            str(calibration.abstained),
            f"{calibration.balanced_accuracy:.3f}",
            f"{calibration.lower_bound:.3f}",
            "makes labels" if calibration.trusted else "makes none",
        ]
        for calibration in calibrations
    ]
    head = ["judge", "pairs", "no worse, correct", "worse, correct", "abstained", "balanced", "lower bound", ""]
    return table(head, rows)
