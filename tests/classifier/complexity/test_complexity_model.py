"""The complexity model: probabilities for any text, ordered cuts, and the saved file."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.class_predictor import ClassPredictor
from classifier.complexity.classes import Complexity, adequacy, like_of
from classifier.complexity.model import (
    ROWS,
    SHIPPED,
    class_probabilities,
    load_complexity,
    shipped_complexity,
    trigram_rows,
    word_rows,
)
from classifier.complexity.quality_setting import QUALITY_SETTINGS
from classifier.errors import ArtefactError
from classifier.features.routing_input import routing_input_of_text
from classifier.features.stray_text import tokenise
from classifier.features.surface_features import FEATURE_NAMES, KEYWORDS
from classifier.registry.artefact import default_artefact, load_artefact
from classifier.training.fitting.complexity import OF_FORM

MODEL = load_artefact(default_artefact())
PREDICTOR = ClassPredictor(MODEL)


def classes_of(text: str) -> list[float]:
    given_ = routing_input_of_text(text)
    return PREDICTOR.classes(given_, MODEL.encode(given_))


@given(st.text(alphabet=st.characters(), max_size=400))
def test_any_text_gets_four_probabilities_that_sum_to_one(text: str) -> None:
    """RT-01."""
    classes = classes_of(text)
    assert len(classes) == len(Complexity)
    assert sum(classes) == pytest.approx(1, abs=1e-3)
    assert all(0 < p < 1 for p in classes)


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=3))
def test_cuts_that_cross_still_give_probabilities(logits: list[float]) -> None:
    found = class_probabilities(logits)
    assert sum(found) == pytest.approx(1)
    assert all(p > 0 for p in found)


@given(st.text(max_size=200))
def test_rows_are_distinct_within_the_table_and_do_not_depend_on_case(text: str) -> None:
    rows = trigram_rows(text)
    assert (np.diff(rows.astype(np.int64)) > 0).all()
    assert ((rows >= 0) & (rows < ROWS)).all()
    assert (trigram_rows(text) == trigram_rows(text.lower())).all()


def test_words_count_once_and_their_pairs_as_well() -> None:
    assert len(word_rows(["a", "b", "a", "b"])) == 4  # a, b, a b, b a
    assert len(word_rows([])) == len(trigram_rows("")) == 0


def test_a_saved_model_says_the_same_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    shipped_complexity().save(tmp_path / "model.safetensors")
    again, turn = load_complexity(tmp_path / "model.safetensors"), MODEL.encode(routing_input_of_text("Hello there"))
    arguments = ("Hello there", ["hello", "there"], turn.features, turn.embedding)
    assert again.probabilities(*arguments) == shipped_complexity().probabilities(*arguments)
    (tmp_path / "cut.safetensors").write_bytes(SHIPPED.read_bytes()[:1000])
    for name in ("cut.safetensors", "missing.safetensors"):
        with pytest.raises(ArtefactError, match=name):
            load_complexity(tmp_path / name)


def test_a_stronger_kind_is_no_less_often_adequate_and_a_harder_class_no_more_often() -> None:
    for complexity in Complexity:
        certain = [float(one == complexity) for one in Complexity]
        weaker = adequacy(certain, tuple(Complexity))
        assert weaker == sorted(weaker)
    for kind in (1, 2, 3):
        of_class = [adequacy([float(one == c) for one in Complexity], tuple(Complexity))[kind - 1] for c in Complexity]
        assert of_class == sorted(of_class, reverse=True)


@pytest.mark.parametrize("tiers", range(2, 9))
def test_any_number_of_tiers_is_spread_from_the_weakest_kind_to_the_strongest(tiers: int) -> None:
    like = like_of(tiers)
    assert (len(like), like[0], like[-1]) == (tiers, Complexity.SIMPLE, Complexity.EXPERT)
    assert list(like) == sorted(like)
    assert adequacy([0.25] * 4, like)[-1] == 1.0


def test_the_named_settings_ask_for_more_in_this_order() -> None:
    assert list(QUALITY_SETTINGS) == ["economy", "balanced", "careful"]
    assert list(QUALITY_SETTINGS.values()) == sorted(QUALITY_SETTINGS.values())


@pytest.mark.parametrize("name", ["question_depth", "domain_specificity", *(f"keyword_{name}" for name in KEYWORDS)])
def test_what_a_prompt_asks_for_is_a_feature_of_the_shipped_model(name: str) -> None:
    """RT-02."""
    prompt = routing_input_of_text("Prove that every tree has a leaf.")
    turn, words = MODEL.encode(prompt), tokenise(prompt.turn)
    changed = turn.features.copy()
    changed[FEATURE_NAMES.index(name)] += 1
    asked = [
        shipped_complexity().probabilities(prompt.turn, words, one, turn.embedding) for one in (turn.features, changed)
    ]
    assert max(abs(was - now) for was, now in zip(*asked, strict=True)) > 1e-4


def test_how_a_prompt_is_written_is_no_feature_of_the_shipped_model() -> None:
    given_ = routing_input_of_text("Prove that every tree has a leaf, and compare two proofs of it.")
    turn = MODEL.encode(given_)
    changed = turn.features.copy()
    changed[OF_FORM] = 9.0
    words = tokenise(given_.turn)
    asked = [
        shipped_complexity().probabilities(given_.turn, words, one, turn.embedding) for one in (turn.features, changed)
    ]
    assert asked[0] == asked[1]
    shouted = routing_input_of_text(given_.turn.upper())
    assert classes_of(given_.turn) == PREDICTOR.classes(shouted, MODEL.encode(shouted))
