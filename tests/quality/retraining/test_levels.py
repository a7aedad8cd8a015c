"""Levels of retraining: a head over all keys, and then the class model refitted, are adopted if they win on unseen
labels, and then decide."""

import hashlib
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from classifier.class_predictor import ClassPredictor
from classifier.complexity.classes import adequacies
from classifier.encoders.static_encoder import StaticEncoder
from classifier.features.routing_input import routing_input_of_text
from classifier.local.cells import Labels, prior_table
from classifier.model.learned import RefittedClasses
from classifier.registry.acceptance import accepted_artefact
from classifier.registry.artefact import MODEL, load_artefact, load_model_tensors, save_artefact
from classifier.training.fitting.class_refit import fit_head
from quality.comparison.association import SLOPE, association
from quality.comparison.decision_gain import Serving, reference_serving
from quality.comparison.paired_outcomes import LadderOutcomes, Vectors, choice_of
from quality.retraining.levels import (
    LEAST_FOR_CLASSES,
    LEAST_FOR_HEAD,
    MOST_OF_TENANT,
    Learned,
    learn,
    over_rates,
    related_folds,
)
from quality.retraining.train_candidate import exported_labels
from quality.verification.training_rows import encode_prompt, feature_spec
from tests.classifier.training.test_class_refit import planted
from tests.quality.retraining.test_candidate_training import CATALOGUE, LIKE, Tensors, rows_of, trained
from tests.quality.retraining.tiny_classifier import base_artefact

pytestmark = pytest.mark.processes

TABLE = adequacies(LIKE)[:, :-1]
SERVING = reference_serving(4)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_artefact(tmp_path_factory.mktemp("registry"))


def two_kinds(base: Path, n: int, seed: int = 0, *, shuffled: bool = False) -> Tensors:
    """Answers of tier 2 to MEDIUM prompts: good where the embedding's first number is above 0, else bad."""
    tensors = rows_of(load_artefact(base).manifest, {2: 0.5}, n=n, seed=seed)
    rng = np.random.default_rng(seed)
    good = rng.random(n) < np.where(tensors["embedding"][:, 0] > 0, 0.95, 0.05)
    tensors["no_worse"][:, 1] = rng.permutation(good) if shuffled else good
    return tensors


def learned_of(tensors: Tensors) -> Learned:
    labels = exported_labels(tensors, {})
    shown = association(labels, TABLE, MOST_OF_TENANT, look=1, deals=999).is_shown
    return learn(labels, related_folds(labels.embedding), TABLE, SERVING, by_prompt=shown)


def test_300_labels_change_the_weights_and_predict_better_than_the_table(base: Path, tmp_path: Path) -> None:
    done = trained(base, tmp_path, two_kinds(base, 300))
    assert done.judgement.reasons == []
    digests = [hashlib.sha256((folder / MODEL).read_bytes()).digest() for folder in (base, Path(done.path))]
    assert digests[0] != digests[1]
    levels = load_artefact(Path(done.path)).manifest.levels
    assert [(one.name, one.labels) for one in levels] == [("table", 300), ("head", 300), ("classes", 300)]
    assert [one.adopted for one in levels[:2]] == [True, True]
    assert 0 < levels[1].utility_low < levels[1].utility < levels[1].utility_high

    unseen = exported_labels(two_kinds(base, 400, seed=5), {})
    model = accepted_artefact(Path(done.path), CATALOGUE, tiers=4, must_be_measured=True)
    assert model.learned_head is not None
    assert model.adequacy is not None
    by_head = model.learned_head.p(unseen.classes, unseen.embedding, unseen.surface)[:, 1]
    errors = [((p - unseen.scores[:, 1]) ** 2).mean() for p in (by_head, (unseen.classes @ model.adequacy)[:, 1])]
    assert errors[0] < errors[1] - 0.05


def test_an_adopted_head_decides_for_its_own_catalogue_alone(base: Path, tmp_path: Path) -> None:
    done = trained(base, tmp_path, two_kinds(base, 300))
    model = load_artefact(Path(done.path), CATALOGUE)
    given = routing_input_of_text("Tell me about cotton")
    turn = model.encode(given)
    assert isinstance(model.encoder, StaticEncoder)
    first = np.zeros_like(turn.embedding)
    first[0] = 1.0
    served, other = (
        [
            ClassPredictor(version, prior_table(LIKE)).prediction(given, turn._replace(embedding=e))
            for e in (first, -first)
        ]
        for version in (model, load_artefact(Path(done.path), "another"))
    )
    assert served[0].p_ok[1] > served[1].p_ok[1] + 0.2
    assert served[0].p_ok[3] == 1.0
    assert abs(other[0].p_ok[1] - other[1].p_ok[1]) < 0.2


def test_probes_are_compared_by_the_head_where_their_vectors_are_known(base: Path, tmp_path: Path) -> None:
    done = trained(base, tmp_path, two_kinds(base, 300))
    model = load_artefact(Path(done.path))
    rows = two_kinds(base, 60, seed=9)
    vectors = [
        Vectors(feature_spec(model.manifest), embedding.tobytes(), features.tobytes())
        for embedding, features in zip(rows["embedding"], rows["features"], strict=True)
    ]
    probes = LadderOutcomes(rows["classes"], np.ones((60, 4)), vectors)
    by_head, by_table = (choice_of(model, 4)(given) for given in (probes, probes._replace(vectors=())))
    assert len(set(by_table.tolist())) == 1
    cheaper = by_head < by_table
    assert cheaper.sum() >= 3
    assert (rows["embedding"][cheaper, 0] > 0).all()


def near_the_target(n: int, seed: int) -> Labels:
    """Of two tiers the cheaper is good in 0.85 or 0.55 of prompts, by their embedding: near the target of 0.7."""
    rng = np.random.default_rng(seed)
    embedding = rng.normal(size=(n, 16)).astype(np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    good = rng.random(n) < np.where(embedding[:, 0] > 0, 0.85, 0.55)
    none = np.full(n, -1, np.int32)
    return Labels(
        classes=np.full((n, 4), 0.25, np.float32),
        whole=np.full((n, 4), 0.25, np.float32),
        embedding=embedding,
        surface=np.zeros((n, 3), np.float32),
        scores=good[:, None].astype(np.float32),
        weights=np.ones((n, 1), np.float32),
        key=none,
        context=none,
        tenant=none,
        private=np.zeros(n, np.bool_),
    )


def test_a_level_that_decides_better_is_adopted_though_its_squared_error_proves_nothing() -> None:
    prior, found = adequacies((LIKE[1], LIKE[2]))[:, :-1], []
    for seed in range(8):
        known = near_the_target(400, seed)
        levels = learn(known, np.arange(400) % 4, prior, Serving(cost_shares=[0.0, 1.0])).levels
        found += [(one.low > 0, one.utility_low > 0, one.adopted) for one in levels[1:] if one.adopted]
    assert (False, True, True) in found


def test_too_few_labels_learn_a_table_alone(base: Path) -> None:
    tensors = two_kinds(base, LEAST_FOR_HEAD - 1)
    learned = learned_of(tensors)
    assert learned.head is None
    assert [one.name for one in learned.levels] == ["table"]


def test_shuffled_labels_teach_no_head_in_at_least_95_percent_of_runs(base: Path) -> None:
    adopted = 0
    for seed in range(40):
        tensors = two_kinds(base, LEAST_FOR_HEAD, seed, shuffled=True)
        adopted += learned_of(tensors).head is not None
    assert adopted <= 2


def test_one_tenant_cannot_teach_all_others_a_head(base: Path) -> None:
    """Its bound leaves the head near the prior, which predicts unseen labels no better than the table."""
    tensors = two_kinds(base, 300)
    tensors["tenant"], tensors["key"] = np.zeros(300, np.int32), np.zeros(300, np.int32)
    learned = learned_of(tensors)
    assert np.abs(learned.table - TABLE).max() < 0.2
    if learned.head is not None:
        asked = exported_labels(two_kinds(base, 100, seed=3), {})
        moved = learned.head.p(asked.classes, asked.embedding, asked.surface) - asked.classes @ TABLE
        assert np.abs(moved).max() < 0.2


@pytest.fixture(scope="module")
def harder() -> Learned:
    """From 1,000 labels of prompts that are harder than the shipped classes say."""
    known, _ = planted(np.random.default_rng(0), 1000)
    return learn(known, np.arange(len(known)) % 4, TABLE, SERVING)


def test_the_class_model_replaces_a_head_that_it_certainly_beats(harder: Learned) -> None:
    assert [(one.name, one.adopted) for one in harder.levels] == [("table", True), ("head", True), ("classes", True)]
    assert harder.levels[2].utility_low > 0
    assert isinstance(harder.head, RefittedClasses)
    assert [type(one) for one in harder.heads.values()] == [RefittedClasses] * 4
    known, _ = planted(np.random.default_rng(0), 1000)
    asked, true = planted(np.random.default_rng(9), 2000)
    errors = [
        float(np.square(p - true @ TABLE).mean())
        for p in (
            harder.head.p(asked.classes, asked.embedding, asked.surface),
            fit_head(known, TABLE, 1.0).p(asked.classes, asked.embedding, asked.surface),
            asked.classes @ harder.table,
        )
    ]
    assert errors[0] < 0.8 * errors[1] < 0.5 * errors[2]


def test_before_300_labels_the_class_model_stays() -> None:
    known, _ = planted(np.random.default_rng(0), LEAST_FOR_CLASSES - 1)
    few = learn(known, np.arange(len(known)) % 4, TABLE, SERVING)
    assert [one.name for one in few.levels] == ["table", "head"]


def test_the_class_model_is_refitted_from_shuffled_labels_in_at_most_5_percent_of_runs() -> None:
    adopted = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        known, _ = planted(rng, LEAST_FOR_CLASSES)
        shuffled = replace(known, scores=rng.permutation(known.scores)[:, 1:2], weights=known.weights[:, 1:2])
        levels = learn(shuffled, np.arange(len(known)) % 4, TABLE[:, 1:2], reference_serving(2)).levels
        adopted += levels[2].adopted
    assert adopted <= 1


def test_a_head_starts_from_the_rates_of_labels_without_a_tenant_and_a_share_of_the_priors_differences() -> None:
    rng = np.random.default_rng(0)
    known = replace(near_the_target(4000, 0), classes=np.eye(4, dtype=np.float32)[rng.integers(0, 4, 4000)])
    prior = np.array([[0.9], [0.8], [0.6], [0.3]], np.float32)
    rate, mean = float(known.scores.mean()), float((known.classes @ prior).mean())
    np.testing.assert_allclose(over_rates(known, prior), rate + SLOPE * (prior - mean), atol=0.003)
    few = known.take(np.arange(10))
    rate, mean = float(few.scores.mean()), float((few.classes @ prior).mean())
    np.testing.assert_allclose(over_rates(few, prior), (prior + rate + SLOPE * (prior - mean)) / 2, atol=1e-6)
    for hidden in (replace(known, tenant=np.zeros(4000, np.int32)), replace(known, private=np.ones(4000, np.bool_))):
        np.testing.assert_array_equal(over_rates(hidden, prior), prior)


def test_refitted_classes_decide_and_are_shown_and_labels_keep_those_that_ship(base: Path, tmp_path: Path) -> None:
    root = load_artefact(base)
    weights = np.zeros((4 + root.encoder.dim + len(root.manifest.feature_names), 4), np.float32)
    weights[:4, 3] = 9.0
    refitted = RefittedClasses(TABLE, weights)
    manifest = msgspec.structs.replace(
        root.manifest,
        version="v1-refitted",
        parent=root.version,
        catalogue_fingerprint=CATALOGUE,
        adequacy=TABLE.tolist(),
    )
    folder = save_artefact(tmp_path, manifest, load_model_tensors(base) | refitted.tensors())
    model = accepted_artefact(folder, CATALOGUE, tiers=4, must_be_measured=True)
    given = routing_input_of_text("Tell me about cotton")
    turn = model.encode(given)
    shipped = ClassPredictor(root, prior_table(LIKE)).classes(given, turn)
    found = ClassPredictor(model, prior_table(LIKE)).prediction(given, turn)
    assert shipped[3] < 0.5 < 0.95 < found.classes[3]
    np.testing.assert_allclose(found.p_ok[:3], TABLE[3], atol=0.05)
    stored = encode_prompt(model, [{"role": "user", "content": "Tell me about cotton"}]).classes
    np.testing.assert_allclose(stored or [], shipped, atol=1e-4)


def test_versions_without_levels_load_as_before(base: Path) -> None:
    manifest = load_artefact(base).manifest
    stored = msgspec.json.decode((base / "manifest.json").read_bytes())
    stored.pop("levels", None)
    assert msgspec.convert(stored, type(manifest)).levels == []
    assert load_artefact(base).learned_head is None
