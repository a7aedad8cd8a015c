"""The grammar of an answer in harmony's channels: of bound answers and of calls, thoughts before them being free."""

import json
import re
from collections.abc import Mapping
from typing import Any

from inference_core.grammar.vocabulary import JSON_STYLE
from inference_core.protocol import Grammar
from tiers.errors import TierRequestError
from tiers.tool_types import Tool, Tooling

_TEXT = "TEXT: /(.|\\n)*/"
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


def harmony_grammar(
    tooling: Tooling | None, controls: Mapping[str, int], answer: Grammar | None, *, thinks: bool
) -> Grammar | None:
    """Return the grammar of the whole answer; None if it is free. `answer`: the grammar of what is in the channel
    `final`; `thinks`: whether thoughts may come before it.

    Raises `TierRequestError` for a grammar that cannot stand in a channel.
    """
    tools = [] if tooling is None else tooling.callable_tools
    forced = tooling is not None and tooling.is_forced and bool(tools)
    if thinks and not forced and answer is None and not any(tool.strict for _, tool in tools):
        return None
    tokens = {name: f"<[{controls[text]}]>" for name, text in _TOKENS.items()}
    rules, schemas = [], []
    for number, (place, tool) in enumerate(tools):
        binding = forced or tool.strict
        rules += _call_rules(number, tool, tool.schema if binding else _ANY_OBJECT, tokens)
        if binding:
            schemas.append((f"tools[{place}].function.parameters", json.dumps(tool.schema)))
    kinds = ["call"] * bool(tools) + ["final"] * (not forced)
    lines = [f"start: {'thought*' if thinks else ''} ({' | '.join(kinds)})"]
    if thinks:
        # What is said before a call, too, where text is free.
        channel = '("analysis" | "commentary")' if tools and answer is None and not forced else '"analysis"'
        head = f"{tokens['channel']} {channel} {tokens['message']}"
        lines.append(f'thought: {head} TEXT {tokens["end"]} {tokens["start"]} "assistant"')
    if tools:
        lines.append(f"call: {' | '.join(f'call_{number}' for number in range(len(tools)))}")
    if not forced:
        kind = "" if answer is None or answer.kind in ("regex", "choice") else f'(" " {tokens["constrain"]} "json")?'
        lines.append(f'final: {tokens["channel"]} "final" {kind} {tokens["message"]} answer')
        lines.append(_answer_rule(answer))
        if answer is not None and answer.kind == "json_schema":
            schemas.append((answer.param, answer.text))
    param = answer.param if answer is not None and not tools else "tools" if tools else "messages"
    return Grammar(kind="lark", text="\n".join([*lines, *rules, _TEXT]), param=param, schemas=tuple(schemas))


_TOKENS = {name: f"<|{name}|>" for name in ("start", "end", "message", "channel", "constrain")}


def _call_rules(number: int, tool: Tool, schema: dict[str, Any], tokens: Mapping[str, str]) -> list[str]:
    """A call's header has its recipient in the channel or behind the role: the model was trained on both."""
    recipient = json.dumps(f" to=functions.{tool.name}")
    kind = f'(" " {tokens["constrain"]}? "json")?'
    in_channel = f'{tokens["channel"]} "commentary" {recipient}'
    behind_role = f'{recipient} {tokens["channel"]} "commentary"'
    return [
        f"call_{number}: ({in_channel} | {behind_role}) {kind} {tokens['message']} args_{number}",
        f"args_{number}: {_json_rule(schema)}",
    ]


def _answer_rule(answer: Grammar | None) -> str:
    """The rules of `answer`."""
    if answer is None:
        return "answer: TEXT"
    if answer.kind == "json_object":
        return f"answer: {_json_rule(_ANY_OBJECT)}"
    if answer.kind == "regex":
        return f"answer: ANSWER\nANSWER: /(?:{_delimited(answer.text)})/"
    if answer.kind == "lark":
        raise TierRequestError(
            f"{answer.param}: this model answers in channels, where a grammar of one's own cannot stand; use a JSON "
            "schema, a regular expression or a choice",
            answer.param,
        )
    try:
        given = json.loads(answer.text)
    except (ValueError, RecursionError) as error:
        raise TierRequestError(f"{answer.param} is no JSON: {error}", answer.param) from error
    if answer.kind == "choice":
        if not isinstance(given, list) or not given or not all(isinstance(text, str) and text for text in given):
            raise TierRequestError(f"{answer.param} must be a list of texts, none of them empty", answer.param)
        return f"answer: ANSWER\nANSWER: {' | '.join(json.dumps(text, ensure_ascii=False) for text in given)}"
    return f"answer: {_json_rule(given if isinstance(given, dict) else {})}"


def _delimited(regex: str) -> str:
    """A regular expression that may stand between slashes, on one line."""
    escaped = re.sub(r"\\.|/", lambda found: "\\/" if found[0] == "/" else found[0], regex, flags=re.DOTALL)
    return escaped.replace("\n", "\\n")


def _json_rule(schema: dict[str, Any]) -> str:
    styled = schema if "x-guidance" in schema else {**schema, "x-guidance": JSON_STYLE}
    return f"%json {json.dumps(styled)}"
