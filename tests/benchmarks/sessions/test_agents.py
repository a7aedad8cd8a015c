"""`python -m benchmarks agents` reads rows of any usual form, and says what its choices gain on other tasks."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from benchmarks.__main__ import main
from quality.comparison.run_outcomes import read_outcomes

MODELS = {"cheap": (0.5, 0.1), "middle": (0.6, 0.5), "dear": (0.9, 1.0)}
TASKS = 240


def rows() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    hard = (rng.permutation(TASKS) + 0.5) / TASKS
    return [
        {"task": f"t{task}", "model": model, "resolved": bool(hard[task] < share), "usd": usd}
        for task in range(TASKS)
        for model, (share, usd) in MODELS.items()
    ]


def written(folder: Path, form: str, made: list[dict[str, Any]]) -> Path:
    file = folder / f"runs.{form}"
    text = io.StringIO()
    if form.startswith("csv"):
        table = csv.DictWriter(text, list(made[0]))
        table.writeheader()
        table.writerows(made)
    elif form == "json":
        json.dump([list(one.values()) for one in made], text)
    else:
        text.writelines(json.dumps(one) + "\n" for one in made)
    data = text.getvalue().encode("utf-8-sig" if form == "csv" else "utf-8")
    file.write_bytes(gzip.compress(data) if form.endswith("gz") else data)
    return file


def run(file: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["agents", str(file), "--draws", "6", *options])


@pytest.mark.parametrize("form", ["csv", "csv.gz", "jsonl", "jsonl.gz", "json"])
def test_each_form_is_the_same_table(tmp_path: Path, form: str) -> None:
    outcomes, left_out = read_outcomes(written(tmp_path, form, rows()))
    assert (list(outcomes.models), outcomes.resolved.shape, left_out) == (list(MODELS), (TASKS, 3), [])
    assert outcomes.resolved.mean(axis=0) == pytest.approx([0.5, 0.6, 0.9])
    assert outcomes.usd.mean(axis=0) == pytest.approx([0.1, 0.5, 1.0])


def test_other_names_repeated_runs_and_gaps_are_read_and_said(tmp_path: Path) -> None:
    made = [
        {
            "instance_id": one["task"],
            "model_name": one["model"],
            "score": int(one["resolved"]),
            "cost": f"${one['usd']}",
        }
        for one in rows()
    ]
    made[0]["cost"] = None
    made.append(made[1] | {"score": 1 - made[1]["score"]})
    made += [{"instance_id": "t0", "model_name": "rare", "score": 1, "cost": 1.0}]
    made += [{"instance_id": f"t{task}", "model_name": "free", "score": 1, "cost": None} for task in range(TASKS)]
    made.append({"instance_id": "t1", "model_name": "cheap", "score": None, "cost": 1.0})
    outcomes, left_out = read_outcomes(written(tmp_path, "jsonl", made))
    assert list(outcomes.models) == list(MODELS)
    assert outcomes.resolved[0, 1] == 0.5
    assert outcomes.usd[0, 0] == pytest.approx(0.1)
    assert [line.partition(":")[0] for line in left_out] == [
        "1 rows without a task, a model or an outcome",
        "rare",
        "free",
    ]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ([{"task": "a", "model": "m", "resolved": 2, "usd": 1}], "row 1: resolved is 2"),
        ([{"task": "a", "model": "m", "resolved": "perhaps", "usd": 1}], "row 1: 'perhaps' is no number"),
        ([{"task": "a", "model": "m", "resolved": 1, "usd": 1}], "two of each are needed"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_sentence(
    tmp_path: Path, made: list[dict[str, Any]], words: str
) -> None:
    ended = run(written(tmp_path, "jsonl", made))
    assert ended.exit_code == 1
    assert words in ended.output


def test_labels_find_the_pair_that_gains_and_the_controls_pay_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, "csv.gz", rows())
    said = json.loads(run(file, "--labels", "0,120", "--json").output)
    assert (said["models"], said["tasks"], said["best_pair"]) == (3, TASKS, "cheap > dear")
    nothing, many = said["rows"]
    assert (nothing["labels"], nothing["pays"], nothing["draws"]) == (0, 0, 1)
    assert many["pays"] > 0.5
    assert (many["wrong"], many["dealt_checks"], many["dealt_rows"]) == (0, 0, 0)
    assert many["pair"] == "cheap > dear"
    assert many["gain"] > 5
    assert "cheap > dear" in run(file, "--labels", "120").output


def test_a_check_that_knows_nothing_pays_nowhere(tmp_path: Path) -> None:
    file = written(tmp_path, "csv", rows())
    said = json.loads(run(file, "--labels", "120", "--catches", "0.4", "--rejects", "0.4", "--json").output)
    assert (said["best"] <= 1e-9, said["rows"][0]["pays"], said["rows"][0]["gain"]) == (True, 0, None)


def test_public_scores_move_what_is_proposed_before_any_label(tmp_path: Path) -> None:
    file, scores = written(tmp_path, "csv", rows()), tmp_path / "scores.csv"
    scores.write_text("model,score\ncheap,50\nmiddle,20\ndear,90\n")
    said = json.loads(run(file, "--labels", "0", "--scores", str(scores), "--json").output)
    assert said["rows"][0]["pair"] == "cheap > dear"


def test_too_many_labels_are_refused(tmp_path: Path) -> None:
    ended = run(written(tmp_path, "csv", rows()), "--labels", str(TASKS))
    assert ended.exit_code == 1
    assert "at least 20 must be held out" in ended.output
