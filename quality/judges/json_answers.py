"""Judges of answers that obey a schema. JSON must parse and follow the request's schema. Calls of tools that cannot be
made are worse, and calls are equal by name and, field by field, by arguments; no call is ever made."""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from quality.judges.judge import Judge, JudgeVerdict
from tiers.conversation import Call, Tool, Tooling
from tiers.final_answer.structured import compared_calls
from tiers.response_format import schema_of


class UnsupportedSchemaError(ValueError):
    """The schema cannot be evaluated: nothing can be said of any value."""


def is_valid(value: Any, schema: Any) -> bool:
    """Whether `value` (as `json.loads` gives it) obeys `schema`; JSON Schema 2020-12 unless `$schema` names a draft.

    `format` is an annotation, and a reference never leaves the schema: nothing is fetched. Raises
    `UnsupportedSchemaError` where the schema itself is invalid, refers to something it does not hold or never ends, and
    where it has patterns: callers choose them, and with the interpreter's own expressions 30 characters can take hours.
    """
    # Imported here: only processes that judge answers pay the library's 60 ms.
    from jsonschema import SchemaError
    from referencing.exceptions import Unresolvable

    try:
        return bool(_validator(json.dumps(schema, sort_keys=True)).is_valid(value))
    except SchemaError as error:
        raise UnsupportedSchemaError(f"the schema is invalid: {error.message}") from error
    except Unresolvable as error:
        raise UnsupportedSchemaError(f"the reference {error.ref!r} leads nowhere") from error
    except (TypeError, AttributeError) as error:
        # Of a schema, or of a `$schema`, that is of another type than any.
        raise UnsupportedSchemaError(f"the schema is invalid: {error}") from error
    except RecursionError as error:
        raise UnsupportedSchemaError("the schema is nested too deeply or refers to itself without end") from error


@lru_cache(maxsize=64)
def _validator(text: str) -> Any:
    """The validator of the schema in `text`. Kept, since checking a schema takes milliseconds and applications send the
    same one again and again."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = json.loads(text)
    if _has_pattern(schema):
        raise UnsupportedSchemaError("patterns are not evaluated")
    kind = validator_for(schema, default=Draft202012Validator)
    kind.check_schema(schema)
    return kind(schema, registry=Registry())


def _has_pattern(schema: Any) -> bool:
    """Whether a keyword with a regular expression is anywhere in it."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if isinstance(part.get("pattern"), str) or isinstance(part.get("patternProperties"), dict):
                return True
            left += part.values()
        elif isinstance(part, list):
            left += part
    return False


_ASKS_FOR_JSON = re.compile(r"\bjson\b", re.IGNORECASE)
_ABOUT_JSON = re.compile(
    r"\b(?:what is|what's|explain|describe|difference between|parse|convert from)\b[^.?!\n]{0,30}\bjson\b",
    re.IGNORECASE,
)
_FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.DOTALL | re.IGNORECASE)
_INVALID = object()


class JsonValidityJudge(Judge):
    """Applies if the prompt or the request's `response_format` asks for JSON; a schema there must be followed.

    It abstains on two valid answers with different values, and where the reference is invalid: only an answer that
    obeys the request's `response_format` is then no worse.
    """

    name = "json"
    basis = "check"

    async def judge(
        self, *, prompt: str, answer: str, reference_answer: str, response_format: dict[str, Any] | None = None
    ) -> JudgeVerdict:
        """Score 1 if the answer has the reference's values or is valid alone, 0 if only the reference is valid."""
        if not self.may_decide(prompt, response_format):
            return JudgeVerdict(no_worse=None, reason="the prompt does not ask for JSON")
        try:
            actual, expected = (_checked(text, response_format) for text in (answer, reference_answer))
        except UnsupportedSchemaError as error:
            return JudgeVerdict(no_worse=None, reason=f"the request's schema cannot be checked: {error}")
        wanted = "JSON by the request's schema" if schema_of(response_format) is not None else "valid JSON"
        if actual is _INVALID and expected is not _INVALID:
            return JudgeVerdict(
                no_worse=False, score=0.0, reason=f"the answer is not {wanted}, the strongest tier's is"
            )
        if expected is _INVALID and (actual is _INVALID or response_format is None):
            reason = f"the strongest tier's answer is not {wanted}"
            return JudgeVerdict(no_worse=None, reason=reason, is_comparable=False)
        if expected is _INVALID:
            return JudgeVerdict(no_worse=True, score=1.0, reason=f"of both answers only this is {wanted}")
        if _same(actual, expected):
            return JudgeVerdict(no_worse=True, score=1.0, reason="both answers hold the same JSON value")
        return JudgeVerdict(no_worse=None, reason=f"both answers are {wanted} with different values")

    def may_decide(self, prompt: str, response_format: dict[str, Any] | None) -> bool:
        return response_format is not None or bool(_ASKS_FOR_JSON.search(prompt) and not _ABOUT_JSON.search(prompt))


def _checked(text: str, response_format: dict[str, Any] | None) -> Any:
    """Return the value in `text`, or `_INVALID`. A code fence is accepted only if the prompt alone asks for JSON."""
    value = _parsed(text, fenced=response_format is None)
    if value is _INVALID or response_format is None:
        return value
    schema = schema_of(response_format)
    obeys = isinstance(value, dict) if schema is None else is_valid(value, schema)
    return value if obeys else _INVALID


def _parsed(text: str, *, fenced: bool) -> Any:
    fence = _FENCE.fullmatch(text) if fenced else None
    try:
        return json.loads(fence.group(1) if fence else text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return _INVALID


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _same(left: Any, right: Any) -> bool:
    """Equality of JSON values: 1 equals 1.0, but neither equals true."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


NAME = "tool_calls"


def flaw_of(calls: Sequence[Call], tooling: Tooling | None) -> str | None:
    """Return why an answer with these `calls` can be of no use, whatever another one says: no call although
    `tool_choice` asks for one, a tool that may not be called, or arguments that are not JSON or not valid by the tool's
    schema. None without such a flaw, also where a schema cannot be evaluated."""
    if not calls:
        return "no tool is called, and tool_choice asks for a call" if tooling and tooling.is_forced else None
    callable_tools = {tool.name: tool for _, tool in tooling.callable_tools} if tooling is not None else {}
    for call in calls:
        tool = callable_tools.get(call.name)
        if tool is None:
            return "a tool is called that may not be"
        if (flaw := _malformed(call, tool)) is not None:
            return f"the call of {call.name} is malformed: {flaw}"
    return None


def _malformed(call: Call, tool: Tool) -> str | None:
    try:
        arguments = json.loads(call.arguments or "{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return "its arguments are not JSON"
    if not isinstance(arguments, dict):
        return "its arguments are no JSON object"
    try:
        return None if is_valid(arguments, tool.schema) else "its arguments are not valid by the tool's schema"
    except UnsupportedSchemaError:
        return None


def judge_calls(tooling: Tooling | None, calls: Sequence[Call], reference_calls: Sequence[Call]) -> JudgeVerdict:
    """Compare two answers, one of which calls tools; the score is the share of equal fields.

    An answer that calls no tool differs from one that does, but neither is shown to be better: no label. Nor is there
    one for equal calls of which nothing but long free texts could be compared.
    """
    if not calls or not reference_calls:
        return JudgeVerdict(no_worse=None, score=0.0, reason="one answer calls a tool, the other is a text")
    compared = compared_calls(() if tooling is None else tooling.tools, calls, reference_calls)
    if compared is None:
        return JudgeVerdict(no_worse=None, reason="the calls cannot be compared field by field")
    if compared.unequal:
        reason = f"{compared.equal} of {compared.equal + compared.unequal} fields of the calls are equal"
        return JudgeVerdict(no_worse=False, score=compared.share, reason=reason)
    if compared.free and not compared.arguments:
        return JudgeVerdict(no_worse=None, score=1.0, reason="nothing but long free texts to compare")
    apart = f", {compared.free} long free texts apart" if compared.free else ""
    return JudgeVerdict(no_worse=True, score=1.0, reason=f"the calls are equal{apart}")
