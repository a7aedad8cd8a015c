"""What routing would have done while it was observed: by hand on small sets, and intervals on simulated traffic."""

import numpy as np
import pytest

from quality.comparison.observed_routing import (
    FEWEST,
    Observed,
    ObservedRouting,
    ShadowAnswers,
    in_words,
    summarise,
)
from quality.statistics import student_975, weighted_ratio


def observed(name: str, **changes: object) -> Observed:
    """Answered by tier 4 for a dollar, where routing would have paid a predicted ten cents at tier 1."""
    plain = {"request_id": name, "created_at": 1000.0, "given": 4, "would_be": 1, "paid_usd": 1.0, "expected_usd": 0.1}
    return Observed(**(plain | changes))  # type: ignore[arg-type]


def judged(name: str, label: str, answer_usd: float = 0.1, **changes: object) -> Observed:
    plain = {"label": label, "judge": "exact", "reliability": 0.9}
    return observed(name, answer_usd=answer_usd, drawn_as="shadow", **(plain | changes))


def report(rows: list[Observed], shadows: ShadowAnswers | None = None, checks_usd: float = 0.0) -> ObservedRouting:
    return summarise(rows, shadows or ShadowAnswers(), checks_usd)


def test_the_saving_is_over_all_requests_at_measured_costs_and_quality_over_the_judged_ones() -> None:
    rows = [
        judged("a", "no_worse", 0.3), judged("b", "no_worse", 0.1), judged("c", "worse", 0.2), judged("d", "tie", 0.2),
        *(observed(f"e{k}") for k in range(4)),
        *(observed(f"f{k}", would_be=4, expected_usd=1.0) for k in range(2)),
    ]  # fmt: skip

    found = report(rows, checks_usd=0.5)

    # Shadow answers cost twice their prediction: eight requests at twenty cents and two at a dollar, instead of ten.
    assert (found.requests, found.same, found.priced, found.judged, found.worse) == (10, 2, 4, 4, 1)
    assert found.cost_ratio == pytest.approx(2.0)
    assert (found.net.strongest_usd, found.net.paid_usd, found.net.checks_usd) == pytest.approx((10.0, 3.6, 0.5))
    assert found.net_share is not None
    assert found.net_share.value == found.net.share == pytest.approx(0.59)
    # Residuals 0.1, -0.1, 0, 0: a standard error of sqrt(0.02 * 4/3) / 0.4 of the ratio, on eight predicted dimes.
    half = student_975(3) * (0.02 * 4 / 3) ** 0.5 / 0.4 * 0.8 / 10
    assert (found.net_share.low, found.net_share.high) == pytest.approx((0.59 - half, 0.59 + half))
    # Three of four no worse, for eight of ten requests; the other two would not have changed.
    assert found.no_worse is not None
    assert found.no_worse.value == pytest.approx(0.8 * 0.75 + 0.2)
    # Wilson's interval of 3 of 4 is 0.3006 to 0.9544.
    assert (found.no_worse.low, found.no_worse.high) == pytest.approx((0.4405, 0.9635), abs=1e-4)


def test_an_answer_that_was_drawn_rarely_counts_for_those_that_were_not_drawn() -> None:
    often = [judged(f"o{k}", "no_worse", probability=0.5) for k in range(8)]
    rare = [judged(f"r{k}", "worse", probability=0.125) for k in range(2)]

    found = report([*often, *rare])

    # Weights 2 and 8: 16 of 32.
    assert found.no_worse is not None
    assert found.no_worse.value == pytest.approx(0.5)


def test_too_few_verdicts_are_said_to_be_too_few() -> None:
    found = report([judged(f"a{k}", "no_worse") for k in range(10)])

    assert not found.is_enough
    assert any(f"too little to decide by: 10 of at least {FEWEST} answers" in one for one in in_words(found))
    assert report([judged(f"a{k}", "no_worse") for k in range(FEWEST)]).is_enough


def test_without_a_shadow_answer_the_saving_is_the_prediction_without_an_interval() -> None:
    found = report([observed(f"a{k}") for k in range(5)])

    assert found.net_share is not None
    assert (found.net_share.value, found.net_share.low) == (pytest.approx(0.9), None)
    assert found.no_worse is None
    said = in_words(found)
    assert "90.0% less (predicted" in said[0]
    assert "not known yet" in said[1]


def test_routing_that_would_have_changed_nothing_saves_nothing_and_loses_nothing() -> None:
    found = report([observed(f"a{k}", would_be=4, expected_usd=1.0) for k in range(3)])

    assert found.net_share is not None
    assert found.no_worse is not None
    assert (found.net_share.value, found.net_share.low, found.net_share.high) == (0.0, 0.0, 0.0)
    assert (found.no_worse.value, found.no_worse.low) == (1.0, 1.0)
    assert found.is_enough


def test_a_dearer_choice_is_said_to_cost_more() -> None:
    found = report([observed("a", given=1, would_be=3, paid_usd=0.1, expected_usd=0.2)])

    assert "100.0% more" in in_words(found)[0]


def test_without_a_request_or_a_price_it_says_so() -> None:
    assert in_words(report([])) == []
    free = report([observed("a", paid_usd=0.0, expected_usd=0.0)])
    assert free.net_share is None
    assert "nothing to save" in in_words(free)[0]


def test_what_failed_and_what_no_judge_decided_is_said() -> None:
    said = " ".join(in_words(report([observed("a")], ShadowAnswers(undecided=2, failed=1, error="TierError: down"))))

    assert "without a verdict, which are left out: 2." in said
    assert "that failed: 1, for example: TierError: down" in said


def test_the_share_of_good_answers_says_by_how_many_verdicts() -> None:
    said = in_words(report([judged("a", "no_worse"), judged("b", "worse")]))[1]

    assert "by 2 judged answers, 1 of them worse" in said


def test_the_worst_come_first_worse_before_ties_and_surer_judges_before_others() -> None:
    rows = [
        judged("fine", "no_worse"), judged("tie", "tie"), judged("sure", "worse", reliability=0.99),
        judged("unsure", "worse"), observed("unjudged"),
    ]  # fmt: skip

    assert [one.request_id for one in report(rows).worst] == ["sure", "unsure", "tie", "fine"]
    assert len(report([judged(f"a{k}", "worse") for k in range(50)]).worst) == 20


def test_a_ratio_needs_three_observations_for_an_interval_and_a_total_below_the_line() -> None:
    two = weighted_ratio([1.0, 2.0], [1.0, 1.0], [1.0, 1.0])
    assert two is not None
    assert (two.value, two.half_width) == (1.5, None)
    assert weighted_ratio([], [], []) is None
    assert weighted_ratio([1.0], [0.0], [1.0]) is None


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.776), (9, 2.262), (29, 2.045), (199, 1.972)])
def test_the_quantile_is_that_of_the_tables(freedom: float, quantile: float) -> None:
    assert student_975(freedom) == pytest.approx(quantile, rel=0.01)


def test_the_intervals_cover_the_truth_of_simulated_traffic() -> None:
    """Costs are skewed, prediction errors differ by tier, harder prompts are drawn more often and fail more often."""
    generator = np.random.default_rng(7)
    runs, size = 300, 1200
    covered = {"saving": 0, "quality": 0}
    for _ in range(runs):
        paid = generator.lognormal(0.0, 0.8, size)
        would_be = generator.choice([1, 2, 4], size, p=[0.5, 0.25, 0.25])
        hard = generator.random(size) < 0.3
        expected = paid * np.select([would_be == 1, would_be == 2], [0.05, 0.3], 1.0)
        bias = np.where(would_be == 1, 1.6, 1.1) * generator.lognormal(0.0, 0.4, size)
        true_usd = np.where(would_be == 4, paid, expected * bias)
        good = np.where(would_be == 4, True, generator.random(size) < np.where(hard, 0.8, 0.95))
        chance = np.where(hard, 0.2, 0.1)
        drawn = (generator.random(size) < chance) & (would_be != 4)
        rows = [
            observed(
                str(k), would_be=int(would_be[k]), paid_usd=paid[k], expected_usd=expected[k],
                **(
                    {
                        "answer_usd": true_usd[k], "label": "no_worse" if good[k] else "worse",
                        "drawn_as": "shadow", "probability": chance[k],
                    }
                    if drawn[k]
                    else {}
                ),
            )
            for k in range(size)
        ]  # fmt: skip
        found = report(rows)
        assert found.net_share is not None
        assert found.no_worse is not None
        truths = {"saving": 1 - true_usd.sum() / paid.sum(), "quality": good.mean()}
        for name, interval in (("saving", found.net_share), ("quality", found.no_worse)):
            assert interval.low is not None
            assert interval.high is not None
            covered[name] += interval.low <= truths[name] <= interval.high

    # 95% of 300, less 3 standard deviations.
    assert min(covered.values()) >= runs * 0.95 - 3 * (runs * 0.95 * 0.05) ** 0.5, covered
