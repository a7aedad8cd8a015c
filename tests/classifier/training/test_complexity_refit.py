"""Refitting the complexity model: copies of prompts, the rated prompts of the repository, and what a refit changes."""

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from classifier.complexity.model import CUTS, ComplexityModel, shipped_complexity
from classifier.encoders.boosted_trees import Trees
from classifier.errors import TrainingDataError
from classifier.features.routing_input import routing_input_of_text
from classifier.features.stray_text import tokenise
from classifier.training.fitting import complexity_refit, copies
from classifier.training.fitting.complexity import OF_FORM, LabelledPrompt, predicted
from classifier.training.fitting.complexity_refit import UnratedPrompt, read_unrated, refit_complexity
from classifier.training.metrics.complexity_report import read_labelled
from tests.classifier.complexity.test_complexity_model import MODEL

RATED = copies.LISTS / "rated.jsonl.gz"
TESTED = Path(__file__).parents[1] / "complexity"
PROMPT = "Explain how to write a short email to a customer about the delayed order."

Copy = Callable[[str, Random], str]


@pytest.mark.parametrize("copy", [copies.misspelt, copies.ornate, copies.wrapped, copies.stuffed])
def test_a_copy_differs_and_is_the_same_for_the_same_seed(copy: Copy) -> None:
    made = [copy(PROMPT, Random(seed)) for seed in range(20)]
    assert made == [copy(PROMPT, Random(seed)) for seed in range(20)]
    assert len(set(made) - {PROMPT}) > 10


@pytest.mark.parametrize("copy", [copies.wrapped, copies.stuffed])
def test_what_is_put_around_a_prompt_leaves_its_words(copy: Copy) -> None:
    assert all(PROMPT in copy(PROMPT, Random(seed)) for seed in range(50))


def test_misspellings_keep_the_words_apart_and_most_of_them_as_they_are() -> None:
    for seed in range(20):
        words, own = copies.misspelt(PROMPT, Random(seed)).split(), PROMPT.split()
        assert len(words) == len(own)
        assert sum(one == other for one, other in zip(words, own, strict=True)) >= len(own) / 3


def test_instructions_on_the_form_are_in_the_language_of_the_prompt() -> None:
    made = {copies.wrapped("Bonjour", Random(seed), "fr") for seed in range(50)}
    assert any("Réponds" in one or "mots" in one for one in made)


def test_the_lexicon_has_each_word_in_each_language() -> None:
    lines = [line.partition("=") for line in (copies.LISTS / "lexicon.txt").read_text("utf-8").splitlines()[1:]]
    counts = {language: len(words.split("|")) for language, _, words in lines}
    assert len(set(counts.values())) == 1, counts
    assert len(counts) == 1 + len(copies.languages())


def test_words_of_the_lexicon_are_switched_and_words_of_grammar_left_out() -> None:
    assert copies.switched("Prove the theorem of the prime numbers", "de", Random(0)) == "beweise Satz Primzahl Zahl"
    assert copies.switched("Prove theorem", "zh", Random(0)) == "证明定理"
    assert copies.switched("My cat sleeps on the sofa", "de", Random(0)) is None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield " ".join(value.lower().split())
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def test_no_rated_prompt_is_one_of_a_test() -> None:
    rated = {" ".join(row.prompt.lower().split()) for row in read_labelled(RATED)}
    assert len(rated) > 5000
    tested = set(_texts(tomllib.loads((TESTED / "labelled_prompts.toml").read_text("utf-8"))))
    for path in [*TESTED.glob("*.jsonl"), *TESTED.glob("held_out/*.jsonl")]:
        tested.update(text for line in path.read_text("utf-8").splitlines() for text in _texts(json.loads(line)))
    assert len(tested) > 500
    assert not rated & tested


HARD, EASY = "zorblat quenx {}", "mimbel frope {}"


def toy_rows() -> list[LabelledPrompt]:
    rows = [LabelledPrompt(HARD.format(i), [4], lang="xx") for i in range(12)]
    return rows + [LabelledPrompt(EASY.format(i), [1], lang="xx") for i in range(12)]


def refit() -> ComplexityModel:
    unrated = [UnratedPrompt(f"What is the capital of {place}?") for place in ("Peru", "Chad", "Fiji", "Laos")]
    return refit_complexity(shipped_complexity(), toy_rows(), unrated, MODEL)


@pytest.fixture(scope="module")
def model() -> ComplexityModel:
    return refit()


def test_a_refit_learns_its_rows_and_stays_near_its_prior_elsewhere(model: ComplexityModel) -> None:
    prior = shipped_complexity()
    asked = [
        routing_input_of_text(text) for text in (HARD.format("a"), EASY.format("a"), "What is the capital of Oman?")
    ]
    found, before = predicted(model, asked, MODEL), predicted(prior, asked, MODEL)
    assert found[0, 3] > before[0, 3] + 0.1
    assert found[1, 0] > found[0, 0] + 0.2
    assert found[2].argmax() == before[2].argmax() == 0
    again = refit()
    assert (again.trigrams == model.trigrams).all()
    assert (again.trees.arrays.value == model.trees.arrays.value).all()


def test_how_a_prompt_is_written_changes_nothing_after_a_refit(model: ComplexityModel) -> None:
    prompt = routing_input_of_text(HARD.format("b"))
    turn = MODEL.encode(prompt)
    changed = turn.features.copy()
    changed[OF_FORM] = 9.0
    words = tokenise(prompt.turn)
    found = [model.probabilities(prompt.turn, words, one, turn.embedding) for one in (turn.features, changed)]
    assert found[0] == found[1]


def test_a_translation_has_the_target_of_the_english_prompt() -> None:
    english, other = "Prove that there are infinitely many primes.", "zorblat quenx wimmel"
    translations = [UnratedPrompt(english, group="one"), UnratedPrompt(other, "xx", "one")]
    rows = list(complexity_refit._rows_of_unrated(shipped_complexity(), translations, MODEL, Random(0)))
    (first, target, _, group), (second, same, _, group_of_second) = rows
    assert (first, second) == (english, other)
    assert target == same
    assert group == group_of_second
    assert target[2] < 0.5  # P(class <= COMPLEX)


def test_trees_behind_stretched_logits_give_as_much_more() -> None:
    trees, f = shipped_complexity().trees, len(shipped_complexity().centre)
    slope, shift = np.array([1.5, 2.0, 0.75]), np.array([0.3, -0.5, 1.0])
    inputs = np.random.default_rng(0).normal(size=(50, f + CUTS)).astype(np.float32)
    moved = inputs.copy()
    moved[:, f:] = moved[:, f:] * slope + shift
    found: Trees = complexity_refit._behind(trees, f, slope, shift)
    assert np.allclose(found.logits(moved), trees.logits(inputs) * slope, atol=1e-4)


def test_the_average_with_the_prior_is_the_prior_where_nothing_was_fitted() -> None:
    prior = shipped_complexity()
    model = complexity_refit._averaged(prior, prior)
    asked = [routing_input_of_text(text) for text in ("Hello!", "Prove that the square root of 2 is irrational.")]
    assert np.allclose(predicted(model, asked, MODEL), predicted(prior, asked, MODEL), atol=1e-4)


def test_unrated_rows_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text('{"prompt": "x", "lang": "de"}\n{"lang": "de"}\n')
    with pytest.raises(TrainingDataError, match="line 2"):
        read_unrated(path)
