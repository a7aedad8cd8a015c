"""The part of a request that the classifier sees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.features.routing_input import PLAN_FIRST, cut_turn, routing_input, routing_input_of_text


def test_of_a_new_topic_only_the_last_user_turn_is_looked_at() -> None:
    found = routing_input(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "answer"},
            {"role": "user", "content": "What is the boiling point of ethanol?"},
        ],
        max_tokens=7,
        has_tools=True,
        previous_tiers=[2],
    )
    assert (found.turn, found.user_turns, found.assistant_turns) == ("What is the boiling point of ethanol?", 2, 1)
    assert (found.max_tokens, found.has_tools, found.has_schema, found.previous_tiers) == (7, True, False, (2,))


def test_the_system_prompt_is_known_by_its_hash_alone() -> None:
    one, same, other, none = (
        routing_input([*([{"role": "system", "content": text}] if text else []), {"role": "user", "content": "hi"}])
        for text in ("You are Ann.", "You are Ann.", "You are Bob.", "")
    )
    assert one.app == same.app != other.app
    assert none.app == ""
    assert "Ann" not in one.app


def test_a_conversation_without_a_user_turn_is_an_empty_turn() -> None:
    assert routing_input([{"role": "assistant", "content": "hello"}]).turn == ""


def test_a_long_turn_keeps_its_first_192_and_last_64_words() -> None:
    words = [f"w{i}" for i in range(1000)]
    found = routing_input_of_text(" ".join(words))
    assert found.turn.split() == words[:192] + words[-64:]
    assert found.turn_chars == len(" ".join(words))


@pytest.mark.parametrize("between", ["\n", "\t", "\u3000"])
def test_words_that_other_white_space_parts_are_cut_as_others(between: str) -> None:
    words = [f"word{place}" for place in range(400)]
    assert cut_turn(between.join(words)) == f"{between.join(words[:192])}\n{between.join(words[-64:])}"


def test_a_turn_of_256_words_is_kept_exactly() -> None:
    text = "\n".join(f"  w{i}" for i in range(256))
    assert cut_turn(text) == text


def test_words_of_one_letter_are_cut_as_others() -> None:
    assert cut_turn("a " * 257).split() == ["a"] * 256
    assert cut_turn(f"{'a ' * 192}b") == f"{'a ' * 192}b"


@given(st.text(max_size=6000))
def test_a_cut_turn_is_bounded_and_its_ends_are_the_ends_of_the_text(text: str) -> None:
    cut = cut_turn(text)
    assert len(cut) <= 192 * 8 + 64 * 8 + 1
    assert len(cut.split()) <= 192 + 64
    head, tail = text.split()[:1], text.split()[-1:]
    if cut.split() and len(text) <= 2048:
        assert cut.split()[:1] == head
        assert cut.split()[-1:] == tail


def test_invalid_surrogates_do_not_break_the_input() -> None:
    found = routing_input([{"role": "system", "content": "\ud800"}, {"role": "user", "content": "\udfff hi"}])
    assert found.turn.endswith("hi")


def test_a_plan_mode_is_said_in_words_that_the_classifier_reads() -> None:
    asked = [{"role": "user", "content": "Add a cache to the client."}]
    assert routing_input(asked, plan_mode=True).turn == f"{PLAN_FIRST} Add a cache to the client."
    assert routing_input(asked).turn == "Add a cache to the client."
    assert routing_input([{"role": "assistant", "content": "hi"}], plan_mode=True).turn == ""
