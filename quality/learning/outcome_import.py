"""A team's existing outcomes: prompts with a score for each tier's answer become labels, are listed and are deleted."""

import hashlib
import math
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.model.outcome_model import OutcomeModel
from inference_core.io.json_lines import json_lines
from migrations.tables.audit import audited
from migrations.tables.quality import outcome_imports, training_rows
from quality.verification.training_rows import encode_prompt

SOURCE = "imported"
DELETED = "outcomes.deleted"
_BATCH = 200
MOST_LISTED = 1000


class OutcomeFileError(ValueError):
    """A file of outcomes is invalid; the message names the line."""


class ImportedOutcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line: a `prompt` or chat `messages`, and `scores` of the tiers' answers by tier number; higher is better."""

    scores: dict[str, float]
    prompt: str | None = None
    messages: list[dict[str, str]] | None = None

    @property
    def chat(self) -> list[dict[str, str]]:
        return self.messages or [{"role": "user", "content": self.prompt or ""}]


class TierUnderstood(msgspec.Struct, frozen=True, kw_only=True):
    """In how many `of` its scored answers a tier was `good`, that is, no worse than the strongest."""

    tier: int
    good: int
    of: int


class CloseCall(msgspec.Struct, frozen=True, kw_only=True):
    """The answer nearest to the border: its score, the strongest tier's for the prompt, and whether it is good."""

    tier: int
    score: float
    strongest: float
    good: bool


class Understood(msgspec.Struct, frozen=True, kw_only=True):
    """What a file's scores were taken to say at a `margin`."""

    prompts: int
    margin: float
    tiers: list[TierUnderstood]
    closest: CloseCall | None
    """Of the answers below the strongest tier's, the best that counts as worse, or else the worst that counts as good;
    None if no answer is below.
    """

    def in_words(self) -> str:
        """Return it as one sentence."""
        said = [f"tier {tier.tier} good in {tier.good} of {tier.of}" for tier in self.tiers]
        if self.closest is not None:
            call = self.closest
            counts = "good" if call.good else "worse"
            said.append(f"{call.score:g} against {call.strongest:g} counts as {counts} at margin {self.margin:g}")
        return "; ".join(said)


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """An import."""

    import_id: str
    file: str
    margin: float
    weight: float
    created_at: float
    understood: Understood
    labels: int
    """How many of its prompts are still labelled by it."""
    key_id: str | None
    """The key whose they are; None for no key's or where none is left."""


def understood(outcomes: Sequence[ImportedOutcome], tiers: int, margin: float) -> Understood:
    """Return what the scores of `outcomes` say of a catalogue of `tiers` tiers."""
    counts = {number: [0, 0] for number in range(1, tiers)}
    calls = []
    for outcome in outcomes:
        strongest = outcome.scores[str(tiers)]
        for number in range(1, tiers):
            if (score := outcome.scores.get(str(number))) is not None:
                good = score >= strongest - margin
                counts[number][0] += good
                counts[number][1] += 1
                if score < strongest:
                    calls.append(CloseCall(tier=number, score=score, strongest=strongest, good=good))
    worse = [call for call in calls if not call.good]
    return Understood(
        prompts=len(outcomes),
        margin=margin,
        tiers=[TierUnderstood(tier=number, good=good, of=of) for number, (good, of) in counts.items() if of],
        closest=min(worse, key=_gap) if worse else max(calls, key=_gap, default=None),
    )


def _gap(call: CloseCall) -> float:
    return call.strongest - call.score


def read_outcomes(path: Path, tiers: int) -> list[ImportedOutcome]:
    """Read a JSON-lines file for a catalogue of `tiers` tiers. Raises `OutcomeFileError`."""
    outcomes = [_checked(row, tiers, where) for where, row in json_lines(path, ImportedOutcome, OutcomeFileError)]
    if not outcomes:
        raise OutcomeFileError(f"{path} has no line")
    return outcomes


def _checked(outcome: ImportedOutcome, tiers: int, where: str) -> ImportedOutcome:
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
    file: str = "",
) -> Imported:
    """Store `outcomes` of a `file` as labels. An earlier import of a prompt is replaced.

    A tier's answer is no worse if its score is at most `margin` below the strongest tier's. `tiers`: fingerprints of
    the catalogue's tiers; `key_id`: the key that the prompts belong to; `weight` in [0, 1]: of such a label.
    """
    import_id = f"import-{uuid.uuid4().hex}"
    rows = {row["request_id"]: row for row in _rows(model, outcomes, tiers, key_id, margin, weight, now)}
    stored = [row | {"import_id": import_id} for row in rows.values()]
    made: dict[str, Any] = {"import_id": import_id, "file": file, "margin": margin, "weight": weight, "created_at": now}
    said = understood(outcomes, len(tiers), margin)
    async with engine.begin() as connection:
        for first in range(0, len(stored), _BATCH):
            part = stored[first : first + _BATCH]
            same = training_rows.c.request_id.in_([row["request_id"] for row in part])
            await connection.execute(delete(training_rows).where(same, training_rows.c.source == SOURCE))
            await connection.execute(insert(training_rows), part)
        await connection.execute(insert(outcome_imports).values(**made, understood=said))
    return Imported(**made, understood=said, labels=len(stored), key_id=key_id)


async def list_imports(engine: AsyncEngine) -> list[Imported]:
    """Return the newest imports that were not deleted, newest first."""
    left = func.count(training_rows.c.training_row_id).label("labels")
    query = (
        select(*outcome_imports.c, left, func.min(training_rows.c.key_id).label("key_id"))
        .outerjoin(training_rows, training_rows.c.import_id == outcome_imports.c.import_id)
        .where(
            outcome_imports.c.import_id.in_(
                select(outcome_imports.c.import_id).order_by(outcome_imports.c.created_at.desc()).limit(MOST_LISTED)
            )
        )
        .group_by(outcome_imports.c.import_id)
        .order_by(outcome_imports.c.created_at.desc())
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).mappings().all()
    return [msgspec.convert({str(name): value for name, value in row.items()}, Imported) for row in rows]


async def delete_import(
    engine: AsyncEngine, import_id: str, *, actor: str, reason: str | None, now: float
) -> int | None:
    """Delete an import and its labels, which then move no decision and train nothing; return their number, None for an
    unknown import. Labels that it replaced do not come back."""
    async with engine.begin() as connection:
        deleted = await connection.execute(delete(outcome_imports).where(outcome_imports.c.import_id == import_id))
        if not deleted.rowcount:
            return None
        gone = await connection.execute(delete(training_rows).where(training_rows.c.import_id == import_id))
        await connection.execute(audited(now, actor, DELETED, import_id, reason, {"labels": gone.rowcount}))
    return gone.rowcount


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
            "request_id": f"import-{hashlib.sha256(msgspec.json.encode([key_id, outcome.chat])).hexdigest()[:32]}",
            "key_id": key_id,
            "source": SOURCE,
            **msgspec.structs.asdict(encode_prompt(model, outcome.chat)),
            "no_worse": [*(None if score is None else score >= least for score in scores[:-1]), True],
            "correct": None,
            "weights": [*(0.0 if score is None else weight for score in scores[:-1]), 0.0],
            "tiers": list(tiers),
            "created_at": now,
        }
