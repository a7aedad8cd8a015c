"""Known routing outcomes, public or a team's own, as training rows: scores of tiers per prompt, with given splits."""

import gzip
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from classifier.errors import TrainingDataError

FILE = "routing_outcomes.jsonl.gz"
TIERS = 4
# Metrics with a right-or-wrong target; f1 and coverage are word overlap. "label" marks rows labelled by a team.
EXACT_METRICS = ("mc", "math", "code", "label")
RIGHT = 0.5
# The model that represents each tier, by the source's prefix; None for a tier without one.
TIER_MODELS: dict[str, list[str | None]] = {
    "routellm": [None, "mixtral-8x7b-instruct", None, "gpt-4-1106-preview"],
    "llmrouter": [
        "mistral-7b-instruct-v0.3",
        "gemma-2-9b-it",
        "llama-3.3-nemotron-super-49b-v1",
        "llama-3.1-nemotron-51b-instruct",
    ],
}
PUBLIC = "lm-sys/RouteLLM (Apache-2.0) and ulab-uiuc/LLMRouter (MIT) routing outcomes"
HEADS = [*(f"no_worse_{k}" for k in range(1, TIERS)), *(f"correct_{k}" for k in range(1, TIERS + 1))]


class OutcomeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt with the score (0 to 1) of each model that answered it."""

    id: str
    source: str
    domain: str
    metric: str
    split: str
    prompt: str
    outcomes: dict[str, float]


def data_folder() -> Path:
    """Return the folder of public data: `AIO_DATA`, or `../shared/data` next to the repository; it need not exist."""
    return Path(os.environ.get("AIO_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")


def load_outcomes(folder: Path) -> list[OutcomeRow]:
    """Return all rows with an exact metric, in file order. Raises `TrainingDataError` for a missing or damaged file."""
    if not (folder / FILE).is_file():
        raise TrainingDataError(f"{FILE} is not in {folder}; set AIO_DATA to the folder that holds it.")
    try:
        with gzip.open(folder / FILE, "rb") as file:
            rows = [msgspec.json.decode(line, type=OutcomeRow) for line in file]
    except (OSError, EOFError, msgspec.MsgspecError) as error:
        raise TrainingDataError(f"{FILE}: {error}") from error
    return [row for row in rows if row.metric in EXACT_METRICS]


def data_hash(rows: list[OutcomeRow]) -> str:
    """Return the SHA-256 over the rows' content, in order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(msgspec.json.encode(row, order="sorted"))
    return digest.hexdigest()


def tier_scores(rows: list[OutcomeRow]) -> npt.NDArray[np.float32]:
    """Return scores [n, 4] by tier, NaN if no model of that tier answered."""
    scores = np.full((len(rows), TIERS), np.nan, np.float32)
    for i, row in enumerate(rows):
        models = next((m for prefix, m in TIER_MODELS.items() if row.source.startswith(prefix)), None)
        if models is None:
            raise TrainingDataError(f"row {row.id}: source {row.source!r}; known are {', '.join(TIER_MODELS)}.")
        for tier, model in enumerate(models):
            if model is not None and model in row.outcomes:
                scores[i, tier] = row.outcomes[model]
    return scores


def outcome_labels(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return labels [n, len(HEADS)] of verifiable rows, NaN unobserved: `correct_k` is score >= 0.5; `no_worse_k` is
    correct_k or not correct_4 (docs/classifier.md), known if both tiers answered."""
    correct = np.where(np.isnan(scores), np.nan, scores >= RIGHT)
    weaker, strongest = correct[:, :-1], correct[:, -1:]
    no_worse = np.where(np.isnan(weaker) | np.isnan(strongest), np.nan, np.maximum(weaker, 1 - strongest))
    return np.hstack([no_worse, correct]).astype(np.float32)


def models_of(rows: Iterable[OutcomeRow]) -> dict[str, list[str | None]]:
    """Return the part of `TIER_MODELS` with outcomes in `rows`."""
    sources = {row.source for row in rows}
    return {name: models for name, models in TIER_MODELS.items() if any(s.startswith(name) for s in sources)}
