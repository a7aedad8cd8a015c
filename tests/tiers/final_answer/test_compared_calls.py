"""Calls of two answers, field by field: orders do not matter, types do, long free texts do not count."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiers.conversation import Call, Tool
from tiers.final_answer.structured import CallsCompared, compared_calls

LONG = "a sentence that goes on " * 9
EDIT = Tool(
    name="edit",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "line": {"type": "integer", "default": 1},
            "text": {"type": "string"},
            "mode": {"anyOf": [{"type": "string", "enum": [LONG, LONG + "b"]}, {"type": "null"}]},
        },
    },
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)
calls = st.lists(
    st.tuples(st.sampled_from(["edit", "find"]), st.dictionaries(st.sampled_from("abc"), json_values, max_size=3)),
    min_size=1,
    max_size=4,
)


def call(arguments: dict[str, Any] | str, name: str = "edit") -> Call:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Call(id="c", name=name, arguments=text)


def turned(value: Any) -> Any:
    """The same value with its keys in the opposite order."""
    if isinstance(value, dict):
        return {name: turned(member) for name, member in reversed(value.items())}
    return [turned(element) for element in value] if isinstance(value, list) else value


@given(ours=calls, theirs=calls, data=st.data())
def test_neither_the_order_of_calls_nor_that_of_keys_nor_the_side_changes_anything(
    ours: list[tuple[str, Any]], theirs: list[tuple[str, Any]], data: st.DataObject
) -> None:
    our_calls, their_calls = [call(a, n) for n, a in ours], [call(a, n) for n, a in theirs]
    shuffled = [call(turned(a), n) for n, a in data.draw(st.permutations(ours))]
    compared = compared_calls([EDIT], our_calls, their_calls)
    assert compared == compared_calls([EDIT], shuffled, their_calls) == compared_calls([EDIT], their_calls, shuffled)
    same = compared_calls([EDIT], our_calls, shuffled)
    assert same is not None
    assert (same.unequal, same.free, same.share) == (0, 0, 1.0)


@pytest.mark.parametrize(
    ("ours", "theirs", "compared"),
    [
        ({"path": "a"}, {"path": "a"}, CallsCompared(0, 3, 2, 0)),  # the name, the path, the line by default
        ({"path": "a", "line": 1}, {"path": "a"}, CallsCompared(0, 3, 2, 0)),
        ({"path": "a", "line": 2}, {"path": "a"}, CallsCompared(1, 2, 2, 0)),
        ({"path": 1}, {"path": "1"}, CallsCompared(1, 2, 2, 0)),
        ({"path": True}, {"path": 1}, CallsCompared(1, 2, 2, 0)),
        ({"path": "a", "other": None}, {"path": "a"}, CallsCompared(1, 3, 3, 0)),
        ({"path": "a", "text": LONG}, {"path": "a", "text": LONG + "!"}, CallsCompared(0, 3, 2, 1)),
        ({"path": "a", "text": LONG}, {"path": "a", "text": LONG}, CallsCompared(0, 3, 2, 0)),
        ({"path": "a", "text": "one\ntwo"}, {"path": "a"}, CallsCompared(0, 3, 2, 1)),
        ({"path": "a", "text": "short"}, {"path": "a", "text": "brief"}, CallsCompared(1, 3, 3, 0)),
        ({"mode": LONG}, {"mode": LONG + "b"}, CallsCompared(1, 2, 2, 0)),  # out of a stated set: no free text
        ({"path": {"x": [1, 2]}}, {"path": {"x": [1, 3]}}, CallsCompared(1, 3, 3, 0)),
    ],
)
def test_fields_are_counted_one_by_one(ours: Any, theirs: Any, compared: CallsCompared) -> None:
    assert compared_calls([EDIT], [call(ours)], [call(theirs)]) == compared


def test_calls_are_paired_so_that_few_fields_differ_and_one_too_many_differs_whole() -> None:
    ours = [call({"path": "b", "line": 2}), call({"path": "a", "line": 1}), call({"path": "c", "line": 9})]
    theirs = [call({"path": "a", "line": 1}), call({"path": "b", "line": 3})]
    assert compared_calls([EDIT], ours, theirs) == CallsCompared(4, 5, 6, 0)
    assert compared_calls([EDIT], ours, [call({}, "find")]) == CallsCompared(10, 0, 6, 0)


@pytest.mark.parametrize("text", ["{", "[1]", '"a"', '{"a": 1} extra', "[" * 100_000])
def test_arguments_that_are_no_object_are_not_compared(text: str) -> None:
    assert compared_calls([EDIT], [call(text)], [call({})]) is None
    assert compared_calls([EDIT], [call("")], [call({})]) == CallsCompared(0, 2, 1, 0)


def test_too_many_fields_or_calls_are_not_compared() -> None:
    assert compared_calls([EDIT], [call({"many": list(range(500))})], [call({})]) is None
    assert compared_calls([EDIT], [call({})] * 33, [call({})]) is None
