"""The active classifier: the packaged one, then each promoted one; no request ever sees half of each."""

import asyncio
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from classifier.complexity.classes import Complexity, like_of
from classifier.complexity.quality_setting import QUALITY_SETTINGS
from classifier.errors import ArtefactError, PolicyInputsError
from classifier.features.routing_input import routing_input_of_text
from classifier.local.cells import prior_table
from classifier.local.own import OwnOutcomes
from classifier.policy.experiment_split import Arm, Split
from classifier.registry.artefact import default_artefact, load_manifest, load_model_tensors, save_artefact
from classifier.registry.registry import ArtefactRegistry
from gateway.base.inference_request import InferenceRequest
from gateway.inference.classifier_versions import ActiveClassifier, ActiveVersions, LoadedVersion, RoutingRule
from gateway.inference.router import RoutingService
from tests.gateway.chats import chat
from tiers.catalog.load import load_catalog

CATALOG = load_catalog("laptop")
PROMPT = routing_input_of_text("Why is the sky blue?")


def ask(request_id: str) -> InferenceRequest:
    return chat("Why is the sky blue?", request_id=request_id)


@pytest.fixture
def changes() -> list[str]:
    return []


def active_classifier(root: Path, changes: list[str]) -> ActiveClassifier:
    classifier = ActiveClassifier(root, "some catalogue", lambda serving: changes.append(serving.current.version))
    classifier.load()
    return classifier


def seeded(root: Path) -> ArtefactRegistry:
    shipped = default_artefact()
    shutil.copytree(shipped, root / load_manifest(shipped).version)
    return ArtefactRegistry(root)


def test_the_shipped_artefact_serves_while_nothing_was_promoted(tmp_path: Path, changes: list[str]) -> None:
    classifier = active_classifier(tmp_path, changes)
    prediction = classifier.serving.current.predict(PROMPT)
    assert changes == [prediction.classifier_version] == [load_manifest(default_artefact()).version]
    assert prediction.kind == "prior"
    assert prediction.p_ok[-1] == 1.0


def test_the_quality_target_is_the_threshold() -> None:
    usual, given = RoutingRule.of_classes(None), RoutingRule.of_classes(0.9)
    assert (usual.quality_target, usual.tau) == (QUALITY_SETTINGS["balanced"], usual.quality_target)
    assert (given.quality_target, given.tau) == (0.9, 0.9)
    with pytest.raises(PolicyInputsError, match=r"quality target is 1\.2"):
        RoutingRule.of_classes(1.2)


def test_an_artefact_of_outcome_heads_for_this_very_catalogue_serves_by_class_as_a_prior(tmp_path: Path) -> None:
    """As releases before this one trained them: with heads, memory and curves, measured on the catalogue."""
    classifier = ActiveClassifier(tmp_path, load_manifest(default_artefact()).catalogue_fingerprint)
    classifier.load()
    prediction = classifier.serving.current.predict(PROMPT)
    assert (prediction.kind, sum(prediction.classes)) == ("prior", pytest.approx(1, abs=1e-3))


def test_a_table_of_another_number_of_tiers_than_the_catalogues_is_a_prior(tmp_path: Path) -> None:
    registry = seeded(tmp_path)
    descendant(registry, "v1-child", adequacy=[[0.9, 0.9]] * 4, catalogue_fingerprint="ours")
    registry.promote("v1-child")
    for tiers, kind in ((3, "measured"), (4, "prior"), (2, "prior")):
        classifier = ActiveClassifier(tmp_path, "ours", prior=prior_table(like_of(tiers)))
        classifier.load()
        prediction = classifier.serving.current.predict(PROMPT)
        assert (prediction.kind, len(prediction.p_ok)) == (kind, tiers)


async def test_a_promotion_is_picked_up_while_serving(tmp_path: Path) -> None:
    loaded: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def keep(serving: ActiveVersions) -> None:
        loop.call_soon_threadsafe(loaded.put_nowait, serving.current.version)

    classifier = ActiveClassifier(tmp_path, "some catalogue", keep)
    classifier.load()
    version = await loaded.get()
    following = asyncio.create_task(classifier.follow(0.001))
    before = classifier.model
    seeded(tmp_path).promote(version)
    assert await loaded.get() == version
    assert classifier.model is not before
    assert classifier.serving.current.predict(PROMPT).classifier_version == version
    following.cancel()


async def test_a_promoted_version_has_its_own_labels_before_it_serves(tmp_path: Path) -> None:
    registry, served = seeded(tmp_path), asyncio.Event()
    descendant(registry, "v1-child")
    classifier = ActiveClassifier(tmp_path, "some catalogue")
    classifier.load()
    own, before = cast(OwnOutcomes, object()), classifier.serving.current
    given: list[tuple[list[str], LoadedVersion]] = []

    async def give(versions: Sequence[LoadedVersion]) -> None:
        await asyncio.sleep(0)
        given.append(([one.version for one in versions], classifier.serving.current))
        for version in versions:
            version.own = own
        asyncio.get_running_loop().call_soon(served.set)

    classifier.before_serving = give
    registry.promote("v1-child")
    following = asyncio.create_task(classifier.follow(0.001))
    await served.wait()
    following.cancel()
    assert given == [(["v1-child"], before)]
    assert classifier.serving.current.own is own


async def test_a_version_loaded_for_another_catalogue_is_loaded_again(tmp_path: Path) -> None:
    registry, read, go_on, served = seeded(tmp_path), asyncio.Event(), asyncio.Event(), asyncio.Event()
    descendant(registry, "v1-child", adequacy=[[0.9] * 3] * 4, catalogue_fingerprint="new")
    classifier = ActiveClassifier(tmp_path, "old", prior=prior_table(like_of(4)))
    classifier.load()

    async def give(versions: Sequence[LoadedVersion]) -> None:
        read.set()
        await go_on.wait()
        if versions[0].kind == "measured":
            asyncio.get_running_loop().call_soon(served.set)

    classifier.before_serving = give
    registry.promote("v1-child")
    following = asyncio.create_task(classifier.follow(0.001))
    await read.wait()
    await classifier.serve_catalogue("new", prior_table(like_of(4)))
    go_on.set()
    await served.wait()
    following.cancel()
    assert (classifier.serving.current.version, classifier.serving.current.kind) == ("v1-child", "measured")


def test_a_version_that_is_loaded_again_keeps_its_own_labels(tmp_path: Path) -> None:
    classifier = ActiveClassifier(tmp_path, "some catalogue")
    classifier.load()
    version = classifier.serving.current
    own = version.own = cast(OwnOutcomes, object())
    seeded(tmp_path).promote(version.version)
    classifier.load()
    assert classifier.serving.current is not version
    assert classifier.serving.current.own is own


async def test_a_broken_promotion_leaves_the_old_version_serving(
    tmp_path: Path, changes: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    classifier = active_classifier(tmp_path, changes)
    registry = seeded(tmp_path)
    version = changes[0]
    (tmp_path / version / "weights.safetensors").write_bytes(b"broken")
    registry.promote(version)
    following = asyncio.create_task(classifier.follow(0.001))
    while "stays" not in caplog.text:  # noqa: ASYNC110 - the log is the only sign of it
        await asyncio.sleep(0)
    following.cancel()
    assert classifier.serving.current.predict(PROMPT).classifier_version == version


def test_without_any_artefact_every_call_says_why(tmp_path: Path, changes: list[str]) -> None:
    (tmp_path / "current.json").write_text('{"current": "v9", "previous": null}')
    classifier = active_classifier(tmp_path, changes)
    with pytest.raises(ArtefactError, match="v9"):
        classifier.serving.current.predict(PROMPT)
    assert changes == []


def descendant(registry: ArtefactRegistry, version: str, **changed: Any) -> None:
    """A copy of the shipped artefact under another name, as its child."""
    shipped = default_artefact()
    manifest = msgspec.structs.replace(load_manifest(shipped), version=version, parent=shipped.name, **changed)
    save_artefact(registry.root, manifest, load_model_tensors(shipped))


@pytest.fixture
def trial(tmp_path: Path) -> ArtefactRegistry:
    """A registry with the packaged version active and its child on trial for a third of the requests."""
    registry = seeded(tmp_path)
    registry.promote(load_manifest(default_artefact()).version)
    descendant(registry, "v1-child")
    registry.start_canary("v1-child", 1 / 3)
    return registry


def test_a_canary_decides_about_its_share_and_the_same_requests_every_time(
    trial: ArtefactRegistry, changes: list[str]
) -> None:
    classifier = active_classifier(trial.root, changes)
    ids = [f"chatcmpl-{i}" for i in range(1000)]
    mine = [i for i in ids if classifier.model_for(i).on_trial]
    assert 280 < len(mine) < 390
    again = active_classifier(trial.root, changes)
    assert [i for i in ids if again.model_for(i).on_trial] == mine, "every gateway process draws alike"
    trial.start_canary("v1-child", 2 / 3)
    more = active_classifier(trial.root, changes)
    assert set(mine) <= {i for i in ids if more.model_for(i).on_trial}, "a larger share keeps its requests"


def test_a_canarys_decisions_carry_its_version_and_say_so(trial: ArtefactRegistry, changes: list[str]) -> None:
    classifier = active_classifier(trial.root, changes)
    service = RoutingService(CATALOG, {}, classifier, None)
    decisions = [service.route(ask(f"chatcmpl-{i}")) for i in range(60)]
    versions = {d.inputs.canary: d.inputs.prediction.classifier_version for d in decisions}
    assert versions == {False: default_artefact().name, True: "v1-child"}
    assert all(("v1-child on trial" in d.reason) == d.inputs.canary for d in decisions)


def test_a_canary_that_is_refused_gets_no_requests_and_the_reason_is_kept(
    trial: ArtefactRegistry, changes: list[str]
) -> None:
    (trial.root / "v1-child" / "weights.safetensors").write_bytes(b"broken")
    classifier = active_classifier(trial.root, changes)
    assert not any(classifier.model_for(f"r{i}").on_trial for i in range(100))
    assert "the canary gets no requests" in classifier.refusal


def test_an_artefact_of_another_catalogue_is_refused_where_a_prior_is_not_wanted(tmp_path: Path) -> None:
    classifier = ActiveClassifier(tmp_path, "some catalogue", must_be_measured=True)
    classifier.load()
    with pytest.raises(ArtefactError, match="a prior is not wanted here"):
        classifier.serving.current.predict(PROMPT)


def test_swaps_under_load_show_no_error_and_no_mixed_version(tmp_path: Path) -> None:
    """Routes from several threads while versions are promoted and rolled back: every prediction is its version's."""
    registry = seeded(tmp_path)
    first = load_manifest(default_artefact()).version
    registry.promote(first)
    descendant(registry, "v1-child")
    descendant(registry, "v1-other", adequacy=[[0.81, 0.82, 0.83]] * 4, catalogue_fingerprint="ours")
    classifier = ActiveClassifier(tmp_path, "ours", prior=prior_table(tuple(Complexity)))
    classifier.load()
    service = RoutingService(CATALOG, {}, classifier, None)
    usual = classifier.serving.current.predict(PROMPT).p_ok
    expected = {first: usual, "v1-child": usual, "v1-other": pytest.approx([0.81, 0.82, 0.83, 1.0], abs=1e-4)}
    stop, seen, errors = threading.Event(), {first}, list[str]()

    def route() -> None:
        number = 0
        while not stop.is_set() or (number < 20_000 and len(seen) < len(expected)):
            decision = service.route(ask(f"{threading.get_ident()}-{number}"))
            version = decision.inputs.prediction.classifier_version
            seen.add(version)
            if decision.inputs.prediction.p_ok != expected.get(version):
                errors.append(f"{version} with {decision.inputs.prediction.p_ok}")
            number += 1

    threads = [threading.Thread(target=route) for _ in range(2)]
    for thread in threads:
        thread.start()
    for version in (first, "v1-other"):
        registry.promote(version)
        classifier.load()
    registry.start_canary("v1-child", 0.5)
    classifier.load()
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert seen == set(expected)
    assert service._classifier_failure == ""


def test_the_arms_of_an_experiment_are_decided_by_their_versions(trial: ArtefactRegistry, changes: list[str]) -> None:
    shipped = load_manifest(default_artefact()).version
    split = Split(experiment_id="x", share=0.5, a=Arm(version=shipped), b=Arm(version="v1-child"))
    trial.stop_canary()
    trial.set_experiment(split)
    service = RoutingService(CATALOG, {}, active_classifier(trial.root, changes), None)
    decisions = {f"chatcmpl-{i}": service.route(ask(f"chatcmpl-{i}")) for i in range(60)}
    versions = {None: shipped, "a": shipped, "b": "v1-child"}
    for request_id, decision in decisions.items():
        assert decision.inputs.arm == split.arm_of(request_id)
        assert decision.inputs.prediction.classifier_version == versions[decision.inputs.arm]
    assert {decision.inputs.arm for decision in decisions.values()} == {None, "a", "b"}


def test_an_experiment_with_an_arm_that_is_refused_gets_no_requests(
    trial: ArtefactRegistry, changes: list[str]
) -> None:
    split = Split(experiment_id="x", share=1.0, a=Arm(tier=1), b=Arm(version="v1-child"))
    trial.set_experiment(split)
    (trial.root / "v1-child" / "weights.safetensors").write_bytes(b"broken")
    classifier = active_classifier(trial.root, changes)
    assert classifier.split() is None
    assert "the experiment gets no requests" in classifier.refusal
