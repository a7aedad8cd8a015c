"""The classifier in force: the shipped one, then whatever is promoted, without a request ever seeing half of each."""

import asyncio
import shutil
from pathlib import Path

import pytest

from classifier.artefact import default_artefact, load_manifest
from classifier.errors import ArtefactError
from classifier.registry import ArtefactRegistry
from classifier.routing_input import routing_input_of_text
from gateway.classifier_in_force import ClassifierInForce

PROMPT = routing_input_of_text("Why is the sky blue?")


@pytest.fixture
def changes() -> list[str]:
    return []


def in_force(root: Path, changes: list[str]) -> ClassifierInForce:
    classifier = ClassifierInForce(root, "some catalogue", changes.append)
    classifier.load()
    return classifier


def seeded(root: Path) -> ArtefactRegistry:
    shipped = default_artefact()
    shutil.copytree(shipped, root / load_manifest(shipped).version)
    return ArtefactRegistry(root)


def test_the_shipped_artefact_serves_while_nothing_was_promoted(tmp_path: Path, changes: list[str]) -> None:
    classifier = in_force(tmp_path, changes)
    prediction = classifier.predict(PROMPT)
    assert changes == [prediction.classifier_version] == [load_manifest(default_artefact()).version]
    assert prediction.kind == "prior"
    assert prediction.p_ok[-1] == 1.0


def test_a_higher_target_gives_a_stricter_rule(tmp_path: Path, changes: list[str]) -> None:
    classifier = in_force(tmp_path, changes)
    low, high = classifier.rule_for(0.7), classifier.rule_for(0.99)
    assert low.lambda_ >= high.lambda_
    assert low.tau <= high.tau
    assert classifier.rule_for(None).quality_target == classifier.model.manifest.curves.default_quality_target


async def test_a_promotion_is_picked_up_while_serving(tmp_path: Path) -> None:
    loaded: asyncio.Queue[str] = asyncio.Queue()
    classifier = ClassifierInForce(tmp_path, "some catalogue", loaded.put_nowait)
    classifier.load()
    version = await loaded.get()
    following = asyncio.create_task(classifier.follow(0.001))
    before = classifier.model
    seeded(tmp_path).promote(version)
    assert await loaded.get() == version
    assert classifier.model is not before
    assert classifier.predict(PROMPT).classifier_version == version
    following.cancel()


async def test_a_broken_promotion_leaves_the_old_version_serving(
    tmp_path: Path, changes: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    classifier = in_force(tmp_path, changes)
    registry = seeded(tmp_path)
    version = changes[0]
    (tmp_path / version / "model.safetensors").write_bytes(b"broken")
    registry.promote(version)
    following = asyncio.create_task(classifier.follow(0.001))
    while "not used" not in caplog.text:  # noqa: ASYNC110 - the log is the only sign of it
        await asyncio.sleep(0)
    following.cancel()
    assert classifier.predict(PROMPT).classifier_version == version


def test_without_any_artefact_every_call_says_why(tmp_path: Path, changes: list[str]) -> None:
    (tmp_path / "current.json").write_text('{"current": "v9", "previous": null}')
    classifier = in_force(tmp_path, changes)
    with pytest.raises(ArtefactError, match="v9"):
        classifier.predict(PROMPT)
    assert changes == []
