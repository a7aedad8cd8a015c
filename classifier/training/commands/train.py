"""The command `aio classifier train`, independent of the command-line library."""

from pathlib import Path

from classifier.training.data.dataset import data_folder, load_outcomes
from classifier.training.recipes.train_hidden_state import ReadLayer, train_over_hidden_states
from classifier.training.recipes.train_static import Candidate, Progress, hidden_states, train


def train_command(
    root: Path,
    *,
    data: Path | None = None,
    encoder: Path | ReadLayer | None = None,
    teacher: str = "",
    seed: int = 0,
    progress: Progress = lambda stage, share: None,
) -> Candidate:
    """Train on known outcomes into the registry `root`; nothing is promoted.

    `data`: folder with routing_outcomes.jsonl.gz; by default `AIO_DATA` or ../shared/data. `encoder`, instead of the
    static one: the folder of a Hugging Face checkpoint to fine-tune, or the layer of a model whose hidden states to
    read. `teacher`: model whose hidden states the static one is distilled from ("" for none); they are computed once,
    in minutes, and kept in the user's cache. Raises `TrainingDataError` if the data are missing, `ModelFileError` if
    the teacher is.
    """
    rows = load_outcomes(data or data_folder())
    if encoder is None:
        return train(rows, root, teacher=hidden_states(teacher, progress), seed=seed, progress=progress)
    if isinstance(encoder, ReadLayer):
        return train_over_hidden_states(rows, root, encoder, seed=seed, progress=progress)
    # Loads torch and transformers, which the static encoder does not need.
    from classifier.training.recipes.train_transformer import train_over_checkpoint

    return train_over_checkpoint(rows, root, encoder, seed=seed, progress=progress)
