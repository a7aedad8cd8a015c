"""Surface features (RT-02)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.features.stray_text import tokenise
from classifier.features.surface_features import (
    FEATURE_NAMES,
    KEYWORDS,
    count_characters,
    question_depth,
    surface_features,
)
from tests.classifier.features.named_features import named_features


@pytest.mark.parametrize(
    ("keyword", "text"),
    [
        ("analyze", "please analyse it"),
        ("analyze", "please analyze it"),
        ("analyze", "an analysis"),
        ("compare", "comparing both"),
        ("explain_why", "explain  why"),
        ("step_by_step", "a step-by-step plan"),
        ("evaluate", "evaluation"),
        ("synthesize", "synthesise them"),
        ("synthesize", "synthesizing"),
        ("what_would_happen_if", "what would happen if it rained"),
    ],
)
def test_each_reasoning_keyword_is_found_in_both_spellings(keyword: str, text: str) -> None:
    assert named_features(text)[f"keyword_{keyword}"] == 1


@pytest.mark.parametrize(
    ("keyword", "text"),
    [
        ("analyze", "psychoanalyze"),
        ("analyze", "analyst"),
        ("compare", "comparable"),
        ("evaluate", "reevaluate"),
        ("explain_why", "explain whyever"),
        ("step_by_step", "footstep by step"),
        ("what_would_happen_if", "somewhat would happen if"),
    ],
)
def test_a_keyword_inside_another_word_does_not_count(keyword: str, text: str) -> None:
    assert named_features(text)[f"keyword_{keyword}"] == 0


def test_all_seven_keywords_of_the_sources_are_there() -> None:
    assert len(KEYWORDS) == 7
    text = "Analyze, compare, explain why, step by step, evaluate, synthesize: what would happen if it failed?"
    found = named_features(text)
    assert [found[f"keyword_{name}"] for name in KEYWORDS] == [1.0] * 7


@pytest.mark.parametrize(
    ("text", "entities"),
    [
        ("we met in New York and in Paris", 2),
        ("Dogs bark. Cats meow.", 0),
        ("the river Rhine. It is long", 1),
        ("", 0),
    ],
)
def test_entities_are_runs_of_capitalised_words_inside_sentences(text: str, entities: int) -> None:
    assert named_features(text)["entity_count"] == pytest.approx(math.log1p(entities))


def test_a_nested_question_is_deeper_than_a_plain_one() -> None:
    plain = named_features("What is the capital of France?")
    nested = named_features("What happens when the one who left because it rained returns after we know why?")
    assert nested["question_depth"] > plain["question_depth"]
    assert question_depth(0, 0, 0) == 0


def test_domain_words_are_counted_by_class_and_specificity_tells_a_mixed_prompt() -> None:
    law = named_features("the court and the jury read the statute")
    mixed = named_features("the court and the enzyme")
    assert law["share_law"] == pytest.approx(3 / 8)
    assert law["has_law"] == 1
    assert law["has_medicine"] == 0
    assert law["domain_specificity"] > mixed["domain_specificity"] == 0


def test_code_maths_and_multiple_choice_have_their_marks() -> None:
    found = named_features("Pick one:\nA) \\frac{1}{2}\nB) x = 3\n```\nimport os\n```\nThe answer is ___")
    assert found["multiple_choice_options"] == pytest.approx(math.log1p(2))
    assert found["code_markers"] == pytest.approx(math.log1p(3))
    assert found["latex_markers"] > 0
    assert found["blank_to_fill"] == 1
    assert found["share_maths_symbols"] > 0


def test_numbers_are_counted_as_runs_of_digits() -> None:
    assert named_features("12 and 345, 6.7")["number_count"] == pytest.approx(math.log1p(4))


def test_characters_are_counted_by_kind_and_each_once() -> None:
    text = 'Is "x" = $5, é?\n\tYes! [1] \\a'
    found = count_characters(text.encode())
    assert sum(found) == len(text.encode())
    assert (found.questions, found.exclamations, found.line_breaks, found.dollars, found.non_ascii) == (1, 1, 1, 1, 2)
    assert (found.quotes, found.brackets, found.digits, found.capitals, found.commas) == (2, 2, 2, 2, 1)
    assert (found.other_maths, found.backslashes, found.other_space) == (1, 1, text.count(" ") + 1)


def test_a_dollar_is_a_maths_symbol_and_a_latex_mark() -> None:
    found = named_features("a $ b")
    assert found["share_maths_symbols"] == pytest.approx(1 / 5)
    assert found["latex_markers"] == pytest.approx(math.log1p(1))


def test_length_counts_the_turn_before_it_was_cut() -> None:
    tokens = tokenise("a b")
    long, short = surface_features("a b", tokens, 30_000), surface_features("a b", tokens, 3)
    assert long[FEATURE_NAMES.index("log_chars")] == pytest.approx(math.log1p(30_000))
    assert long[FEATURE_NAMES.index("log_words")] > short[FEATURE_NAMES.index("log_words")]


def test_words_are_lower_case_without_punctuation_and_with_masked_digits() -> None:
    assert tokenise("Don't PANIC: “it’s” 42-ish—Ünï?") == ["dont", "panic", "its", "00", "ish", "ünï"]


def test_feature_names_are_unique() -> None:
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES)


@given(st.text(max_size=3000))
def test_any_text_gives_a_finite_vector_of_the_named_length(text: str) -> None:
    vector = surface_features(text, tokenise(text), len(text))
    assert vector.shape == (len(FEATURE_NAMES),)
    assert vector.dtype == np.float32
    assert np.isfinite(vector).all()
