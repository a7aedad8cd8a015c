"""`aio bench ladder`: how often each tier is right on the tasks that the ladder's adapter learns, in other wordings."""

import asyncio
from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.options import (
    cache_dir_option,
    catalog_option,
    data_dir_option,
    echo_json,
    json_option,
    settings_from,
    shown_progress,
    table,
)

if TYPE_CHECKING:
    from gateway.base.settings import Settings
    from quality.distillation.ladder.measure import LadderScores, MeasuredPart
    from quality.evaluation.everyday_outcomes import Progress
    from tiers.catalog.catalog import Catalog


@click.command()
@click.option(
    "--per-level", type=click.IntRange(1, 10), default=3, show_default=True, help="Tasks of each family and level."
)
@click.option("--seed", default=1, show_default=True, help="Of the generated tasks.")
@click.option(
    "--concurrency", type=click.IntRange(min=1), default=16, show_default=True, help="Tasks in flight on one tier."
)
@catalog_option
@data_dir_option
@cache_dir_option
@json_option
def ladder(seed: int, per_level: int, concurrency: int, as_json: bool, **options: Any) -> None:
    """Ask tasks with checkable answers to every tier: eleven families in wordings that `aio adapters train --recipe
    ladder` never uses, and three families that it never trains, at six levels each.

    Tiers answer greedily. Shows the share of right answers with its 95% interval.
    """
    from quality.distillation.ladder.measure import PARTS
    from tiers.catalog.load import load_catalog

    settings = settings_from(role="all", **options)
    catalog = load_catalog(settings.catalog)
    with shown_progress() as progress:
        found = asyncio.run(_measure(settings, catalog, seed, per_level, concurrency, progress))
    if as_json:
        echo_json({"seed": seed, "per_level": per_level, "scores": found})
        return
    for part in PARTS:
        scores = [one for one in found if one.part == part]
        title = "held-out wordings" if part == "held-out" else "families never trained"
        click.echo(f"{title}\n{_shown(scores, catalog, seed, per_level, part)}\n")


async def _measure(
    settings: "Settings", catalog: "Catalog", seed: int, per_level: int, concurrency: int, progress: "Progress"
) -> "list[LadderScores]":
    from gateway.runtime.cores.engine import running_engine
    from quality.distillation.ladder.measure import measured_ladder

    async with running_engine(settings, catalog) as engine:
        return await measured_ladder(
            list(engine.tiers.values()),
            catalog,
            seed=seed,
            per_level=per_level,
            concurrency=concurrency,
            progress=progress,
        )


def _shown(scores: "list[LadderScores]", catalog: "Catalog", seed: int, per_level: int, part: "MeasuredPart") -> str:
    from quality.distillation.ladder.measure import LEVEL_PAIRS
    from quality.distillation.ladder.tasks import families, ladder_tasks

    tasks = ladder_tasks(seed, per_level, part)
    names = families(part)
    rows = []
    for one in scores:
        cells = [one.of(tasks, levels=pair) for pair in LEVEL_PAIRS] + [one.of(tasks, family=name) for name in names]
        rows.append(
            [
                catalog.tier(one.tier).name,
                f"{one.share.count}/{one.share.total}",
                one.share.shown(),
                *(f"{cell.count}/{cell.total}" for cell in cells),
                f"{sum(one.tokens) / len(tasks):.0f}",
            ]
        )
    levels = [f"levels {low} and {high}" for low, high in LEVEL_PAIRS]
    return table(["tier", "right", "95% interval", *levels, *names, "tokens"], rows)
