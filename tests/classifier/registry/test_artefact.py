"""The artefact folder and the registry of versions."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from classifier.errors import ArtefactError
from classifier.features.routing_input import routing_input_of_text
from classifier.model.learned import RefittedClasses
from classifier.registry import artefact as artefact_module
from classifier.registry.acceptance import accepted_artefact
from classifier.registry.artefact import (
    default_artefact,
    drop_rows,
    load_artefact,
    load_manifest,
    load_model_tensors,
    save_artefact,
)
from classifier.registry.registry import ArtefactRegistry
from classifier.training.recipes.train_static import Candidate

EARLIER = Path(__file__).parents[2] / "stored_data" / "written_at_0019" / "classifier"


@pytest.fixture
def copied(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / tiny_folder.name))


def edit_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_loaded_artefact_encodes_as_the_trained_model_does(tiny: Candidate) -> None:
    prompt = routing_input_of_text("What is the tensor lattice of the house?")
    loaded, trained = load_artefact(tiny.folder).encode(prompt), tiny.model.encode(prompt)
    assert [part.tobytes() for part in loaded] == [part.tobytes() for part in trained]


def test_the_shipped_artefact_loads_is_small_and_contains_no_text() -> None:
    folder = default_artefact()
    files = list(folder.iterdir())
    assert sorted(f.name for f in files) == ["manifest.json", "weights.safetensors"]
    assert sum(f.stat().st_size for f in files) < 8 * 2**20
    model = load_artefact(folder)
    assert model.manifest.tiers == 4
    assert set(load_model_tensors(folder)) == {
        "encoder.words",
        "encoder.pairs",
        "encoder.idf",
        "encoder.table",
        "encoder.table_scale",
    }


def test_a_flipped_byte_is_noticed(copied: Path) -> None:
    blob = bytearray((copied / "weights.safetensors").read_bytes())
    blob[-1] ^= 1
    (copied / "weights.safetensors").write_bytes(blob)
    with pytest.raises(ArtefactError, match=r"weights\.safetensors: SHA-256 is"):
        load_artefact(copied)


def test_a_missing_file_is_named(copied: Path) -> None:
    (copied / "weights.safetensors").unlink()
    with pytest.raises(ArtefactError, match=r"weights\.safetensors cannot be read"):
        load_artefact(copied)


def test_a_folder_without_a_manifest_is_no_artefact(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"manifest\.json does not exist"):
        load_artefact(tmp_path)


def test_another_schema_version_is_refused_with_both_numbers(copied: Path) -> None:
    edit_manifest(copied, schema_version=99)
    with pytest.raises(ArtefactError, match="schema version 99; this program reads 1 and 2"):
        load_artefact(copied)


def test_a_manifest_that_is_cut_short_is_refused(copied: Path) -> None:
    text = (copied / "manifest.json").read_text()
    (copied / "manifest.json").write_text(text[: len(text) // 2])
    with pytest.raises(ArtefactError, match="Train the artefact again"):
        load_artefact(copied)


def test_other_surface_features_than_this_programs_are_refused(copied: Path) -> None:
    edit_manifest(copied, feature_names=["only_one"])
    with pytest.raises(ArtefactError, match="trained on 1 surface features"):
        load_artefact(copied)


def test_tensors_of_the_wrong_shape_are_refused(copied: Path) -> None:
    manifest = msgspec.structs.replace(load_manifest(copied), version="wrong")
    head = RefittedClasses(np.full((4, 3), 0.5, np.float32), np.zeros((9, 4), np.float32))
    folder = save_artefact(copied.parent, manifest, load_model_tensors(copied) | head.tensors())
    with pytest.raises(ArtefactError, match=r"learned head has shape \(9, 3\), expected \(98, 3\)"):
        load_artefact(folder)


@pytest.fixture
def earlier(tmp_path: Path) -> ArtefactRegistry:
    """A registry of an earlier release, which kept encoded prompts in both files of a version."""
    return ArtefactRegistry(Path(shutil.copytree(EARLIER, tmp_path / "earlier")))


def test_a_version_of_an_earlier_release_encodes_the_same_without_the_prompts_that_it_kept(
    earlier: ArtefactRegistry,
) -> None:
    folder, prompt = earlier.current(), routing_input_of_text("What is the tensor lattice of the house?")
    kept = load_file(folder / "model.safetensors")["memory.vectors"].tobytes()
    before = load_artefact(folder).encode(prompt).embedding.tobytes()

    assert drop_rows(earlier) == [folder.name]

    assert [path.name for path in sorted(folder.iterdir())] == ["manifest.json", "weights.safetensors"]
    assert kept not in (folder / "weights.safetensors").read_bytes()
    assert (earlier.current(), accepted_artefact(folder).version) == (folder, folder.name)
    assert load_artefact(folder).encode(prompt).embedding.tobytes() == before
    assert drop_rows(earlier) == []


def test_what_an_interruption_left_of_kept_prompts_is_deleted_by_the_next_run(earlier: ArtefactRegistry) -> None:
    folder = earlier.current()
    left = (folder / "base.safetensors").read_bytes()
    drop_rows(earlier)
    (folder / "base.safetensors").write_bytes(left)

    drop_rows(earlier)

    assert not (folder / "base.safetensors").exists()


def test_a_version_that_cannot_be_read_is_named_after_the_others_are_rewritten(earlier: ArtefactRegistry) -> None:
    folder = earlier.current()
    broken = Path(shutil.copytree(folder, earlier.root / "a-broken"))
    (broken / "model.safetensors").write_bytes(b"cut")

    with pytest.raises(ArtefactError, match=r"a-broken/model\.safetensors: SHA-256"):
        drop_rows(earlier)

    assert not (folder / "base.safetensors").exists()


def test_a_learned_head_of_an_earlier_release_stays(earlier: ArtefactRegistry) -> None:
    folder, path = earlier.current(), earlier.current() / "model.safetensors"
    inputs = 4 + load_artefact(folder).encoder.dim + len(load_manifest(folder).feature_names)
    head = RefittedClasses(np.full((4, 3), 0.25, np.float32), np.ones((inputs, 4), np.float32))
    save_file(load_file(path) | head.tensors(), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edit_manifest(folder, files={"model.safetensors": digest, "base.safetensors": "any"})

    drop_rows(earlier)

    learned = load_artefact(folder).learned_head
    assert isinstance(learned, RefittedClasses)
    assert (learned.weights == 1).all()


def test_saving_the_same_version_twice_is_fine_and_another_content_is_not(tiny: Candidate, tmp_path: Path) -> None:
    manifest, model = load_manifest(tiny.folder), load_model_tensors(tiny.folder)
    first = save_artefact(tmp_path, manifest, model)
    assert save_artefact(tmp_path, manifest, model) == first
    with pytest.raises(ArtefactError, match="exists with other content"):
        save_artefact(tmp_path, msgspec.structs.replace(manifest, seed=5), model)
    assert [p.name for p in tmp_path.iterdir()] == [manifest.version]


def test_a_version_is_as_open_to_others_as_the_process_lets_its_files_be(tiny: Candidate, tmp_path: Path) -> None:
    """A gateway's are its user's alone: commands warned of each new version."""
    model = load_model_tensors(tiny.folder)
    before = os.umask(0o077)
    try:
        folder = save_artefact(tmp_path, load_manifest(tiny.folder), model)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())} == {0o700, 0o600}


def test_an_artefact_above_the_limit_is_not_written(
    tiny: Candidate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefact_module, "MAX_BYTES", 1000)
    with pytest.raises(ArtefactError, match="at most 1000"):
        save_artefact(tmp_path, load_manifest(tiny.folder), load_model_tensors(tiny.folder))
    assert list(tmp_path.iterdir()) == []


def registry_of(root: Path, *versions: str) -> ArtefactRegistry:
    for version in versions:
        (root / version).mkdir()
        (root / version / "manifest.json").write_text("{}")
    return ArtefactRegistry(root)


def test_promotion_moves_the_pointer_and_rollback_moves_it_back(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, "a", "b")
    registry.promote("a")
    registry.promote("b")
    assert (registry.current().name, registry.previous()) == ("b", "a")
    assert registry.rollback() == tmp_path / "a"
    assert (registry.current().name, registry.previous()) == ("a", "b")


def test_promoting_the_current_version_again_keeps_the_way_back(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, "a", "b")
    for version in ("a", "b", "b"):
        registry.promote(version)
    assert registry.previous() == "a"


def test_a_registry_without_a_promoted_version_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="names no current version"):
        registry_of(tmp_path, "a").current()


def test_there_is_nothing_to_roll_back_to_after_the_first_promotion(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, "a")
    registry.promote("a")
    with pytest.raises(ArtefactError, match="no previous version"):
        registry.rollback()


@pytest.mark.parametrize("version", ["missing", "../outside", ".hidden", ""])
def test_an_unknown_version_cannot_be_promoted(tmp_path: Path, version: str) -> None:
    registry = registry_of(tmp_path, "a")
    with pytest.raises(ArtefactError, match=r"there are a\."):
        registry.promote(version)
