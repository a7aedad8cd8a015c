"""The kernels of a decision give numpy's numbers, and refuse arrays that do not fit."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from classifier.class_predictor import ClassPredictor
from classifier.complexity import model as complexity
from classifier.complexity.model import shipped_complexity
from classifier.encoders import static_encoder
from classifier.encoders.boosted_trees import Trees
from classifier.features import routing_input, stray_text
from classifier.features import surface_features as features
from classifier.features.routing_input import routing_input_of_text
from classifier.features.stray_text import Marks, tokenise
from classifier.features.surface_features import FEATURE_NAMES, surface_features
from classifier.local.own import LabelledRow, OwnOutcomes
from classifier.model.outcome_model import OutcomeModel
from classifier.native import KERNELS
from classifier.registry.artefact import default_artefact, load_artefact
from tests.examples import examples

pytestmark = pytest.mark.skipif(KERNELS is None, reason="the kernels were not built")

# Pieces that the features search for, besides words and characters of every kind.
PIECES = (
    *(
        "what ",
        "Explain  why ",
        "step-by-step ",
        "in New York ",
        "end. The ",
        "\n(A) x",
        "\nB: y",
        "\nC. not 3.25 of 12",
        "Which is it?\n ",
        "12 300",
        " 7",
        "__",
    ),
    *("```", "def f(): return 1", "class A) {", "$\\frac$", "é", "😀", "’", "İK", "\u2028", "\x1c", "\ud800", '"a, b"'),
    *("court ", "not ", "prove ", "sum ", "?", "!", ". ", ".\n", "\n", "\t", "A", "zq", "(", " "),
)
texts = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


@pytest.fixture(scope="module")
def shipped() -> OutcomeModel:
    return load_artefact(default_artefact())


@contextmanager
def numpy_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (complexity, features, stray_text, static_encoder):
            patch.setattr(module, "KERNELS", None)
        yield


@settings(max_examples=examples(150), deadline=None)
@given(texts)
def test_features_are_the_same_to_the_last_bit(text: str) -> None:
    tokens = tokenise(text)
    found = surface_features(text, tokens, len(text))
    with numpy_alone():
        wanted = surface_features(text, tokens, len(text))
    assert {FEATURE_NAMES[i]: (found[i], wanted[i]) for i in np.flatnonzero(found != wanted)} == {}


@settings(max_examples=examples(60), deadline=None)
@given(texts)
def test_encodings_are_the_same_up_to_rounding(shipped: OutcomeModel, text: str) -> None:
    prompt = routing_input_of_text(text)
    turn = shipped.encode(prompt)
    with numpy_alone():
        reference = shipped.encode(prompt)
    np.testing.assert_allclose(turn.embedding, reference.embedding, atol=2e-6)


@given(st.text("ab c?é我😀", max_size=30), st.lists(st.text("ab c?", min_size=2, max_size=4), max_size=64))
def test_the_marks_that_occur_in_a_text_are_found_in_their_order(text: str, wanted: list[str]) -> None:
    searched = Marks(wanted)
    assert searched.within(text) == [mark for mark in wanted if mark in text]
    with numpy_alone():
        assert searched.within(text) == [mark for mark in wanted if mark in text]


@pytest.mark.parametrize("refused", [("a",), ("é?",), ("ab",) * 65])
def test_marks_that_the_kernel_cannot_search_for_are_refused(refused: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match="64 ASCII texts"):
        Marks(refused)


@settings(max_examples=examples(60), deadline=None)
@given(texts)
def test_classes_are_the_same_up_to_rounding(shipped: OutcomeModel, text: str) -> None:
    prompt, model = routing_input_of_text(text), shipped_complexity()
    turn, tokens = shipped.encode(prompt), tokenise(prompt.turn)
    found = model.probabilities(prompt.turn, tokens, turn.features, turn.embedding)
    with numpy_alone():
        wanted = model.probabilities(prompt.turn, tokens, turn.features, turn.embedding)
    assert found == pytest.approx(wanted, abs=1e-5)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.sampled_from([piece for piece in PIECES if piece.isascii()]), max_size=60).map("".join))
@example("Any errors?\n2026-01-01 10:00:00 INFO up\n2026-01-01 10:00:01 ERROR down at last")
def test_a_turn_read_in_one_call_is_as_its_parts_are(shipped: OutcomeModel, text: str) -> None:
    prompt, model = routing_input_of_text(text), ClassPredictor(shipped)
    turn = shipped.encode(prompt)
    prediction, read = model.read(prompt)
    assert read.features.tobytes() == turn.features.tobytes()
    assert read.embedding.tobytes() == turn.embedding.tobytes()
    assert prediction == model.prediction(prompt, turn)
    own = OwnOutcomes([LabelledRow([0.1, 0.2, 0.3, 0.4], *turn[1::-1], [0.0] * 3, [1.0] * 3, "", "", 0.0)], model.table)
    assert model.read(prompt, own)[0] == model.prediction(prompt, turn, own)


# Any text at all: bytes of ASCII, halves of surrogates, empty and long ones.
HOSTILE = st.one_of(
    st.text(st.characters()),
    st.binary().map(lambda some: bytes(one & 127 for one in some).decode()),
    st.builds(
        lambda piece, times: piece * times, st.text(st.characters(), max_size=9), st.sampled_from([0, 1, 300, 70_000])
    ),
)


@settings(max_examples=examples(150), deadline=None)
@given(HOSTILE)
@example("")
@example("\x00")
@example("\ud800" * 70_000)
@example("a" * 2_000_000)
@example("word " * 400_000)
@example("\n(A) " * 100_000)
@example("$=\\" * 300_000)
@example("x e" * 300_000)
def test_any_text_is_read_as_numpy_reads_it(shipped: OutcomeModel, text: str) -> None:
    tokens, signs = tokenise(text), routing_input._signs_of([text], False)
    found = surface_features(text, tokens, len(text))
    embedding = shipped.encoder.encode(text, tokens)
    assert signs in (0, 1, 2, 4)
    if text.isascii():
        features, read = np.empty_like(found), np.empty_like(embedding)
        classes = KERNELS.read_turn(*ClassPredictor(shipped)._native, text, len(text), features, read)
        assert (features.tobytes(), read.tobytes()) == (found.tobytes(), embedding.tobytes())
        assert sum(classes) == pytest.approx(1)
    with numpy_alone():
        assert found.tobytes() == surface_features(text, tokens, len(text)).tobytes()


def test_a_turn_in_other_letters_is_read_by_its_parts(shipped: OutcomeModel) -> None:
    prompt, model = routing_input_of_text("Erkläre die Schachregeln einem Kind’s Freund."), ClassPredictor(shipped)
    assert model.read(prompt)[0] == model.prediction(prompt, shipped.encode(prompt))
    with pytest.raises(TypeError, match="ASCII"):
        KERNELS.read_turn(*model._native, prompt.turn, 1, *shipped.encode(prompt))


def test_arrays_that_do_not_fit_are_refused(shipped: OutcomeModel) -> None:
    encoder: Any = shipped.encoder
    short, features = np.zeros(5, np.float32), np.zeros(len(FEATURE_NAMES), np.float32)
    embedding = np.zeros(encoder.dim, np.float32)
    with pytest.raises(ValueError, match="embedding has 5 numbers"):
        KERNELS.encode(encoder.native, ["word"], short)
    with pytest.raises(TypeError, match="items of 8 bytes"):
        KERNELS.encode(encoder.native, ["word"], embedding.astype(np.float64))
    with pytest.raises(ValueError, match="incorrect name"):
        KERNELS.encode(shipped_complexity().native, ["word"], embedding)
    classes: Any = shipped_complexity()
    # Trees of another number of features than the model's.
    trees = Trees.none(features=len(FEATURE_NAMES), heads=3).native
    with pytest.raises(ValueError, match=f"features has {len(FEATURE_NAMES)} numbers"):
        KERNELS.class_probabilities(classes._native, trees, "word", ["word"], features, embedding)
    with pytest.raises(ValueError, match="embedding has 5 numbers"):
        KERNELS.class_probabilities(classes._native, classes.trees.native, "word", ["word"], features, short)
