"""Predictors of the evaluation: what each may look at, and what is kept of them in files."""

import contextlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from synthetic_outcomes import DOMAINS, generated_rows

from classifier.errors import TrainingDataError
from classifier.training import metrics
from classifier.training.baselines import TextPredictor
from classifier.training.dataset import HEADS, TIER_MODELS, OutcomeRow
from classifier.training.learners import logistic, mlp, neighbours
from classifier.training.per_source import families, labels_of
from classifier.training.platt import Platt
from classifier.training.predictors import Entry, PredictorUnavailableError, checked
from classifier.training.registered import PREDICTORS
from classifier.training.simple_predictors import DomainMean, LengthHeuristic, OtherModels, Random
from classifier.training.stored_predictions import (
    StoredPredictions,
    fitted_or_stored,
    predictions_file,
    save_predictions,
)
from classifier.training.text_features import HandFeatures, TfidfFeatures

ROWS = generated_rows(1500)
TRAIN, VALID, TEST = ([r for r in ROWS if r.split == split] for split in ("train", "valid", "test"))
FIRST = HEADS.index("correct_1")


def auc_of(p: np.ndarray, rows: list[OutcomeRow], head: int = FIRST) -> float:
    y = labels_of(rows)[:, head]
    seen = ~np.isnan(y)
    return float(metrics.auc(y[seen], p[seen, head].astype(np.float64))[0])


@pytest.mark.parametrize("predictor", [Random(), LengthHeuristic(), DomainMean(), OtherModels()])
def test_simple_predictors_give_probabilities_of_every_head(predictor: Random) -> None:
    predictor.fit(TRAIN, VALID)
    p = checked(predictor.predict(TEST), TEST, predictor.name)
    assert not np.isnan(p[[row.source == "llmrouter" for row in TEST]]).any()


@pytest.mark.parametrize("predictor", [Random(), LengthHeuristic(), DomainMean()])
def test_predictors_of_prompts_do_not_look_at_outcomes(predictor: Random) -> None:
    predictor.fit(TRAIN, VALID)
    blind = [msgspec.structs.replace(row, outcomes={}) for row in TEST]
    assert np.array_equal(predictor.predict(TEST), predictor.predict(blind), equal_nan=True)


def test_chance_gives_a_row_the_same_probability_in_any_company() -> None:
    predictor = Random()
    predictor.fit(TRAIN, VALID)
    assert np.array_equal(predictor.predict(TEST)[7:], predictor.predict(TEST[7:]), equal_nan=True)
    assert 0.4 < auc_of(predictor.predict(TEST), TEST) < 0.6


def test_the_domain_label_gives_each_row_its_domains_training_rate() -> None:
    predictor = DomainMean()
    predictor.fit(TRAIN, VALID)
    p = predictor.predict(TEST)
    llmrouter = [i for i, row in enumerate(TEST) if row.source == "llmrouter" and row.domain == DOMAINS[1]]
    y = labels_of([r for r in TRAIN if r.source == "llmrouter" and r.domain == DOMAINS[1]])[:, FIRST]
    assert len(set(p[llmrouter, FIRST].tolist())) == 1
    assert p[llmrouter[0], FIRST] == pytest.approx(y.mean(), abs=0.05)


def test_a_domain_that_trained_nothing_gets_the_collections_rate() -> None:
    predictor = DomainMean()
    predictor.fit(TRAIN, VALID)
    known = next(row for row in TEST if row.source == "llmrouter")
    strange = [msgspec.structs.replace(known, domain="never seen")]
    rate = np.nanmean(labels_of([r for r in TRAIN if r.source == "llmrouter"])[:, FIRST])
    assert predictor.predict(strange)[0, FIRST] == pytest.approx(rate, abs=0.02)


def test_other_models_are_never_the_model_that_is_predicted() -> None:
    predictor = OtherModels()
    predictor.fit(TRAIN, VALID)
    own = TIER_MODELS["llmrouter"][0]
    rows = [row for row in TEST if row.source == "llmrouter"]
    without = [msgspec.structs.replace(r, outcomes={m: s for m, s in r.outcomes.items() if m != own}) for r in rows]
    assert (predictor.predict(rows)[:, FIRST] == predictor.predict(without)[:, FIRST]).all()


@pytest.mark.parametrize(("features", "learner"), [(TfidfFeatures(), logistic), (HandFeatures(), neighbours)])
def test_a_text_predictor_learns_hard_words_and_is_calibrated(features: TfidfFeatures, learner: object) -> None:
    predictor = TextPredictor("words", features, learner)  # type: ignore[arg-type]
    predictor.fit(TRAIN, VALID)
    p = predictor.predict(TEST)
    assert auc_of(p, TEST) > 0.75
    assert np.nanmean(p[:, FIRST]) == pytest.approx(np.nanmean(labels_of(TEST)[:, FIRST]), abs=0.08)


def test_prompts_of_an_unknown_collection_get_the_largest_collections_models() -> None:
    predictor = TextPredictor("words", TfidfFeatures(), logistic)
    predictor.fit(TRAIN, VALID)
    known = [row for row in TEST if row.source.startswith("routellm")]
    moved = [msgspec.structs.replace(row, source="elsewhere") for row in known]
    assert list(families(moved)) == ["elsewhere"]
    second = HEADS.index("correct_2")
    assert (predictor.predict(moved)[:, second] == predictor.predict(known)[:, second]).all()


def test_the_network_learns_too() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4))
    y = (x[:, 0] + 0.3 * rng.normal(size=600) > 0).astype(float)
    p = mlp(x[:400], y[:400], x[400:500], y[400:500])(x[500:])
    assert metrics.auc(y[500:], p)[0] > 0.9


def test_platt_scaling_keeps_the_ranking_and_gives_the_rate() -> None:
    rng = np.random.default_rng(0)
    score = rng.normal(size=2000)
    y = (rng.random(2000) < 1 / (1 + np.exp(-2 * score - 1))).astype(float)
    p = Platt.fit(10 * score + 3, y)(10 * score + 3)
    assert (np.argsort(p) == np.argsort(score)).all()
    assert metrics.calibration_error(y, p) < metrics.calibration_band(p, seed=0)


def test_platt_scaling_never_turns_a_ranking_round() -> None:
    score = np.linspace(-1, 1, 100)
    p = Platt.fit(score, (score < 0).astype(float))(score)
    assert (np.diff(p) > 0).all()


def test_probabilities_of_a_wrong_shape_or_range_are_refused() -> None:
    with pytest.raises(TrainingDataError, match=r"expected \(1, 7\)"):
        checked(np.zeros((1, 3)), TEST[:1], "x")
    with pytest.raises(TrainingDataError, match=r"lie in \[0, 1\]"):
        checked(np.full((1, 7), 1.5), TEST[:1], "x")


def test_every_registered_predictor_has_its_rows_name_if_it_can_be_made() -> None:
    for entry in PREDICTORS:
        name = entry.name
        with contextlib.suppress(PredictorUnavailableError):
            name = entry.make().name
        assert name == entry.name


def test_a_predictor_whose_package_is_absent_says_so() -> None:
    with pytest.raises(PredictorUnavailableError, match="No module named 'no_such_package'"):
        Entry("x", "no_such_package:make").make()


def test_stored_predictions_come_back_by_row_and_spare_the_fitting(tmp_path: Path) -> None:
    path = predictions_file(tmp_path, "domain's mean", "sha", ("alpha",))
    fitted = fitted_or_stored(DomainMean(), TRAIN, VALID, TEST, path, ("alpha",))
    stored = StoredPredictions(path)
    assert np.array_equal(stored.predict(TEST[::-1]), fitted.predict(TEST)[::-1], equal_nan=True)
    assert stored.held == ("alpha",)
    again = fitted_or_stored(Random(), [], VALID, TEST, path, ())
    assert np.array_equal(again.predict(TEST), stored.predict(TEST), equal_nan=True)
    assert predictions_file(tmp_path, "domain's mean", "other", ("alpha",)) != path


def test_rows_without_a_stored_prediction_are_named(tmp_path: Path) -> None:
    save_predictions(tmp_path / "p.npz", "x", TEST[:5], np.full((5, 7), 0.5))
    stored = StoredPredictions(tmp_path / "p.npz")
    assert not stored.covers(TEST[:6])
    with pytest.raises(TrainingDataError, match="no prediction for 1 rows"):
        stored.predict(TEST[:6])


def test_a_file_that_holds_no_predictions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"nothing")
    with pytest.raises(TrainingDataError, match="holds no predictions"):
        StoredPredictions(tmp_path / "x.npz")
