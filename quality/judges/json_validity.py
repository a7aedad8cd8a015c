"""The judge for JSON answers: they must parse and follow the request's schema."""

import json
import re
from typing import Any

from quality.judges.json_schema import UnsupportedSchemaError, is_valid
from quality.judges.judge import Judge, JudgeVerdict

_ASKS_FOR_JSON = re.compile(r"\bjson\b", re.IGNORECASE)
_ABOUT_JSON = re.compile(
    r"\b(?:what is|what's|explain|describe|difference between|parse|convert from)\b[^.?!\n]{0,30}\bjson\b",
    re.IGNORECASE,
)
_FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.DOTALL | re.IGNORECASE)
_INVALID = object()


class JsonValidityJudge(Judge):
    """Applies if the prompt or the request's `response_format` asks for JSON; a schema there must be followed.

    It abstains on two valid answers with different values.
    """

    name = "json"
    basis = "check"

    async def judge(
        self, *, prompt: str, answer: str, reference_answer: str, response_format: dict[str, Any] | None = None
    ) -> JudgeVerdict:
        """Score 1 if the answer has the reference's values or only the reference is invalid, else 0."""
        if not self.may_decide(prompt, response_format):
            return JudgeVerdict(no_worse=None, reason="the prompt does not ask for JSON")
        try:
            given, expected = (_checked(text, response_format) for text in (answer, reference_answer))
        except UnsupportedSchemaError as error:
            return JudgeVerdict(no_worse=None, reason=f"the request's schema cannot be checked: {error}")
        wanted = "JSON by the request's schema" if _schema(response_format) is not None else "valid JSON"
        if given is _INVALID and expected is not _INVALID:
            return JudgeVerdict(
                no_worse=False, score=0.0, reason=f"the answer is not {wanted}, the strongest tier's is"
            )
        if expected is _INVALID:
            # An equally unusable answer from a more expensive tier is no improvement.
            return JudgeVerdict(no_worse=True, score=1.0, reason=f"the strongest tier's answer is not {wanted}")
        if _same(given, expected):
            return JudgeVerdict(no_worse=True, score=1.0, reason="both answers hold the same JSON value")
        return JudgeVerdict(no_worse=None, reason=f"both answers are {wanted} with different values")

    def may_decide(self, prompt: str, response_format: dict[str, Any] | None) -> bool:
        """See `Judge.may_decide`."""
        return response_format is not None or bool(_ASKS_FOR_JSON.search(prompt) and not _ABOUT_JSON.search(prompt))


def _checked(text: str, response_format: dict[str, Any] | None) -> Any:
    """Return the value in `text`, or `_INVALID`. A code fence is accepted only if the prompt alone asks for JSON."""
    value = _parsed(text, fenced=response_format is None)
    if value is _INVALID or response_format is None:
        return value
    schema = _schema(response_format)
    obeys = isinstance(value, dict) if schema is None else is_valid(value, schema)
    return value if obeys else _INVALID


def _schema(response_format: dict[str, Any] | None) -> Any:
    return ((response_format or {}).get("json_schema") or {}).get("schema")


def _parsed(text: str, *, fenced: bool) -> Any:
    fence = _FENCE.fullmatch(text) if fenced else None
    try:
        return json.loads(fence.group(1) if fence else text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return _INVALID


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _same(one: Any, other: Any) -> bool:
    """Equality of JSON values: 1 equals 1.0, but neither equals true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
