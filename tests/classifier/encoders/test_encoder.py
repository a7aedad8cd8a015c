"""The static encoder, int8 storage, and the memory of outcomes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.encoders.boosted_trees import TreeArrays, Trees
from classifier.encoders.static_encoder import StaticEncoder, dequantise, encoder_fingerprint, quantise
from classifier.features.surface_features import FEATURE_NAMES
from classifier.model.knn_memory import Memory

# One tree: a turn of many characters is more likely to fail the second outcome.
STUMP = TreeArrays(
    feature=np.array([FEATURE_NAMES.index("log_chars"), 0, 0], np.int32),
    threshold=np.array([3.0, 0.0, 0.0], np.float32),
    left=np.array([1, 1, 2], np.int32),
    right=np.array([2, 1, 2], np.int32),
    value=np.array([0.0, 0.0, -2.0], np.float32),
    root=np.array([0], np.int32),
    head=np.array([1], np.int32),
)
SHORT = np.zeros(len(FEATURE_NAMES), np.float32)


def small_encoder() -> StaticEncoder:
    rng = np.random.default_rng(0)
    return StaticEncoder(
        words=["cat", "dog", "sat"],
        pairs=np.array([[0, 2], [1, 2]], np.int32),
        idf=np.array([1.0, 2.0, 1.0, 3.0, 4.0], np.float32),
        table=quantise(rng.normal(size=(5, 4)).astype(np.float32)),
        logit_table=rng.normal(size=(5, 2)).astype(np.float32),
        logit_bias=np.array([0.5, -0.5], np.float32),
        trees=Trees(STUMP, features=len(FEATURE_NAMES), heads=2),
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
def test_a_turn_without_known_words_has_a_zero_embedding_and_the_base_logits(tokens: list[str]) -> None:
    encoding = small_encoder().encode("", tokens, SHORT)
    assert encoding.embedding.tolist() == [0.0] * 4
    assert encoding.word_logits.tolist() == [0.5, -0.5]


def test_trees_over_the_surface_features_add_to_the_logits() -> None:
    long = SHORT.copy()
    long[FEATURE_NAMES.index("log_chars")] = 5.0
    assert small_encoder().encode("", [], long).word_logits.tolist() == [0.5, -2.5]


def test_embeddings_have_unit_length() -> None:
    encoding = small_encoder().encode("", ["cat", "sat"], SHORT)
    assert float(np.linalg.norm(encoding.embedding)) == pytest.approx(1.0, rel=1e-5)


def test_a_saved_encoder_encodes_the_same() -> None:
    encoder = small_encoder()
    again = StaticEncoder.from_tensors(encoder.tensors())
    once, twice = encoder.encode("", ["cat", "sat", "dog"], SHORT), again.encode("", ["cat", "sat", "dog"], SHORT)
    assert twice.embedding == pytest.approx(once.embedding, abs=1e-5)
    assert twice.word_logits == pytest.approx(once.word_logits, abs=2e-3)  # stored as float16


def test_an_encoder_whose_tensors_disagree_is_refused() -> None:
    tensors = small_encoder().tensors()
    with pytest.raises(ValueError, match="need 5 rows; idf has 4"):
        StaticEncoder.from_tensors({**tensors, "encoder.idf": tensors["encoder.idf"][:4]})


def test_the_fingerprint_covers_the_encoder_and_nothing_else() -> None:
    tensors = small_encoder().tensors()
    changed = {**tensors, "encoder.logit_bias": tensors["encoder.logit_bias"] + np.float32(1)}
    assert encoder_fingerprint({**tensors, "heads.bias": np.zeros(2)}) == encoder_fingerprint(tensors)
    assert encoder_fingerprint(changed) != encoder_fingerprint(tensors)


@given(st.lists(st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3), min_size=1, max_size=5))
def test_int8_rows_are_within_half_a_step_and_keep_zeros(values: list[list[float]]) -> None:
    matrix = np.array(values, np.float32)
    stored, scale = quantise(matrix)
    error = np.abs(dequantise(stored, scale) - matrix)
    assert (error <= 0.51 * scale[:, None] + 1e-30).all()


def clustered_memory() -> Memory:
    """Two tight clusters around two axes: outcome 0 occurs in the first one, outcome 1 is observed only there."""
    rng = np.random.default_rng(0)
    vectors = np.repeat(np.eye(8, dtype=np.float32)[:2], 50, axis=0) + 0.05 * rng.normal(size=(100, 8)).astype("f4")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    first = np.arange(100) < 50
    labels = np.stack([first, np.where(first, 1.0, np.nan)], axis=1).astype(np.float32)
    return Memory.build(vectors, labels, np.ones(100, np.float32), np.array([0.5, 0.3], np.float32))


def test_the_neighbourhood_gives_the_rate_of_the_cluster_a_prompt_is_in() -> None:
    memory = clustered_memory()
    found = memory.look_up(memory.vectors[[0, 99]])
    assert found.logits[0, 0] > 3
    assert found.logits[1, 0] < 0


def test_one_prompt_has_the_neighbourhood_it_has_among_many() -> None:
    memory = clustered_memory()
    prompts = np.concatenate([memory.vectors[::7] + np.float32(0.01), np.zeros((1, 8), np.float32)])
    many = memory.look_up(prompts)
    for row, prompt in enumerate(prompts):
        one = memory.look_up_one(prompt)
        assert 1 / (1 + np.exp(-one.logits)) == pytest.approx(1 / (1 + np.exp(-many.logits[row])), abs=1e-6)
        assert one.novelty == pytest.approx(float(many.novelty[row]), abs=1e-6)


def test_where_an_outcome_was_never_observed_the_base_rate_stands() -> None:
    memory = clustered_memory()
    assert memory.look_up(memory.vectors[99:]).logits[0, 1] > np.log(0.3 / 0.7) - 1e-3
    nowhere = memory.look_up(np.zeros((1, 8), np.float32)).logits[0]
    assert nowhere[1] > np.log(0.3 / 0.7)


def test_a_remembered_row_does_not_see_its_own_label() -> None:
    vectors = np.eye(4, dtype=np.float32)
    labels = np.array([[1.0], [0.0], [0.0], [0.0]], np.float32)
    memory = Memory.build(vectors, labels, np.ones(4, np.float32), np.array([0.5], np.float32))
    seen = memory.look_up(vectors[:1]).logits[0, 0]
    hidden = memory.look_up(vectors[:1], own_rows=np.array([0])).logits[0, 0]
    assert seen > 2 > hidden


def test_novelty_is_low_inside_a_cluster_and_one_far_from_everything() -> None:
    memory = clustered_memory()
    centre, far = np.zeros((2, 8), np.float32)
    centre[0], far[7] = 1, 1
    novelty = memory.look_up(np.stack([centre, far])).novelty
    assert novelty[0] < 0.2
    assert novelty[1] == 1.0
