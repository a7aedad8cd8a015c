"""From a checkpoint on disk to an artefact over it: fine-tuned end to end, projected and stored in the registry, then
heads and memory above it."""

import hashlib
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classifier.encoders.checkpoint import checkpoint_folder, keep_checkpoint
from classifier.encoders.native_transformer import servable_config
from classifier.encoders.pooled_transformer import PooledTransformer
from classifier.encoders.transformer_encoder import PooledProjection, TransformerEncoder
from classifier.errors import TrainingDataError
from classifier.features.routing_input import routing_input_of_text
from classifier.training.data.dataset import HEADS, RIGHT, TIER_MODELS, OutcomeRow, outcome_labels, tier_scores
from classifier.training.recipes.fine_tune import FineTuneSettings, LabelledTexts, fine_tune, save_checkpoint
from classifier.training.recipes.train_static import (
    Candidate,
    Progress,
    domains_of,
    encode_split,
    rows_by_split,
    train_over_encoder,
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
    tuned = fine_tune(transformer, texts, labelled_texts(valid, models), settings, work=work, report=report)
    mean, projection = principal_directions(transformer.encode(texts.texts), dim)
    registry.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=registry, prefix=".fine-tuned-") as folder:
        save_checkpoint(Path(folder), transformer.model, transformer.tokenizer)
        sha256 = keep_checkpoint(Path(folder), registry)
    return TransformerEncoder(
        checkpoint_folder(registry, sha256),
        sha256,
        max_tokens=transformer.max_tokens,
        above=PooledProjection(mean, projection, tuned.head_weight[:, : len(HEADS)], tuned.head_bias[: len(HEADS)]),
    )


def principal_directions(states: Float, dim: int) -> tuple[Float, Float]:
    """Return (mean [hidden], projection [hidden, at most dim]) of `states` [n, hidden]; signs are fixed, so that equal
    states give equal projections."""
    mean = states.mean(axis=0)
    centred = (states - mean).astype(np.float64)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    projection = vectors[:, ::-1][:, : min(dim, states.shape[1])]
    signs = np.sign(projection[np.abs(projection).argmax(axis=0), np.arange(projection.shape[1])])
    return mean.astype(np.float32), np.ascontiguousarray(projection * signs).astype(np.float32)


_FOLDS = 5


def unseen_by_fine_tuning(rows: Sequence[OutcomeRow]) -> npt.NDArray[np.bool_]:
    """Return a mask [n] of the fifth of the training rows that fine-tuning leaves out: the layers above learn on it how
    far to trust the encoder's logits on new prompts. Questions about one passage stay together."""
    starts = [re.sub(r"\W+", " ", row.prompt.lower())[:300] for row in rows]
    return np.array(
        [hashlib.blake2b(s.encode(errors="replace"), digest_size=4).digest()[0] % _FOLDS == 0 for s in starts]
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

    Four fifths of the train split fine-tune; heads and memory are fitted on the remaining fifth, to learn how far to
    trust the encoder on new ones; the valid split stops fine-tuning early and calibrates. An interrupted run resumes.

    Raises `CheckpointError` for a checkpoint that cannot be read or served, `TrainingDataError` if a part has no rows.
    """
    servable_config(checkpoint)
    settings = settings or FineTuneSettings(seed=seed)
    splits = rows_by_split(rows)
    unseen = unseen_by_fine_tuning(splits["train"])
    tuned = [row for row, kept in zip(splits["train"], unseen, strict=True) if not kept]
    above = {
        "heads": [row for row, kept in zip(splits["train"], unseen, strict=True) if kept],
        "valid": splits["valid"],
    }
    for name, members in {"tuned": tuned, **above}.items():
        if not members:
            raise TrainingDataError(f"no row is left for {name!r}; fine-tuning needs rows of every part.")

    def report(now: Descent, steps: int) -> None:
        progress(f"fine-tuning, valid loss {now.losses[-1][1]:.4f}", 0.7 * now.step / steps)

    progress("fine-tuning", 0.0)
    encoder = fit_transformer(
        checkpoint, root, tuned, above["valid"], settings, dim=dim, work=root / WORK, report=report
    )
    progress("encoding", 0.7)
    groups = domains_of(rows)
    encoded = {
        name: encode_split(encoder, members, [routing_input_of_text(row.prompt) for row in members], groups)
        for name, members in above.items()
    }
    return train_over_encoder(
        encoder,
        encoded["heads"],
        encoded["valid"],
        root,
        rows=rows,
        counts={"fine_tuned": len(tuned)},
        seed=seed,
        progress=progress,
    )
