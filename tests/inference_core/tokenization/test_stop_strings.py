"""Stop strings are found however the text is cut, never shown, and hold back no more than they must."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference_core.errors import InvalidRequestError
from inference_core.tokenization.tokenizer import StopStrings

ALPHABET = st.text(alphabet="abc\n", max_size=30)
STOPS = st.lists(st.text(alphabet="abc\n", min_size=1, max_size=5), max_size=4)


def watched(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Reading character by character, stop at the first that completes a stop string; the longest of those wins."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(text=ALPHABET, stops=STOPS, cuts=st.lists(st.integers(1, 6), max_size=30))
@example(text="abcab", stops=["abcd", "bc"], cuts=[1, 1, 1, 1])
@example(text="aab", stops=["ab"], cuts=[1, 1])
@example(text="xabab\nabc", stops=["ababc", "\nab"], cuts=[2, 2, 2])
def test_any_cutting_gives_what_watching_every_character_gives(text: str, stops: list[str], cuts: list[int]) -> None:
    machine = StopStrings(stops)
    shown, matched, rest = "", None, text
    for size in [*cuts, len(text)]:
        emit, matched = machine.push(rest[:size])
        shown, rest = shown + emit, rest[size:]
        if matched is not None:
            break
    shown += machine.flush()

    assert (shown, matched) == watched(text, stops)


@given(text=ALPHABET, stops=STOPS)
def test_nothing_is_held_back_that_no_stop_string_can_reach(text: str, stops: list[str]) -> None:
    machine = StopStrings(stops)
    emit, matched = machine.push(text)
    if matched is not None:
        return
    held = text[len(emit) :]
    starts = [tail for i in range(len(text)) if any(s.startswith(tail := text[i:]) and s != tail for s in stops)]

    assert held == max(starts, key=len, default="")


def test_a_stop_string_that_straddles_pieces_is_not_shown() -> None:
    machine = StopStrings(["</answer>"])

    assert machine.push("42</an") == ("42", None)
    assert machine.push("swer> more") == ("", "</answer>")
    assert machine.push("and more") == ("", "</answer>")
    assert machine.flush() == ""


def test_a_stop_string_is_shown_to_its_end_if_that_is_asked_for() -> None:
    stops = StopStrings(["END", "END."], include=True)
    assert stops.push("the E") == ("the ", None)
    assert stops.push("ND. of it") == ("END", "END")
    assert stops.flush() == ""


def test_text_that_only_looked_like_a_stop_string_is_shown() -> None:
    machine = StopStrings(["</answer>"])

    assert machine.push("a </an") == ("a ", None)
    assert machine.push("gle>") == ("</angle>", None)
    assert machine.push("<") == ("", None)
    assert machine.flush() == "<"


def test_without_stop_strings_everything_is_shown_at_once() -> None:
    assert StopStrings([]).push("anything") == ("anything", None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as error:
        StopStrings(["a", ""])
    assert error.value.param == "stop"
