"""The judge of tool calls: calls that cannot be made are worse, and calls are equal by name and, field by field, by
arguments. No call is ever made."""

import json
from collections.abc import Sequence

from quality.judges.json_schema import UnsupportedSchemaError, is_valid
from quality.judges.judge import JudgeVerdict
from tiers.final_answer.calls import compared_calls
from tiers.tool_types import Tool, ToolCall, Tooling

NAME = "tool_calls"


def flaw_of(calls: Sequence[ToolCall], tooling: Tooling | None) -> str | None:
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


def _malformed(call: ToolCall, tool: Tool) -> str | None:
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


def judge_calls(
    tooling: Tooling | None, calls: Sequence[ToolCall], reference_calls: Sequence[ToolCall]
) -> JudgeVerdict:
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


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
