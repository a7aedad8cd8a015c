"""What `aio classifier evaluate` does, free of any command-line library."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from classifier.artefact import load_artefact
from classifier.errors import TrainingDataError
from classifier.outcome_model import OutcomeModel
from classifier.routing_input import routing_input_of_text
from classifier.training.command import decision_milliseconds
from classifier.training.dataset import OutcomeRow, data_folder, load_outcomes, outcome_labels, tier_scores
from classifier.training.encoded_rows import EncodedRows, encode_rows
from classifier.training.evaluate import evaluate, refusal_reasons
from classifier.training.report import report_text
from classifier.training.train import heuristic_rows


@dataclass(frozen=True)
class EvaluateOutcome:
    """The evaluation of one artefact; `text` is the report as markdown, `json` the same as data."""

    version: str
    refusals: list[str]
    text: str
    json: bytes


def evaluate_command(folder: Path, *, data: Path | None = None) -> EvaluateOutcome:
    """Measure the artefact in `folder` on the test split of the public outcomes, thresholds from the valid split.

    `data`: folder with routing_outcomes.jsonl.gz; by default `AIO_DATA` or ../shared/data.
    Raises `ArtefactError`, and `TrainingDataError` if the data are missing or a split is empty.
    """
    model = load_artefact(folder)
    rows = load_outcomes(data or data_folder())
    numbers = {domain: i for i, domain in enumerate(sorted({row.domain for row in rows}))}
    parts = {split: [row for row in rows if row.split == split] for split in ("train", "valid", "test")}
    if empty := [split for split, members in parts.items() if not members]:
        raise TrainingDataError(f"the data have no rows of the splits {', '.join(empty)}; all three are needed.")
    encoded = {split: _encoded(model, members, numbers) for split, members in parts.items()}
    prompts = {split: [routing_input_of_text(row.prompt) for row in parts[split]] for split in ("valid", "test")}
    baselines = {"length heuristic": (heuristic_rows(prompts["valid"]), heuristic_rows(prompts["test"]))}
    report = evaluate(model, train=encoded["train"], valid=encoded["valid"], test=encoded["test"], baselines=baselines)
    refusals = refusal_reasons(report)
    median, p99 = decision_milliseconds(model, [row.prompt for row in parts["test"]][:500])
    return EvaluateOutcome(
        version=model.version,
        refusals=refusals,
        text=f"# {model.version}\n\n{report_text(report, refusals)}"
        f"\nDecision, CPU ms per prompt: median {median:.2f}, p99 {p99:.2f}.\n",
        json=msgspec.json.encode(
            {
                "version": model.version,
                "refusals": refusals,
                "test": report,
                "decision_cpu_ms": {"median": median, "p99": p99},
            }
        ),
    )


def _encoded(model: OutcomeModel, rows: list[OutcomeRow], numbers: dict[str, int]) -> EncodedRows:
    return encode_rows(
        model.encoder,
        [routing_input_of_text(row.prompt) for row in rows],
        outcome_labels(tier_scores(rows)),
        group=np.array([numbers[row.domain] for row in rows], np.int32),
    )
