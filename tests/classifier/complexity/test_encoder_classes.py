"""Classes by a fine-tuned encoder: trained, kept by its hash, deciding without torch, and replaced where it cannot."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from classifier.class_predictor import ClassPredictor
from classifier.complexity.encoder_classes import CLASSES, load_classes
from classifier.encoders import native_transformer
from classifier.encoders.checkpoint import keep_checkpoint
from classifier.errors import CheckpointError, TrainingDataError
from classifier.features.routing_input import routing_input_of_text
from classifier.native import KERNELS
from classifier.registry.artefact import default_artefact, load_artefact
from classifier.training.fitting.complexity import LabelledPrompt
from classifier.training.recipes.fine_tune import FineTuneSettings, train_classes
from gateway.cli import main
from gateway.inference.classifier_versions import ActiveClassifier
from tests.classifier.synthetic_outcomes import EASY, HARD, generated_rows
from tests.classifier.tiny_checkpoints import tiny_checkpoint

pytestmark = pytest.mark.skipif(KERNELS is None, reason="the native extension is not built")

QUICK = FineTuneSettings(learning_rate=2e-3, head_learning_rate=1e-2, epochs=4, tokens_per_step=512, patience=4)
SHIPPED = load_artefact(default_artefact())


def question(words: list[str]) -> str:
    return f"What is the {' '.join(words[:8])} of case 3?"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    hard = set(HARD)
    rows = [
        LabelledPrompt(row.prompt, [4, 4] if hard & set(row.prompt.split()) else [1, 2]) for row in generated_rows(400)
    ]
    checkpoint = tiny_checkpoint(folder / "given", "distilbert", [row.prompt for row in rows[:60]])
    train_classes(rows, checkpoint, folder / "made", QUICK)
    return folder / "made"


def test_it_learns_the_raters_classes(trained: Path, tmp_path: Path) -> None:
    classes = load_classes(str(trained), tmp_path)
    easy, hard = (classes.probabilities(question(words)) for words in (EASY, HARD))
    assert sum(easy) == pytest.approx(1.0)
    assert easy[0] + easy[1] > 0.7
    assert hard[3] > 0.7


def test_it_decides_in_place_of_the_ngram_model_whose_classes_labels_keep(trained: Path, tmp_path: Path) -> None:
    classes = load_classes(str(trained), tmp_path)
    plain, changed = ClassPredictor(SHIPPED), ClassPredictor(SHIPPED, None, classes)
    given = routing_input_of_text(question(HARD))
    turn = SHIPPED.encode(given)
    np.testing.assert_allclose(changed.prediction(given, turn).classes, classes.probabilities(given.turn), atol=1e-4)
    assert changed.prediction(given, turn).p_ok != plain.prediction(given, turn).p_ok
    assert changed.classes(given, turn) == plain.classes(given, turn)
    assert (plain.class_model, changed.class_model) == ("n-grams", classes.name)


def test_one_in_the_registry_is_named_by_its_hash_and_refused_when_changed(trained: Path, tmp_path: Path) -> None:
    name = keep_checkpoint(trained, tmp_path)[:16]
    assert load_classes(name, tmp_path).name == f"encoder {name}"
    config = tmp_path / "encoders" / name / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(CheckpointError, match="the files were changed"):
        load_classes(name, tmp_path)


def test_a_checkpoint_without_the_layer_or_with_another_is_refused(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.copytree(trained, folder)
    (folder / CLASSES).unlink()
    with pytest.raises(CheckpointError, match=r"aio classifier complexity --encoder"):
        load_classes(str(folder), tmp_path)
    with pytest.raises(CheckpointError, match="is no folder"):
        load_classes(str(tmp_path / "none"), tmp_path)


async def test_versions_wait_for_it_ahead_of_the_decision_and_go_on_without_it(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = ActiveClassifier(tmp_path, "ours", class_encoder=str(trained))
    active.load()
    version = active.serving.current
    assert version.slow
    assert version.class_model.startswith("encoder ")
    given = routing_input_of_text(question(HARD))
    await version.encode_ahead(given)
    assert version.predict(given).classes[3] > 0.7
    assert version.for_catalogue("other", None).class_model == version.class_model
    monkeypatch.setattr(native_transformer, "KERNELS", None)
    without = ActiveClassifier(tmp_path, "ours", class_encoder=str(trained))
    without.load()
    assert without.serving.current.class_model == "n-grams"
    assert not without.serving.current.slow
    assert "native extension" in without.class_refusal


def test_route_says_which_model_classified_and_why_not_another(trained: Path, tmp_path: Path) -> None:
    def routed(encoder: Path | str) -> str:
        found = CliRunner().invoke(
            main,
            ["route", question(HARD), "--catalog", "laptop", "--data-dir", str(tmp_path), "--json"],
            env={"AIO_CLASSIFIER_ENCODER": str(encoder)},
        )
        assert found.exit_code == 0, found.output
        return str(json.loads(found.stdout)["class_model"])

    assert routed("") == "n-grams"
    assert routed(trained).startswith("encoder ")
    assert routed(tmp_path / "none").startswith("n-grams (")
    assert "is no folder" in routed(tmp_path / "none")


def test_neither_torch_nor_transformers_is_imported_for_it(trained: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from gateway.inference.classifier_versions import ActiveClassifier;"
        "from classifier.features.routing_input import routing_input_of_text;"
        f"a = ActiveClassifier(Path({str(tmp_path)!r}), 'ours', class_encoder={str(trained)!r}); a.load();"
        f"p = a.serving.current.predict(routing_input_of_text({question(HARD)!r}));"
        "print(p.classes[3] > 0.7, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.split() == ["True", "False", "False"]


def test_training_needs_rows_and_a_new_folder(trained: Path, tmp_path: Path) -> None:
    rows = [LabelledPrompt("Why?", [2])] * 9
    with pytest.raises(TrainingDataError, match="9 rows for"):
        train_classes(rows, trained, tmp_path / "new", QUICK)
    with pytest.raises(TrainingDataError, match="a folder that is new"):
        train_classes(rows * 2, trained, trained, QUICK)
