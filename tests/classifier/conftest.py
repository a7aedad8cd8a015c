"""A tiny artefact trained on generated rows, shared by the classifier's tests."""

from pathlib import Path

import pytest
from synthetic_outcomes import generated_rows

from classifier.training.recipes.train_static import Candidate, train


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    return train(generated_rows(1500), tmp_path_factory.mktemp("registry"), dim=8, max_terms=200)


@pytest.fixture
def tiny_folder(tiny: Candidate) -> Path:
    return tiny.folder
