"""Import of a team's existing outcomes: prompts with a score for each tier's answer become labels of the catalogue."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import delete, insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.model.outcome_model import OutcomeModel
from inference_core.io.json_errors import JSON_ERRORS
from migrations.tables.quality import training_rows
from quality.verification.training_rows import encode_prompt

SOURCE = "imported"
_BATCH = 200


class OutcomeFileError(ValueError):
    """A file of outcomes is invalid; the message names the line."""


class ImportedOutcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line: a `prompt` or chat `messages`, and `scores` of the tiers' answers by tier number; higher is better."""

    scores: dict[str, float]
    prompt: str | None = None
    messages: list[dict[str, str]] | None = None

    @property
    def chat(self) -> list[dict[str, str]]:
        """The prompt as chat messages."""
        return self.messages or [{"role": "user", "content": self.prompt or ""}]


def read_outcomes(path: Path, tiers: int) -> list[ImportedOutcome]:
    """Read a JSON-lines file for a catalogue of `tiers` tiers. Raises `OutcomeFileError` and `OSError`."""
    found = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                found.append(_checked(line, tiers, f"{path}, line {number}"))
    if not found:
        raise OutcomeFileError(f"{path} has no line")
    return found


def _checked(line: bytes, tiers: int, where: str) -> ImportedOutcome:
    try:
        outcome = msgspec.json.decode(line, type=ImportedOutcome)
    except JSON_ERRORS as error:
        raise OutcomeFileError(f"{where}: {error}") from error
    if (outcome.prompt is None) == (outcome.messages is None):
        raise OutcomeFileError(f"{where}: give either prompt or messages")
    if not any(message.get("role") == "user" and message.get("content") for message in outcome.chat):
        raise OutcomeFileError(f"{where}: there is no text of a user")
    if any(set(message) != {"role", "content"} for message in outcome.chat):
        raise OutcomeFileError(f"{where}: a message has a role and a content, both text")
    unknown = [name for name in outcome.scores if name not in map(str, range(1, tiers + 1))]
    if unknown:
        raise OutcomeFileError(f"{where}: there is no tier {unknown[0]!r}; this catalogue has 1 to {tiers}")
    if str(tiers) not in outcome.scores or len(outcome.scores) < 2:
        raise OutcomeFileError(f"{where}: scores of tier {tiers}, the strongest, and of another tier are needed")
    if not all(math.isfinite(score) for score in outcome.scores.values()):
        raise OutcomeFileError(f"{where}: a score is no number")
    return outcome


async def import_outcomes(
    engine: AsyncEngine,
    model: OutcomeModel,
    outcomes: Sequence[ImportedOutcome],
    *,
    tiers: Sequence[str],
    key_id: str | None = None,
    margin: float = 0.0,
    weight: float = 1.0,
    now: float,
) -> int:
    """Store `outcomes` as labels and return the number of rows. An earlier import of a prompt is replaced.

    A tier's answer is no worse if its score is at most `margin` below the strongest tier's. `tiers`: fingerprints of
    the catalogue's tiers; `key_id`: the key that the prompts belong to; `weight` in [0, 1]: of such a label.
    """
    rows = {row["request_id"]: row for row in _rows(model, outcomes, tiers, key_id, margin, weight, now)}
    stored = list(rows.values())
    async with engine.begin() as connection:
        for first in range(0, len(stored), _BATCH):
            part = stored[first : first + _BATCH]
            same = training_rows.c.request_id.in_([row["request_id"] for row in part])
            await connection.execute(delete(training_rows).where(same, training_rows.c.source == SOURCE))
            await connection.execute(insert(training_rows), part)
    return len(stored)


def _rows(
    model: OutcomeModel,
    outcomes: Sequence[ImportedOutcome],
    tiers: Sequence[str],
    key_id: str | None,
    margin: float,
    weight: float,
    now: float,
) -> Iterator[dict[str, Any]]:
    for outcome in outcomes:
        least = outcome.scores[str(len(tiers))] - margin
        scores = [outcome.scores.get(str(number)) for number in range(1, len(tiers) + 1)]
        yield {
            "request_id": f"import-{_digest(key_id, outcome.chat)}",
            "key_id": key_id,
            "source": SOURCE,
            **msgspec.structs.asdict(encode_prompt(model, outcome.chat)),
            "no_worse": [*(None if score is None else score >= least for score in scores[:-1]), True],
            "correct": None,
            "weights": [*(0.0 if score is None else weight for score in scores[:-1]), 0.0],
            "tiers": list(tiers),
            "created_at": now,
        }


def _digest(key_id: str | None, messages: list[dict[str, str]]) -> str:
    """Return an id that is the same for the same prompt of the same key."""
    return hashlib.sha256(msgspec.json.encode([key_id, messages])).hexdigest()[:32]
