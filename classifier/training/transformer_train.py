"""Training an artefact over a checkpoint on disk: fine-tuned end to end, then heads and memory above it."""

from collections.abc import Sequence
from pathlib import Path

from classifier.errors import TrainingDataError
from classifier.routing_input import routing_input_of_text
from classifier.training.dataset import OutcomeRow
from classifier.training.fine_tune import FineTuneSettings
from classifier.training.over_encoder import train_over_encoder
from classifier.training.resumable_loop import Progress as Descent
from classifier.training.train import Candidate, Progress, encode_split
from classifier.training.transformer_fit import EMBEDDING_DIM, fit_transformer, unseen_by_fine_tuning

# Under the registry, until the artefact is written: what an interrupted fine-tuning goes on with.
WORK = ".fine-tuning"


def train_over_checkpoint(
    rows: Sequence[OutcomeRow],
    root: Path,
    checkpoint: Path,
    *,
    settings: FineTuneSettings | None = None,
    hold: Sequence[str] = (),
    dim: int = EMBEDDING_DIM,
    seed: int = 0,
    progress: Progress = lambda stage, share: None,
) -> Candidate:
    """Train on the rows' own splits and write `root/<version>/`, with the fine-tuned checkpoint beside it.

    Four fifths of the train split fine-tune; heads and memory are fitted on the fifth that fine-tuning did not see, so
    that they learn what the encoder is worth on new prompts; the valid split stops fine-tuning early and calibrates.
    Rows of domains in `hold` train nothing. An interrupted run goes on where it was.

    Raises `CheckpointError` for a checkpoint that cannot be read, `TrainingDataError` if a part has no rows.
    """
    settings = settings or FineTuneSettings(seed=seed)
    used = [row for row in rows if row.domain not in hold]
    groups = sorted({row.domain for row in rows})
    splits = {split: [row for row in used if row.split == split] for split in ("train", "valid", "test")}
    unseen = unseen_by_fine_tuning(splits["train"])
    parts = {
        "tuned": [row for row, kept in zip(splits["train"], unseen, strict=True) if not kept],
        "heads": [row for row, kept in zip(splits["train"], unseen, strict=True) if kept],
        **splits,
    }
    for name, members in parts.items():
        if not members:
            raise TrainingDataError(f"no row is left for {name!r}; fine-tuning needs all of {', '.join(parts)}.")
    if held_out := [row for row in rows if row.domain in hold]:
        parts["unseen"] = held_out

    def report(now: Descent, steps: int) -> None:
        progress(f"fine-tuning, valid loss {now.losses[-1][1]:.4f}", 0.7 * now.step / steps)

    progress("fine-tuning", 0.0)
    encoder = fit_transformer(
        checkpoint, root, parts["tuned"], parts["valid"], settings, dim=dim, work=root / WORK, report=report
    )
    progress("encoding", 0.7)
    prompts = {name: [routing_input_of_text(row.prompt) for row in members] for name, members in parts.items()}
    encoded = {
        name: encode_split(encoder, members, prompts[name], groups)
        for name, members in parts.items()
        if name != "tuned"
    }
    return train_over_encoder(
        encoder,
        encoded,
        prompts,
        root,
        used=used,
        groups=groups,
        fit_on="heads",
        counts={"fine_tuned": len(parts["tuned"])},
        seed=seed,
        progress=progress,
    )
