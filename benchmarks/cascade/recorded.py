"""Recorded final answers of a ladder of models: which are right, and which agree."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report.measurement import packed_rows
from tiers.final_answer.extract import AnswerKind, FinalAnswer
from tiers.final_answer.extract import agree as agreed

COMPARATOR = "tiers.final_answer.agree: key words by containment or F1 >= 0.5, else equal; none never agrees"
# The kinds of `tiers.final_answer` by the file's formats; other formats are compared as they are written.
_KINDS: dict[str, AnswerKind] = {"letter": "choice", "number": "number", "keywords": "entity", "entity": "entity"}


class Answer(NamedTuple):
    """A normalised final answer, None if none was found, and whether it is right (a share from 0 to 1)."""

    value: Any
    right: float


class Asked(NamedTuple):
    """A prompt with one answer of each model of the ladder. `weight`: 1 over the completions of the prompt, each of
    which is one of these; `prompt` numbers prompts."""

    prompt: int
    source: str
    domain: str
    kind: str
    weight: float
    answers: tuple[Answer, ...]


def read_answers(path: Path, ladder: Sequence[str], source: str | None, domain: str | None) -> list[Asked]:
    """Return the prompts of the file (JSON lines, packed or not) that every model of `ladder` answered; of `source` and
    `domain` alone, if given. Raises `ValueError` if there are none."""
    prompts: list[Asked] = []
    models: set[str] = set()
    for prompt, row in enumerate(packed_rows(path)):
        models.update(row["a"])
        if source in (None, row.get("source")) and domain in (None, row.get("domain")):
            prompts += _completions(prompt, row, ladder)
    if not prompts:
        missing = [name for name in ladder if name not in models]
        why = f"it has no answers of {', '.join(missing)}" if missing else "no prompt was answered by all of the ladder"
        raise ValueError(f"{path}: {why}; its models are {', '.join(sorted(models))}")
    return prompts


def agree(left: Any, right: Any, kind: str) -> bool:
    """Return whether two normalised answers of this format agree, as the gateway compares them; a missing one never
    does."""
    return agreed(_final(left, kind), _final(right, kind))


def kind_of(written: str) -> AnswerKind:
    """Return the kind of final answer that the file's format is."""
    return _KINDS.get(written, "literal")


def _final(value: Any, kind: str) -> FinalAnswer | None:
    if value is None or value in ("", []):
        return None
    return FinalAnswer(kind_of(kind), value if isinstance(value, str) else json.dumps(value))


def _completions(prompt: int, row: Mapping[str, Any], ladder: Sequence[str]) -> list[Asked]:
    """Return the prompt once for each completion that every model has."""
    by_model = [[answer for answer in row["a"].get(name) or [] if answer and answer[1] is not None] for name in ladder]
    count = min(map(len, by_model))
    origin = row.get("source") or "", row.get("domain") or "", row.get("format") or ""
    return [
        Asked(prompt, *origin, 1.0 / count, tuple(Answer(answers[i][0], float(answers[i][1])) for answers in by_model))
        for i in range(count)
    ]
