"""Answers in harmony's channels: any cutting of a transcript gives the same thoughts, calls and text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiers.dialects.written.harmony import MARKS, ChannelParser

NAMES = ("get_weather", "now")
# Reasoning, text, and (name, arguments) of each call.
Read = tuple[str, str, list[tuple[str, str]]]


def marked(transcript: str) -> str:
    """A transcript as people write it, with control tokens as the decoder gives them."""
    for text, mark in MARKS.items():
        transcript = transcript.replace(text, mark)
    return transcript


def read(pieces: list[str], most: int | None = None) -> Read:
    parser = ChannelParser(NAMES, most)
    said = [parser.feed(piece) for piece in pieces] + [parser.finish()]
    calls: list[list[str]] = []
    for delta in (delta for part in said for delta in part.calls):
        if delta.id:
            assert delta.index == len(calls)
            assert delta.id.startswith("call_")
            calls.append([delta.name, ""])
        calls[delta.index][1] += delta.arguments
    assert parser.count == len(calls)
    reasoning, text = "".join(part.reasoning for part in said), "".join(part.text for part in said)
    return reasoning, text, [(name, arguments) for name, arguments in calls]


THOUGHT = "<|channel|>analysis<|message|>The user asks for 2 + 2.<|end|>"
WEATHER = ("get_weather", '{"city": "Bras{\\"}lia"}')
CALL = (
    f"<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{WEATHER[1]}<|call|>"
)
CASES: dict[str, tuple[str, Read]] = {
    "thought and answer": (
        f"{THOUGHT}<|start|>assistant<|channel|>final<|message|>It is 4.<|return|>",
        ("The user asks for 2 + 2.", "It is 4.", []),
    ),
    "the end token of a turn is not part of the text that is read": (
        f"{THOUGHT}<|start|>assistant<|channel|>final<|message|>It is 4.",
        ("The user asks for 2 + 2.", "It is 4.", []),
    ),
    "an answer at once": ("<|channel|>final<|message|>4<|return|>", ("", "4", [])),
    "a call": (THOUGHT + CALL, ("The user asks for 2 + 2.", "", [WEATHER])),
    "a call whose recipient stands behind the role": (
        f"{THOUGHT}<|start|>assistant to=functions.now<|channel|>commentary <|constrain|>json<|message|>{{}}<|call|>",
        ("The user asks for 2 + 2.", "", [("now", "{}")]),
    ),
    "a call at once, with its recipient first": (
        " to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
        ("", "", [("now", "{}")]),
    ),
    "a call without arguments": (
        "<|channel|>commentary to=functions.now<|message|><|call|>",
        ("", "", [("now", "{}")]),
    ),
    "a call without the namespace": (
        "<|channel|>commentary to=now <|constrain|>json<|message|>{}<|call|>",
        ("", "", [("now", "{}")]),
    ),
    "a preamble is said before the call": (
        f"<|channel|>commentary<|message|>I will look.<|end|>{CALL}",
        ("", "I will look.", [WEATHER]),
    ),
    "two thoughts": (
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Three.",
        ("One.\n\nTwo.", "Three.", []),
    ),
    "a call of a tool that was not offered is text": (
        '<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{"path": "/"}<|call|>',
        ("", '{"path": "/"}', []),
    ),
    "a built-in tool in a thought is a thought": (
        "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
        ("print(1)", "", []),
    ),
    "cut in a call": (
        '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"a": 1',
        ("", "", [("now", '{"a": 1')]),
    ),
    "cut in a header": (f"{THOUGHT}<|start|>assistant<|channel|>fin", ("The user asks for 2 + 2.", "", [])),
    "cut behind a role": (f"{THOUGHT}<|start|>assis", ("The user asks for 2 + 2.", "", [])),
    "no header at all": ("It is 4.", ("", "It is 4.", [])),
    "nearly a header": (" to=", ("", " to=", [])),
    "no mark before the body": ("<|channel|>analysis It is easy.<|end|>", ("It is easy.", "", [])),
    "a header that never ends": ("<|channel|>final so long", ("", "so long", [])),
    "no start before the next channel": (
        "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>4",
        ("Hm.", "4", []),
    ),
    "no start behind an end": (
        "<|channel|>analysis<|message|>Hm.<|end|>assistant<|channel|>final<|message|>4",
        ("Hm.", "4", []),
    ),
    "text between messages": ("<|channel|>analysis<|message|>Hm.<|end|>It is 4.", ("Hm.", "It is 4.", [])),
    "a turn that is not the assistant's": (
        "<|channel|>final<|message|>4<|end|><|start|>user<|message|>And 5?<|end|>",
        ("", "4", []),
    ),
    "marks in a body": ("<|channel|>final<|message|>a<|message|>b<|constrain|>c", ("", "abc", [])),
    "a channel of another name": ("<|channel|>summary<|message|>Short.", ("", "Short.", [])),
    "empty": ("", ("", "", [])),
    "nothing but marks": ("<|channel|><|message|><|end|><|start|><|return|><|call|>", ("", "", [])),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_transcript_is_read_whole_and_character_by_character(name: str) -> None:
    transcript, expected = CASES[name]
    assert read([marked(transcript)]) == expected
    assert read(list(marked(transcript))) == expected


@given(st.sampled_from(sorted(CASES)), st.data())
def test_how_a_transcript_is_cut_into_pieces_changes_nothing(name: str, data: st.DataObject) -> None:
    transcript, expected = marked(CASES[name][0]), CASES[name][1]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(transcript)), max_size=6)))
    pieces = [transcript[a:b] for a, b in zip([0, *cuts], [*cuts, len(transcript)], strict=True)]
    assert read(pieces) == expected


PARTS = [*MARKS, "analysis", "final", "commentary", " to=functions.now", "assistant", "user", " ", "x", "{}", "<|end|"]


@given(st.lists(st.sampled_from(PARTS), max_size=14), st.data())
def test_any_order_of_parts_is_read_alike_in_any_pieces_and_no_mark_gets_out(
    parts: list[str], data: st.DataObject
) -> None:
    transcript = marked("".join(parts))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(transcript)), max_size=6)))
    pieces = [transcript[a:b] for a, b in zip([0, *cuts], [*cuts, len(transcript)], strict=True)]
    reasoning, text, calls = read(pieces)
    assert (reasoning, text, calls) == read([transcript])
    (reasoning + text + "".join(a + b for a, b in calls)).encode()


def test_what_the_model_writes_as_text_is_no_mark() -> None:
    """A body may quote the format: only control tokens are marks."""
    quoted = CALL.replace("<|call|>", "")
    assert read([marked("<|channel|>final<|message|>") + quoted]) == ("", quoted, [])


def test_only_as_many_calls_as_asked_for_are_passed_on() -> None:
    assert read([marked(CALL + CALL)]) == ("", "", [WEATHER, WEATHER])
    assert read(list(marked(CALL + CALL)), most=1) == ("", "", [WEATHER])


def test_thoughts_arguments_and_text_stream_as_they_come() -> None:
    parser = ChannelParser(NAMES)
    assert parser.feed(marked("<|channel|>analysis<|message|>Let")).reasoning == "Let"
    assert parser.feed(" me").reasoning == " me"
    heads = parser.feed(marked("<|end|><|start|>assistant to=functions.now<|channel|>commentary<|message|>{")).calls
    assert [(d.name, d.arguments) for d in heads] == [("now", ""), ("", "{")]
    assert [d.arguments for d in parser.feed("}").calls] == ["}"]
    assert parser.feed(marked("<|call|><|channel|>final<|message|>a")).text == "a"
    assert parser.is_answering


def test_a_long_opening_of_white_space_is_text() -> None:
    assert read([" "] * 2000) == ("", " " * 2000, [])
