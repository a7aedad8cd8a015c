"""A back-test: what routing would have chosen for a log, its cost and its quality."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.inference.router import RoutingService
from gateway.planning.backtests.backtest import Backtest, gain_over_shuffled, saving
from gateway.planning.backtests.log import BacktestLogError, LogRow, TierNames, read_log
from tests.gateway.in_process_cli import aio
from tests.support.scripted_classifier import ScriptedClassifier
from tiers.catalog.load import load_catalog


def result_of(rows: Sequence[LogRow], p_ok: tuple[float, ...], *targets: float) -> Any:
    classifier = ScriptedClassifier()
    classifier.p_ok = p_ok
    routing = RoutingService(load_catalog("laptop"), {}, classifier, None)
    run = Backtest(routing, TierNames(4), targets)
    for row in rows:
        run.add(row)
    return run.report()


def test_cost_is_that_of_the_logged_tokens_at_the_prices_of_the_tier_that_would_have_been() -> None:
    rows = [LogRow(prompt="hello", prompt_tokens=1000, answer_tokens=2000, cost_usd=0.5)]
    # The scripted rule has lambda 1 - target: with the target 1 only quality counts, with 0.5 tier 1 is good enough.
    report = result_of(rows, (0.9, 0.9, 0.9, 1.0), 0.5, 1.0)
    cheap, best = report.targets
    assert (cheap.split, best.split) == ([1, 0, 0, 0], [0, 0, 0, 1])
    # Tier 1: $0.125 and $0.375 a million; tier 4: $3.75 and $11.25.
    assert (cheap.cost_usd, best.cost_usd) == (0.000875, 0.02625)
    assert cheap.saving.value == pytest.approx(1 - 0.000875 / 0.02625)
    assert (report.strongest_cost_usd, report.paid_usd, report.priced) == (0.02625, 0.5, 1)
    assert (cheap.predicted_no_worse, best.predicted_no_worse, cheap.labelled) == (0.9, 1.0, None)


def test_a_row_without_an_answers_length_is_priced_at_the_catalogues() -> None:
    report = result_of([LogRow(prompt="hello", prompt_tokens=0)], (0.9, 0.9, 0.9, 1.0), 1.0)
    assert (report.targets[0].cost_usd, report.estimated_answers) == (pytest.approx(822 * 11.25 / 1e6), 1)


def test_quality_is_measured_where_labels_say_it_among_the_labelled_tiers() -> None:
    rows = [
        LogRow(prompt="a", scores={"1": 1, "2": 1, "3": 1, "4": 1}),
        LogRow(prompt="b", scores={"1": 0, "2": 1, "3": 1, "4": 0}),  # the strongest is wrong too: no worse
        LogRow(prompt="c", scores={"1": 0, "2": 1, "3": 1, "4": 0.5}),
        LogRow(prompt="d", scores={"tier-2": 0.4, "4": 0.9}),  # tier 1 is not labelled, so tier 2 is the cheapest
        LogRow(prompt="e", scores={"1": 1}),  # without the strongest nothing is known
        LogRow(prompt="f"),
    ]
    report = result_of(rows, (0.9, 0.9, 0.9, 1.0), 0.5)
    [found] = report.targets
    assert (report.rows, report.labelled, report.tiers_labelled) == (6, 4, [4, 4, 3, 4])
    assert found.split == [1, 0, 0, 0]
    assert (found.labelled.no_worse.count, found.labelled.no_worse.total) == (2, 4)


def test_intervals_are_those_of_a_bootstrap() -> None:
    rng = np.random.default_rng(1)
    n = 1500
    known = rng.random((n, 4)) < (0.6, 0.7, 0.8, 1.0)
    worth = known.astype(np.float64)
    worth[: n // 3, [0, 2]] = np.nan
    chosen = np.where(rng.random(n) < 0.5, 1, 3)
    chosen = np.where((worth[:, 1] < 1) & (rng.random(n) < 0.4), 3, chosen)
    group = (np.arange(n) < n // 3).astype(np.intp)
    costs, baseline = rng.exponential(1.0, n), rng.exponential(3.0, n)
    draws = [rng.integers(0, n, n) for _ in range(400)]
    for found, drawn in (
        (saving(costs, baseline), [saving(costs[d], baseline[d]).value for d in draws]),
        (
            gain_over_shuffled(worth, chosen, group),
            [gain_over_shuffled(worth[d], chosen[d], group[d]).value for d in draws],
        ),
    ):
        low, high = np.quantile(drawn, [0.025, 0.975])
        assert found.low < found.value < found.high
        assert (found.low, found.high) == pytest.approx((low, high), abs=0.15 * (high - low))
        assert found.value > 0


def test_choices_that_know_nothing_gain_nothing() -> None:
    rng = np.random.default_rng(2)
    worth = (rng.random((4000, 4)) < 0.7).astype(np.float64)
    found = gain_over_shuffled(worth, rng.integers(0, 4, 4000), np.zeros(4000, np.intp))
    assert found.low < 0 < found.high


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2"),
        ('{"id": 1}', 'line 2: give either "prompt" or "messages"'),
        ('{"prompt": "a", "messages": []}', "line 2: give either"),
        ('{"prompt": "a", "answer_tokens": -1}', "line 2: Expected `int` >= 0 - at `$.answer_tokens`"),
        ('{"prompt": "a", "scores": {"1": 2}}', "line 2: Expected `float` <= 1"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    with pytest.raises(BacktestLogError) as caught:
        list(read_log(path))
    assert said in str(caught.value)


def test_content_parts_and_unknown_fields_are_read_as_other_tools_write_them(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    turns = [{"role": "user", "content": parts}, {"role": "assistant", "content": None, "tool_calls": []}]
    [row] = read_log(written(tmp_path / "log.jsonl", {"messages": turns, "latency_ms": 3}))
    assert [turn.text for turn in row.turns] == ["one two", ""]


def test_the_command_prints_the_split_the_cost_and_the_quality(tmp_path: Path) -> None:
    log = written(
        tmp_path / "log.jsonl",
        *(
            {"prompt": f"What is {i} plus {i}?", "scores": {"small": i % 2, "4": 1}, "answer_tokens": 10}
            for i in range(30)
        ),
    )
    place = ("--data-dir", str(tmp_path), "--quality", "0.9", "--tier", "small=1")
    shown = aio("backtest", str(log), *place)
    assert shown.exit_code == 0, shown.output
    assert "30 requests, decided by" in shown.output
    assert "measured on the 30 labelled rows (labels: tier 1 30, tier 2 0, tier 3 0, tier 4 30)" in shown.output
    report = json.loads(aio("backtest", str(log), *place, "--json").output)
    [target] = report["targets"]
    assert (target["quality_target"], sum(target["split"])) == (0.9, pytest.approx(1))
    refused = aio("backtest", str(log), *place, "--training", "own")
    assert (refused.exit_code, "`aio outcomes import` learns" in refused.output) == (2, True)


def test_few_labels_are_no_figure_and_the_targets_are_those_with_names(tmp_path: Path) -> None:
    rows = ({"prompt": f"What is {i} plus {i}?", "scores": {"1": 1, "4": 1}} for i in range(2))
    shown = aio("backtest", str(written(tmp_path / "log.jsonl", *rows)), "--data-dir", str(tmp_path)).output
    assert "2 rows have labels of the strongest tier and of another one; quality is shown here from 30" in shown
    assert "no worse than the strongest" not in shown
    assert re.findall(r"^(\d\.\d\d) (\w+)", shown, re.MULTILINE) == [
        ("0.50", "economy"), ("0.70", "balanced"), ("0.90", "careful")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((), "unknown name 'small' in scores; known are 1, 2, 3, 4, tier-1"), (("--tier", "small"), "give NAME=NUMBER")],
)
def test_a_name_that_means_no_tier_is_explained(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    log = written(tmp_path / "log.jsonl", {"prompt": "a", "scores": {"small": 1}})
    shown = aio("backtest", str(log), "--data-dir", str(tmp_path), *arguments)
    assert shown.exit_code != 0
    assert said in shown.output


def test_an_empty_log_is_no_result(tmp_path: Path) -> None:
    shown = aio("backtest", str(written(tmp_path / "log.jsonl")), "--data-dir", str(tmp_path))
    assert (shown.exit_code, "has no rows" in shown.output) == (1, True)
