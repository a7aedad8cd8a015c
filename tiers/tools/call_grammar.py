"""The grammar of an answer with tool calls: for forced calls always, for optional ones if a tool is strict."""

import json
from collections.abc import Mapping
from typing import Any

from inference_core.grammar.json_style import JSON_STYLE
from inference_core.protocol import Grammar
from tiers.errors import TierRequestError
from tiers.tool_types import Tool, Tooling
from tiers.tools.dialect import Dialect

# A small model that may call repeatedly does so without end.
MORE_CALLS = "{0,7}"
ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}


def call_grammar(
    tooling: Tooling, dialect: Dialect, control_tokens: Mapping[str, int], answer: Grammar | None
) -> Grammar | None:
    """Return the grammar of the answer; None if it is free. `answer`: the grammar of an answer without calls.

    Raises `TierRequestError` for a grammar that cannot be combined with calls.
    """
    tools = tooling.callable_tools
    if not tools:
        return answer
    if not tooling.is_forced and answer is None and not any(tool.strict for _, tool in tools):
        return None
    rules = _Rules(dialect, control_tokens)
    schemas = []
    for place, tool in tools:
        binding = tooling.is_forced or tool.strict
        rules.add(tool, tool.schema if binding else ANY_ARGUMENTS)
        if binding:
            schemas.append((f"tools[{place}].function.parameters", json.dumps(tool.schema)))
    if tooling.is_forced:
        text = rules.forced(tooling.parallel)
    elif answer is None:
        text = rules.free(tooling.parallel)
    else:
        text = rules.with_answer(_answer_rule(answer), tooling.parallel)
        if answer.kind == "json_schema":
            schemas.append((answer.param, answer.text))
    return Grammar(kind="lark", text=text, param="tools", schemas=tuple(schemas))


def _answer_rule(answer: Grammar) -> str:
    if answer.kind not in ("json_object", "json_schema"):
        raise TierRequestError(
            f"{answer.param} cannot be combined with optional tools: use tool_choice 'none' or 'required', or a "
            "response_format of JSON",
            answer.param,
        )
    try:
        schema = json.loads(answer.text) if answer.kind == "json_schema" else ANY_ARGUMENTS
    except (ValueError, RecursionError) as error:
        raise TierRequestError(f"{answer.param} is no JSON: {error}", answer.param) from error
    return _json_rule(schema)


def _json_rule(schema: dict[str, Any]) -> str:
    styled = schema if "x-guidance" in schema else {**schema, "x-guidance": JSON_STYLE}
    return f"%json {json.dumps(styled)}"


class _Rules:
    """Lark rules, one for each tool's call."""

    def __init__(self, dialect: Dialect, control_tokens: Mapping[str, int]) -> None:
        self._dialect, self._control_tokens = dialect, control_tokens
        self._rules: list[str] = []
        self._names: list[str] = []

    def add(self, tool: Tool, schema: dict[str, Any]) -> None:
        number = len(self._names)
        # Pieces like those of a JSON schema, because a longer one would win over an answer with the same start.
        pieces = ["{", '"name"', ": ", json.dumps(tool.name), ", ", f'"{self._dialect.arguments_key}"', ": "]
        head = " ".join(json.dumps(piece) for piece in pieces)
        self._rules.append(f'call_{number}: {head} args_{number} "}}"')
        self._rules.append(f"args_{number}: {_json_rule(schema)}")
        self._names.append(f"call_{number}")

    def forced(self, parallel: bool) -> str:
        """Return the rules for calls only."""
        return self._lark("start: calls", parallel)

    def with_answer(self, answer: str, parallel: bool) -> str:
        """Return the rules for calls, or the answer."""
        return self._lark(f"start: calls | answer\nanswer: {answer}", parallel)

    def free(self, parallel: bool) -> str:
        """Return the rules for any text, in which a started call must be valid."""
        if self._dialect.at_start:
            return self._lark("start: calls | TEXT?\nTEXT: /[^{](.|\\n)*/", parallel)
        marker = self._dialect.opener.strip().removesuffix("[")
        rest = self._dialect.opener.removeprefix(marker)
        special = self._control_tokens.get(marker)
        if special is None:
            head = f"head: lead {_literal(rest)}\nlead[lazy]: TEXT {_literal(marker)}"
        else:
            head = f"head: TEXT <[{special}]> {_literal(rest)}"
        body = f"one {self._markup(self._dialect.closer)}"
        if not self._dialect.wraps_each:
            more = f" ({_literal(self._dialect.separator)} one)*" if parallel else ""
            return self._lark(f"start: (head one{more} {self._markup(self._dialect.closer)})? tail\n{head}", None)
        times = "*" if parallel else "?"
        return self._lark(f"start: (head {body}){times} tail\n{head}", None)

    def _lark(self, start: str, parallel: bool | None) -> str:
        lines = [start, f"one: {' | '.join(self._names)}", *self._rules]
        if parallel is None:
            lines.append("tail: TEXT\nTEXT: /(.|\\n)*/")
        else:
            opener, closer = self._markup(self._dialect.opener), self._markup(self._dialect.closer)
            separator = _literal(self._dialect.separator)
            if self._dialect.wraps_each:
                call = f"{opener} one {closer}"
                more = f" ({separator} {call}){MORE_CALLS}" if parallel else ""
                lines.append(f"calls: {call}{more}")
            else:
                more = f" ({separator} one){MORE_CALLS}" if parallel else ""
                lines.append(f"calls: {opener} one{more} {closer}")
        return "\n".join(lines)

    def _markup(self, text: str) -> str:
        """Return a marker as the vocabulary has it: a control token, or its text."""
        for marker in self._dialect.markers:
            core = marker.removesuffix("[")
            token_id = self._control_tokens.get(core)
            if token_id is not None and core in text:
                before, _, after = text.partition(core)
                return " ".join(filter(None, [_literal(before), f"<[{token_id}]>", _literal(after)]))
        return _literal(text)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
