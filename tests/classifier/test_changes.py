"""A tier whose answers have changed: a few outcomes since say how often it fails, the old ones who is hard."""

import numpy as np
import pytest

from classifier.training.changes import outdated, up_to_date
from classifier.training.encoded_rows import EncodedRows
from classifier.training.fit import fit_heads

DIM, HEADS = 6, 3


def world(n: int, seed: int, drop: float) -> EncodedRows:
    """Two tiers; the first is right with log odds 1 + 3 x the first coordinate, less `drop`; the second always is."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    p = 1 / (1 + np.exp(-(1 + 3 * vectors[:, 0] - drop)))
    labels = np.full((n, HEADS), np.nan, np.float32)
    labels[:, 0] = rng.random(n) < p
    blank = np.zeros((n, 2), np.float32)
    words = np.zeros((n, HEADS), np.float32)
    return EncodedRows(
        blank, vectors, words, labels, np.ones(n, np.float32), np.full(n, -1, np.int32), np.arange(n) % 6 == 5
    )


def mean_p(rows: EncodedRows, before: np.ndarray | None, asked: EncodedRows) -> tuple[float, float]:
    """Mean P(no worse) of the first tier on `asked`, and its correlation with the truth's log odds."""
    heads, memory = fit_heads(rows, seed=0, recent=60, outdated=before)
    nearby = memory.look_up(asked.embedding).logits
    logits = heads.logits(heads.design(asked.features, asked.embedding, asked.word_logits, nearby))[:, 0]
    return float(np.mean(1 / (1 + np.exp(-logits)))), float(np.corrcoef(logits, asked.embedding[:, 0])[0, 1])


def test_sixty_outcomes_since_the_change_tell_how_often_a_tier_fails_now_and_old_ones_still_rank() -> None:
    old, new, asked = world(1500, 0, 0.0), world(60, 1, 1.5), world(3000, 2, 1.5)
    rows = old.joined(new)
    truth = float(np.mean(asked.labels[:, 0]))
    before = outdated(rows.labels.shape, {1: np.zeros(60, np.bool_)})

    blind, _ = mean_p(rows, None, asked)
    told, ranked = mean_p(rows, before, asked)

    assert blind - truth > 0.2
    assert told == pytest.approx(truth, abs=0.08)
    assert ranked > 0.8


def test_a_change_that_was_none_changes_little() -> None:
    rows, asked = world(1500, 0, 0.0).joined(world(60, 1, 0.0)), world(3000, 2, 0.0)

    blind, _ = mean_p(rows, None, asked)
    told, _ = mean_p(rows, outdated(rows.labels.shape, {1: np.zeros(60, np.bool_)}), asked)

    assert told == pytest.approx(blind, abs=0.1)


def test_outdated_are_the_tiers_labels_of_both_kinds_of_the_base_and_of_the_rows_before() -> None:
    found = outdated((5, 3), {1: np.array([True, False])})
    assert found[:, 0].tolist() == [True, True, True, True, False]
    assert found[:, 1].tolist() == [True, True, True, True, False]
    assert not found[:, 2].any()


def test_what_is_compared_on_lacks_the_outdated_labels_only() -> None:
    rows = world(6, 0, 0.0)
    kept = up_to_date(rows, {1: np.array([True, False])})
    assert np.isnan(kept.labels[:, 0]).tolist() == [True, True, True, True, True, False]
    assert np.array_equal(kept.embedding, rows.embedding)
