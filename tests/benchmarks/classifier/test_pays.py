"""How far the verdict on routing can be trusted, on recorded outcomes."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.classifier.pays import Found, read_ladder, verdicts


def recorded(folder: Path) -> Path:
    """Sixty rows: the cheap model is right on two of three, the strong one on all but each tenth."""
    path = folder / "rows.jsonl"
    rows = [{"outcomes": {"cheap": n % 3 != 0, "Strong": n % 10 != 0}} for n in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"outcomes": {"cheap": 1}}]))
    return path


def test_an_answer_is_no_worse_where_the_strongest_is_wrong_too(tmp_path: Path) -> None:
    no_worse = read_ladder(recorded(tmp_path), ["cheap", "strong"])

    assert no_worse.shape == (60, 2)
    assert no_worse[:, 1].all()
    # Right on 40; of the 20 others the strongest fails on rows 0 and 30.
    assert no_worse[:, 0].sum() == 42


def test_routers_gain_what_was_asked_for_and_one_without_a_gain_is_not_found_to_pay(tmp_path: Path) -> None:
    no_worse = read_ladder(recorded(tmp_path), ["cheap", "strong"])

    found = verdicts(no_worse, np.array([10.0, 30.0]), [0.0, 4.0], worth=0.01, probes=3000, runs=20, seed=0)

    assert [one.gain for one in found[:2]] == [0.0, 4.0]
    nothing, gaining, shuffled = found
    assert nothing.pays.count <= 2
    assert gaining.pays.count == 20
    assert (shuffled.pays.count, shuffled.pays_not.count) == (0, 20)
    assert shuffled.gain < 0


def test_a_gain_that_no_router_reaches_is_refused(tmp_path: Path) -> None:
    no_worse = read_ladder(recorded(tmp_path), ["cheap", "strong"])

    with pytest.raises(ValueError, match=r"\+50 points: routers on this ladder gain"):
        verdicts(no_worse, np.array([1.0, 30.0]), [50.0], worth=0.01, probes=10, runs=1, seed=0)


def test_the_command_prints_a_line_or_an_object_for_each_router(tmp_path: Path) -> None:
    order = ["pays", str(recorded(tmp_path)), "--ladder", "cheap,strong", "--prices", "1,30", "--runs", "2"]
    order += ["--probes", "50", "--gain", "2"]

    lines = CliRunner().invoke(main, order)
    objects = CliRunner().invoke(main, [*order, "--json"])
    refused = CliRunner().invoke(main, [*order, "--prices", "1"])

    assert lines.output.splitlines()[0] == "60 rows; 2 runs of 50 probes, looked at after every probe"
    assert [one.router for one in msgspec.json.decode(objects.output, type=list[Found])] == ["+2 points", "shuffled"]
    assert refused.exit_code == 1
    assert "one above 0 for each" in refused.output
