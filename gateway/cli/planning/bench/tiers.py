"""`aio bench tiers`: what each tier of a catalogue gets right, and which tiers are not worth their price; `aio bench
ladder`: how often each is right on tasks like those that the ladder's adapter learned."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
import msgspec

from gateway.base.field_types import Count
from gateway.base.settings import Settings
from gateway.cli.options import MACHINE, echo_json, gone_option, json_option, shown_progress, table, with_settings
from gateway.cli.typed_options import options_of

if TYPE_CHECKING:
    from quality.estimates.verified_sample import Share
    from quality.evaluation.ladder import LadderScores, LadderTask
    from quality.evaluation.tier_accuracy import AccuracyReport, TierComparison
    from tiers.catalog.catalog import Catalog


T = TypeVar("T")


class TierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `aio bench tiers`."""

    per_level: Count = 10
    """Tasks of each kind and level."""
    seed: int = 7
    """Seed of the generated tasks."""
    concurrency: Count = 16
    """Tasks in flight on one tier."""


@click.command()
@options_of(TierOptions)
@with_settings(*MACHINE, role="all")
@json_option
def tiers(options: TierOptions, as_json: bool, settings: Settings) -> None:
    """Ask every tier the graded tasks: copying, spelling, comparing and arithmetic, five levels each.

    Shows how often each tier is right, what it costs, and whether the dearer tiers are measurably better than the
    cheaper ones. The result is kept in the data folder; `aio serve` and `aio models` warn by it.
    """
    from gateway.base.stores.data_folder import private_data_folder
    from quality.evaluation.task_set import tasks
    from quality.evaluation.tier_accuracy import compare_tiers, measure_tiers, store_report, warnings_of
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    try:
        tasks(options.seed, options.per_level)
    except ValueError as error:
        raise click.UsageError(f"--per-level {options.per_level}: {error}") from error
    how = msgspec.structs.asdict(options)
    with shown_progress() as progress:
        report = asyncio.run(_measured(settings, catalog, measure_tiers, **how, progress=progress))
    private_data_folder(settings.data_path)
    path = store_report(settings.data_path, report)
    comparisons, warnings = compare_tiers(report, catalog), warnings_of(report, catalog)
    if as_json:
        echo_json({"report": report, "comparisons": comparisons, "warnings": warnings})
        return
    click.echo(_accuracies(report, catalog))
    click.echo("\nright answers by kind and level\n" + _cells(report))
    click.echo("\nis the dearer tier better? (exact McNemar test, one-sided)\n" + _comparisons(comparisons))
    for line in warnings:
        click.secho(f"warning: {line}", fg="yellow")
    click.echo(f"kept in {path}")


async def _measured(settings: Settings, catalog: "Catalog", measure: Callable[..., Awaitable[T]], **how: Any) -> T:
    """Ask the tiers of a started catalogue."""
    from gateway.runtime.cores.engine import running_engine

    async with running_engine(settings, catalog) as engine:
        return await measure(list(engine.tiers.values()), catalog, **how)


def _accuracies(report: "AccuracyReport", catalog: "Catalog") -> str:
    from quality.evaluation.task_set import Kind
    from quality.evaluation.tier_accuracy import mean_cost_usd

    kinds = get_args(Kind)
    rows = []
    for tier in report.tiers:
        total = tier.accuracy.total
        rows.append(
            [
                str(tier.tier),
                tier.model,
                tier.policy,
                f"{tier.accuracy.count}/{total}",
                _percent(tier.accuracy),
                f"{tier.accuracy.low:.1%} to {tier.accuracy.high:.1%}",
                *(_percent(tier.of_kind(kind)) for kind in kinds),
                f"{tier.prompt_tokens / total:.1f}",
                f"{tier.completion_tokens / total:.1f}",
                f"${mean_cost_usd(tier, catalog.tier(tier.tier).price):.3g}",
                f"{tier.mean_latency_seconds:.2f} s",
            ]
        )
    costs = ["tokens in", "tokens out", "cost", f"latency, {report.concurrency} in flight"]
    return table(["tier", "model", "policy", "right", "accuracy", "95% interval", *kinds, *costs], rows)


def _cells(report: "AccuracyReport") -> str:
    head = ["kind", "level", *(tier.name for tier in report.tiers)]
    rows = [
        [cells[0].kind, str(cells[0].level), *(f"{cell.right.count}/{cell.right.total}" for cell in cells)]
        for cells in zip(*(tier.cells for tier in report.tiers), strict=True)
    ]
    return table(head, rows)


def _comparisons(comparisons: "list[TierComparison]") -> str:
    rows = [
        [
            f"tier {c.dearer}",
            f"tier {c.cheaper}",
            "" if c.cost_ratio is None else f"{c.cost_ratio:.3g} x",
            str(c.gains),
            str(c.losses),
            f"{c.p_value:.2g}",
            "better" if c.better else "not measurably better",
        ]
        for c in comparisons
    ]
    return table(["dearer", "cheaper", "cost", "only dearer right", "only cheaper right", "p", ""], rows)


def _percent(share: "Share") -> str:
    return "" if share.value is None else f"{share.value:.1%}"


@click.command()
@click.option("--per-level", type=click.IntRange(1, 10), default=3, help="Tasks of each family and level.")
@click.option("--concurrency", type=click.IntRange(min=1), default=16, help="Tasks in flight on one tier.")
@gone_option("--seed", "the tasks are always the same, so that results can be compared")
@with_settings(*MACHINE, role="all")
@json_option
def ladder(per_level: int, concurrency: int, as_json: bool, settings: Settings) -> None:
    """Ask every tier tasks with checkable answers, at six levels. The adapter of the catalogue `ladder` never saw the
    wordings of eleven families, and never trained on three further families.

    Tiers answer greedily. Shows the share of right answers with its 95% interval.
    """
    from quality.evaluation.ladder import PARTS, measured_ladder, measured_tasks
    from tiers.catalog.load import load_catalog

    catalog = load_catalog(settings.catalog)
    how = {"per_level": per_level, "concurrency": concurrency}
    with shown_progress() as progress:
        all_scores = asyncio.run(_measured(settings, catalog, measured_ladder, **how, progress=progress))
    if as_json:
        echo_json({"per_level": per_level, "scores": all_scores})
        return
    for part in PARTS:
        scores = [tier_scores for tier_scores in all_scores if tier_scores.part == part]
        title = "held-out wordings" if part == "held-out" else "families never trained"
        click.echo(f"{title}\n{_ladder_text(scores, catalog, measured_tasks(per_level, part))}\n")


def _ladder_text(scores: "list[LadderScores]", catalog: "Catalog", tasks: "list[LadderTask]") -> str:
    from quality.evaluation.ladder import LEVEL_PAIRS

    names = sorted({task.family for task in tasks})
    rows = []
    for tier_scores in scores:
        cells = [tier_scores.of(tasks, levels=pair) for pair in LEVEL_PAIRS]
        cells += [tier_scores.of(tasks, family=name) for name in names]
        rows.append(
            [
                catalog.tier(tier_scores.tier).name,
                f"{tier_scores.share.count}/{tier_scores.share.total}",
                tier_scores.share.shown(),
                *(f"{cell.count}/{cell.total}" for cell in cells),
                f"{sum(tier_scores.tokens) / len(tasks):.0f}",
            ]
        )
    levels = [f"levels {low} and {high}" for low, high in LEVEL_PAIRS]
    return table(["tier", "right", "95% interval", *levels, *names, "tokens"], rows)
