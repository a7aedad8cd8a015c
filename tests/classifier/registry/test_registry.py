"""Canaries and lineages in the registry of versions."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from classifier.errors import ArtefactError
from classifier.policy.experiment_split import Arm, Split
from classifier.registry.artefact import load_manifest, load_model_tensors, save_artefact
from classifier.registry.registry import ArtefactRegistry, Canary
from classifier.registry.version_list import lineage
from classifier.training.recipes.train_static import Candidate


def registry_of(root: Path, *versions: str) -> ArtefactRegistry:
    for version in versions:
        (root / version).mkdir()
        (root / version / "manifest.json").write_text("{}")
    registry = ArtefactRegistry(root)
    registry.promote(versions[0])
    return registry


def test_a_canary_and_the_current_version_coexist_until_it_is_stopped(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, "a", "b")
    assert registry.canary() is None
    registry.start_canary("b", 0.1)
    assert registry.canary() == Canary(version="b", share=0.1)
    assert (registry.current().name, registry.previous()) == ("a", None)
    assert registry.stop_canary() == "b"
    assert registry.canary() is None
    assert registry.stop_canary() is None


@pytest.mark.parametrize("end", ["promote", "rollback"])
def test_a_promotion_or_a_rollback_ends_the_trial(tmp_path: Path, end: str) -> None:
    registry = registry_of(tmp_path, "a", "b", "c")
    registry.promote("b")
    registry.start_canary("c", 0.5)
    if end == "promote":
        registry.promote("c")
        assert (registry.current().name, registry.previous()) == ("c", "b")
    else:
        registry.rollback()
        assert registry.current().name == "a"
    assert registry.canary() is None


def test_promoting_the_current_version_ends_a_trial_against_it(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, "a", "b")
    registry.promote("b")
    registry.start_canary("a", 0.5)
    registry.promote("b")
    assert (registry.current().name, registry.previous(), registry.canary()) == ("b", "a", None)


@pytest.mark.parametrize("version", ["", ".", "..", "../a", "a/../a", ".hidden", "a\0", "a" * 300])
def test_no_other_name_leads_to_a_folder(tmp_path: Path, version: str) -> None:
    with pytest.raises(ArtefactError, match="no artefact version"):
        registry_of(tmp_path, "a").folder(version)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_outside_nought_and_one_is_refused(tmp_path: Path, share: float) -> None:
    with pytest.raises(ArtefactError, match="must lie between 0 and 1"):
        registry_of(tmp_path, "a", "b").start_canary("b", share)


def test_the_current_version_and_an_unknown_one_are_no_canaries(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, "a")
    with pytest.raises(ArtefactError, match="serves already"):
        registry.start_canary("a", 0.5)
    with pytest.raises(ArtefactError, match="no artefact version"):
        registry.start_canary("z", 0.5)


def test_a_pointer_whose_canary_makes_no_sense_is_an_error(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, "a")
    (tmp_path / "current.json").write_text(json.dumps({"current": "a", "canary": {"version": 3}}))
    with pytest.raises(ArtefactError, match="canary"):
        registry.canary()


def descendant(tiny: Candidate, root: Path, version: str, parent: str | None) -> None:
    manifest = msgspec.structs.replace(load_manifest(tiny.folder), version=version, parent=parent)
    save_artefact(root, manifest, load_model_tensors(tiny.folder))


def test_a_line_of_descent_goes_back_to_the_first_version(tiny: Candidate, tmp_path: Path) -> None:
    for version, parent in (("a", None), ("b", "a"), ("c", "b")):
        descendant(tiny, tmp_path, version, parent)
    line = lineage(ArtefactRegistry(tmp_path), "c")
    assert [(one.version, one.parent, one.problem) for one in line] == [
        ("c", "b", None),
        ("b", "a", None),
        ("a", None, None),
    ]
    assert line[0].rows == tiny.model.manifest.counts["train"]


def test_a_missing_parent_ends_the_lineage_with_a_problem(tiny: Candidate, tmp_path: Path) -> None:
    descendant(tiny, tmp_path, "b", "lost")
    line = lineage(ArtefactRegistry(tmp_path), "b")
    assert [one.version for one in line] == ["b", "lost"]
    assert "no artefact version 'lost'" in (line[-1].problem or "")


def test_versions_that_are_each_others_parents_are_no_endless_line(tiny: Candidate, tmp_path: Path) -> None:
    descendant(tiny, tmp_path, "a", "b")
    descendant(tiny, tmp_path, "b", "a")
    line = lineage(ArtefactRegistry(tmp_path), "a")
    assert [one.version for one in line] == ["a", "b", "a"]
    assert "its own ancestor" in (line[-1].problem or "")


def test_an_experiment_that_began_first_leaves_room_for_the_shipped_version(tiny: Candidate, tmp_path: Path) -> None:
    shipped = tiny.folder
    registry = ArtefactRegistry(tmp_path / "registry")
    split = Split(experiment_id="e", share=0.5, a=Arm(tier=1), b=Arm(tier=2))
    registry.set_experiment(split)
    assert registry.current_or(shipped) == shipped
    seeded = registry.seed(shipped)
    assert seeded == registry.current() == registry.current_or(shipped) != shipped
    assert registry.experiment() == split


def test_versions_that_many_threads_promote_leave_a_pointer_that_can_be_read(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, "v1", "v2")
    start = threading.Barrier(4)

    def promote(version: str) -> None:
        start.wait()
        for _ in range(50):
            registry.promote(version)
            assert registry.current().name in ("v1", "v2")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(promote, ["v1", "v2", "v1", "v2"]))
    assert not list(tmp_path.glob(".*")), "a file of a write is left"
