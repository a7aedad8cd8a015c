"""Dialects: how families of models write tool calls, for prompting, constraining and parsing."""

import json
from collections.abc import Mapping
from typing import Literal, NamedTuple

from tiers.tools.named_dialect import ArgumentMarks, NamedDialect

DialectName = Literal["hermes", "llama3", "mistral"]


class Dialect(NamedTuple):
    """Calls are `opener`, a JSON object each, and `closer`; `separator` is between two of them.

    `wraps_each`: opener and closer enclose every call, not all of them together. `at_start`: an answer that starts with
    a call has only calls, without an opener. `also_opens` may precede the first call. `arguments_key`, `name_key`: the
    keys of the object. `parallel`: whether an answer may have several calls.
    """

    name: str
    opener: str
    closer: str
    separator: str
    wraps_each: bool
    at_start: bool
    also_opens: str
    arguments_key: str
    name_key: str = "name"
    parallel: bool = True

    def call_text(self, name: str, arguments: str) -> str:
        """Return the JSON object of one call; `arguments` is JSON text."""
        return f'{{"{self.name_key}": {json.dumps(name, ensure_ascii=False)}, "{self.arguments_key}": {arguments}}}'

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts around calls, which some vocabularies have as control tokens."""
        return tuple(m.strip() for m in (self.opener, self.closer, self.also_opens) if len(m.strip()) > 1)


# Nous Research's Hermes models, Qwen 2.5 and 3, SmolLM2: <tool_call>{"name": …, "arguments": {…}}</tool_call>
HERMES = Dialect("hermes", "<tool_call>\n", "\n</tool_call>", "\n", True, False, "", "arguments")
# Llama 3.1 and later, JSON based calling: {"name": …, "parameters": {…}}
LLAMA3 = Dialect("llama3", "", "", "; ", False, True, "<|python_tag|>", "parameters")
# Mistral's instruction models: [TOOL_CALLS][{"name": …, "arguments": {…}}, …]
MISTRAL = Dialect("mistral", "[TOOL_CALLS][", "]", ", ", False, False, "", "arguments")

# Granite 3 and Phi-4-mini, whose templates show no calls: <|tool_call|>[{"name": …, "arguments": {…}}, …]
LISTED = Dialect("listed", "<|tool_call|>[", "]", ", ", False, False, "", "arguments")
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

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (HERMES, LLAMA3, MISTRAL)}


def dialect_of(template: str | None) -> Dialect | NamedDialect:
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
