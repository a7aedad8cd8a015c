"""`aio quality calibrate`: measure and store how far each judge can be trusted on this catalogue."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import (
    FOLDER,
    cache_dir_option,
    catalog_option,
    data_dir_option,
    database_option,
    echo_json,
    json_option,
    settings_from,
    shown_progress,
    table,
)

if TYPE_CHECKING:
    from gateway.base.settings import Settings
    from quality.evaluation.collect_outcomes import Question
    from quality.judges.calibration import Calibration, GradedPair
    from quality.judges.catalogue_pairs import Progress
    from tiers.catalog.catalog import Catalog


@click.command()
@click.option("--tasks", type=click.IntRange(0, 5000), default=60, help="Number of generated tasks.")
@click.option("--word-problems", type=click.IntRange(0, 300), default=0, help="GSM8K problems from --data.")
@click.option("--data", type=FOLDER, help="Public data.  [AIO_DATA]")
@click.option("--judging", type=click.IntRange(0, 5000), default=60, help="Answer pairs that the model judge compares.")
@click.option("--seed", default=11, help="Seed of the generated tasks.")
@click.option("--concurrency", type=click.IntRange(min=1), default=8, help="Answers in flight.")
@catalog_option
@data_dir_option
@cache_dir_option
@database_option
@json_option
def calibrate(
    tasks: int,
    word_problems: int,
    data: Path | None,
    judging: int,
    seed: int,
    concurrency: int,
    as_json: bool,
    **options: Any,
) -> None:
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

    settings = settings_from(role="all", **options)
    catalog = load_catalog(settings.catalog)
    questions = graded_questions(seed, tasks)
    if word_problems:
        questions += public_problems(data or data_folder(), word_problems)
    with shown_progress() as progress:
        found, pairs = asyncio.run(_measure(settings, catalog, questions, judging, concurrency, progress))
    if as_json:
        echo_json({"catalogue": catalog.fingerprint, "judges": [_plain(one) for one in found]})
        return
    no_worse = sum(pair.no_worse for pair in pairs)
    click.echo(f"{len(pairs)} pairs of answers by {catalog.name}'s tiers: {no_worse} no worse than the strongest's\n")
    click.echo(_shown(found))
    for one in found:
        if one.bias is not None:
            click.echo(f"\n{one.judge}: {one.bias.in_words}")


async def _measure(
    settings: "Settings",
    catalog: "Catalog",
    questions: "list[Question]",
    judging: int,
    concurrency: int,
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
            pairs = await answered_pairs(tiers, catalog, questions, concurrency=concurrency, progress=progress)
            found = [await measure(judge, pairs) for judge in rule_based_judges()]
            if judging:
                progress("judging", 0.9)
                found.append(await measure_model(PairwiseJudge(tiers[-1]), _spread(pairs, judging)))
        now = time.time()
        for calibration in found:
            await store_calibration(database, calibration, catalog.fingerprint, now, "aio quality calibrate")
    return found, pairs


def _spread(pairs: "list[GradedPair]", count: int) -> "list[GradedPair]":
    """Take `count` pairs at even steps, equally of both outcomes if there are enough."""
    good, bad = ([pair for pair in pairs if pair.no_worse is outcome] for outcome in (True, False))
    half = min(len(good), len(bad), count // 2)
    return [side[place * len(side) // half] for side in (good, bad) for place in range(half)]


def _plain(one: "Calibration") -> dict[str, Any]:
    from msgspec import to_builtins

    derived = ("sensitivity", "specificity", "balanced_accuracy", "lower_bound", "trusted")
    counts: dict[str, Any] = to_builtins(one)
    return counts | {name: getattr(one, name) for name in derived}


def _shown(found: "list[Calibration]") -> str:
    rows = [
        [
            one.judge,
            one.pairs,
            f"{one.true_no_worse}/{one.true_no_worse + one.false_worse}",
            f"{one.true_worse}/{one.true_worse + one.false_no_worse}",
            str(one.abstained),
            f"{one.balanced_accuracy:.3f}",
            f"{one.lower_bound:.3f}",
            "makes labels" if one.trusted else "makes none",
        ]
        for one in found
    ]
    head = ["judge", "pairs", "no worse, correct", "worse, correct", "abstained", "balanced", "lower bound", ""]
    return table(head, rows)
