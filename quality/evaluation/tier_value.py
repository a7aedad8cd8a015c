"""Find tiers that cost more than another tier without being measurably better, by a stored measurement."""

from itertools import combinations
from pathlib import Path

import msgspec

from inference_core.io.atomic_file import atomic_file
from quality.evaluation.tier_accuracy import AccuracyReport, TierAccuracy
from quality.statistics import better_p_value
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import Price

LEVEL = 0.05
"""Significance level of "better": the largest probability of calling one of two equally good tiers better."""

REPORT_FILE = "tier_accuracy.json"


class ReportFileError(ValueError):
    """The stored measurement cannot be read. Measure again, or delete the file."""


class TierComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A more expensive tier against a cheaper one on the same tasks.

    `gains`: tasks that only the more expensive tier got right; `losses`: tasks that only the cheaper one did. `p_value`
    is that of the exact one-sided McNemar test (see `better_p_value`); `better` is p_value < `LEVEL`. `cost_ratio` is
    of mean costs, None if the cheaper tier is free.
    """

    dearer: int
    cheaper: int
    gains: int
    losses: int
    p_value: float
    better: bool
    cost_ratio: float | None


def mean_cost_usd(accuracy: TierAccuracy, price: Price) -> float:
    """Return the mean US dollars per task at `price`."""
    micro = price.input_usd_per_million * accuracy.prompt_tokens
    micro += price.output_usd_per_million * accuracy.completion_tokens
    return micro / 1e6 / accuracy.accuracy.total


def compare_tiers(report: AccuracyReport, catalog: Catalog) -> list[TierComparison]:
    """Compare every tier with every cheaper one at the catalogue's present prices; sorted by the dearer, then the
    cheaper tier."""
    costs = {measured.tier: mean_cost_usd(measured, catalog.tier(measured.tier).price) for measured in report.tiers}
    by_cost = sorted(report.tiers, key=lambda measured: costs[measured.tier])
    found = [
        _compare(cheap, dear, costs[cheap.tier], costs[dear.tier])
        for cheap, dear in combinations(by_cost, 2)
        if costs[dear.tier] > costs[cheap.tier]
    ]
    return sorted(found, key=lambda comparison: (costs[comparison.dearer], costs[comparison.cheaper]))


def _compare(cheap: TierAccuracy, dear: TierAccuracy, cheap_cost: float, dear_cost: float) -> TierComparison:
    pairs = list(zip(dear.correct, cheap.correct, strict=True))
    gains, losses = pairs.count((True, False)), pairs.count((False, True))
    p_value = better_p_value(gains, losses)
    return TierComparison(
        dearer=dear.tier,
        cheaper=cheap.tier,
        gains=gains,
        losses=losses,
        p_value=p_value,
        better=p_value < LEVEL,
        cost_ratio=dear_cost / cheap_cost if cheap_cost > 0 else None,
    )


def overpriced_tiers(comparisons: list[TierComparison]) -> list[TierComparison]:
    """Return one comparison per tier that is not better than every cheaper tier: with the cheapest it does not beat.

    A tier must beat all cheaper ones, each at `LEVEL` (an intersection-union test, Berger 1982), so that many
    comparisons do not raise the chance of a false "better".
    """
    first: dict[int, TierComparison] = {}
    for comparison in comparisons:
        if not comparison.better:
            first.setdefault(comparison.dearer, comparison)
    return list(first.values())


def warning_of(comparison: TierComparison, tasks: int) -> str:
    """Return one line for the operator who pays for the dearer tier."""
    times = "more than" if comparison.cost_ratio is None else f"{comparison.cost_ratio:.3g} times"
    return (
        f"tier {comparison.dearer} costs {times} tier {comparison.cheaper} and was not measurably better "
        f"on {tasks} tasks (p = {comparison.p_value:.2g}): paying for it buys nothing"
    )


def warnings_of(report: AccuracyReport, catalog: Catalog) -> list[str]:
    """Return a line for each tier of `catalog` that is overpriced by `report`."""
    return [
        warning_of(comparison, report.tiers[0].accuracy.total)
        for comparison in overpriced_tiers(compare_tiers(report, catalog))
    ]


def store_report(folder: Path, report: AccuracyReport) -> Path:
    """Replace the report in the data folder by `report`; return the file."""
    path = folder / REPORT_FILE
    with atomic_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(report), indent=1))
    return path


def stored_report(folder: Path, catalog: Catalog) -> AccuracyReport | None:
    """Return the measurement in the data folder; None unless its tiers match `catalog`'s.

    Raises `ReportFileError` for a file that is not such a report.
    """
    path = folder / REPORT_FILE
    try:
        report = msgspec.json.decode(path.read_bytes(), type=AccuracyReport)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ReportFileError(f"{path} cannot be read ({error}); run `aio bench tiers` again, or delete it") from error
    if report.fingerprint != catalog.fingerprint:
        return None
    if [tier.tier for tier in report.tiers] != [tier.number for tier in catalog.tiers] or not _same_tasks(report):
        raise ReportFileError(f"{path} does not say the same tasks of every tier; run `aio bench tiers` again")
    return report


def _same_tasks(report: AccuracyReport) -> bool:
    counts = {n for tier in report.tiers for n in (len(tier.correct), tier.accuracy.total)}
    return len(counts) == 1 and counts != {0}
