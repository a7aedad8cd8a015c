"""A prompt is read in plain form: white space, typing errors and politeness at its ends change nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.features import plain_form as spelling
from classifier.features.plain_form import (
    LEAST,
    OF_COURTESY,
    corrected,
    frequent_words,
    plain_form,
    without_answer_form,
)
from classifier.features.routing_input import routing_input_of_text

ASKED = "Explain the rules of chess to a child."


@pytest.mark.parametrize(
    "noisy",
    [
        "  Explain  the rules\tof chess\n to a\n\nchild. \n",
        f"Could you please help me with this? {ASKED}",
        f"Hi team, {ASKED}",
        f"I was wondering if you could help me with the following. {ASKED}",
        f"{ASKED} Thank you so much in advance!",
        f"Hello! {ASKED} Many thanks, Ann",
    ],
)
def test_white_space_and_politeness_are_left_out(noisy: str) -> None:
    assert plain_form(noisy) == ASKED


@pytest.mark.parametrize("written", ["diffrence", "differnece", "diffference", "diffwrence", "Diffrence"])
def test_a_word_one_edit_away_from_a_frequent_one_is_that_one(written: str) -> None:
    assert corrected(f"What is the {written} between them?") == "What is the difference between them?"


@pytest.mark.parametrize(
    "text",
    [
        "Was ist der Unterschied zwischen Wetter und Klima?",
        "What is the don't_know of x86 and naïvety?",
        "How do schedulers preempt?",
        "Please help me?",
        "Can I have a look?",
    ],
)
def test_other_languages_names_and_short_requests_stay(text: str) -> None:
    assert plain_form(text) == text


def test_a_question_whose_words_are_courteous_is_not_left_out() -> None:
    assert plain_form("How do I politely say good morning to my new team?").startswith("How do I politely")
    assert plain_form("Hello! How are you today?") == "How are you today?"


def test_options_keep_their_lines_in_any_case() -> None:
    options = "Which is  even?\n\na) three\n b) four"
    assert plain_form(options) == "Which is even?\nA) three\nB) four"


def test_the_length_of_a_cut_turn_is_that_of_its_plain_form() -> None:
    text = " ".join(["number"] * 1000)
    found = routing_input_of_text(text.replace(" ", "  "))
    assert found.turn_chars == pytest.approx(len(text), rel=0.01)


def test_words_of_courtesy_are_never_misspelt() -> None:
    assert {word for word in OF_COURTESY if len(word) >= LEAST and word.isalpha()} <= frequent_words().keys()


@pytest.mark.skipif(spelling.KERNELS is None, reason="the kernels were not built")
@given(st.lists(st.sampled_from(
    ("the", "diffrence", "Explian", "rulse", "chess", " ", "'s ", "é", "x1", "\ud800", "_", "schedulers", "wihch", "\n")
), max_size=30).map(" ".join))  # fmt: skip
def test_the_kernel_corrects_as_python_does(text: str) -> None:
    assert spelling.KERNELS.corrections(spelling.spelling(), text) == list(spelling._corrections(text))


@pytest.mark.skipif(spelling.KERNELS is None, reason="the kernels were not built")
@given(st.lists(st.sampled_from(
    ("Hi there,", "Could you please", "the", "diffrence", "wihch", " ", "\n", "\nA. ", "\n(b) ", " \n c) ", "\nD: x",
     "E.", "Thank you!", "\x00", "\xa0", "\u2028", "é", "\ud800", "\t", "x1", "? ", ". ", ", ")
), max_size=30).map("".join))  # fmt: skip
def test_the_kernel_gives_the_plain_form_that_python_does(text: str) -> None:
    found = plain_form(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spelling, "KERNELS", None)
        assert found == plain_form(text)


@pytest.mark.parametrize(
    "form",
    [
        "Answer in a table with two columns.",
        "Answer in a table with two columns. Use short sentences. Do not add an introduction. Keep it under 100 words.",
        "Reply in at most 3 bullet points, no preamble",
        'Give the answer as JSON with the keys "answer" and "detail".',
        "Antworte in höchstens 50 Wörtern.",
        "Réponds en une phrase.",
        "Responde en una frase, sin explicación.",
    ],
)
@pytest.mark.parametrize("asked", ["How do tides work?", "Prove that 2 is the only even prime"])
def test_sentences_on_the_form_of_an_answer_are_left_out_of_a_request(asked: str, form: str) -> None:
    for text in (f"{asked} {form}", f"{asked}\n\n{form}"):
        assert without_answer_form(text) == asked
    if form.endswith("."):
        assert without_answer_form(f"{form}\n\n{asked}") == asked


@pytest.mark.parametrize(
    "text",
    [
        "Answer in one sentence.",
        "How do tides work? Answer in a table with the moon's phases.",
        "How do tides work? Write a summary of it in one paragraph.",
        "Make this paragraph more formal: we can't ship it this week.",
        "name, age\nAnn, 31\nBob, 40\n\nFormat as a table.",
        "I have two dogs. Use one word.",
        "Write a poem about short words. Prove it is short.",
    ],
)
def test_what_is_asked_for_and_the_only_sentence_stay(text: str) -> None:
    assert without_answer_form(text) == text


def test_own_labels_see_instructions_on_form_and_the_classes_do_not() -> None:
    found = routing_input_of_text("How do tides work? Answer in one sentence.")
    assert found.turn == "How do tides work? Answer in one sentence."
    assert found.request.turn == "How do tides work?"


@given(st.text(alphabet="Answer in one. \n?Useword", max_size=300))
def test_what_is_left_is_a_part_of_the_text(text: str) -> None:
    assert without_answer_form(text) in text
