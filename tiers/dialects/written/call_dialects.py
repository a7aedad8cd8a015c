"""Dialects: how families of models write tool calls, for prompting, constraining and parsing.

In a `NamedDialect` a call is a function's name followed by its arguments: as JSON, or one by one between marks.
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import msgspec

from tiers.conversation import Tool

# How long the text of Python's literals may be that is parsed: its parser takes memory in proportion.
_MOST_LITERAL = 100_000
_DECODER = json.JSONDecoder()


class ArgumentMarks(msgspec.Struct, frozen=True):
    """Arguments one by one: `key_open`, the key, `mid`, the value, `close`, with `separator` between two of them.

    Strings may have a `mid` and `close` of their own.
    """

    key_open: str
    string_mid: str
    string_close: str
    other_mid: str
    other_close: str
    separator: str
    string_form: Literal["raw", "json"]
    """As they are, or as JSON writes them."""


class NamedDialect(msgspec.Struct, frozen=True, dict=True):
    """Calls are `opener`, the name, `after_name`, the arguments and `closer`, with `separator` between two calls and
    `section` around all of them.

    In `after_name` and `opener`, `{id}` stands for an id, `{index}` for the number of the call.
    """

    section: tuple[str, str]
    opener: str
    closer: str
    separator: str
    after_name: str
    arguments: ArgumentMarks | None = None
    """How arguments are written; None for a JSON object."""
    name: str = "derived"
    parallel: bool = True
    """Whether an answer may have several calls."""

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts around calls, some of which a vocabulary may have as control tokens."""
        marks = self.arguments
        texts = [*self.section, self.opener, self.closer, self.separator, self.after_name]
        if marks is not None:
            texts += [marks.key_open, marks.string_mid, marks.string_close, marks.other_mid, marks.other_close]
        return tuple(text for text in texts if text.strip())

    @cached_property
    def anchor(self) -> str:
        """What stands before the first name; empty if a call begins with its name."""
        return (self.section[0] + self.opener).strip()

    def call_at(self, text: str, tools: Mapping[str, Tool], *, first: bool) -> "CallRead | None":
        """Return the call that `text` begins with, after white space; None if there is none, or not yet all of it.

        `first`: whether what stands before all calls comes before it, too.
        """
        lead = _pattern(self.section[0] if first else "", optional=False) + _pattern(self.opener)
        names = "|".join(re.escape(name) for name in sorted(tools, key=len, reverse=True))
        head = re.compile(rf"\s*{lead}(?P<name>{names}){_pattern(self.after_name)}").match(text)
        if head is None:
            return None
        tool = tools[head["name"]]
        read = _json_arguments(text, head.end()) if self.arguments is None else self._marked(text, head.end(), tool)
        if read is None:
            return None
        arguments, end = read
        closing = re.compile(_pattern(self.closer)).match(text, end)
        return None if closing is None else CallRead(tool.name, arguments, closing.end())

    def _marked(self, text: str, start: int, tool: Tool) -> tuple[str, int] | None:
        marks, values = self.arguments, dict[str, Any]()
        assert marks is not None
        closer, separator = _pattern(self.closer), _pattern(marks.separator)
        end = start
        while True:
            lead = (separator if values else "") + _pattern(marks.key_open)
            key = re.compile(rf"{lead}(?P<key>[\w.-]+)").match(text, end)
            if key is None:
                return json.dumps(values, ensure_ascii=False), end
            is_text = _is_text(tool.schema, key["key"])
            following = rf"(?={separator}{_pattern(marks.key_open)}[\w.-]|{closer})"
            read = _value(text, key.end(), marks, is_text, following)
            if read is None:
                return None if values or not marks.string_mid.strip() else (json.dumps(values), end)
            values[key["key"]], end = read


class CallRead(NamedTuple):
    """A call in a text that ends at `end`."""

    name: str
    arguments: str
    """JSON text."""
    end: int


def _value(text: str, start: int, marks: ArgumentMarks, is_text: bool | None, following: str) -> tuple[Any, int] | None:
    """A value and its end. `is_text`: whether the tool's schema says that it is a string; None if it leaves it open."""
    forms = [(marks.string_mid, marks.string_close, True), (marks.other_mid, marks.other_close, False)]
    same = marks.string_mid == marks.other_mid
    if same:
        forms = forms[:1] if is_text or (is_text is None and marks.string_close != marks.other_close) else forms[::-1]
    for mid, close, as_text in forms:
        raw = marks.string_form == "raw"
        begin = re.compile(_before(mid) if raw else _pattern(mid)).match(text, start)
        if begin is None:
            continue
        if not raw:
            return _literal(text, begin.end(), close, following)
        match = re.compile(rf"(?P<value>(?s:.*?)){_after(close)}{following}").match(text, begin.end())
        if match is not None:
            is_string = as_text and (not same or is_text is not False)
            return match["value"] if is_string else _parsed(match["value"]), match.end()
    return None


def _literal(text: str, start: int, close: str, following: str) -> tuple[Any, int] | None:
    """A value as JSON or Python writes it: it ends where it can be read and the mark follows."""
    for match in re.compile(rf"{_pattern(close)}{following}").finditer(text, start):
        said = text[start : match.start()].strip()
        try:
            return json.loads(said), match.end()
        except (ValueError, RecursionError):
            if (value := _python(said)) is not None:
                return value[0], match.end()
    return None


def _python(said: str) -> tuple[Any] | None:
    try:
        return (ast.literal_eval(said),) if len(said) <= _MOST_LITERAL else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _parsed(said: str) -> Any:
    """A value that is no string by its schema: JSON, Python's literal, or else the text itself."""
    try:
        return json.loads(said)
    except (ValueError, RecursionError):
        value = _python(said.strip())
        return said if value is None else value[0]


def _json_arguments(text: str, start: int) -> tuple[str, int] | None:
    begin = len(text) - len(text[start:].lstrip())
    if text[begin : begin + 1] != "{":
        return None
    try:
        _, end = _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None
    return text[begin:end], end


def _is_text(schema: Mapping[str, Any], key: str) -> bool | None:
    """Whether the schema of a tool says that an argument is a string; None if it does not say."""
    properties = schema.get("properties")
    stated = properties.get(key) if isinstance(properties, dict) else None
    kind = stated.get("type") if isinstance(stated, dict) else None
    if isinstance(stated, dict) and kind is None and isinstance(choices := stated.get("enum"), Sequence):
        return all(isinstance(choice, str) for choice in choices)
    return None if kind is None else kind == "string"


def _pattern(text: str, *, optional: bool = True) -> str:
    """A pattern of a mark: white space in it may be any, or none."""
    if not text:
        return ""
    escaped = "".join(r"\s*" if part.isspace() else re.escape(part) for part in re.split(r"(\s+)", text) if part)
    return escaped.replace(re.escape("{id}"), r"[\w-]+").replace(re.escape("{index}"), r"\d+")


def _before(mark: str) -> str:
    """A pattern of what stands before a text as it is: of white space, one line break is the mark's."""
    return _pattern(mark.rstrip()) + (r"\n?" if mark[-1:] == "\n" else "")


def _after(mark: str) -> str:
    """A pattern of what follows a text as it is."""
    return (r"\n?" if mark[:1] == "\n" else "") + _pattern(mark.lstrip())


class CallDialect(NamedTuple):
    """Calls are `opener`, a JSON object each, and `closer`."""

    name: str
    opener: str
    closer: str
    separator: str
    """Text between two calls."""
    wraps_each: bool
    """Whether opener and closer enclose every call, not all of them together."""
    at_start: bool
    """Whether an answer that starts with a call has only calls, without an opener."""
    also_opens: str
    """Texts that may precede the first call."""
    arguments_key: str
    """The key of the arguments in the object."""
    name_key: str = "name"
    """The key of the name in the object."""
    parallel: bool = True
    """Whether an answer may have several calls."""

    def call_text(self, name: str, arguments: str) -> str:
        """Return the JSON object of one call; `arguments` is JSON text."""
        return f'{{"{self.name_key}": {json.dumps(name, ensure_ascii=False)}, "{self.arguments_key}": {arguments}}}'

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts around calls, which some vocabularies have as control tokens."""
        return tuple(m.strip() for m in (self.opener, self.closer, self.also_opens) if len(m.strip()) > 1)


# Nous Research's Hermes models, Qwen 2.5 and 3, SmolLM2: <tool_call>{"name": …, "arguments": {…}}</tool_call>
AnyDialect = CallDialect | NamedDialect
HERMES = CallDialect("hermes", "<tool_call>\n", "\n</tool_call>", "\n", True, False, "", "arguments")
# Llama 3.1 and later, JSON based calling: {"name": …, "parameters": {…}}
LLAMA3 = CallDialect("llama3", "", "", "; ", False, True, "<|python_tag|>", "parameters")
# Mistral's instruction models: [TOOL_CALLS][{"name": …, "arguments": {…}}, …]
MISTRAL = CallDialect("mistral", "[TOOL_CALLS][", "]", ", ", False, False, "", "arguments")

# Granite 3 and Phi-4-mini, whose templates show no calls: <|tool_call|>[{"name": …, "arguments": {…}}, …]
LISTED = CallDialect("listed", "<|tool_call|>[", "]", ", ", False, False, "", "arguments")
# LFM2, likewise: <|tool_call_start|>[name(key="value"), …]<|tool_call_end|>
PYTHON_CALLS = NamedDialect(
    section=("<|tool_call_start|>[", "]<|tool_call_end|>"),
    opener="",
    closer=")",
    separator=", ",
    after_name="(",
    arguments=ArgumentMarks("", "=", "", "=", "", ", ", "json"),
    name="python",
)

DIALECTS: Mapping[str, CallDialect] = {dialect.name: dialect for dialect in (HERMES, LLAMA3, MISTRAL)}


def call_dialect_of(template: str | None) -> AnyDialect:
    """Return the dialect of a chat template, by the text it contains; Hermes' for templates without tools."""
    source = template or ""
    if "<|tool_call|>" in source:
        return LISTED._replace(closer="]<|/tool_call|>") if "<|/tool_call|>" in source else LISTED
    if "<|tool_call_start|>" in source:
        return PYTHON_CALLS
    if "[TOOL_CALLS]" in source:
        return MISTRAL
    if "<tool_call>" not in source and ("<|python_tag|>" in source or '"parameters": dictionary' in source):
        return LLAMA3
    return HERMES
