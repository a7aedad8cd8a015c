"""Subsets, calibration slopes, savings and cost-quality curves, against plain re-computations."""

import msgspec
import numpy as np
import pytest
from synthetic_outcomes import generated_rows

from classifier.training import metrics
from classifier.training.dataset import FILE, HEADS, load_outcomes
from classifier.training.evaluation import Predictions, tables
from classifier.training.ladder_routing import ladder_routing
from classifier.training.noise_ceiling import repeat_metrics, sharpness_ceiling
from classifier.training.pair_routing import GAIN, WEAK, WEAK_PRICE, need, pair_routing
from classifier.training.probabilities import calibration_slopes, probability_metrics, reliability
from classifier.training.registered import DOMAIN_LABEL
from classifier.training.simple_predictors import DomainMean
from classifier.training.subsets import Outcomes, Subset, subset, subsets
from tests.shared_data import data_file

ROWS = generated_rows(1500)
TEST = [r for r in ROWS if r.split == "test"]
OUTCOMES = Outcomes.of(TEST)


def whole_ladder(draws: int = 50) -> Subset:
    return next(one for one in subsets(OUTCOMES, draws=draws) if one.name == "llmrouter")


def perfect(one: Subset) -> np.ndarray:
    return np.clip(one.labels, 0.01, 0.99)


def noise(one: Subset, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.2, 0.8, (len(one.at), len(HEADS)))


def test_subsets_are_all_rows_each_collection_and_each_of_its_sources() -> None:
    rows = [
        msgspec.structs.replace(row, source=f"routellm_{i % 2}") if row.source != "llmrouter" else row
        for i, row in enumerate(ROWS)
    ]
    found = {one.name: one.tiers for one in subsets(Outcomes.of(rows), draws=1)}
    assert found == {
        "all sources": (2, 4),
        "routellm": (2, 4),
        "routellm_0": (2, 4),
        "routellm_1": (2, 4),
        "llmrouter": (1, 2, 3, 4),
    }


def test_two_models_of_an_unknown_collection_stand_for_tiers_two_and_four_by_how_often_they_are_right() -> None:
    rows = [
        msgspec.structs.replace(TEST[0], source="elsewhere", outcomes={"great": 1.0, "small": float(i % 2)})
        for i in range(4)
    ]
    labels = Outcomes.of(rows).labels
    assert labels[:, HEADS.index("correct_2")].tolist() == [0, 1, 0, 1]
    assert labels[:, HEADS.index("correct_4")].tolist() == [1, 1, 1, 1]
    assert np.isnan(labels[:, HEADS.index("correct_1")]).all()


def test_bootstrapped_slopes_agree_with_a_fit_on_drawn_rows() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.95, 400)
    y = (rng.random(400) < p).astype(float)
    draws = metrics.resamples(400, 3, 0)
    draws = np.vstack([np.ones((1, 400)), draws])
    slopes = calibration_slopes(y, p, draws)
    for weights, slope in zip(draws, slopes, strict=True):
        rows = np.repeat(np.arange(400), weights.astype(int))
        assert slope == pytest.approx(metrics.calibration_slope(y[rows], p[rows]), abs=1e-3)


def test_equal_probabilities_have_no_slope() -> None:
    assert np.isnan(calibration_slopes(np.array([0.0, 1.0]), np.full(2, 0.5), np.ones((1, 2)))).all()


def test_probability_metrics_compare_with_the_domain_label_pair_by_pair() -> None:
    one = whole_ladder()
    rows = probability_metrics(one, {"sharp": perfect(one), DOMAIN_LABEL: noise(one)}, DOMAIN_LABEL)
    sharp = next(m for m in rows if m.predictor == "sharp" and m.head == "correct_1")
    label = next(m for m in rows if m.predictor == DOMAIN_LABEL and m.head == "correct_1")
    assert sharp.auc is not None
    assert label.auc is not None
    assert sharp.over_domain is not None
    assert (sharp.auc.value, label.over_domain) == (1.0, None)
    assert sharp.over_domain.value == pytest.approx(1 - label.auc.value, abs=1e-6)
    assert sharp.over_domain.low > 0.3


def test_reliability_bins_hold_all_rows_and_the_band_shrinks_with_them() -> None:
    one = whole_ladder()
    diagram = reliability(one, HEADS.index("correct_1"), "x", noise(one)[:, 0])
    assert sum(b.rows for b in diagram.bins) == len(one.at)
    assert all(b.low < b.predicted < b.high for b in diagram.bins)


def naive_saving(weak: np.ndarray, strong: np.ndarray, order: np.ndarray, price: float) -> float:
    for calls in range(len(order) + 1):
        go = np.zeros(len(order), bool)
        go[order[:calls]] = True
        if np.where(go, strong, weak).sum() >= 0.95 * strong.sum() - 1e-9:
            return (1 - calls / len(order)) * (1 - price)
    return 0.0


def test_savings_and_gap_recovered_agree_with_counting_calls_one_by_one() -> None:
    one = whole_ladder(draws=20)
    p = noise(one)
    row = next(r for r in pair_routing(one, {"x": p}, None, {}, DOMAIN_LABEL) if r.ranking == GAIN)
    weak, strong = one.correct()[:, 0], one.correct()[:, -1]
    order = np.argsort(-need(p, one, GAIN), kind="stable")
    assert row.saving.value == pytest.approx(naive_saving(weak, strong, order, WEAK_PRICE[1]), abs=1e-6)
    assert row.apgr.value == pytest.approx(metrics.apgr(weak, strong, need(p, one, GAIN)), abs=1e-6)


def test_knowing_the_gain_saves_more_than_guessing_also_with_a_threshold_from_valid_rows() -> None:
    one = whole_ladder()
    tuned = subset(OUTCOMES, "valid", one.at[::2], draws=1)
    p = {"knows": perfect(one), DOMAIN_LABEL: noise(one)}
    p_tuned = {"knows": perfect(tuned), DOMAIN_LABEL: noise(tuned, seed=1)}
    rows = {(r.predictor, r.ranking): r for r in pair_routing(one, p, tuned, p_tuned, DOMAIN_LABEL)}
    knows = rows["knows", GAIN]
    assert knows.saving_over_domain is not None
    assert knows.valid_saving is not None
    assert knows.valid_quality is not None
    assert knows.saving_over_domain.low > 0
    assert knows.valid_saving.value > 0.2
    assert knows.valid_quality.value >= 0.94
    assert knows.apgr.value > rows["knows", WEAK].apgr.value > 0.6
    assert rows[DOMAIN_LABEL, GAIN].saving_over_domain is None
    assert abs(rows[DOMAIN_LABEL, GAIN].over_shuffled.value) < 0.1


def test_the_ladder_of_a_router_that_knows_reaches_the_perfect_routers_point() -> None:
    one = whole_ladder()
    found = ladder_routing(
        one,
        {"knows": perfect(one), DOMAIN_LABEL: noise(one)},
        one,
        {
            "knows": perfect(one),
            DOMAIN_LABEL: noise(one),
        },
        DOMAIN_LABEL,
    )
    oracle = next(c for c in found.curves if c.rule == "oracle" and c.label == "correct").points[0]
    curve = next(c for c in found.curves if (c.predictor, c.rule, c.label) == ("knows", "lambda", "correct"))
    assert oracle in curve.points
    row = next(r for r in found.rows if (r.predictor, r.rule, r.label) == ("knows", "lambda", "correct"))
    assert row.over_domain is not None
    assert row.over_domain.low > 0
    assert row.over_shuffled.low > 0


def test_a_dearer_lambda_never_costs_more() -> None:
    one = whole_ladder()
    found = ladder_routing(one, {"x": noise(one)}, None, {}, DOMAIN_LABEL)
    costs = [cost for cost, _ in next(c for c in found.curves if c.rule == "lambda").points]
    assert costs == sorted(costs, reverse=True)
    assert found.rows == []


def test_thresholds_come_from_rows_of_the_same_sources_with_the_same_tiers() -> None:
    valid = Outcomes.of([r for r in ROWS if r.split == "valid"])
    predictions = Predictions()
    rng = np.random.default_rng(0)
    predictions.add("x", rng.random((len(valid), 7)), rng.random((len(TEST), 7)))
    found = tables(OUTCOMES, predictions, valid, draws=20)
    assert {row.subset for row in found.ladder} == {"all sources", "llmrouter", "routellm"}
    assert tables(OUTCOMES, predictions, None, draws=20).ladder == []


def test_a_sharper_predictor_has_a_higher_ceiling() -> None:
    one = whole_ladder()
    flat, sharp = np.full((len(one.at), 7), 0.5) + 0.1 * (noise(one) - 0.5), perfect(one)
    low = next(c for c in sharpness_ceiling(one, "flat", flat) if c.head == "correct_1")
    high = next(c for c in sharpness_ceiling(one, "sharp", sharp) if c.head == "correct_1")
    assert low.auc < 0.6 < 0.95 < high.auc


def test_repeats_that_disagreed_have_a_score_between_zero_and_one() -> None:
    model = "mistral-7b-instruct-v0.3"
    row = next(r for r in TEST if model in r.outcomes)
    split = msgspec.structs.replace(row, outcomes=row.outcomes | {model: 0.5})
    found = next(r for r in repeat_metrics([row, split]) if r.model == model)
    assert (found.rows, found.split) == (2, 1)


def test_the_domain_label_reaches_what_the_public_baselines_report() -> None:
    rows = load_outcomes(data_file(FILE).parent)
    predictor = DomainMean()
    predictor.fit([r for r in rows if r.split == "train"], [])
    test = [r for r in rows if r.split == "test"]
    p = predictor.predict(test).astype(np.float64)
    found = {}
    for one in subsets(Outcomes.of(test), draws=2):
        if one.name in ("routellm", "llmrouter"):
            head = HEADS.index(f"correct_{one.tiers[0]}")
            found[one.name] = float(metrics.auc(one.labels[:, head], p[one.at, head])[0])
            assert metrics.auc(one.labels[:, head], p[one.at, head], one.domain)[0] == pytest.approx(0.5, abs=0.02)
    assert found == {"routellm": pytest.approx(0.706, abs=0.004), "llmrouter": pytest.approx(0.771, abs=0.004)}
