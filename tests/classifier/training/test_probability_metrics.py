"""Measures of probabilities and of routing, against plain re-computations."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from scipy.special import expit

from classifier.decision import PolicyInputs, Prediction, exchange_of
from classifier.policy.decide import decide
from classifier.policy.utility import PRICES, highest_utility
from classifier.training.fitting.logistic import fit_logistic
from classifier.training.metrics import metrics


def sample(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(n), 2)
    return (rng.random(n) < p).astype(float), p, rng.integers(0, 5, n)


def test_auc_is_the_share_of_pairs_ranked_properly_with_ties_half() -> None:
    y, p, group = sample(60)
    for groups in (None, group):
        same = (lambda i, j: True) if groups is None else (lambda i, j: group[i] == group[j])
        pairs = [(i, j) for i, j in itertools.product(range(60), repeat=2) if y[i] > y[j] and same(i, j)]
        won = sum(1.0 if p[i] > p[j] else 0.5 if p[i] == p[j] else 0.0 for i, j in pairs)
        assert metrics.auc(y, p, groups)[0] == pytest.approx(won / len(pairs))


def test_a_predictor_that_only_knows_the_group_has_half_within_groups() -> None:
    y, _, group = sample()
    assert metrics.auc(y, group.astype(float), group)[0] == pytest.approx(0.5)


def test_bootstrap_weights_of_one_give_the_plain_auc() -> None:
    y, p, group = sample()
    assert metrics.auc(y, p, group, np.ones((2, 400)))[1] == pytest.approx(metrics.auc(y, p, group)[0])


def test_without_a_pair_the_auc_is_not_a_number() -> None:
    assert np.isnan(metrics.auc(np.ones(5), np.arange(5.0))[0])


def test_a_calibrated_model_lies_in_its_band_and_a_shifted_one_above() -> None:
    y, p, _ = sample(4000)
    p = np.clip(p, 0.02, 0.98)
    assert metrics.calibration_error(y, p) < metrics.calibration_band(p, seed=1)
    assert metrics.calibration_error(y, np.clip(p + 0.1, 0, 1)) > metrics.calibration_band(p, seed=1)
    assert metrics.calibration_slope(y, p) == pytest.approx(1.0, abs=0.1)


def test_overconfident_probabilities_have_a_slope_below_one() -> None:
    y, p, _ = sample(4000)
    logit = np.log(np.clip(p, 0.02, 0.98) / (1 - np.clip(p, 0.02, 0.98)))
    assert metrics.calibration_slope(y, 1 / (1 + np.exp(-2 * logit))) == pytest.approx(0.5, abs=0.07)


def test_the_fitted_logistic_has_a_vanishing_gradient() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(300, 3)), rng.random(300)
    y = rng.random(300)
    y[:50] = np.nan
    coef, bias = fit_logistic(x, y, w, c=0.5)
    seen = ~np.isnan(y)
    residual = w[seen] * (1 / (1 + np.exp(-(x[seen] @ coef + bias))) - y[seen])
    assert x[seen].T @ residual + coef / 0.5 == pytest.approx(np.zeros(3), abs=1e-2)
    assert residual.sum() == pytest.approx(0, abs=1e-2)


@given(
    rows=st.integers(20, 200),
    dims=st.integers(1, 30),
    c=st.sampled_from([0.1, 1.0, 100.0]),
    spread=st.floats(0.1, 10.0),
    seed=st.integers(0, 2**16),
)
def test_the_fitted_logistic_is_the_minimum_that_scipy_finds(
    rows: int, dims: int, c: float, spread: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, y, w = rng.normal(size=(rows, dims)) * spread, rng.random(rows), rng.random(rows)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        z = x @ theta[:-1] + theta[-1]
        residual = w * (expit(z) - y)
        value = w @ (np.logaddexp(0, z) - y * z) + theta[:-1] @ theta[:-1] / (2 * c)
        return float(value), np.append(x.T @ residual + theta[:-1] / c, residual.sum())

    tight = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000}
    exact = minimize(loss, np.zeros(dims + 1), jac=True, method="L-BFGS-B", options=tight)
    coef, bias = fit_logistic(x, y, w, c=c)

    assert loss(np.append(coef, bias))[0] == pytest.approx(exact.fun, rel=1e-5)
    # With as many dimensions as rows the loss is nearly flat along some: there only what is predicted is determined.
    assert expit(x @ coef + bias) == pytest.approx(expit(x @ exact.x[:-1] + exact.x[-1]), abs=1e-2)


def test_sparse_rows_are_fitted_as_dense_ones() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(100, 8)) * (rng.random((100, 8)) < 0.3), rng.random(100)
    dense, sparse = (fit_logistic(rows, y, np.ones(100), c=1.0) for rows in (x, csr_matrix(x)))
    assert sparse[0] == pytest.approx(dense[0], abs=1e-4)


def test_a_logistic_without_labels_is_even_odds() -> None:
    coef, bias = fit_logistic(np.ones((4, 2)), np.full(4, np.nan), np.ones(4), c=1.0)
    assert (coef.tolist(), bias) == ([0.0, 0.0], 0.0)


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3), st.floats(0, 1))
def test_the_evaluated_choice_is_the_served_choice(p: list[float], target: float) -> None:
    p_ok = [*(round(v, 4) for v in p), 1.0]
    inputs = PolicyInputs(
        prediction=Prediction(p_ok=p_ok, kind="measured", novelty=0, classifier_version="t"),
        costs=list(PRICES),
        quality_target=round(target, 3),
        tau=0.5,
        objective="utility",
    )
    column = highest_utility(np.array([p_ok]), np.array(PRICES), exchange_of(round(target, 3)))[0]
    assert decide(inputs).tier == column + 1


def test_perfect_probabilities_are_worth_most_at_the_cheapest_tier_that_is_right() -> None:
    rng = np.random.default_rng(0)
    score = np.hstack([(rng.random((300, 3)) < 0.5), np.ones((300, 1))]).astype(float)
    picks = highest_utility(score, np.array(PRICES), 0.1)
    assert score[np.arange(300), picks].mean() == 1.0
    assert (picks == score.argmax(1)).all()


def test_the_band_is_what_simulated_perfect_models_show() -> None:
    _, p, _ = sample(203)
    rng = np.random.default_rng(3)
    errors = [metrics.calibration_error((rng.random(203) < p).astype(float), p) for _ in range(2000)]
    assert metrics.calibration_band(p, seed=1, times=2000) == pytest.approx(np.quantile(errors, 0.95), rel=0.07)


def test_the_interval_of_a_slope_holds_it_as_often_as_it_says() -> None:
    found = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        p = rng.uniform(0.05, 0.95, 200)
        found.append(metrics.calibration_slope_interval((rng.random(200) < p).astype(float), p))
    held = [low <= 1.0 <= high for _, low, high in (one for one in found if one is not None)]
    assert len(held) == 200
    assert 0.91 <= np.mean(held) <= 0.98


@pytest.mark.parametrize(("y", "p"), [(np.ones(60), np.linspace(0.1, 0.9, 60)), (np.arange(60) % 2, np.full(60, 0.5))])
def test_outcomes_or_probabilities_that_are_all_alike_have_no_slope(y: np.ndarray, p: np.ndarray) -> None:
    assert metrics.calibration_slope_interval(y.astype(float), p) is None


def test_a_slope_of_certain_probabilities_is_finite() -> None:
    y, p, _ = sample(300)
    found = metrics.calibration_slope_interval(y, (p > 0.5).astype(float))
    assert found is not None
    assert np.isfinite(found).all()
