"""The comparison of rules: the fitted part is not reported, oracles are no worse, pages have the figures."""

import random

import pytest

from benchmarks.fleet.comparison import FITTED, REACTIVE, compare, fewest_misses
from benchmarks.fleet.comparison_tables import comparison_text, write_between
from benchmarks.fleet.scoring import Score, Setting
from gateway.planning.capacity.replica_profile import replica_profile
from gateway.planning.capacity.workload import Arrival
from gateway.planning.scaling.predictive import PredictiveKnobs
from gateway.planning.scaling.scaling import FleetSettings, ServiceObjectives


@pytest.fixture(scope="module")
def comparison():
    draw, at, arrivals = random.Random(2), 0.0, []
    while at < 300:
        at += draw.expovariate(2.0)
        arrivals.append(Arrival(at, 800, 40))
    return compare(
        Setting(
            trace="made",
            profile=replica_profile("llama-3.1-8b/awq-int4/l4"),
            fleet=FleetSettings(cold_start_s=18.0, least=1, most=8),
            objectives=ServiceObjectives(),
            arrivals=arrivals,
        )
    )


def test_only_what_comes_after_the_fitted_part_is_counted(comparison):
    assert comparison.since_s == pytest.approx(FITTED * comparison.until_s)
    scores = [comparison.fixed, *(score for duel in comparison.duels for score in (duel.reactive, duel.predictive))]
    assert len({score.requests for score in scores}) == 1
    assert scores[0].requests < 0.7 * 600


def test_every_reactive_rule_has_a_predictive_one_and_an_oracle_that_is_no_worse(comparison):
    assert [duel.reactive.rule for duel in comparison.duels] == list(REACTIVE)
    for duel in comparison.duels:
        assert duel.oracle.missed <= duel.predictive.missed
        assert duel.oracle.replica_hours <= duel.predictive.replica_hours
        assert duel.hindsight_oracle.missed <= duel.hindsight.missed
        assert duel.hindsight_oracle.replica_hours <= duel.hindsight.replica_hours


def test_the_table_stands_between_the_markers_of_a_page(comparison, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- x -->\nstale\n<!-- end x -->\nafter\n")
    write_between(page, "x", comparison_text(comparison))
    text = page.read_text()
    assert text.startswith("before\n<!-- x -->\n**made**")
    assert text.endswith("<!-- end x -->\nafter\n")
    assert "stale" not in text
    with pytest.raises(ValueError, match="no lines"):
        write_between(page, "y", "")


def fits(*figures: tuple[int, float]) -> list[Score]:
    """Scores of a rule on several fits: missed requests, replica-hours."""
    return [
        Score(
            rule="", knobs="", requests=100, missed=missed, replica_hours=hours, usd=0.0, ttft_p50_s=0.1,
            ttft_p99_s=0.2, changes=0,
        )
        for missed, hours in figures
    ]  # fmt: skip


def test_the_fewest_misses_are_chosen_among_knobs_that_keep_to_the_budget_at_every_speed():
    few, fewer, dear = (PredictiveKnobs(busy=busy) for busy in (0.9, 0.8, 0.5))
    tried = [(few, fits((9, 1.0), (9, 1.0))), (fewer, fits((5, 1.0), (4, 1.1))), (dear, fits((0, 0.9), (0, 1.2)))]

    assert fewest_misses(tried, fits((20, 1.0), (20, 1.0))) == fewer
    assert fewest_misses(tried, fits((20, 0.5), (20, 0.5))) == few


def test_a_faster_replay_is_the_same_trace_in_less_time():
    arrivals = [Arrival(2.0, 100, 10), Arrival(8.0, 200, 20)]
    whole = Setting(
        trace="made",
        profile=replica_profile("llama-3.1-8b/awq-int4/l4"),
        fleet=FleetSettings(cold_start_s=18.0),
        objectives=ServiceObjectives(),
        arrivals=arrivals,
        since=4.0,
    )
    faster = whole.at_speed(2.0)
    assert ([each.at for each in faster.arrivals], faster.since, faster.fleet) == ([1.0, 4.0], 2.0, whole.fleet)
    assert [each.prompt_tokens for each in faster.arrivals] == [100, 200]
