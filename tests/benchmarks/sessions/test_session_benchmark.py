"""The benchmark of sessions: figures computed by hand on made runs."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks.__main__ import main

CLEAN_STEP = ["x", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1]
ERROR_STEP = ["x", 2, 1, *CLEAN_STEP[3:]]


def row(task: str, model: str, reward: float, **more: Any) -> dict[str, Any]:
    steps = [CLEAN_STEP] * 10
    made = {"set": "made", "task": task, "model": model, "run": "1", "reward": reward, "exit": "submitted"}
    return made | {"tin": None, "tout": None, "usd": 1.0, "part": "dev", "steps": steps} | more


# The cheap model fails half of the tasks, all of them by an unclean end; the strong one passes all at ten times the
# price.
ROWS = [
    row(f"t{number}", model, reward, usd=usd, exit=ended)
    for number in range(10)
    for model, reward, usd, ended in (
        ("cheap", number % 2, 1.0, "submitted" if number % 2 else "exit_error"),
        ("strong", 1, 10.0, "submitted"),
    )
]


def run(folder: Path, rows: list[dict[str, Any]], *options: str) -> Result:
    file = folder / "runs.jsonl.gz"
    with gzip.open(file, "wt") as lines:
        lines.writelines(json.dumps(one) + "\n" for one in rows)
    return CliRunner().invoke(main, ["sessions", str(file), "--cheap", "cheap", "--strong", "strong", *options])


def measured(folder: Path, rows: list[dict[str, Any]], *options: str) -> dict[str, Any]:
    shown = run(folder, rows, "--json", *options)
    assert shown.exit_code == 0, shown.output
    figures: dict[str, Any] = json.loads(shown.output)
    return figures


def test_a_bad_end_asks_the_strong_model_and_is_compared_with_a_lottery_of_equal_cost(tmp_path: Path) -> None:
    figures = measured(tmp_path, ROWS)

    # All pass, at 1 + 0.5 * 10 of 10; a lottery at 6 passes 0.5 + 5 / 9 * 0.5.
    assert figures["reward"] == 1
    assert figures["cost"] == pytest.approx(0.6)
    assert figures["gain"] == pytest.approx(100 * (1 - 0.5 - 2.5 / 9))
    assert figures["gain_low"] <= figures["gain"] <= figures["gain_high"]
    assert figures["shuffled_gain"] < figures["gain_low"]
    assert "upper bound" in figures["bound"]


def test_only_the_users_who_ask_again_gain(tmp_path: Path) -> None:
    half, none = (measured(tmp_path, ROWS, "--asks-again", share) for share in ("0.5", "0"))

    assert (half["reward"], half["cost"]) == (pytest.approx(0.75), pytest.approx(0.35))
    assert (none["reward"], none["cost"], none["gain"]) == (0.5, pytest.approx(0.1), 0)


def test_several_runs_of_a_task_count_as_one_and_missing_costs_are_estimated_by_steps(tmp_path: Path) -> None:
    more = [row("t1", "cheap", 1, usd=None, steps=[CLEAN_STEP] * 20), row("t1", "strong", 1, usd=10.0)]
    figures = measured(tmp_path, ROWS + more)

    # The new run has 20 steps at 0.1 US dollars each: the task costs 1.5.
    assert figures["costs_estimated"] == 1
    assert figures["tasks"] == 10
    assert figures["cost"] == pytest.approx((10 * 1 + 0.5 + 5 * 10) / 100, rel=0.01)


def test_trouble_moves_at_its_first_step_and_steps_at_the_given_one(tmp_path: Path) -> None:
    troubled = [one | {"steps": [ERROR_STEP] * 10} if one["exit"] == "exit_error" else one for one in ROWS]

    by_trouble = measured(tmp_path, troubled, "--rule", "trouble")
    by_steps = measured(tmp_path, troubled, "--rule", "steps", "--steps", "4")

    # Half of the runs stop after 5 of 10 steps.
    assert by_trouble["cost"] == pytest.approx((0.5 * 1 + 0.5 * (0.5 + 10)) / 10)
    assert (by_steps["moved"], by_steps["cost"]) == (1, pytest.approx(1.04))


def test_a_run_without_steps_is_priced_by_its_tokens_or_its_turns(tmp_path: Path) -> None:
    tokens = [one | {"usd": None, "tin": 1_000_000, "tout": 0, "steps": []} for one in ROWS]
    turns = [one | {"usd": None, "turns": 5, "steps": []} for one in ROWS]

    priced = (
        measured(tmp_path, tokens, "--prices", "cheap=1:1,strong=10:1"),
        measured(tmp_path, turns, "--prices", "cheap=1,strong=10"),
    )

    assert [one["cost"] for one in priced] == [pytest.approx(0.6)] * 2


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (ROWS, ("--cheap", "absent"), "no runs of absent; the file has cheap, strong"),
        (ROWS, ("--strong", "cheap"), "is both models"),
        ([one | {"usd": None} for one in ROWS], (), "give --prices"),
        (ROWS, ("--prices", "cheap"), "MODEL=IN:OUT"),
        ([one | {"steps": []} for one in ROWS], ("--rule", "trouble"), "no run has steps"),
        ([{"set": "made"}], (), "line 1"),
        ([], (), "no run with a reward"),
    ],
)
def test_what_cannot_be_measured_is_explained(
    tmp_path: Path, rows: list[dict[str, Any]], options: tuple[str, ...], said: str
) -> None:
    shown = run(tmp_path, rows, *options)

    assert shown.exit_code in (1, 2)
    assert said in shown.output
    assert "Traceback" not in shown.output


def test_ends_are_counted_by_the_products_definition_and_signs_by_its_own_table(tmp_path: Path) -> None:
    failing = [row(f"f{n}", "cheap", 0, steps=[ERROR_STEP] * 10) for n in range(200)]
    passing = [row(f"p{n}", "cheap", 1) for n in range(200)]

    shown = measured(tmp_path, [*failing, *passing, *ROWS], "--ends")

    assert shown["ends"]["bad: exit_code"] == {"runs": 200, "failed": 1}
    assert shown["ends"]["bad: unclean"] == {"runs": 5, "failed": 1}
    assert shown["ends"]["none"] == {"runs": 215, "failed": 0}
    assert shown["signs"]["cheap"]["is_active"]
    assert not shown["signs"]["strong"]["is_active"]
