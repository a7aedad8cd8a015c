"""What agents' clients put around a user's words is not classified, and nothing else of a turn is touched."""

import pytest

from classifier.features.routing_input import routing_input, routing_input_of_text
from classifier.features.stray_text import WINDOW, users_text
from tests.shared_data import rows

ASKED = "Why does the scheduler preempt twice?"


@pytest.mark.parametrize(
    "turn",
    [
        f"<system-reminder>\nThe todo list is empty.\n</system-reminder>\n\n{ASKED}",
        f"{ASKED}\n<system-reminder>Plan mode is active.</system-reminder>",
        f"<system-reminder>one</system-reminder><system-reminder>two</system-reminder>{ASKED}",
        f"<task>\n{ASKED}\n</task>\n\n<environment_details>\n# Visible files\na.py\n</environment_details>",
        f"<environment_context>\n<cwd>/srv</cwd>\n</environment_context>\n{ASKED}",
        f"<ide_selection>lines 3 to 9 of a.py: def a(): ...</ide_selection>\n{ASKED}",
        f"<command-name>/ask</command-name>\n<command-message>ask</command-message>\n<command-args>{ASKED}</command-args>",
    ],
)
def test_a_clients_elements_are_left_out(turn: str) -> None:
    assert users_text(turn) == ASKED
    assert routing_input_of_text(turn).turn == routing_input_of_text(ASKED).turn


def test_the_users_last_words_are_read_where_the_newest_turn_is_the_clients_alone() -> None:
    turns = [
        ("user", ASKED),
        ("assistant", ""),
        ("tool", "ok"),
        ("user", "<system-reminder>Do not forget the list.</system-reminder>"),
    ]
    found = routing_input([{"role": role, "content": content} for role, content in turns])
    assert found.turn == ASKED


def test_maps_of_a_repository_and_project_rules_are_no_turns_of_the_user() -> None:
    map_ = "Here are summaries of some files present in my git repository.\na.py: def prove_theorem(): ..."
    rules = "# AGENTS.md instructions for /srv\n\n<INSTRUCTIONS>Prove everything.</INSTRUCTIONS>"
    turns = [("user", map_), ("assistant", "Ok."), ("user", rules), ("user", "thanks, and now?")]
    found = routing_input([{"role": role, "content": content} for role, content in turns])
    assert found.turn == "thanks, and now?"


def test_other_markup_stays() -> None:
    for text in (
        "<div>Why is this not centred?</div>",
        "<file>a.py</file> what is wrong here? <context>none</context>",
        "<system-reminder>never closed",
        "a < b and b > c implies a >",
        "<task>Write a poem.</task>",
    ):
        assert users_text(text) == text


def test_prompts_without_a_client_are_read_as_they_are() -> None:
    prompts = [row["prompt"] for row in rows("complexity_examples.jsonl")]
    assert [users_text(prompt) for prompt in prompts] == prompts


def test_unclosed_elements_cost_time_in_proportion_to_the_text() -> None:
    turn = "<system-reminder>" * 20_000 + ASKED
    assert users_text(turn) == turn
    closed = "<system-reminder>" * 3000 + "</system-reminder>"
    assert users_text(closed) == ""


def test_of_a_very_long_turn_the_ends_are_cleaned() -> None:
    reminder = "<system-reminder>one</system-reminder>"
    found = users_text(f"{reminder}{'word ' * WINDOW}{reminder}")
    assert found == ("word " * WINDOW).strip()
