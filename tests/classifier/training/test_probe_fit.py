"""Evidence models fitted on outcomes: they use the evidence and are calibrated."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from classifier.errors import TrainingDataError
from classifier.evidence import EVIDENCE_NAMES, load_probes
from classifier.registry.registry import ArtefactRegistry
from classifier.training.data.outcome_folder import MANIFEST, OutcomeFolder
from classifier.training.fitting.probes import Examples, fit_head, fit_judge
from classifier.training.metrics.metrics import auc, calibration_slope
from classifier.training.metrics.probe_evaluation import (
    AGREEMENT,
    ALONE,
    EVIDENCE,
    SHUFFLED,
    ProbesMade,
    make_probes,
)
from tests.classifier.training.synthetic_evidence import synthetic_folder

STRONGEST = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ProbesMade:
    root = tmp_path_factory.mktemp("probes")
    synthetic_folder(root / "outcomes")
    return make_probes(root / "outcomes", root / "registry", STRONGEST, promote=True, seed=0)


def test_evidence_and_agreement_add_what_they_tell_and_shuffled_evidence_adds_nothing(made: ProbesMade) -> None:
    (correct,) = [tier for tier in made.report.tiers if tier.tier == 1 and tier.label == "correct"]
    scores = {score.way: score for score in correct.ways}
    assert made.report.in_use == [1]
    assert scores[ALONE].auc_in_task < 0.7
    assert scores[EVIDENCE].more_in_task_interval[0] > 0.1
    assert scores[AGREEMENT].auc_in_task > scores[EVIDENCE].auc_in_task
    assert scores[SHUFFLED].more_in_task < 0.02
    assert all(scores[way].ece < scores[way].ece_band + 0.02 for way in (EVIDENCE, AGREEMENT))
    assert all(0.7 < scores[way].slope < 1.3 for way in (EVIDENCE, AGREEMENT))


def test_the_kept_model_is_calibrated_on_prompts_that_it_has_not_seen(made: ProbesMade, tmp_path: Path) -> None:
    models = load_probes(ArtefactRegistry(made.folder.parent).current())
    model = models.model(1, "f1")
    assert model is not None
    assert (models.label, model.spec.reads_agreement) == ("no_worse", True)
    fresh = synthetic_folder(tmp_path, n=1500, seed=7).load_common()
    outcomes, failed = fresh[1], ~fresh[STRONGEST].correct
    priors = outcomes.p_ok.tolist()
    p = np.asarray([model.p_ok(one, prior)[0] for one, prior in zip(outcomes.evidence, priors, strict=True)])
    y = (outcomes.correct | failed).astype(float)
    assert 0.75 < calibration_slope(y, p) < 1.3
    assert float(auc(y, p)[0]) > 0.75
    disagreed, agreed = model.p_ok_by_agreement(outcomes.evidence[0], priors[0])
    assert disagreed[0] < agreed[0]


def planted(n: int, coef: float, seed: int) -> Examples:
    """Examples of one tier whose label depends on the prompt as it says, and on one number of the evidence."""
    rng = np.random.default_rng(seed)
    evidence = rng.normal(size=(n, len(EVIDENCE_NAMES))).astype(np.float32)
    evidence[:, -2:] = 0
    prompt = rng.normal(size=(n, 1)).astype(np.float32)
    label = rng.random(n) < 1 / (1 + np.exp(-(prompt[:, 0] + coef * evidence[:, 3] - 0.5)))
    return Examples(evidence, prompt, label[:, None].astype(float), rng.integers(0, 2**62, size=n), np.ones(n))


def test_the_logistic_finds_planted_coefficients_and_is_deterministic() -> None:
    examples = planted(4000, 1.5, seed=0)
    head = fit_head(examples, seed=0)
    assert head.coef[3, 0] / head.scale[3] == pytest.approx(1.5, abs=0.15)
    assert np.abs(np.delete(head.coef[:, 0], 3)).max() < 0.15
    assert (head.before[0], head.bias[0]) == (pytest.approx(1.0, abs=0.1), pytest.approx(-0.5, abs=0.15))
    again = fit_head(examples, seed=0)
    assert all(np.array_equal(one, other) for one, other in zip(head, again, strict=True))


def test_few_rows_leave_the_prompts_probability_nearly_as_it_was() -> None:
    head = fit_head(planted(12, 0.0, seed=1), seed=0)
    assert head.before[0] == pytest.approx(1.0, abs=0.35)
    assert np.abs(head.coef).max() < 0.5


def test_noise_seldom_passes_for_evidence_and_costs_next_to_nothing_when_it_does() -> None:
    kept = []
    for seed in range(12):
        judge = fit_judge(planted(200, 0.0, seed=seed), seed=0)
        if judge is None:
            continue
        fresh = planted(2000, 0.0, seed=1000 + seed)
        z, y = judge.logits(fresh.evidence, fresh.prompt)[:, 0], fresh.labels[:, 0]
        alone = fresh.prompt[:, 0] - 0.5
        kept.append(float((np.logaddexp(0, z) - y * z).mean() - (np.logaddexp(0, alone) - y * alone).mean()))
    assert len(kept) <= 4
    assert all(lost < 0.03 for lost in kept)


def test_an_evidence_model_is_kept_only_where_evidence_is_worth_something(tmp_path: Path) -> None:
    synthetic_folder(tmp_path / "outcomes", n=400, seed=3, worth=0.0)
    made = make_probes(tmp_path / "outcomes", tmp_path / "registry", STRONGEST, promote=False, seed=0)
    assert load_probes(made.folder).tiers == {}
    assert made.report.in_use == []
    assert not (tmp_path / "registry" / "current.json").exists()


def test_lengths_are_predicted_from_what_stage_1_sees(made: ProbesMade) -> None:
    for length in made.report.lengths:
        assert length.r_squared_of_log > 0.7
        assert length.absolute_error < 0.6 * length.absolute_error_of_mean
    lengths = load_probes(made.folder).lengths
    assert lengths is not None
    assert lengths.tiers == [1, 4]


def test_too_few_outcomes_are_refused(tmp_path: Path) -> None:
    synthetic_folder(tmp_path / "outcomes", n=80)
    with pytest.raises(TrainingDataError, match="80 prompts that every tier answered; 100 are needed"):
        make_probes(tmp_path / "outcomes", tmp_path / "registry", STRONGEST, promote=True, seed=0)


def test_a_folder_of_another_collection_is_not_mixed_with_this_one(tmp_path: Path) -> None:
    folder = synthetic_folder(tmp_path, n=10)
    other = msgspec.structs.replace(folder.manifest, seed=2)
    with pytest.raises(TrainingDataError, match=r"another collection \(other seed\)"):
        OutcomeFolder.begun(tmp_path, other)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(TrainingDataError, match="Collect into another folder"):
        OutcomeFolder.opened(tmp_path)
