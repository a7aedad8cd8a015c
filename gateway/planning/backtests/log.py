"""A log of prompts, one JSON object per line: what a back-test reads, and its rows for training."""

import gzip
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from classifier.training.data.dataset import FILE, TIERS, OutcomeRow, load_outcomes, tier_scores
from inference_core.io.files import atomic_file
from inference_core.io.json_lines import json_lines

Tokens = Annotated[int, Meta(ge=0, le=100_000_000)]
Score = Annotated[float, Meta(ge=0, le=1)]


class BacktestLogError(ValueError):
    """The log cannot be used; the message names file, line and the rule."""


class LogMessage(msgspec.Struct, frozen=True):
    """One turn in OpenAI's form; of content parts only the texts are used."""

    role: str
    content: str | list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(str(part.get("text", "")) for part in self.content or ())


class LogRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Exactly one of `prompt` and `messages` is given; unknown fields are ignored."""

    id: str | int | None = None
    prompt: str | None = None
    messages: list[LogMessage] | None = None
    prompt_tokens: Tokens | None = None
    """As billed; if not given, they are estimated."""
    answer_tokens: Tokens | None = None
    """As billed; if not given, they are estimated."""
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    cost_usd: Annotated[float, Meta(ge=0)] | None = None
    """The actual cost."""
    scores: dict[str, Score] = {}
    """Quality of a tier's answer, 0 to 1 and right from 0.5 on, by the tier's number, its name or a key of `tiers`."""
    domain: str = "own"
    """The group of the prompt in a report on training."""
    split: str = ""
    """train, valid or test; drawn from the prompt if not given."""

    @property
    def turns(self) -> list[LogMessage]:
        """The conversation; a bare prompt is one turn."""
        return self.messages if self.messages is not None else [LogMessage("user", self.prompt)]

    @property
    def last_user_text(self) -> str:
        """The text that a classifier is trained on."""
        return next((turn.text for turn in reversed(self.turns) if turn.role == "user"), "")


def read_log(path: Path) -> Iterator[LogRow]:
    """Yield rows in file order, gzipped or not; empty lines are skipped. Raises `BacktestLogError`."""
    for where, row in json_lines(path, LogRow, BacktestLogError, "."):
        if (row.prompt is None) == (row.messages is None):
            raise BacktestLogError(f'{where}: give either "prompt" or "messages".')
        yield row


class TierNames:
    """Maps a name in `scores` to a tier: its number, `tier-N`, or an entry of `given` (a model's name → number)."""

    def __init__(self, tiers: int, given: Mapping[str, int] | None = None) -> None:
        numbers = range(1, tiers + 1)
        self._numbers = {str(k): k for k in numbers} | {f"tier-{k}": k for k in numbers} | dict(given or {})
        self.tiers = tiers

    def scores(self, row: LogRow) -> list[float | None]:
        """Return the score by tier, None where there is none. Raises `BacktestLogError` for an unknown name."""
        found: list[float | None] = [None] * self.tiers
        for name, score in row.scores.items():
            number = self._numbers.get(name)
            if number is None:
                raise BacktestLogError(
                    f"row {row.id}: unknown name {name!r} in scores; known are {', '.join(self._numbers)}. "
                    f"Name its tier: --tier {name}=NUMBER."
                )
            found[number - 1] = score
        return found


def training_rows(rows: Iterable[LogRow], names: TierNames) -> Iterator[OutcomeRow]:
    """Yield rows with at least two scores, one of them the strongest tier's, in the form for training.

    Raises `BacktestLogError` unless the catalogue has as many tiers as a classifier.
    """
    if names.tiers != TIERS:
        raise BacktestLogError(f"a classifier has {TIERS} tiers and the catalogue {names.tiers}; choose another.")
    for row in rows:
        scores = names.scores(row)
        if scores[-1] is None or sum(score is not None for score in scores) < 2:
            continue
        text = row.last_user_text
        digest = hashlib.sha256(text.encode(errors="replace")).digest()
        yield OutcomeRow(
            id=f"own-{digest.hex()[:16]}" if row.id is None else str(row.id),
            source="own",
            domain=row.domain,
            metric="label",
            split=row.split or _split(digest),
            prompt=text,
            outcomes={f"tier-{k}": score for k, score in enumerate(scores, start=1) if score is not None},
        )


def _split(digest: bytes) -> str:
    """Equal prompts get the same split: 70% train, 15% valid, 15% test."""
    place = int.from_bytes(digest[:4], "big") % 100
    return "train" if place < 70 else "valid" if place < 85 else "test"


def write_training(folder: Path, rows: Iterable[OutcomeRow]) -> int:
    """Write `rows` where `aio classifier train --data FOLDER` reads them; return how many."""
    written = 0
    with atomic_file(folder / FILE) as file, gzip.open(file, "wb") as packed:
        for row in rows:
            packed.write(msgspec.json.encode(row) + b"\n")
            written += 1
    return written


def write_example(path: Path, data: Path, most: int) -> int:
    """Write a log of the test rows of the public outcomes, which no model was trained on; return the number of rows.

    Raises `TrainingDataError` without the data.
    """
    rows = [row for row in load_outcomes(data) if row.split == "test"][:most]
    scores = tier_scores(rows)
    with atomic_file(path) as file:
        for row, known in zip(rows, scores.tolist(), strict=True):
            by_tier = {str(k): score for k, score in enumerate(known, start=1) if score == score}
            line = {"id": row.id, "messages": [{"role": "user", "content": row.prompt}], "scores": by_tier}
            file.write(msgspec.json.encode(line | {"domain": row.domain}) + b"\n")
    return len(rows)
