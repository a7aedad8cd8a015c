"""The judge of answers that must be JSON: it parses or it does not, and equal values are equal answers."""

import json
import re
from typing import Any

from quality.judges.judge import Judge, Verdict

_ASKS_FOR_JSON = re.compile(r"\bjson\b", re.IGNORECASE)
_ABOUT_JSON = re.compile(
    r"\b(?:what is|what's|explain|describe|difference between|parse|convert from)\b[^.?!\n]{0,30}\bjson\b",
    re.IGNORECASE,
)
_FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.DOTALL | re.IGNORECASE)
_INVALID = object()


class JsonValidityJudge(Judge):
    """Applies to prompts that ask for JSON. Valid against valid with other values is left to the next judge."""

    name = "json"

    async def judge(self, *, prompt: str, answer: str, reference_answer: str) -> Verdict:
        """Score 1 where the answer holds the reference's values or only the reference fails to parse, else 0."""
        if not _ASKS_FOR_JSON.search(prompt) or _ABOUT_JSON.search(prompt):
            return Verdict(no_worse=None, reason="the prompt does not ask for JSON")
        given, expected = _parsed(answer), _parsed(reference_answer)
        if given is _INVALID and expected is not _INVALID:
            return Verdict(no_worse=False, score=0.0, reason="the answer is no valid JSON, the strongest tier's is")
        if expected is _INVALID:
            # Nobody is better off with an equally unusable answer from a dearer tier.
            return Verdict(no_worse=True, score=1.0, reason="the strongest tier's answer is no valid JSON")
        if given == expected:
            return Verdict(no_worse=True, score=1.0, reason="both answers hold the same JSON value")
        return Verdict(no_worse=None, reason="both answers are valid JSON with different values")


def _parsed(text: str) -> Any:
    fenced = _FENCE.fullmatch(text)
    try:
        return json.loads(fenced.group(1) if fenced else text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return _INVALID


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
