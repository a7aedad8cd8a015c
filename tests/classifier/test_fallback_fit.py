"""The fallback for novel prompts that training recommends."""

import numpy as np
import pytest

from classifier.fallback import fallback_of
from classifier.outcome_model import Outcomes
from classifier.training.encoded_rows import EncodedRows, label_matrix
from classifier.training.fallback_fit import fitted_fallback
from classifier.training.train import Candidate

ROWS = 400


def held_out(no_worse: np.ndarray) -> EncodedRows:
    n = len(no_worse)
    blank = np.zeros((n, 1), np.float32)
    labels = label_matrix(no_worse.astype(np.float32))
    return EncodedRows(blank, blank, blank, labels, np.ones(n, "f4"), np.zeros(n, "i4"), np.ones(n, np.bool_))


def predictions(p_ok: tuple[float, float, float]) -> Outcomes:
    """The same probabilities for all, and novelty that rises from row to row."""
    p = np.tile(np.array([*p_ok, 0.5, 0.5, 0.5, 0.5], np.float32), (ROWS, 1))
    return Outcomes(p, np.linspace(0, 0.9, ROWS, dtype=np.float32))


def test_one_in_twenty_of_the_held_out_prompts_falls_back() -> None:
    found = predictions((0.99, 0.99, 0.99))
    fallback = fitted_fallback(found, held_out(np.ones((ROWS, 3))), 4)
    assert np.mean(found.novelty >= fallback.threshold) == pytest.approx(0.05, abs=0.01)


def test_where_cheap_tiers_fail_on_the_most_novel_prompts_the_strongest_is_safe() -> None:
    no_worse = np.ones((ROWS, 3))
    no_worse[-60:] = np.arange(180).reshape(60, 3) % 2
    assert fitted_fallback(predictions((0.99, 0.99, 0.99)), held_out(no_worse), 4).tier == 4


def test_a_cheaper_tier_is_safe_where_it_is_no_worse_and_saves_money() -> None:
    no_worse = np.ones((ROWS, 3))
    no_worse[:, 0] = 0
    assert fitted_fallback(predictions((0.99, 0.99, 0.99)), held_out(no_worse), 4).tier == 2


@pytest.mark.parametrize("rows", [30, ROWS])
def test_a_few_rows_prove_no_tier_safe(rows: int) -> None:
    full = np.arange(ROWS) < rows
    no_worse = np.where(np.tile(full[:, None], 3), 1.0, np.nan)
    assert fitted_fallback(predictions((0.99, 0.99, 0.99)), held_out(no_worse), 4).tier == (4 if rows == 30 else 1)


def test_a_trained_artefact_carries_its_fallback(tiny: Candidate) -> None:
    manifest = tiny.model.manifest
    assert manifest.fallback is not None
    assert fallback_of(manifest) == manifest.fallback
