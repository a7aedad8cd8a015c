"""Which tiers are flagged: those that cost more than another without being right significantly more often."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from quality.estimates.verified_sample import wilson_interval
from quality.evaluation.tier_accuracy import (
    REPORT_FILE,
    AccuracyReport,
    ReportFileError,
    TierAccuracy,
    compare_tiers,
    mean_cost_usd,
    overpriced_tiers,
    store_report,
    stored_report,
    warnings_of,
)
from quality.statistics import better_p_value
from tiers.catalog.catalog import Catalog
from tiers.catalog.load import load_catalog
from tiers.catalog.tier_spec import Price

LAPTOP = load_catalog("laptop")


def accuracy(tier: int, correct: list[bool], completion_tokens: int = 10) -> TierAccuracy:
    return TierAccuracy(
        tier=tier, name=f"tier-{tier}", model="m", policy="plain",
        accuracy=wilson_interval(sum(correct), len(correct)), cells=[], correct=correct,
        prompt_tokens=20 * len(correct), completion_tokens=completion_tokens * len(correct), reasoning_tokens=0,
        mean_latency_seconds=1.0,
    )  # fmt: skip


def report_of(*correct: list[bool], catalog: Catalog = LAPTOP) -> AccuracyReport:
    # Tier 4 pays tier 3's price per token; it is dearer because it thinks.
    tiers = [accuracy(n, right, 50 if n == 4 else 10) for n, right in enumerate(correct, start=1)]
    return AccuracyReport(
        catalog="laptop", fingerprint=catalog.fingerprint, measured_at=datetime(2026, 1, 2, tzinfo=UTC), seed=7,
        per_level=5, concurrency=8, tiers=tiers,
    )  # fmt: skip


def first_right(count: int) -> list[bool]:
    return [place < count for place in range(100)]


def priced(*prices: float) -> Catalog:
    tiers = [
        msgspec.structs.replace(tier, price=Price(input_usd_per_million=price, output_usd_per_million=price))
        for tier, price in zip(LAPTOP.tiers, prices, strict=True)
    ]
    return msgspec.structs.replace(LAPTOP, tiers=tiers)


def flagged(report: AccuracyReport, catalog: Catalog = LAPTOP) -> dict[int, int]:
    """Flagged tier → the cheaper tier that it is no better than."""
    return {found.dearer: found.cheaper for found in overpriced_tiers(compare_tiers(report, catalog))}


def test_a_ladder_on_which_every_rung_is_better_is_not_flagged() -> None:
    assert flagged(report_of(first_right(20), first_right(40), first_right(60), first_right(80))) == {}


def test_a_dearer_tier_that_gives_the_same_answers_is_flagged() -> None:
    assert flagged(report_of(first_right(20), first_right(20), first_right(60), first_right(80))) == {2: 1}


def test_a_gain_that_chance_explains_is_flagged_and_one_task_more_is_not() -> None:
    assert flagged(report_of(first_right(20), first_right(24), first_right(60), first_right(80))) == {2: 1}
    assert flagged(report_of(first_right(20), first_right(25), first_right(60), first_right(80))) == {}


def test_a_worse_tier_is_flagged() -> None:
    assert flagged(report_of(first_right(40), first_right(20), first_right(60), first_right(80))) == {2: 1}


def test_to_beat_a_bad_neighbour_is_not_enough() -> None:
    # Tier 4 is far better than tier 3, and no better than tier 2, which costs a fraction.
    report = report_of(first_right(20), first_right(60), first_right(10), first_right(60))
    assert flagged(report) == {3: 1, 4: 2}


def test_the_comparison_counts_the_tasks_on_which_the_tiers_differ() -> None:
    report = report_of(first_right(50), [place >= 45 for place in range(100)], first_right(50), first_right(50))
    comparison = compare_tiers(report, LAPTOP)[0]

    assert (comparison.dearer, comparison.cheaper) == (2, 1)
    assert (comparison.gains, comparison.losses) == (50, 45)
    assert comparison.p_value == better_p_value(50, 45)


def test_every_tier_is_compared_with_every_cheaper_one() -> None:
    report = report_of(*[first_right(50)] * 4)
    assert [(c.dearer, c.cheaper) for c in compare_tiers(report, LAPTOP)] == [
        (2, 1), (3, 1), (3, 2), (4, 1), (4, 2), (4, 3)
    ]  # fmt: skip


def test_comparisons_use_the_present_prices() -> None:
    report = report_of(*[first_right(50)] * 4)
    assert flagged(report, priced(4.0, 3.0, 2.0, 0.5)) == {1: 4, 2: 4, 3: 4}


def test_a_tier_of_the_same_cost_is_not_flagged() -> None:
    report = report_of(*[first_right(50)] * 4)
    assert flagged(report, priced(1.0, 1.0, 1.0, 1.0)) == {4: 1}


def test_the_mean_cost_is_that_of_the_billed_tokens() -> None:
    price = Price(input_usd_per_million=1.0, output_usd_per_million=3.0)
    assert mean_cost_usd(accuracy(1, first_right(50)), price) == pytest.approx((20 * 1 + 10 * 3) / 1e6)


def test_the_warning_gives_costs_tasks_and_p_value() -> None:
    report = report_of(first_right(20), first_right(20), first_right(60), first_right(80))
    assert warnings_of(report, LAPTOP) == [
        "tier 2 costs 5 times tier 1 and was not measurably better on 100 tasks (p = 1): paying for it buys nothing"
    ]


def test_against_a_free_tier_no_ratio_is_claimed() -> None:
    (line,) = warnings_of(report_of(*[first_right(20)] * 2, first_right(60), first_right(80)), priced(0, 1, 2, 3))
    assert line.startswith("tier 2 costs more than tier 1 and")


def test_a_stored_report_is_found_again_by_the_same_catalogue_only(tmp_path: Path) -> None:
    report = report_of(*[first_right(20)] * 4)
    assert stored_report(tmp_path, LAPTOP) is None

    path = store_report(tmp_path / "data", report)

    assert path.name == REPORT_FILE
    assert stored_report(tmp_path / "data", LAPTOP) == report
    assert stored_report(tmp_path / "data", priced(1, 2, 3, 4)) == report
    assert stored_report(tmp_path / "data", load_catalog("datacenter")) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"[1]"])
def test_a_file_that_is_no_report_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / REPORT_FILE).write_bytes(content)
    with pytest.raises(ReportFileError, match="run `aio bench tiers` again"):
        stored_report(tmp_path, LAPTOP)


@pytest.mark.parametrize(
    "answers", [[first_right(20)] * 3, [first_right(20)] * 3 + [[True]], [[]] * 4], ids=["tier", "tasks", "empty"]
)
def test_a_report_that_lacks_answers_is_refused(tmp_path: Path, answers: list[list[bool]]) -> None:
    store_report(tmp_path, report_of(*answers))
    with pytest.raises(ReportFileError, match="same tasks"):
        stored_report(tmp_path, LAPTOP)
