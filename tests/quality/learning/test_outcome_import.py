"""Outcomes that a team already has become labels: of the right tiers, once, for the right key."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.model.outcome_model import OutcomeModel
from classifier.registry.artefact import load_artefact
from migrations.tables.audit import audit_events
from migrations.tables.quality import training_rows
from quality.learning.outcome_import import (
    OutcomeFileError,
    delete_import,
    import_outcomes,
    list_imports,
    read_outcomes,
    understood,
)
from tests.gateway.in_process_cli import aio
from tests.quality.retraining.tiny_classifier import base_artefact

TIERS = ("a", "b", "c")
PROMPT = "Translate 'good morning' to Spanish"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OutcomeModel:
    return load_artefact(base_artefact(tmp_path_factory.mktemp("registry")))


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "outcomes.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


async def stored(engine: AsyncEngine) -> list[dict[str, Any]]:
    async with engine.connect() as connection:
        return [dict(row) for row in (await connection.execute(select(training_rows))).mappings()]


async def test_scores_become_labels_against_the_strongest_tiers(
    any_engine: AsyncEngine, model: OutcomeModel, tmp_path: Path
) -> None:
    path = written(
        tmp_path,
        {"prompt": PROMPT, "scores": {"1": 6.5, "2": 5, "3": 7}},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
         "scores": {"2": 1, "3": 1}},
    )  # fmt: skip
    found = read_outcomes(path, 3)
    made = await import_outcomes(any_engine, model, found, tiers=TIERS, key_id="team-a", margin=1.0, now=5.0)
    assert made.labels == 2
    first, second = await stored(any_engine)
    assert (first["no_worse"], first["weights"]) == ([True, False, True], [1.0, 1.0, 0.0])
    assert (second["no_worse"], second["weights"]) == ([None, True, True], [0.0, 1.0, 0.0])
    assert (first["key_id"], first["source"], first["tiers"], first["app"]) == ("team-a", "imported", list(TIERS), None)
    assert second["app"] is not None
    assert sum(first["classes"]) == pytest.approx(1, abs=0.01)


async def test_the_same_prompt_again_replaces_its_labels(
    sqlite_engine: AsyncEngine, model: OutcomeModel, tmp_path: Path
) -> None:
    for score in (0, 1):
        found = read_outcomes(written(tmp_path, {"prompt": PROMPT, "scores": {"1": score, "3": 1}}), 3)
        await import_outcomes(sqlite_engine, model, found, tiers=TIERS, now=5.0)
    [row] = await stored(sqlite_engine)
    assert row["no_worse"][0] is True
    await import_outcomes(sqlite_engine, model, found, tiers=TIERS, key_id="another", now=5.0)
    assert len(await stored(sqlite_engine)) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"prompt": PROMPT, "scores": {"1": 1}}, "tier 3, the strongest"),
        ({"prompt": PROMPT, "scores": {"3": 1}}, "another tier"),
        ({"prompt": PROMPT, "scores": {"4": 1, "3": 1}}, "no tier '4'"),
        ({"scores": {"1": 1, "3": 1}}, "either prompt or messages"),
        ({"prompt": "", "scores": {"1": 1, "3": 1}}, "no text of a user"),
        ({"messages": [{"role": "user"}], "scores": {"1": 1, "3": 1}}, "no text of a user"),
        ({"prompt": PROMPT, "score": 1}, "score"),
        ("prompt", "line 1"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(line: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(OutcomeFileError, match=said):
        read_outcomes(written(tmp_path, line), 3)


def test_the_command_stores_what_a_server_will_read(tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": PROMPT, "scores": {"1": 1, "4": 1}})
    ran = aio("outcomes", "import", path, "--data-dir", tmp_path / "data")
    assert ran.exit_code == 0, ran.output
    assert "1 labelled prompts are stored" in ran.output
    refused = aio("outcomes", "import", str(written(tmp_path, {"prompt": PROMPT, "scores": {}})))
    assert refused.exit_code == 1
    assert "line 1" in refused.output


def test_an_import_says_what_it_understood(tmp_path: Path) -> None:
    lines = [{"prompt": f"Name number {n}", "scores": {"1": 0.9, "2": 0.95, "4": 0.95}} for n in range(300)]
    said = understood(read_outcomes(written(tmp_path, *lines), 4), 4, 0.0)
    assert said.in_words() == (
        "tier 1 good in 0 of 300; tier 2 good in 300 of 300; 0.9 against 0.95 counts as worse at margin 0"
    )
    wider = understood(read_outcomes(written(tmp_path, *lines), 4), 4, 0.1)
    assert wider.in_words().endswith("0.9 against 0.95 counts as good at margin 0.1")
    best = [{"prompt": PROMPT, "scores": {"1": 2, "4": 1}}]
    assert understood(read_outcomes(written(tmp_path, *best), 4), 4, 0.0).in_words() == "tier 1 good in 1 of 1"


async def test_an_import_is_deleted_with_its_labels_and_no_others(
    any_engine: AsyncEngine, model: OutcomeModel, tmp_path: Path
) -> None:
    made = []
    for prompts in ("abc", "cd"):
        lines = [{"prompt": one, "scores": {"1": 0, "3": 1}} for one in prompts]
        found = read_outcomes(written(tmp_path, *lines), 3)
        made.append(await import_outcomes(any_engine, model, found, tiers=TIERS, key_id="k", now=len(made), file="f"))

    # The second one has replaced a label of the first.
    assert [(one.import_id, one.labels, one.key_id) for one in await list_imports(any_engine)] == [
        (made[1].import_id, 2, "k"), (made[0].import_id, 2, "k"),
    ]  # fmt: skip
    assert await delete_import(any_engine, made[1].import_id, actor="ann", reason="mixed up", now=9.0) == 2
    assert [one.import_id for one in await list_imports(any_engine)] == [made[0].import_id]
    assert {row["import_id"] for row in await stored(any_engine)} == {made[0].import_id}
    assert await delete_import(any_engine, made[1].import_id, actor="ann", reason=None, now=9.0) is None
    async with any_engine.connect() as connection:
        [event] = (await connection.execute(select(audit_events))).mappings()
    assert (event["actor"], event["action"], event["subject"], event["details"]) == (
        "ann", "outcomes.deleted", made[1].import_id, {"labels": 2},
    )  # fmt: skip


def test_the_commands_list_and_delete_an_import(tmp_path: Path) -> None:
    def said(*words: str, status: int = 0) -> str:
        ran = aio("outcomes", *words, "--data-dir", tmp_path / "data")
        assert ran.exit_code == status, ran.output
        return ran.output

    path = written(tmp_path, {"prompt": PROMPT, "scores": {"1": 0.9, "4": 0.95}})
    imported = said("import", str(path))
    assert "tier 1 good in 0 of 1; 0.9 against 0.95 counts as worse at margin 0" in imported
    number = imported.split()[-1]
    assert number in said("list")
    assert "its 1 labels are deleted" in said("delete", number)
    assert number not in said("list")
    assert "there is no import" in said("delete", number, status=1)
