"""Artefacts that must not serve are refused, each with its reason."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from classifier.acceptance import accepted_artefact
from classifier.artefact import default_artefact
from classifier.errors import ArtefactError
from classifier.training.train import Candidate


@pytest.fixture
def copied(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / tiny_folder.name))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def poison(folder: Path, name: str, value: float) -> None:
    """Put `value` into a tensor, with a manifest that vouches for it."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[name].reshape(-1)[0] = value
    save_file(tensors, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(folder, lambda manifest: manifest["files"].update({"model.safetensors": digest}))


def test_the_artefact_that_ships_is_accepted() -> None:
    assert accepted_artefact(default_artefact(), tiers=4).manifest.tiers == 4


@pytest.mark.parametrize("name", ["model.safetensors", "base.safetensors"])
def test_a_file_that_was_cut_short_is_refused(copied: Path, name: str) -> None:
    blob = (copied / name).read_bytes()
    (copied / name).write_bytes(blob[: len(blob) // 2])
    with pytest.raises(ArtefactError, match=f"{name} was changed or cut short"):
        accepted_artefact(copied)


def test_a_file_that_is_gone_is_refused(copied: Path) -> None:
    (copied / "base.safetensors").unlink()
    with pytest.raises(ArtefactError, match=r"base\.safetensors cannot be read"):
        accepted_artefact(copied)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["heads.coef", "heads.bias", "memory.weights", "encoder.tree_value"])
def test_weights_that_are_not_finite_are_refused_by_name(copied: Path, name: str, value: float) -> None:
    poison(copied, name, value)
    with pytest.raises(ArtefactError, match=f"{name} holds 1 numbers that are not finite"):
        accepted_artefact(copied)


def test_trees_that_a_walk_would_not_come_out_of_are_refused(copied: Path) -> None:
    poison(copied, "encoder.tree_right", 0)
    with pytest.raises(ArtefactError, match=r"are no trees over .* Train it again"):
        accepted_artefact(copied)


def test_outcomes_that_nobody_observed_are_no_damage_and_impossible_ones_are(copied: Path) -> None:
    poison(copied, "memory.labels", np.nan)
    accepted_artefact(copied)
    poison(copied, "memory.labels", 2.0)
    with pytest.raises(ArtefactError, match=r"memory\.labels holds probabilities outside"):
        accepted_artefact(copied)


def test_other_surface_features_than_this_programs_are_refused(copied: Path) -> None:
    edit(copied, lambda manifest: manifest.update(feature_names=["only_one"]))
    with pytest.raises(ArtefactError, match="surface features"):
        accepted_artefact(copied)


def test_for_another_number_of_tiers_than_the_catalogues_it_is_a_prior_and_never_measured(
    copied: Path, tiny: Candidate
) -> None:
    assert accepted_artefact(copied, "ours", tiers=3).kind == "prior"
    with pytest.raises(ArtefactError, match="it is for 4 tiers, the catalogue has 3"):
        accepted_artefact(copied, tiny.model.manifest.catalogue_fingerprint, tiers=3)


def test_another_catalogues_outcomes_are_a_prior_unless_that_is_not_wanted(copied: Path, tiny: Candidate) -> None:
    assert accepted_artefact(copied, "ours").kind == "prior"
    with pytest.raises(ArtefactError, match="a prior is not wanted here"):
        accepted_artefact(copied, "ours", must_be_measured=True)
    measured = tiny.model.manifest.catalogue_fingerprint
    assert accepted_artefact(copied, measured, must_be_measured=True).kind == "measured"


def swap_parameters(manifest: dict[str, Any]) -> None:
    points = manifest["curves"]["lambda_rule"]
    points[1]["parameter"], points[-1]["parameter"] = points[-1]["parameter"], points[1]["parameter"]


def not_a_number(manifest: dict[str, Any]) -> None:
    manifest["curves"]["tau_rule"][3]["no_worse"] = 1.5


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (swap_parameters, "do not ascend"),
        (not_a_number, "outside 0 to 1"),
        (lambda manifest: manifest["curves"].update(tau_rule=[]), "no points"),
        (lambda manifest: manifest["curves"].update(default_quality_target=1.2), "quality target"),
        (lambda manifest: manifest.update(fallback={"threshold": 0.9, "tier": 7}), "fallback"),
        (lambda manifest: manifest["curves"].update(prices=[4.0, 3.0, 2.0, 1.0]), "not fall with the tier"),
    ],
)
def test_a_policy_that_breaks_its_promise_is_refused(
    copied: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    edit(copied, change)
    with pytest.raises(ArtefactError, match=reason):
        accepted_artefact(copied)


def test_a_rule_by_which_a_higher_target_lowers_a_tier_is_refused(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("classifier.acceptance.lambda_for", lambda points, target: target)
    with pytest.raises(ArtefactError, match="not monotone: by lambda_rule"):
        accepted_artefact(copied)
