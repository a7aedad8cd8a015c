"""What `aio classifier train` does, free of any command-line library."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from classifier.registry import ArtefactRegistry
from classifier.training.dataset import data_folder, load_outcomes
from classifier.training.evaluate import Report, refusal_reasons
from classifier.training.hidden_train import ReadLayer, train_over_hidden_states
from classifier.training.report import report_text
from classifier.training.train import hidden_states, train

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class TrainOutcome:
    """What one run of `train_command` produced; `text` is the report as markdown, `json` the same as data."""

    folder: Path
    version: str
    promoted: bool
    refusals: list[str]
    text: str
    json: bytes


def train_command(
    root: Path,
    *,
    data: Path | None = None,
    hold: Sequence[str] = (),
    encoder: Path | ReadLayer | None = None,
    teacher: str = "",
    ordinal: bool = False,
    promote: bool = True,
    seed: int = 0,
    progress: Progress = lambda stage, share: None,
) -> TrainOutcome:
    """Train on the public outcomes into the registry `root`, evaluate on the test split, and promote unless refused.

    `data`: folder with routing_outcomes.jsonl.gz; by default `AIO_DATA` or ../shared/data. `hold`: domains that train
    nothing and are reported apart; such a run is an experiment and never promoted.
    `encoder`, in place of the static one: folder of a Hugging Face checkpoint to fine-tune, or the layer of a model
    whose hidden states to read. `teacher`:
    model whose hidden states the static one is distilled from ("" for none); they are computed once, in minutes, and
    kept in the user's cache. `ordinal`, with the static encoder: one score and a threshold per tier.
    Raises `TrainingDataError` if the data are missing, `ModelFileError` if the teacher is.
    """
    rows = load_outcomes(data or data_folder())
    if encoder is None:
        taught = hidden_states(teacher, progress)
        candidate = train(rows, root, hold=hold, teacher=taught, ordinal=ordinal, seed=seed, progress=progress)
    elif isinstance(encoder, ReadLayer):
        candidate = train_over_hidden_states(rows, root, encoder, hold=hold, seed=seed, progress=progress)
    else:
        # Loads torch and transformers, which the static encoder does without.
        from classifier.training.transformer_train import train_over_checkpoint

        candidate = train_over_checkpoint(rows, root, encoder, hold=hold, seed=seed, progress=progress)
    refusals = refusal_reasons(candidate.report)
    promoted = promote and not refusals and not hold
    if promoted:
        ArtefactRegistry(root).promote(candidate.model.version)
    text = report_text(candidate.report, refusals)
    if candidate.unseen is not None:
        text += "\n## Domains never trained on\n\n" + report_text(candidate.unseen, refusal_reasons(candidate.unseen))
    reports: dict[str, Report | None] = {"test": candidate.report, "unseen": candidate.unseen}
    return TrainOutcome(
        folder=candidate.folder,
        version=candidate.model.version,
        promoted=promoted,
        refusals=refusals,
        text=text,
        json=msgspec.json.encode({"version": candidate.model.version, "refusals": refusals, **reports}),
    )
