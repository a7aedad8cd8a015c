"""The stage of agreement on made answers: every figure is computed by hand."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.cascade.hull import best_by_group, least_cost
from benchmarks.cascade.recorded import agree, read_answers
from benchmarks.cascade.savings import Ladder, SavingResults
from benchmarks.report.measurement import read_results
from quality.comparison.joint_runs import best_quality

LADDER = ("small", "middle", "large")


def row(name: str, answers: dict[str, Any], truth: Any = "A", kind: str = "letter", **more: Any) -> dict[str, Any]:
    """A recorded prompt; `answers`: one of each model, or a list of completions."""
    given = {
        model: [[one, int(one == truth), 10, 0, None] for one in (found if isinstance(found, list) else [found])]
        for model, found in answers.items()
    }
    return {"id": name, "source": "made", "domain": "d", "format": kind, "truth": truth, "a": given} | more


def trio(name: str, small: Any, middle: Any, large: Any = "A") -> dict[str, Any]:
    return row(name, dict(zip(LADDER, (small, middle, large), strict=True)))


def written(folder: Path, rows: list[dict[str, Any]], name: str = "answers.jsonl.gz") -> Path:
    file = folder / name
    with gzip.open(file, "wt") if name.endswith(".gz") else file.open("w") as lines:
        lines.writelines(json.dumps(one) + "\n" for one in rows)
    return file


def run(file: Path, *options: str, ladder: str = "small,middle,large", prices: str = "1,5,30") -> dict[str, Any]:
    given = ["cascade", str(file), "--ladder", ladder, "--prices", prices, "--json", *options]
    shown = CliRunner().invoke(main, given, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    found: dict[str, Any] = json.loads(shown.output)
    return found


FOUR = [trio("1", "A", "A"), trio("2", "A", "A"), trio("3", "B", "A"), trio("4", None, None)]


def test_the_figures_of_four_prompts_are_those_computed_by_hand(tmp_path: Path) -> None:
    found = run(written(tmp_path, FOUR))
    assert (found["rows"], found["ladder"], found["prices"]) == (4, list(LADDER), [1.0, 5.0, 30.0])
    # Six for the cheap answers of each prompt, thirty for two of them: 84 of 120. All four are right.
    assert found["cost"] == pytest.approx(0.7)
    assert found["quality"] == pytest.approx(1.0)
    assert (found["asked"], found["agreed"]) == (1.0, 0.5)
    # The lottery between the middle (3 of 4 at 1/6) and the large one at 0.7 has 0.91; shuffled 0.5 of the middle's.
    assert found["gain"] == pytest.approx(9.0)
    assert found["shuffled_gain"] == pytest.approx(100 * (0.5 * 0.75 + 0.5 - 0.91))
    assert found["lottery_cost_at_98"] == pytest.approx(1 / 6 + 0.92 * 5 / 6)
    assert found["cost_at_98"] == pytest.approx(1 / 6 + 0.92 * (0.7 - 1 / 6))
    assert found["utility"] == pytest.approx(3.0)
    assert found["gain_over_domains"] == pytest.approx(9.0)
    assert found["gain_low"] <= found["gain"] <= found["gain_high"]


def test_agreement_on_a_wrong_answer_costs_points(tmp_path: Path) -> None:
    found = run(written(tmp_path, [FOUR[0], trio("2", "B", "B"), *FOUR[2:]]))
    assert found["quality"] == pytest.approx(0.75)
    assert found["gain"] == pytest.approx(-7.0)
    assert found["cost_at_98"] == found["lottery_cost_at_98"] == pytest.approx(1 / 6 + 0.96 * 5 / 6)


def test_the_scale_and_order_of_prices_change_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, FOUR, "answers.jsonl")
    turned = run(file, ladder="large,small,middle", prices="0.003,0.0001,0.0005")
    same = ("cost", "quality", "gain", "gain_low", "shuffled_gain", "cost_at_98", "utility")
    whole = run(file)
    assert [turned[name] for name in same] == pytest.approx([whole[name] for name in same])


def test_of_two_models_the_strongest_answers_all(tmp_path: Path) -> None:
    found = run(written(tmp_path, FOUR), ladder="small,large", prices="1,30")
    assert (found["cost"], found["quality"], found["gain"], found["asked"]) == (1.0, 1.0, 0.0, 0.0)


def test_of_four_models_the_middle_may_agree_with_either_cheap_one(tmp_path: Path) -> None:
    names = ("tiny", *LADDER)
    rows = [row(str(i), dict(zip(names, one, strict=True))) for i, one in enumerate(("ABAA", "BAAA", "BBAA"))]
    found = run(written(tmp_path, rows), ladder="tiny,small,middle,large", prices="1,2,5,30")
    assert found["agreed"] == pytest.approx(2 / 3)
    assert found["cost"] == pytest.approx((8 * 3 + 30) / 90)


def test_completions_of_a_prompt_weigh_as_one_prompt_and_incomplete_rows_are_left_out(tmp_path: Path) -> None:
    thrice = {"small": ["A", "B", "A"], "middle": ["A", "A"], "large": ["A", "A", "A"]}
    rows = [row("1", thrice), trio("2", "A", "A"), row("3", {"small": "A", "large": "A"}), row("4", {"middle": []})]
    found = run(written(tmp_path, rows))
    assert found["rows"] == 2
    # The second of two counted completions differs: a quarter of the weight.
    assert found["agreed"] == pytest.approx(0.75)
    assert found["cost"] == pytest.approx(0.2 + 0.25)


def test_rows_of_one_source_or_domain_can_be_measured_alone(tmp_path: Path) -> None:
    rows = [*FOUR, trio("5", "A", "B") | {"source": "other", "domain": None}]
    file = written(tmp_path, rows)
    assert run(file)["rows"] == 5
    assert run(file, "--source", "other")["rows"] == 1
    assert run(file, "--domain", "d")["rows"] == 4


def test_labels_decide_by_domain_and_never_ask_where_agreement_loses(tmp_path: Path) -> None:
    good = [
        trio(f"g{i}", "A", "A") | {"domain": "good"} if i % 4 else trio(f"g{i}", "B", "C") | {"domain": "good"}
        for i in range(300)
    ]
    bad = [trio(f"b{i}", "B", "B") | {"domain": "bad", "format": "string"} for i in range(300)]
    found = run(written(tmp_path, good + bad), "--labels", "0,200")["labels"]
    assert (found["0"]["asked"], found["0"]["cost"]) == (0.0, 1.0)
    assert found["200"]["asked"] == pytest.approx(0.5, abs=0.05)
    assert found["200"]["quality"] == pytest.approx(1.0)
    assert found["200"]["utility"] > 0


def test_a_wrong_call_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    file = written(tmp_path, FOUR)
    given = ["cascade", str(file), "--prices", "1,5,30", "--ladder"]
    unknown = CliRunner().invoke(main, [*given, "small,huge,large"])
    assert unknown.exit_code == 1
    assert "no answers of huge; its models are large, middle, small" in unknown.output
    assert "give two to eight" in CliRunner().invoke(main, [*given, "small,large"]).output


def test_labels_that_leave_no_rows_have_no_figures(tmp_path: Path) -> None:
    file = written(tmp_path, FOUR)
    found = run(file, "--labels", "2,4")["labels"]
    assert found["2"]["asked"] <= 0.5
    assert found["4"] is None
    shown = CliRunner().invoke(
        main, ["cascade", str(file), "--ladder", "small,middle,large", "--prices", "1,5,30", "--labels", "4"]
    )
    assert [line.split("  ")[0] for line in shown.output.splitlines()[1:]] == ["no labels", "4 labels"]
    assert "gain +9.00" in shown.output
    assert "leave no rows to measure" in shown.output


@pytest.mark.parametrize(
    ("one", "other", "kind", "same"),
    [
        ("7", "7", "number", True),
        ("7", "8", "number", False),
        (None, None, "letter", False),
        ("", "", "string", False),
        ("eric clapton", "guitarist eric clapton beatles", "keywords", True),
        ("5 may 1990", "6 may 1990", "keywords", False),
        ("left", "right hand", "keywords", False),
        ("eric clapton", "guitarist eric clapton", "string", False),
        ([1, 2], [1, 2], "literal", True),
    ],
)
def test_recorded_answers_are_compared_by_kind(one: Any, other: Any, kind: str, same: bool) -> None:
    assert agree(one, other, kind) is same


def test_the_best_lottery_is_the_concave_hull() -> None:
    costs, qualities = [0.1, 0.5, 1.0], np.array([[0.4, 0.5, 1.0], [0.4, 0.9, 0.8], [0.4, 0.9, 1.0]])
    found = best_quality(costs, qualities, np.array([0.55, 1.0, 0.75]))
    assert found == pytest.approx([0.7, 0.9, 0.95])
    assert best_quality(costs, qualities[:1], np.array([0.1])) == pytest.approx([0.4])


def test_a_lottery_that_knows_each_group_buys_where_it_gains_most() -> None:
    costs, qualities = [0.0, 1.0], np.array([[0.2, 1.0], [0.9, 1.0]])
    weights = np.array([0.5, 0.5])
    assert best_by_group(costs, qualities, weights, 0.5) == pytest.approx(0.95)
    assert best_by_group(costs, qualities, weights, 0.75) == pytest.approx(0.975)
    assert best_by_group(costs, qualities, weights, 0.25) == pytest.approx(0.75)
    one = np.ones(1)
    assert best_by_group([0.1, 0.5, 1.0], np.array([[0.4, 0.5, 1.0]]), one, 0.55) == pytest.approx(0.7)
    assert best_by_group([0.1, 0.5, 1.0], np.array([[0.4, 0.9, 0.8]]), one, 1.0) == pytest.approx(0.9)


def test_the_least_cost_of_a_quality_is_on_the_hull() -> None:
    ways = [(0.1, 0.4), (0.5, 0.9), (1.0, 1.0)]
    assert least_cost(ways, 0.95) == pytest.approx(0.75)
    assert least_cost(ways, 0.65) == pytest.approx(0.3)
    assert least_cost(ways, 0.3) == 0.1
    assert least_cost(ways, 1.1) == np.inf


def test_a_prompt_that_no_model_of_the_ladder_answered_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no prompt was answered by all"):
        read_answers(written(tmp_path, FOUR), LADDER, "elsewhere", None)


def test_savings_keeps_what_each_ladder_is_worth_and_shows_the_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answers").mkdir()
    written(tmp_path / "answers", FOUR)
    written(tmp_path / "answers", [trio("1", "A", "B"), trio("2", "B", "A")], "worst.jsonl.gz")
    ladders = {"good": Ladder("answers.jsonl.gz", None, LADDER), "worst": Ladder("worst.jsonl.gz", "made", LADDER)}
    monkeypatch.setattr("benchmarks.cascade.savings.LADDERS", ladders)
    out = tmp_path / "savings.jsonl"
    options = ["savings", "--data", str(tmp_path), "--out", str(out)]

    shown = CliRunner().invoke(main, options, catch_exceptions=False)

    stored = read_results(tmp_path, "savings", SavingResults)
    assert stored is not None
    assert [(each.ladder, each.prompts) for each in stored[1].savings] == [("good", 4), ("worst", 2)]
    alone = run(tmp_path / "answers" / "answers.jsonl.gz")
    assert {name: alone[name] for name in ("cost", "quality", "cost_at_98")} == {
        name: getattr(stored[1].savings[0], name) for name in ("cost", "quality", "cost_at_98")
    }
    good, worst = shown.output.splitlines()[2:]
    assert "70% / 100%" in good
    assert worst.startswith("| worst")
