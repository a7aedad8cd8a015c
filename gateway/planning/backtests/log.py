"""A log of prompts, one JSON object per line, as a back-test reads it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

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

    @property
    def turns(self) -> list[LogMessage]:
        """The conversation; a bare prompt is one turn."""
        return self.messages if self.messages is not None else [LogMessage("user", self.prompt)]


def read_log(path: Path) -> Iterator[LogRow]:
    """Yield rows in file order, gzipped or not; empty lines are skipped. Raises `BacktestLogError`."""
    for where, row in json_lines(path, LogRow, BacktestLogError, "."):
        if (row.prompt is None) == (row.messages is None):
            raise BacktestLogError(f'{where}: give either "prompt" or "messages".')
        yield row


class TierNames:
    """Maps a name in `scores` to a tier: its number, `tier-N`, or an entry of `named` (a model's name → number)."""

    def __init__(self, tiers: int, named: Mapping[str, int] | None = None) -> None:
        numbers = range(1, tiers + 1)
        self._numbers = {str(k): k for k in numbers} | {f"tier-{k}": k for k in numbers} | dict(named or {})
        self.tiers = tiers

    def scores(self, row: LogRow) -> list[float | None]:
        """Return the score by tier, None where there is none. Raises `BacktestLogError` for an unknown name."""
        scores: list[float | None] = [None] * self.tiers
        for name, score in row.scores.items():
            number = self._numbers.get(name)
            if number is None:
                raise BacktestLogError(
                    f"row {row.id}: unknown name {name!r} in scores; known are {', '.join(self._numbers)}. "
                    f"Name its tier: --tier {name}=NUMBER."
                )
            scores[number - 1] = score
        return scores
