"""Promotion: only a significant gain on unseen rows counts, and every guard can say no."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_classifier import base_artefact

from classifier.artefact import load_artefact, load_base
from classifier.decision import Prediction
from classifier.heads import Heads
from classifier.memory import Nearby
from classifier.outcome_model import EncodedTurn, OutcomeModel, Outcomes
from classifier.training.encoded_rows import EncodedRows
from quality.promotion import judge_candidate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_artefact(tmp_path_factory.mktemp("shipped"))


@pytest.fixture(scope="module")
def model(folder: Path) -> OutcomeModel:
    return load_artefact(folder)


@pytest.fixture(scope="module")
def unseen(folder: Path) -> EncodedRows:
    """Rows that trained none of the heads, as verified traffic of tier 1: its outcome and the strongest tier's."""
    base = EncodedRows.from_tensors(load_base(folder))
    held = base.take(base.held)
    held.labels[:, 1:3] = np.nan
    return held


def _shifted(model: OutcomeModel, logits: float) -> OutcomeModel:
    """`model` with tier 1's logit moved by `logits`."""
    old = model.heads
    bias = old.bias.copy()
    bias[0] += logits
    heads = Heads(old.mean, old.scale, old.coef, bias)
    return OutcomeModel(model.manifest, model.encoder, heads, model.memory)


def _none_of(rows: EncodedRows) -> EncodedRows:
    return rows.take(np.zeros(len(rows), np.bool_))


def test_a_model_that_routes_better_is_promoted(model: OutcomeModel, unseen: EncodedRows) -> None:
    # The incumbent does not believe in tier 1, and so always pays for the strongest.
    judgement = judge_candidate(model, _shifted(model, -20.0), unseen, _none_of(unseen))

    assert judgement.promote, judgement.reasons
    assert judgement.gain is not None
    assert judgement.gain.low > 0


def test_a_model_that_changes_nothing_is_refused_for_want_of_gain(model: OutcomeModel, unseen: EncodedRows) -> None:
    judgement = judge_candidate(model, model, unseen, _none_of(unseen))

    [reason] = judgement.reasons
    assert reason.startswith(f"gain on {len(unseen)} newer rows is +0.0000")


def test_a_worse_model_is_refused(model: OutcomeModel, unseen: EncodedRows) -> None:
    judgement = judge_candidate(_shifted(model, -20.0), model, unseen, _none_of(unseen))

    assert judgement.gain is not None
    assert judgement.gain.high < 0
    assert not judgement.promote


def test_a_model_that_treats_all_prompts_alike_is_refused_by_its_shuffled_self(
    model: OutcomeModel, unseen: EncodedRows
) -> None:
    # Always taking tier 4 beats an incumbent that always takes tier 1; but that takes no look at the prompt.
    judgement = judge_candidate(_shifted(model, -20.0), _shifted(model, 20.0), unseen, _none_of(unseen))

    assert judgement.gain is not None
    assert judgement.gain.low > 0
    assert any("shuffled control" in reason for reason in judgement.reasons)


def test_an_overconfident_model_is_refused_unless_the_incumbent_is_worse(
    model: OutcomeModel, unseen: EncodedRows
) -> None:
    sure = _shifted(model, 4.0)

    against_good = judge_candidate(sure, model, unseen, _none_of(unseen))
    against_worse = judge_candidate(sure, _shifted(model, 8.0), unseen, _none_of(unseen))

    assert any(reason.startswith("tier 1: calibration error") for reason in against_good.reasons)
    assert not any("calibration" in reason for reason in against_worse.reasons)


def test_losing_on_the_base_data_is_a_reason_of_its_own(model: OutcomeModel, unseen: EncodedRows) -> None:
    judgement = judge_candidate(_shifted(model, -20.0), model, _none_of(unseen), unseen)

    assert any(reason.startswith("loses on the base data") for reason in judgement.reasons)
    assert any(reason.startswith("0 newer held-out rows") for reason in judgement.reasons)


def test_a_dearer_model_is_refused_unless_its_gain_pays(model: OutcomeModel, unseen: EncodedRows) -> None:
    """The candidate pays for the strongest tier everywhere."""
    judgement = judge_candidate(_shifted(model, -20.0), model, unseen, unseen)

    assert judgement.dearer is not None
    assert judgement.dearer.low > 0.1
    assert [reason.split(" on the ")[1][:9] for reason in judgement.reasons if reason.startswith("costs +")] == [
        "newer row",
        "base data",
    ]
    paid = judge_candidate(_shifted(model, -20.0), _shifted(model, 20.0), unseen, _none_of(unseen))
    assert paid.dearer is not None
    assert paid.dearer.low > 0.1
    assert not any(reason.startswith("costs +") for reason in paid.reasons)


class _Changed(OutcomeModel):
    """A model that behaves as `like` but for what a test overrides."""

    def __init__(self, like: OutcomeModel) -> None:
        super().__init__(like.manifest, like.encoder, like.heads, like.memory)


class _RuinsOneKind(_Changed):
    """Believes in tier 1 for all prompts of `cluster`."""

    cluster = -1

    def outcomes(self, features: Any, embedding: Any, word_logits: Any, own_rows: Any = None) -> Outcomes:
        found = super().outcomes(features, embedding, word_logits, own_rows)
        found.p[self.clusters.nearest(embedding) == self.cluster, 0] = 0.995
        return found


def test_a_model_that_ruins_one_kind_of_prompts_is_refused_though_the_others_gain(
    model: OutcomeModel, unseen: EncodedRows
) -> None:
    unseen = unseen.joined(unseen).joined(unseen)
    nearest = model.clusters.nearest(unseen.embedding)
    sizes = np.bincount(nearest)
    large = [k for k in range(len(sizes)) if sizes[k] >= 50]
    hard = min(large, key=lambda k: float(unseen.labels[nearest == k, 0].mean()))
    ruins = _RuinsOneKind(model)
    ruins.cluster = hard

    judgement = judge_candidate(ruins, model, unseen, _none_of(unseen))

    worst = judgement.clusters[0]
    assert (worst.cluster, worst.rows) == (hard, sizes[hard])
    assert [r for r in judgement.reasons if r.startswith(f"loses on the {worst.rows} rows of cluster {hard}")]
    assert not any("of cluster" in reason for reason in judge_candidate(model, model, unseen, unseen).reasons)


class _Slow(_Changed):
    def prediction(self, turn: EncodedTurn, nearby: Nearby) -> Prediction:
        for _ in range(100):
            super().prediction(turn, nearby)
        return super().prediction(turn, nearby)


def test_a_model_that_decides_slowly_is_refused(model: OutcomeModel, unseen: EncodedRows) -> None:
    slow = judge_candidate(_Slow(model), model, unseen, _none_of(unseen))
    fast = judge_candidate(model, _Slow(model), unseen, _none_of(unseen))

    assert any(reason.startswith("a decision takes") for reason in slow.reasons)
    assert not any(reason.startswith("a decision takes") for reason in fast.reasons)


def test_as_soon_as_there_are_probes_only_they_compare(model: OutcomeModel, unseen: EncodedRows, folder: Path) -> None:
    """Where the two disagree: by sampled traffic the candidate wins, by probes it does not."""
    probes = EncodedRows.from_tensors(load_base(folder))
    probes = probes.take(probes.held)
    mixed = unseen.joined(probes)
    few = unseen.joined(probes.take(np.arange(40)))

    on_probes = judge_candidate(model, _shifted(model, -20.0), mixed, _none_of(unseen))
    on_all = judge_candidate(model, _shifted(model, -20.0), few, _none_of(unseen))

    assert (on_probes.compared_on, on_probes.new_rows) == ("probes", len(probes))
    assert (on_all.compared_on, on_all.new_rows) == ("verified rows", len(unseen) + 40)


def test_rows_count_with_their_weights(model: OutcomeModel, unseen: EncodedRows) -> None:
    incumbent = _shifted(model, -20.0)
    gains = []
    for weight in (1.0, 100.0):
        bad = (unseen.labels[:, 0] < 0.5).astype(np.float32)
        weighted = replace(unseen, weights=1.0 + (weight - 1.0) * bad)
        gain = judge_candidate(model, incumbent, weighted, _none_of(unseen)).gain
        assert gain is not None
        gains.append(gain.value)
    assert gains[1] < gains[0]


def test_rows_that_trained_the_candidate_are_compared_by_predictions_made_without_them(
    model: OutcomeModel, unseen: EncodedRows
) -> None:
    """As bad as predicted elsewhere, however well the candidate itself knows them."""
    heads = len(model.manifest.heads)
    distrust = np.full((len(unseen), heads), 0.005, np.float32)

    judgement = judge_candidate(model, model, unseen, _none_of(unseen), predicted=distrust)

    assert judgement.gain is not None
    assert judgement.gain.high < 0
