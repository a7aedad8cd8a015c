"""Artefacts that must not serve are refused, each with its reason."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from classifier.errors import ArtefactError
from classifier.features.surface_features import FEATURE_NAMES
from classifier.model.learned import RefittedClasses
from classifier.registry.acceptance import accepted_artefact
from classifier.registry.artefact import (
    default_artefact,
    load_artefact,
    load_manifest,
    load_model_tensors,
    save_artefact,
)
from classifier.training.recipes.train_static import Candidate


@pytest.fixture
def copied(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / tiny_folder.name))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def poison(folder: Path, name: str, value: float) -> None:
    """Put `value` into a tensor, with matching hashes in the manifest."""
    path = folder / "weights.safetensors"
    tensors = load_file(path)
    tensors[name].reshape(-1)[0] = value
    save_file(tensors, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(folder, lambda manifest: manifest["files"].update({"weights.safetensors": digest}))


def test_the_artefact_that_ships_is_accepted() -> None:
    assert accepted_artefact(default_artefact(), tiers=4).manifest.tiers == 4


def test_a_file_that_was_cut_short_is_refused(copied: Path) -> None:
    path = copied / "weights.safetensors"
    blob = path.read_bytes()
    path.write_bytes(blob[: len(blob) // 2])
    with pytest.raises(ArtefactError, match=r"weights\.safetensors: SHA-256 is .*changed or cut short"):
        accepted_artefact(copied)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["encoder.idf", "encoder.table_scale"])
def test_weights_that_are_not_finite_are_refused_by_name(copied: Path, name: str, value: float) -> None:
    poison(copied, name, value)
    with pytest.raises(ArtefactError, match=f"{name} holds 1 numbers that are not finite"):
        accepted_artefact(copied)


def test_probabilities_that_are_none_are_refused(copied: Path) -> None:
    inputs = 4 + load_artefact(copied).encoder.dim + len(FEATURE_NAMES)
    head = RefittedClasses(np.full((4, 3), 1.5, np.float32), np.zeros((inputs, 4), np.float32))
    manifest = msgspec.structs.replace(load_manifest(copied), version="impossible")
    folder = save_artefact(copied.parent, manifest, load_model_tensors(copied) | head.tensors())
    with pytest.raises(ArtefactError, match=r"refitted_classes\.table holds probabilities outside"):
        accepted_artefact(folder)


def test_other_surface_features_than_this_programs_are_refused(copied: Path) -> None:
    edit(copied, lambda manifest: manifest.update(feature_names=["only_one"]))
    with pytest.raises(ArtefactError, match="surface features"):
        accepted_artefact(copied)


def learn(folder: Path, fingerprint: str, table: list[list[float]]) -> None:
    """Make a version as retraining on the outcomes of the catalogue of that fingerprint does."""
    edit(folder, lambda manifest: manifest.update(catalogue_fingerprint=fingerprint, adequacy=table))


TABLE = [[0.9, 0.95, 0.99], [0.5, 0.9, 0.95], [0.2, 0.5, 0.9], [0.1, 0.2, 0.6]]


def test_what_was_learned_of_the_catalogue_is_measured_and_of_another_a_prior(copied: Path) -> None:
    learn(copied, "ours", TABLE)
    assert accepted_artefact(copied, "ours", tiers=4, must_be_measured=True).kind == "measured"
    assert accepted_artefact(copied, "others").kind == "prior"
    with pytest.raises(ArtefactError, match="a prior is not wanted here"):
        accepted_artefact(copied, "others", must_be_measured=True)
    with pytest.raises(ArtefactError, match="it learned of 4 tiers, the catalogue has 3"):
        accepted_artefact(copied, "ours", tiers=3, must_be_measured=True)


def test_heads_of_an_earlier_release_that_were_trained_for_the_catalogue_load_and_are_a_prior(
    copied: Path, tiny: Candidate
) -> None:
    fingerprint = tiny.model.manifest.catalogue_fingerprint
    edit(copied, lambda manifest: manifest.update(fallback={"threshold": 0.9, "tier": 7}))
    assert accepted_artefact(copied, fingerprint, tiers=4).kind == "prior"
    with pytest.raises(ArtefactError, match="a prior is not wanted here"):
        accepted_artefact(copied, fingerprint, tiers=4, must_be_measured=True)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (TABLE[:3], "has 3 rows"),
        ([*TABLE[:3], [0.5]], r"of \[1, 3\] tiers"),
        ([[1.2, 0.5, 0.5], *TABLE[1:]], "outside 0 to 1"),
    ],
)
def test_a_table_that_is_none_is_refused(copied: Path, table: list[list[float]], reason: str) -> None:
    learn(copied, "ours", table)
    with pytest.raises(ArtefactError, match=reason):
        accepted_artefact(copied, "ours")
