"""Train an artefact over a checkpoint on disk: fine-tuned end to end, then heads and memory above it."""

from collections.abc import Sequence
from pathlib import Path

from classifier.errors import TrainingDataError
from classifier.features.routing_input import routing_input_of_text
from classifier.training.data.dataset import OutcomeRow
from classifier.training.recipes.fine_tune import FineTuneSettings
from classifier.training.recipes.fit_transformer import EMBEDDING_DIM, fit_transformer, unseen_by_fine_tuning
from classifier.training.recipes.train_static import (
    Candidate,
    Progress,
    domains_of,
    encode_split,
    rows_by_split,
    train_over_encoder,
)
from classifier.training.recipes.training_loop import Progress as Descent

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

    Four fifths of the train split fine-tune; heads and memory are fitted on the remaining fifth, so that they learn how
    far to trust the encoder on new prompts; the valid split stops fine-tuning early and calibrates. An interrupted run
    resumes.

    Raises `CheckpointError` for a checkpoint that cannot be read, `TrainingDataError` if a part has no rows.
    """
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
