"""From a checkpoint on disk to an artefact over it: fine-tuned end to end, projected and stored in the registry."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classifier.encoders.checkpoint import checkpoint_folder, keep_checkpoint
from classifier.encoders.native_transformer import servable_config
from classifier.encoders.pooled_transformer import PooledTransformer
from classifier.encoders.transformer_encoder import PooledProjection, TransformerEncoder
from classifier.features.routing_input import routing_input_of_text
from classifier.training.data.dataset import RIGHT, TIER_MODELS, OutcomeRow, outcome_labels, tier_scores
from classifier.training.fitting.static_encoder import principal_directions
from classifier.training.recipes.fine_tune import FineTuneSettings, LabelledTexts, fine_tune, save_checkpoint
from classifier.training.recipes.train_static import (
    Candidate,
    Progress,
    rows_of,
    save_encoder,
)
from classifier.training.recipes.training_loop import Progress as Descent

Float = npt.NDArray[np.float32]
Report = Callable[[Descent, int], None]

# The kept directions of the pooled state; fine-tuning does not use the others.
EMBEDDING_DIM = 96


def labelled_texts(rows: Sequence[OutcomeRow], models: Sequence[str]) -> LabelledTexts:
    """Return the turns of `rows` as serving cuts them. Labels are the outcomes in the order of `HEADS`, then whether
    each of `models` (none of which is a tier) was right: more tasks for the same text."""
    scores = np.array([[row.outcomes.get(model, np.nan) for model in models] for row in rows], np.float32)
    others = np.where(np.isnan(scores), np.nan, scores >= RIGHT).reshape(len(rows), len(models))
    labels = np.hstack([outcome_labels(tier_scores(list(rows))), others]).astype(np.float32)
    return LabelledTexts(
        [routing_input_of_text(row.prompt).turn for row in rows], labels, np.ones(len(rows), np.float32)
    )


def other_models(rows: Sequence[OutcomeRow]) -> list[str]:
    """Return models with outcomes in `rows` that represent no tier, by name."""
    tiers = {model for models in TIER_MODELS.values() for model in models}
    return sorted({model for row in rows for model in row.outcomes} - tiers)


def fit_transformer(
    checkpoint: Path,
    registry: Path,
    train: Sequence[OutcomeRow],
    valid: Sequence[OutcomeRow],
    settings: FineTuneSettings,
    *,
    dim: int = EMBEDDING_DIM,
    work: Path | None = None,
    report: Report = lambda progress, steps: None,
) -> TransformerEncoder:
    """Fine-tune the checkpoint on `train`, stop early by `valid`, and store the result in `registry` by its hash.

    The embedding is the pooled state, centred and projected onto its `dim` principal directions on `train`. Raises
    `CheckpointError` for a checkpoint that cannot be read, `TrainingDataError` without outcomes.
    """
    transformer = PooledTransformer.load(checkpoint)
    models = other_models(train)
    texts = labelled_texts(train, models)
    fine_tune(transformer, texts, labelled_texts(valid, models), settings, work=work, report=report)
    states = transformer.encode(texts.texts)
    mean = states.mean(axis=0)
    registry.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=registry, prefix=".fine-tuned-") as folder:
        save_checkpoint(Path(folder), transformer.model, transformer.tokenizer)
        sha256 = keep_checkpoint(Path(folder), registry)
    return TransformerEncoder(
        checkpoint_folder(registry, sha256),
        sha256,
        max_tokens=transformer.max_tokens,
        above=PooledProjection(mean, principal_directions(states - mean, dim)),
    )


# In the registry, until the artefact is written: the state from which fine-tuning resumes.
WORK = ".fine-tuning"


def train_over_checkpoint(
    rows: Sequence[OutcomeRow],
    root: Path,
    checkpoint: Path,
    *,
    settings: FineTuneSettings | None = None,
    dim: int = EMBEDDING_DIM,
    seed: int = 0,
    progress: Progress = lambda stage, share: None,
) -> Candidate:
    """Train on the rows' own splits and write `root/<version>/`, with the fine-tuned checkpoint next to it.

    The train split fine-tunes, and the valid split stops it early. An interrupted run resumes.

    Raises `CheckpointError` for a checkpoint that cannot be read or served, `TrainingDataError` if a split has no rows.
    """
    servable_config(checkpoint)
    settings = settings or FineTuneSettings(seed=seed)
    tuned_on, stopped_by = rows_of(rows, "train"), rows_of(rows, "valid")

    def report(now: Descent, steps: int) -> None:
        progress(f"fine-tuning, valid loss {now.losses[-1][1]:.4f}", 0.9 * now.step / steps)

    progress("fine-tuning", 0.0)
    encoder = fit_transformer(
        checkpoint, root, tuned_on, stopped_by, settings, dim=dim, work=root / WORK, report=report
    )
    return save_encoder(encoder, root, rows=rows, seed=seed, progress=progress)
