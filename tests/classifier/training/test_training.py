"""Training and retraining, on generated outcomes and on the real ones."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from classifier.errors import TrainingDataError
from classifier.features.routing_input import routing_input_of_text
from classifier.registry.artefact import (
    MANIFEST,
    MODEL,
    default_artefact,
    load_artefact,
    load_manifest,
)
from classifier.registry.registry import POINTER, ArtefactRegistry
from classifier.training.data.dataset import FILE, load_outcomes, outcome_labels, tier_scores
from classifier.training.recipes.train import train_command
from classifier.training.recipes.train_static import train
from tests.classifier.synthetic_outcomes import generated_rows
from tests.shared_data import data_file


def test_the_two_labels_follow_from_the_scores_and_are_unknown_where_a_tier_was_not_asked() -> None:
    scores = np.array([[1, 0, 0.6, 1], [0, 0, 1, 0], [np.nan, 0, np.nan, 1]], np.float32)
    labels = outcome_labels(scores)
    assert labels[0].tolist() == [1, 0, 1, 1, 0, 1, 1]
    assert labels[1].tolist() == [1, 1, 1, 0, 0, 1, 0]  # the strongest tier is wrong: no tier is worse
    assert np.isnan(labels[2]).tolist() == [True, False, True, True, False, True, False]
    assert labels[2][[1, 4, 6]].tolist() == [0, 0, 1]


def test_rows_of_an_unknown_source_are_refused() -> None:
    row = msgspec.structs.replace(generated_rows(1)[0], source="elsewhere")
    with pytest.raises(TrainingDataError, match="source 'elsewhere'"):
        tier_scores([row])


def test_the_same_rows_give_the_same_artefact_byte_for_byte(tmp_path: Path) -> None:
    rows = generated_rows(500)
    one, two = (train(rows, tmp_path / name, dim=4, max_terms=60).folder for name in ("one", "two"))
    assert one.name == two.name
    for name in (MODEL, MANIFEST):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_training_without_a_split_is_refused(tmp_path: Path) -> None:
    rows = [r for r in generated_rows(100) if r.split != "train"]
    with pytest.raises(TrainingDataError, match="no row of split 'train'"):
        train(rows, tmp_path)


def test_missing_data_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIO_DATA", str(tmp_path))
    with pytest.raises(TrainingDataError, match=r"routing_outcomes.jsonl.gz is not in .*; set AIO_DATA"):
        train_command(tmp_path / "registry")


@pytest.fixture(scope="module")
def real_data() -> Path:
    return data_file(FILE).parent


@pytest.mark.slow
def test_the_train_command_reproduces_the_shipped_artefact_and_promotes_nothing(
    real_data: Path, tmp_path: Path
) -> None:
    stages: list[str] = []
    teacher = str(load_manifest(default_artefact()).encoder["teacher"])
    outcome = train_command(
        tmp_path, data=real_data, teacher=teacher, progress=lambda stage, share: stages.append(stage)
    )
    assert stages[-1] == "done"
    assert ArtefactRegistry(tmp_path).versions() == [outcome.model.version]
    assert not (tmp_path / POINTER).exists()
    found, shipped = load_artefact(outcome.folder), load_artefact(default_artefact())
    assert found.manifest.data_sha256 == shipped.manifest.data_sha256
    prompts = [routing_input_of_text(row.prompt) for row in load_outcomes(real_data)[:200]]
    ours, theirs = (np.array([model.encode(one).embedding for one in prompts]) for model in (found, shipped))
    # Another CPU may round differently and turn a direction round: prompts are as near each other, by other numbers.
    assert np.abs(ours @ ours.T - theirs @ theirs.T).max() < 0.1
