"""Training and retraining, on generated outcomes and on the real ones."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from classifier.errors import TrainingDataError
from classifier.features.routing_input import routing_input_of_text
from classifier.model.outcome_model import Heads, TrainingWindow
from classifier.registry.artefact import (
    BASE,
    MANIFEST,
    MODEL,
    default_artefact,
    load_artefact,
    load_base,
    load_manifest,
)
from classifier.registry.registry import POINTER, ArtefactRegistry
from classifier.training.data.dataset import FILE, outcome_labels, tier_scores
from classifier.training.data.encoded_rows import EncodedRows, encode_rows
from classifier.training.fitting.heads import OPINION_SCALE, fit_heads
from classifier.training.recipes.train import train_command
from classifier.training.recipes.train_static import Candidate, train
from tests.classifier.synthetic_outcomes import generated_rows
from tests.shared_data import data_file

WINDOW = TrainingWindow(start="2026-01-01T00:00:00Z", end="2026-01-08T00:00:00Z", source="probes")
MODELS: dict[str, list[str | None]] = {"laptop": ["a", "b", "c", "d"]}


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
    one, two = (train(rows, tmp_path / name, dim=4, max_terms=60, rounds=5).folder for name in ("one", "two"))
    assert one.name == two.name
    for name in (MODEL, BASE, MANIFEST):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_training_without_a_split_is_refused(tmp_path: Path) -> None:
    rows = [r for r in generated_rows(100) if r.split != "valid"]
    with pytest.raises(TrainingDataError, match="no row of split 'valid'"):
        train(rows, tmp_path)


def test_refitting_the_stored_base_gives_the_stored_heads(tiny: Candidate) -> None:
    base = EncodedRows.from_tensors(load_base(tiny.folder))
    heads, _ = fit_heads(base, seed=0)
    assert heads.coef == pytest.approx(tiny.model.heads.coef, abs=1e-3)
    assert heads.bias == pytest.approx(tiny.model.heads.bias, abs=1e-3)


def test_held_rows_calibrate_and_train_nothing(tiny: Candidate) -> None:
    base = EncodedRows.from_tensors(load_base(tiny.folder))
    flipped = np.where(base.held[:, None], 1 - base.labels, base.labels)
    changed = EncodedRows(**{**vars(base), "labels": flipped.astype(np.float32)})
    (one, memory), (two, other) = fit_heads(base, seed=0), fit_heads(changed, seed=0)
    directions = one.coef[:, 0] / np.linalg.norm(one.coef[:, 0])
    assert two.coef[:, 0] == pytest.approx(directions * np.linalg.norm(two.coef[:, 0]), abs=1e-5)
    assert (memory.labels[~np.isnan(memory.labels)] == other.labels[~np.isnan(other.labels)]).all()
    assert np.linalg.norm(two.coef[:, 0]) < 0.2 * np.linalg.norm(one.coef[:, 0])


def test_an_outcome_that_few_rows_observed_learns_as_much_per_row_as_one_that_all_observed(tiny: Candidate) -> None:
    base = EncodedRows.from_tensors(load_base(tiny.folder))
    train = base.take(~base.held)
    outcomes, few = train.labels.shape[1], np.arange(len(train)) % 5 == 0
    seldom = train.labels.copy()
    seldom[~few, 0] = np.nan
    among_many, _ = fit_heads(EncodedRows(**{**vars(train), "labels": seldom}), seed=0)
    alone, _ = fit_heads(train.take(few), seed=0)

    def learned(heads: Heads) -> float:
        beyond_the_words = heads.coef[:, 0].copy()
        beyond_the_words[-2 * outcomes] -= OPINION_SCALE
        return float(np.linalg.norm(beyond_the_words))

    assert learned(among_many) > 1.5 * learned(alone)


def test_labels_outside_zero_to_one_are_refused(tiny: Candidate) -> None:
    with pytest.raises(TrainingDataError, match=r"allowed is \[0, 1\]"):
        encode_rows(tiny.model.encoder, [routing_input_of_text("a")], np.full((1, 7), 2.0, np.float32))


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
    # Another CPU may round differently: the numbers agree and the bytes need not.
    for text in ("What is the derivative of x^2?", "Which court decided the case?\n(A) one\n(B) two"):
        prompt = routing_input_of_text(text)
        assert found.predict(prompt).p_ok == pytest.approx(shipped.predict(prompt).p_ok, abs=0.02)
