"""Fine-tuning a checkpoint: it learns, stops early, resumes, and ends in an artefact's encoder."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from classifier.encoders.checkpoint import checkpoint_folder, checkpoint_sha256, keep_checkpoint, verify_checkpoint
from classifier.encoders.pooled_transformer import PooledTransformer
from classifier.encoders.static_encoder import encoder_fingerprint
from classifier.encoders.transformer_encoder import TransformerEncoder
from classifier.errors import CheckpointError, TrainingDataError
from classifier.native import KERNELS
from classifier.training.data.dataset import HEADS
from classifier.training.recipes.fine_tune import FineTuneSettings, LabelledTexts, fine_tune, masked_loss
from classifier.training.recipes.fit_transformer import fit_transformer, labelled_texts, other_models
from classifier.training.recipes.training_loop import Progress, ResumableLoop, Schedule
from tests.classifier.synthetic_outcomes import EASY, HARD, generated_rows
from tests.classifier.tiny_checkpoints import ARCHITECTURES, tiny_checkpoint

TEXTS = [row.prompt for row in generated_rows(60)]
QUICK = FineTuneSettings(
    learning_rate=2e-3, head_learning_rate=1e-2, epochs=3, tokens_per_step=1024, measurements=2, patience=3
)


def labelled(n: int, seed: int) -> LabelledTexts:
    """Hard words make the outcome improbable; every third label of the second head is unobserved, and all are soft."""
    rng = np.random.default_rng(seed)
    hard = rng.random(n) < 0.5
    texts = ["what is the " + " ".join(rng.choice(HARD if h else EASY, size=6)) for h in hard]
    labels = np.stack([np.where(hard, 0.1, 0.9), np.where(hard, 0.8, 0.2)], axis=1).astype(np.float32)
    labels[::3, 1] = np.nan
    return LabelledTexts(texts, labels, np.ones(n, np.float32))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_random_checkpoint_learns_the_outcomes_in_a_few_steps(architecture: str, tmp_path: Path) -> None:
    transformer = PooledTransformer.load(tiny_checkpoint(tmp_path / architecture, architecture, TEXTS))
    train, valid = labelled(240, 0), labelled(80, 1)
    tuned = fine_tune(transformer, train, valid, QUICK)
    logits = transformer.encode(valid.texts) @ tuned.head_weight + tuned.head_bias
    hard = valid.labels[:, 0] < 0.5
    assert logits[~hard, 0].min() > logits[hard, 0].max()
    assert logits[~hard, 1].max() < logits[hard, 1].min()
    assert tuned.progress.losses[0][1] > tuned.progress.best  # type: ignore[operator]


def test_unobserved_outcomes_and_rows_without_weight_teach_nothing() -> None:
    logits = torch.tensor([[0.3, -2.0], [5.0, 1.0], [0.0, 0.0]], requires_grad=True)
    labels = torch.tensor([[1.0, float("nan")], [0.0, 1.0], [0.25, float("nan")]])
    masked_loss(logits, labels, torch.tensor([1.0, 0.0, 2.0])).backward()
    gradient = logits.grad
    assert gradient is not None
    assert gradient[1].tolist() == [0, 0]
    assert gradient[:, 1].tolist() == [0, 0, 0]
    assert gradient[2, 0].item() == pytest.approx(2 * (0.5 - 0.25) / 3)


def test_training_without_an_observed_outcome_is_refused(tmp_path: Path) -> None:
    transformer = PooledTransformer.load(tiny_checkpoint(tmp_path / "c", "distilbert", TEXTS))
    blank = LabelledTexts(["a"], np.full((1, 2), np.nan, np.float32), np.ones(1, np.float32))
    with pytest.raises(TrainingDataError, match="no valid row has an observed outcome"):
        fine_tune(transformer, labelled(10, 0), blank, QUICK)


class Interrupted(Exception):
    """A simulated crash."""


def test_an_interrupted_run_goes_on_to_the_very_same_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("classifier.training.recipes.training_loop.SAVE_SECONDS", -1.0)  # after every step
    folder = tiny_checkpoint(tmp_path / "c", "distilbert", TEXTS)
    train, valid = labelled(120, 0), labelled(40, 1)
    whole = fine_tune(PooledTransformer.load(folder), train, valid, QUICK)

    def stop(progress: Progress, steps: int) -> None:
        if progress.step > steps // 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        fine_tune(PooledTransformer.load(folder), train, valid, QUICK, work=tmp_path / "w", report=stop)
    steps_done: list[int] = []
    resumed = fine_tune(
        PooledTransformer.load(folder),
        train,
        valid,
        QUICK,
        work=tmp_path / "w",
        report=lambda p, _: steps_done.append(p.step),
    )
    assert steps_done[0] > 1
    assert len(steps_done) < len(whole.progress.losses)
    np.testing.assert_array_equal(resumed.head_weight, whole.head_weight)
    assert resumed.progress.losses == whole.progress.losses


def test_training_stops_when_the_valid_loss_rises_and_keeps_the_best_parameters(tmp_path: Path) -> None:
    module = torch.nn.Linear(1, 1, bias=False)
    losses = iter([3.0, 1.0, 2.0, 4.0, 0.0])
    weights: list[float] = []

    def measure() -> float:
        weights.append(module.weight.item())
        return next(losses)

    schedule = Schedule(steps=50, measure_every=1, patience=2)
    loop = ResumableLoop(module, [(("",), 0.1)], schedule, key="k")
    progress = loop.run(lambda step: module.weight.sum(), measure)
    assert (progress.step, progress.best, progress.best_step, progress.stopped) == (4, 1.0, 2, True)
    assert module.weight.item() == weights[1]


def test_a_state_of_other_data_is_not_gone_on_with(tmp_path: Path) -> None:
    schedule = Schedule(steps=3, measure_every=1, patience=9)

    def trained(key: str) -> tuple[Progress, Any]:
        torch.manual_seed(0)
        module = torch.nn.Linear(1, 1)
        loop = ResumableLoop(module, [(("",), 0.1)], schedule, key=key, work=tmp_path)
        begun = loop.state.step
        loop.run(lambda step: (module.weight**2).sum(), lambda: module.weight.item() ** 2)
        return loop.state, begun

    assert trained("one")[1] == 0
    assert trained("one")[1] == 3
    assert trained("two")[1] == 0


def fitted(tmp_path: Path) -> TransformerEncoder:
    if KERNELS is None:
        pytest.skip("the native extension is not built")
    rows = generated_rows(150)
    folder = tiny_checkpoint(tmp_path / "c", "distilbert", TEXTS)
    return fit_transformer(folder, tmp_path / "registry", rows[:100], rows[100:], QUICK, dim=8)


def test_the_encoder_survives_storage_and_single_prompts_get_what_a_batch_gets(tmp_path: Path) -> None:
    encoder = fitted(tmp_path)
    stored = TransformerEncoder.from_tensors(encoder.tensors(), tmp_path / "registry")
    assert encoder_fingerprint(stored.tensors()) == encoder_fingerprint(encoder.tensors())
    together = encoder.encode_many(TEXTS[:12])
    futures = [stored.submit(text) for text in TEXTS[:12]]
    for text, one, future in zip(TEXTS[:12], together, futures, strict=True):
        alone = stored.encode(text, [])
        assert alone.shape == (8,)
        assert np.linalg.norm(alone) == pytest.approx(1.0, abs=1e-5)
        for other in (one, future.result(30)):
            np.testing.assert_allclose(alone, other, atol=1e-4)


def test_a_checkpoint_that_was_changed_or_removed_is_refused_when_the_artefact_is_loaded(tmp_path: Path) -> None:
    encoder = fitted(tmp_path)
    tensors = encoder.tensors()
    config = encoder.folder / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(CheckpointError, match="the artefact was trained on"):
        TransformerEncoder.from_tensors(tensors, tmp_path / "registry")
    with pytest.raises(CheckpointError, match="is no folder"):
        TransformerEncoder.from_tensors(tensors, tmp_path / "elsewhere")


def test_a_kept_checkpoint_is_named_by_its_content_and_leaves_code_and_pickles_behind(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "c", "distilbert", TEXTS)
    before = checkpoint_sha256(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
    (folder / "modeling.py").write_text("raise SystemExit")
    assert keep_checkpoint(folder, tmp_path / "registry") == before
    kept = checkpoint_folder(tmp_path / "registry", before)
    verify_checkpoint(kept, before)
    assert sorted(path.name for path in kept.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert keep_checkpoint(folder, tmp_path / "registry") == before
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]


def test_outcomes_of_models_that_are_no_tier_are_tasks_too() -> None:
    rows = generated_rows(3)
    extra = [msgspec.structs.replace(row, outcomes={**row.outcomes, "other": 0.7}) for row in rows]
    assert other_models(rows) == []
    assert other_models(extra) == ["other"]
    labels = labelled_texts([rows[0], extra[1]], ["other"]).labels
    assert labels.shape == (2, len(HEADS) + 1)
    assert np.isnan(labels[0, -1])
    assert labels[1, -1] == 1
