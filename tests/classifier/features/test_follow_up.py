"""A follow-up is read with the turn that it goes on with; what stands for itself, or closes, is read alone."""

import pytest

from classifier.features.follow_up import HEAD_WORDS, TAIL_WORDS, continues, is_closing
from classifier.features.routing_input import RoutingInput, routing_input, routing_input_of_text

PROOF = "Prove that every finite integral domain is a field."


def read(*asked: str) -> RoutingInput:
    turns = [{"role": role, "content": text} for text in asked for role in ("user", "assistant")]
    return routing_input(turns[:-1])


@pytest.mark.parametrize(
    "turn",
    ["yes, do that", "now in Rust", "and of New Zealand?", "why?", "Why does this fail for infinite ones?", "ok",
     "Und mit Fußbodenheizung?", "改成用pandas", "¿y si falla una región entera?", "а для p^3 это верно?",
     "which is better if we drive 40,000 km a year?", "no, that's wrong for n=1. check again", "go on"],
)  # fmt: skip
def test_a_follow_up_is_read_after_what_it_goes_on_with(turn: str) -> None:
    assert continues(turn, PROOF)
    assert read(PROOF, turn).turn == f"{PROOF} {turn}"


@pytest.mark.parametrize(
    "turn",
    ["What's the boiling point of ethanol?", "Translate 'where is the station?' into Spanish.",
     "Summarise what the French Revolution changed in property law, in about 200 words.",
     "Erkläre die Quantenmechanik für Laien mit drei Beispielen."],
)  # fmt: skip
def test_a_new_topic_is_read_alone(turn: str) -> None:
    assert read(PROOF, turn).turn == turn


@pytest.mark.parametrize("turn", ["thanks!", "great, that works. bye for now", "merci beaucoup !", "👍", "ありがとう"])
def test_thanks_are_read_alone(turn: str) -> None:
    assert is_closing(turn)
    assert PROOF not in read(PROOF, turn).turn


def test_two_earlier_turns_count_where_the_first_is_a_follow_up_itself() -> None:
    assert read("Write a story.", PROOF, "why?", "and then?").turn == f"{PROOF} why? and then?"
    assert read("Write a story.", PROOF, "and then?").turn == f"{PROOF} and then?"
    assert read(PROOF, "thanks!", "and then?").turn == f"{PROOF} and then?"


def test_a_first_turn_is_read_as_before_however_short_it_is() -> None:
    for turn in ("yes", "and now?", "go on", PROOF):
        assert read(turn) == routing_input_of_text(turn)


def test_of_a_long_earlier_turn_both_ends_are_read_and_the_newest_turn_always() -> None:
    long = " ".join(f"w{n}" for n in range(5000))
    words = read(long, "yes, do that").turn.split()
    assert words[:HEAD_WORDS] == [f"w{n}" for n in range(HEAD_WORDS)]
    assert words[-TAIL_WORDS - 3 :] == [*(f"w{n}" for n in range(5000 - TAIL_WORDS, 5000)), "yes,", "do", "that"]


def test_the_words_of_an_assistant_and_of_tools_are_not_read() -> None:
    turns = [("user", PROOF), ("assistant", "Shall I prove the converse?"), ("tool", "theorem"), ("user", "yes")]
    found = routing_input([{"role": role, "content": content} for role, content in turns])
    assert found.turn == f"{PROOF} yes"
