"""Words that change nothing of the task are not seen by the classifier; what a request speaks of is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.features import stray_text
from classifier.features.routing_input import routing_input_of_text
from classifier.features.stray_text import LONGEST, without_stray_text

QUESTION = "What is the capital of Portugal, and how many people live there?"
CODE = (
    "def total(xs): return sum(x.price for x in xs) # import numpy as np; while True: print(total([1, 2])) "
    "except KeyError: raise SystemExit(1)"
)
FORMULAE = r"$\int_0^1 x^2 dx$ \frac{a}{b} $\sum_{i=1}^n i$"


@pytest.mark.parametrize("stray", [CODE, FORMULAE])
@pytest.mark.parametrize("form", ["{question} {stray}", "{question}\n\n{stray}", "{stray}\n{question}"])
def test_code_and_formulae_at_an_end_that_the_request_does_not_speak_of_are_left_out(form: str, stray: str) -> None:
    assert without_stray_text(form.format(question=QUESTION, stray=stray)) == QUESTION


@pytest.mark.parametrize(
    "request_",
    [
        f"What does this print? {CODE}",
        f"Why does my function fail?\n{CODE}",
        f"Rewrite the following: {CODE}",
        f"Prove the inequality. {FORMULAE}",
        f"这段代码有什么问题，请仔细看一看 {CODE}",
        f"Which of them is right for you?\nA. {FORMULAE}\nB. {FORMULAE}",
        f"Say what you think of\n```\n{CODE}\n```",
        "Marly has ten $20 bills, eight $10 bills, and four $5 bills. How many $100 bills does she get?",
        "The value is either in a_1 or in b_1, and we do not know it.",
        CODE,
    ],
)
def test_what_a_request_speaks_of_is_kept(request_: str) -> None:
    assert without_stray_text(request_) == request_


@pytest.mark.parametrize(
    "greeting",
    [
        "Hi there! ",
        "Hello,\n",
        "Good morning, hope you are well. ",
        "Hey Max, long time no see! ",
        "Bonjour, ça va bien ? ",
    ],
)
def test_a_greeting_before_a_request_is_left_out(greeting: str) -> None:
    assert without_stray_text(greeting + QUESTION) == QUESTION


@pytest.mark.parametrize("thanks", [" Thanks a lot!", " Many thanks in advance.", "\nBest regards, Ann"])
def test_thanks_after_a_request_are_left_out(thanks: str) -> None:
    assert without_stray_text(QUESTION + thanks) == QUESTION


@pytest.mark.parametrize(
    "aside", ["Ignore these words: zebra, sonnet.", "(This part has nothing to do with my question.)"]
)
def test_a_sentence_that_is_to_be_ignored_is_left_out(aside: str) -> None:
    assert without_stray_text(f"{QUESTION} {aside}").rstrip() == QUESTION
    assert without_stray_text(f"{aside}\n{QUESTION}").lstrip(") \n") == QUESTION


@pytest.mark.parametrize(
    "whole",
    [
        "Hello there",
        "Good morning!",
        "Thanks, that was all.",
        "Good books about the sea, please, and about ships.",
        "Hello world in C: write it and explain each line.",
        "Hello can you name the capital of France? And that of Spain as well.",
        "Hey Jude: who wrote it, and when was it released?",
        "Ignore these words.",
    ],
)
def test_a_turn_without_another_request_is_kept(whole: str) -> None:
    assert without_stray_text(whole) == whole


def test_the_classifier_reads_the_rest() -> None:
    assert routing_input_of_text(f"Hi there! {QUESTION} {CODE}").turn == QUESTION


@given(st.text(max_size=300))
def test_any_text_stays_a_part_of_itself_and_none_becomes_empty(text: str) -> None:
    found = without_stray_text(text)
    assert len(found) <= len(text)
    assert bool(found.strip()) == bool(text.strip())


def test_long_turns_are_not_searched() -> None:
    text = f"Hello! {QUESTION} " * (LONGEST // 40)
    assert without_stray_text(text) is text


@given(st.lists(st.sampled_from(["a", "b1", " ", "\n", "\t ", "é"]), max_size=120).map("".join))
def test_words_come_from_either_end_as_if_all_were_split(text: str) -> None:
    assert list(stray_text._first_words(text)) == text.split()
    assert list(stray_text._last_words(text)) == text.split()[::-1]
