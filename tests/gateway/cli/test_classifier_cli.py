"""`aio classifier`: predictions for files of prompts, and the versions that serve, are on trial, or return."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from classifier.prompt_predictions import PromptRow, predict_lines
from classifier.registry.artefact import default_artefact, load_manifest, load_model_tensors, save_artefact
from classifier.registry.registry import ArtefactRegistry
from gateway.cli import main

SHIPPED = default_artefact().name
PROMPTS = ["Why is the sky blue?", "", "What is 2 + 2?", "😀" * 50, "Explain why P = NP matters, step by step."]


def aio(*arguments: str, ok: bool = True) -> Result:
    result = CliRunner().invoke(main, ["classifier", *arguments])
    assert (result.exit_code == 0) is ok, result.output
    return result


def shown(*arguments: str) -> Any:
    return json.loads(aio(*arguments, "--json").stdout)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"id": f"p{i}", "prompt": text, "other": 1}) for i, text in enumerate(PROMPTS)]
    path.write_text("\n".join(lines) + "\n\n")
    return path


@pytest.fixture
def child(tmp_path: Path) -> Path:
    """A child of the shipped artefact in a folder outside the registry."""
    shipped = default_artefact()
    manifest = msgspec.structs.replace(load_manifest(shipped), version="v1-child", parent=SHIPPED)
    return save_artefact(tmp_path / "elsewhere", manifest, load_model_tensors(shipped))


def test_a_file_of_prompts_gets_a_line_of_figures_for_each_in_its_order(prompts: Path, tmp_path: Path) -> None:
    target, data = tmp_path / "out.jsonl", str(tmp_path / "data")
    said = shown("predict", "--input", str(prompts), "--output", str(target), "--data-dir", data)
    assert (said["version"], said["rows"]) == (SHIPPED, len(PROMPTS))
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"p{i}" for i in range(len(PROMPTS))]
    for row in rows:
        assert set(row) == {"id", "p_ok", "tier", "novelty", "classes"}
        assert len(row["p_ok"]) == 4
        assert sum(row["classes"]) == pytest.approx(1, abs=1e-3)
        assert row["p_ok"][-1] == 1.0
        assert all(0 < p <= 1 for p in row["p_ok"])
        assert row["tier"] in (1, 2, 3, 4)
        assert 0 <= row["novelty"] <= 1
    explained = shown("explain", "--input", str(prompts), "--data-dir", data)
    for row, one in zip(rows, explained, strict=True):
        assert one["p_ok"] == pytest.approx(row["p_ok"], abs=1e-4)
        assert one["tier"] == row["tier"]


def test_parallel_processes_write_what_one_writes() -> None:
    rows = [PromptRow(i, f"{PROMPTS[i % len(PROMPTS)]} {i}") for i in range(700)]
    one = b"".join(lines for _, lines in predict_lines(default_artefact(), rows, processes=1))
    two = list(predict_lines(default_artefact(), rows, processes=2))
    assert sum(count for count, _ in two) == 700
    found, wanted = ([json.loads(line) for line in text.splitlines()] for text in (b"".join(x for _, x in two), one))
    assert [row["id"] for row in found] == list(range(700))
    for a, b in zip(found, wanted, strict=True):
        assert a["p_ok"] == pytest.approx(b["p_ok"], abs=1e-4)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "truncated"),
        ('{"id": "x"}', "prompt"),
        ('{"id": "x", "prompt": 3}', "str"),
        ('{"id": null, "prompt": "x"}', "id"),
        ("[" * 5000, "line 2"),
        ('{"id": "x", "prompt": "\\ud800"}', "line 2"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_written(tmp_path: Path, line: str, why: str) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"id": 1, "prompt": "fine"}\n' + line + "\n")
    result = aio("predict", "--input", str(source), "--output", str(target), "--data-dir", str(tmp_path), ok=False)
    assert "in.jsonl, line 2" in result.output
    assert why in result.output
    assert not target.exists()


def test_an_explanation_says_what_it_saw_what_moved_it_and_what_it_passed_over(tmp_path: Path) -> None:
    prompt = "Use tier 4 for this. Compare the river and the sea, step by step."
    found = shown("explain", prompt, "--data-dir", str(tmp_path))
    assert found["features"]["keyword_compare"] == found["features"]["keyword_step_by_step"] == 1.0
    assert found["appeals"] == [prompt]
    assert sum(found["classes"]) == pytest.approx(1, abs=1e-3)
    said = aio("explain", prompt, "--data-dir", str(tmp_path)).output
    for part in ("P(good enough)", "unfamiliar", "class: SIMPLE", "skipped, since they ask for a tier", SHIPPED):
        assert part in said
    aio("explain", "--data-dir", str(tmp_path), ok=False)


def test_a_version_is_promoted_listed_and_rolled_back(tmp_path: Path, child: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    assert [(v["version"], v["status"]) for v in shown("list", *data)] == [(SHIPPED, "current")]
    assert shown("promote", str(child), "--reason", "better", *data) == {"current": "v1-child", "previous": SHIPPED}
    listed = {v["version"]: v for v in shown("list", *data)}
    assert (listed["v1-child"]["status"], listed[SHIPPED]["status"]) == ("current", "previous")
    assert listed["v1-child"]["line"] == ["v1-child", SHIPPED]
    assert f"v1-child <- {SHIPPED}" in aio("list", *data).output
    assert shown("rollback", *data) == {"current": SHIPPED, "previous": "v1-child"}
    assert shown("promote", "v1-child", *data)["current"] == "v1-child"


def test_a_trial_begins_is_shown_and_ends(tmp_path: Path, child: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    assert shown("canary", *data) == {"canary": None}
    on_trial = {"canary": {"version": "v1-child", "share": 0.1}}
    assert shown("canary", str(child), "--share", "0.1", *data) == on_trial
    assert shown("canary", *data) == on_trial
    assert "canary 10.0%" in aio("list", *data).output
    assert shown("canary", "--stop", *data) == {"canary": None}
    assert "a trial needs --share" in aio("canary", "v1-child", *data, ok=False).output


def test_a_damaged_artefact_is_refused_with_its_reason_and_the_current_one_stays(tmp_path: Path, child: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    (child / "weights.safetensors").write_bytes(b"cut")
    for order in (("promote", str(child)), ("canary", str(child), "--share", "0.5")):
        assert "changed or cut short" in aio(*order, *data, ok=False).output
    assert [v["version"] for v in shown("list", *data)] == [SHIPPED]
    registry = ArtefactRegistry(tmp_path / "data" / "classifier")
    assert not registry.versions()


def test_what_operators_order_is_in_the_audit_trail(tmp_path: Path, child: Path) -> None:
    import sqlite3

    data = ("--data-dir", str(tmp_path / "data"))
    shown("canary", str(child), "--share", "0.1", "--reason", "try it", *data)
    shown("promote", "v1-child", *data)
    shown("rollback", *data)
    with sqlite3.connect(tmp_path / "data" / "aio.sqlite3") as database:
        events = database.execute("select action, subject, reason from audit_events order by audit_event_id").fetchall()
        statuses = dict(database.execute("select version, status from classifier_versions").fetchall())
    assert events == [
        ("classifier.canary_started", "v1-child", "try it"),
        ("classifier.promoted", "v1-child", "asked for on the command line"),
        ("classifier.rolled_back", SHIPPED, "asked for on the command line"),
    ]
    assert statuses == {"v1-child": "retired", SHIPPED: "promoted"}


def test_an_encoder_that_is_neither_a_folder_nor_hidden_states_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["classifier", "train", "--encoder", str(tmp_path / "nowhere")])
    assert result.exit_code == 2
    assert "is not a folder; give one, or hidden[:MODEL[:LAYER]]" in result.output
    result = CliRunner().invoke(main, ["classifier", "train", "--encoder", "hidden:nowhere.gguf:0"])
    assert result.exit_code == 2
    assert "LAYER at least 1" in result.output
