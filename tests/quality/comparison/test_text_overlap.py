"""ROUGE-L and BLEU give the values that their papers and tools publish (SPEC QZ-10)."""

import pytest

from quality.evaluation.quantised_model import bleu, bleu_words, clipped_matches, rouge_l


@pytest.mark.parametrize(("candidate", "expected"), [("police kill the gunman", 0.75), ("the gunman kill police", 0.5)])
def test_rouge_l_of_the_examples_of_its_paper(candidate: str, expected: float) -> None:
    """Lin 2004, section 3.1, against "police killed the gunman"."""
    assert rouge_l(candidate, "police killed the gunman") == expected


def test_rouge_l_weighs_precision_and_recall_alike() -> None:
    """Of 9 and 6 words 6 are common."""
    assert rouge_l("The quick brown fox jumps over the lazy dog", "the quick brown dog jumps on the log.") == (
        pytest.approx(2 * 5 / (9 + 8))
    )


def test_rouge_l_counts_no_word_twice() -> None:
    assert rouge_l("the cat", "the the cat cat") == pytest.approx(2 * 2 / (2 + 4))


def test_texts_without_words_are_alike() -> None:
    assert rouge_l("", "...") == 1.0
    assert rouge_l("", "word") == 0.0


def test_a_word_counts_as_often_as_a_reference_has_it() -> None:
    """Papineni et al. 2002, example 2: two of seven."""
    references = [["the", "cat", "is", "on", "the", "mat"], ["there", "is", "a", "cat", "on", "the", "mat"]]
    assert clipped_matches(["the"] * 7, references, 1) == (2, 7)


def test_bleu_of_a_corpus_equals_that_of_sacrebleu() -> None:
    """The example of its README: 48.53, precisions 82.4/50.0/45.5/37.5."""
    candidates = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
    first = ["The dog bit the man.", "It was not unexpected.", "The man bit him first."]
    second = ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."]
    references = [list(pair) for pair in zip(first, second, strict=True)]
    assert bleu(candidates, references) == pytest.approx(0.4853, abs=5e-5)


def test_bleu_of_a_sentence_equals_that_of_nltk() -> None:
    """The example of its documentation."""
    candidate = "It is a guide to action which ensures that the military always obeys the commands of the party"
    references = [
        "It is a guide to action that ensures that the military will forever heed Party commands",
        "It is the guiding principle which guarantees the military forces always being under the command of the Party",
        "It is the practical guide for the army always to heed the directions of the party",
    ]
    assert bleu([candidate], [references]) == pytest.approx(0.5045666840058485)


def test_equal_texts_have_all_and_unlike_ones_nothing_in_common() -> None:
    text = "One two three four five."
    assert bleu([text], [[text]]) == 1.0
    assert bleu([text], [["Six seven eight nine ten."]]) == 0.0


def test_punctuation_stands_apart_but_not_inside_numbers() -> None:
    assert bleu_words('Mr. "Smith" paid 1,234.50 in 1999-2000.') == (
        ["Mr", ".", '"', "Smith", '"', "paid", "1,234.50", "in", "1999", "-", "2000", "."]
    )
