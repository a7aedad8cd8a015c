"""Predicted lengths of answers reach the predicted costs, and only where they were measured on what serves."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from classifier.decision import Decision
from classifier.evidence import EvidenceModels
from classifier.features.surface_features import FEATURE_NAMES
from classifier.model.answer_length import AnswerLength
from gateway.inference.classifier_versions import ActiveClassifier
from gateway.inference.escalation import ActiveProbes
from gateway.inference.router import RoutingService
from gateway.inference.routing_knobs import RoutingKnobFile
from tests.gateway.chats import chat
from tiers.catalog.catalog import CatalogInUse
from tiers.catalog.load import load_catalog
from tiers.catalog.pricing import predicted_costs

CATALOG = load_catalog("laptop")
TIERS = [spec.number for spec in CATALOG.tiers]
FINGERPRINTS = [CATALOG.tier_fingerprint(number) for number in TIERS]


@pytest.fixture
def classifier(tmp_path: Path) -> ActiveClassifier:
    found = ActiveClassifier(tmp_path / "classifier", CATALOG.fingerprint)
    found.load()
    return found


@pytest.fixture
def probes(tmp_path: Path, classifier: ActiveClassifier) -> ActiveProbes:
    return ActiveProbes(tmp_path / "probes", CatalogInUse(CATALOG), RoutingKnobFile(), classifier.use_lengths)


def measured(
    classifier: ActiveClassifier, per_tier: list[float], *, fingerprints: list[str] = FINGERPRINTS
) -> EvidenceModels:
    """Answers of `per_tier` tokens each, twice as many for every doubling of the prompt's characters."""
    model, features = classifier.model, len(FEATURE_NAMES)
    coef = np.zeros((features + model.encoder.dim, len(TIERS)), np.float32)
    coef[FEATURE_NAMES.index("log_chars")] = 1.0
    zero = np.zeros(features, np.float32)
    lengths = AnswerLength(
        model.encoder_hash,
        TIERS,
        mean=zero,
        scale=zero + 1,
        coef=coef,
        bias=np.log(np.asarray(per_tier, np.float32)),
        smear=np.ones(len(TIERS), np.float32),
        bounds=np.asarray([[0.0] * len(TIERS), [1e6] * len(TIERS)], np.float32),
    )
    return EvidenceModels("known", "no_worse", [], lengths, fingerprints)


def decision(classifier: ActiveClassifier, text: str = "Why is the sky blue?") -> Decision:
    return RoutingService(CATALOG, {}, classifier, None).route(chat(text))


def test_a_longer_predicted_answer_costs_more_and_without_lengths_the_catalogue_says(
    classifier: ActiveClassifier, probes: ActiveProbes
) -> None:
    prior = decision(classifier)
    assert prior.inputs.prediction.predicted_tokens == []
    probes.use(measured(classifier, [1.0, 1.0, 1.0, 1.0]))
    short, long = decision(classifier), decision(classifier, "Why is the sky blue? " * 5)
    assert short.inputs.prediction.predicted_tokens == pytest.approx([20.0] * 4, abs=0.01)  # of twenty characters
    assert long.inputs.prediction.predicted_tokens == pytest.approx([104.0] * 4, abs=0.01)
    for number in TIERS:
        price = CATALOG.tier(number).price.output_usd_per_million
        assert long.inputs.costs[number - 1] >= short.inputs.costs[number - 1] + 84 * price / 1e6 - 1e-9
    assert short.inputs.costs != prior.inputs.costs


@pytest.mark.parametrize("per_tier", [[5000.0, 1.0, 1.0, 0.1], [1.0, 1.0, 1.0, 1.0], [0.01, 3.0, 0.01, 900.0]])
def test_costs_never_fall_with_the_tier_whatever_is_predicted(
    classifier: ActiveClassifier, probes: ActiveProbes, per_tier: list[float]
) -> None:
    probes.use(measured(classifier, per_tier))
    costs = decision(classifier).inputs.costs
    assert all(lower <= higher for lower, higher in pairwise(costs))


def test_a_tier_that_answers_otherwise_than_when_measured_keeps_the_catalogues_length(
    classifier: ActiveClassifier, probes: ActiveProbes
) -> None:
    probes.use(measured(classifier, [9.0] * 4, fingerprints=["another", *FINGERPRINTS[1:]]))
    inputs = decision(classifier).inputs
    assert inputs.prediction.predicted_tokens[0] is None
    assert inputs.costs[0] == predicted_costs(CATALOG, 9, None)[0]


def test_lengths_outlive_a_change_of_version_and_not_one_of_encoder(
    classifier: ActiveClassifier, probes: ActiveProbes
) -> None:
    probes.use(measured(classifier, [9.0] * 4))
    classifier.load()
    assert decision(classifier).inputs.prediction.predicted_tokens != []
    other = measured(classifier, [9.0] * 4)
    assert other.lengths is not None
    other.lengths.encoder = "another"
    probes.use(other)
    assert decision(classifier).inputs.prediction.predicted_tokens == []
