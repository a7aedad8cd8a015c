"""Training: the table by class is learned from labels and judged out of fold."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from classifier.class_predictor import ClassPredictor
from classifier.complexity.classes import Complexity, adequacies
from classifier.features.routing_input import routing_input_of_text
from classifier.features.surface_features import FEATURE_NAMES
from classifier.local.cells import LABELS_BOUND, prior_table
from classifier.local.estimator import learned_table
from classifier.model.outcome_model import Manifest
from classifier.registry.artefact import load_artefact
from quality.comparison.decision_gain import reference_serving
from quality.retraining.train_candidate import Trained, carry_out, exported_labels, predicted_by, predicted_in_folds
from quality.retraining.training_process import Order
from tests.quality.retraining.tiny_classifier import base_artefact

CATALOGUE = "lab"
LIKE = tuple(Complexity)
PRIOR = adequacies(LIKE).tolist()
Tensors = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_artefact(tmp_path_factory.mktemp("registry"))


def rows_of(
    manifest: Manifest, good: dict[int, float], *, n: int = 160, shuffled: bool = False, seed: int = 0, at: float = 10.0
) -> Tensors:
    """`n` verified answers of tier 2 to prompts of two classes; `good`: how often it is as good, by class."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(list(good), n)
    dim = int(manifest.encoder["dim"])
    no_worse = np.full((n, 3), np.nan, np.float32)
    no_worse[:, 1] = rng.random(n) < np.array([good[kind] for kind in kinds])
    if shuffled:
        no_worse[:, 1] = rng.permutation(no_worse[:, 1])
    told = np.zeros((n, 3), np.float32)
    told[:, 1] = 0.9
    embedding = rng.normal(size=(n, dim)).astype(np.float32)
    return {
        "features": np.zeros((n, len(FEATURE_NAMES)), np.float32),
        "embedding": embedding / np.linalg.norm(embedding, axis=1, keepdims=True),
        "no_worse": no_worse,
        "classes": np.eye(4, dtype=np.float32)[kinds - 1],
        "told": told,
        "key": np.full(n, -1, np.int32),
        "context": np.full(n, -1, np.int32),
        "tenant": np.full(n, -1, np.int32),
        "compare": np.ones(n, np.uint8),
        "at": np.full(n, at),
        "changed": np.zeros((n, 3)),
    }


def trained(base: Path, folder: Path, tensors: Tensors, *, changes: dict[int, float] | None = None) -> Trained:
    order = Order(
        root_artefact=str(base),
        incumbent=str(base),
        registry=str(folder),
        catalogue_fingerprint=CATALOGUE,
        models={"lab": ["a", "b", "c", "d"]},
        window_start="2026-01-01T00:00:00+00:00",
        window_end="2026-01-02T00:00:00+00:00",
        seed=0,
        changes=changes or {},
        prior=PRIOR,
        serving=reference_serving(4),
    )
    save_file(tensors, folder / "rows.safetensors")
    return carry_out(order, folder / "rows.safetensors", lambda step, share: None)


def test_a_version_learns_by_class_what_its_tiers_do(base: Path, tmp_path: Path) -> None:
    """The table says .96 and .40 of tier 2 on MEDIUM and COMPLEX prompts; here it is the other way round."""
    manifest = load_artefact(base).manifest
    done = trained(base, tmp_path, rows_of(manifest, {2: 0.15, 3: 0.95}))
    assert done.judgement.reasons == []
    assert done.judgement.gain is not None
    assert done.judgement.gain.low > 0.05

    model = load_artefact(Path(done.path), CATALOGUE)
    table = ClassPredictor(model, prior_table(LIKE)).table
    assert model.kind == "measured"
    assert table[1, 1] < 0.4 < 0.8 < table[2, 1]
    np.testing.assert_allclose(table[:, 0], np.array(PRIOR)[:, 0], atol=1e-3)
    assert model.manifest.parent == manifest.version
    prediction = ClassPredictor(model, prior_table(LIKE)).prediction(*_turn(model))
    assert prediction.kind == "measured"
    assert prediction.p_ok[-1] == 1.0


@pytest.mark.parametrize("n", [20, 400, 4000])
def test_one_tenant_moves_a_retrained_table_by_at_most_the_bound(base: Path, n: int) -> None:
    tensors = rows_of(load_artefact(base).manifest, {1: 0.0, 2: 0.0, 3: 1.0}, n=n)
    prior = np.array(PRIOR, np.float32)[:, :-1]
    alone = learned_table(exported_labels(tensors, {}), prior)
    tensors["tenant"], tensors["key"] = np.zeros(n, np.int32), np.zeros(n, np.int32)
    capped = learned_table(exported_labels(tensors, {}), prior)
    assert np.abs(capped - prior).max() <= LABELS_BOUND + 1e-6
    assert np.abs(alone - prior).max() > 0.3


def test_labels_from_before_a_tenants_own_change_count_for_little(base: Path) -> None:
    tensors = rows_of(load_artefact(base).manifest, {2: 0.15}, n=8)
    tensors["changed"][:4, 1] = 20.0
    np.testing.assert_allclose(exported_labels(tensors, {}).weights[:, 1], [0.09] * 4 + [0.9] * 4, rtol=1e-5)


def test_another_catalogue_has_the_prior_again(base: Path, tmp_path: Path) -> None:
    done = trained(base, tmp_path, rows_of(load_artefact(base).manifest, {2: 0.15, 3: 0.95}))
    other = load_artefact(Path(done.path), "another catalogue")
    np.testing.assert_allclose(ClassPredictor(other, prior_table(LIKE)).table, np.array(PRIOR)[:, :-1], atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_shuffled_labels_are_refused(base: Path, tmp_path: Path, seed: int) -> None:
    """They only teach the tier's rate, and nothing about the prompts."""
    tensors = rows_of(load_artefact(base).manifest, {2: 0.15, 3: 0.95}, shuffled=True, seed=seed)
    done = trained(base, tmp_path, tensors)
    assert any("depend on their prompts" in reason for reason in done.judgement.reasons)


def test_outcomes_known_to_the_table_are_no_gain(base: Path, tmp_path: Path) -> None:
    done = trained(base, tmp_path, rows_of(load_artefact(base).manifest, {2: 0.96, 3: 0.40}))
    assert any("better than the incumbent: " in reason for reason in done.judgement.reasons)


def test_few_labels_are_refused(base: Path, tmp_path: Path) -> None:
    done = trained(base, tmp_path, rows_of(load_artefact(base).manifest, {2: 0.15, 3: 0.95}, n=30))
    assert any("a comparison needs at least" in reason for reason in done.judgement.reasons)


def test_labels_from_before_a_tier_changed_do_not_judge_and_count_for_little(base: Path, tmp_path: Path) -> None:
    manifest = load_artefact(base).manifest
    done = trained(base, tmp_path, rows_of(manifest, {2: 0.15, 3: 0.95}), changes={2: 20.0})
    assert done.judgement.outdated == {2: 160}
    table = ClassPredictor(load_artefact(Path(done.path), CATALOGUE), prior_table(LIKE)).table
    shutil.rmtree(done.path)
    fresh = trained(base, tmp_path, rows_of(manifest, {2: 0.15, 3: 0.95}))
    learned = ClassPredictor(load_artefact(Path(fresh.path), CATALOGUE), prior_table(LIKE)).table
    assert learned[1, 1] < table[1, 1] < PRIOR[1][1]


def test_no_row_is_predicted_by_its_own_label(base: Path) -> None:
    tensors = rows_of(load_artefact(base).manifest, {2: 0.5}, n=40)
    prior = np.array(PRIOR, np.float32)[:, :-1]
    fold = np.arange(40) % 4
    before = predicted_in_folds(exported_labels(tensors, {}), fold, prior)
    tensors["no_worse"][0, 1] = 1 - tensors["no_worse"][0, 1]
    after = predicted_in_folds(exported_labels(tensors, {}), fold, prior)
    assert after[0, 1] == before[0, 1]
    assert (after[1::4, 1] != before[1::4, 1]).any()


def test_without_labels_the_table_predicts(base: Path) -> None:
    labels = exported_labels(rows_of(load_artefact(base).manifest, {2: 0.5}, n=8), {})
    prior = np.array(PRIOR, np.float32)[:, :-1]
    np.testing.assert_allclose(predicted_by(labels.take(np.zeros(8, np.bool_)), prior, labels), labels.classes @ prior)


def _turn(model: Any) -> tuple[Any, Any]:
    given = routing_input_of_text("Tell me about the river")
    return given, model.encode(given)
