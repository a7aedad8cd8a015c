"""RT-03: a version over an operator's own transformer is retrained and decides as any other, whatever its size."""

from pathlib import Path

import numpy as np
import pytest

from classifier.class_predictor import ClassPredictor
from classifier.features.routing_input import routing_input_of_text
from classifier.local.cells import prior_table
from classifier.native import KERNELS
from classifier.registry import artefact as artefact_module
from classifier.registry.acceptance import accepted_artefact
from classifier.registry.artefact import load_artefact
from classifier.training.recipes.fine_tune import FineTuneSettings
from classifier.training.recipes.fit_transformer import train_over_checkpoint
from quality.verification.training_rows import encode_prompt, vector_of
from tests.classifier.synthetic_outcomes import EASY, HARD, generated_rows
from tests.classifier.tiny_checkpoints import tiny_checkpoint
from tests.quality.retraining.test_candidate_training import CATALOGUE, LIKE, rows_of, trained

pytestmark = pytest.mark.skipif(KERNELS is None, reason="the native extension is not built")

QUICK = FineTuneSettings(learning_rate=2e-3, head_learning_rate=1e-2, epochs=2, tokens_per_step=2048, patience=2)
ROWS = 240


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("over-a-checkpoint")
    rows = generated_rows(1000)
    checkpoint = tiny_checkpoint(folder / "given", "distilbert", [row.prompt for row in rows[:60]])
    return train_over_checkpoint(rows, folder / "registry", checkpoint, settings=QUICK, dim=8).folder


def test_it_is_retrained_on_its_own_embeddings_and_decides_through_the_head(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tier 2 is as good on prompts of easy words alone; all are stored as of one class, so that no table can tell."""
    monkeypatch.setattr(artefact_module, "MAX_BYTES", 1000)
    model, rng = load_artefact(root), np.random.default_rng(0)
    hard = rng.random(ROWS) < 0.5
    turns = [
        f"What is the {' '.join(rng.choice(HARD if is_hard else EASY, size=8))} of case {i}?"
        for i, is_hard in enumerate(hard)
    ]
    stored = [encode_prompt(model, [{"role": "user", "content": turn}]) for turn in turns]
    names = len(model.manifest.feature_names)
    tensors = rows_of(model.manifest, {2: 0.5}, n=ROWS) | {
        "embedding": np.stack([vector_of(one.embedding) for one in stored]),
        "features": np.stack([vector_of(one.features)[:names] for one in stored]),
    }
    tensors["no_worse"][:, 1] = ~hard
    tensors["features"][:] = tensors["features"].mean(axis=0)

    done = trained(root, root.parent, tensors)

    assert done.judgement.reasons == []
    served = accepted_artefact(Path(done.path), CATALOGUE, tiers=4, must_be_measured=True)
    assert served.manifest.encoder == model.manifest.encoder
    assert sum(path.stat().st_size for path in Path(done.path).iterdir()) > 1000
    assert [(one.name, one.adopted) for one in served.manifest.levels] == [("table", True), ("head", True)]
    predictor = ClassPredictor(served, prior_table(LIKE))
    asked = [routing_input_of_text(f"What is the {' '.join(words[:8])} of case 7?") for words in (EASY, HARD)]
    easy, difficult = (predictor.prediction(given, served.encode(given)) for given in asked)
    assert (easy.kind, easy.classifier_version) == ("measured", Path(done.path).name)
    assert easy.p_ok[1] > difficult.p_ok[1] + 0.3
