"""`aio quality experiments` in its own data folder: started, listed, stopped."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from gateway.cli.quality import quality


def run(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(quality, ["experiments", *arguments, "--data-dir", str(tmp_path)])


def test_an_experiment_is_started_listed_and_stopped(tmp_path: Path) -> None:
    result = run(tmp_path, "start", "cheap?", "--a", "tier:3", "--b", "tier:1", "--share", "0.2", "--json")
    assert result.exit_code == 0, result.output
    started = json.loads(result.output)["experiment_id"]
    again = run(tmp_path, "start", "another", "--a", "tier:3", "--b", "tier:2")
    assert again.exit_code == 1
    assert "stop it first" in again.output
    [row] = json.loads(run(tmp_path, "list", "--json").output)["rows"]
    assert (row["experiment_id"], row["status"], row["config"]["b"]["tier"]) == (started, "running", 1)

    assert run(tmp_path, "stop", started).exit_code == 0
    assert "stopped" in run(tmp_path, "list").output
    assert run(tmp_path, "stop", started).exit_code == 1


def test_units_and_margins_are_stated_or_usual(tmp_path: Path) -> None:
    stated = ("--by", "conversation", "--cost-margin", "none", "--ttft-margin", "0.5")
    result = run(tmp_path, "start", "dear?", "--a", "tier:1", "--b", "tier:2", *stated)
    assert result.exit_code == 0, result.output
    [row] = json.loads(run(tmp_path, "list", "--json").output)["rows"]

    # By the catalogue an answer of tier 2 takes twice as long.
    assert row["config"]["by"] == "conversation"
    assert row["config"]["guardrails"] == {"cost": None, "ttft": 0.5, "e2e": 3.0}
    assert "conversation" in run(tmp_path, "list").output


def test_a_margin_is_a_number_from_zero_on(tmp_path: Path) -> None:
    for wrong in ("-1", "nan", "much"):
        refused = run(tmp_path, "start", "odd", "--a", "tier:1", "--b", "tier:2", "--e2e-margin", wrong)
        assert (refused.exit_code, "from 0 on nor none" in refused.output) == (2, True)


def test_an_arm_that_is_neither_tier_nor_version_is_refused(tmp_path: Path) -> None:
    refused = run(tmp_path, "start", "odd", "--a", "tier:x", "--b", "tier:1")
    assert refused.exit_code == 2
    assert "write tier:N or version:V" in refused.output
