"""The static encoder, and int8 storage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.encoders.static_encoder import StaticEncoder, dequantise, encoder_fingerprint, quantise


def small_encoder() -> StaticEncoder:
    rng = np.random.default_rng(0)
    return StaticEncoder(
        words=["cat", "dog", "sat"],
        pairs=np.array([[0, 2], [1, 2]], np.int32),
        idf=np.array([1.0, 2.0, 1.0, 3.0, 4.0], np.float32),
        table=quantise(rng.normal(size=(5, 4)).astype(np.float32)),
    )


def test_terms_are_known_words_and_pairs_with_sublinear_weights_of_unit_length() -> None:
    rows, weights = small_encoder().terms(["the", "cat", "cat", "sat", "dog"])
    expected = {0: 1.0 * (1 + np.log(2)), 1: 2.0, 2: 1.0, 3: 3.0}  # "cat" twice, "dog", "sat", "cat sat"
    norm = np.sqrt(sum(v**2 for v in expected.values()))
    assert rows.tolist() == list(expected)
    assert weights.tolist() == pytest.approx([v / norm for v in expected.values()], rel=1e-5)


def test_a_pair_split_by_an_unknown_word_is_no_pair() -> None:
    rows, _ = small_encoder().terms(["cat", "quietly", "sat"])
    assert rows.tolist() == [0, 2]


@pytest.mark.parametrize("tokens", [[], ["unknown"], ["unknown", "words"]])
def test_a_turn_without_known_words_has_a_zero_embedding(tokens: list[str]) -> None:
    assert small_encoder().encode("", tokens).tolist() == [0.0] * 4


def test_embeddings_have_unit_length() -> None:
    embedding = small_encoder().encode("", ["cat", "sat"])
    assert float(np.linalg.norm(embedding)) == pytest.approx(1.0, rel=1e-5)


def test_a_saved_encoder_encodes_the_same() -> None:
    encoder = small_encoder()
    again = StaticEncoder.from_tensors(encoder.tensors())
    once, twice = encoder.encode("", ["cat", "sat", "dog"]), again.encode("", ["cat", "sat", "dog"])
    assert twice == pytest.approx(once, abs=1e-5)


def test_an_encoder_whose_tensors_disagree_is_refused() -> None:
    tensors = small_encoder().tensors()
    with pytest.raises(ValueError, match="need 5 rows; idf has 4"):
        StaticEncoder.from_tensors({**tensors, "encoder.idf": tensors["encoder.idf"][:4]})


def test_the_fingerprint_covers_the_encoder_and_nothing_else() -> None:
    tensors = small_encoder().tensors()
    changed = {**tensors, "encoder.idf": tensors["encoder.idf"] + np.float32(1)}
    assert encoder_fingerprint({**tensors, "catalogue_head.prior": np.zeros(2)}) == encoder_fingerprint(tensors)
    assert encoder_fingerprint(changed) != encoder_fingerprint(tensors)


@given(st.lists(st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3), min_size=1, max_size=5))
def test_int8_rows_are_within_half_a_step_and_keep_zeros(values: list[list[float]]) -> None:
    matrix = np.array(values, np.float32)
    stored, scale = quantise(matrix)
    error = np.abs(dequantise(stored, scale) - matrix)
    assert (error <= 0.51 * scale[:, None] + 1e-30).all()
