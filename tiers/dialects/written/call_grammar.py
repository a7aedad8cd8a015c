"""The grammar of an answer with tool calls: for forced calls always, for optional ones if a tool is strict.

Arguments that stand one by one between marks, as Qwen3-Coder's and GLM's models write them, have Lark rules.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from inference_core.grammar.vocabulary import JSON_STYLE
from inference_core.protocol import Grammar
from tiers.conversation import Tool, Tooling
from tiers.dialects.written.call_dialects import AnyDialect, ArgumentMarks, CallDialect, NamedDialect
from tiers.errors import TierRequestError


def marked_arguments(
    marks: ArgumentMarks, schema: Mapping[str, Any], rule: str, markup: Callable[[str], str]
) -> tuple[str, list[str]]:
    """Return the expression for the arguments of a schema, and the rules that it names, each beginning with `rule`.

    Properties have the order of the schema; texts between marks follow its `enum` and `const`, and are free otherwise.
    `markup`: writes a mark as the vocabulary has it.
    """
    properties = schema.get("properties")
    stated: dict[str, Any] = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    rules, whole, parts = list[str](), dict[str, str](), dict[str, str]()
    for number, (key, value) in enumerate(stated.items()):
        name = f"{rule}_{number}"
        rules.append(f"{name}: {_argument(marks, key, value, schema, f'{name}_v', markup, rules)}")
        whole[key], parts[key] = name, f"({markup(marks.separator)} {name})" if marks.separator else name
    if not marks.separator:
        return " ".join(whole[key] if key in needed else f"{whole[key]}?" for key in stated), rules
    first = [key for key in stated if key in needed] or list(stated)[:1]
    others = [key for key in stated if key not in first]
    listed = " ".join([whole[key] if index == 0 else parts[key] for index, key in enumerate(first)])
    more = " ".join(f"{parts[key]}?" for key in others)
    return (f"{listed} {more}" if needed or not stated else f"({listed} {more})?"), rules


def _argument(
    marks: ArgumentMarks,
    key: str,
    value: Any,
    schema: Mapping[str, Any],
    name: str,
    markup: Callable[[str], str],
    rules: list[str],
) -> str:
    stated = value if isinstance(value, dict) else {}
    lead = f"{markup(marks.key_open)} {json.dumps(key, ensure_ascii=False)}"
    choices: list[Any] = [stated["const"]] if "const" in stated else stated.get("enum") or []
    is_text = stated.get("type") == "string" or (bool(choices) and all(isinstance(choice, str) for choice in choices))
    mid, close = (marks.string_mid, marks.string_close) if is_text else (marks.other_mid, marks.other_close)
    if is_text and marks.string_form == "raw":
        if choices:
            texts = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
            return f"{lead} {markup(mid)} ({texts}) {markup(close)}"
        # Lazy: the text ends where its mark begins.
        rules.append(f"{name}[lazy]: RAW {json.dumps(close, ensure_ascii=False)}")
        return f"{lead} {markup(mid)} {name}"
    # A property may refer to the schema's own definitions.
    own = {word: schema[word] for word in ("$defs", "definitions") if word in schema}
    rules.append(f"{name}: %json {json.dumps({**own, **stated, 'x-guidance': JSON_STYLE})}")
    return f"{lead} {markup(mid)} {name} {markup(close)}"


# A small model that may call repeatedly does so without end.
MORE_CALLS = "{0,7}"
ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}


def call_grammar(
    tooling: Tooling, dialect: AnyDialect, control_tokens: Mapping[str, int], answer: Grammar | None
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
    for index, tool in tools:
        binding = tooling.is_forced or tool.strict
        rules.add(tool, tool.schema if binding else ANY_ARGUMENTS)
        if binding:
            schemas.append((f"tools[{index}].function.parameters", json.dumps(tool.schema)))
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
    return json_rule(schema)


def json_rule(schema: dict[str, Any]) -> str:
    """Return a Lark rule for values of `schema`, in the style of models unless it has its own."""
    styled = schema if "x-guidance" in schema else {**schema, "x-guidance": JSON_STYLE}
    return f"%json {json.dumps(styled)}"


class _Rules:
    """Lark rules, one for each tool's call: `section` around all calls, `opener` and `closer` around each."""

    def __init__(self, dialect: AnyDialect, control_tokens: Mapping[str, int]) -> None:
        self._dialect, self._control_tokens = dialect, control_tokens
        if isinstance(dialect, NamedDialect):
            self._section, self._opener, self._closer = dialect.section, dialect.opener, dialect.closer
        elif dialect.wraps_each:
            self._section, self._opener, self._closer = ("", ""), dialect.opener, dialect.closer
        else:
            self._section, self._opener, self._closer = (dialect.opener, dialect.closer), "", ""
        self._rules: list[str] = []
        self._names: list[str] = []

    def add(self, tool: Tool, schema: dict[str, Any]) -> None:
        number = len(self._names)
        self._names.append(f"call_{number}")
        if isinstance(self._dialect, NamedDialect):
            self._add_named(self._dialect, number, tool, schema)
            return
        # Pieces like those of a JSON schema, because a longer one would win over an answer with the same start.
        pieces = ["{", f'"{self._dialect.name_key}"', ": ", json.dumps(tool.name), ", "]
        pieces += [f'"{self._dialect.arguments_key}"', ": "]
        head = " ".join(json.dumps(piece) for piece in pieces)
        self._rules.append(f'call_{number}: {head} args_{number} "}}"')
        self._rules.append(f"args_{number}: {json_rule(schema)}")

    def _add_named(self, dialect: NamedDialect, number: int, tool: Tool, schema: dict[str, Any]) -> None:
        head = f"call_{number}: {_literal(tool.name)} {self._markup(dialect.after_name)}"
        if dialect.arguments is None:
            self._rules += [f"{head} args_{number}", f"args_{number}: {json_rule(schema)}"]
            return
        values, rules = marked_arguments(dialect.arguments, schema, f"args_{number}", self._markup)
        self._rules += [f"{head} {values}", *rules]

    def forced(self, parallel: bool) -> str:
        return self._lark("start: calls", parallel)

    def with_answer(self, answer: str, parallel: bool) -> str:
        """Return the rules for calls, or the answer."""
        return self._lark(f"start: calls | answer\nanswer: {answer}", parallel)

    def free(self, parallel: bool) -> str:
        """Return the rules for any text, in which a started call must be valid."""
        anchor = (self._section[0] + self._opener).lstrip()
        if not anchor:
            # What begins as a call of JSON does is one; a name may begin any answer.
            start = r"/[^{](.|\n)*/" if isinstance(self._dialect, CallDialect) else r"/(.|\n)*/"
            return self._lark(f"start: calls | TEXT?\nTEXT: {start}", parallel)
        marker, special = self._first_mark(anchor)
        rest = self._markup(anchor.removeprefix(marker))
        if special is None:
            head = f"head: lead {rest}\nlead[lazy]: TEXT {_literal(marker)}"
        else:
            head = f"head: TEXT <[{special}]> {rest}"
        parallel = parallel and self._dialect.parallel
        closer = self._markup(self._closer)
        if any(self._section):
            more = f" ({self._between()} one {closer})*" if parallel else ""
            return self._lark(f"start: (head one {closer}{more} {self._markup(self._section[1])})? tail\n{head}", None)
        return self._lark(f"start: (head one {closer}){'*' if parallel else '?'} tail\n{head}", None)

    def _first_mark(self, anchor: str) -> tuple[str, int | None]:
        """What begins a call, and its token if it is a control token."""
        for text in sorted(self._control_tokens, key=len, reverse=True):
            if anchor.startswith(text):
                return text, self._control_tokens[text]
        words = re.split(r"(?<=\S)(?=\s)|\[$", anchor)
        return words[0] or anchor, None

    def _between(self) -> str:
        return f"{_literal(self._dialect.separator)} {self._markup(self._opener)}"

    def _lark(self, start: str, parallel: bool | None) -> str:
        lines = [start, f"one: {' | '.join(self._names)}", *self._rules]
        if parallel is None:
            lines.append("tail: TEXT\nTEXT: /(.|\n)*/")
        else:
            closer = self._markup(self._closer)
            more = f" ({self._between()} one {closer}){MORE_CALLS}" if parallel and self._dialect.parallel else ""
            begin, end = self._markup(self._section[0] + self._opener), self._markup(self._section[1])
            lines.append(f"calls: {begin} one {closer}{more} {end}")
        if any("RAW" in line for line in lines):
            lines.append("RAW: /(.|\n)*/")
        return "\n".join(lines)

    def _markup(self, text: str) -> str:
        """Return a mark as the vocabulary has it: control tokens and literal text. Ids and numbers are free."""
        if not text:
            return ""
        special = sorted((token for token in self._control_tokens if token in text), key=len, reverse=True)
        pieces = re.split(f"({'|'.join(map(re.escape, [*special, '{id}', '{index}']))})", text)
        free = {"{id}": "/[a-zA-Z0-9]{9}/", "{index}": "/[0-9]{1,2}/"}
        tokens = {token: f"<[{self._control_tokens[token]}]>" for token in special}
        return " ".join((free | tokens).get(piece, _literal(piece)) for piece in pieces if piece)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
