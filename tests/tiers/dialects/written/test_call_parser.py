"""Tool calls in streamed answers: any chunking of an answer gives the same text and calls."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiers.dialects.written.call_dialects import HERMES, LLAMA3, MISTRAL, CallDialect, call_dialect_of
from tiers.dialects.written.call_parser import CallParser

NAMES = ("get_weather", "add")
Read = tuple[str, list[tuple[str, str]]]


def read(dialect: CallDialect, pieces: list[str], most: int | None = None) -> Read:
    """Text, and (name, arguments) of each call."""
    parser = CallParser(dialect, NAMES, most)
    said = [parser.feed(piece) for piece in pieces] + [parser.finish()]
    calls: list[list[str]] = []
    for part in said:
        for delta in part.calls:
            if delta.id:
                assert delta.index == len(calls)
                assert delta.id.startswith("call_")
                calls.append([delta.name, ""])
            calls[delta.index][1] += delta.arguments
    assert parser.count == len(calls) or calls
    return "".join(part.text for part in said), [(name, arguments) for name, arguments in calls]


WEATHER = ("get_weather", '{"city": "Bras{\\"}lia", "days": [1, {"a": null}]}')
ADD = ("add", '{"a": 1, "b": -2.5e3}')


def hermes(*calls: tuple[str, str]) -> str:
    return "\n".join(f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>' for n, a in calls)


def llama(*calls: tuple[str, str]) -> str:
    return "; ".join(f'{{"name": "{n}", "parameters": {a}}}' for n, a in calls)


def mistral(*calls: tuple[str, str]) -> str:
    return "[TOOL_CALLS][" + ", ".join(f'{{"name": "{n}", "arguments": {a}}}' for n, a in calls) + "]"


UNKNOWN = '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'
CASES: list[tuple[CallDialect, str, Read]] = [
    (HERMES, hermes(WEATHER), ("", [WEATHER])),
    (HERMES, hermes(WEATHER, ADD), ("", [WEATHER, ADD])),
    (HERMES, "Let me see.\n" + hermes(ADD), ("Let me see.", [ADD])),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', ("", [("add", '{"a": 1}')])),
    (HERMES, '<tool_call>{"name": "add"}</tool_call>', ("", [("add", "{}")])),
    (HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', ("", [("add", '{"a": 1}')])),
    (HERMES, "2 < 3 and <tool> is no call", ("2 < 3 and <tool> is no call", [])),
    (HERMES, "  plain text \n", ("  plain text \n", [])),
    (HERMES, UNKNOWN, (UNKNOWN, [])),
    (HERMES, "<tool_call> nonsense", ("<tool_call> nonsense", [])),
    (HERMES, hermes(ADD) + "\nThat is all.", ("That is all.", [ADD])),
    (HERMES, '<tool_call>\n{"name": "add", "arguments": {"a": 1', ("", [("add", '{"a": 1')])),
    (HERMES, '<tool_call>\n{"name": "ad', ('<tool_call>\n{"name": "ad', [])),
    (LLAMA3, llama(WEATHER), ("", [WEATHER])),
    (LLAMA3, llama(WEATHER, ADD), ("", [WEATHER, ADD])),
    (LLAMA3, "<|python_tag|>" + llama(ADD), ("", [ADD])),
    (LLAMA3, 'The call {"name": "add"} is only mentioned.', ('The call {"name": "add"} is only mentioned.', [])),
    (LLAMA3, '{"answer": 42}', ('{"answer": 42}', [])),
    (LLAMA3, '{"name": "Ada", "age": 36}', ('{"name": "Ada", "age": 36}', [])),
    (MISTRAL, mistral(WEATHER), ("", [WEATHER])),
    (MISTRAL, mistral(WEATHER, ADD), ("", [WEATHER, ADD])),
    (MISTRAL, "Well. " + mistral(ADD), ("Well.", [ADD])),
    (MISTRAL, "a [list] of things", ("a [list] of things", [])),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "answer", "expected"), CASES, ids=lambda value: str(value)[:40])
def test_calls_are_read_whole_and_character_by_character(dialect: CallDialect, answer: str, expected: Read) -> None:
    assert read(dialect, [answer]) == expected
    assert read(dialect, list(answer)) == expected


@given(st.sampled_from(CASES), st.data())
def test_how_an_answer_is_cut_into_pieces_changes_nothing(
    case: tuple[CallDialect, str, Read], data: st.DataObject
) -> None:
    dialect, answer, expected = case
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(answer) - 1)), max_size=6)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert read(dialect, pieces) == expected


@given(
    st.sampled_from([HERMES, LLAMA3, MISTRAL]),
    st.text(st.sampled_from('{}[]":,<>/\\ abtool_call"TOOL_CALLS'), max_size=60),
)
def test_what_holds_no_call_comes_out_as_it_went_in(dialect: CallDialect, answer: str) -> None:
    assert read(dialect, list(answer)) == (answer, [])


def test_only_as_many_calls_as_asked_for_are_passed_on() -> None:
    assert read(HERMES, [hermes(WEATHER, ADD)], most=1) == ("", [WEATHER])
    assert read(LLAMA3, list(llama(WEATHER, ADD)), most=1) == ("", [WEATHER])


def test_arguments_stream_as_they_come() -> None:
    parser = CallParser(HERMES, NAMES)
    heads = parser.feed('<tool_call>\n{"name": "add", "arguments": {"a"').calls
    assert [(d.name, d.arguments) for d in heads] == [("add", ""), ("", '{"a"')]
    assert [d.arguments for d in parser.feed(": 12").calls] == [": 12"]
    assert json.loads('{"a"' + ": 12" + parser.feed("3}").calls[0].arguments) == {"a": 123}


def test_the_dialect_is_read_off_the_template() -> None:
    assert call_dialect_of(None) is HERMES
    assert call_dialect_of("{{ '<tool_call>' }}") is HERMES
    assert call_dialect_of("{{ '[TOOL_CALLS]' }}") is MISTRAL
    assert call_dialect_of("{{ '<|python_tag|>' }}") is LLAMA3


@pytest.mark.parametrize(
    ("dialect", "text", "most"),
    [
        # More calls than allowed: none of the rest becomes text.
        (HERMES, '<tool_call>\n{"name": "add", "arguments": {}}\n<tool_call>\n{"name": "add"', 1),
        # It fails after its arguments have started.
        (MISTRAL, '[TOOL_CALLS][{"name": "add", "arguments": {"a": ], and so on', None),
        # A second name, once the first one has been passed on.
        (LLAMA3, '{"name": "add", "parameters": {"a": 1}, "name": "get_weather"}', None),
        # A call of an unknown function whose arguments have a marker.
        (HERMES, f'<tool_call>\n{{"name": "x", "arguments": {{"a": "{hermes(ADD)}"}}}}', None),
    ],
    ids=["too many", "broken", "two names", "a call within a call"],
)
def test_a_malformed_answer_reads_the_same_in_pieces_of_any_size(
    dialect: CallDialect, text: str, most: int | None
) -> None:
    assert read(dialect, list(text), most) == read(dialect, [text], most)


def test_a_name_that_is_nested_deeply_is_text() -> None:
    text = '{"name": ' + "[" * 100_000 + "]" * 100_000 + "}"

    assert read(LLAMA3, [text]) == (text, [])
