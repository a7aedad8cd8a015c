"""Features of a question's options and stem."""

import math

import numpy as np
import pytest

from classifier.features.surface_features import OPTION_FEATURE_NAMES, option_features

QUESTION = """The pH of blood is 7.4. Which of these is NOT a buffer?
A. the carbonate pair
B. not the phosphate pair
(C) 12
(D) 140 = 7 * 20"""


def of(text: str) -> dict[str, float]:
    return dict(zip(OPTION_FEATURE_NAMES, option_features(text.encode()).tolist(), strict=True))


def test_every_feature_has_a_name_of_its_own() -> None:
    assert len(set(OPTION_FEATURE_NAMES)) == len(OPTION_FEATURE_NAMES) == len(option_features(b""))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("option_log_words", math.log1p(11 / 4)),  # 3 + 4 + 1 + 3
        ("option_log_most_words", math.log1p(4)),
        ("option_distinct_words", 8 / 11),  # "the", "pair" and numbers of two digits are in two of them
        ("option_common_words", 0.0),
        ("option_word_length", (16 + 19 + 2 + 6) / 11),
        ("option_long_words", 2 / 11),  # carbonate, phosphate
        ("options_with_digits", 2 / 4),
        ("options_of_numbers", 2 / 4),
        ("options_negated", 1 / 4),
        ("option_first_words", 4 / 4),  # the, not, 00 and 000: numbers are known by their length
        ("option_last_words", 2 / 4),  # pair, 00
        ("option_words_in_stem", 4 / 11),  # the, not, the, and numbers of one digit
        ("question_which", 1.0),
        ("question_log_words", math.log1p(7)),
        ("stem_log_words", math.log1p(14)),  # "7.4" are two
        ("stem_numbers", math.log1p(2)),
        ("stem_decimals", math.log1p(1)),
        ("stem_sentences", math.log1p(2)),
    ],
)
def test_a_question_in_numbers(name: str, wanted: float) -> None:
    assert of(QUESTION)[name] == pytest.approx(wanted, abs=1e-5)


def test_options_alike_have_words_in_common_and_no_spread() -> None:
    found = of("Is it so?\nA. it is so\nB. it is so")
    assert found["option_common_words"] == found["option_words_in_stem"] == 1.0
    assert found["option_length_spread"] == 0.0
    assert found["option_distinct_words"] == 0.5


def test_without_options_all_is_the_stem() -> None:
    found = of("Plan A. is better than B. in 3 ways.")
    assert [value for name, value in found.items() if name.startswith("option")] == [0.0] * 17
    assert found["stem_numbers"] == pytest.approx(math.log1p(1))
    assert np.isfinite(option_features(b"\n(")).all()
