"""The ordinal head: one score for all tiers, whose thresholds ascend."""

from pathlib import Path

import numpy as np
import pytest
from synthetic_outcomes import generated_rows

from classifier.artefact import load_artefact
from classifier.routing_input import routing_input_of_text
from classifier.training.ordinal_fit import fit_tied, ordinal_groups
from classifier.training.train import train


def test_score_and_thresholds_of_proportional_odds_are_found_again() -> None:
    rng = np.random.default_rng(0)
    x, coef, thresholds = rng.normal(size=(20_000, 3)), np.array([1.0, -0.5, 0.0]), np.array([-1.0, 0.0, 1.5])
    p = 1 / (1 + np.exp(-(x @ coef)[:, None] - thresholds))
    y = (rng.random(p.shape) < p).astype(np.float64)
    y[rng.random(y.shape) < 0.3] = np.nan

    found, bias = fit_tied(x, y, np.ones(len(x)), c=1e3, centre=np.zeros(3))

    assert np.abs(found - coef[:, None]).max() < 0.06
    assert bias == pytest.approx(thresholds, abs=0.06)


def test_thresholds_ascend_even_where_a_dearer_tier_was_seen_to_be_worse() -> None:
    y = np.tile([[1.0, 0.0]], (50, 1))
    y[:10] = 1 - y[:10]
    found, bias = fit_tied(np.zeros((50, 1)), y, np.ones(50), c=1.0, centre=np.zeros(1))
    assert bias[0] <= bias[1]
    assert (found[:, 0] == found[:, 1]).all()


def test_an_ordinal_artefact_never_thinks_less_of_a_dearer_tier(tmp_path: Path) -> None:
    made = train(generated_rows(600), tmp_path, dim=8, max_terms=200, rounds=5, ordinal=True)
    model = load_artefact(made.folder)
    assert model.manifest.ordinal
    for text in ("What is 2 + 2?", "Prove that there are infinitely many primes.", "x" * 300, "def f(): pass"):
        given = model.predict(routing_input_of_text(text))
        for p in (given.p_ok, given.p_correct):
            assert p == sorted(p)


def test_outcomes_of_a_kind_share_a_score() -> None:
    assert [group.tolist() for group in ordinal_groups(7)] == [[0, 1, 2], [3, 4, 5, 6]]
