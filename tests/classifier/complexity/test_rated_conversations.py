"""Conversations whose last turn needs the ones before it: the shipped classifier's tiers, in context and alone."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from classifier.complexity.model import shipped_complexity
from classifier.errors import TrainingDataError
from classifier.features.follow_up_model import shipped_follow_up
from classifier.registry.artefact import default_artefact, load_artefact
from classifier.training.metrics.complexity_report import (
    ConversationReport,
    RatedConversation,
    Turn,
    holds_conversations,
    measured_conversations,
    read_conversations,
)
from tests.gateway.in_process_cli import aio
from tests.shared_data import rows as shared_rows

CONVERSATIONS = Path(__file__).parent / "conversations.jsonl"


def report_of(rows: Sequence[RatedConversation]) -> ConversationReport:
    return measured_conversations(rows, shipped_complexity(), load_artefact(default_artefact()))


@pytest.mark.parametrize("name", ["first", "second"])
def test_in_context_most_follow_ups_go_to_an_accepted_tier_and_more_than_alone(name: str) -> None:
    sets = [json.loads(line)["set"] for line in CONVERSATIONS.read_text("utf-8").splitlines()]
    report = report_of([row for row, own in zip(read_conversations(CONVERSATIONS), sets, strict=True) if own == name])
    assert report.context.within >= 0.85, report
    assert report.context.within >= report.alone.within + 0.1, report
    assert report.context.within > max(report.length.within, report.constant.within), report


def test_a_new_topic_is_seldom_read_with_an_old_one() -> None:
    """Self-contained prompts, each after another one: what the turn before costs them."""
    rows, draw = shared_rows("complexity_examples.jsonl"), random.Random(1)
    conversations = [
        RatedConversation(
            [Turn("user", draw.choice(rows)["prompt"]), Turn("assistant", "Ok."), Turn("user", row["prompt"])],
            row["lo"],
            row["hi"],
        )
        for row in rows
    ]
    report = report_of(conversations)
    assert report.context.within >= report.alone.within - 0.04, report
    assert report.context.below <= report.alone.below, report


def test_most_follow_ups_of_a_public_set_are_read_in_context() -> None:
    pairs = [row["turns"] for row in shared_rows("chat_prompts.jsonl") if len(row["turns"]) == 2]
    assert len(pairs) == 80
    found = [shipped_follow_up().p(second, first, "") for first, second in pairs]
    assert sum(p >= 0.5 for p in found) >= 65


def test_the_command_prints_both(tmp_path: Path) -> None:
    ended = aio("classifier", "complexity", CONVERSATIONS)
    assert ended.exit_code == 0, ended.output
    assert "in context" in ended.output
    assert "last turn alone" in ended.output
    shown = json.loads(aio("classifier", "complexity", CONVERSATIONS, "--json").output)
    assert shown["rows"] == len(read_conversations(CONVERSATIONS))
    refused = aio("classifier", "complexity", CONVERSATIONS, "--train", tmp_path / "m")
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
