"""What is known of a catalogue's tiers before its first request: what they are like, or what was measured."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from classifier.class_predictor import ClassPredictor, threshold_of
from classifier.complexity.classes import Complexity
from classifier.decision import PolicyInputs
from classifier.features.routing_input import routing_input_of_text
from classifier.local.cells import prior_table
from classifier.policy.decide import decide
from classifier.registry.artefact import default_artefact, load_artefact
from gateway.inference.class_prior import class_prior, tier_kinds
from quality.evaluation.everyday_outcomes import (
    OWN_FOLDER,
    SHIPPED,
    TaskClasses,
    read_outcomes,
    task_classes,
    write_outcomes,
)
from tiers import catalogs
from tiers.catalog.load import load_catalog, parse_catalog

SIMPLE, MEDIUM, COMPLEX, EXPERT = Complexity


def kinds(*tiers: dict[str, Any]) -> tuple[Complexity, ...]:
    entries = [{"name": f"t{place}", "number": place, **tier} for place, tier in enumerate(tiers, start=1)]
    return tier_kinds(parse_catalog({"name": "kinds", "tiers": entries}, "catalogue 'kinds'"))


def remote(model: str, **more: Any) -> dict[str, Any]:
    return {"url": "http://localhost:1/v1", "model": model, **more}


def test_the_shipped_tiers_are_what_their_classes_say() -> None:
    assert tier_kinds(load_catalog("laptop")) == tier_kinds(load_catalog("datacenter")) == tuple(Complexity)


def test_a_declared_class_counts_before_the_size_and_the_size_before_the_place() -> None:
    assert kinds(remote("m-8b"), remote("m-70b")) == (MEDIUM, COMPLEX)
    assert kinds(remote("m-8b", **{"class": "SIMPLE"}), remote("m-70b")) == (SIMPLE, COMPLEX)
    assert kinds(remote("mini"), remote("m-8b"), remote("max")) == (SIMPLE, MEDIUM, EXPERT)


def test_a_model_that_thinks_first_is_like_the_next_kind() -> None:
    policy = {"kind": "chain-of-thought", "budget_tokens": 500}
    plain, thinking = {"model": "m-70b.gguf"}, {"model": "m-70b.gguf", "policy": policy}
    assert kinds(plain, thinking) == (COMPLEX, EXPERT)


def test_the_laptop_catalogue_routes_by_its_measured_outcomes_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On the everyday tasks its tier 1 does as well as its tier 4, so an easy question has no reason to go up."""
    laptop = load_catalog("laptop")
    model = load_artefact(default_artefact(), laptop.fingerprint)
    predictor = ClassPredictor(model, class_prior(laptop, tmp_path))
    for text in ("What is the capital of France?", "Hi!", "Translate 'good morning' to Spanish"):
        given = routing_input_of_text(text)
        said = predictor.prediction(given, model.encode(given))
        target = threshold_of(None)
        decision = decide(
            PolicyInputs(prediction=said, costs=[1.0, 5.0, 30.0, 100.0], quality_target=target, tau=target)
        )
        assert decision.tier == 1
        assert said.kind == "measured"
        assert "tier 1 was good enough for" in decision.reason
        assert "prior" not in decision.reason
    assert not caplog.records


def test_results_of_other_tiers_than_the_catalogues_say_nothing_of_it(tmp_path: Path) -> None:
    text = (Path(catalogs.__file__).parent / "laptop.toml").read_text()
    other = parse_catalog(tomllib.loads(text.replace("budget_tokens = 622", "budget_tokens = 100")), "other")
    assert class_prior(other, tmp_path).p.tolist() == prior_table(tier_kinds(other)).p.tolist()
    assert not class_prior(other, tmp_path).measured


def test_a_measurement_in_the_data_folder_comes_before_the_shipped_one_and_a_damaged_one_is_passed_over(
    tmp_path: Path,
) -> None:
    laptop, folder = load_catalog("laptop"), tmp_path / OWN_FOLDER
    outcomes = read_outcomes(SHIPPED / "laptop_outcomes.json")
    right, wrong = [1] * len(outcomes.tiers[1].scores), [0] * len(outcomes.tiers[1].scores)
    tiers = {k: msgspec.structs.replace(tier, scores=wrong if k == 1 else right) for k, tier in outcomes.tiers.items()}
    folder.mkdir()
    (folder / "damaged.json").write_text("{")
    assert class_prior(laptop, tmp_path).p.tolist() == class_prior(laptop, tmp_path / "none").p.tolist()

    write_outcomes(msgspec.structs.replace(outcomes, tiers=tiers), folder / "own.json")
    known = class_prior(laptop, tmp_path)
    assert known.p[0].tolist() == pytest.approx([0.0, 1.0, 1.0], abs=0.1)
    assert known.good[:, 0].sum() == 0


@pytest.mark.parametrize("name", ["laptop", "ladder"])
def test_the_shipped_measurement_is_of_its_catalogue_and_keeps_the_classes_of_its_tasks(
    name: str, tmp_path: Path
) -> None:
    assert class_prior(load_catalog(name), tmp_path).measured
    outcomes = read_outcomes(SHIPPED / f"{name}_outcomes.json")
    found = task_classes(outcomes.seed, outcomes.per_level)

    assert outcomes.classes is not None, "write it with `aio classifier measure FILE`"
    assert outcomes.classes.version == found.version
    assert np.array(outcomes.classes.p) == pytest.approx(np.array(found.p), abs=1e-4)


@pytest.mark.parametrize(("version", "times", "used"), [("", 240, True), ("another", 240, False), ("", 239, False)])
def test_kept_classes_are_used_if_the_shipped_classifier_made_them_of_all_tasks(
    tmp_path: Path, version: str, times: int, used: bool
) -> None:
    outcomes, folder = read_outcomes(SHIPPED / "laptop_outcomes.json"), tmp_path / OWN_FOLDER
    kept = TaskClasses(version or default_artefact().name, [(0.0, 0.0, 0.0, 1.0)] * times)
    folder.mkdir()
    write_outcomes(msgspec.structs.replace(outcomes, classes=kept), folder / "own.json")
    laptop = load_catalog("laptop")

    known, shipped = class_prior(laptop, tmp_path), class_prior(laptop, tmp_path / "none")

    # Computed classes are the shipped file's up to the rounding of an instruction set.
    assert np.allclose(known.p, shipped.p, rtol=0, atol=1e-6) != used
