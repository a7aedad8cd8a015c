"""Conversations whose last turn needs the ones before it: the shipped classifier's tiers, in context and alone."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from classifier.complexity.model import shipped_complexity
from classifier.errors import TrainingDataError
from classifier.registry.artefact import default_artefact, load_artefact
from classifier.training.metrics.conversation_report import (
    ConversationReport,
    holds_conversations,
    measured_conversations,
    read_conversations,
)
from gateway.operations.cli import main

CONVERSATIONS = Path(__file__).parent / "conversations.jsonl"


@pytest.fixture(scope="module")
def reports() -> dict[str, ConversationReport]:
    """The half that words were chosen on, and the other half."""
    rows, model, outcome = read_conversations(CONVERSATIONS), shipped_complexity(), load_artefact(default_artefact())
    halves = {"chosen": rows[::2], "unseen": rows[1::2]}
    return {name: measured_conversations(half, model, outcome) for name, half in halves.items()}


@pytest.mark.parametrize("half", ["chosen", "unseen"])
def test_in_context_most_follow_ups_go_to_an_accepted_tier_and_more_than_alone(
    half: str, reports: dict[str, ConversationReport]
) -> None:
    report = reports[half]
    assert report.context.within >= 0.8, report
    assert report.context.within >= report.alone.within + 0.1, report
    assert report.context.within > max(report.length.within, report.constant.within), report


def test_the_command_prints_both(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["classifier", "complexity", str(CONVERSATIONS)])
    assert ended.exit_code == 0, ended.output
    assert "in context" in ended.output
    assert "last turn alone" in ended.output
    shown = json.loads(CliRunner().invoke(main, ["classifier", "complexity", str(CONVERSATIONS), "--json"]).output)
    assert shown["rows"] == len(read_conversations(CONVERSATIONS))
    refused = CliRunner().invoke(main, ["classifier", "complexity", str(CONVERSATIONS), "--train", str(tmp_path / "m")])
    assert refused.exit_code == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"turns": [], "lo": 1, "hi": 2}', "line 1"),
        ('{"turns": [{"role": "assistant", "content": "a"}], "lo": 1, "hi": 2}', "the last turn is the user's"),
        ('{"turns": [{"role": "user", "content": "a"}], "lo": 3, "hi": 2}', "lo is at most hi"),
        ('{"turns": [{"role": "user", "content": "a"}], "lo": 0, "hi": 2}', "line 1"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(line)
    assert holds_conversations(path)
    with pytest.raises(TrainingDataError, match=said):
        read_conversations(path)


def test_prompts_are_no_conversations(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('\n{"prompt": "hi", "classes": [1]}\n')
    assert not holds_conversations(path)
