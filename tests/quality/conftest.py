"""A registry with a tiny classifier for the tests of the quality loop and of the store."""

from pathlib import Path

import pytest

from classifier.registry.registry import ArtefactRegistry
from tests.quality.retraining.tiny_classifier import base_artefact, fresh_registry


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_artefact(tmp_path_factory.mktemp("shipped"))


@pytest.fixture
def registry(shipped: Path, tmp_path: Path) -> ArtefactRegistry:
    return fresh_registry(tmp_path / "registry", shipped)
