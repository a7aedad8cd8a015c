"""The judge of tool calls: what cannot be called is worse, what is the same is as good, a text says nothing."""

import json
from typing import Any

import pytest

from quality.judges.json_answers import flaw_of, judge_calls
from quality.judges.known_pairs import TOOLING, calibrate_calls
from quality.judges.panel import Panel
from tiers.conversation import Call, Tool, Tooling

PATTERNED = Tooling(tools=(Tool(name="find", parameters={"type": "object", "properties": {"a": {"pattern": "^x"}}}),))


def search(**arguments: Any) -> list[Call]:
    return [Call(id="c", name="search", arguments=json.dumps({"path": "src", "limit": 3} | arguments))]


@pytest.mark.parametrize(
    ("calls", "flaw"),
    [
        (search(), None),
        ([], None),
        (search(limit="3"), "the call of search is malformed: its arguments are not valid by the tool's schema"),
        (search(limit=0), "the call of search is malformed: its arguments are not valid by the tool's schema"),
        (search(more=1), "the call of search is malformed: its arguments are not valid by the tool's schema"),
        (
            [*search(), Call(id="c", name="search", arguments='{"path":')],
            "the call of search is malformed: its arguments are not JSON",
        ),
        (
            [Call(id="c", name="search", arguments="[]")],
            "the call of search is malformed: its arguments are no JSON object",
        ),
        (
            [Call(id="c", name="write", arguments='{"path": NaN}')],
            "the call of write is malformed: its arguments are not JSON",
        ),
        ([Call(id="c", name="write", arguments="")], None),
        ([Call(id="c", name="delete", arguments="{}")], "a tool is called that may not be"),
    ],
)
def test_a_call_that_cannot_be_made_has_a_flaw(calls: list[Call], flaw: str | None) -> None:
    assert flaw_of(calls, TOOLING) == flaw


def test_tool_choice_says_which_calls_must_and_may_be_made() -> None:
    forced = Tooling(tools=TOOLING.tools, choice="required")
    named = Tooling(tools=TOOLING.tools, choice="named", name="write")
    never = Tooling(tools=TOOLING.tools, choice="none")
    assert flaw_of([], forced) == flaw_of([], named) == "no tool is called, and tool_choice asks for a call"
    assert flaw_of(search(), forced) is None
    assert flaw_of(search(), named) == flaw_of(search(), never) == "a tool is called that may not be"
    assert flaw_of([], never) is flaw_of([], None) is None


def test_a_schema_that_cannot_be_evaluated_makes_no_flaw() -> None:
    assert flaw_of([Call(id="c", name="find", arguments='{"a": "y"}')], PATTERNED) is None


def test_equal_calls_are_no_worse_and_others_are_with_the_share_of_equal_fields() -> None:
    same = judge_calls(TOOLING, search(), search())
    other = judge_calls(TOOLING, search(limit=4), search())
    assert (same.no_worse, same.score) == (True, 1.0)
    assert (other.no_worse, other.score, other.reason) == (False, 2 / 3, "2 of 3 fields of the calls are equal")


def test_a_text_against_a_call_and_free_texts_alone_make_no_label() -> None:
    def say(text: str) -> list[Call]:
        return [Call(id="c", name="write", arguments=json.dumps({"text": text}))]

    for ours, theirs in (([], search()), (search(), []), (say("one\ntwo"), say("three\nfour"))):
        assert judge_calls(TOOLING, ours, theirs).no_worse is None
    assert judge_calls(TOOLING, say("one"), say("two")).no_worse is False


def test_labels_come_from_a_calibrated_judge_alone() -> None:
    known = calibrate_calls()
    assert (known.judge, known.balanced_accuracy, known.judged, known.trusted) == ("tool_calls", 1.0, 80, True)
    verdict = judge_calls(TOOLING, search(), search())
    trusted = Panel([], {known.judge: known}).on_calls(verdict)
    unknown = Panel([], {}).on_calls(verdict)
    assert (trusted.label, trusted.judge, trusted.reliability) == (True, "tool_calls", 1.0)
    assert (unknown.label, unknown.reason) == (None, "the reliability of judge tool_calls is unknown")
