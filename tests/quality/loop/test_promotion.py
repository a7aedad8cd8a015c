"""Promotion: only a significant gain on unseen rows counts, and every guard can say no."""

from pathlib import Path

import numpy as np
import pytest
from tiny_classifier import base_artefact

from classifier.artefact import load_artefact, load_base
from classifier.heads import Heads
from classifier.outcome_model import OutcomeModel
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
