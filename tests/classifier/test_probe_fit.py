"""Probes fitted on outcomes: they find what the evidence tells, are calibrated, and promise nothing else."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from classifier.errors import TrainingDataError
from classifier.outcome_folder import MANIFEST, OutcomeFolder
from classifier.probe_artefact import load_probes
from classifier.registry import ArtefactRegistry
from classifier.training.cascade import Pair, cascade_curves
from classifier.training.metrics import auc, calibration_slope
from classifier.training.probe_command import ProbesMade, make_probes
from tests.classifier.synthetic_evidence import synthetic_folder

STRONGEST = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ProbesMade:
    root = tmp_path_factory.mktemp("probes")
    synthetic_folder(root / "outcomes")
    return make_probes(root / "outcomes", root / "registry", STRONGEST, promote=True, seed=0)


def test_every_stage_adds_what_it_sees(made: ProbesMade) -> None:
    (correct,) = [tier for tier in made.report.tiers if tier.label == "correct"]
    scores = {score.stage: score for score in correct.stages}
    assert scores["stage 1"].auc_in_task < 0.65
    assert scores["stages 1+2"].more_in_task_interval[0] > 0.02
    assert scores["stages 1+2+3, opening"].auc_in_task > scores["stages 1+2"].auc_in_task + 0.02
    assert scores["stages 1+2+3, whole"].auc_in_task > scores["stages 1+2+3, opening"].auc_in_task
    assert all(score.ece < score.ece_band + 0.02 for stage, score in scores.items() if stage != "shipped")


def test_the_kept_probe_is_calibrated_on_prompts_that_it_has_not_seen(made: ProbesMade, tmp_path: Path) -> None:
    probes = load_probes(ArtefactRegistry(made.folder.parent).current())
    probe = probes.probe(1, "f1")
    assert probe is not None
    assert probes.label == "no_worse"
    fresh = synthetic_folder(tmp_path, n=1500, seed=7).load_common()
    outcomes, failed = fresh[1], ~fresh[STRONGEST].correct
    logits = [probe.after_prefill(state, [0.6] * 4) for state in outcomes.state]
    after = [probe.after_answer(whole, z) for whole, z in zip(outcomes.whole, logits, strict=True)]
    p = np.asarray([probe.p_ok(z, [0.6] * 4)[0] for z in after])
    y = (outcomes.correct | failed).astype(float)
    assert 0.75 < calibration_slope(y, p) < 1.3
    assert float(auc(y, p)[0]) > 0.75


def test_a_cascade_with_evidence_beats_choosing_by_the_prompt(made: ProbesMade) -> None:
    (cascade,) = made.report.cascades
    curves = {curve.name: curve for curve in cascade.curves}
    assert curves["stages 1+2+3, whole"].gain_interval[0] > 0
    assert curves["stage 1"].gain == 0
    assert cascade.strong_accuracy > 0.9 > cascade.weak_accuracy


def test_lengths_are_predicted_from_what_stage_1_sees(made: ProbesMade) -> None:
    for length in made.report.lengths:
        assert length.r_squared_of_log > 0.7
        assert length.absolute_error < 0.6 * length.absolute_error_of_mean
    lengths = load_probes(made.folder).lengths
    assert lengths is not None
    assert lengths.tiers == [1, 4]


def test_evidence_that_tells_nothing_promises_nothing(tmp_path: Path) -> None:
    folder = synthetic_folder(tmp_path / "outcomes", n=400, seed=3)
    (shard,) = (tmp_path / "outcomes").glob("tier-1-*.safetensors")
    outcomes = folder.load(1)
    shard.unlink()
    shuffled = np.random.default_rng(0).permutation(len(outcomes))
    folder.append(1, msgspec.structs.replace(outcomes, correct=outcomes.correct[shuffled]))
    report = make_probes(tmp_path / "outcomes", tmp_path / "registry", STRONGEST, promote=False, seed=0).report
    for score in report.tiers[0].stages:
        assert score.auc_in_task_interval[0] <= 0.5
    assert not (tmp_path / "registry" / "current.json").exists()


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


def test_a_cascade_pays_for_what_it_throws_away() -> None:
    weak, strong = np.asarray([1.0, 0.0]), np.ones(2)
    spent = {"prompt": np.zeros(2), "state": np.full(2, 0.1), "opening": np.full(2, 0.2), "whole": np.ones(2)}
    pair = Pair(weak, strong, np.ones(2), np.full(2, 10.0), spent)  # type: ignore[arg-type]
    gain = np.asarray([0.0, 1.0])
    ways = {"p": ("prompt", gain), "w": ("whole", gain), "back": ("prompt", -gain)}
    prompt, whole, backwards = cascade_curves(pair, ways, "p", seed=0)  # type: ignore[arg-type]
    # One of two goes on: (1 + 10) / 2 before anything was computed, (1 + 1 + 10) / 2 after a whole answer.
    assert [point.cost_usd for point in prompt.points] == [1.0, 5.5, 10.0]
    assert [point.cost_usd for point in whole.points] == [1.0, 6.0, 11.0]
    assert [point.accuracy for point in whole.points] == [0.5, 1.0, 1.0]
    assert (prompt.parity_cost, whole.parity_cost, backwards.parity_cost) == (0.55, 0.6, 1.0)
    assert backwards.gain < whole.gain < 0
