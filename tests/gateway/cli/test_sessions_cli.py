"""`aio sessions choose` names two models and their order, or one alone, from rows of runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from gateway.cli import main

SHARES = {"cheap": (0.5, 0.1), "middle": (0.6, 0.5), "dear": (0.9, 1.0)}
TASKS = 300


def rows(*, missing: float = 0.0, dealt: bool = False) -> list[dict[str, Any]]:
    """Harder tasks are solved by dearer models. `missing`: the share of runs that were not made; `dealt`: each model's
    outcomes belong to other tasks."""
    rng = np.random.default_rng(0)
    hard = (rng.permutation(TASKS) + 0.5) / TASKS
    made = []
    for model, (share, usd) in SHARES.items():
        solved = hard + rng.uniform(-0.1, 0.1, TASKS) < share
        for task, resolved in enumerate(rng.permutation(solved) if dealt else solved):
            if rng.random() >= missing:
                made.append({"task": f"t{task}", "model": model, "resolved": bool(resolved), "usd": usd})
    return made


def chosen(folder: Path, made: list[dict[str, Any]], *options: str) -> Result:
    file = folder / "runs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in made))
    return CliRunner().invoke(main, ["sessions", "choose", str(file), *options])


def test_a_pair_that_pays_is_named_in_its_order_with_its_gain(tmp_path: Path) -> None:
    said = json.loads(chosen(tmp_path, rows(), "--json").output)
    decision = said["decision"]
    assert (decision["verdict"], decision["first"], decision["second"]) == ("pays", "cheap", "dear")
    assert 0 < decision["low"] < decision["gain"]
    assert said["notes"] == []
    text = chosen(tmp_path, rows()).output
    assert text.startswith("It pays to run cheap first, and dear where the check rejects the result.")
    assert f"resolves {100 * decision['gain']:.1f} more" in text


def test_a_matrix_with_gaps_names_the_same_pair_and_says_so(tmp_path: Path) -> None:
    made = rows(missing=0.2)
    said = json.loads(chosen(tmp_path, made, "--json").output)
    assert (said["decision"]["verdict"], said["decision"]["first"], said["decision"]["second"]) == (
        "pays", "cheap", "dear",
    )  # fmt: skip
    assert said["decision"]["tasks"] == len({row["task"] for row in made})
    assert len(said["notes"]) == 3
    assert all("is compared on these" in note for note in said["notes"])


FEW = [row for row in rows() if int(row["task"][1:]) < 10]


@pytest.mark.parametrize(
    ("made", "options"), [(rows(dealt=True), ()), (rows(), ("--catches", "0.4", "--rejects", "0.4")), (FEW, ())]
)
def test_shuffled_rows_a_blind_check_and_few_tasks_pay_nowhere(
    tmp_path: Path, made: list[dict[str, Any]], options: tuple[str, ...]
) -> None:
    shown = chosen(tmp_path, made, *options)
    assert shown.exit_code == 0
    assert shown.output.startswith("No pair of models is shown to pay, because ")
    assert "Of single models " in shown.output


def test_a_file_that_cannot_be_used_is_refused_with_its_row(tmp_path: Path) -> None:
    shown = chosen(tmp_path, [{"task": "a", "model": "m", "resolved": "perhaps", "usd": 1}])
    assert shown.exit_code == 1
    assert "row 1: 'perhaps' is no number" in shown.output
