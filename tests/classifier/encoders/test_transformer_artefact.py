"""An artefact over a fine-tuned checkpoint: trained, stored, loaded without torch, served, and refused when changed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from classifier.encoders.checkpoint import CHECKPOINTS
from classifier.errors import CheckpointError
from classifier.features.routing_input import routing_input_of_text
from classifier.native import KERNELS
from classifier.registry import artefact as artefact_module
from classifier.registry.artefact import (
    MAX_BYTES,
    load_artefact,
    load_manifest,
    load_model_tensors,
    save_artefact,
)
from classifier.registry.registry import ArtefactRegistry
from classifier.training.recipes.fine_tune import FineTuneSettings
from classifier.training.recipes.fit_transformer import train_over_checkpoint
from classifier.training.recipes.train_static import Candidate
from tests.classifier.synthetic_outcomes import EASY, HARD, generated_rows
from tests.classifier.tiny_checkpoints import tiny_checkpoint

pytestmark = pytest.mark.skipif(KERNELS is None, reason="the native extension is not built")

QUICK = FineTuneSettings(learning_rate=2e-3, head_learning_rate=1e-2, epochs=2, tokens_per_step=2048, patience=2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    folder = tmp_path_factory.mktemp("over-a-checkpoint")
    rows = generated_rows(1000)
    checkpoint = tiny_checkpoint(folder / "given", "distilbert", [row.prompt for row in rows[:60]])
    return train_over_checkpoint(rows, folder / "registry", checkpoint, settings=QUICK, dim=8)


def question(words: list[str]) -> str:
    return f"What is the {' '.join(words[:8])} of case 3?"


def test_the_stored_artefact_tells_hard_prompts_from_easy_ones(made: Candidate) -> None:
    model = load_artefact(made.folder)
    assert model.manifest.encoder["name"] == "transformer"
    easy, hard, harder = (
        model.encode(routing_input_of_text(question(words))).embedding for words in (EASY, HARD, HARD[1:])
    )
    assert hard @ harder > hard @ easy + 0.2
    trained = made.model.encode(routing_input_of_text(question(EASY))).embedding
    np.testing.assert_allclose(easy, trained, atol=1e-4)


def test_the_checkpoint_is_stored_next_to_the_versions_and_is_not_listed_as_one(made: Candidate) -> None:
    root = made.folder.parent
    assert ArtefactRegistry(root).versions() == [made.folder.name]
    kept = root / made.model.manifest.encoder["checkpoint"]
    assert kept.parent.name == CHECKPOINTS
    assert (kept / "model.safetensors").is_file()
    assert sum(path.stat().st_size for path in made.folder.iterdir()) < MAX_BYTES


def test_a_changed_checkpoint_makes_the_artefact_unloadable_and_says_so(made: Candidate, tmp_path: Path) -> None:
    config = made.folder.parent / made.model.manifest.encoder["checkpoint"] / "config.json"
    before = config.read_bytes()
    try:
        config.write_bytes(before + b" ")
        with pytest.raises(CheckpointError, match=r"SHA-256 is .* the artefact was trained on"):
            load_artefact(made.folder)
    finally:
        config.write_bytes(before)
    assert load_artefact(made.folder).version == made.folder.name


def test_an_artefact_over_a_checkpoint_decides_without_torch(made: Candidate) -> None:
    program = (
        "import sys; from pathlib import Path; from classifier.registry.artefact import load_artefact;"
        "from classifier.features.routing_input import routing_input_of_text;"
        "from classifier.class_predictor import ClassPredictor;"
        f"m = ClassPredictor(load_artefact(Path({str(made.folder)!r})));"
        f"p, _ = m.read(routing_input_of_text({question(HARD)!r}));"
        "print(len(p.p_ok), 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(made.model.manifest.tiers), "False", "False"]


def test_a_checkpoint_that_is_not_served_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    rows = generated_rows(20)
    checkpoint = tiny_checkpoint(tmp_path / "given", "modernbert", [row.prompt for row in rows])
    with pytest.raises(CheckpointError, match="modernbert with gelu is not served; give one of bert"):
        train_over_checkpoint(rows, tmp_path / "registry", checkpoint, settings=QUICK)
    assert not (tmp_path / "registry").exists()


def test_its_size_is_not_bound_to_that_of_the_shipped_artefacts(
    made: Candidate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefact_module, "MAX_BYTES", 1000)
    manifest = load_manifest(made.folder)
    saved = save_artefact(tmp_path, manifest, load_model_tensors(made.folder))
    assert sum(path.stat().st_size for path in saved.iterdir()) > 1000
